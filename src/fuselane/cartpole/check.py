"""Whether two engines computed the same CartPole run.

A run is chaotic in one place: rounding decides on which side of a limit an environment falls, and
with it whether the environment is reset in this step or the next. So two right programs agree
closely for as long as no reset can happen, and in all but few environments after any number of
steps: a reset makes an environment forget how it got there, and environments that were reset at
different times meet again when they are reset together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from fuselane.cartpole.contender import Array, Contender

# Seven steps of a few roundings each, on states below 4 in magnitude.
EARLY_TOLERANCE: Final = 2e-5
# Between two resets an error grows by about a hundred; what is further off has gone its own way.
LANE_TOLERANCE: Final = 1e-3
# None of 2048 is usual after 10,000 steps, even for the peers; a wrong program has most apart.
MAX_SHARE_APART: Final = 0.01
MIN_ENVS_APART: Final = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far one engine's results are from plain XLA's.

    Attributes:
        early_max_abs_diff: Largest difference over all environments before any reset can happen.
        max_abs_diff: Largest difference over all environments at the end.
        num_envs_apart: Environments more than LANE_TOLERANCE off at the end.
        num_envs: All environments.
        is_fused: Whether the program ran with a kernel of Fuselane in it.
        refusal: Why not, if it was to, or "".
    """

    early_max_abs_diff: float
    max_abs_diff: float
    num_envs_apart: int
    num_envs: int
    is_fused: bool
    refusal: str

    @property
    def holds(self) -> bool:
        """Whether the differences are those that rounding explains."""
        allowed = max(MIN_ENVS_APART, MAX_SHARE_APART * self.num_envs)
        return self.early_max_abs_diff <= EARLY_TOLERANCE and self.num_envs_apart <= allowed


def compare(contender: Contender, reference: Contender) -> Agreement:
    """Compares the last runs of two contenders, and their early states.

    A NaN anywhere counts as an infinite difference.
    """
    off = _differences(contender.final_states(), reference.final_states())
    early = _differences(contender.early_states(), reference.early_states())
    return Agreement(
        early_max_abs_diff=float(early.max(initial=0.0)),
        max_abs_diff=float(off.max(initial=0.0)),
        num_envs_apart=int((off > LANE_TOLERANCE).sum()),
        num_envs=off.size,
        is_fused=contender.is_fused,
        refusal=contender.refusal,
    )


def _differences(actual: Array, expected: Array) -> Array:
    """Returns each environment's largest difference, f64[envs]."""
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    worst: Array = np.where(np.isnan(difference), np.inf, difference).max(axis=0)
    return worst
