"""Values of a loop's body in all its steps, computed behind the loop.

    %m = f32[] multiply(%s, %c)         %s a sum over lanes: linear, so written down by the loop
    %r = f32[] sqrt(%m)             ->  %r = f32[50] sqrt(%m), %m being f32[50]

What is not linear in the results of reductions over lanes can only be computed from the whole, when
all lanes have done their share.

Numerics: bitwise-equal, given equal values of what the loop writes down.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, final

from fuselane.analysis.while_loops import Affine, is_invariant, match_affine
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.batching import can_batch, emit_batched, lift
from fuselane.lanes.builder import array_shape
from fuselane.lanes.constants import is_constant, transplant
from fuselane.lanes.cut import Cut, refuse_mixing
from fuselane.lanes.late import LateValues

_SCALAR_OPERANDS: Final = frozenset({"pad", "reduce"})
"""Opcodes whose operands behind the first must be scalars, the same in all steps."""


@final
class StepValues:
    """What the values of a body are in all steps."""

    def __init__(self, cut: Cut, late: LateValues, followers: Collection[HloInstruction]) -> None:
        """Args: `followers` are the reductions over lanes and all that depends on them."""
        self._cut = cut
        self._late = late
        self._followers = followers
        self._known: dict[HloInstruction, HloInstruction] = {}

    def get(self, value: HloInstruction) -> HloInstruction:
        """Returns a value of the body in all steps, `[steps, ...]`, behind the loop.

        Raises:
            UnsupportedError: CROSS_LANE if it depends on what earlier steps made of reductions, or
                in a way that is not known here.
        """
        result = self._get(value)
        if result.shape.rank > value.shape.rank:
            return result
        size = self._cut.trip_count(value)
        return lift(self._cut.behind, result, value.shape.dimensions, size)

    def _get(self, value: HloInstruction) -> HloInstruction:
        """Returns the value in all steps; of its own shape where it never changes."""
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: HloInstruction) -> HloInstruction:
        combiner = self._late.combiner(value) if value in self._followers else None
        if combiner is not None:
            return self._cut.record(value, self._late.share(value), combiner)
        if is_constant(value) or value.opcode == "constant":
            return transplant(value, self._cut.behind)
        if self._is_invariant(value):
            return self._cut.initial(value.tuple_index)
        affine = self._match_affine(value)
        if affine is not None:
            return self._count(affine, value)
        if value not in self._followers and not self._is_known(value):
            return self._cut.record(value, value, "")
        if not can_batch(value):
            raise refuse_mixing(value, _describe(value))
        operands = [self._get(operand) for operand in value.operands]
        if value.opcode in _SCALAR_OPERANDS and any(o.shape.dimensions for o in operands[1:]):
            raise refuse_mixing(value, "needs other scalars in each step")
        return emit_batched(self._cut.behind, value, operands, self._cut.trip_count(value))

    def _is_known(self, value: HloInstruction) -> bool:
        """Whether a value follows from what is known behind the loop."""
        if is_constant(value) or value.opcode == "constant" or self._is_invariant(value):
            return True
        if self._match_affine(value) is not None:
            return True
        return can_batch(value) and all(map(self._is_known, value.operands))

    def _is_invariant(self, value: HloInstruction) -> bool:
        return value.opcode == "get-tuple-element" and is_invariant(
            self._cut.loop, value.tuple_index
        )

    def _match_affine(self, value: HloInstruction) -> Affine | None:
        if value in self._followers or value.shape.dimensions:
            return None
        return match_affine(value, self._cut.loop, self._cut.trip_count(value))

    def _count(self, affine: Affine, value: HloInstruction) -> HloInstruction:
        """Returns `offset + slope * iteration` for all iterations."""
        cut, builder = self._cut, self._cut.behind
        shape = array_shape(value.shape.element_type, (cut.trip_count(value),))
        result = builder.iota(shape, 0)
        for opcode, number in (("multiply", affine.slope), ("add", affine.offset)):
            result = builder.emit(opcode, shape, (result, builder.fill(number, shape, cut.loop)))
        return result


def _describe(value: HloInstruction) -> str:
    if value.opcode == "get-tuple-element":
        return "is needed again in later steps"
    return f"is what `{value.opcode}` makes of it"
