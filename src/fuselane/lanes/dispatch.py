"""Has XLA:CPU run a program with kernels in a thread of its own, as it would have without them.

    %zero = s32[] constant(0)
    %some = f32[16,16] constant({...})
    %c = f32[16,16] conditional(%zero, %some, %some), branch_computations={%always, %never}
    %always: ROOT %copy = copy(%p)          %never: ROOT %dot = dot(%p, %p)

XLA decides by the operations that it counts (see `analysis.dispatch`), and counts none in a call of
a kernel. In a conditional it counts those of the branch that has most of them, taken or not. What
is never taken costs nothing, and neither branch has code that would have to be compiled.

`analysis.dispatch.remove_dispatch_mark` takes it out again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fuselane.analysis.dispatch import DISPATCH_MARK, is_asynchronous, needs_thread
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import PrimitiveType, Shape

_SOME: Final = Shape.array(PrimitiveType.F32, (16, 16))
"""A dot of two such arrays is 8,192 operations."""


def keep_asynchronous(module: HloModule, kernel_us: float) -> None:
    """Has XLA run a module in a thread of its own, if it is long or large and XLA would not.

    Args:
        module: With kernels of ours; without them, XLA would have.
        kernel_us: How long these run by estimate.
    """
    if not is_asynchronous(module) and needs_thread(module, kernel_us):
        add_dispatch_mark(module)


def add_dispatch_mark(module: HloModule) -> None:
    """Adds to a module what XLA counts enough operations in.

    Not if it returns an argument and nothing else: nobody waits for what it computes then.
    """
    entry, root = module.entry, module.entry.root
    if root.opcode == "parameter":
        return
    zero = HloInstruction.create(
        "constant", Shape.array(PrimitiveType.S32, ()), literal=np.int32(0)
    )
    some = HloInstruction.create("constant", _SOME, literal=np.zeros(_SOME.dimensions, np.float32))
    conditional = HloInstruction.create(
        "conditional",
        _SOME,
        [zero, some, some],
        name=DISPATCH_MARK,
        called_computations=[module.add(_make_always()), module.add(_make_never())],
    )
    conditional.proto.frontend_attributes.map.add(key=DISPATCH_MARK, value="true")
    for instruction in (zero, some, conditional):
        entry.add(instruction, before=root)
    # XLA removes what nobody reads, but not if something has to wait for it.
    root.add_control_predecessor(conditional)


def _make_always() -> HloComputation:
    branch = HloComputation.create(f"{DISPATCH_MARK}.always")
    value = branch.add(HloInstruction.parameter(0, _SOME, "p"))
    branch.root = branch.add(HloInstruction.create("copy", _SOME, [value]))
    return branch


def _make_never() -> HloComputation:
    branch = HloComputation.create(f"{DISPATCH_MARK}.never")
    value = branch.add(HloInstruction.parameter(0, _SOME, "p"))
    numbers = DotDimensions.create(
        left_rank=2,
        right_rank=2,
        left_batch=(),
        right_batch=(),
        left_contracting=(1,),
        right_contracting=(0,),
    )
    dot = HloInstruction.create(
        "dot", _SOME, [value, value], dot_dimension_numbers=numbers.to_proto()
    )
    branch.root = branch.add(dot)
    return branch
