"""Whether a kernel is worth it: XLA's estimated time beside the kernel's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, final

from fuselane.analysis.refusal import refuse
from fuselane.decisions import Decision, LoopDecision, Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction

MIN_XLA_TIME_US: Final = 5.0
"""Loops that XLA finishes sooner are left to it: compiling a kernel would never pay."""

FEW_TRIPS: Final = 4
"""Iterations in which a kernel has to pay that is called in each step of a loop around it, and
costs that loop its function, if nobody knows how many they will be. As measured where 16 to 1,000
lanes go round a few times, 200 times over, in a function (jaxlib 0.12.0.1): what takes longer with
a kernel is told from what takes less."""


def check_duration(loop: HloInstruction, trip_count: int, xla_us: float) -> None:
    """Refuses a loop that XLA is done with before a kernel could pay, whatever it holds.

    Args:
        loop: A `while`.
        trip_count: How often it runs.
        xla_us: XLA's time for the whole loop.
    Raises:
        UnsupportedError: if it takes less than MIN_XLA_TIME_US.
    """
    if xla_us < MIN_XLA_TIME_US:
        detail = describe_time(xla_us, trip_count)
        raise refuse(Reason.NOT_PROFITABLE, loop, detail=detail, numbers={"xla_us": xla_us})


def is_over_soon(refused: LoopDecision) -> bool:
    """Whether a loop was left to XLA that it is done with before any kernel in it could pay."""
    xla_us = refused.decision.numbers.get("xla_us", math.inf)
    return refused.trip_count is not None and xla_us < MIN_XLA_TIME_US


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Estimated times of a loop, in microseconds.

    Attributes:
        trip_count: How often the loop runs; None if that is only known at run time.
        xla_step_us: XLA's time for one iteration.
        kernel_step_us: A kernel's time for one iteration.
        kernel_call_us: What a call of the kernel takes besides; left out if the trip count is not
            known.
        spilled: Values that a thread of the kernel has no registers for; 0 on a CPU, where that is
            a matter of time alone.
    """

    trip_count: int | None
    xla_step_us: float
    kernel_step_us: float
    kernel_call_us: float
    spilled: float = 0.0

    @property
    def xla_us(self) -> float:
        """XLA's time for the loop; for one iteration if the trip count is not known."""
        return self.xla_step_us * self._steps

    @property
    def kernel_us(self) -> float:
        """The kernel's time for the loop; for one iteration if the trip count is not known."""
        call = 0.0 if self.trip_count is None else self.kernel_call_us
        return self.kernel_step_us * self._steps + call

    @property
    def ratio(self) -> float:
        """How many times faster than XLA the kernel is."""
        return self.xla_us / max(self.kernel_us, 1e-9)

    @property
    def _steps(self) -> int:
        return 1 if self.trip_count is None else self.trip_count

    def is_worth(self, min_gain: float) -> bool:
        """Whether a loop is to be taken; with `min_gain` 0 every loop is."""
        if min_gain == 0:
            return True
        return self.ratio >= min_gain and not self._is_over_soon

    def numbers(self) -> dict[str, float]:
        """Returns the estimates by name, for a decision."""
        return {"xla_us": self.xla_us, "kernel_us": self.kernel_us, "gain": self.ratio}

    def refusal(self, loop: HloInstruction, obstacle: Decision | None) -> UnsupportedError:
        """Returns the error that leaves a loop to XLA.

        Args:
            loop: The loop.
            obstacle: What stands in the way of lanes, if it has none: that is then what the user
                should know.
        """
        if obstacle is not None:
            return UnsupportedError(replace(obstacle, numbers=self.numbers()))
        detail = self._describe()
        return refuse(Reason.NOT_PROFITABLE, loop, detail=detail, numbers=self.numbers())

    @property
    def _is_over_soon(self) -> bool:
        return self.trip_count is not None and self.xla_us < MIN_XLA_TIME_US

    def _describe(self) -> str:
        kernel = f"a kernel {_us(self.kernel_us)}"
        if self.spilled:
            kernel += f", as a thread has no registers for about {self.spilled:,.0f} values"
        if self.trip_count is None:
            return f"XLA takes about {_us(self.xla_us)} an iteration, {kernel}"
        time = describe_time(self.xla_us, self.trip_count)
        return time if self._is_over_soon else f"{time}, {kernel}"


def describe_time(xla_us: float, trip_count: int, how: str = "about") -> str:
    """Returns what a refusal says of XLA's time for all iterations of a loop."""
    return f"XLA takes {how} {_us(xla_us)} for all its {trip_count:,} iterations"


def _us(time: float) -> str:
    return f"{time:,.3g} microseconds" if time < 1000 else f"{time:,.0f} microseconds"
