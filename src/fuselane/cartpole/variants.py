"""Four ways to write the CartPole loop in JAX: the paper's programs, as a user would write them.

Source: D. Snider, R. Liang, "Operator Fusion in XLA: Analysis and Evaluation" (arXiv:2301.13062).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import jax
import jax.numpy as jnp
from jax import lax

from fuselane.cartpole import constants
from fuselane.cartpole.problem import Problem

Columns = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
Rollout = Callable[..., jax.Array]

UNROLL: Final = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to write the loop.

    Attributes:
        name: What the tables call it.
        description: What sets it apart, in a few words.
        make_rollout: From a number of steps to a new function to be jitted; it returns the final
            states, f32[4, envs].
        get_arguments: From a problem to that function's arguments.
    """

    name: str
    description: str
    make_rollout: Callable[[int], Rollout]
    get_arguments: Callable[[Problem], tuple[jax.Array, ...]]


def _advance(state: Columns, action: jax.Array) -> Columns:
    """One Euler step of the cart and its pole, each array f32[envs], actions s32[envs]."""
    position, velocity, angle, angular_velocity = state
    force = jnp.where(action == 1, constants.FORCE, -constants.FORCE)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    push = (force + constants.POLE_MOMENT * angular_velocity**2 * sine) / constants.TOTAL_MASS
    inertia = 4.0 / 3.0 - constants.POLE_MASS * cosine**2 / constants.TOTAL_MASS
    turn = (constants.GRAVITY * sine - cosine * push) / (constants.HALF_LENGTH * inertia)
    acceleration = push - constants.POLE_MOMENT * turn * cosine / constants.TOTAL_MASS
    return (
        position + constants.TIME_STEP * velocity,
        velocity + constants.TIME_STEP * acceleration,
        angle + constants.TIME_STEP * angular_velocity,
        angular_velocity + constants.TIME_STEP * turn,
    )


def _is_done(state: Columns) -> jax.Array:
    position, _, angle, _ = state
    return (jnp.abs(position) > constants.MAX_POSITION) | (jnp.abs(angle) > constants.MAX_ANGLE)


def _stacked_advance(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the next states, f32[4, envs], and which environments are done."""
    columns = _advance((state[0], state[1], state[2], state[3]), action)
    return jnp.stack(columns), _is_done(columns)


def make_naive(num_steps: int) -> Rollout:
    """Random numbers drawn inside the loop, state stacked into one array in every step."""

    def rollout(state: jax.Array, key: jax.Array) -> jax.Array:
        def step(
            carry: tuple[jax.Array, jax.Array], _: None
        ) -> tuple[tuple[jax.Array, jax.Array], None]:
            state, key = carry
            key, action_key, reset_key = jax.random.split(key, 3)
            action = jax.random.bernoulli(action_key, 0.5, state.shape[1:]).astype(jnp.int32)
            state, done = _stacked_advance(state, action)
            low, high = -constants.RESET_RANGE, constants.RESET_RANGE
            reset = jax.random.uniform(reset_key, state.shape, minval=low, maxval=high)
            return (jnp.where(done, reset, state), key), None

        (state, _), _ = lax.scan(step, (state, key), length=num_steps)
        return state

    return rollout


def make_concat(num_steps: int) -> Rollout:
    """Random numbers from a pool made beforehand, state stacked: the paper's baseline."""

    def rollout(state: jax.Array, actions: jax.Array, resets: jax.Array) -> jax.Array:
        def step(state: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            row = t % actions.shape[0]
            state, done = _stacked_advance(state, actions[row])
            return jnp.where(done, resets[row], state), None

        return lax.scan(step, state, jnp.arange(num_steps))[0]

    return rollout


def make_no_concat(num_steps: int, unroll: int = 1) -> Rollout:
    """As `make_concat`, but the state stays four arrays; optionally unrolled."""

    def rollout(state: jax.Array, actions: jax.Array, resets: jax.Array) -> jax.Array:
        columns = tuple(resets[:, i] for i in range(4))

        def step(state: Columns, t: jax.Array) -> tuple[Columns, None]:
            row = t % actions.shape[0]
            state = _advance(state, actions[row])
            done = _is_done(state)
            return tuple(  # type: ignore[return-value]
                jnp.where(done, column[row], value)
                for column, value in zip(columns, state, strict=True)
            ), None

        start = (state[0], state[1], state[2], state[3])
        return jnp.stack(lax.scan(step, start, jnp.arange(num_steps), unroll=unroll)[0])

    return rollout


def make_unrolled(num_steps: int) -> Rollout:
    """As `make_no_concat`, ten steps to an iteration."""
    return make_no_concat(num_steps, unroll=UNROLL)


def _get_key_arguments(problem: Problem) -> tuple[jax.Array, ...]:
    return problem.state, problem.key


def _get_pool_arguments(problem: Problem) -> tuple[jax.Array, ...]:
    return problem.state, problem.actions, problem.resets


BASELINE: Final = "concat"
PEER_VARIANT: Final = "no_concat"
VARIANTS: Final = {
    variant.name: variant
    for variant in (
        Variant(
            name="naive",
            description="random numbers drawn in the loop, state stacked",
            make_rollout=make_naive,
            get_arguments=_get_key_arguments,
        ),
        Variant(
            name=BASELINE,
            description="random numbers from a pool, state stacked (the paper's baseline)",
            make_rollout=make_concat,
            get_arguments=_get_pool_arguments,
        ),
        Variant(
            name=PEER_VARIANT,
            description="random numbers from a pool, state in four arrays",
            make_rollout=make_no_concat,
            get_arguments=_get_pool_arguments,
        ),
        Variant(
            name="unroll10",
            description="as no_concat, ten steps to an iteration",
            make_rollout=make_unrolled,
            get_arguments=_get_pool_arguments,
        ),
    )
}
