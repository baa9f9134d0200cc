"""Complex numbers taken apart: a region knows only real arrays.

A complex array of dimensions D is the real array of dimensions (*D, 2) that has the same bytes:
real part, then imaginary part. So parameters, results and what loops carry keep their memory.
What is computed is computed on pairs of real arrays of dimensions D:

    %y = c64[8] multiply(%x, %w)      ->  %a, %b = %x[.., 0], %x[.., 1];  %c, %d = %w[..]
                                          %y = concatenate(a * c - b * d, b * c + a * d), both
                                               reshaped to f32[8,1]

Where the parts of such a concatenate are wanted again, they are taken as they are; slices and
concatenates along the last dimension are views in a kernel. Opcodes that only move data are applied
to both parts, or to the array as it is in memory, so that what is updated in place stays so.

Does not handle: functions that XLA takes apart itself, reading bits as another type.
Numerics: see `fuselane.lanes.complex_math`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import SliceDimensions
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes import layout
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.complex_functions import are_alike, separate, take_apart, take_apart_comparator
from fuselane.lanes.complex_math import COMPLEX_RULES, Pair, Real, compare, magnitude
from fuselane.lanes.complex_parts import (
    COMPONENT_TYPES,
    NUM_PARTS,
    component_shape,
    has_complex,
    is_split,
    join,
    joined_shape,
    split,
    with_parts,
)
from fuselane.lanes.values import Inline, Value, array_of, leaves_of

Visit = Callable[[HloInstruction, Sequence[Value]], Value]
"""Emits an instruction of real arrays, given what its operands became."""


def is_complex(instruction: HloInstruction) -> bool:
    """Whether an instruction of the user's module makes or takes arrays of complex numbers."""
    return has_complex(instruction.shape) or any(has_complex(o.shape) for o in instruction.operands)


def lower_complex(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[Value],
    visit: Visit,
    inline: Inline,
) -> Value:
    """Lowers an instruction that makes or takes complex arrays; they become joined real ones.

    Args:
        builder: Where.
        instruction: An instruction of the user's module.
        operands: What its operands became.
        visit: How to emit an instruction of real arrays.
        inline: How to emit what an instruction applies.
    Raises:
        UnsupportedError: UNSUPPORTED_OPCODE if there is no rule for it.
    """
    return _Lowering(builder, instruction, operands, visit, inline).run()


class _Lowering:
    """One run of `lower_complex`."""

    def __init__(
        self,
        builder: ComputationBuilder,
        instruction: HloInstruction,
        operands: Sequence[Value],
        visit: Visit,
        inline: Inline,
    ) -> None:
        self.builder = builder
        self.instruction = instruction
        self.opcode = instruction.opcode
        self.operands = [array_of(operand) for operand in operands]
        self.visit = visit
        self.inline = inline

    def run(self) -> Value:
        """Does it."""
        if self.opcode in _MOVING_OPCODES:
            return self._move()
        if self.opcode in ELEMENTWISE_OPCODES:
            return self._elementwise()
        lower = _LOWERINGS.get(self.opcode)
        if lower is None:
            raise self._unsupported()
        return lower(self)

    def _unsupported(self) -> Exception:
        return refuse(Reason.UNSUPPORTED_OPCODE, self.instruction, detail=" of complex numbers")

    # Elementwise opcodes.

    def _elementwise(self) -> Value:
        if self.opcode == "select":
            return self._select()
        operands = self._pairs()
        if self.opcode in COMPLEX_RULES:
            return self._join(COMPLEX_RULES[self.opcode](*operands))
        match self.opcode:
            case "abs":
                return magnitude(*operands).value
            case "compare" if self.instruction.comparison_direction in ("EQ", "NE"):
                return compare(self.instruction.comparison_direction, operands).value
            case "convert" if has_complex(self.instruction.shape):
                return self._join(self._convert(operands[0]))
        raise self._unsupported()

    def _convert(self, operand: Pair) -> Pair:
        element = COMPONENT_TYPES[self.instruction.shape.element_type]
        return Pair(operand.real.convert(element), operand.imag.convert(element))

    def _real(self) -> Value:
        return self._pairs()[0].real.value

    def _imag(self) -> Value:
        return self._pairs()[0].imag.value

    def _complex(self) -> Value:
        real, imag = self._pairs()
        return self._join(Pair(real.real, imag.real))

    def _pairs(self) -> list[Pair]:
        """Returns the operands in the result's order, real ones with an imaginary part of zero."""
        parts = [
            layout.lower_elementwise(self.builder, self.instruction, values)
            for values in self._split_operands()
        ]
        pairs = []
        for original, *values in zip(self.instruction.operands, *parts, strict=True):
            real, imag = (Real(self.builder, self.instruction, value) for value in values)
            pairs.append(Pair(real, imag if has_complex(original.shape) else real.fill(0)))
        return pairs

    def _select(self) -> Value:
        """Returns a select of joined arrays; where one is taken apart, so is the select."""
        predicate, *values = self.operands
        if values[0] is values[1] and self._has_one_layout():
            return values[0]
        shape = self.instruction.operands[0].shape
        if shape.dimensions:
            sizes = (*predicate.shape.dimensions, NUM_PARTS)
            predicate = self.builder.broadcast(predicate, sizes, tuple(range(shape.rank)))
            shape = with_parts(shape, shape.element_type)
        shapes = [shape, *(joined_shape(o.shape) for o in self.instruction.operands[1:])]
        return self.visit(self._joined_twin(shapes), [predicate, *values])

    def _has_one_layout(self) -> bool:
        layouts = {o.shape.minor_to_major for o in self.instruction.operands[1:]}
        return layouts == {self.instruction.shape.minor_to_major}

    # Opcodes that move data.

    def _move(self) -> Value:
        shapes = [o.shape for o in (self.instruction, *self.instruction.operands)]
        if len({shape.element_type for shape in shapes if has_complex(shape)}) > 1 or not (
            has_complex(shapes[0]) and has_complex(shapes[1])
        ):
            raise self._unsupported()
        arrays = [
            value
            for value, original in zip(self.operands, self.instruction.operands, strict=True)
            if has_complex(original.shape)
        ]
        if self.opcode == "dynamic-update-slice":
            arrays = arrays[:1]
        if self.opcode == "pad" or all(map(is_split, arrays)):
            return self._move_parts()
        return self._move_joined()

    def _move_parts(self) -> Value:
        twin = self._component_twin()
        real, imag = (array_of(self.visit(twin, values)) for values in self._split_operands())
        return join(self.builder, real, imag, self.instruction)

    def _move_joined(self) -> Value:
        operands = list(self.operands)
        shapes = [
            joined_shape(o.shape) if has_complex(o.shape) else o.shape
            for o in self.instruction.operands
        ]
        if self.opcode in ("dynamic-slice", "dynamic-update-slice"):
            index = array_shape(
                shapes[-1].element_type
                if shapes[-1].element_type.is_integral
                else PrimitiveType.S32,
                (),
            )
            shapes.append(index)
            operands.append(self._constant(np.zeros((), index.element_type.dtype), index))
        twin = self._joined_twin(shapes)
        change = _TRAILING.get(self.opcode)
        if change is not None:
            change(self.instruction, twin)
        return self.visit(twin, operands)

    def _scatter(self) -> Value:
        """Returns a scatter into a joined array, if it treats both parts alike."""
        if len(self.operands) != len(("array", "indices", "updates")):
            raise self._unsupported()
        functions = separate(take_apart(self.instruction, self.inline))
        if functions is None or not are_alike(functions[0], functions[1]):
            raise self._unsupported()
        array, indices, updates = (o.shape for o in self.instruction.operands)
        twin = self._joined_twin(
            [joined_shape(array), indices, joined_shape(updates)], functions[:1]
        )
        twin.proto.scatter_dimension_numbers.update_window_dims.append(updates.rank)
        return self.visit(twin, self.operands)

    def _iota(self) -> Value:
        real = Real(
            self.builder, self.instruction, array_of(self.visit(self._component_twin(), []))
        )
        return self._join(Pair(real, real.fill(0)))

    def _joined_constant(self) -> Value:
        literal = self.instruction.literal
        shape = joined_shape(self.instruction.shape)
        twin = HloInstruction.create(
            "constant",
            shape,
            name=self.instruction.name,
            literal=np.stack([literal.real, literal.imag], axis=-1),
        )
        return self.visit(twin, [])

    # Opcodes that combine elements.

    def _dot(self) -> Value:
        (a, c), (b, d) = self._split_operands()
        twin = self._component_twin()

        def dot(left: HloInstruction, right: HloInstruction) -> Real:
            return Real(self.builder, self.instruction, array_of(self.visit(twin, [left, right])))

        return self._join(Pair(dot(a, c) - dot(b, d), dot(a, d) + dot(b, c)))

    def _reduce(self) -> Value:
        """Returns reduces of both parts, or one of pairs where the parts depend on each other."""
        applied = take_apart(self.instruction, self.inline)
        functions = separate(applied)
        operands = self._flat_operands()
        shapes = self._flat_shapes(self.instruction.operands)
        results = self._flat_shapes([self.instruction])
        if functions is None:
            twin = self._twin(Shape.tuple_of(results), shapes, [applied])
            return self._regroup(leaves_of(self.visit(twin, operands)))
        count = len(results)
        parts = []
        for k, function in enumerate(functions):
            twin = self._twin(results[k], [shapes[k], shapes[count + k]], [function])
            parts.append(array_of(self.visit(twin, [operands[k], operands[count + k]])))
        return self._regroup(parts)

    def _sort(self) -> Value:
        applied = take_apart_comparator(self.instruction, self.inline)
        shapes = self._flat_shapes(self.instruction.operands)
        twin = self._twin(Shape.tuple_of(shapes), shapes, [applied])
        return self._regroup(leaves_of(self.visit(twin, self._flat_operands())))

    def _regroup(self, parts: Sequence[HloInstruction]) -> Value:
        """Returns results of the user's structure, given all parts of theirs."""
        remaining = iter(parts)
        values = [
            join(self.builder, next(remaining), next(remaining), self.instruction)
            if has_complex(shape)
            else next(remaining)
            for shape in self.instruction.shape.tuple_shapes or (self.instruction.shape,)
        ]
        return tuple(values) if self.instruction.shape.is_tuple else values[0]

    # Operands and instructions of real arrays.

    def _split_operands(self) -> tuple[list[HloInstruction], list[HloInstruction]]:
        """Returns the real and the imaginary parts of the operands; real operands in both."""
        reals, imags = [], []
        for value, original in zip(self.operands, self.instruction.operands, strict=True):
            is_pair = has_complex(original.shape)
            real, imag = split(self.builder, value) if is_pair else (value, value)
            reals.append(real)
            imags.append(imag)
        return reals, imags

    def _flat_operands(self) -> list[HloInstruction]:
        """Returns both parts of each complex operand, one after the other, and all others."""
        return [
            part
            for value, original in zip(self.operands, self.instruction.operands, strict=True)
            for part in (split(self.builder, value) if has_complex(original.shape) else (value,))
        ]

    def _flat_shapes(self, instructions: Sequence[HloInstruction]) -> list[Shape]:
        shapes = [s for i in instructions for s in (i.shape.tuple_shapes or (i.shape,))]
        return [
            component_shape(shape)
            for shape in shapes
            for _ in range(NUM_PARTS if has_complex(shape) else 1)
        ]

    def _component_twin(self) -> HloInstruction:
        """Returns the instruction that does to one part what the user's does to both."""
        shapes = [component_shape(operand.shape) for operand in self.instruction.operands]
        return self._twin(component_shape(self.instruction.shape), shapes)

    def _joined_twin(
        self, shapes: Sequence[Shape], applied: Sequence[HloComputation] | None = None
    ) -> HloInstruction:
        return self._twin(joined_shape(self.instruction.shape), shapes, applied)

    def _twin(
        self,
        shape: Shape,
        operand_shapes: Sequence[Shape],
        applied: Sequence[HloComputation] | None = None,
    ) -> HloInstruction:
        """Returns the user's instruction with operands and results of other shapes."""
        operands = [HloInstruction.create("parameter", s) for s in operand_shapes]
        return self.instruction.clone(operands, shape=shape, called_computations=applied)

    def _join(self, pair: Pair) -> HloInstruction:
        return join(self.builder, pair.real.value, pair.imag.value, self.instruction)

    def _constant(self, value: np.ndarray, shape: Shape) -> HloInstruction:
        return self.builder.constant(shape, value, self.instruction)


_MOVING_OPCODES: Final = frozenset(
    {
        "bitcast",
        "broadcast",
        "concatenate",
        "copy",
        "dynamic-slice",
        "dynamic-update-slice",
        "gather",
        "pad",
        "reshape",
        "reverse",
        "slice",
        "transpose",
    }
)

_LOWERINGS: Final[dict[str, Callable[[_Lowering], Value]]] = {
    "complex": _Lowering._complex,
    "constant": _Lowering._joined_constant,
    "dot": _Lowering._dot,
    "imag": _Lowering._imag,
    "iota": _Lowering._iota,
    "real": _Lowering._real,
    "reduce": _Lowering._reduce,
    "reduce-window": _Lowering._reduce,
    "scatter": _Lowering._scatter,
    "sort": _Lowering._sort,
}


# How instructions change when their arrays get a last dimension.


def _extend_dimensions(original: HloInstruction, twin: HloInstruction) -> None:
    twin.proto.dimensions.append(original.shape.rank)


def _extend_slice(_original: HloInstruction, twin: HloInstruction) -> None:
    twin.proto.slice_dimensions.append(SliceDimensions(start=0, limit=NUM_PARTS, stride=1))


def _extend_dynamic_slice(_original: HloInstruction, twin: HloInstruction) -> None:
    twin.proto.dynamic_slice_sizes.append(NUM_PARTS)


def _extend_gather(original: HloInstruction, twin: HloInstruction) -> None:
    twin.proto.gather_dimension_numbers.offset_dims.append(original.shape.rank)
    twin.proto.gather_slice_sizes.append(NUM_PARTS)


_TRAILING: Final[dict[str, Callable[[HloInstruction, HloInstruction], None]]] = {
    "broadcast": _extend_dimensions,
    "dynamic-slice": _extend_dynamic_slice,
    "gather": _extend_gather,
    "slice": _extend_slice,
    "transpose": _extend_dimensions,
}
