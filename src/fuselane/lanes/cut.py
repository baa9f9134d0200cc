"""The cut between a loop and what is done behind it with its results.

Values pass through it as results that the loop gets in addition: each is either the same for all
lanes, or the lanes' shares, which are put together on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from fuselane.analysis.refusal import refuse
from fuselane.analysis.while_loops import Affine, compute_trip_count, match_counter
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.elements import NewElement
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.program import Epilogue

_MANY: Final = 1 << 31
"""Steps of a loop that does not tell how many it has."""
_FIRST_INPUT: Final = 1 << 20
"""Parameter numbers of inputs, until it is known how many results come before them."""


@final
class Cut:
    """Both sides of the cut while they are being made.

    Attributes:
        loop: The region's loop.
        num_lanes: How many lanes it has.
        in_front, body, behind: Builders in front of the loop, in it, and behind it.
        added: The elements that the loop gets.
    """

    def __init__(self, normal: NormalLoop, num_lanes: int) -> None:
        self.loop = normal.loop
        self.num_lanes = num_lanes
        self.in_front = ComputationBuilder.extending(normal.region)
        self.body = ComputationBuilder.extending(self.loop.body)
        self.behind = ComputationBuilder("epilogue")
        self.added: list[NewElement] = []
        self._normal = normal
        self._combiners: list[str] = []
        self._inputs: list[HloInstruction] = []
        self._initial: dict[HloInstruction, HloInstruction] = {}
        self._counter: HloInstruction | None = None

    def trip_count(self, value: HloInstruction) -> int:
        """Returns how often the loop runs, for the sake of a value wanted in all its steps.

        Raises:
            UnsupportedError: CROSS_LANE if that isn't known, or never.
        """
        count = compute_trip_count(self.loop)
        if not count:
            raise refuse_mixing(value, "is wanted in a number of steps that is not known")
        return count

    # Through the cut.

    def pass_on(
        self,
        shape: Shape,
        combiner: str,
        initial: HloInstruction,
        update: Callable[[HloInstruction], HloInstruction],
    ) -> HloInstruction:
        """Adds an element to the loop and returns, behind it, what its lanes make together.

        Args:
            shape: Of one lane's share.
            combiner: The opcode that combines two shares; "" if all lanes have the same value.
            initial: The element's initial value; with shares, lanes come first.
            update: Returns its next value.
        """
        self.added.append(NewElement(initial=initial, update=update))
        self._combiners.append(combiner)
        return self.behind.parameter(len(self._combiners) - 1, shape, None)

    def record(self, value: HloInstruction, row: HloInstruction, combiner: str) -> HloInstruction:
        """Makes the loop write down a value in every step; returns all of them, `[steps, ...]`.

        Args:
            value: A value of the body.
            row: The lanes' shares of it, or, without a combiner, the value itself.
            combiner: The opcode that combines two shares, or "".
        """
        trips, sizes = self.trip_count(value), value.shape.dimensions
        front = (self.num_lanes,) if combiner else ()
        element = value.shape.element_type
        shares = self.body.reshape(row, (*front, 1, *sizes))
        counter = self._count_steps()

        def update(stack: HloInstruction) -> HloInstruction:
            assert self._counter is not None, "the counter is added before what it counts"
            zero = self.body.scalar(0, counter, self.loop)
            starts = [*(zero for _ in front), self._counter, *(zero for _ in sizes)]
            return self.body.dynamic_update_slice(stack, shares, starts, origin=value)

        whole = array_shape(element, (*front, trips, *sizes))
        initial = self.in_front.fill(0, whole, self.loop)
        return self.pass_on(array_shape(element, (trips, *sizes)), combiner, initial, update)

    def _count_steps(self) -> PrimitiveType:
        """Sees to it that an element counts the steps from 0 on; returns its type."""
        count = compute_trip_count(self.loop) or _MANY
        for user in self.loop.body.parameters[0].users:
            if self._counter is None and user.opcode == "get-tuple-element":
                is_scalar = not user.shape.dimensions
                if is_scalar and match_counter(self.loop, user.tuple_index, count) == Affine(1, 0):
                    self._counter = user
        if self._counter is not None:
            return self._counter.shape.element_type

        def update(value: HloInstruction) -> HloInstruction:
            self._counter = value
            one = self.body.scalar(1, PrimitiveType.S32, self.loop)
            return self.body.emit("add", value.shape, (value, one))

        initial = self.in_front.scalar(0, PrimitiveType.S32, self.loop)
        self.added.append(NewElement(initial=initial, update=update, is_result=False))
        return PrimitiveType.S32

    # Behind the loop.

    def initial(self, index: int) -> HloInstruction:
        """Returns, behind the loop, an element's initial value."""
        return self._behind(self.loop.operands[0].operands[index])

    def _behind(self, value: HloInstruction) -> HloInstruction:
        known = self._initial.get(value)
        if known is None:
            if value.opcode == "parameter":
                number = _FIRST_INPUT + len(self._inputs)
                known = self.behind.parameter(number, value.shape, value)
                self._inputs.append(self._normal.operands[value.parameter_number])
            else:
                operands = [self._behind(operand) for operand in value.operands]
                known = self.behind.computation.add(value.clone(operands))
            self._initial[value] = known
        return known

    def finish(self, indices: Sequence[int], results: Sequence[HloInstruction]) -> Epilogue:
        """Returns what is to be done behind the loop.

        Args:
            indices: Elements of the user's loop.
            results: What they are in the end.
        """
        computation = self.behind.finish(self.behind.make_tuple(results))
        for parameter in computation.parameters:
            if parameter.parameter_number >= _FIRST_INPUT:
                number = parameter.parameter_number - _FIRST_INPUT + len(self._combiners)
                parameter.parameter_number = number
        return Epilogue(
            computation=computation,
            combiners=tuple(self._combiners),
            inputs=tuple(self._inputs),
            output_indices=tuple(indices),
        )


def refuse_mixing(value: HloInstruction, what: str) -> UnsupportedError:
    """Returns the error for a reduction over lanes that cannot be taken out of its loop.

    Args:
        value: The culprit, which depends on the reduction.
        what: What happens to it.
    """
    detail = f"`{value.name}`, which comes from a reduction over them, {what}"
    return refuse(Reason.CROSS_LANE, value, detail=detail)
