"""Which results are made in a loop although their elements would fit registers: those of long code.

    %e = f32[4096,8,8] exponential(..)       a view: its reader makes the elements it needs
    %r = f32[4096,8] reduce(%e, ..)          8 elements, each of 8 exponentials

Unrolled, that is 64 copies of an exponential's code; in a loop over the result's elements it is 8,
and a store and a load of each element. LLVM takes in proportion to the code, and a step that is
longer than what a processor keeps decoded is slower for it.
"""

from __future__ import annotations

import math
from typing import Final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.arrays import View
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.math.rare import MIN_CALLED_SIZE
from fuselane.codegen.vector_timing import timing_of
from fuselane.hlo.instruction import HloInstruction

_MAX_UNROLLED_SCALARS, _MIN_SCALAR_CODE = 600.0, 60.0
_MAX_UNROLLED_VECTORS, _MIN_VECTOR_CODE = 150.0, 20.0
"""Machine instructions for which a result is made in a loop: of all its elements, and of each, so
that those of the loop do not matter. A vector's element is a load and a store in any case once
there are more than registers, and LLVM takes three quarters of its time for the loop (hidden Markov
models), or nine tenths; kernels take 0.85 to 1.04 of theirs. Registers of GPUs have no addresses.
"""

_MAX_UNROLLED_PARTS: Final = 600.0
"""Machine instructions of one element of a reduction for which what it takes in is a loop, too: a
few functions in a row hide each other's latency."""

_ROUNDING: Final = 6.0
"""Machine instructions that round a sum of halves."""

_CALL: Final = 10.0
"""Machine instructions of a call of a long routine, which many elements have in common."""


def is_long(emitter: Emitter, instruction: HloInstruction) -> bool:
    """Returns whether a result, and the views it reads, are too much code to be unrolled.

    On a GPU too: what is made at once are a thread's registers, and the fewer, the more warps.
    """
    is_reduction = instruction.opcode == "reduce"
    differing = instruction.operands[0] if is_reduction else instruction
    if emitter.lane(differing) is None or not (instruction.shape.is_array or is_reduction):
        return False
    size = _num_results(emitter, instruction)
    if size <= 1:
        return False
    code = _count_instructions(emitter, instruction)
    if emitter.place.block.width > 1:
        return code > _MAX_UNROLLED_VECTORS and code > size * _MIN_VECTOR_CODE
    return code > _MAX_UNROLLED_SCALARS and code > size * _MIN_SCALAR_CODE


def is_long_for_each(emitter: Emitter, reduce: HloInstruction) -> bool:
    """Returns whether what one element of a reduction takes in, worked out where it is read, is too
    much code to be unrolled.

    What registers hold is not: a loop would have to select among them.
    """
    views = [
        operand
        for operand in reduce.operands[: len(reduce.operands) // 2]
        if isinstance(emitter.values.get(operand), View) and emitter.is_view(operand)
    ]
    if not views:
        return False
    size = math.prod(views[0].shape.dimensions[axis] for axis in reduce.dimensions)
    code = _count_instructions(emitter, reduce) / _num_results(emitter, reduce)
    least = _MIN_VECTOR_CODE if emitter.place.block.width > 1 else _MIN_SCALAR_CODE
    return code > _MAX_UNROLLED_PARTS and code > size * least


def _num_results(emitter: Emitter, instruction: HloInstruction) -> int:
    """Returns how many elements a lane has of a result, or of each of several that are reduced
    together."""
    if instruction.shape.is_array:
        return residual_size(instruction.shape.dimensions, emitter.lane(instruction))
    operand = instruction.operands[0]
    whole = residual_size(operand.shape.dimensions, emitter.lane(operand))
    lane = emitter.lane(operand)
    reduced = (operand.shape.dimensions[d] for d in instruction.dimensions if d != lane)
    return whole // max(1, math.prod(reduced))


def _count_instructions(emitter: Emitter, instruction: HloInstruction) -> float:
    """Returns about how many machine instructions an unrolled result takes, for one vector."""
    of_views = sum(
        _count_instructions(emitter, operand)
        for operand in set(instruction.operands)
        if isinstance(emitter.values.get(operand), View)
    )
    shape = instruction.shape
    if instruction.opcode == "reduce":
        shape = instruction.operands[0].shape
        lane = emitter.lane(instruction.operands[0])
    elif instruction.opcode in ELEMENTWISE_OPCODES:
        lane = emitter.lane(instruction)
    else:
        return of_views
    one = timing_of(instruction).instructions
    if instruction.opcode == "reduce":
        one = _count_applied(instruction)
    copied = one if one < MIN_CALLED_SIZE else _CALL
    return of_views + residual_size(shape.dimensions, lane) * copied


def _count_applied(reduce: HloInstruction) -> float:
    """Returns about how many machine instructions take in one more element."""
    applied = reduce.to_apply.instructions
    if reduce.shape.is_tuple:
        return sum(OPCODE_COST[i.opcode] for i in applied)
    computed = [i for i in applied if i.opcode in ELEMENTWISE_OPCODES]
    instructions = sum(timing_of(i).instructions for i in computed)
    return instructions + (_ROUNDING if _is_rounded(reduce) else 0.0)


def _is_rounded(reduce: HloInstruction) -> bool:
    """Whether a reduction rounds after each element, as those of halves do."""
    element = reduce.operands[0].shape.element_type
    applied = sum(i.opcode != "parameter" for i in reduce.to_apply.instructions)
    return applied > 1 or (element.is_floating and element.bits < 32)
