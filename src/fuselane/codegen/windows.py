"""Windows of arrays: storing one array into a part of another, and finding one's way in it.

target f32[8,5]   update f32[8,2]   starts (0, 3)
target[:, 3] = update[:, 0]
target[:, 4] = update[:, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Discarded, Memory, Place, Scratch, Stored
from fuselane.codegen.cuts import per_dimension
from fuselane.codegen.independent import mark_independent
from fuselane.codegen.indexing import LANE, Element, Index
from fuselane.codegen.loops import emit_for_each
from fuselane.codegen.rows import are_rows, has_rows, load_rows, store_rows


def store_window(
    place: Place, target: Stored, update: Array, starts: Sequence[Index], max_unrolled: int
) -> None:
    """Stores an array into a window of another, whole runs of neighbours at once if it can.

    Args:
        place: Where the code goes.
        target: What is written; an array that is discarded gets nothing.
        update: What is stored, of the rank of `target`.
        starts: Where the window starts, within bounds.
        max_unrolled: The most elements per lane that are stored without a loop.
    """
    if isinstance(target, Discarded):
        return
    is_shared = isinstance(target, Memory) and target.lane is None
    if is_shared and not (place.block.is_surely_first or any(map(indexing.varies, starts))):
        # One branch around a loop instead of one in each of its steps, for which NVIDIA's assembler
        # would write the loop several times over.
        with place.builder.if_then(place.block.is_first):
            first = replace(place.block.on_its_own, is_first=ir.Constant(ir.IntType(1), 1))
            store_window(replace(place, block=first), target, update, starts, max_unrolled)
        return
    builder, is_small = place.builder, update.size <= max_unrolled
    store_whole = _store_by_runs if is_small else _store_by_rows
    if store_whole(place, target, update, starts):
        return

    filled = []

    def move(index: tuple[Index, ...]) -> None:
        at = indexing.with_lane(index, update.lane)
        value = update.get(place, at)
        into = indexing.shift(builder, indexing.with_lane(index, target.lane), starts)
        target.put(place, into, value)
        filled.append(place.builder.block)

    cuts = per_dimension(update)
    emit_for_each(builder, update.dimensions, move, max_unrolled=max_unrolled, cuts=cuts)
    if isinstance(target, Scratch) and (target.lane is None or place.block.width == 1):
        mark_independent(place.builder.module, filled)


def _store_by_rows(place: Place, target: Stored, update: Array, starts: Sequence[Index]) -> bool:
    if update.lane != target.lane or any(map(indexing.varies, starts)):
        return False
    if isinstance(target, Memory) and are_rows(target, update.shape, place):
        store_rows(place, target, update, starts)
        return True
    if not isinstance(target, Scratch) or not isinstance(update, Memory):
        return False
    is_all = update.shape.dimensions == target.shape.dimensions and has_rows(update, place)
    if is_all:
        load_rows(place, update, target, starts)
    return is_all


def _store_by_runs(place: Place, target: Stored, update: Array, starts: Sequence[Index]) -> bool:
    if not isinstance(target, Memory):
        return False
    run = target.run(place.block)
    if run == 1 or update.size % run:
        return False
    positions = [update.flat(place, number) for number in range(update.size)]
    shifted = [indexing.shift(place.builder, at, starts) for at in positions]
    if [target.place_in_run(at) for at in shifted] != list(range(run)) * (update.size // run):
        return False
    values = [update.get(place, at) for at in positions]
    for first in range(0, update.size, run):
        target.put_run(place, shifted[first], values[first : first + run])
    return True


def window_position(
    builder: ir.IRBuilder, index: Element, starts: Sequence[Index], window: Sequence[int]
) -> tuple[bool | ir.Value, Element]:
    """Returns whether an index of the whole array is in a window, and its index there.

    An index outside gets that of some element inside.
    """
    inside: bool | ir.Value = True
    position: list[Index | None] = []
    for at, start, size in zip(index, starts, window, strict=True):
        if at is None:
            position.append(LANE)
            continue
        offset = indexing.subtract(builder, at, start)
        if size == 1:
            inside = indexing.both(builder, inside, indexing.equal(builder, offset, 0))
        else:
            low = indexing.less(builder, -1, offset)
            high = indexing.less(builder, offset, size)
            inside = indexing.both(builder, inside, indexing.both(builder, low, high))
        position.append(indexing.clamp(builder, offset, 0, size - 1))
    return inside, tuple(position)
