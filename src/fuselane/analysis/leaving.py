"""Reductions over lanes whose results only leave the loop.

    %s = f32[] reduce(%x, %zero), dimensions={0}        %x: f32[2048], the lanes
    %m = f32[] multiply(%s, %c)                         the mean
    %o = f32[50] dynamic-update-slice(%a, %m, %i)       written out; nothing else reads it

The lanes are mixed here, but no lane ever sees it: each part of them can do its share, and the
shares are put together behind the loop.

XLA:CPU takes large reductions apart: pads, reshapes and reduces of 32 values each. Such a chain
counts as one reduction. So does a slice that takes out a few lanes, to write down what becomes of
them: it is a sum in which the other lanes have no share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.dimension_classes import DimensionClasses
from fuselane.hlo.combiners import is_identity, match_combiner
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

_SMALL_FLOATS: Final = frozenset({PrimitiveType.F16, PrimitiveType.BF16})
"""Types in which a dot's sums must not be kept."""

PICKING_OPCODES: Final = frozenset({"slice", "dynamic-slice"})

_MAX_PICKED: Final = 8
"""Lanes that may be taken out at once: each lane has a share in each of them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduction:
    """A reduction, perhaps in several stages.

    Attributes:
        root: The instruction with the result: a `reduce`, a `dot`, or a slice of a few positions.
        members: All instructions it consists of.
        source: The array it reduces; for a `dot` the `dot` itself.
        dimensions: The dimensions of `source` that it reduces; none for a `dot`.
        combiner: The opcode that combines two values.
    """

    root: HloInstruction
    members: tuple[HloInstruction, ...]
    source: HloInstruction
    dimensions: frozenset[int]
    combiner: str

    def __post_init__(self) -> None:
        assert self.root in self.members, "the last stage is one of them"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneReduction:
    """A reduction over the lanes that only leaves the loop.

    Attributes:
        reduction: The reduction.
        lanes: The number of the lane dimension in the source, or in a dot's two operands.
    """

    reduction: Reduction
    lanes: tuple[int, ...]


def find_reductions(body: HloComputation) -> list[Reduction]:
    """Returns the reductions of one array, with a known combiner, in a computation."""
    stages: dict[HloInstruction, None] = {}
    chains: list[list[_Stage]] = []
    for instruction in reversed(body.instructions):
        if instruction not in stages:
            chain = _match(instruction)
            stages.update(dict.fromkeys(stage.instruction for stage in chain))
            chains.append(chain)
    found: dict[HloInstruction, list[_Stage]] = {}
    while chains:
        chain = chains.pop()
        whole = _without_shared(chain, stages)
        if whole:
            found[whole[0].instruction] = whole
        rest = (stage.instruction for stage in chain[len(whole) :])
        following = next((stage for stage in rest if stage.opcode == "reduce"), None)
        if following is not None and following not in found:
            chains.append(_match(following))
    return [_describe(chain) for chain in found.values()]


def reduced_classes(
    classes: DimensionClasses, reductions: Iterable[Reduction]
) -> dict[int, tuple[int, int]]:
    """Returns the classes that reductions reduce -> (size, minus distance from minor)."""
    result: dict[int, tuple[int, int]] = {}
    for reduction in reductions:
        first = reduction.members[-1]
        shape = first.operands[0].shape
        dimensions: Collection[int] = reduction.dimensions
        if first.opcode == "dot":
            dimensions = DotDimensions.of(first).left_contracting
        for dimension in dimensions:
            rank = (shape.dimensions[dimension], dimension + 1 - shape.rank)
            if rank[0] > 1:
                lane_class = classes.find(classes.operand_nodes(first, 0)[dimension])
                result[lane_class] = max(rank, result.get(lane_class, rank))
    return result


def find_leaving(
    classes: DimensionClasses,
    loop: HloInstruction,
    lane_class: int,
    reductions: Collection[Reduction],
) -> list[LaneReduction] | None:
    """Returns all that mixes the data of a class's positions, if that only leaves the loop.

    Args:
        classes: The classes of all values.
        loop: The outermost loop of the region.
        lane_class: A class that some instructions mix.
        reductions: Those of the loop's body.
    Returns:
        The reductions over the class; None if something else mixes it, or if anything with this
        class, a condition or a nested loop depends on one of them.
    """
    marking = set(classes.marking(lane_class) or ())
    mixing = [reduction for reduction in reductions if marking.intersection(reduction.members)]
    mixing += _find_picks(classes, lane_class, loop.body, marking)
    if not mixing or not marking.issubset(m for reduction in mixing for m in reduction.members):
        return None
    found = []
    for reduction in mixing:
        lanes = _lanes_of(classes, lane_class, reduction)
        if lanes is None:
            return None
        found.append(LaneReduction(reduction=reduction, lanes=lanes))
    roots = [reduction.root for reduction in mixing]
    followers = collect_followers(loop, roots)
    if followers is None or any(classes.has(f, lane_class) for f in followers):
        return None
    return found if followers.isdisjoint(roots) else None


def _find_picks(
    classes: DimensionClasses,
    lane_class: int,
    body: HloComputation,
    marking: Collection[HloInstruction],
) -> Iterator[Reduction]:
    """Yields what takes a few positions of a class out of an array, as sums over all of them."""
    for instruction in body.instructions:
        if instruction.opcode not in PICKING_OPCODES or instruction not in marking:
            continue
        lane = classes.place(classes.operand_nodes(instruction, 0), lane_class)
        if lane is not None and instruction.shape.dimensions[lane] <= _MAX_PICKED:
            is_boolean = instruction.shape.element_type is PrimitiveType.PRED
            yield Reduction(
                root=instruction,
                members=(instruction,),
                source=instruction.operands[0],
                dimensions=frozenset({lane}),
                combiner="or" if is_boolean else "add",
            )


def collect_followers(
    loop: HloInstruction, values: Collection[HloInstruction]
) -> set[HloInstruction] | None:
    """Returns what depends on some values of a loop's body, in this iteration or later ones.

    The values themselves and the root of the body are not among them. None if a loop, or how often
    this one runs, depends on the values.
    """
    body = loop.body
    followers: set[HloInstruction] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        carried = positions(body.root, value)
        if any(user.opcode == "while" for user in (value, *value.users)):
            return None
        if any(element.users for element in _elements(loop.condition.parameters[0], carried)):
            return None
        for following in (*value.users, *_elements(body.parameters[0], carried)):
            if following not in followers and following is not body.root:
                followers.add(following)
                stack.append(following)
    return followers


def positions(root: HloInstruction, value: HloInstruction) -> set[int]:
    """Returns the elements of a root tuple that are a value."""
    return {index for index, operand in enumerate(root.operands) if operand is value}


def _elements(parameter: HloInstruction, indices: Collection[int]) -> Iterator[HloInstruction]:
    for user in parameter.users:
        if user.opcode == "get-tuple-element" and user.tuple_index in indices:
            yield user


# Chains.


@final
@dataclass(frozen=True, slots=True)
class _Stage:
    """One instruction of a reduction and what of its first operand is reduced in the end."""

    instruction: HloInstruction
    reduced: frozenset[int]
    combiner: str


def _match(instruction: HloInstruction) -> list[_Stage]:
    """Returns the stages of the reduction that ends with an instruction, last one first."""
    if instruction.opcode == "dot":
        if instruction.shape.element_type in _SMALL_FLOATS:
            return []
        return [_Stage(instruction, frozenset(), "add")]
    if instruction.opcode != "reduce" or instruction.shape.is_tuple:
        return []
    combiner = match_combiner(instruction.to_apply)
    if combiner is None or instruction.shape.element_type.is_complex:
        return []
    if not is_identity(instruction.operands[1], combiner):
        return []  # lanes would not have a share of the initial value
    chain: list[_Stage] = []
    reduced: frozenset[int] | None = frozenset(instruction.dimensions)
    while reduced is not None:
        chain.append(_Stage(instruction, reduced, combiner))
        instruction = instruction.operands[0]
        reduced = _step_back(instruction, reduced, combiner)
    return chain


def _without_shared(chain: list[_Stage], stages: Collection[HloInstruction]) -> list[_Stage]:
    """Returns a chain up to the first stage that anything else needs, too."""
    for number, stage in enumerate(chain):
        if number and any(user not in stages for user in stage.instruction.users):
            return chain[:number]
    return chain


def _describe(chain: list[_Stage]) -> Reduction:
    first = chain[-1]
    is_dot = first.instruction.opcode == "dot"
    return Reduction(
        root=chain[0].instruction,
        members=tuple(stage.instruction for stage in chain),
        source=first.instruction if is_dot else first.instruction.operands[0],
        dimensions=first.reduced,
        combiner=first.combiner,
    )


def _step_back(
    value: HloInstruction, reduced: frozenset[int], combiner: str
) -> frozenset[int] | None:
    """Returns which dimensions of a value's operand to reduce instead of some of the value's.

    None if that would not give the same, up to the order of combination and dimensions of size 1.
    """
    match value.opcode:
        case "reduce" if not value.shape.is_tuple:
            is_same = match_combiner(value.to_apply) == combiner
            if not is_same or not is_identity(value.operands[1], combiner):
                return None
            rank = value.operands[0].shape.rank
            kept = [d for d in range(rank) if d not in value.dimensions]
            return frozenset(value.dimensions) | {kept[d] for d in reduced}
        case "pad":
            touched = {d for d, edges in enumerate(value.padding) if any(edges)}
            is_grown = all(min(edges) >= 0 for edges in value.padding)
            is_same = is_grown and touched <= reduced and is_identity(value.operands[1], combiner)
            return reduced if is_same else None
        case "reshape":
            return _step_over_reshape(value, reduced)
    return None


def _step_over_reshape(value: HloInstruction, reduced: frozenset[int]) -> frozenset[int] | None:
    sizes = value.shape.dimensions
    source_sizes = value.operands[0].shape.dimensions
    result: set[int] = set()
    for source, target in reshape_groups(source_sizes, sizes):
        inside = [d in reduced for d in target]
        if any(inside) != all(inside):
            return None
        if any(inside):
            result.update(source)
    return frozenset(result)


def reshape_groups(
    source: tuple[int, ...], target: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the smallest groups of dimensions that a reshape makes of each other.

    Dimensions of size one are passed over.

    Example: (4, 90, 1, 5) -> (4, 3, 30, 5) yields ([0], [0]), ([1], [1, 2]) and ([3], [3]).
    """
    left = [d for d, size in enumerate(source) if size != 1]
    right = [d for d, size in enumerate(target) if size != 1]
    while left and right:
        first, second = [left.pop(0)], [right.pop(0)]
        ours, theirs = source[first[0]], target[second[0]]
        while ours != theirs:
            if ours < theirs:
                first.append(left.pop(0))
                ours *= source[first[-1]]
            else:
                second.append(right.pop(0))
                theirs *= target[second[-1]]
        yield first, second


# Where the lanes are.


def _lanes_of(
    classes: DimensionClasses, lane_class: int, reduction: Reduction
) -> tuple[int, ...] | None:
    """Returns the lane dimension in the source, or in both operands of a dot."""
    root = reduction.root
    if root.opcode != "dot":
        found = [d for d in reduction.dimensions if _is_lane(classes, lane_class, reduction, d)]
        return (found[0],) if len(found) == 1 else None
    numbers = DotDimensions.of(root)
    pairs = [
        (left, right)
        for left, right in zip(numbers.left_contracting, numbers.right_contracting, strict=True)
        if classes.find(classes.operand_nodes(root, 0)[left]) == lane_class
    ]
    return pairs[0] if len(pairs) == 1 else None


def _is_lane(
    classes: DimensionClasses, lane_class: int, reduction: Reduction, dimension: int
) -> bool:
    first = reduction.members[-1]
    return classes.find(classes.operand_nodes(first, 0)[dimension]) == lane_class
