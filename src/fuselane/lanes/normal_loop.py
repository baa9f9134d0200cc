"""A loop in normal form, and how it hangs together with the user's module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from fuselane.analysis.while_loops import loop_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.transfer import clone_computation


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NormalLoop:
    """A loop in normal form and how it hangs together with the user's module.

    Attributes:
        region: The new computation; its root is the tuple of what is needed of the loop's result.
        site: The instruction of the user's module that the region can replace.
        operands: For each of the region's parameters the instruction of the user's module that
            supplies it, or a constant that no computation has.
        element_indices: For each element of the region's loop the tuple index of the user's
            `while`.
        output_indices: For each element of the root the tuple index of the user's `while`.
        invariants: Tuple indices whose value never changes -> the instruction that supplies it.
        iterations: How many iterations of the user's loop are one of the region's.
    """

    region: HloComputation
    site: HloInstruction
    operands: tuple[HloInstruction, ...]
    element_indices: tuple[int, ...]
    output_indices: tuple[int, ...]
    invariants: Mapping[int, HloInstruction]
    iterations: int = 1

    @property
    def loop(self) -> HloInstruction:
        """The region's only `while` that is in no other."""
        return loop_of(self.region)


@final
class Copies:
    """Copies of a normal form that may be changed: what is tried may fail halfway."""

    def __init__(self, normal: NormalLoop) -> None:
        self._normal = normal
        self._spare: list[NormalLoop] = []

    def get(self) -> NormalLoop:
        """Returns a copy."""
        if self._spare:
            return self._spare.pop()
        return replace(self._normal, region=clone_computation(self._normal.region))

    def put_back(self, copy: NormalLoop) -> None:
        """Takes back a copy that was only looked at."""
        self._spare.append(copy)
