"""What an instruction computes and moves, counted as XLA counts it.

Elementwise operations are one operation per element, reductions one per element taken in, a product
of matrices two per pair. Memory is what operands and results take, as far as they are read and
written: a slice reads only what it takes, an update in place writes only the update, and a fusion
touches its parameters and its result but nothing in between. A kernel's loops count as often as
they run if that is known, where XLA counts all loops once.

Source: XLA service/hlo_cost_analysis.cc, whose totals `compiled.cost_analysis()` returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.while_loops import compute_trip_count
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.hlo.window import get_window

_TRANSCENDENTALS: Final = frozenset(
    {
        "atan2",
        "cbrt",
        "cosine",
        "erf",
        "exponential",
        "exponential-minus-one",
        "log",
        "log-plus-one",
        "logistic",
        "power",
        "rsqrt",
        "sine",
        "sqrt",
        "tan",
        "tanh",
    }
)
_NOTHING: Final = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "domain",
        "get-tuple-element",
        "parameter",
    }
)
_POINTER_BYTES: Final = 8
_LARGE_CONSTANT: Final = 8
"""Constants of more elements are read from memory; others are part of a fusion's code."""


@final
@dataclass(frozen=True, slots=True)
class HloCost:
    """Work and traffic of one execution.

    Attributes:
        flops: Operations on numbers of any type but those below.
        transcendentals: Functions such as exponentials and roots.
        bytes_read: From operands.
        bytes_written: To results.
    """

    flops: float = 0
    transcendentals: float = 0
    bytes_read: float = 0
    bytes_written: float = 0

    @property
    def num_bytes(self) -> float:
        """What XLA calls bytes accessed."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: HloCost) -> HloCost:
        return HloCost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def __mul__(self, times: float) -> HloCost:
        return HloCost(
            self.flops * times,
            self.transcendentals * times,
            self.bytes_read * times,
            self.bytes_written * times,
        )


def compute_cost(instruction: HloInstruction, *, count_trips: bool = True) -> HloCost:
    """Returns the cost of one execution of an instruction.

    Args:
        instruction: Of any computation; a loop counts with all it runs.
        count_trips: Whether loops count as often as they run; else once, as XLA has it.
    """
    return _Counter(count_trips).instruction(instruction)


def compute_total(computation: HloComputation, *, count_trips: bool = True) -> HloCost:
    """Returns the cost of one run of a computation."""
    return _Counter(count_trips).computation(computation)


@final
class _Counter:
    """Adds up costs; each computation is looked at once."""

    def __init__(self, count_trips: bool) -> None:
        self._count_trips = count_trips
        self._known: dict[HloComputation, HloCost] = {}

    def computation(self, computation: HloComputation) -> HloCost:
        if computation not in self._known:
            costs = map(self.instruction, computation.instructions)
            self._known[computation] = sum(costs, HloCost())
        return self._known[computation]

    def instruction(self, instruction: HloInstruction) -> HloCost:
        match instruction.opcode:
            case opcode if opcode in _NOTHING:
                return HloCost()
            case "fusion":
                return self._fusion(instruction)
            case "while":
                trips = compute_trip_count(instruction) if self._count_trips else 1
                step = self.computation(instruction.body) + self.computation(instruction.condition)
                return step * (1 if trips is None else trips)
            case "call" | "async-start":
                return self.computation(instruction.called_computations[0])
            case "conditional":
                return _worst(map(self.computation, instruction.called_computations))
            case "tuple":
                return HloCost(bytes_written=_size(instruction.shape))
            case "custom-call":
                return HloCost()
        read, written = _traffic(instruction)
        flops, transcendentals = self._work(instruction)
        return HloCost(flops, transcendentals, read, written)

    def _fusion(self, fusion: HloInstruction) -> HloCost:
        inner = fusion.called_computations[0]
        work = self.computation(inner)
        read = sum(map(parameter_bytes, inner.parameters)) + _constant_bytes(inner)
        return HloCost(work.flops, work.transcendentals, read, _result_bytes(inner.root))

    def _work(self, instruction: HloInstruction) -> tuple[float, float]:
        """Returns operations and functions of an instruction that is on its own."""
        opcode, shape = instruction.opcode, instruction.shape
        if opcode in _TRANSCENDENTALS:
            return 0, shape.num_elements
        if opcode in ELEMENTWISE_OPCODES:
            return shape.num_elements, 0
        flops = 0
        match opcode:
            case "dot":
                flops = 2 * shape.num_elements * _contracted(instruction)
            case "convolution":
                flops = _convolution_flops(instruction)
            case "sort":
                size = instruction.operands[0].shape.num_elements
                flops = size * math.ceil(math.log2(max(size, 1)))
            case "all-reduce" | "all-reduce-start":
                flops = sum(leaf.num_elements for leaf in _leaves(shape))
            case "rng" | "rng-bit-generator":
                return 0, sum(leaf.num_elements for leaf in _leaves(shape))
            case "map" | "reduce" | "reduce-window" | "scatter":
                return self._applied(instruction)
        return flops, 0

    def _applied(self, instruction: HloInstruction) -> tuple[float, float]:
        """Returns the work of an instruction that applies a computation to elements."""
        first, times = instruction.operands[0].shape, instruction.shape.num_elements
        match instruction.opcode:
            case "reduce":
                times = first.num_elements - _first(instruction.shape).num_elements
            case "reduce-window":
                places = math.prod(w.size for w in get_window(instruction)) - 1
                times = places * _first(instruction.shape).num_elements
            case "scatter":
                times = instruction.operands[-1].shape.num_elements
        inner = self.computation(instruction.to_apply)
        return inner.flops * times, inner.transcendentals * times


def _traffic(instruction: HloInstruction) -> tuple[float, float]:
    """Returns bytes read and written by an instruction that is on its own."""
    operands, written = instruction.operands, sum(map(_size, _leaves(instruction.shape)))
    match instruction.opcode:
        case "slice":
            return written, written
        case "dynamic-slice" | "gather":
            return written + _size(operands[1].shape), written
        case "dynamic-update-slice":
            update = _size(operands[1].shape)
            return update + _size(operands[2].shape), update
        case "scatter":
            count = len(operands) // 2
            updates = sum(_size(o.shape) for o in operands[count + 1 :])
            return 2 * updates + _size(operands[count].shape), updates
        case "transpose" if _is_bitcast(instruction):
            return 0, 0
    return sum(_size(operand.shape) for operand in operands), written


def parameter_bytes(parameter: HloInstruction) -> float:
    """Returns how much of a fusion's parameter, or of an element of it, is read."""
    if parameter.shape.is_tuple:
        return sum(map(parameter_bytes, parameter.users))
    size, is_read = 0.0, False
    for user in parameter.users:
        match user.opcode:
            case "fusion":
                inner = user.called_computations[0].parameters
                uses = (n for n, o in enumerate(user.operands) if o is parameter)
                size += sum(parameter_bytes(inner[number]) for number in uses)
            case "slice":
                size += _size(user.shape)
            case "dynamic-slice" if user.operands[0] is parameter:
                size += _size(user.shape)
            case "dynamic-update-slice" if user.operands[0] is parameter:
                continue
            case "broadcast" | "reshape":
                size += _size(parameter.shape)
            case _ if not is_read:
                is_read = True
                size += _size(parameter.shape)
    return size


def operand_bytes(instruction: HloInstruction, operand: HloInstruction) -> float:
    """Returns how much an instruction reads of one of its operands."""
    places = [n for n, other in enumerate(instruction.operands) if other is operand]
    if instruction.opcode == "fusion":
        parameters = instruction.called_computations[0].parameters
        return sum(parameter_bytes(parameters[number]) for number in places)
    match instruction.opcode:
        case "slice" | "dynamic-slice" | "gather" if 0 in places:
            return instruction.shape.byte_size
        case "dynamic-update-slice" if 0 in places:
            return 0
    return operand.shape.byte_size


def _constant_bytes(computation: HloComputation) -> int:
    return sum(
        _size(i.shape)
        for i in computation.instructions
        if i.opcode == "constant" and i.shape.num_elements > _LARGE_CONSTANT
    )


def _result_bytes(root: HloInstruction) -> int:
    """Returns how much a fusion writes."""
    if root.opcode == "tuple":
        return sum(map(_result_bytes, root.operands))
    if root.opcode == "dynamic-update-slice":
        return _size(root.operands[1].shape)
    return sum(leaf.byte_size for leaf in _leaves(root.shape))


def _worst(costs: Iterable[HloCost]) -> HloCost:
    """Returns the largest of each number."""
    listed = list(costs) or [HloCost()]
    return HloCost(
        max(c.flops for c in listed),
        max(c.transcendentals for c in listed),
        max(c.bytes_read for c in listed),
        max(c.bytes_written for c in listed),
    )


def _size(shape: Shape) -> int:
    """Returns the bytes of an array, or of a tuple's table of pointers."""
    return _POINTER_BYTES * len(shape.tuple_shapes) if shape.is_tuple else shape.byte_size


def _leaves(shape: Shape) -> list[Shape]:
    if shape.is_tuple:
        return [leaf for element in shape.tuple_shapes for leaf in _leaves(element)]
    return [shape] if shape.is_array else []


def _first(shape: Shape) -> Shape:
    return shape.tuple_shapes[0] if shape.is_tuple else shape


def _contracted(dot: HloInstruction) -> int:
    return DotDimensions.of(dot).contracted_size(dot)


def _convolution_flops(convolution: HloInstruction) -> int:
    """Returns two operations for each element of the result and of the kernel it is made with.

    Padding counts as if it were there, where XLA leaves it out.
    """
    kernel = convolution.operands[1].shape
    numbers = convolution.proto.convolution_dimension_numbers
    features: int = kernel.dimensions[numbers.kernel_output_feature_dimension]
    return 2 * convolution.shape.num_elements * kernel.num_elements // max(1, features)


def _is_bitcast(transpose: HloInstruction) -> bool:
    """Whether a transpose leaves all elements where they are in memory."""
    operand, shape = transpose.operands[0].shape, transpose.shape
    minor_to_major = tuple(transpose.dimensions[d] for d in shape.minor_to_major)
    kept = [d for d in minor_to_major if operand.dimensions[d] != 1]
    return kept == [d for d in operand.minor_to_major if operand.dimensions[d] != 1]
