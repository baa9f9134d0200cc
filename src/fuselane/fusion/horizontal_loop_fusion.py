"""Horizontal loop fusion: small kernels that feed the same instruction become one kernel.

    %a = f32[8] fusion(%x)                   %f = (f32[8], f32[8]) fusion(%x, %y)
    %b = f32[8] fusion(%y)           ->      ROOT %t = tuple(get-tuple-element(%f), ...)
    ROOT %t = tuple(%a, %b)

Results of different sizes are written as one array, of which each is a slice.

Source: xla/service/gpu/horizontal_loop_fusion.cc of 2023.
Does not handle: kernels that update a buffer in place, which stay alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.fuse import INPUT, LOOP, Fuser
from fuselane.fusion.horizontal import check_feeder, feeders
from fuselane.fusion.opcodes import is_elementwise, leaf_shapes
from fuselane.fusion.rules import describe, reason_of
from fuselane.fusion.traversal import xla_post_order
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape
from fuselane.hlo.tuples import tuple_of

_POINTER_BYTES: Final = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HorizontalLoopFusion:
    """Fuses small loops of the entry computation that feed the same instruction.

    Attributes:
        equal_shapes: First, kernels with results of the same shapes become one loop, as since
            2023-02.
        max_equal_elements: Most elements of their results.
        max_equal_instructions: Most instructions of each, parameters included.
        max_equal_fusions: Most fusions in one kernel.
        max_equal_operations: Most single instructions in one kernel.
        tiled_emitters: Then, kernels of any shapes write slices of one array, which takes an
            emitter that CPUs lack.
        max_elements: Most elements of their results.
        max_instructions: Most instructions of each, parameters included.
        max_kernels: Most of them in one kernel.
        max_argument_bytes: The pointers a kernel is called with take less than this.
    """

    name: ClassVar[str] = "horizontal-loop-fusion"
    equal_shapes: bool = True
    max_equal_elements: int = 8192 * 8192
    max_equal_instructions: int = 128
    max_equal_fusions: int = 32
    max_equal_operations: int = 64
    tiled_emitters: bool = True
    max_elements: int = 128 * 2048
    max_instructions: int = 30
    max_kernels: int = 32
    max_argument_bytes: int = 4000

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Fuses what the rules allow; returns whether anything was."""
        return _Walk(self, module, module.entry, log).run()


Key = tuple[object, ...]


@final
@dataclass(frozen=True, slots=True)
class _Form:
    """One of the two ways: which kernels it takes, which of them together, and how many."""

    max_elements: int
    max_instructions: int
    key: Callable[[HloInstruction], Key]
    most: Callable[[HloInstruction], int]
    is_sliced: bool


@final
class _Walk:
    """The entry computation on its way through the pass."""

    def __init__(
        self,
        options: HorizontalLoopFusion,
        module: HloModule,
        computation: HloComputation,
        log: FusionLog,
    ) -> None:
        self.options = options
        self.computation = computation
        self.fuser = Fuser(module, computation)
        self.log = log
        self.stack = xla_post_order(computation)
        self.checked: dict[HloInstruction, FusionDecision | None] = {}
        """Why an instruction is no loop of its own, None if it is one; until it grows."""

    def run(self) -> bool:
        changed = False
        while self.stack:
            consumer = self.stack.pop()
            for form in self._forms():
                changed |= self._fuse_feeders(consumer, form)
        if changed:
            self.fuser.finish()
        return changed

    def _forms(self) -> Iterator[_Form]:
        options = self.options
        if options.equal_shapes:
            yield _Form(
                options.max_equal_elements,
                options.max_equal_instructions,
                lambda i: (str(i.shape), i.opcode == "fusion"),
                lambda i: (
                    options.max_equal_fusions
                    if i.opcode == "fusion"
                    else options.max_equal_operations
                ),
                is_sliced=False,
            )
        if options.tiled_emitters:
            yield _Form(
                options.max_elements,
                options.max_instructions,
                lambda i: (_element_type(i), i.shape.num_leaves, _num_instructions(i)),
                lambda _: options.max_kernels,
                is_sliced=True,
            )

    def _fuse_feeders(self, consumer: HloInstruction, form: _Form) -> bool:
        loops: list[HloInstruction] = []
        for feeder in feeders(consumer):
            if feeder.opcode in ("parameter", "constant"):
                continue
            if feeder not in self.checked:
                self.checked[feeder] = _check_loop(feeder)
            refusal = self.checked[feeder]
            if refusal is None:
                loops.append(feeder)
            else:
                self._note(feeder, consumer, refusal)
        shared = _shared_parameters(loops)
        kernels: list[HloInstruction] = []
        for loop in loops:
            refusal = _check_kernel(loop, consumer, form, shared)
            if refusal is None:
                kernels.append(loop)
            else:
                self._note(loop, consumer, refusal)
        changed = False
        for _, group in groupby(sorted(kernels, key=_sortable(form)), key=form.key):
            for batch in self._batches(list(group), form):
                changed |= self._fuse(batch, consumer, form)
        return changed

    def _batches(
        self, group: Sequence[HloInstruction], form: _Form
    ) -> Iterator[list[HloInstruction]]:
        """Yields kernels of one kind, as many at a time as one kernel may hold."""
        batch: list[HloInstruction] = []
        size = 0
        for kernel in group:
            arguments = len(kernel.operands) + kernel.shape.num_leaves
            is_full = len(batch) == form.most(kernel)
            if is_full or size + arguments * _POINTER_BYTES >= self.options.max_argument_bytes:
                yield batch
                batch, size = [], 0
            batch.append(kernel)
            size += arguments * _POINTER_BYTES
        yield batch

    def _fuse(self, batch: Sequence[HloInstruction], consumer: HloInstruction, form: _Form) -> bool:
        if len(batch) < 2:
            for kernel in batch:
                detail = f"No other kernel that feeds `{consumer.name}` is like `{kernel.name}`."
                self._note(kernel, consumer, refuse(BoundaryReason.LOOP_SHAPES, detail))
            return False
        kind = INPUT if form.is_sliced else LOOP
        decision = allow(
            f"{len(batch)} kernels that feed `{consumer.name}` are launched as one.",
            kernels=len(batch),
        )
        fusion, *others = batch
        for other in others:
            before, fusion = fusion, self.fuser.fuse_siblings(fusion, other, kind)
            self.log.note(self.options.name, before, other, decision, fusion)
        self.checked.pop(batch[0], None)
        if form.is_sliced:
            self._write_as_one(fusion, batch[1].shape.num_leaves)
        self.stack.append(fusion)
        return True

    def _write_as_one(self, fusion: HloInstruction, num_results: int) -> None:
        """Makes slices of one array of a fusion's results, one array for each result of a
        kernel."""
        body, old = fusion.to_apply, fusion.to_apply.root
        slices: list[HloInstruction] = list(old.operands)
        for start in range(num_results):
            slices[start::num_results] = _slices_of_one(body, slices[start::num_results])
        body.root = body.add(tuple_of(slices))
        body.remove(old)
        fusion.shape = body.root.shape
        for element in list(fusion.users):
            shape = fusion.shape.tuple_shapes[element.tuple_index]
            if shape != element.shape:
                result = HloInstruction.create("bitcast", element.shape, [element])
                element.replace_all_uses_with(self.computation.add(result))
                element.shape = shape

    def _note(
        self, producer: HloInstruction, consumer: HloInstruction, decision: FusionDecision
    ) -> None:
        self.log.note(self.options.name, producer, consumer, decision)


def _slices_of_one(body: HloComputation, values: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Puts values one after the other into an array, and returns the slices that they are."""
    element_type = values[0].shape.element_type
    flat = []
    for value in values:
        shape = Shape.array(element_type, (value.shape.num_elements,))
        is_flat = shape == value.shape
        flat.append(
            value if is_flat else body.add(HloInstruction.create("bitcast", shape, [value]))
        )
    total = Shape.array(element_type, (sum(value.shape.num_elements for value in values),))
    one = body.add(HloInstruction.create("concatenate", total, flat, dimensions=[0]))
    slices, start = [], 0
    for value in flat:
        limit = start + value.shape.num_elements
        dimension = {"start": start, "limit": limit, "stride": 1}
        made = HloInstruction.create("slice", value.shape, [one], slice_dimensions=[dimension])
        slices.append(body.add(made))
        start = limit
    return slices


def _check_loop(kernel: HloInstruction) -> FusionDecision | None:
    """Refuses what is no loop of its own."""
    is_loop = kernel.opcode == "fusion" and kernel.fusion_kind == LOOP
    is_simple = kernel.opcode != "fusion" and is_elementwise(kernel)
    leaves = leaf_shapes(kernel.shape)
    if not is_loop and not is_simple:
        detail = f"{describe(kernel)}, is no loop of its own."
        return refuse(reason_of(kernel), detail)
    if len({leaf.element_type for leaf in leaves}) > 1:
        detail = f"The results of `{kernel.name}` have different types."
        return refuse(BoundaryReason.LOOP_SHAPES, detail)
    if not all(leaf.is_row_major for leaf in leaves):
        return refuse(BoundaryReason.LAYOUT, f"`{kernel.name}` is not row-major.")
    return None


def _check_kernel(
    kernel: HloInstruction,
    consumer: HloInstruction,
    form: _Form,
    shared: Collection[HloInstruction],
) -> FusionDecision | None:
    """Refuses loops that are large, that more than one instruction needs, or that read one of the
    parameters which several do."""
    refusal = check_feeder(kernel, consumer)
    if refusal is not None:
        return refusal
    elements = leaf_shapes(kernel.shape)[0].num_elements
    instructions = _num_instructions(kernel)
    if elements > form.max_elements or instructions > form.max_instructions:
        return refuse(
            BoundaryReason.BUDGET,
            f"`{kernel.name}` makes {elements} elements by {instructions} instructions.",
            elements=elements,
            max_elements=form.max_elements,
            instructions=instructions,
            max_instructions=form.max_instructions,
        )
    for operand in kernel.operands:
        if operand in shared:
            detail = f"`{kernel.name}` reads `{operand.name}`, as another of the kernels does."
            return refuse(BoundaryReason.MULTI_OUTPUT, detail)
    return None


def _shared_parameters(loops: Sequence[HloInstruction]) -> set[HloInstruction]:
    """Returns the program's parameters that several of some loops read."""
    readers = Counter(operand for loop in loops for operand in {*loop.operands})
    return {read for read, count in readers.items() if count > 1 and read.opcode == "parameter"}


def _sortable(form: _Form) -> Callable[[HloInstruction], list[str]]:
    return lambda kernel: [f"{part:>12}" for part in form.key(kernel)]


def _element_type(kernel: HloInstruction) -> int:
    return int(leaf_shapes(kernel.shape)[0].element_type)


def _num_instructions(kernel: HloInstruction) -> int:
    if kernel.opcode != "fusion":
        return 1
    return len(kernel.to_apply.instructions)
