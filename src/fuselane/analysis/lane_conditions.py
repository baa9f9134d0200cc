"""Loops that go on while any lane needs it: what each lane computes once it is done is dropped.

`vmap` of `while_loop` gives a loop for all lanes together:

    condition:  ROOT any = pred[] reduce(p(state)), or          p: pred[8], one per lane
    body:       x' = select(p(state), new(state), x)            for every element

A lane with `p` false keeps its state, so `p` stays false: the lane is done. A block of lanes may
then stop as soon as all of its own lanes are done. `prove` says whether a loop is of this kind:

- every element with lanes that `p` reads, or that is needed after the loop, keeps its value where
  `p` is false. `p` in the body is recognised by structure: equal opcodes, attributes and operands
  down to the elements. A flag the loop carries may tell as well; see `analysis.loop_invariants`;
- elements without lanes that change, such as a common counter, are neither read by `p` nor needed
  after the loop.

The condition may combine `any` with more by `and` and `or`: `i < n and any(p)`. What it goes by has
to grow with `any`; `not all(done)` is `any(not done)`.

Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from fuselane.analysis.booleans import FALSE, Node, TooManyNodesError
from fuselane.analysis.dimension_classes import DimensionClasses
from fuselane.analysis.integer_bounds import IntegerBounds, IntegerComparison
from fuselane.analysis.loop_ends import cone, is_all
from fuselane.analysis.loop_invariants import find_invariant
from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.analysis.valuation import Terms, Valuation, has_places_by_use
from fuselane.analysis.while_loops import is_invariant
from fuselane.hlo.indexed import get_indices, indexed
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

_ONE_ARRAY: Final = 3
"""Operands of a scatter into one array: it, indices and updates."""

_LOOPS: Final = frozenset({"while", "conditional"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCondition:
    """What a loop goes by: it goes on only while some lane needs it.

    Attributes:
        reduction: The `reduce` of the condition that combines all lanes: by `or` what they need to
            go on, or by `and` what they have when they are done.
        in_body: What the body has of the reduction's operand, or None.
        cone: That and all it is made from.
    """

    reduction: HloInstruction
    in_body: HloInstruction | None
    cone: frozenset[HloInstruction]

    @property
    def is_cheap(self) -> bool:
        """Whether the body finds out who is done without loops.

        Then other loops in the body, and what can be skipped, may leave out lanes that are done.
        """
        return bool(self.cone) and all(value.opcode not in _LOOPS for value in self.cone)

    @property
    def is_all(self) -> bool:
        """Whether lanes are done where the operand is true, rather than where it is false."""
        return is_all(self.reduction)


@final
@dataclass(frozen=True, slots=True)
class Unproven:
    """Why the lanes of a loop cannot stop one by one.

    Attributes:
        culprit: The instruction at fault.
        why: What it does, to be read behind its name and before "the dimension of size 8".
    """

    culprit: HloInstruction
    why: str


def prove(
    classes: DimensionClasses,
    loop: HloInstruction,
    reductions: Iterable[HloInstruction],
    lane_class: int,
) -> LaneCondition | Unproven:
    """Returns what lets the lanes of a loop stop one by one, or why they can't.

    Args:
        classes: The dimensions of all values of the region.
        loop: A `while` in normal form.
        reductions: The reductions its condition goes by that reduce the lanes.
        lane_class: The class of the lanes.
    """
    reduction, *others = reductions
    if others:
        return Unproven(others[0], "and another reduction both end the loop over it")
    result = _prove(_Proof(classes, loop, lane_class, settled={}), reduction)
    if isinstance(result, LaneCondition):
        return result
    settled = _find_settled(loop)
    return _prove(_Proof(classes, loop, lane_class, settled), reduction) if settled else result


def _prove(proof: _Proof, reduction: HloInstruction) -> LaneCondition | Unproven:
    try:
        unproven = proof.run(reduction)
    except (TooManyNodesError, RecursionError):
        unproven = Unproven(reduction, "goes by too much to tell when lanes are done along it")
    if unproven is not None:
        return unproven
    in_body = proof.find_in_body(reduction.operands[0])
    members = frozenset() if in_body is None else frozenset(cone(in_body))
    return LaneCondition(reduction=reduction, in_body=in_body, cone=members)


def _find_settled(loop: HloInstruction) -> dict[int, HloInstruction]:
    """Returns the elements that a loop never changes, with what they are around it.

    XLA takes `not done` out of a loop whose condition asks for it, too, and hands both on.
    """
    initial = loop.operands[0].operands
    return {
        index: value
        for index, value in enumerate(initial)
        if is_invariant(loop, index) and not has_places_by_use(value)
    }


@final
class _Proof:
    """The proof for one loop and one class of lanes."""

    def __init__(
        self,
        classes: DimensionClasses,
        loop: HloInstruction,
        lane_class: int,
        settled: Mapping[int, HloInstruction],
    ) -> None:
        self.classes = classes
        self.loop = loop
        self.lane_class = lane_class
        parameters = (loop.body.parameters[0], loop.condition.parameters[0])
        terms = Terms(classes)
        outside = Valuation(terms)
        known = {index: (outside, value) for index, value in settled.items()}
        self.values = Valuation(terms, parameters, settled=known)
        self.booleans = self.values.booleans
        bounds = IntegerBounds(i for i in classes.elements if i.opcode == "while")
        self.integers = IntegerComparison(self.values, bounds)

    def run(self, reduction: HloInstruction) -> Unproven | None:
        predicate = reduction.operands[0]
        if not self._has_own_dimensions(predicate):
            return Unproven(predicate, "pairs lanes with lanes along it")
        uniform = self._changing_uniform()
        read, needed = self._read_by(predicate), self._needed_afterwards()
        for index in sorted(uniform):
            if index in read:
                why = f"goes by element {index}, which changes for all lanes along it"
                return Unproven(reduction, why)
            if index in needed:
                why = "is needed after the loop, which lanes leave at different times along it"
                return Unproven(self.loop.body.root.operands[index], why)
        holds = self.values.function(predicate)
        done = holds if is_all(reduction) else self.booleans.negate(holds)
        kept = sorted((read | needed) - uniform)
        culprit = self._find_any_change(kept, done)
        if culprit is None:
            return None
        invariant = find_invariant(
            self.values, self.loop, predicate, self.lane_class, is_negated=is_all(reduction)
        )
        if self._find_any_change(kept, self.booleans.both(done, invariant)) is None:
            return None
        return Unproven(culprit, "may change lanes that are done along it")

    def _find_any_change(self, indices: Iterable[int], done: Node) -> HloInstruction | None:
        """Returns what changes one of some elements where lanes are done, or None."""
        roots = self.loop.body.root.operands
        culprits = (self._find_change(roots[index], index, done) for index in indices)
        return next((culprit for culprit in culprits if culprit is not None), None)

    def find_in_body(self, predicate: HloInstruction) -> HloInstruction | None:
        """Returns the instruction of the body that is the same function of the elements."""
        number = self.values.number(predicate)
        for instruction in self.loop.body.instructions:
            if (
                instruction.opcode == predicate.opcode
                and instruction.shape == predicate.shape
                and self.values.number(instruction) == number
            ):
                return instruction
        return None

    def _read_by(self, predicate: HloInstruction) -> set[int]:
        """Returns the elements that a value of the condition is made from."""
        parameter = self.loop.condition.parameters[0]
        return {v.tuple_index for v in cone(predicate) if parameter in v.operands}

    def _needed_afterwards(self) -> set[int]:
        """Returns the elements whose last values are used."""
        users = self.loop.users
        if any(user.opcode != "get-tuple-element" for user in users):
            return set(range(len(self.loop.shape.tuple_shapes)))
        return {user.tuple_index for user in users}

    def _changing_uniform(self) -> set[int]:
        """Returns the elements that change and are the same for all lanes."""
        return {
            index
            for index, nodes in enumerate(self.classes.elements[self.loop])
            if not is_invariant(self.loop, index)
            and all(self.classes.find(node) != self.lane_class for node in nodes)
        }

    def _has_own_dimensions(self, value: HloInstruction) -> bool:
        """Whether no two dimensions of a value stand for positions along the same one."""
        nodes = self.classes.nodes[value]
        sizes = value.shape.dimensions
        roots = [self.classes.find(n) for n, size in zip(nodes, sizes, strict=True) if size > 1]
        return len(roots) == len(set(roots))

    # Values.

    def _find_change(self, value: HloInstruction, index: int, done: Node) -> HloInstruction | None:
        """Returns what makes a value differ from an old element where lanes are done, or None."""
        if done == FALSE or self.values.is_element(value, index):
            return None
        if value.opcode == "reshape":
            return self._find_change(value.operands[0], index, done)
        if value.opcode in UPDATING_OPCODES and value.shape.is_array:
            return self._find_change_of_update(value, index, done)
        if not self._has_own_dimensions(value):
            return value
        if value.shape.element_type is PrimitiveType.PRED:
            old = self.values.element_function(index)
            differs = self.booleans.differ(self.values.function(value), old)
            return None if self.booleans.both(done, differs) == FALSE else value
        if value.opcode == "select":
            return self._find_change_of_select(value, index, done)
        if value.opcode in ("add", "subtract") and value.shape.element_type.is_integral:
            left, right = value.operands
            if self._is_zero(right, done):
                return self._find_change(left, index, done)
            if value.opcode == "add" and self._is_zero(left, done):
                return self._find_change(right, index, done)
        return value

    def _find_change_of_select(
        self, select: HloInstruction, index: int, done: Node
    ) -> HloInstruction | None:
        culprits = (self._find_change(v, index, d) for v, d in self._sides(select, done))
        return next((culprit for culprit in culprits if culprit is not None), None)

    def _find_change_of_update(
        self, update: HloInstruction, index: int, done: Node
    ) -> HloInstruction | None:
        """As above, where parts of an array are replaced.

        It stays as it is where a scatter's indices lie outside, and where what is written is what
        would be read there.
        """
        culprit = self._find_change(update.operands[0], index, done)
        if culprit is not None:
            return culprit
        if update.opcode == "scatter":
            where = indexed(update)
            if not where.starts:
                return update
            limit = max(where.sizes[d] - where.window_sizes[d] for d in where.starts)
            is_kept = self._is_outside(get_indices(update), limit, done) or self._are_old_windows(
                update.operands[-1], update, index, done
            )
            return None if is_kept else update
        return None if self._is_old_part(update.operands[1], update, index, done) else update

    def _is_outside(self, indices: HloInstruction, limit: int, done: Node) -> bool:
        """Whether indices are negative or above a limit in all lanes that are done."""
        if done == FALSE:
            return True
        match indices.opcode:
            case "constant":
                return bool(np.all((indices.literal < 0) | (indices.literal > limit)))
            case "broadcast" | "reshape":
                return self._is_outside(indices.operands[0], limit, done)
            case "select" if self._has_own_dimensions(indices):
                return all(
                    self._is_outside(side, limit, taken)
                    for side, taken in self._sides(indices, done)
                )
        return False

    def _is_old_part(
        self, part: HloInstruction, update: HloInstruction, index: int, done: Node
    ) -> bool:
        """Whether the part that an update writes is what is there in all lanes that are done."""
        if done == FALSE:
            return True
        if part.opcode == "select" and self._has_own_dimensions(part):
            return all(
                self._is_old_part(side, update, index, taken)
                for side, taken in self._sides(part, done)
            )
        starts = [
            [self.values.number(s) for s in i.operands[k:]] for i, k in ((part, 1), (update, 2))
        ]
        return (
            part.opcode == "dynamic-slice"
            and starts[0] == starts[1]
            and self._find_change(part.operands[0], index, done) is None
        )

    def _are_old_windows(
        self, windows: HloInstruction, scatter: HloInstruction, index: int, done: Node
    ) -> bool:
        """Whether a scatter writes what a gather would read, in all lanes that are done.

        Of windows that reach outside nothing is written, whatever a gather reads.
        """
        if done == FALSE:
            return True
        if len(scatter.operands) != _ONE_ARRAY or scatter.to_apply.root.opcode != "parameter":
            return False
        if windows.opcode == "select" and self._has_own_dimensions(windows):
            return all(
                self._are_old_windows(side, scatter, index, taken)
                for side, taken in self._sides(windows, done)
            )
        return (
            windows.opcode == "gather"
            and scatter.to_apply.root.parameter_number == 1
            and indexed(windows) == indexed(scatter)
            and self.integers.are_same(get_indices(windows), get_indices(scatter))
            and self._find_change(windows.operands[0], index, done) is None
        )

    def _sides(self, select: HloInstruction, done: Node) -> Iterator[tuple[HloInstruction, Node]]:
        """Yields what a select chooses between, each with the lanes that are done and choose it."""
        holds = self.values.operand_function(select, 0)
        for operand, side in zip(
            select.operands[1:], (holds, self.booleans.negate(holds)), strict=True
        ):
            yield operand, self.booleans.both(done, side)

    def _is_zero(self, value: HloInstruction, done: Node) -> bool:
        """Whether an integer is zero in all lanes that are done."""
        if done == FALSE:
            return True
        match value.opcode:
            case "constant":
                return not value.literal.any()
            case "broadcast" | "reshape":
                return self._is_zero(value.operands[0], done)
            case "convert" if value.operands[0].shape.element_type is PrimitiveType.PRED:
                return self.booleans.both(done, self.values.operand_function(value, 0)) == FALSE
            case "select" if self._has_own_dimensions(value):
                return all(self._is_zero(v, taken) for v, taken in self._sides(value, done))
        return False
