"""How long XLA:CPU takes for a loop: thunk by thunk, from the module as XLA leaves it.

XLA runs a loop's body as a sequence of thunks. Each costs its dispatch, which is most of it where
arrays are small, and the work inside. A sequence of many thunks on larger arrays is not run in
order: what is ready goes through a queue, at several times the cost. A fusion computes each element
of its result from scratch: what it broadcasts or gathers from is computed again for every use. XLA
vectorises elementwise code unless its loops are unrolled or branch, calls a library for the
functions in `_CALLS`, and leaves reductions, gathers and what is put together from parts to scalar
code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

from fuselane.analysis.cost import OPCODE_COST, UNKNOWN_TRIP_COUNT, is_known
from fuselane.analysis.fusion_runs import count_runs, result_bytes, result_elements
from fuselane.analysis.hlo_cost import operand_bytes
from fuselane.analysis.lapack_time import lapack_operations
from fuselane.analysis.machine_costs import CACHE_WAYS, PAGE_BYTES, MachineCosts
from fuselane.analysis.opcodes import COMPLEX_OPCODES, ELEMENTWISE_OPCODES, FREE_OPCODES
from fuselane.analysis.scalar_code import is_scalar_code
from fuselane.analysis.scalar_operations import (
    find_raced,
    find_unrolled,
    row_length,
    scalar_operations,
    turning_operations,
)
from fuselane.analysis.small_calls import is_small_call, is_small_loop
from fuselane.analysis.waiting import estimate_chain_us
from fuselane.analysis.while_loops import compute_trip_count, is_invariant
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.hlo.transfer import clone_computation

_FUNCTIONS: Final[Mapping[str, tuple[float, float]]] = {
    "erf": (1.0, 9.0),
    "exponential": (1.0, 2.7),
    "exponential-minus-one": (2.0, 6.0),
    "log": (1.2, 6.5),
    "log-plus-one": (2.5, 8.0),
    "logistic": (1.1, 4.4),
    "power": (5.5, 12.0),
    "rsqrt": (1.4, 4.6),
    "sqrt": (0.2, 0.8),
    "tanh": (0.9, 3.0),
}
"""XLA's time for one element in f32 and f64, in exponentials of f32."""

_CALLS: Final[Mapping[str, tuple[float, float]]] = {
    "atan2": (6.0, 6.0),
    "cbrt": (3.3, 4.0),
    "cosine": (1.0, 3.0),
    "sine": (1.0, 3.0),
    "tan": (3.0, 4.0),
}
"""XLA's time for one element in f32 and f64, in sines of f32."""

_LIBRARY_FUNCTIONS: Final[Mapping[str, float]] = {
    "cosine": 1.0,
    "erf": 2.7,
    "exponential": 1.0,
    "exponential-minus-one": 1.0,
    "log": 1.1,
    "log-plus-one": 1.2,
    "logistic": 1.3,
    "rsqrt": 0.6,
    "sine": 1.0,
    "sqrt": 0.4,
    "tan": 1.5,
    "tanh": 1.3,
}
"""YNNPACK's time for one element in f32, in exponentials; sines and the like since JAX 0.11."""

_COMPLEX: Final[Mapping[str, Mapping[str, float]]] = {
    "abs": {"divide": 1, "maximum": 2, "multiply": 3, "select": 1, "sqrt": 1},
    "divide": {"divide": 6, "multiply": 20, "select": 20},
    "exponential-minus-one": {"cosine": 1, "exponential": 1, "multiply": 14, "sine": 1, "tanh": 1},
    "multiply": {"add": 2, "multiply": 4},
    "power": {"atan2": 1, "cosine": 1, "exponential": 1, "log": 1, "power": 1, "sine": 1},
    "rsqrt": {"atan2": 1, "cosine": 1, "divide": 1, "rsqrt": 3, "select": 6, "sine": 1, "sqrt": 1},
    "sign": {"divide": 3, "maximum": 2, "multiply": 3, "select": 3, "sqrt": 1},
    "tan": {"cosine": 1, "divide": 2, "exponential": 2, "multiply": 20, "sine": 1, "tanh": 2},
    "tanh": {"cosine": 1, "divide": 2, "exponential": 2, "multiply": 20, "sine": 1, "tanh": 2},
}
"""Operations on real numbers that XLA does for one on complex numbers; for all others two."""

_LIBRARY: Final = frozenset({"convolution", "custom-call", "dot", "fft"})
_LOADED: Final = frozenset({"dynamic-slice", "slice"})
_NO_WORK: Final = (
    FREE_OPCODES
    | COMPLEX_OPCODES
    | _LOADED
    | {"broadcast", "copy", "iota", "reshape", "reverse", "transpose"}
)
_TURNING: Final = frozenset({"copy", "transpose"})
_VECTOR_BITS: Final = 256
_SINGLE_BITS: Final = 32
_INTEGER_DIVISION: Final = 4.0
_LONG_DIVISION: Final = 3.0
"""By what is known at compile time, of 64 bits: no processor has vectors for it."""
_HALF_BITS: Final = 16
_NARROWED: Final = {PrimitiveType.BF16: 9.0}
_WIDENED: Final = {PrimitiveType.F16: 4.0}
"""How much longer than an operation on f32 a conversion to BF16 takes XLA, which in its modules
stands behind each operation, and an operation on F16: measured, 0.23 and 0.1 ns an element."""

_IN_ORDER_THUNKS: Final = 8
_IN_ORDER_BYTES: Final = 512
"""XLA runs the thunks of a sequence in order if there are no more, or no array is larger.

Source: XLA backends/cpu/runtime/thunk_executor.h, ThunkExecutor::Options."""

_ROW: Final = 16.0
_COLUMN: Final = 6.6
"""Library reductions: scalar operations for each row, and operations for each vector of columns,
which lie side by side: measured, 0.08 to 0.16 ns an element. Columns whose elements all compete for
one set of the cache take as long as rows."""
_GROUP: Final = 60.0
"""And for each group of columns that lie one behind the other: measured, 20 to 40 ns for groups of
8 to 16 rows of 8 to 64."""

_LONG_LINE, _SHORT_LINE = 32, 2.0
"""Arg-maxima of unrolled rows are made for fewer neighbours than this with much less use of
vectors: measured, 0.2 to 0.55 ns an element for 4 to 20 of them, 0.15 to 0.2 for 64."""

_MATRIX: Final = 30.0
_MIN_FUNCTIONS: Final = 4.0
"""A function of one element takes as long as those of a few: nothing hides its latency."""
_MIN_CALLS: Final = 2.0
"""The same of a call beside others that do not wait for it."""

_SCALAR_FUNCTION: Final = 6.0
_SCALAR_CALL: Final = 3.0
"""How much longer functions and calls take in scalar code."""

_INDEPENDENT: Final = 0.3
_INDEPENDENT_INTEGRAL: Final = 0.15
"""Scalar operations of one that waits for none before, of floats and of integers: measured, 0.15
and 0.07 ns."""

_LIBRARY_PRODUCT: Final = 1.25
_SHORT_SUM: Final = 8.0
"""Dots of matrices: operations for each product of a vector, and of how many products the time of
each sum's beginning and end is."""
_BYTE_PRODUCT: Final = 0.6
"""The former of signed bytes, which processors add up by fours. One thread takes all: measured, 256
rows times 64 by 64 took 19 us on one core, 17 on two."""
_MIN_SHARED_US: Final = 10.0
"""Dots that take longer run on all cores."""
_MIN_DIVIDED_US: Final = 100.0
"""Fusions without dots that YNNPACK computes and that take longer do: measured, exponentials of
1024 rows of 256 took 92 us on two cores and 171 on one, those of 512 rows the same on both."""


def estimate_step_us(
    loop: HloInstruction, costs: MachineCosts, *, is_compiled: bool, num_cores: int = 1
) -> float:
    """Returns XLA's time for one iteration of a `while`, nested loops included, in microseconds.

    Args:
        loop: A `while` of the user's module, as XLA leaves it.
        costs: Those of the machine.
        is_compiled: Whether XLA compiles the whole loop into one function, without thunks.
        num_cores: Cores that XLA's libraries may use.
    """
    footprint = count_touched_bytes(loop)
    return _Clock(
        costs=costs, footprint=footprint, is_compiled=is_compiled, num_cores=num_cores
    ).step(loop)


def estimate_thunk_us(
    instruction: HloInstruction,
    costs: MachineCosts,
    *,
    footprint: float,
    num_cores: int = 1,
    is_compiled: bool = False,
) -> float:
    """Returns XLA's time for one thunk, its dispatch included, in microseconds.

    Args:
        instruction: As XLA leaves it; a small call counts with the loops in it.
        costs: Those of the machine.
        footprint: Bytes of all arrays in use where it runs, which decides whether they stay in
            caches.
        num_cores: Cores that XLA's libraries may use.
        is_compiled: Whether it is part of a function, and no thunk.
    """
    clock = _Clock(costs=costs, footprint=footprint, is_compiled=is_compiled, num_cores=num_cores)
    return clock.instruction(instruction)


def estimate_fused_us(computation: HloComputation, costs: MachineCosts) -> float:
    """Returns XLA's time for a computation of arrays as one kernel in a loop, in microseconds."""
    body = clone_computation(computation)
    operands = [
        HloInstruction.create("parameter", parameter.shape, parameter_number=number)
        for number, parameter in enumerate(body.parameters)
    ]
    fusion = HloInstruction.create(
        "fusion", body.root.shape, operands, called_computations=[body], fusion_kind="kLoop"
    )
    footprint = sum(value.shape.byte_size for value in (fusion, *operands))
    return estimate_thunk_us(fusion, costs, footprint=footprint)


def count_touched_bytes(loop: HloInstruction) -> float:
    """Returns how many bytes one iteration of a `while` reads or writes of what it carries: of
    arrays with a row for each step, a row."""
    root, parameter = loop.body.root, loop.body.parameters[0]
    if root.opcode != "tuple":
        return sum(shape.byte_size for shape in loop.shape.tuple_shapes)
    touched = [
        0.0 if is_invariant(loop, number) else float(result_bytes(value))
        for number, value in enumerate(root.operands)
    ]
    for element in parameter.users:
        for user in element.users:
            if element.opcode == "get-tuple-element" and user is not root:
                read = min(operand_bytes(user, element), element.shape.byte_size)
                touched[element.tuple_index] = max(touched[element.tuple_index], read)
    return sum(touched)


@final
@dataclass(slots=True, kw_only=True)
class _Clock:
    """Adds up the time of the thunks of computations.

    costs: Those of the machine.
    footprint: Bytes of what a step of the outermost loop reads or writes of all it carries.
    is_compiled: Whether XLA compiles what is looked at into one function.
    num_cores: Cores that libraries may use.
    is_queued: Whether what is looked at are thunks that go through a queue.
    is_library_code: Whether a library runs the fusion that is looked at.
    is_scalar_code: Whether what is looked at is not vectorised.
    """

    costs: MachineCosts
    footprint: float
    is_compiled: bool
    num_cores: int
    is_queued: bool = False
    is_library_code: bool = False
    is_scalar_code: bool = False

    def step(self, loop: HloInstruction) -> float:
        """Returns the time of one iteration."""
        work = self.computation(loop.condition) + self.computation(loop.body)
        if self.is_compiled:
            return max(work, estimate_chain_us(loop.body, self.costs))
        return work + self.costs.thunk_us

    @property
    def _dispatch(self) -> float:
        if self.is_compiled:
            return 0.0
        return self.costs.queued_thunk_us if self.is_queued else self.costs.thunk_us

    def computation(self, computation: HloComputation) -> float:
        """Returns the time of one run of a computation."""
        clock = self
        if not self.is_compiled and _is_queued(computation) != self.is_queued:
            clock = replace(self, is_queued=not self.is_queued)
        return sum([clock.instruction(i) for i in computation.instructions])

    def instruction(self, instruction: HloInstruction) -> float:
        """Returns the time of one run of an instruction, loops and branches included."""
        opcode = instruction.opcode
        if opcode in FREE_OPCODES:
            return 0.0
        if opcode == "while":
            count = compute_trip_count(instruction)
            is_whole = self.is_compiled or is_small_loop(instruction)
            inner = replace(self, is_compiled=is_whole)
            return inner.step(instruction) * (UNKNOWN_TRIP_COUNT if count is None else count)
        if opcode == "call":
            is_whole = self.is_compiled or is_small_call(instruction)
            inner = replace(self, is_compiled=is_whole)
            return self._dispatch + inner.computation(instruction.to_apply)
        if opcode == "conditional":
            branches = [self.computation(c) for c in instruction.called_computations]
            return self._dispatch + sum(branches) / len(branches)
        return self._thunk(instruction)

    def _thunk(self, instruction: HloInstruction) -> float:
        time = self._dispatch + max(self._work(instruction), self._traffic(instruction))
        if self.is_compiled:
            return time
        if instruction.opcode in _LIBRARY or instruction.fusion_kind == "kCustom":
            is_shared = time > _min_shared_us(instruction)
            return time / (self.num_cores if is_shared else 1) + self.costs.library_us
        tasks = _num_tasks(instruction)
        if tasks > 1:
            return self._dispatch + self.costs.task_us + time / tasks
        return time

    def _traffic(self, instruction: HloInstruction) -> float:
        """Returns the time to read and write a thunk's arrays."""
        written = result_bytes(instruction)
        time = self._moving_us(written, instruction.shape)
        for operand in dict.fromkeys(instruction.operands):
            read = min(operand_bytes(instruction, operand), 4 * written)
            time += self._moving_us(read, operand.shape)
        return time

    def _moving_us(self, num_bytes: float, shape: Shape) -> float:
        """Returns the time to read or write so many bytes of an array; a row of what has one for
        each step comes from where all of that is."""
        is_part = num_bytes < shape.byte_size
        return self.costs.moving_us(num_bytes, shape.byte_size if is_part else self.footprint)

    def _work(self, instruction: HloInstruction) -> float:
        self.is_library_code = instruction.fusion_kind == "kCustom"
        if instruction.opcode != "fusion":
            return self._time(instruction, result_elements(instruction))
        body = instruction.called_computations[0]
        is_scalar, raced, unrolled = False, frozenset[HloInstruction](), frozenset[HloInstruction]()
        if self.is_library_code:  # which computes each array once
            runs: Mapping[HloInstruction, float] = body.fact(_whole_arrays)
        else:
            runs = body.fact(count_runs)
            is_scalar, raced, unrolled = body.fact(_find_scalar_code)
        time = 0.0
        for inner, times in runs.items():
            if inner in unrolled:
                time += self._unrolled(inner, times)
                continue
            self.is_scalar_code = is_scalar or inner in raced
            time += self._time(inner, times)
            if inner.opcode in _TURNING and not self.is_library_code:
                time += times * turning_operations(inner) * self.costs.xla_scalar_us
        self.is_scalar_code = False
        moves = result_elements(instruction) if is_scalar else 0
        return time + moves * _INDEPENDENT_INTEGRAL * self.costs.xla_scalar_us

    def _unrolled(self, instruction: HloInstruction, count: float) -> float:
        """Returns the time of what is computed in or for reductions that are unrolled, in which
        nothing has to be brought into place."""
        if instruction.opcode == "reduce":
            count *= row_length(instruction)
            if instruction.shape.is_tuple and _line_length(instruction) < _LONG_LINE:
                count *= _SHORT_LINE
            applied = (i for i in instruction.to_apply.instructions if not i.shape.is_tuple)
            return sum(self._time(i, count) for i in applied)
        return self._time(instruction, count) if instruction.opcode in ELEMENTWISE_OPCODES else 0.0

    def _time(self, instruction: HloInstruction, count: float) -> float:
        """Returns the time to compute so many elements of an instruction's result."""
        costs, opcode = self.costs, instruction.opcode
        if opcode in _LOADED and not (self.is_library_code or self.is_scalar_code):
            # A load of its own, of what others may load elsewhere.
            return count * _share(instruction) * costs.xla_operation_us
        if opcode in _NO_WORK:
            return 0.0
        if opcode in ELEMENTWISE_OPCODES:
            return self._elementwise(instruction, count)
        if opcode == "dot":
            products = DotDimensions.of(instruction).contracted_size(instruction) + _SHORT_SUM
            one = _BYTE_PRODUCT if _is_of_bytes(instruction) else _LIBRARY_PRODUCT
            operations = count * products * _share(instruction) * one
            time = operations * costs.xla_operation_us
            return time + _num_matrices(instruction) * _MATRIX * costs.xla_scalar_us
        if opcode == "custom-call":
            known = lapack_operations(instruction)
            if known is not None:
                return known * costs.xla_scalar_us
        if opcode == "reduce" and self.is_library_code:
            is_row_wise = _is_row_wise(instruction)
            vectors = instruction.operands[0].shape.num_elements * _share(instruction.operands[0])
            time = vectors * (1 if is_row_wise else _COLUMN) * costs.library_operation_us
            if is_row_wise or _has_clashing_rows(instruction):
                time += count * _ROW * costs.xla_scalar_us
            else:
                time += _num_groups(instruction) * _GROUP * costs.xla_scalar_us
            return time
        return count * scalar_operations(instruction) * costs.xla_scalar_us

    def _elementwise(self, instruction: HloInstruction, count: float) -> float:
        opcode = instruction.opcode
        if _is_integer_division(instruction):
            is_wide = instruction.shape.element_type.bits > _SINGLE_BITS
            return count * _INTEGER_DIVISION * (1 + 6 * is_wide) * self.costs.xla_scalar_us
        if _is_long_division(instruction):
            return count * _LONG_DIVISION * self.costs.xla_scalar_us
        element = instruction.operands[-1].shape.element_type
        if not element.is_complex:
            kind = instruction.shape.element_type
            if kind.bits == _HALF_BITS and kind.is_floating:
                return self._real(opcode, _SINGLE_BITS, count * _half_times(opcode, kind))
            return self._real(opcode, kind.bits, count, is_floating=kind.is_floating)
        real = _COMPLEX.get(opcode, {opcode: 2.0})
        bits = element.bits // 2
        return sum(times * self._real(name, bits, count) for name, times in real.items())

    def _real(self, opcode: str, bits: int, count: float, *, is_floating: bool = True) -> float:
        """Returns the time to compute so many elements by an opcode on real numbers."""
        costs = self.costs
        is_double = bits > _SINGLE_BITS
        if self.is_library_code and opcode in _LIBRARY_FUNCTIONS and not is_double:
            return count * _LIBRARY_FUNCTIONS[opcode] * costs.library_function_us
        if opcode in _FUNCTIONS:
            elements = max(count * (_SCALAR_FUNCTION if self.is_scalar_code else 1), _MIN_FUNCTIONS)
            return elements * _FUNCTIONS[opcode][is_double] * costs.xla_function_us
        if opcode in _CALLS:
            least = _MIN_CALLS if self.is_compiled else _MIN_FUNCTIONS
            elements = max(count * (_SCALAR_CALL if self.is_scalar_code else 1), least)
            return elements * _CALLS[opcode][is_double] * costs.xla_call_us
        independent = _INDEPENDENT if is_floating else _INDEPENDENT_INTEGRAL
        if self.is_scalar_code:
            return OPCODE_COST[opcode] * count * independent * costs.xla_scalar_us
        vectors = count * max(bits, 8) / _VECTOR_BITS
        if self.is_library_code:
            return OPCODE_COST[opcode] * vectors * costs.library_operation_us
        one = costs.xla_scalar_us * (independent if self.is_compiled else 1)
        return OPCODE_COST[opcode] * max(one, vectors * costs.xla_operation_us)


def _whole_arrays(body: HloComputation) -> Mapping[HloInstruction, float]:
    return {inner: float(result_elements(inner)) for inner in body.instructions}


def _find_scalar_code(
    body: HloComputation,
) -> tuple[bool, frozenset[HloInstruction], frozenset[HloInstruction]]:
    """Returns whether a fusion is not vectorised, what of it is not in any case, and what is."""
    runs = body.fact(count_runs)
    unrolled = find_unrolled(runs)
    others = {inner: times for inner, times in runs.items() if inner not in unrolled}
    return is_scalar_code(body, others), find_raced(runs), unrolled


def _is_queued(computation: HloComputation) -> bool:
    """Whether XLA runs the thunks of a computation as they become ready, instead of in order."""
    thunks = [i for i in computation.instructions if i.opcode not in FREE_OPCODES]
    if len(thunks) <= _IN_ORDER_THUNKS:
        return False
    used = (value.shape for thunk in thunks for value in (thunk, *thunk.operands))
    return any(_largest_bytes(shape) > _IN_ORDER_BYTES for shape in used)


def _largest_bytes(shape: Shape) -> int:
    """Returns the size of the largest array of a shape."""
    parts = shape.tuple_shapes if shape.is_tuple else ()
    return max(map(_largest_bytes, parts), default=0) if shape.is_tuple else shape.byte_size


def _is_integer_division(instruction: HloInstruction) -> bool:
    """Whether an instruction divides integers by what is not known at compile time."""
    return _divides_integers(instruction) and not is_known(instruction.operands[1])


def _is_long_division(instruction: HloInstruction) -> bool:
    """Whether an instruction divides integers of 64 bits."""
    return _divides_integers(instruction) and instruction.shape.element_type.bits > _SINGLE_BITS


def _divides_integers(instruction: HloInstruction) -> bool:
    is_division = instruction.opcode in ("divide", "remainder")
    return is_division and instruction.shape.element_type.is_integral


def _half_times(opcode: str, kind: PrimitiveType) -> float:
    """Returns how much longer than on F32 an operation on floats of 16 bits takes."""
    if opcode == "convert":
        return _NARROWED.get(kind, 1.0)
    is_function = opcode in _FUNCTIONS or opcode in _CALLS
    return 1.0 if is_function else _WIDENED.get(kind, 1.0)


def _share(instruction: HloInstruction) -> float:
    """Returns how much of a vector register one element takes."""
    return max(instruction.shape.element_type.bits, 8) / _VECTOR_BITS


def _is_row_wise(reduction: HloInstruction) -> bool:
    """Whether a reduction makes one of elements that are neighbours in memory."""
    shape = reduction.operands[0].shape
    long = [d for d, size in enumerate(shape.dimensions) if size > 1]
    return bool(long) and min(long, key=lambda d: shape.strides[d]) in reduction.dimensions


def _num_groups(reduction: HloInstruction) -> int:
    """Returns how many groups of columns, one behind the other in memory, a reduction sums up."""
    shape = reduction.operands[0].shape
    outermost = max((shape.strides[d] for d in reduction.dimensions), default=0)
    return math.prod(
        size
        for size, stride in zip(shape.dimensions, shape.strides, strict=True)
        if stride > outermost
    )


def _line_length(reduction: HloInstruction) -> int:
    """Returns how many neighbours in memory a reduction's results have that lie side by side."""
    shape = reduction.shape.tuple_shapes[0]
    return shape.dimensions[shape.minor_to_major[0]] if shape.dimensions else 1


def _has_clashing_rows(reduction: HloInstruction) -> bool:
    """Whether more rows than a set of the cache holds are whole pages apart."""
    shape = reduction.operands[0].shape
    return any(
        shape.dimensions[d] > CACHE_WAYS
        and shape.strides[d] * shape.element_type.byte_size % PAGE_BYTES == 0
        for d in reduction.dimensions
    )


def _min_shared_us(instruction: HloInstruction) -> float:
    """Returns the time from which on a library divides its work among cores."""
    dots = _dots_in(instruction)
    if dots:
        return math.inf if any(map(_is_of_bytes, dots)) else _MIN_SHARED_US
    return _MIN_DIVIDED_US if instruction.fusion_kind == "kCustom" else math.inf


def _dots_in(instruction: HloInstruction) -> list[HloInstruction]:
    """Returns an instruction if it is a dot, or those of the fusion it is."""
    called = instruction.called_computations
    members = called[0].instructions if called else [instruction]
    return [member for member in members if member.opcode == "dot"]


def _is_of_bytes(dot: HloInstruction) -> bool:
    return all(operand.shape.element_type is PrimitiveType.S8 for operand in dot.operands)


def _num_matrices(dot: HloInstruction) -> int:
    """Returns how many products of matrices a dot with batch dimensions stands for."""
    sizes = dot.operands[0].shape.dimensions
    return math.prod(sizes[d] for d in DotDimensions.of(dot).left_batch)


def _scatters(instruction: HloInstruction) -> bool:
    called = instruction.called_computations
    is_fusion = instruction.opcode == "fusion"
    return (called[0].root if is_fusion else instruction).opcode == "scatter"


def _num_tasks(instruction: HloInstruction) -> int:
    """Returns into how many parts XLA splits a thunk, from what it has noted down.

    It notes it down for scatters, too, but runs them on one thread: two of their updates may meet
    (160,000 of them took as long by the clock as on all cores, jaxlib 0.10.2).
    """
    if not instruction.backend_config or _scatters(instruction):
        return 1
    try:
        config = json.loads(instruction.backend_config)
        return math.prod(int(n) for n in config.get("outer_dimension_partitions", ()))
    except (ValueError, TypeError, AttributeError):
        return 1
