"""The sums of a dot: a loop over what is summed, in parts that don't wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.indexing import Index
from fuselane.codegen.loops import emit_counted_loop

Advance = Callable[[Index, Sequence[ir.Value]], list[ir.Value]]
"""Adds the products at a position, one to each of some sums."""


def emit_sums(
    builder: ir.IRBuilder,
    zeros: Sequence[ir.Value],
    total: int,
    advance: Advance,
    *,
    step: int,
    parts: int,
    stride: int = 1,
) -> list[list[ir.Value]]:
    """Emits some sums of products and returns the parts of each.

    Args:
        builder: Where.
        zeros: What each sum starts from.
        total: How many products each is of.
        advance: Gets a position, and the sums so far.
        step: Products of a sum in one iteration of the loop.
        parts: In how many interleaved parts to sum.
        stride: Positions from one product to the next.
    """
    count = len(zeros)

    def run(start: Index, products: int, sums: Sequence[ir.Value]) -> list[ir.Value]:
        following = list(sums)
        for offset in range(products):
            part = slice(offset % parts * count, (offset % parts + 1) * count)
            position = indexing.add(builder, start, offset * stride)
            following[part] = advance(position, following[part])
        return following

    sums = [*zeros] * parts
    if total <= 2 * step:
        sums = run(0, total, sums)
    else:
        rounds, rest = divmod(total, step)
        sums = emit_counted_loop(
            builder,
            rounds,
            sums,
            lambda t, values: run(indexing.multiply(builder, t, step * stride), step, values),
            name="dot",
        )
        sums = run(rounds * step * stride, rest, sums)
    return [sums[number::count] for number in range(count)]
