"""Other libraries' environments, physics, searches and filters: their own code, unmodified.

Compiled for half a minute each, so few of many; they are not among Fuselane's extras:

    pip install brax dynamax flowjax jaxmarl jaxopt mctx mujoco-mjx navix pgx tinygp xminigrid
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import EXACT, Built, Program, Rule, Size, load

CATEGORY: Final = "libraries"

_ACROBOT: Final = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body>
      <joint name="shoulder" type="hinge" axis="0 1 0"/>
      <geom type="capsule" size="0.02" fromto="0 0 0 0 0 0.5" contype="0" conaffinity="0"/>
      <body pos="0 0 0.5">
        <joint name="elbow" type="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0 0 0.5" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="elbow"/></actuator>
</mujoco>
"""


def _roll_out(
    reset: Callable[..., Any], act: Callable[..., Any], step: Callable[..., Any], size: Size
) -> Built:
    """Episodes of one environment, a lane each: `step` returns the state and what is seen."""

    def one(key: jax.Array) -> Any:
        key, reset_key = jax.random.split(key)

        def advance(carry: Any, _: None) -> Any:
            state, key = carry
            key, action_key, step_key = jax.random.split(key, 3)
            state, seen = step(step_key, state, act(action_key))
            return (state, key), seen

        return jax.lax.scan(advance, (reset(reset_key), key), length=size.steps)[1]

    return jax.vmap(one), (jax.random.split(jax.random.key(0), size.lanes),)


def build_navix(name: str, size: Size) -> Built:
    """Grid worlds; episodes begin anew by themselves."""
    env = load("navix").make(name)

    def act(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, env.action_space.n)

    def step(_: jax.Array, state: Any, action: jax.Array) -> Any:
        state = env.step(state, action)
        return state, (state.reward, state.step_type, state.observation.sum())

    return _roll_out(env.reset, act, step, size)


def build_xminigrid(name: str, size: Size) -> Built:
    """Grid worlds whose rooms are drawn anew for each episode."""
    env, params = load("xminigrid").make(name)
    env = load("xminigrid.wrappers").GymAutoResetWrapper(env)

    def act(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, env.num_actions(params))

    def step(_: jax.Array, state: Any, action: jax.Array) -> Any:
        state = env.step(params, state, action)
        return state, (state.reward, state.discount, state.observation.sum())

    return _roll_out(functools.partial(env.reset, params), act, step, size)


def build_jaxmarl(name: str, size: Size) -> Built:
    """Several agents in one environment."""
    env = load("jaxmarl").make(name)

    def act(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(env.agents))
        pairs = zip(env.agents, keys, strict=True)
        return {agent: env.action_space(agent).sample(key) for agent, key in pairs}

    def step(key: jax.Array, state: Any, actions: Any) -> Any:
        _, state, rewards, dones, _ = env.step(key, state, actions)
        return state, (rewards, dones)

    return _roll_out(lambda key: env.reset(key)[1], act, step, size)


def build_brax(name: str, size: Size) -> Built:
    """Rigid bodies, as brax's own training wraps them."""
    env = load("brax.envs").get_environment(name, backend="spring")
    env = load("brax.envs.wrappers.training").wrap(env, episode_length=30, action_repeat=1)

    def rollout(key: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            actions = jax.random.uniform(key, (size.lanes, env.action_size), minval=-1, maxval=1)
            state = env.step(state, actions)
            return state, (state.reward, state.done)

        start = env.reset(jax.random.split(key, size.lanes))
        return jax.lax.scan(step, start, jax.random.split(key, size.steps))[1]

    return rollout, (jax.random.PRNGKey(1),)


def build_mjx(size: Size) -> Built:
    """MuJoCo's two links, driven at the elbow."""
    mjx = load("mujoco.mjx")
    model = load("mujoco").MjModel.from_xml_string(_ACROBOT)
    model, data = mjx.put_model(model), mjx.make_data(model)

    def one(angles: jax.Array) -> jax.Array:
        def step(data: Any, _: None) -> Any:
            data = mjx.step(model, data.replace(ctrl=jnp.sin(data.time)[None]))
            return data, data.qpos

        return jax.lax.scan(step, data.replace(qpos=angles), length=size.steps)[1]

    return jax.vmap(one), (jax.random.normal(jax.random.key(0), (size.lanes, 2)),)


def build_mctx(size: Size) -> Built:
    """A tree search by a model made up of sines, so many simulations deep."""
    mctx = load("mctx")
    num_actions = 4

    def model(_: Any, __: jax.Array, action: jax.Array, state: jax.Array) -> Any:
        state = state * 1664525 + action.astype(jnp.uint32) + 1013904223
        value = (state >> 8).astype(jnp.float32) / 2**24
        logits = jnp.sin(value[:, None] * 3 * jnp.arange(1, num_actions + 1))
        discount = jnp.full_like(value, 0.9)
        output = mctx.RecurrentFnOutput(
            reward=value, discount=discount, prior_logits=logits, value=jnp.cos(value * 5)
        )
        return output, state

    def search(key: jax.Array, states: jax.Array) -> Any:
        root = mctx.RootFnOutput(
            prior_logits=jnp.zeros((size.lanes, num_actions)),
            value=jnp.zeros(size.lanes),
            embedding=states,
        )
        found = mctx.muzero_policy(None, key, root, model, num_simulations=size.steps)
        return found.action, found.action_weights

    return search, (jax.random.key(0), jnp.arange(size.lanes, dtype=jnp.uint32) * 7919)


def build_connect_four(size: Size) -> Built:
    """Games of pgx, each move found by a tree search whose model is the game itself."""
    mctx = load("mctx")
    game = load("pgx").make("connect_four")
    move = jax.vmap(game.step)
    num_moves, num_actions = 8, 7

    def model(_: Any, key: jax.Array, action: jax.Array, state: Any) -> Any:
        player = state.current_player
        state = move(state, action)
        logits = jnp.where(
            state.legal_action_mask, jax.random.normal(key, (size.lanes, num_actions)), -1e9
        )
        output = mctx.RecurrentFnOutput(
            reward=jax.vmap(lambda rewards, player: rewards[player])(state.rewards, player),
            discount=jnp.where(state.terminated, 0.0, -1.0),
            prior_logits=logits,
            value=jnp.where(state.terminated, 0.0, jnp.tanh(logits[:, 0])),
        )
        return output, state

    def play(key: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            root = mctx.RootFnOutput(
                prior_logits=jnp.zeros((size.lanes, num_actions)),
                value=jnp.zeros(size.lanes),
                embedding=state,
            )
            found = mctx.gumbel_muzero_policy(
                None,
                key,
                root,
                model,
                num_simulations=size.steps,
                invalid_actions=~state.legal_action_mask,
            )
            state = move(state, found.action)
            return state, (found.action, state.rewards, state.terminated)

        start = jax.vmap(game.init)(jax.random.split(key, size.lanes))
        return jax.lax.scan(step, start, jax.random.split(key, num_moves))[1]

    return play, (jax.random.key(0),)


def build_celerite(size: Size) -> Built:
    """tinygp's scalable likelihood of one series and its gradient, a set of parameters a lane."""
    tinygp = load("tinygp")
    times = jnp.sort(jax.random.uniform(jax.random.key(0), (size.steps,)) * 10)
    series = jnp.sin(times)

    def loss(params: jax.Array) -> jax.Array:
        params = jnp.exp(params)
        kernel = tinygp.kernels.quasisep.SHO(params[0], params[1], params[2])
        kernel += tinygp.kernels.quasisep.Matern32(params[3])
        found: jax.Array = tinygp.GaussianProcess(kernel, times, diag=0.1).log_probability(series)
        return -found

    params = jax.random.normal(jax.random.key(1), (size.lanes, 4)) * 0.3
    return jax.vmap(jax.value_and_grad(loss)), (params,)


def build_flow(size: Size) -> Built:
    """Samples of flowjax's autoregressive flow, made one dimension after the other."""
    flow = load("flowjax.flows").masked_autoregressive_flow(
        jax.random.key(0),
        base_dist=load("flowjax.distributions").Normal(jnp.zeros(size.steps)),
        flow_layers=4,
        nn_width=32,
    )
    return lambda key: flow.sample(key, (size.lanes,)), (jax.random.key(1),)


def build_kalman(size: Size) -> Built:
    """dynamax's filter and smoother of many series by one model."""
    module = load("dynamax.linear_gaussian_ssm")
    model = module.LinearGaussianSSM(3, 2)
    params, _ = model.initialize(jax.random.key(0))

    def one(series: jax.Array) -> Any:
        likelihood = model.marginal_log_prob(params, series)
        return likelihood, model.smoother(params, series).smoothed_means

    series = jax.random.normal(jax.random.key(1), (size.lanes, size.steps, 2))
    return jax.vmap(one), (series,)


def build_descent(size: Size) -> Built:
    """jaxopt's gradient descent with a line search, a problem per lane."""
    solver = load("jaxopt").GradientDescent

    def one(target: jax.Array) -> jax.Array:
        def loss(point: jax.Array) -> jax.Array:
            return jnp.sum((point - target) ** 2 * jnp.arange(1, 5))

        found: jax.Array = solver(loss, maxiter=size.steps).run(jnp.zeros(4)).params
        return found

    return jax.vmap(one), (jax.random.normal(jax.random.key(0), (size.lanes, 4)),)


def _make(name: str, lanes: int, steps: int, *requires: str, **settings: Any) -> Program:
    return Program(
        name=f"libraries/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=6, steps=4),
        requires=requires,
        **settings,
    )


def _grid_world(library: str, name: str, build: Callable[..., Built]) -> Program:
    build = functools.partial(build, name)
    return _make(f"{library} {name}", 512, 100, library, build=build, rule=EXACT)


PROGRAMS: Final = (
    _grid_world("navix", "Navix-Empty-5x5-v0", build_navix),
    _grid_world("navix", "Navix-DoorKey-8x8-v0", build_navix),
    _grid_world("navix", "Navix-LavaGapS5-v0", build_navix),
    _grid_world("xminigrid", "MiniGrid-FourRooms", build_xminigrid),
    _make(
        "jaxmarl MPE_simple_spread_v3",
        256,
        50,
        "jaxmarl",
        build=functools.partial(build_jaxmarl, "MPE_simple_spread_v3"),
        rule=Rule(relative=1e-3, share_apart=0.01),
    ),
    _make(
        "brax inverted_pendulum",
        64,
        50,
        "brax",
        build=functools.partial(build_brax, "inverted_pendulum"),
        rule=Rule(relative=1e-3),
    ),
    _make("mujoco-mjx acrobot", 256, 40, "mujoco", build=build_mjx, rule=Rule(relative=1e-3)),
    _make("mctx search", 128, 32, "mctx", build=build_mctx),
    _make("mctx connect four", 32, 16, "mctx", "pgx", build=build_connect_four),
    _make(
        "dynamax Kalman smoother", 64, 60, "dynamax", build=build_kalman, rule=Rule(relative=1e-3)
    ),
    _make("jaxopt descent", 256, 60, "jaxopt", build=build_descent, rule=Rule(relative=1e-4)),
    _make("tinygp celerite", 32, 200, "tinygp", build=build_celerite, rule=Rule(relative=1e-3)),
    _make("flowjax samples", 256, 4, "flowjax", build=build_flow, rule=Rule(relative=1e-3)),
)
