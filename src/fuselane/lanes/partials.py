"""Taking reductions over lanes out of a loop.

Before, in a loop of 50 steps                      After
    %s = f32[] reduce(%x, %zero), dimensions={0}       %s = f32[2048] convert(%x)           a fold
    %e = f32[] get-tuple-element(%p), index=2          %e = f32[2048] get-tuple-element(%p)
    %f = f32[] add(%e, %s)          carried on         %f = f32[2048] add(%e, %s)      from 0 on
    %m = f32[] multiply(%s, %c)                        %m = f32[2048] multiply(%s, ..)
    %r = f32[] sqrt(%m)                                %b = f32[2048,50]
    %a = f32[50] dynamic-update-slice(.., %r, %i)        dynamic-update-slice(.., %m, .., %i)

                                                   behind it, from sums over the lanes of %f and %b
                                                       f32[] add(initial value, %f)
                                                       f32[50] sqrt(%b)

Reductions move outwards through what is linear, to the end of the loop or of the step; what is not
linear follows behind the loop, for all steps at once. The lanes then have nothing to do with each
other, and a kernel need only know that of some results not the lanes' shares are wanted but what
they make together.

Does not handle: recurrences of what leaves the steps, but for sums, products and extremes.
Numerics: floats are added up in another order; all else is bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from fuselane.analysis.leaving import LaneReduction, collect_followers, positions
from fuselane.analysis.while_loops import match_affine
from fuselane.hlo.combiners import COMBINERS, identity
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.builder import array_shape
from fuselane.lanes.cut import Cut, refuse_mixing
from fuselane.lanes.elements import change_elements, drop_unused_parameters
from fuselane.lanes.late import LateValues
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.picks import pick_bits
from fuselane.lanes.program import Epilogue
from fuselane.lanes.steps import StepValues


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialLoop:
    """A loop without reductions over lanes, and what is to be done behind it.

    Attributes:
        normal: The loop.
        folds: The instructions of its body from which on only what the lanes make together is
            wanted -> the opcode that combines two lanes.
        epilogue: What makes the user's results.
    """

    normal: NormalLoop
    folds: dict[HloInstruction, str]
    epilogue: Epilogue


def take_out_reductions(
    normal: NormalLoop, leaving: Sequence[LaneReduction], num_lanes: int
) -> PartialLoop:
    """Takes reductions over lanes out of a loop, whose region is changed in place.

    Raises:
        UnsupportedError: CROSS_LANE if one of their results is needed in a later step, or in a way
            that is not known here.
    """
    return _TakingOut(normal, leaving, num_lanes).run()


class _Term(NamedTuple):
    """What is combined with an element in a step; subtracted from it if `is_negated`."""

    value: HloInstruction
    is_negated: bool = False


@final
class _TakingOut:
    """One run of `take_out_reductions`."""

    def __init__(
        self, normal: NormalLoop, leaving: Sequence[LaneReduction], num_lanes: int
    ) -> None:
        self.normal = normal
        self.cut = Cut(normal, num_lanes)
        self.root = self.cut.loop.body.root
        leaving = [pick_bits(self.cut.body, reduction) for reduction in leaving]
        self.late = LateValues(self.cut.body, leaving, num_lanes)
        roots = [reduction.reduction.root for reduction in leaving]
        self.followers = {*roots, *(collect_followers(self.cut.loop, roots) or ())}
        self.steps = StepValues(self.cut, self.late, self.followers)

    def run(self) -> PartialLoop:
        """Does it."""
        region, indices = self.normal.region, self.normal.element_indices
        removed = [i for i, value in enumerate(self.root.operands) if value in self.followers]
        wanted = {output.tuple_index for output in region.root.operands}
        results = {index: self._result(index) for index in removed if index in wanted}
        epilogue = self.cut.finish([indices[i] for i in results], list(results.values()))
        numbers = change_elements(region, removed, self.cut.added, self.cut.body)
        gone = {indices[index] for index in removed}
        outputs = [index for index in self.normal.output_indices if index not in gone]
        normal = replace(
            self.normal,
            element_indices=(*(indices[old] for old in numbers), *(-1 for _ in self.cut.added)),
            output_indices=(*outputs, *(-1 for _ in epilogue.combiners)),
            operands=drop_unused_parameters(region, self.normal.operands),
        )
        folds = {fold: how for fold, how in self.late.folds.items() if fold.computation}
        return PartialLoop(normal=normal, folds=folds, epilogue=epilogue)

    def _result(self, index: int) -> HloInstruction:
        """Returns, behind the loop, what an element is in the end."""
        value = self.root.operands[index]
        element = _find_element(self.cut.loop.body.parameters[0], index)
        if element is None:
            return self._last_step(value)
        if len(positions(self.root, value)) == 1:
            combiner, terms = _match_terms(value, element)
            if terms:
                return self._sum(index, combiner, terms)
            is_update = value.opcode == "dynamic-update-slice" and value.operands[0] is element
            if is_update and element.users == [value] and value.operands.count(element) == 1:
                return self._rows(index, value)
        raise refuse_mixing(value, "is needed again in later steps")

    # Sums over steps, and other combinations.

    def _sum(self, index: int, combiner: str, terms: Sequence[_Term]) -> HloInstruction:
        behind = self.cut.behind
        initial = self.cut.initial(index)
        if all(self.late.combiner(term.value) == combiner for term in terms):
            totals = [self._accumulated(combiner, terms, initial.shape)]
        else:
            totals = [self._sum_of_steps(combiner, term, initial.shape) for term in terms]
        result = initial
        for total in totals:
            result = behind.emit(combiner, initial.shape, (result, total), origin=terms[0].value)
        return result

    def _accumulated(self, combiner: str, terms: Sequence[_Term], shape: Shape) -> HloInstruction:
        """Returns what an element, carried by the lanes from now on, holds at the end."""
        cut = self.cut
        sizes = (cut.num_lanes, *shape.dimensions)
        shares = []
        for value, is_negated in terms:
            share = cut.body.reshape(self.late.share(value), sizes)
            if is_negated:
                share = cut.body.emit("negate", share.shape, (share,), origin=value)
            shares.append(share)

        def update(value: HloInstruction) -> HloInstruction:
            for share in shares:
                value = cut.body.emit(combiner, value.shape, (value, share), origin=share)
            return value

        element = shape.element_type
        whole = array_shape(element, sizes)
        start = cut.in_front.fill(identity(combiner, element), whole, cut.loop)
        return cut.pass_on(shape, combiner, start, update)

    def _sum_of_steps(self, combiner: str, term: _Term, shape: Shape) -> HloInstruction:
        """Returns what all steps add to an element, from what each of them adds."""
        behind = self.cut.behind
        total = behind.fold(combiner, self.steps.get(term.value), (0,), term.value)
        if term.is_negated:
            total = behind.emit("negate", total.shape, (total,), origin=term.value)
        return behind.reshape(total, shape.dimensions)

    # Rows, one a step, and the last step's.

    def _rows(self, index: int, update: HloInstruction) -> HloInstruction:
        """Returns an array of which each step writes a part, one behind the other."""
        behind, trips = self.cut.behind, self.cut.trip_count(update)
        sizes, window = update.shape.dimensions, update.operands[1].shape.dimensions
        rows = self.steps.get(update.operands[1])
        starts = []
        moving = None
        for dimension, size in enumerate(sizes):
            start = match_affine(update.operands[2 + dimension], self.cut.loop, trips)
            if window[dimension] == size:
                starts.append(0)
            elif start is not None and abs(start.slope) == window[dimension] and moving is None:
                moving = dimension
                starts.append(min(start.at(0), start.at(trips - 1)))
                if start.slope < 0:
                    rows = behind.emit("reverse", rows.shape, (rows,), (("dimensions", (0,)),))
            elif start is not None and start.slope == 0:
                starts.append(start.offset)
            else:
                raise refuse_mixing(update, "is written to places that are not known")
        if moving is None:
            raise refuse_mixing(update, "is written to one place again and again")
        order = (*range(1, moving + 1), 0, *range(moving + 1, len(sizes) + 1))
        whole = tuple(n * trips if d == moving else n for d, n in enumerate(window))
        rows = behind.reshape(behind.transpose(rows, order), whole)
        if whole == sizes:
            return rows
        ends = [start + size for start, size in zip(starts, whole, strict=True)]
        if min(starts) < 0 or any(end > size for end, size in zip(ends, sizes, strict=True)):
            raise refuse_mixing(update, "is written to places outside the array")
        initial = self.cut.initial(index)
        places = [behind.scalar(start, PrimitiveType.S32, self.cut.loop) for start in starts]
        return behind.dynamic_update_slice(initial, rows, places, origin=update)

    def _last_step(self, value: HloInstruction) -> HloInstruction:
        """Returns what a value is in the last step."""
        last = self.steps.get(value)
        trips, *rest = last.shape.dimensions
        ranges = ((trips - 1, trips, 1), *((0, size, 1) for size in rest))
        return self.cut.behind.reshape(self.cut.behind.slice(last, ranges), tuple(rest))


def find_late(loop: HloInstruction, folds: Collection[HloInstruction]) -> frozenset[HloInstruction]:
    """Returns what follows from folds in a loop's body, and what serves nothing else."""
    late = set(collect_followers(loop, folds) or ()) if folds else set[HloInstruction]()
    for instruction in reversed(loop.body.instructions):
        if instruction.users and instruction not in folds and late.issuperset(instruction.users):
            late.add(instruction)
    return frozenset(late)


def get_combiners(normal: NormalLoop, epilogue: Epilogue) -> dict[int, str]:
    """Returns the elements of the region's loop that an epilogue needs -> their combiners."""
    outputs = zip(normal.region.root.operands, normal.output_indices, strict=True)
    added = [output.tuple_index for output, index in outputs if index < 0]
    return dict(zip(added, epilogue.combiners, strict=True))


def _match_terms(value: HloInstruction, element: HloInstruction) -> tuple[str, list[_Term]]:
    """Returns how a step combines an element with others, and with which.

    Matches chains of one commutative operation in which the element stands once, and what comes of
    it serves nothing else; no terms for all other forms.
    """
    path = list(_path_up(element))
    if not path or path[-1] is not value:
        return "", []
    opcodes = {step.opcode for step in path} - {"reshape"}
    opcodes = {"add" if opcode == "subtract" else opcode for opcode in opcodes}
    combiner = opcodes.pop() if len(opcodes) == 1 else ""
    if combiner not in COMBINERS:
        return "", []
    terms: list[_Term] = []
    inner = element
    for step in path:
        if step.opcode == "subtract" and step.operands[1] is inner:
            return "", []
        if step.opcode != "reshape":
            terms.extend(
                _Term(o, step.opcode == "subtract") for o in step.operands if o is not inner
            )
        inner = step
    is_plain = len(terms) == sum(step.opcode != "reshape" for step in path)
    return (combiner, terms) if is_plain else ("", [])


def _path_up(value: HloInstruction) -> Iterator[HloInstruction]:
    """Yields the only user of a value, its only user, and so on, but for the root."""
    while len(value.users) == 1 and not value.users[0].is_root:
        (value,) = value.users
        yield value


def _find_element(parameter: HloInstruction, index: int) -> HloInstruction | None:
    for user in parameter.users:
        if user.opcode == "get-tuple-element" and user.tuple_index == index:
            return user
    return None
