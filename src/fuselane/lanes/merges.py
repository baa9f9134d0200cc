"""Keeping dimensions apart that XLA merges for a while.

XLA reshapes arrays to few dimensions around dots and undoes that later. In between the lanes would
be merged with a dimension of their own. So reshapes that only merge are moved behind what uses
them, until they meet the reshape that undoes them and vanish:

    %r = f32[24] reshape(%x), x f32[8,3]           %b' = f32[8,3,5] broadcast(%x), dimensions={0,1}
    %b = f32[24,5] broadcast(%r), dimensions={0}   %s' = f32[8,3,5] sine(%b')
    %s = f32[24,5] sine(%b)                    ->
    %t = f32[8,3,5] reshape(%s)                    %t = %s'

Numerics: bitwise-equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuselane.hlo.instruction import HloInstruction

Groups = tuple[tuple[int, ...], ...]
"""For each dimension after a reshape those before it that it consists of."""


def merged_groups(source: Sequence[int], target: Sequence[int]) -> Groups | None:
    """Returns which dimensions a reshape merges; None if it splits some, or merges none.

    Dimensions of size one may come and go.

    Example: (8, 3, 5) -> (24, 5) gives ((0, 1), (2,)).
    """
    groups: list[tuple[int, ...]] = []
    position = 0
    for size in target:
        start, product = position, 1
        while position < len(source) and product * source[position] <= size and product < size:
            product *= source[position]
            position += 1
        if product != size:
            return None
        groups.append(tuple(range(start, position)))
    if math.prod(source[position:]) != 1:
        return None
    if position < len(source):
        if not groups:
            return None
        groups[-1] = (*groups[-1], *range(position, len(source)))
    merges = any(sum(source[d] > 1 for d in group) > 1 for group in groups)
    return tuple(groups) if merges else None


def merging_reshape(value: HloInstruction) -> Groups | None:
    """Returns what a value merges if it is a reshape that only merges dimensions, or None."""
    if value.opcode != "reshape":
        return None
    return merged_groups(value.operands[0].shape.dimensions, value.shape.dimensions)


def apart_under_broadcast(
    groups: Groups, source: Sequence[int], sizes: Sequence[int], dimensions: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns sizes and dimension numbers of a broadcast of an array before it was merged.

    Args:
        groups: What was merged.
        source: Sizes before.
        sizes, dimensions: The broadcast's result and dimension numbers, of the merged array.
    """
    parts = [
        [source[d] for d in groups[dimensions.index(r)]] if r in dimensions else [size]
        for r, size in enumerate(sizes)
    ]
    starts = [sum(map(len, parts[:r])) for r in range(len(parts))]
    numbers = [
        starts[dimensions[t]] + offset
        for t, group in enumerate(groups)
        for offset in range(len(group))
    ]
    return tuple(size for part in parts for size in part), tuple(numbers)


def apart_under_transpose(groups: Groups, permutation: Sequence[int]) -> tuple[int, ...]:
    """Returns the permutation that does to an array before it was merged what one does after."""
    return tuple(d for p in permutation for d in groups[p])


def sizes_apart(operands: Sequence[HloInstruction]) -> tuple[tuple[int, ...], Groups] | None:
    """Returns the sizes at which all operands of an elementwise instruction come apart, and what
    is merged to get theirs; None if they don't."""
    for operand in operands:
        groups = merging_reshape(operand)
        if groups is not None:
            source = operand.operands[0].shape.dimensions
            if all(_comes_apart(other, source, groups) for other in operands):
                return source, groups
    return None


def _comes_apart(value: HloInstruction, source: tuple[int, ...], groups: Groups) -> bool:
    if not value.shape.dimensions:
        return True
    if value.opcode == "reshape":
        return value.operands[0].shape.dimensions == source
    return value.opcode == "broadcast" and all(len(groups[d]) == 1 for d in value.dimensions)
