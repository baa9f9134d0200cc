"""Linear work on the results of reductions over lanes, done on each lane's share instead.

    %s = f32[] reduce(%x, %zero), dimensions={0}    ->  %s = f32[2048] convert(%x)      a fold
    %m = f32[] multiply(%s, %c)                     ->  %m = f32[2048] multiply(%s, broadcast(%c))
    %p = f32[2] pad(%m, %zero), padding=0_1         ->  %p = f32[2048,2] pad(%m, %zero)

What `%m` is, is the sum of what it is in each lane. The lane dimension comes first. Folds, which
convert to the type that is there already, are instructions of their own so that a kernel may put
the lanes' shares together there: all that follows may then be done once for many lanes.

Numerics: floats are added up in another order; all else is bitwise-equal. Factors have to be finite
constants, since a share may be zero where the sum is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, final

import numpy as np

from fuselane.analysis.leaving import PICKING_OPCODES, LaneReduction
from fuselane.hlo.combiners import is_identity, match_combiner
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.batching import emit_batched
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.constants import is_constant
from fuselane.lanes.picks import emit_picked

_MOVEMENT: Final = frozenset({"broadcast", "reshape", "reverse", "slice", "transpose"})


@final
class LateValues:
    """The lanes' shares of values that follow from reductions over lanes.

    Attributes:
        folds: The folds made so far -> the opcode that combines them.
    """

    def __init__(
        self, builder: ComputationBuilder, reductions: Iterable[LaneReduction], num_lanes: int
    ) -> None:
        """Args: `builder` adds to the body that the reductions are in."""
        self._builder = builder
        self._reductions = {leaving.reduction.root: leaving for leaving in reductions}
        self._num_lanes = num_lanes
        self._known: dict[HloInstruction, HloInstruction] = {}
        self._combiners: dict[HloInstruction, str | None] = {}
        self.folds: dict[HloInstruction, str] = {}

    def combiner(self, value: HloInstruction) -> str | None:
        """Returns the opcode that makes a value of its lanes' shares; None if it has no shares."""
        if value not in self._combiners:
            self._combiners[value] = self._find_combiner(value)
        return self._combiners[value]

    def share(self, value: HloInstruction) -> HloInstruction:
        """Returns the lanes' shares of a value that has a combiner, `[num_lanes, ...]`."""
        if value not in self._known:
            leaving = self._reductions.get(value)
            self._known[value] = self._emit(value) if leaving is None else self._fold(leaving)
        return self._known[value]

    # Which values have shares.

    def _find_combiner(self, value: HloInstruction) -> str | None:
        leaving = self._reductions.get(value)
        if leaving is not None:
            return leaving.reduction.combiner
        operands = value.operands
        match value.opcode:
            case "add" | "subtract" | "negate":
                return "add" if all(self.combiner(o) == "add" for o in operands) else None
            case "multiply":
                is_scaled = any(
                    self.combiner(share) == "add" and _is_finite(factor)
                    for share, factor in (operands, operands[::-1])
                )
                return "add" if is_scaled else self._common_combiner(value)
            case "divide":
                is_float = value.shape.element_type.dtype.kind not in "iub"
                is_scaled = is_float and _is_finite(operands[1]) and not _has_zero(operands[1])
                return "add" if is_scaled and self.combiner(operands[0]) == "add" else None
            case "and" | "or" | "maximum" | "minimum":
                return self._common_combiner(value)
            case "concatenate":
                found = {self.combiner(o) for o in operands} - {None}
                combiner = found.pop() if len(found) == 1 else None
                is_whole = combiner is not None and all(
                    self.combiner(o) or is_identity(o, combiner) for o in operands
                )
                return combiner if is_whole else None
            case "pad":
                combiner = self.combiner(operands[0])
                return combiner if combiner and is_identity(operands[1], combiner) else None
            case "reduce" if value.shape.is_array:
                combiner = self.combiner(operands[0])
                is_same = combiner is not None and match_combiner(value.to_apply) == combiner
                return combiner if is_same and is_identity(operands[1], combiner or "") else None
            case opcode if opcode in _MOVEMENT:
                return self.combiner(operands[0])
        return None

    def _common_combiner(self, value: HloInstruction) -> str | None:
        is_same = all(self.combiner(operand) == value.opcode for operand in value.operands)
        return value.opcode if is_same else None

    # Their shares.

    def _emit(self, value: HloInstruction) -> HloInstruction:
        operands = [self.share(o) if self.combiner(o) else o for o in value.operands]
        return emit_batched(self._builder, value, operands, self._num_lanes)

    def _fold(self, leaving: LaneReduction) -> HloInstruction:
        root = leaving.reduction.root
        if root.opcode in PICKING_OPCODES:
            value = emit_picked(self._builder, leaving, self._num_lanes)
        else:
            value = self._product(leaving) if root.opcode == "dot" else self._rest(leaving)
        value = self._builder.reshape(value, (self._num_lanes, *root.shape.dimensions))
        fold = HloInstruction.create(
            "convert", value.shape, (value,), name=root.name, metadata=root.metadata
        )
        self._builder.computation.add(fold)
        self.folds[fold] = leaving.reduction.combiner
        return fold

    def _rest(self, leaving: LaneReduction) -> HloInstruction:
        """Returns a reduction's source, reduced over all dimensions but the lanes', lanes first."""
        reduction, (lane,) = leaving.reduction, leaving.lanes
        others = tuple(sorted(reduction.dimensions - {lane}))
        value = self._builder.fold(reduction.combiner, reduction.source, others, reduction.root)
        lane -= sum(d < lane for d in others)
        rank = value.shape.rank
        return self._builder.transpose(value, (lane, *(d for d in range(rank) if d != lane)))

    def _product(self, leaving: LaneReduction) -> HloInstruction:
        """Returns each lane's products of a dot, lanes first.

        Its dimensions: lanes, other contracting ones (summed over), batch, free left, free right.
        """
        root = leaving.reduction.root
        numbers = DotDimensions.of(root)
        lanes = leaving.lanes
        others = [
            pair
            for pair in zip(numbers.left_contracting, numbers.right_contracting, strict=True)
            if pair != lanes
        ]
        left, right = (
            self._builder.convert(operand, root.shape.element_type, origin=operand)
            for operand in root.operands
        )
        left_free = [left.shape.dimensions[d] for d in numbers.left_free]
        right_free = [right.shape.dimensions[d] for d in numbers.right_free]
        in_front = [lanes, *others, *zip(numbers.left_batch, numbers.right_batch, strict=True)]
        common = [left.shape.dimensions[d] for d, _ in in_front]
        sizes = (*common, *left_free, *right_free)
        first, second = len(common), len(common) + len(left_free)
        ours = self._builder.transpose(left, (*(d for d, _ in in_front), *numbers.left_free))
        theirs = self._builder.transpose(right, (*(d for _, d in in_front), *numbers.right_free))
        factors = [
            self._builder.broadcast(ours, sizes, tuple(range(second))),
            self._builder.broadcast(theirs, sizes, (*range(first), *range(second, len(sizes)))),
        ]
        shape = array_shape(root.shape.element_type, sizes)
        product = self._builder.emit("multiply", shape, factors, origin=root)
        return self._builder.fold("add", product, tuple(range(1, 1 + len(others))), root)


def _is_finite(value: HloInstruction) -> bool:
    return _holds(value, lambda values: bool(np.all(np.isfinite(values))))


def _has_zero(value: HloInstruction) -> bool:
    return _holds(value, lambda values: bool(np.any(values == 0)))


def _holds(value: HloInstruction, test: Callable[[Any], bool]) -> bool:
    """Whether a value is a constant, perhaps broadcast, whose elements pass a test."""
    if not is_constant(value):
        return False
    while value.opcode in ("broadcast", "reshape"):
        value = value.operands[0]
    return value.opcode == "constant" and test(value.literal)
