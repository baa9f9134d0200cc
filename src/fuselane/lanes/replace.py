"""Puts a custom call in the place of a `while`.

Before                                          After
    %t = tuple(%i, %copy, %zeros, %weights)         %k = (f32[8], f32[9,8]) custom-call(%i, %copy,
    %w = while(%t), ...                                 %weights), output_to_operand_aliasing={
    %x = get-tuple-element(%w), index=1                 {0}: (1, {})}
    %y = get-tuple-element(%w), index=2             %x = get-tuple-element(%k), index=0
                                                    %y = get-tuple-element(%k), index=1

On CPUs, XLA has already placed the copies that a `while`, which updates its operands in place,
needs, and places none after us; on GPUs, where layouts are still to be assigned, it will. So the
call must use memory as the loop did: each result shares the buffer of the loop's initial value, by
`output_to_operand_aliasing`, and on CPUs the call stands in the same order to everything else. That
also costs no copy. The exceptions:

- a stream that is overwritten as a whole gets a new buffer; what filled the old one is removed;
- a uniform state beside lanes gets a new buffer, as several threads read the initial value while
  one writes the result;
- constants that the loop passes on unchanged are used where they are;
- results that only the program's epilogue needs get new buffers, with a row for each tile;
- scratch memory too large for the stack is one more result, which nobody reads.

A kernel must therefore have read a tile's initial state before it writes the tile's final state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.decisions import call_of
from fuselane.errors import VerificationError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import OutputOperandAliasing, SliceDimensions
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.hlo.tuples import element_of
from fuselane.lanes.complex_parts import NUM_PARTS
from fuselane.lanes.epilogue import add_epilogue
from fuselane.lanes.layout import physical_shape
from fuselane.lanes.program import ElementKind, LaneProgram, LoopElement

Attributes = bytes | Callable[[int], bytes]
"""A call's attributes as a dictionary in MLIR's syntax, or what makes them of how many results it
has."""

TYPED_FFI: Final = 4
"""API_VERSION_TYPED_FFI of xla/service/hlo.proto's CustomCallApiVersion."""

# Their value may lie in a buffer that something else, such as a donated parameter, shares.
_SHARED_BUFFER_OPCODES: Final = frozenset(
    {
        "bitcast",
        "call",
        "conditional",
        "custom-call",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "while",
    }
)
"""Their value lies in the buffer of what they change, and that of fusions of them may."""

_ORDERLESS_OPCODES: Final = frozenset({"constant", "iota", "parameter"})


def replace_loop(
    loop: HloInstruction,
    program: LaneProgram,
    target: str,
    attributes: Attributes,
    *,
    constrains_layouts: bool = False,
) -> HloInstruction:
    """Replaces a `while` by a call of its kernel and removes what nobody needs any more.

    Args:
        loop: The `while` in the user's module that `program` was formed from.
        target: Custom call target.
        attributes: The call's.
        constrains_layouts: Whether XLA, which has yet to assign layouts, has to keep those that the
            call's arrays have here.
    Returns:
        The custom call. Its operands begin with the region's inputs, its results with the region's
        outputs; further ones only carry buffers through.
    Raises:
        VerificationError: if `program` does not belong to `loop`.
    """
    return _Replacement(loop, program, constrains_layouts).run(target, attributes)


@final
class _Replacement:
    """One run of `replace_loop`."""

    def __init__(
        self, loop: HloInstruction, program: LaneProgram, constrains_layouts: bool
    ) -> None:
        if loop.computation is None or loop.operands[0].opcode != "tuple":
            raise VerificationError(f"{loop.name} cannot be replaced by a kernel.")
        self.loop = loop
        self.program = program
        self.constrains_layouts = constrains_layouts
        self.computation: HloComputation = loop.computation
        self.initial = loop.operands[0].operands
        self.operands = [self._placed(operand) for operand in program.operands]
        self.results: list[Shape] = []
        self.result_of: dict[int, int] = {}
        self.aliases: list[tuple[int, int]] = []
        self.partials: list[int] = []
        self.finished: dict[int, HloInstruction] = {}

    def run(self, target: str, attributes: Attributes) -> HloInstruction:
        """Does the replacement."""
        positions = self._operand_positions()
        for output, index in zip(self.program.outputs, self.program.output_indices, strict=True):
            element = self.program.loop.elements[output.tuple_index]
            if index < 0:
                self._add_partial(element)
            else:
                self._add_output(index, element, positions.get(output.tuple_index))
        self._add_scratch()
        self._add_forwarded()
        call = self._create_call(target, attributes)
        self._add_epilogue(call)
        self._rewire(call)
        self._keep_order(call)
        self._remove_loop()
        return call

    def _placed(self, operand: HloInstruction) -> HloInstruction:
        """Returns an operand; of a constant that no computation has, a copy that this one has."""
        if operand.computation is not None:
            return operand
        return self.computation.add(operand.clone(()), before=self.loop)

    def _operand_positions(self) -> dict[int, int]:
        """Returns for each element of the region's loop the operand with its initial value."""
        values = self.program.loop.instruction.operands[0].operands
        return {
            index: value.parameter_number
            for index, value in enumerate(values)
            if value.opcode == "parameter"
        }

    def _add_output(self, index: int, element: LoopElement, position: int | None) -> None:
        """Decides which memory the result at a tuple index of the loop gets."""
        value = self.initial[index]
        is_other = position is not None and self.operands[position] is not value
        if is_other or element.kind is ElementKind.INVARIANT:
            raise VerificationError(f"{self.loop.name} and its lane program do not fit together.")
        is_stream = element.kind is ElementKind.STREAM
        if is_stream and element.is_fully_overwritten:
            self._add_result(index)
            if position is not None:
                self.operands[position] = self._placeholder()
        elif position is None and not is_stream:
            self._add_result(index)
        elif is_stream or element.lane_dimension is not None or not self.program.has_lanes:
            self._share(index, position)
        else:
            self._add_result(index)
            if position is not None:
                self.operands[position] = self._in_own_buffer(value)

    def _add_result(self, index: int) -> None:
        self.result_of[index] = len(self.results)
        self.results.append(self.loop.shape.tuple_shapes[index])

    def _add_partial(self, element: LoopElement) -> None:
        """Adds a result that only the epilogue needs, with a row for each tile."""
        shape = element.shape
        if element.combiner:
            sizes = (self.program.num_tiles, *shape.dimensions[1:])
            shape = Shape.array(shape.element_type, sizes)
        self.partials.append(len(self.results))
        self.results.append(shape)

    def _add_scratch(self) -> None:
        """Adds a result that nobody reads."""
        if self.program.scratch_bytes:
            shape = Shape.array(PrimitiveType.U8, (self.program.scratch_bytes,))
            self.results.append(shape)

    def _share(self, index: int, position: int | None) -> None:
        """Adds a result that lies in the buffer of the loop's initial value, or of a copy of it."""
        value = self.initial[index]
        if self._is_anothers(value, is_written=index not in self.program.invariants):
            value = self._copied(value, self.loop)
            if any(position == other for _, other in self.aliases):
                position = None
            if position is not None:
                self.operands[position] = value
        if position is None:
            position = len(self.operands)
            self.operands.append(value)
        self.aliases.append((len(self.results), position))
        self._add_result(index)

    def _is_anothers(self, value: HloInstruction, *, is_written: bool) -> bool:
        """Whether the buffer of an initial value is that of another element of the loop too.

        Where XLA has placed copies, only elements have one that stay alike in every step; it may be
        an argument's.
        """
        if any(self.operands[position] is value for _, position in self.aliases):
            return True
        is_alike = sum(other is value for other in self.initial) > 1
        return is_written and is_alike and not self.constrains_layouts

    def _add_forwarded(self) -> None:
        """Adds results for the elements that the loop passes on unchanged and somebody uses."""
        users = self.loop.users
        used = {user.tuple_index for user in users if user.opcode == "get-tuple-element"}
        is_whole = self.loop.is_root or any(user.opcode != "get-tuple-element" for user in users)
        result_of: dict[HloInstruction, int] = {}
        for index in self.program.invariants:
            value = self.initial[index]
            if value.opcode == "constant" or not (is_whole or index in used):
                continue
            if value not in result_of:
                is_input = value in self.operands
                self._share(index, self.operands.index(value) if is_input else None)
                result_of[value] = self.result_of[index]
            self.result_of[index] = result_of[value]

    def _placeholder(self) -> HloInstruction:
        """Returns an operand for an input the kernel does not read."""
        shape = Shape.array(PrimitiveType.PRED, ())
        constant = HloInstruction.create(
            "constant", shape, literal=shape.element_type.dtype.type(0)
        )
        return self.computation.add(constant, before=self.loop)

    def _in_own_buffer(self, value: HloInstruction) -> HloInstruction:
        """Returns a value that certainly shares no buffer with a result."""
        return self._copied(value, self.loop) if _may_share_buffer(value) else value

    def _create_call(self, target: str, attributes: Attributes) -> HloInstruction:
        aliasing = [
            OutputOperandAliasing(output_shape_index=[result], operand_index=operand)
            for result, operand in self.aliases
        ]
        call = HloInstruction.create(
            "custom-call",
            Shape.tuple_of(self.results),
            self.operands,
            name=call_of(self.loop.name),
            custom_call_target=target,
            custom_call_api_version=TYPED_FFI,
            backend_config=attributes(len(self.results)) if callable(attributes) else attributes,
            output_operand_aliasing=aliasing,
            metadata=self.loop.metadata,
        )
        if self.constrains_layouts:
            call.proto.constrain_layout = True
            shapes = [operand.shape.to_proto() for operand in self.operands]
            call.proto.operand_shapes_with_layout.extend(shapes)
        return self.computation.add(call, before=self.loop)

    def _add_epilogue(self, call: HloInstruction) -> None:
        """Adds what makes results of the elements that only the epilogue needs."""
        epilogue = self.program.epilogue
        if epilogue is None:
            return
        computation = self.computation
        partials = [
            computation.add(element_of(call, number), before=self.loop) for number in self.partials
        ]
        inputs = [self._kept(value, call) for value in epilogue.inputs]
        has_layouts = not self.constrains_layouts
        values = add_epilogue(epilogue, partials, inputs, before=self.loop, has_layouts=has_layouts)
        sources: set[HloInstruction] = set()
        for index, value in zip(epilogue.output_indices, values, strict=True):
            source = _source(value)
            is_taken = source in sources or source.opcode == "constant"
            own = self._copied(value, self.loop) if is_taken else value
            sources.add(source)
            self.finished[index] = self._in_shape(own, self.loop.shape.tuple_shapes[index])

    def _copied(self, value: HloInstruction, before: HloInstruction) -> HloInstruction:
        """Returns a value in memory of its own, which every element of a loop has."""
        copy = HloInstruction.create("copy", value.shape, [value], name=f"copy.{value.name}")
        return self.computation.add(copy, before=before)

    def _kept(self, value: HloInstruction, call: HloInstruction) -> HloInstruction:
        """Returns a value as an array in row-major order that nothing behind the call changes."""
        if value.opcode != "constant" and not self.constrains_layouts:
            value = self._copied(value, call)
            call.add_control_predecessor(value)
        return self._in_shape(value, physical_shape(value.shape))

    def _in_shape(self, value: HloInstruction, shape: Shape) -> HloInstruction:
        """Returns the same bytes as an array of another shape.

        XLA makes no bitcasts before it assigns layouts: it would give both sides the same one. Only
        parts of complex numbers have another shape there than the numbers.
        """
        if value.shape == shape:
            return value
        if self.constrains_layouts:
            parts = [self._part(value, number) for number in range(NUM_PARTS)]
            return self.computation.add(
                HloInstruction.create("complex", shape, parts), before=self.loop
            )
        bitcast = HloInstruction.create("bitcast", shape, [value], name=value.name)
        return self.computation.add(bitcast, before=self.loop)

    def _part(self, value: HloInstruction, number: int) -> HloInstruction:
        """Returns the real or the imaginary parts of an array that has both in a last dimension."""
        *sizes, _ = value.shape.dimensions
        element = value.shape.element_type
        ranges = [SliceDimensions(start=0, limit=size, stride=1) for size in sizes]
        ranges.append(SliceDimensions(start=number, limit=number + 1, stride=1))
        column = HloInstruction.create(
            "slice", Shape.array(element, [*sizes, 1]), [value], slice_dimensions=ranges
        )
        self.computation.add(column, before=self.loop)
        part = HloInstruction.create("reshape", Shape.array(element, sizes), [column])
        return self.computation.add(part, before=self.loop)

    def _rewire(self, call: HloInstruction) -> None:
        """Makes all users of the loop use the call's results instead."""
        elements: dict[int, HloInstruction] = {}
        for user in list(self.loop.users):
            if user.opcode == "get-tuple-element":
                if user.users or user.is_root:
                    user.replace_all_uses_with(self._element(user.tuple_index, call, elements))
                for successor in user.control_successors:
                    successor.add_control_predecessor(call)
                user.drop_control_edges()
                self.computation.remove(user)
        if self.loop.users or self.loop.is_root:
            values = [self._element(i, call, elements) for i in range(len(self.initial))]
            whole = HloInstruction.create("tuple", self.loop.shape, values)
            self.loop.replace_all_uses_with(self.computation.add(whole, before=self.loop))

    def _element(
        self, index: int, call: HloInstruction, elements: dict[int, HloInstruction]
    ) -> HloInstruction:
        if index in self.finished:
            return self.finished[index]
        result = self.result_of.get(index)
        if result is None:
            return self.initial[index]
        if index not in elements:
            elements[index] = self.computation.add(element_of(call, result), before=self.loop)
        return elements[index]

    def _keep_order(self, call: HloInstruction) -> None:
        """Makes what had to run before the loop, and stays, precede the call.

        Where XLA has yet to place copies, it sees to that itself; and fusions, which are also still
        to come, take nothing away that such an order holds.
        """
        self.loop.move_control_edges_to(call)
        if self.constrains_layouts:
            return
        dead = {self.loop, self.loop.operands[0]}
        earlier: dict[HloInstruction, None] = {}
        stack = list(self.initial)
        while stack:
            value = stack.pop()
            if value.opcode in _ORDERLESS_OPCODES or value in call.operands or value in dead:
                continue
            if all(user in dead for user in value.users) and _is_removable(value):
                dead.add(value)
                earlier.pop(value, None)
                earlier.update(dict.fromkeys(value.control_predecessors))
                stack.extend(value.operands)
            else:
                earlier[value] = None
        for value in earlier:
            if value not in dead:
                call.add_control_predecessor(value)

    def _remove_loop(self) -> None:
        """Removes the loop and what only it needed."""
        stack = [self.loop]
        while stack:
            instruction = stack.pop()
            if instruction.computation is None or instruction.users:
                continue
            if _is_removable(instruction):
                operands = list(instruction.operands)
                _leave_order(instruction)
                self.computation.remove(instruction)
                stack.extend(operands)


def _may_share_buffer(value: HloInstruction) -> bool:
    """Whether a value may lie in a buffer that something else shares, be it a result behind it: a
    loop around all of this has one buffer for what it begins, changes and ends with."""
    if value.opcode in _SHARED_BUFFER_OPCODES | UPDATING_OPCODES:
        return True
    return value.opcode == "fusion" and any(
        i.opcode in UPDATING_OPCODES for i in value.to_apply.instructions
    )


def _source(value: HloInstruction) -> HloInstruction:
    """Returns the instruction in whose memory a value lies."""
    while value.opcode in ("bitcast", "reshape"):
        value = value.operands[0]
    return value


def _leave_order(removed: HloInstruction) -> None:
    """Makes what has to run before an instruction precede what has to run behind it.

    XLA would compile and run one that nobody needs any more for the sake of that order alone.
    """
    earlier = [*removed.control_predecessors, *removed.operands]
    for successor in removed.control_successors:
        for value in earlier:
            if value.opcode not in _ORDERLESS_OPCODES and value not in successor.operands:
                successor.add_control_predecessor(value)
    removed.drop_control_edges()


def _is_removable(instruction: HloInstruction) -> bool:
    """Whether an instruction may go when its value is not used any more."""
    return not (
        instruction.is_root or instruction.opcode == "parameter" or instruction.has_side_effect
    )
