"""Making two dimensions of one, where it is cut into parts or put together from them.

    %z = f32[4096]                                  ->  %z = f32[4096]
    %n = f32[4096] negate(%z)                           %n = f32[4096] negate(%z)
    %a = f32[8192] concatenate(%z, %n)                  %a = f32[2,4096] concatenate(
                                                               f32[1,4096] reshape(%z), ...(%n))
    %s = f32[8192] multiply(%t, %a)                     %s = f32[2,4096] multiply(%t, %a)

No part is moved along the new minor dimension, which may then be the lanes; or along the major one,
where neighbours belong together. The opposite of `fuselane.lanes.flatten`: row-major arrays stay
where they are in memory, so parameters and results are reshaped for free. What cannot be done in
two dimensions is done in one, between two reshapes. The region is changed in place.

Numerics: bitwise-equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, final

from fuselane.analysis.cuts import Cut, find_cuts
from fuselane.analysis.dimension_classes import is_leaf
from fuselane.analysis.lanes import LaneAnalysis, find_lanes
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import PaddingConfig, SliceDimensions
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.normal_loop import Copies, NormalLoop

_MANY_LANES: Final = 64
"""A loop that has so many is not searched for lanes that are cut."""

_MAX_CUTS: Final = 4

_Places = Sequence[int | None]
"""For each operand, which of its dimensions is cut."""

_IN_ANY_DIMENSIONS: Final = frozenset({"broadcast", "dot", "reduce", "transpose"})

_ALONG_OTHERS: Final = frozenset(
    {"concatenate", "dynamic-slice", "dynamic-update-slice", "pad", "slice", "sort"}
)
"""Opcodes done in two dimensions unless it is these along which they work."""


def part_lanes(copies: Copies, found: LaneAnalysis) -> Iterator[tuple[NormalLoop, LaneAnalysis]]:
    """Yields loops with more lanes than were found, and these lanes, if they need be cut.

    Args:
        copies: Of the loop in normal form.
        found: The lanes it has as it is.
    """
    num_lanes = 1 if found.obstacle is not None else found.num_lanes
    if num_lanes >= _MANY_LANES:
        return
    for number in itertools.count():
        normal = copies.get()
        cuts = find_cuts(normal.region, num_lanes)[number:]
        if not cuts:
            copies.put_back(normal)
            return
        for _ in range(_MAX_CUTS):
            part(normal.region, cuts[0])
            lanes = find_lanes(normal.region, with_leaving=True)
            if lanes.obstacle is None and lanes.num_lanes > num_lanes:
                yield normal, lanes
                break
            cuts = find_cuts(normal.region, num_lanes)
            if not cuts:
                break


def part(region: HloComputation, cut: Cut) -> None:
    """Reads a dimension of a region's values as two.

    Args:
        region: A region in normal form.
        cut: Which dimension, and where it is cut.
    """
    _Parting(region, cut).run()


@final
class _Parting:
    """One run of `part` on one computation."""

    def __init__(self, computation: HloComputation, cut: Cut) -> None:
        self.computation = computation
        self.cut = cut
        self.builder = ComputationBuilder.extending(computation)
        self._is_done: set[HloInstruction] = set()

    def run(self) -> None:
        """Does it."""
        values = [i for i in self.computation.instructions if not is_leaf(i)]
        places = [(value, self.cut.place_in(value), self._sources(value)) for value in values]
        for value, _, sources in places:
            self._part_leaves(value, sources)
        for value, place, sources in places:
            if value not in self._is_done:
                self._visit(value, place, sources)
        self.computation.remove_dead_instructions()
        self.computation.sort()

    def _sources(self, user: HloInstruction) -> _Places:
        return [
            self.cut.place_in_operand(user, index) if operand.shape.is_array else None
            for index, operand in enumerate(user.operands)
        ]

    def _visit(self, instruction: HloInstruction, place: int | None, sources: _Places) -> None:
        opcode = instruction.opcode
        if opcode in ("tuple", "while", "conditional"):
            self._visit_tuple(instruction)
        elif place is None and not any(source is not None for source in sources):
            return
        elif opcode in ("parameter", "get-tuple-element"):
            instruction.shape = self._parted(instruction.shape, place)
        elif opcode == "reshape":
            sizes = self._parted(instruction.shape, place).dimensions
            value = self.builder.reshape(instruction.operands[0], sizes, origin=instruction)
            _use_instead(instruction, list(instruction.users), value)
        elif opcode == "concatenate" and self._fits(instruction, place):
            self._concatenate(instruction)
        elif opcode == "slice" and place is None and self._takes_parts(instruction, sources[0]):
            self._slice(instruction, sources[0])
        elif self._is_done_in_two(instruction, place, sources):
            self._renumber(instruction, place, sources)
            if instruction.shape.is_tuple:
                shapes = [self._parted(shape, place) for shape in instruction.shape.tuple_shapes]
                instruction.shape = Shape.tuple_of(shapes)
            else:
                instruction.shape = self._parted(instruction.shape, place)
        else:
            self._do_in_one(instruction, place, sources)

    # Between two reshapes, or without.

    def _do_in_one(self, instruction: HloInstruction, place: int | None, sources: _Places) -> None:
        for index, source in enumerate(sources):
            if source is not None:
                operand = instruction.operands[index]
                sizes = operand.shape.dimensions
                size = self.cut.outer * self.cut.inner
                whole = self.builder.reshape(operand, (*sizes[:source], size, *sizes[source + 2 :]))
                instruction.replace_operand(index, whole)
        results = [instruction]
        if instruction.shape.is_tuple:
            results = list(instruction.users)
            self._is_done.update(results)
        for result in results if place is not None else ():
            users = list(result.users)
            shape = self._parted(result.shape, place)
            value = self.builder.reshape(result, shape.dimensions, origin=result)
            _use_instead(result, users, value)

    def _is_done_in_two(
        self, instruction: HloInstruction, place: int | None, sources: _Places
    ) -> bool:
        opcode = instruction.opcode
        if opcode == "reverse":  # along the dimension it may be cut in front or behind only
            return sources[0] == place
        if opcode in _ALONG_OTHERS and place is not None:
            return sources[0] == place and not self._works_along(instruction, place, sources)
        return opcode in ELEMENTWISE_OPCODES or opcode in _IN_ANY_DIMENSIONS

    def _works_along(self, instruction: HloInstruction, place: int, sources: _Places) -> bool:
        """Whether a sort, a padding or the writing of a part is along a dimension."""
        match instruction.opcode:
            case "concatenate" | "sort":
                return instruction.dimensions[0] == place
            case "pad":
                return any(instruction.padding[place])
            case "dynamic-update-slice":
                return sources[1] != place
        return False

    # Dimension numbers.

    def _renumber(self, instruction: HloInstruction, place: int | None, sources: _Places) -> None:
        proto, outer, inner = instruction.proto, self.cut.outer, self.cut.inner
        match instruction.opcode:
            case "broadcast":
                both = None if sources[0] is None else instruction.dimensions[sources[0]]
                proto.dimensions[:] = _moved(proto.dimensions, place, both)
            case "transpose" | "reduce" | "reverse":
                proto.dimensions[:] = _moved(proto.dimensions, sources[0], sources[0])
            case "sort" | "concatenate":
                proto.dimensions[:] = _moved(proto.dimensions, place, None)
            case "slice":
                assert place is not None, "slices of other dimensions keep this one"
                ranges = list(proto.slice_dimensions)
                del proto.slice_dimensions[:]
                new = [SliceDimensions(start=0, limit=n, stride=1) for n in (outer, inner)]
                proto.slice_dimensions.extend([*ranges[:place], *new, *ranges[place + 1 :]])
            case "pad":
                assert place is not None, "paddings of other dimensions keep this one"
                edges = list(proto.padding_config.dimensions)
                edges.insert(place, edges[place])
                proto.padding_config.CopyFrom(PaddingConfig(dimensions=edges))
            case "dynamic-slice":
                assert place is not None, "slices of other dimensions keep this one"
                sizes = list(proto.dynamic_slice_sizes)
                proto.dynamic_slice_sizes[:] = [*sizes[:place], outer, inner, *sizes[place + 1 :]]
                self._add_start(instruction, 1, place)
            case "dynamic-update-slice":
                assert place is not None, "updates along other dimensions keep this one"
                self._add_start(instruction, 2, place)
            case "dot":
                numbers = proto.dot_dimension_numbers
                left = (numbers.lhs_batch_dimensions, numbers.lhs_contracting_dimensions)
                right = (numbers.rhs_batch_dimensions, numbers.rhs_contracting_dimensions)
                for source, fields in ((sources[0], left), (sources[1], right)):
                    for field in fields:
                        field[:] = _moved(field, source, source)

    def _add_start(self, instruction: HloInstruction, first: int, place: int) -> None:
        """Adds a start for a dimension that is taken, or written, as a whole."""
        zero = self.builder.scalar(0, instruction.operands[first].shape.element_type, instruction)
        operands = list(instruction.operands)
        operands[first + place] = zero
        instruction.replace_operands([*operands[: first + place], zero, *operands[first + place :]])

    # Leaves: every use has its own.

    def _part_leaves(self, user: HloInstruction, sources: _Places) -> None:
        for index, source in enumerate(sources):
            operand = user.operands[index]
            if source is not None and is_leaf(operand):
                user.replace_operand(index, self._parted_leaf(operand, source))

    def _parted_leaf(self, leaf: HloInstruction, place: int) -> HloInstruction:
        shape = self._parted(leaf.shape, place)
        if leaf.opcode == "broadcast":
            return self.builder.broadcast(leaf.operands[0], shape.dimensions, (), origin=leaf)
        if leaf.opcode == "iota" and leaf.dimensions[0] == place:
            return self._numbers(leaf, shape, place)
        if leaf.opcode == "iota":
            (dimension,) = _moved(leaf.dimensions, place, None)
            return self.builder.iota(shape, dimension, origin=leaf)
        return self.builder.reshape(leaf, shape.dimensions, origin=leaf)

    def _numbers(self, iota: HloInstruction, shape: Shape, place: int) -> HloInstruction:
        """Returns the positions along a dimension that has become two."""
        counted = array_shape(PrimitiveType.S32, shape.dimensions)
        major, minor = (self.builder.iota(counted, d, origin=iota) for d in (place, place + 1))
        sizes = self.builder.fill(self.cut.inner, counted, iota)
        value = self.builder.emit("multiply", counted, (major, sizes), origin=iota)
        value = self.builder.emit("add", counted, (value, minor), origin=iota)
        return self.builder.convert(value, shape.element_type, origin=iota)

    # What makes parts, or is made of them.

    def _fits(self, concatenate: HloInstruction, place: int | None) -> bool:
        """Whether a concatenation puts whole parts together."""
        if place != concatenate.dimensions[0]:
            return False
        pieces = (operand.shape.dimensions[place] for operand in concatenate.operands)
        return all(size % self.cut.inner == 0 for size in pieces)

    def _concatenate(self, concatenate: HloInstruction) -> None:
        (place,) = concatenate.dimensions
        for index, operand in enumerate(concatenate.operands):
            sizes = operand.shape.dimensions
            parts = (sizes[place] // self.cut.inner, self.cut.inner)
            parted = self.builder.reshape(operand, (*sizes[:place], *parts, *sizes[place + 1 :]))
            concatenate.replace_operand(index, parted)
        concatenate.shape = self._parted(concatenate.shape, place)

    def _takes_parts(self, instruction: HloInstruction, source: int | None) -> bool:
        """Whether a slice takes whole parts, or one of each."""
        if source is None:
            return False
        start, limit = instruction.slice_starts[source], instruction.slice_limits[source]
        stride, size = instruction.slice_strides[source], self.cut.outer * self.cut.inner
        if stride == 1:
            return start % self.cut.inner == 0 and limit % self.cut.inner == 0
        count = instruction.shape.dimensions[source]
        return stride == self.cut.inner and count == self.cut.outer and start < stride <= size

    def _slice(self, instruction: HloInstruction, source: int | None) -> None:
        assert source is not None, "it takes a part along the dimension"
        start, limit = instruction.slice_starts[source], instruction.slice_limits[source]
        outer, inner = self.cut.outer, self.cut.inner
        if instruction.slice_strides[source] == 1:
            taken = ((start // inner, limit // inner, 1), (0, inner, 1))
        else:
            taken = ((0, outer, 1), (start, start + 1, 1))
        ranges = list(instruction.slice_ranges)
        ranges[source : source + 1] = taken
        value = self.builder.slice(instruction.operands[0], ranges, origin=instruction)
        value = self.builder.reshape(value, instruction.shape.dimensions, origin=instruction)
        _use_instead(instruction, list(instruction.users), value)

    # Tuples.

    def _visit_tuple(self, instruction: HloInstruction) -> None:
        match instruction.opcode:
            case "tuple":
                instruction.shape = Shape.tuple_of([o.shape for o in instruction.operands])
            case "while":
                instruction.shape = instruction.operands[0].shape
                for computation in (instruction.body, instruction.condition):
                    self._enter(computation, instruction.shape)
            case _:
                branches = instruction.called_computations
                for branch, argument in zip(branches, instruction.operands[1:], strict=True):
                    self._enter(branch, argument.shape)
                instruction.shape = branches[0].root.shape

    def _enter(self, computation: HloComputation, shape: Shape) -> None:
        _Parting(computation, self.cut).run()
        computation.parameters[0].shape = shape

    def _parted(self, shape: Shape, place: int | None) -> Shape:
        if place is None:
            return shape
        sizes = shape.dimensions
        both = (self.cut.outer, self.cut.inner)
        return array_shape(shape.element_type, (*sizes[:place], *both, *sizes[place + 1 :]))


def _use_instead(old: HloInstruction, users: Sequence[HloInstruction], new: HloInstruction) -> None:
    """Makes some users of a value use another, whatever its shape."""
    for user in users:
        for index, operand in enumerate(user.operands):
            if operand is old:
                user.replace_operand(index, new)


def _moved(numbers: Iterable[int], place: int | None, both: int | None) -> list[int]:
    """Returns dimension numbers as they are once `place` is two; `both` stands for the two."""
    result: list[int] = []
    for number in numbers:
        if number == both:
            result.extend((number, number + 1))
        else:
            result.append(number + (place is not None and number > place))
    return result
