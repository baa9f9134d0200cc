"""Rollouts of gymnax environments with auto-reset: the library's own code, unmodified."""

from __future__ import annotations

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import EXACT, Built, Program, Rule, Size, load

CATEGORY: Final = "gymnax"
Keys = jax.Array


def build_random_rollout(environment: str, size: Size) -> Built:
    """Random actions; a key for each step, split over the environments."""
    env, params = load("gymnax").make(environment)
    num_envs = size.lanes

    def rollout(key: Keys) -> Any:
        key, reset_key = jax.random.split(key)
        reset_keys = jax.random.split(reset_key, num_envs)
        _, start = jax.vmap(env.reset, in_axes=(0, None))(reset_keys, params)

        def step(carry: Any, _: None) -> Any:
            key, state, total, num_episodes = carry
            key, action_key, step_key = jax.random.split(key, 3)
            action_keys = jax.random.split(action_key, num_envs)
            actions = jax.vmap(env.action_space(params).sample)(action_keys)
            step_keys = jax.random.split(step_key, num_envs)
            _, state, reward, terminated, truncated, _ = jax.vmap(
                env.step, in_axes=(0, 0, 0, None)
            )(step_keys, state, actions, params)
            return (key, state, total + reward, num_episodes + (terminated | truncated)), None

        zeros = jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)
        (_, state, total, num_episodes), _ = jax.lax.scan(
            step, (key, start, *zeros), length=size.steps
        )
        return state, total, num_episodes

    return rollout, (jax.random.key(0),)


def build_trajectories(environment: str, size: Size) -> Built:
    """As in gymnax's introduction: a rollout of one environment, mapped over keys, that returns
    everything it saw."""
    env, params = load("gymnax").make(environment)

    def rollout(key: Keys) -> Any:
        key, reset_key = jax.random.split(key)
        observation, state = env.reset(reset_key, params)

        def step(carry: Any, _: None) -> Any:
            observation, state, key = carry
            key, action_key, step_key = jax.random.split(key, 3)
            action = env.action_space(params).sample(action_key)
            following, state, reward, terminated, truncated, _ = env.step(
                step_key, state, action, params
            )
            seen = (observation, action, reward, terminated | truncated)
            return (following, state, key), seen

        return jax.lax.scan(step, (observation, state, key), length=size.steps)[1]

    return jax.vmap(rollout), (jax.random.split(jax.random.key(1), size.lanes),)


def make_policy(key: Keys, sizes: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    """Returns weights and biases of a dense network."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) / jnp.sqrt(m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def apply_policy(policy: Any, observation: jax.Array) -> jax.Array:
    """Returns the logits: dense layers with tanh in between."""
    hidden = observation
    for weights, bias in policy[:-1]:
        hidden = jnp.tanh(hidden @ weights + bias)
    weights, bias = policy[-1]
    return hidden @ weights + bias


def build_policy_rollout(is_sampled: bool, size: Size) -> Built:
    """CartPole under a 4-64-64-2 network, the likeliest or a sampled action."""
    env, params = load("gymnax").make("CartPole-v1")
    num_envs = size.lanes

    def rollout(policy: Any, key: Keys) -> Any:
        key, reset_key = jax.random.split(key)
        reset_keys = jax.random.split(reset_key, num_envs)
        start = jax.vmap(env.reset, in_axes=(0, None))(reset_keys, params)

        def step(carry: Any, _: None) -> Any:
            key, observation, state, total = carry
            key, action_key, step_key = jax.random.split(key, 3)
            logits = apply_policy(policy, observation)
            if is_sampled:
                actions = jax.random.categorical(action_key, logits)
            else:
                actions = logits.argmax(axis=-1)
            step_keys = jax.random.split(step_key, num_envs)
            observation, state, reward, _, _, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                step_keys, state, actions, params
            )
            return (key, observation, state, total + reward), None

        start = (key, *start, jnp.zeros(num_envs))
        (_, observation, _, total), _ = jax.lax.scan(step, start, length=size.steps)
        return observation, total

    policy = make_policy(jax.random.key(2), (4, 64, 64, 2))
    return rollout, (policy, jax.random.key(3))


# A pole or car is reset a step earlier or later once in a while, see docs/design/0002.
_RESETS: Final = Rule(relative=1e-3, share_apart=0.01, early_steps=7)
_CLASSIC: Final = {
    "CartPole-v1": _RESETS,
    "Pendulum-v1": Rule(relative=1e-2, share_apart=0.02, early_steps=20),
    "Acrobot-v1": Rule(relative=1e-2, share_apart=0.05, early_steps=20),
    "MountainCar-v0": Rule(relative=1e-3, share_apart=0.01, early_steps=20),
    "MountainCarContinuous-v0": Rule(relative=1e-3, share_apart=0.01, early_steps=20),
    "Catch-bsuite": EXACT,
    "FourRooms-misc": EXACT,
}
_GAMES: Final = ("Breakout", "Asterix", "SpaceInvaders", "Freeway")


def _make(name: str, **settings: Any) -> Program:
    settings = {"full": Size(lanes=2048, steps=200), **settings}
    return Program(
        name=f"gymnax/{name}",
        category=CATEGORY,
        quick=Size(lanes=20, steps=8),
        requires=("gymnax",),
        **settings,
    )


PROGRAMS: Final = (
    *(
        _make(name, build=functools.partial(build_random_rollout, name), target=8.0, rule=rule)
        for name, rule in _CLASSIC.items()
    ),
    *(
        _make(
            f"{name}-MinAtar",
            build=functools.partial(build_random_rollout, f"{name}-MinAtar"),
            full=Size(lanes=2048, steps=50),
            target=4.0,
            rule=EXACT,
        )
        for name in _GAMES
    ),
    _make(
        "CartPole-v1 trajectories",
        build=functools.partial(build_trajectories, "CartPole-v1"),
        rule=_RESETS,
    ),
    _make(
        "CartPole-v1 policy",
        build=functools.partial(build_policy_rollout, False),
        target=3.0,
        rule=_RESETS,
    ),
    _make(
        "CartPole-v1 sampled policy",
        build=functools.partial(build_policy_rollout, True),
        target=3.0,
        rule=_RESETS,
    ),
)
