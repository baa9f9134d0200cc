"""The rule for reduce: elements of one lane combined in order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arg_extremes import farther, find_extreme, place_of
from fuselane.codegen.arrays import (
    Array,
    Memory,
    Registers,
    Scratch,
    new_scratch,
    row_major_strides,
    widen,
)
from fuselane.codegen.code_size import is_long, is_long_for_each
from fuselane.codegen.combining import combine
from fuselane.codegen.cuts import cuts_along, cuts_of, in_lane
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.extremes import Extreme
from fuselane.codegen.independent import mark_independent
from fuselane.codegen.indexing import Element, Index, unflatten
from fuselane.codegen.loops import emit_fold, emit_for_each
from fuselane.codegen.types import constant
from fuselane.hlo.combiners import identity
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

_REORDERABLE: Final = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})

_CHOOSING: Final = frozenset({"and", "compare", "maximum", "minimum", "or", "select", "xor"})
"""Those of which reductions are made that give the same bits however elements are paired, of floats
too, as maxima and arg-maxima do: nothing is rounded. With a constant among them, as in counts of
neighbours that differ, or where all is negated, the order may well matter."""

_NO_OPERATION: Final = frozenset({"parameter", "tuple"})

_LONG_SUM: Final = 4096
"""Floats up to which they are added to one sum. More of several dimensions go through partial sums
of no fewer than _MIN_PART."""
_MIN_PART: Final = 64

_MIN_COLUMNS: Final = 8
"""Results side by side for which their reductions take turns."""


def emit_reduce(emitter: Emitter, instruction: HloInstruction) -> None:
    """Emits a reduce of one or several arrays; several give a tuple.

    %r = f32[8] reduce(%x, %zero), dimensions={1}, to_apply=%add

        r[lane] = ((zero + x[lane, 0]) + x[lane, 1]) + ...

    unrolled if few elements are reduced and they are not too much code, else a loop. Columns that
    all lanes share are reduced side by side, row by row.
    Numerics: bitwise-equal to a reduction in row-major order from the initial value; sums and
    products of floats that all lanes share reassociate in loops, and all in a program without
    lanes. What is only chosen among is compared in pairs, in order, where it is unrolled.
    """
    count = len(instruction.operands) // 2
    arrays = [emitter.array(operand) for operand in instruction.operands[:count]]
    starts = [
        emitter.array(operand).get(emitter.place, ()) for operand in instruction.operands[count:]
    ]

    max_unrolled = 1 if is_long_for_each(emitter, instruction) else emitter.max_unrolled
    if _become_vectors(emitter, arrays) and _has_columns(instruction, max_unrolled):
        emitter.values[instruction] = _reduce_columns(emitter, instruction, arrays[0], starts[0])
        return

    def accumulate(index: Element) -> list[ir.Value]:
        return _accumulate(emitter, instruction, arrays, starts, index, max_unrolled)

    long = is_long(emitter, instruction)
    if count == 1:
        emitter.define(instruction, lambda index: accumulate(index)[0], is_long=long)
        return
    lane = _reduced_lane(instruction, arrays[0])
    emitter.values[instruction] = _elements_of_tuple(
        emitter,
        instruction.shape.tuple_shapes,
        lane,
        accumulate,
        is_long=long,
        cuts=in_lane(cuts_of(instruction, arrays), instruction.shape.tuple_shapes[0].rank, lane),
    )


def _become_vectors(emitter: Emitter, arrays: Sequence[Array]) -> bool:
    """Whether LLVM makes vectors of what arrays hold side by side, as there are no lanes, or all
    lanes share it."""
    if not emitter.program.has_lanes:
        return True
    return emitter.has_vectors and all(array.lane is None for array in arrays)


def _has_columns(instruction: HloInstruction, max_unrolled: int) -> bool:
    """Whether neighbours in memory belong to different results, each of which would take a loop of
    its own that strides through memory, and in which each step waits for the one before."""
    array, reduced = instruction.operands[0].shape, instruction.dimensions
    num_rows = math.prod(array.dimensions[axis] for axis in reduced)
    return (
        instruction.shape.is_array
        and max_unrolled < num_rows <= _LONG_SUM
        and array.rank - 1 not in reduced
        and array.dimensions[-1] >= _MIN_COLUMNS
    )


def _reduce_columns(
    emitter: Emitter, instruction: HloInstruction, array: Array, start: ir.Value
) -> Scratch:
    """Emits all elements of a reduction over rows, of which LLVM makes vectors.

    %r = f32[3,5] reduce(%x, %zero), dimensions={1}, to_apply=%add           %x: f32[3,99,5]

        r[:, :] = zero;  for i, j, k: r[i, k] = r[i, k] + x[i, j, k]
    """
    place, reduced, rank = emitter.place, instruction.dimensions, array.shape.rank
    kept = [axis for axis in range(rank) if axis not in reduced]
    first = sum(axis < max(reduced) for axis in kept)
    last = first + len(reduced)
    axes = [*kept[:first], *reduced, *kept[first:]]
    result = new_scratch(place, instruction.shape, None)
    emit_for_each(
        emitter.builder,
        instruction.shape.dimensions,
        lambda index: result.put(place, index, start),
    )
    stored: list[ir.Block] = []

    def take_in(index: tuple[Index, ...]) -> None:
        into = (*index[:first], *index[last:])
        taken = array.get(place, _interleave(into, reduced, index[first:last], rank))
        so_far = result.get(place, into)
        (value,) = apply_computation(emitter, instruction.to_apply, [so_far, taken])
        result.put(place, into, value)
        stored.append(emitter.builder.block)

    emit_for_each(
        emitter.builder,
        [array.shape.dimensions[axis] for axis in axes],
        take_in,
        cuts=[sorted(cuts_along(array, axis)) for axis in axes],
    )
    mark_independent(emitter.builder.module, stored)
    return result


def _elements_of_tuple(
    emitter: Emitter,
    shapes: Sequence[Shape],
    lane: int | None,
    accumulate: Callable[[Element], list[ir.Value]],
    *,
    is_long: bool,
    cuts: Sequence[Sequence[int]],
) -> list[Array]:
    """Emits all elements of several arrays that are made together."""
    dimensions = indexing.residual_dimensions(shapes[0].dimensions, lane)
    if is_long or math.prod(dimensions) > emitter.max_unrolled:
        scratch = [new_scratch(emitter.place, shape, lane) for shape in shapes]

        def store(index: tuple[Index, ...]) -> None:
            at = indexing.with_lane(index, lane)
            for target, value in zip(scratch, accumulate(at), strict=True):
                target.put(emitter.place, at, value)

        emit_for_each(emitter.builder, dimensions, store, cuts=cuts)
        return [*scratch]
    elements: list[list[ir.Value]] = []
    emit_for_each(
        emitter.builder,
        dimensions,
        lambda index: elements.append(accumulate(indexing.with_lane(index, lane))),
        max_unrolled=emitter.max_unrolled,
    )
    columns = zip(*elements, strict=True) if elements else [()] * len(shapes)
    return [
        Registers(shape=shape, lane=lane, elements=column)
        for shape, column in zip(shapes, columns, strict=True)
    ]


def _reduced_lane(instruction: HloInstruction, operand: Array) -> int | None:
    if operand.lane is None:
        return None
    return operand.lane - sum(axis < operand.lane for axis in instruction.dimensions)


def _accumulate(
    emitter: Emitter,
    instruction: HloInstruction,
    arrays: Sequence[Array],
    starts: Sequence[ir.Value],
    index: Element,
    max_unrolled: int,
) -> list[ir.Value]:
    """Emits one element of every result, in a loop if it takes in more than `max_unrolled`."""
    place = emitter.place
    reduced = instruction.dimensions
    dimensions = arrays[0].shape.dimensions
    sizes = [dimensions[axis] for axis in reduced]

    has_lanes = any(array.lane is not None for array in arrays)
    is_looped = math.prod(sizes) > max_unrolled
    in_any_order = not emitter.program.has_lanes or (is_looped and _become_vectors(emitter, arrays))
    are_vectors_made = is_looped and in_any_order
    sought = find_extreme(instruction) if are_vectors_made else None
    if sought is not None:
        return _find_place(emitter, instruction, arrays[0], starts, index, sought)
    extreme = Extreme.of(emitter, instruction, math.prod(sizes), is_loop=is_looped)
    combined: list[ir.Block] = []

    def get(inner: Sequence[Index]) -> list[ir.Value]:
        at = _interleave(index, reduced, inner, len(dimensions))
        values = [array.get(place, at) for array in arrays]
        return values if extreme is None else extreme.begin(values[0])

    def join(left: Sequence[ir.Value], right: Sequence[ir.Value]) -> list[ir.Value]:
        if extreme is not None:
            return extreme.join(left, right)
        return apply_computation(emitter, instruction.to_apply, [*left, *right])

    if extreme is not None:
        starts = extreme.begin(starts[0])

    def step(inner: tuple[Index, ...], carried: Sequence[ir.Value]) -> list[ir.Value]:
        values = get(inner)
        results = join(carried, values)
        if in_any_order:
            _allow_reordering(r for r in results if all(r is not value for value in values))
            combined.append(emitter.builder.block)
        return results

    def wide_step(inner: tuple[Index, ...], carried: Sequence[ir.Value]) -> list[ir.Value]:
        return [widen(place, value) for value in step(inner, carried)]

    if not is_looped and _is_reorderable(instruction, has_lanes=not in_any_order):
        places = [unflatten(emitter.builder, n, sizes) for n in range(math.prod(sizes))]
        elements = [partial(get, at) for at in places]
        carried = _combine_in_pairs(join, [lambda: starts, *elements])
        return carried if extreme is None else [extreme.end(carried)]
    cuts = [sorted(set().union(*(cuts_along(array, axis) for array in arrays))) for axis in reduced]
    outer = _split_sum(instruction, sizes) if in_any_order else 0
    if outer:
        element = instruction.shape.element_type
        none_yet = constant(element, identity(instruction.to_apply.root.opcode, element))

        def add_part(at: tuple[Index, ...], carried: Sequence[ir.Value]) -> list[ir.Value]:
            part = emit_fold(
                emitter.builder,
                sizes[outer:],
                [none_yet],
                lambda inner, values: step((*at, *inner), values),
                cuts=cuts[outer:],
            )
            total = apply_computation(emitter, instruction.to_apply, [*carried, *part])
            _allow_reordering(total)
            return total

        totals = emit_fold(emitter.builder, sizes[:outer], starts, add_part, cuts=cuts[:outer])
        mark_independent(emitter.builder.module, combined)
        return totals
    if are_vectors_made and not any(cuts) and all(_is_one_row(a, reduced) for a in arrays):
        carried = emit_fold(
            emitter.builder,
            [math.prod(sizes)],
            starts,
            lambda at, values: step(unflatten(emitter.builder, at[0], sizes), values),
        )
    elif is_looped and has_lanes:
        wide = [widen(place, value) for value in starts]
        carried = emit_fold(emitter.builder, sizes, wide, wide_step, cuts=cuts)
    else:
        carried = emit_fold(
            emitter.builder, sizes, starts, step, max_unrolled=max_unrolled, cuts=cuts
        )
    mark_independent(emitter.builder.module, combined)
    return carried if extreme is None else [extreme.end(carried)]


def _find_place(
    emitter: Emitter,
    instruction: HloInstruction,
    array: Array,
    starts: Sequence[ir.Value],
    index: Element,
    extreme: str,
) -> list[ir.Value]:
    """Emits one element of an arg-maximum or arg-minimum, see `arg_extremes`."""
    builder, (axis,) = emitter.builder, instruction.dimensions
    element = array.shape.element_type
    blocks: list[ir.Block] = []

    def fold(start: ir.Value, take_in: Callable[[ir.Value, ir.Value, Index], ir.Value]) -> ir.Value:
        def step(at: tuple[Index, ...], carried: Sequence[ir.Value]) -> list[ir.Value]:
            value = array.get(emitter.place, _interleave(index, (axis,), at, array.shape.rank))
            blocks.append(builder.block)
            return [take_in(carried[0], value, at[0])]

        cuts = [sorted(cuts_along(array, axis))]
        (result,) = emit_fold(builder, [array.shape.dimensions[axis]], [start], step, cuts=cuts)
        return result

    found = fold(starts[0], lambda far, value, _: farther(builder, extreme, element, far, value))
    counter = instruction.operands[1].shape.element_type
    none = constant(counter, identity("minimum", counter))

    def take_place(first: ir.Value, value: ir.Value, at: Index) -> ir.Value:
        place = indexing.like(builder, at, none.type)
        this = place_of(builder, found, value, place, none)
        return combine(builder, "minimum", first, this, counter)

    first = fold(none, take_place)
    mark_independent(builder.module, blocks)
    return [found, first]


def _is_one_row(array: Array, axes: Sequence[int]) -> bool:
    """Whether elements along several dimensions are neighbours in memory, in row-major order.

    They are taken in by one loop then: an inner one over few would have no vectors.
    """
    if not isinstance(array, Memory | Scratch):
        return False
    sizes = array.shape.dimensions
    strides = array.strides if isinstance(array, Memory) else row_major_strides(sizes)
    pairs = list(itertools.pairwise(axes))
    return all(b == a + 1 and strides[a] == strides[b] * sizes[b] for a, b in pairs)


def _split_sum(instruction: HloInstruction, sizes: Sequence[int]) -> int:
    """Returns how many of the dimensions that are reduced go through partial sums of what the
    others hold; 0 where all is summed in one go.

    Added one by one to a total that is large by then, many floats would lose their last digits.
    """
    is_float = instruction.shape.is_array and instruction.shape.element_type.is_floating
    is_sum = is_float and instruction.to_apply.root.opcode in ("add", "multiply")
    is_reorderable = is_sum and _is_reorderable(instruction, has_lanes=False)
    if not is_reorderable or math.prod(sizes) <= _LONG_SUM:
        return 0
    outer = min(
        range(len(sizes)), key=lambda n: math.prod(sizes[:n]) + math.prod(sizes[n:]), default=0
    )
    return outer if math.prod(sizes[outer:]) >= _MIN_PART else 0


def _is_reorderable(reduce: HloInstruction, *, has_lanes: bool) -> bool:
    """Whether a reduction may take elements in pairs: where it only chooses among them, and without
    lanes where it applies one operation, whatever is rounded: XLA makes vectors of it."""
    applied = [i for i in reduce.to_apply.instructions if i.opcode not in _NO_OPERATION]
    if all(i.opcode in _CHOOSING for i in applied):
        return True
    is_one = len(applied) == 1 and applied[0] is reduce.to_apply.root
    return is_one and not has_lanes and applied[0].opcode in _REORDERABLE


def _combine_in_pairs(
    join: Callable[[Sequence[ir.Value], Sequence[ir.Value]], list[ir.Value]],
    elements: Sequence[Callable[[], Sequence[ir.Value]]],
) -> list[ir.Value]:
    """Emits a reduction of few elements as a tree: in a chain each would wait for the one before.

    What is combined first is emitted first, so that few values wait for others in registers.
    """
    if len(elements) == 1:
        return [*elements[0]()]
    half = len(elements) // 2
    left = _combine_in_pairs(join, elements[:half])
    return join(left, _combine_in_pairs(join, elements[half:]))


def _allow_reordering(values: Iterable[ir.Value]) -> None:
    """Lets LLVM sum and multiply floats in any order, as XLA does: scalars are made vectors only
    so."""
    for value in values:
        if isinstance(value, ir.Instruction) and value.opname in ("fadd", "fmul"):
            value.flags = [*value.flags, "reassoc"]


def _interleave(
    index: Element, reduced: Sequence[int], inner: Sequence[Index], rank: int
) -> Element:
    kept = iter(index)
    at = dict(zip(reduced, inner, strict=True))
    return tuple(at[axis] if axis in at else next(kept) for axis in range(rank))


def apply_computation(
    emitter: Emitter, computation: HloComputation, arguments: Sequence[ir.Value]
) -> list[ir.Value]:
    """Emits a computation of scalar elementwise instructions in place."""
    values: dict[HloInstruction, ir.Value] = dict(
        zip(computation.parameters, arguments, strict=True)
    )
    for instruction in computation.post_order():
        if instruction.opcode == "constant":
            element = instruction.shape.element_type
            values[instruction] = constant(element, instruction.literal[()])
        elif instruction.opcode not in ("parameter", "tuple"):
            operands = [values[operand] for operand in instruction.operands]
            values[instruction] = emitter.apply(instruction, operands)
    root = computation.root
    results = root.operands if root.opcode == "tuple" else [root]
    return [values[result] for result in results]
