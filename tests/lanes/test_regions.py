"""Real programs: the regions made from what XLA hands to the hook, run by XLA.

Each region must give the results of the whole program, integers bit for bit, and a change in the
input of one lane must leave the results of all others alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.fuzz.run import quick_options
from fuselane.lanes.form import form
from fuselane.lanes.program import ElementKind, LaneProgram
from tests.lanes.oracle import (
    Array,
    as_module,
    capture,
    compile_module,
    loops_of,
    region_inputs,
    users_results,
)

LANES: Final = 48
STEPS: Final = 40


@dataclass(frozen=True)
class Case:
    """A program that returns its loop's results in order.

    Attributes:
        function: The program.
        arguments: Its arguments, by seed.
        guards: Number of guards to be found.
        pieces: Number of clusters with two versions to be found.
        streams: Number of streams of the outer loop.
        exact: Whether XLA compiles program and region to the same operations on floats. Where a
            multiplication meets an addition it may fuse them in one and not in the other.
    """

    function: Callable[..., Any]
    arguments: Callable[[np.random.Generator], tuple[Any, ...]]
    guards: int = 0
    pieces: int = 0
    streams: int = 0
    exact: bool = False


def floats(*shape: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda random: (random.standard_normal(shape).astype(np.float32),)


def pole(
    state: tuple[jax.Array, ...], action: jax.Array
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """One step of a pole on a cart, and whether it fell."""
    x, v, angle, spin = state
    force = jnp.where(action == 1, 10.0, -10.0)
    push = (force + 0.05 * spin * spin * jnp.sin(angle)) / 1.1
    fall = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (
        0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1)
    )
    v2 = v + 0.02 * (push - 0.05 * fall * jnp.cos(angle) / 1.1)
    state = (x + 0.02 * v, v2, angle + 0.02 * spin, spin + 0.02 * fall)
    return state, (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.2)


def random_poles(state: jax.Array) -> Any:
    """Random actions and restarts, drawn inside the loop."""

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, None]:
        state, key = carry
        key, for_action, for_restart = jax.random.split(key, 3)
        action = jax.random.bernoulli(for_action, 0.5, (LANES,)).astype(jnp.int32)
        new, done = pole(tuple(state), action)
        fresh = jax.random.uniform(for_restart, (4, LANES), minval=-0.05, maxval=0.05)
        return (jnp.where(done, fresh, jnp.stack(new)), key), None

    (state, key), _ = lax.scan(step, (state, jax.random.key(0)), None, length=STEPS)
    return state, jax.random.key_data(key)


def vmapped_poles(state: jax.Array, actions: jax.Array) -> Any:
    """One environment, vmapped: state [N, 4], stacked observations."""

    def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, Any]:
        new, done = pole((state[0], state[1], state[2], state[3]), action)
        following = jnp.where(done, jnp.zeros(4), jnp.stack(new))
        return following, (jnp.stack(new), done)

    def roll(state: jax.Array, actions: jax.Array) -> Any:
        return lax.scan(step, state, actions)

    return jax.vmap(roll, in_axes=(0, 1), out_axes=(0, 1))(state, actions)


def advantages(rewards: jax.Array, values: jax.Array) -> Any:
    """A reverse scan with one stacked output."""

    def step(carry: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, value = inputs
        carry = reward - value + 0.9 * carry
        return carry, carry

    return lax.scan(step, jnp.ones(LANES), (rewards, values), reverse=True)


def nested(x: jax.Array) -> jax.Array:
    def outer(i: Any, x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 7, lambda j, y: jnp.sin(y) + j * 0.1, x * 0.5 + i)

    return lax.fori_loop(0, STEPS, outer, x)


def integers(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, STEPS, lambda i, x: jnp.where(x % 2 == 0, x // 2, 3 * x + 1) ^ i, x)


def softmaxes(x: jax.Array) -> jax.Array:
    def step(i: Any, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.sin(x) * 3, axis=-1)

    return lax.fori_loop(0, STEPS, step, x)


def ring(table: jax.Array, x: jax.Array) -> Any:
    """A large array that is read and written at moving places."""

    def step(i: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        table, x = carry
        x = jnp.maximum(x, table[(i + 7) % 100])
        return table.at[i % 100].set(-x), x

    return lax.fori_loop(0, 3 * STEPS, step, (table, x))


def normals(x: jax.Array, keys: jax.Array) -> Any:
    """Each lane with a key of its own."""

    def one(x: jax.Array, key: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            x, key = carry
            key, for_noise = jax.random.split(key)
            return (x * 0.5 + jax.random.normal(for_noise, (3,)), key), x

        (x, key), xs = lax.scan(step, (x, jax.random.wrap_key_data(key)), None, length=STEPS)
        return x, jax.random.key_data(key), xs

    return jax.vmap(one, out_axes=(0, 0, 1))(x, keys)


def keyed_normals(random: np.random.Generator) -> tuple[Any, ...]:
    keys = random.integers(0, 2**32, (LANES, 2), dtype=np.uint32)
    return random.standard_normal((LANES, 3)).astype(np.float32), keys


def unrolled(x: jax.Array, rows: jax.Array) -> Any:
    def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x) - row, x

    return lax.scan(step, x, rows, unroll=4)


def best(x: jax.Array) -> Any:
    """Argmax along a residual dimension: a reduce of two arrays at once."""

    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        index = jnp.argmax(x, axis=-1)
        return jnp.sin(x - jax.nn.one_hot(index, 5)), index

    return lax.scan(step, x, None, length=STEPS)


def whole_number_steps(x: jax.Array, n: jax.Array) -> jax.Array:
    return lax.fori_loop(0, n, lambda i, x: jnp.cos(x) * i, x)


CASES: Final[dict[str, Case]] = {
    "random_poles": Case(random_poles, floats(4, LANES), guards=1),
    "vmapped_poles": Case(
        vmapped_poles,
        lambda r: (
            (r.standard_normal((LANES, 4)) * 0.05).astype(np.float32),
            r.integers(0, 2, (STEPS, LANES), dtype=np.int32),
        ),
        streams=2,
    ),
    "advantages": Case(
        advantages,
        lambda r: (*floats(STEPS, LANES)(r), *floats(STEPS, LANES)(r)),
        streams=1,
    ),
    "nested": Case(nested, floats(LANES)),
    "integers": Case(
        integers, lambda r: (r.integers(-(2**30), 2**30, LANES, dtype=np.int32),), exact=True
    ),
    "softmaxes": Case(softmaxes, floats(LANES, 8)),
    "ring": Case(
        ring, lambda r: (*floats(100, LANES)(r), *floats(LANES)(r)), streams=1, exact=True
    ),
    "normals": Case(normals, keyed_normals, pieces=1, streams=1),
    "unrolled": Case(unrolled, lambda r: (*floats(LANES)(r), *floats(STEPS, LANES)(r)), streams=1),
    "best": Case(best, floats(LANES, 5), streams=1),
    "traced_bound": Case(whole_number_steps, lambda r: (*floats(LANES)(r), np.int32(9))),
}


@pytest.mark.parametrize("name", CASES)
def test_region(name: str) -> None:
    case = CASES[name]
    arguments = case.arguments(np.random.default_rng(0))
    module = capture(case.function, *arguments)
    program = form(module, loops_of(module)[0])
    check_shape(case, program)
    region = compile_module(as_module(program.region, module))
    results = users_results(program, region(region_inputs(program, arguments)))
    check_results(case, arguments, results)
    check_lanes(program, region)


def check_shape(case: Case, program: LaneProgram) -> None:
    assert program.num_lanes == LANES
    assert sum(map(len, program.guards.values())) == case.guards
    assert sum(map(len, program.pieces.values())) == case.pieces
    kinds = [element.kind for element in program.loop.elements]
    assert kinds.count(ElementKind.STREAM) == case.streams


def check_results(case: Case, arguments: tuple[Any, ...], results: list[Array]) -> None:
    compiled = jax.jit(case.function).lower(*arguments).compile(quick_options())
    expected = jax.tree.leaves(compiled(*arguments))
    for value, wanted in zip(results, expected, strict=True):
        if case.exact or not np.issubdtype(wanted.dtype, np.floating):
            np.testing.assert_array_equal(value.reshape(wanted.shape), wanted)
        else:
            shaped = value.reshape(wanted.shape)
            np.testing.assert_allclose(shaped, wanted, rtol=2e-4, atol=2e-5)


def check_lanes(program: LaneProgram, region: Callable[[list[Array]], list[Array]]) -> None:
    """Changes the inputs of one lane and looks for changes in the results of all others."""
    random, lane = np.random.default_rng(2), 17
    inputs, changed = [], []
    for parameter in program.inputs:
        dtype = parameter.shape.element_type.dtype
        value = random_input(random, parameter.shape.dimensions, dtype)
        dimension = program.lane_dimensions[parameter]
        inputs.append(value)
        changed.append(value if dimension is None else with_lane(random, value, dimension, lane))
    others = [k for k in range(LANES) if k != lane]
    for output, old, new in zip(program.outputs, region(inputs), region(changed), strict=True):
        dimension = program.lane_dimensions[output]
        if dimension is None:
            np.testing.assert_array_equal(old, new)
        else:
            old_others, new_others = (np.take(a, others, dimension) for a in (old, new))
            np.testing.assert_array_equal(old_others, new_others)


def random_input(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    if np.issubdtype(dtype, np.floating):
        return random.standard_normal(shape).astype(dtype)
    return np.asarray(random.integers(0, 9, shape)).astype(dtype)


def with_lane(random: np.random.Generator, array: Array, dimension: int, lane: int) -> Array:
    """Returns the array with other values in one lane."""
    result = array.copy()
    moved = np.moveaxis(result, dimension, 0)
    moved[lane] = random_input(random, moved[lane].shape, array.dtype)
    return result
