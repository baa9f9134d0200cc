"""The data a run of the CartPole case study starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import jax
import jax.numpy as jnp

from fuselane.cartpole.constants import RESET_RANGE

MAX_POOL_ROWS: Final = 1000
MAX_POOL_BYTES: Final = 256 << 20
POOL_BYTES_PER_ENV: Final = 5 * 4  # one action and four reset values


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One size of the case study and its data.

    The pool of random numbers is at most 1000 rows and 256 MB; step t uses row t modulo its size.

    Attributes:
        num_envs: Environments, which are the lanes.
        num_steps: Steps that each of them takes.
        state: f32[4, num_envs]: position, velocity, angle, angular velocity.
        key: The random key from which the naive variant draws inside its loop.
        actions: s32[rows, num_envs], 0 or 1.
        resets: f32[rows, 4, num_envs], the states that finished environments start over from.
    """

    num_envs: int
    num_steps: int
    state: jax.Array
    key: jax.Array
    actions: jax.Array
    resets: jax.Array

    @property
    def pool_rows(self) -> int:
        """Rows of the pool of random numbers."""
        return int(self.actions.shape[0])


def compute_pool_rows(num_envs: int) -> int:
    """Returns how many rows the pool of random numbers has for a number of environments."""
    return max(1, min(MAX_POOL_ROWS, MAX_POOL_BYTES // (POOL_BYTES_PER_ENV * num_envs)))


def make_problem(num_envs: int, num_steps: int, seed: int = 0) -> Problem:
    """Returns the case study's data for a size, the same for the same seed."""
    state_key, key, action_key, reset_key = jax.random.split(jax.random.key(seed), 4)
    rows = compute_pool_rows(num_envs)
    return Problem(
        num_envs=num_envs,
        num_steps=num_steps,
        state=_start_states(state_key, (4, num_envs)),
        key=key,
        actions=jax.random.bernoulli(action_key, 0.5, (rows, num_envs)).astype(jnp.int32),
        resets=_start_states(reset_key, (rows, 4, num_envs)),
    )


def _start_states(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.uniform(key, shape, minval=-RESET_RANGE, maxval=RESET_RANGE)
