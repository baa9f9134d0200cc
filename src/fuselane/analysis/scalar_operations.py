"""How many operations XLA:CPU's scalar code takes for one element of what it does not vectorise.

Reductions, gathers, sorts, and what is put together from parts; in reductions of several operands,
such as arg-maxima, over long rows, what goes into them is scalar code, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.fusion_runs import result_elements, window_run
from fuselane.analysis.machine_costs import (
    CACHE_WAYS,
    FIRST_CACHE_BYTES,
    LINE_BYTES,
    PAGE_BYTES,
)
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.scalar_code import holds_indices
from fuselane.hlo.indexed import Indexed, indexed
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.window import get_window

_SORT_EXCHANGE: Final[Mapping[tuple[bool, bool], float]] = {
    (False, False): 4.5,
    (False, True): 24.0,
    (True, False): 20.0,
    (True, True): 34.0,
}
"""For each doubling of a row's size: of integers or floats, of one array or several."""

_PICKED: Final = (0.9, 2.2)
"""By a gather, by one index and by several: measured, 0.44 and 0.48 ns an element, by LLVM for
AVX-512 and for AVX2, and 1.1 ns (AVX2)."""

_UPDATED: Final = 2.2
_UPDATED_ALONE: Final = (1.7, 3.5)
"""By a scatter: an element of a window, 0.8 to 1.4 ns, and a window of one element, 0.8 ns by one
index and 1.2 to 2.2 ns by several (AVX2, 16 to 1,024 lanes)."""

_MAX_UPDATED: Final = 0.5
_MOVED: Final = 0.2
"""Of neighbours in one window of a gather, whose place is worked out once."""

_SEARCHED: Final = 2.2
_KEPT: Final = 12.0
"""`TopK`: for each element of a row, and for each doubling of those kept for each of them."""

_UNKNOWN: Final = 4.0
_SHORT_RUN: Final = 4.0

_LONG_ROW: Final = 60
_BORDERED: Final = 1.4
"""Rows from memory with a border at both ends, among rows of border: LLVM makes no vectors of them,
nor unrolls them where they are this long. Measured, 0.73 ns for rows of 66 to 258, 0.15 ns for rows
of 50, and for rows of 98 to 258 that are computed on the way."""

_TURNED: Final = 0.5
_TURNED_FAR: Final = 1.4
"""Elements whose neighbours in memory are others afterwards: measured, 0.25 ns, and 0.7 to 1.1 ns
where more lines lie between them than a core's first cache holds, or than one set of it."""

_SPREAD: Final = frozenset({"broadcast", "constant", "iota"})
_PLACED: Final = frozenset({"bitcast", "reshape", "reverse", "slice", "transpose"})

_SHORT_RACE: Final = 0.6
"""Operations for each element of a reduction of several operands that is unrolled, and its vectors'
elements compared side by side: measured, 0.3 ns."""

_LONG_ROW_OF_VALUES: Final = 32
"""Rows that a fusion computes, and no longer, are unrolled, and vectors made of the elements of
many rows: measured, 0.02 to 0.1 ns an element where one by one they take 0.4 to 1 ns."""

_LONG_RACE: Final = 16
_RACE: Final = 2.0
"""Over more elements they are not unrolled, so that what goes into them is scalar code, too: how
much longer the reduction itself takes."""


def scalar_operations(instruction: HloInstruction) -> float:
    """Returns the operations of scalar code for one element of an instruction's result."""
    opcode = instruction.opcode
    if opcode == "reduce":
        return row_length(instruction) * _reduction(instruction)
    if opcode in ("gather", "scatter"):
        return _picking(instruction) if opcode == "gather" else _updating(instruction)
    if opcode == "reduce-window":
        return math.prod(w.size for w in get_window(instruction)) * _combination(instruction)
    if opcode == "concatenate" and holds_indices(instruction):
        return 0.0
    if opcode == "pad" and _is_bordered(instruction):
        return _BORDERED
    if opcode in ("concatenate", "pad"):
        return 0.1 + _SHORT_RUN / max(1, _run_length(instruction))
    if opcode == "dynamic-update-slice":
        return min(0.1 + _SHORT_RUN / max(1, _updated_run(instruction)), _MAX_UPDATED)
    if opcode == "sort":
        size = instruction.operands[0].shape.dimensions[instruction.dimensions[0]]
        is_float = instruction.operands[0].shape.element_type.is_floating
        return _SORT_EXCHANGE[is_float, len(instruction.operands) > 1] * math.log2(size + 1)
    if opcode == "custom-call":
        return _search(instruction)
    return _UNKNOWN


def _picking(gather: HloInstruction) -> float:
    run = window_run(gather)
    return (_PICKED[_has_several_indices(indexed(gather))] + _MOVED * (run - 1)) / run


def _updating(scatter: HloInstruction) -> float:
    where = indexed(scatter)
    if math.prod(where.window_sizes) > 1:
        return _UPDATED
    return _UPDATED_ALONE[_has_several_indices(where)]


def _has_several_indices(where: Indexed) -> bool:
    return len(where.starts) + len(where.batching) > 1


def turning_operations(instruction: HloInstruction) -> float:
    """Returns the operations for one element of a `copy` or `transpose` that a loop computes.

    Zero where neighbours in memory stay neighbours.
    """
    shape, source = instruction.shape, instruction.operands[0].shape
    long = [d for d, size in enumerate(shape.dimensions) if size > 1]
    if not long:
        return 0.0
    minor = min(long, key=lambda d: shape.strides[d])
    read = instruction.dimensions[minor] if instruction.opcode == "transpose" else minor
    stride_bytes = source.strides[read] * source.element_type.byte_size
    if source.strides[read] == 1:
        return 0.0
    lines = shape.dimensions[minor] if stride_bytes >= LINE_BYTES else 0
    is_clashing = stride_bytes % PAGE_BYTES == 0 and lines > CACHE_WAYS
    is_far = is_clashing or lines * LINE_BYTES > FIRST_CACHE_BYTES
    return _TURNED_FAR if is_far else _TURNED


def _is_bordered(pad: HloInstruction) -> bool:
    """Whether a fusion's result is rows from memory with a border at both ends, other rows of
    border first."""
    shape, padding = pad.shape, pad.padding
    if pad.users or not shape.dimensions or pad.operands[0].opcode in ELEMENTWISE_OPCODES:
        return False
    minor = shape.minor_to_major[0]
    low, high, _ = padding[minor]
    is_first = any(before > 0 for d, (before, _, _) in enumerate(padding) if d != minor)
    return low > 0 and high > 0 and is_first and shape.dimensions[minor] >= _LONG_ROW


def _reduction(instruction: HloInstruction) -> float:
    """Returns the operations of a reduction for each element it takes in."""
    if _is_race(instruction):
        return _combination(instruction) * _RACE
    return _SHORT_RACE if instruction.shape.is_tuple else _combination(instruction)


def _search(call: HloInstruction) -> float:
    """Returns the operations of a call of `TopK` for each element it keeps."""
    if call.custom_call_target != "TopK":
        return _UNKNOWN
    kept = max(1, call.shape.tuple_shapes[0].dimensions[-1])
    size = call.operands[0].shape.dimensions[-1]
    return _SEARCHED * size / kept + _KEPT * math.log2(kept + 1)


def row_length(reduction: HloInstruction) -> float:
    """Returns how many elements a reduction makes one of."""
    return reduction.operands[0].shape.num_elements / max(1, result_elements(reduction))


def _is_race(instruction: HloInstruction) -> bool:
    """Whether an instruction is a long reduction of several operands."""
    is_variadic = instruction.opcode == "reduce" and instruction.shape.is_tuple
    return is_variadic and row_length(instruction) > _LONG_RACE


def find_raced(members: Iterable[HloInstruction]) -> frozenset[HloInstruction]:
    """Returns what a fusion computes inside the scalar loops of long arg-maxima and the like.

    Args:
        members: Those of the fusion, users first.
    """
    raced: set[HloInstruction] = set()
    for instruction in members:
        if any(user in raced or _is_race(user) for user in instruction.users):
            raced.add(instruction)
    return frozenset(raced)


def find_unrolled(members: Iterable[HloInstruction]) -> frozenset[HloInstruction]:
    """Returns the reductions of a fusion that are unrolled, of rows that it computes, and what it
    computes for them alone.

    Args:
        members: Those of the fusion, users first.
    """
    unrolled: set[HloInstruction] = set()
    for instruction in members:
        is_row = bool(instruction.users) and all(user in unrolled for user in instruction.users)
        if is_row or _is_unrolled(instruction):
            unrolled.add(instruction)
    return frozenset(unrolled)


def _is_unrolled(instruction: HloInstruction) -> bool:
    """Whether an instruction reduces short rows of what need not be gathered from memory."""
    if instruction.opcode != "reduce":
        return False
    longest = _LONG_RACE if instruction.shape.is_tuple else _LONG_ROW_OF_VALUES
    rows = instruction.operands[: len(instruction.operands) // 2]
    size = row_length(instruction)
    return size <= longest and all(_is_computed(row, size) for row in rows)


def _is_computed(value: HloInstruction, row: float) -> bool:
    """Whether neighbours in a row of so many are made of what is loaded once for all of it, and put
    together alike in all rows."""
    return all(_is_computed_here(part, row) for part in _made_of(value))


def _made_of(value: HloInstruction) -> Iterator[HloInstruction]:
    """Yields a value and what it is made from, but for what is spread over it."""
    stack, seen = [value], {value}
    while stack:
        part = stack.pop()
        yield part
        if part.opcode not in _SPREAD:
            new = [operand for operand in part.operands if operand not in seen]
            seen.update(new)
            stack += new


def _is_computed_here(part: HloInstruction, row: float) -> bool:
    if part.opcode == "concatenate":
        return part.shape.dimensions[part.dimensions[0]] == row
    return part.opcode in _SPREAD or part.opcode in ELEMENTWISE_OPCODES or part.opcode in _PLACED


def _combination(instruction: HloInstruction) -> float:
    """Returns the operations by which a reduction takes in one more element."""
    applied = sum(OPCODE_COST.get(i.opcode, 1) for i in instruction.to_apply.instructions)
    return 0.4 + 0.2 * applied


def _run_length(instruction: HloInstruction) -> int:
    """Returns how many neighbouring elements of what is put together come from one part."""
    parts = [o for o in instruction.operands if o.shape.dimensions]
    strides = instruction.shape.strides
    if instruction.opcode == "pad":
        (part,) = parts or instruction.operands[:1]
        sizes = zip(part.shape.dimensions, instruction.shape.dimensions, strict=True)
        padded = [d for d, (inner, outer) in enumerate(sizes) if inner != outer]
        return min((strides[d] * part.shape.dimensions[d] for d in padded), default=1)
    (dimension,) = instruction.dimensions
    return strides[dimension] * instruction.shape.dimensions[dimension] // len(parts)


def _updated_run(update: HloInstruction) -> int:
    """Returns how many neighbouring elements a dynamic-update-slice writes."""
    strides, sizes = update.shape.strides, update.shape.dimensions
    run = 1
    for axis in sorted(range(len(sizes)), key=lambda axis: strides[axis]):
        written = update.operands[1].shape.dimensions[axis]
        run *= written
        if written != sizes[axis]:
            break
    return run
