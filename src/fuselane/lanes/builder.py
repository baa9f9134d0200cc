"""Building a region: instructions are emitted once, equal ones are shared, and trivial ones vanish.

Example (operands first; `f` is any elementwise opcode):

    a = reshape(x)        x: f32[8], a: f32[8]       ->  x
    b = transpose(transpose(x, [1, 0]), [1, 0])      ->  x
    c = broadcast(broadcast(s)), s: f32[]            ->  broadcast(s)
    d = f(x, y); e = f(x, y)                         ->  d, d

Numerics: bitwise-equal; nothing is computed here, only moved or merged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import ArrayLike

from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.combiners import identity
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.literal import numpy_to_literal
from fuselane.hlo.proto import (
    GatherDimensionNumbers,
    LiteralProto,
    Message,
    PaddingConfig,
    ScatterDimensionNumbers,
    SliceDimensions,
    Window,
)
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.merges import (
    Groups,
    apart_under_broadcast,
    apart_under_transpose,
    merging_reshape,
    sizes_apart,
)

MAX_INSTRUCTIONS: Final = 100_000
"""The most instructions of a region or a body in it: calls within calls can multiply without
end."""

Attributes = tuple[tuple[str, Any], ...]
"""Fields of an instruction's proto as hashable values, such as `(("dimensions", (0, 1)),)`."""


@functools.lru_cache(maxsize=2048)
def array_shape(element_type: PrimitiveType, dimensions: tuple[int, ...]) -> Shape:
    """Returns the row-major shape; equal arguments give the same object."""
    return Shape.array(element_type, dimensions)


def _slice_dimensions(value: Iterable[tuple[int, int, int]]) -> list[Message]:
    return [
        SliceDimensions(start=start, limit=limit, stride=stride) for start, limit, stride in value
    ]


def _padding_config(value: Iterable[tuple[int, int, int]]) -> Message:
    config = PaddingConfig()
    for low, high, interior in value:
        config.dimensions.add(
            edge_padding_low=low, edge_padding_high=high, interior_padding=interior
        )
    return config


def _window(value: Iterable[Iterable[tuple[str, int]]]) -> Message:
    window = Window()
    for fields in value:
        window.dimensions.add(**dict(fields))
    return window


_MESSAGE_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    "dot_dimension_numbers": DotDimensions.to_proto,
    "gather_dimension_numbers": lambda fields: GatherDimensionNumbers(**dict(fields)),
    "slice_dimensions": _slice_dimensions,
    "padding_config": _padding_config,
    "scatter_dimension_numbers": lambda fields: ScatterDimensionNumbers(**dict(fields)),
    "window": _window,
}

_MAX_COPIED_BYTES: Final = 2**14
"""Of constants that are compared with each other."""


@final
class ComputationBuilder:
    """Emits instructions into a new detached computation.

    All shapes are row-major. An instruction equal to an earlier one (opcode, shape, operands,
    attributes, called computations) is that earlier one.

    Attributes:
        computation: What is emitted into.
        unconverted: Instructions that move values, but none that were converted from a type, or
            from any (None); see `lanes.conversions`.
    """

    def __init__(self, name: str) -> None:
        self.computation = HloComputation.create(name)
        self.unconverted: dict[PrimitiveType | None, set[HloInstruction]] = {}
        self._known: dict[Hashable, HloInstruction] = {}
        self._attributes: dict[HloInstruction, Attributes] = {}
        self._meanings: dict[HloInstruction, HloInstruction] = {}

    @classmethod
    def extending(cls, computation: HloComputation) -> ComputationBuilder:
        """Returns a builder that adds to a computation, whose instructions it does not know."""
        builder = cls(computation.name)
        builder.computation = computation
        return builder

    def emit(
        self,
        opcode: str,
        shape: Shape,
        operands: Sequence[HloInstruction] = (),
        attributes: Attributes = (),
        *,
        origin: HloInstruction | None = None,
        called: tuple[HloComputation, ...] = (),
    ) -> HloInstruction:
        """Returns an instruction with these properties, new or known.

        Args:
            opcode: XLA's name.
            shape: Row-major result shape from `array_shape`, or a tuple shape.
            operands: Instructions of this computation.
            attributes: What else makes it differ from others.
            origin: The user's instruction it stands for: gives the name and the metadata.
            called: Called computations.
        Raises:
            UnsupportedError: for one instruction too many.
        """
        key = (opcode, id(shape), attributes, called, *map(id, operands))
        known = self._known.get(key)
        if known is not None:
            return known
        fields = {name: _proto_field(name, value) for name, value in attributes}
        if origin is not None and origin.origin.HasField("metadata"):
            fields["metadata"] = origin.origin.metadata
        instruction = HloInstruction.create(
            opcode,
            shape,
            operands,
            name=opcode if origin is None else origin.name,
            called_computations=called,
            **fields,
        )
        if len(self.computation.instructions) >= MAX_INSTRUCTIONS:
            detail = f"with calls inlined more than {MAX_INSTRUCTIONS:,} instructions of HLO"
            raise refuse(Reason.TOO_MUCH_CODE, origin or instruction, detail=detail)
        self.computation.add(instruction)
        self._known[key] = instruction
        if attributes:
            self._attributes[instruction] = attributes
        return instruction

    def emit_like(
        self,
        instruction: HloInstruction,
        element_type: PrimitiveType,
        operands: Sequence[HloInstruction],
        *,
        called: tuple[HloComputation, ...],
    ) -> HloInstruction:
        """Returns what differs from an instruction emitted here in operands and element types."""
        shape = array_shape(element_type, instruction.shape.dimensions)
        attributes = self._attributes.get(instruction, ())
        return self.emit(
            instruction.opcode, shape, operands, attributes, origin=instruction, called=called
        )

    def emit_again(
        self,
        instruction: HloInstruction,
        operands: Sequence[HloInstruction],
        source: ComputationBuilder,
    ) -> HloInstruction:
        """Returns an instruction that another builder emitted, of other operands of its shapes."""
        if instruction.opcode == "constant":
            return self.constant_again(instruction, instruction.shape)
        attributes = source._attributes.get(instruction, ())
        called = tuple(instruction.called_computations)
        return self.emit(
            instruction.opcode,
            instruction.shape,
            operands,
            attributes,
            origin=instruction,
            called=called,
        )

    def learn(self, value: HloInstruction, meaning: HloInstruction) -> None:
        """Takes a value for everything equal to an instruction that was emitted here."""
        if value is meaning:
            return
        self._meanings[value] = meaning
        for key, known in self._known.items():
            if known is meaning:
                self._known[key] = value

    def meaning(self, value: HloInstruction) -> HloInstruction:
        """Returns what a value was learned to be, or itself."""
        return self._meanings.get(value, value)

    def parameter(self, number: int, shape: Shape, origin: HloInstruction | None) -> HloInstruction:
        """Returns the parameter with this number; each number is asked for once."""
        return self.emit("parameter", shape, (), (("parameter_number", number),), origin=origin)

    def constant(
        self, shape: Shape, value: Message | ArrayLike, origin: HloInstruction
    ) -> HloInstruction:
        """Returns a constant; `value` is a row-major LiteralProto, or numbers of the shape's sizes.

        Raises:
            VerificationError: if they are of other sizes.
        """
        literal: Message = value
        if not isinstance(value, LiteralProto):
            literal = numpy_to_literal(np.asarray(value, shape.element_type.dtype), shape)
        key = ("constant", id(shape), literal.SerializeToString(deterministic=True))
        known = self._known.get(key)
        if known is None:
            known = HloInstruction.create("constant", shape, name=origin.name, literal=literal)
            self._known[key] = self.computation.add(known)
        return known

    def constant_again(self, constant: HloInstruction, shape: Shape) -> HloInstruction:
        """Returns a constant of another computation, whose literal is row-major; of a long one that
        is not copied.

        Args:
            constant: It.
            shape: From `array_shape`, of the same sizes and type.
        """
        if shape.byte_size <= _MAX_COPIED_BYTES:
            return self.constant(shape, constant.origin.literal, constant)
        key = ("constant", id(constant.origin))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self.computation.add(constant.clone((), shape=shape))
        return known

    def scalar(
        self, value: ArrayLike, element_type: PrimitiveType, origin: HloInstruction
    ) -> HloInstruction:
        """Returns a constant that is one number."""
        return self.constant(array_shape(element_type, ()), value, origin)

    def fill(self, value: ArrayLike, shape: Shape, origin: HloInstruction) -> HloInstruction:
        """Returns an array that holds one number everywhere."""
        scalar = self.scalar(value, shape.element_type, origin)
        return self.broadcast(scalar, shape.dimensions, ())

    def iota(self, shape: Shape, dimension: int, **origin: Any) -> HloInstruction:
        """Returns an array whose elements are their index along a dimension."""
        return self.emit("iota", shape, (), (("dimensions", (dimension,)),), **origin)

    def element(self, operand: HloInstruction, index: int) -> HloInstruction:
        """Returns element `index` of a tuple-shaped instruction."""
        shape = operand.shape.tuple_shapes[index]
        return self.emit(
            "get-tuple-element", shape, (operand,), (("tuple_index", index),), origin=operand
        )

    def elements(self, value: HloInstruction) -> list[HloInstruction]:
        """Returns the elements of a tuple-shaped instruction; what has no elements is its only
        one."""
        if not value.shape.is_tuple:
            return [value]
        return [self.element(value, index) for index in range(len(value.shape.tuple_shapes))]

    def make_tuple(self, elements: Sequence[HloInstruction]) -> HloInstruction:
        """Returns the tuple of these."""
        return self.emit("tuple", Shape.tuple_of([e.shape for e in elements]), elements)

    def elementwise(
        self,
        opcode: str,
        shape: Shape,
        operands: Sequence[HloInstruction],
        attributes: Attributes = (),
        *,
        origin: HloInstruction | None = None,
    ) -> HloInstruction:
        """Returns an elementwise instruction; of what is merged by reshapes before these."""
        apart = sizes_apart(operands)
        if apart is None:
            return self.emit(opcode, shape, operands, attributes, origin=origin)
        sizes, groups = apart
        values = [self._before_merging(operand, sizes, groups) for operand in operands]
        whole = array_shape(shape.element_type, sizes)
        value = self.elementwise(opcode, whole, values, attributes, origin=origin)
        return self.reshape(value, shape.dimensions, origin=origin)

    def _before_merging(
        self, value: HloInstruction, sizes: tuple[int, ...], groups: Groups
    ) -> HloInstruction:
        if value.opcode == "broadcast":
            numbers = tuple(groups[d][0] for d in value.dimensions)
            return self.broadcast(value.operands[0], sizes, numbers, origin=value)
        return value.operands[0] if value.shape.dimensions else value

    def broadcast(
        self,
        operand: HloInstruction,
        sizes: tuple[int, ...],
        dimensions: tuple[int, ...],
        **origin: Any,
    ) -> HloInstruction:
        """Returns `operand` with its dimension `i` at `dimensions[i]`, increasing, of `sizes`."""
        if operand.shape.dimensions == sizes:
            return operand
        if operand.opcode == "broadcast":
            dimensions = tuple(dimensions[d] for d in operand.dimensions)
            operand = operand.operands[0]
        groups = merging_reshape(operand)
        if groups is not None:
            source = operand.operands[0]
            apart = apart_under_broadcast(groups, source.shape.dimensions, sizes, dimensions)
            return self.reshape(self.broadcast(source, *apart, **origin), sizes, **origin)
        shape = array_shape(operand.shape.element_type, sizes)
        return self.emit("broadcast", shape, (operand,), (("dimensions", dimensions),), **origin)

    def reshape(
        self, operand: HloInstruction, sizes: tuple[int, ...], **origin: Any
    ) -> HloInstruction:
        """Returns `operand` read, in row-major order, as an array of `sizes`."""
        if operand.opcode == "reshape":
            operand = operand.operands[0]
        if operand.shape.dimensions == sizes:
            return operand
        if operand.opcode == "broadcast" and operand.operands[0].shape.rank == 0:
            return self.broadcast(operand.operands[0], sizes, (), **origin)
        shape = array_shape(operand.shape.element_type, sizes)
        return self.emit("reshape", shape, (operand,), **origin)

    def transpose(
        self, operand: HloInstruction, permutation: tuple[int, ...], **origin: Any
    ) -> HloInstruction:
        """Returns the array whose dimension `i` is dimension `permutation[i]` of `operand`."""
        if operand.opcode == "transpose":
            inner = operand.dimensions
            permutation = tuple(inner[p] for p in permutation)
            operand = operand.operands[0]
        if permutation == tuple(range(len(permutation))):
            return operand
        sizes = tuple(operand.shape.dimensions[p] for p in permutation)
        if operand.opcode == "broadcast" and operand.operands[0].shape.rank == 0:
            return self.broadcast(operand.operands[0], sizes, (), **origin)
        groups = merging_reshape(operand)
        if groups is not None:
            apart = apart_under_transpose(groups, permutation)
            return self.reshape(self.transpose(operand.operands[0], apart, **origin), sizes)
        shape = array_shape(operand.shape.element_type, sizes)
        return self.emit("transpose", shape, (operand,), (("dimensions", permutation),), **origin)

    def convert(
        self, operand: HloInstruction, element_type: PrimitiveType, **origin: Any
    ) -> HloInstruction:
        """Returns `operand` with its elements converted to a type."""
        if operand.shape.element_type is element_type:
            return operand
        shape = array_shape(element_type, operand.shape.dimensions)
        return self.emit("convert", shape, (operand,), **origin)

    def compare(
        self, direction: str, left: HloInstruction, right: HloInstruction, **origin: Any
    ) -> HloInstruction:
        """Returns where a comparison ("GT") of two arrays of numbers holds."""
        element_type = left.shape.element_type
        unordered = "SIGNED" if element_type.is_signed else "UNSIGNED"
        kind = "FLOAT" if element_type.is_floating else unordered
        attributes = (("comparison_direction", direction), ("comparison_type", kind))
        shape = array_shape(PrimitiveType.PRED, left.shape.dimensions)
        return self.emit("compare", shape, (left, right), attributes, **origin)

    def concatenate(
        self, operands: Sequence[HloInstruction], dimension: int, **origin: Any
    ) -> HloInstruction:
        """Returns arrays one behind the other along a dimension."""
        if len(operands) == 1:
            return operands[0]
        sizes = list(operands[0].shape.dimensions)
        sizes[dimension] = sum(operand.shape.dimensions[dimension] for operand in operands)
        shape = array_shape(operands[0].shape.element_type, tuple(sizes))
        return self.emit("concatenate", shape, operands, (("dimensions", (dimension,)),), **origin)

    def slice(
        self, operand: HloInstruction, ranges: Iterable[tuple[int, int, int]], **origin: Any
    ) -> HloInstruction:
        """Returns the part of `operand` that takes from each dimension a range: the first index,
        that behind the last, and the stride."""
        ranges = tuple(ranges)
        sizes = tuple(len(range(*taken)) for taken in ranges)
        if sizes == operand.shape.dimensions:
            return operand
        shape = array_shape(operand.shape.element_type, sizes)
        return self.emit("slice", shape, (operand,), (("slice_dimensions", ranges),), **origin)

    def pad(
        self,
        operand: HloInstruction,
        value: HloInstruction,
        edges: Sequence[tuple[int, int, int]],
        **origin: Any,
    ) -> HloInstruction:
        """Returns `operand` with a scalar around and between its elements: as often as `edges` say
        for each dimension, in front, behind and between two."""
        if not any(map(any, edges)):
            return operand
        sizes = tuple(
            size + low + high + max(0, size - 1) * interior
            for size, (low, high, interior) in zip(operand.shape.dimensions, edges, strict=True)
        )
        shape = array_shape(operand.shape.element_type, sizes)
        return self.emit("pad", shape, (operand, value), (("padding_config", edges),), **origin)

    def dynamic_slice(
        self,
        operand: HloInstruction,
        starts: Sequence[HloInstruction],
        sizes: tuple[int, ...],
        **origin: Any,
    ) -> HloInstruction:
        """Returns the part of `operand` with these sizes that begins at scalars, one for each
        dimension."""
        shape = array_shape(operand.shape.element_type, sizes)
        attributes = (("dynamic_slice_sizes", sizes),)
        return self.emit("dynamic-slice", shape, (operand, *starts), attributes, **origin)

    def dynamic_update_slice(
        self,
        operand: HloInstruction,
        update: HloInstruction,
        starts: Sequence[HloInstruction],
        **origin: Any,
    ) -> HloInstruction:
        """Returns `operand` with its part that begins at scalars replaced by `update`."""
        return self.emit(
            "dynamic-update-slice", operand.shape, (operand, update, *starts), **origin
        )

    def dot(
        self,
        left: HloInstruction,
        right: HloInstruction,
        numbers: DotDimensions,
        element_type: PrimitiveType,
        **origin: Any,
    ) -> HloInstruction:
        """Returns sums of products, of an element type."""
        sizes = numbers.result_sizes(left.shape.dimensions, right.shape.dimensions)
        attributes = (("dot_dimension_numbers", numbers),)
        return self.emit(
            "dot", array_shape(element_type, sizes), (left, right), attributes, **origin
        )

    def reduce(
        self,
        operands: Sequence[HloInstruction],
        dimensions: tuple[int, ...],
        to_apply: HloComputation,
        **origin: Any,
    ) -> HloInstruction:
        """Returns arrays without some dimensions, along which their elements are combined.

        Args:
            operands: Arrays of the same sizes, then a scalar for each to begin with.
            dimensions: Those that go, increasing.
            to_apply: Combines the elements of all arrays at two places.
            origin: See `emit`.
        Returns:
            An array, or a tuple of several.
        """
        arrays = operands[: len(operands) // 2]
        sizes = enumerate(arrays[0].shape.dimensions)
        kept = tuple(size for d, size in sizes if d not in dimensions)
        shapes = [array_shape(array.shape.element_type, kept) for array in arrays]
        shape = shapes[0] if len(shapes) == 1 else Shape.tuple_of(shapes)
        attributes = (("dimensions", dimensions),)
        return self.emit("reduce", shape, operands, attributes, called=(to_apply,), **origin)

    def fold(
        self,
        combiner: str,
        operand: HloInstruction,
        dimensions: tuple[int, ...],
        origin: HloInstruction,
    ) -> HloInstruction:
        """Returns an array without some dimensions, along which one of `COMBINERS` combines it."""
        if not dimensions:
            return operand
        element_type = operand.shape.element_type
        initial = self.scalar(identity(combiner, element_type), element_type, origin)
        to_apply = combining_computation(combiner, element_type)
        return self.reduce((operand, initial), dimensions, to_apply, origin=origin)

    def finish(self, root: HloInstruction) -> HloComputation:
        """Returns the computation with this root, dead instructions removed."""
        self.computation.root = root
        self.computation.remove_dead_instructions()
        return self.computation


def combining_computation(combiner: str, element_type: PrimitiveType) -> HloComputation:
    """Returns a new computation that combines two scalars."""
    builder = ComputationBuilder(f"combine.{combiner}")
    shape = array_shape(element_type, ())
    parameters = [builder.parameter(number, shape, None) for number in range(2)]
    return builder.finish(builder.emit(combiner, shape, parameters))


def elementwise_attributes(instruction: HloInstruction) -> Attributes:
    """Returns what tells an elementwise instruction apart from others of its opcode."""
    match instruction.opcode:
        case "compare":
            return (
                ("comparison_direction", instruction.comparison_direction),
                ("comparison_type", instruction.comparison_type),
            )
        case "reduce-precision":
            return (
                ("exponent_bits", instruction.exponent_bits),
                ("mantissa_bits", instruction.mantissa_bits),
            )
    return ()


def _proto_field(name: str, value: Any) -> Any:
    convert = _MESSAGE_FIELDS.get(name)
    return value if convert is None else convert(value)
