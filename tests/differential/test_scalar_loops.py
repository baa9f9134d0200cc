"""Loops without lanes: one scalar kernel instead of a thunk per instruction and step."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.backends import cpu
from tests.differential.comparison import CLOSE, CLOSE_DOUBLE, EXACT, Tolerance
from tests.differential.harness import Program, check, explain, linear_values, run_and_explain

KEY: Final = np.array([3, 7], np.uint32)
MIXES: Final[dict[str, Program]] = {
    "roll": lambda x, i: jnp.roll(x, 1) + i,
    "reverse": lambda x, i: x[::-1] + 1,
    "neighbours": lambda x, i: x.at[1:-1].set(x[2:] + x[:-2]),
    "total": lambda x, i: x - x.sum() // 7,
    "largest": lambda x, i: x - jnp.max(x) + i,
    "one_for_all": lambda x, i: x + x[3],
    "element_of_the_step": lambda x, i: x.at[i].add(x[i + 1]),
    "element_by_data": lambda x, i: x.at[jnp.abs(x[0]) % x.shape[0]].add(x[jnp.abs(x[1]) % 5]),
    "outside": lambda x, i: x.at[i * 1000].set(7, mode="drop") + x[i * 1000],
    "padded": lambda x, i: jnp.pad(x[:-2], (1, 1)) + i,
    "concatenated": lambda x, i: jnp.concatenate([x[5:], x[:5]]) * 3,
    "sorted": lambda x, i: jnp.sort(x ^ i),
    "prefix_sums": lambda x, i: jnp.cumsum(x),
}
"""What mixes all of an integer array in a step."""


@pytest.mark.parametrize("shape", [(40, 40), (127, 65), (64, 32)])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_neighbours_and_what_all_have_together(dtype: str, shape: tuple[int, int]) -> None:
    """XLA reduces such arrays in stages, which become one where their order does not matter."""

    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            padded = jnp.pad(x, 1)
            following = (padded[2:, 1:-1] + padded[:-2, 1:-1] + jnp.roll(x, 1, 1)) / 3
            following = following.astype(dtype)
            changed = following != x
            return following, (following.max(), following.min(), changed.sum(), changed.all())

        return lax.scan(step, x, None, 4)

    values = linear_values(shape, "int32") * 7919 % 251
    check(program, values.astype(dtype), tolerance=CLOSE)


@pytest.mark.parametrize("size", [8, 37, 300])
@pytest.mark.parametrize("name", MIXES)
def test_mixed_state(name: str, size: int) -> None:
    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (MIXES[name](x, i), x[:3]), x, jnp.arange(6))

    check(program, linear_values((size,), "int32"))


def test_scalar_recurrence() -> None:
    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, _: (x * 1664525 + 1013904223, x), x, length=1000)

    check(program, np.uint32(5))


def test_logistic_map_of_many_steps() -> None:
    """Chaotic only beyond 3.57: here errors are forgotten."""

    def program(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 10_000, lambda _, x: 3.2 * x * (1 - x), x)

    check(program, np.float32(0.3), tolerance=CLOSE)


@pytest.mark.parametrize("x64", [False, True])
def test_small_matrices(x64: bool) -> None:
    """jax issue 36799: a 3x3 state."""

    def step(m: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        m = m @ m / jnp.sqrt((m * m).sum()) + u
        return m, m[0]

    start = np.eye(3) * 0.5 + 0.1
    inputs = np.linspace(0, 0.1, 20)
    dtype = np.float64 if x64 else np.float32
    check(
        lambda m, us: lax.scan(step, m, us),
        start.astype(dtype),
        inputs.astype(dtype),
        tolerance=CLOSE_DOUBLE if x64 else CLOSE,
        x64=x64,
    )


@pytest.mark.parametrize("length", [2, 50])
def test_many_scalars_and_their_gradient(length: int) -> None:
    """jax issue 40150: a carry of many leaves, with its backward loop."""

    def total(leaves: list[jax.Array]) -> jax.Array:
        def step(s: list[jax.Array], _: None) -> tuple[list[jax.Array], jax.Array]:
            following = [0.9 * a + 0.1 * jnp.sin(b) for a, b in zip(s, s[1:] + s[:1], strict=True)]
            return following, following[0] * following[1]

        end, products = lax.scan(step, leaves, length=length)
        return sum(end[1:], end[0]) + products.sum()

    check(jax.value_and_grad(total), [np.float32(i / 7) for i in range(12)], tolerance=CLOSE)


def test_membrane_with_gates() -> None:
    """jax issue 26145: Hodgkin-Huxley, one compartment, in f64."""

    def rate(x: jax.Array, scale: float) -> jax.Array:
        return x / (1 - jnp.exp(-x / scale))

    def step(state: tuple[jax.Array, ...], current: jax.Array) -> tuple[Any, jax.Array]:
        v, m, h, n = state
        dv = current - 120 * m**3 * h * (v - 50) - 36 * n**4 * (v + 77) - 0.3 * (v + 54.4)
        dm = 0.1 * rate(v + 40.1, 10) * (1 - m) - 4 * jnp.exp(-(v + 65) / 18) * m
        dh = 0.07 * jnp.exp(-(v + 65) / 20) * (1 - h) - h / (1 + jnp.exp(-(v + 35) / 10))
        dn = 0.01 * rate(v + 55.1, 10) * (1 - n) - 0.125 * jnp.exp(-(v + 65) / 80) * n
        return (v + 0.01 * dv, m + 0.01 * dm, h + 0.01 * dh, n + 0.01 * dn), v

    start = tuple(np.float64(x) for x in (-65, 0.05, 0.6, 0.3))
    currents = np.full(200, 10.0)
    check(
        lambda s, c: lax.scan(step, s, c),
        start,
        currents,
        tolerance=Tolerance(ulp=8, relative=1e-10, absolute=1e-10),
        x64=True,
    )


def test_while_that_reads_a_table_until_data_says_stop() -> None:
    """jax issue 25190."""
    table = np.arange(5000, dtype=np.int32)

    def program(stop: jax.Array, table: jax.Array) -> Any:
        def step(carry: Any) -> Any:
            return jnp.maximum(carry[0], table[carry[1]]), carry[1] + 1

        return lax.while_loop(lambda carry: carry[0] < stop, step, (0, 0))

    for stop in (-1, 0, 1, 4711):
        check(program, np.int32(stop), table)


def test_condition_on_a_sum() -> None:
    def program(x: jax.Array) -> Any:
        return lax.while_loop(
            lambda s: jnp.sum(s[0]) < 1e5, lambda s: (jnp.abs(s[0]) * 2 + 1, s[1] + 1), (x, 0)
        )

    check(program, linear_values((9,)))


def test_random_walk() -> None:
    """A key, a scalar, normals: hundreds of instructions a step."""

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
        x, key = carry
        key, own = jax.random.split(key)
        return (0.9 * x + jax.random.normal(own), key), x

    check(lambda x, key: lax.scan(step, (x, key), length=50), np.float32(0), KEY, tolerance=CLOSE)


@pytest.mark.parametrize("reverse", [False, True])
def test_inputs_and_outputs_of_several_shapes(reverse: bool) -> None:
    def step(carry: Any, x: Any) -> Any:
        total, vector = carry
        number, row, flag = x
        total = total + jnp.where(flag, number, -number)
        vector = jnp.roll(vector, 1) + row
        return (total, vector), (total, vector, jnp.outer(vector, vector), vector.sum() > 0)

    inputs = (
        linear_values((13,), "int32"),
        linear_values((13, 3), "int32"),
        np.arange(13) % 3 == 0,
    )
    check(
        lambda c, xs: lax.scan(step, c, xs, reverse=reverse),
        (np.int32(0), linear_values((3,), "int32")),
        inputs,
    )


def test_table_learned_in_place() -> None:
    """Rows of an array are read, and written in place, at data-dependent places."""

    def step(carry: Any, _: None) -> Any:
        table, state = carry
        row = table[state]
        action = jnp.argmax(row)
        following = (state * 7 + action * 3 + 1) % 64
        target = state - following + table[following].max() // 2
        return (table.at[state, action].add(target - row[action]), following), action

    check(
        lambda t, s: lax.scan(step, (t, s), length=300),
        linear_values((64, 4), "int32"),
        np.int32(3),
        tolerance=EXACT,
    )


def test_memo_that_grows() -> None:
    """What a step reads, earlier steps have written: an array read and written in place."""

    def step(i: jax.Array, memo: jax.Array) -> jax.Array:
        return memo.at[i].set(memo[i - 1] + memo[i - 2] * 3)

    check(lambda memo: lax.fori_loop(2, 900, step, memo), np.ones(1000, np.uint32))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_few_steps(steps: int) -> None:
    def program(x: jax.Array, n: jax.Array) -> Any:
        return lax.fori_loop(0, n, lambda i, x: jnp.roll(x, 1) * 3 + i, x)

    check(program, linear_values((5,), "int32"), np.int32(steps))


def test_loops_in_loops() -> None:
    def inner(j: jax.Array, s: jax.Array) -> jax.Array:
        return s * 3 + jnp.roll(s, 1) * j

    def step(s: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        s = lax.fori_loop(0, 7, inner, s)
        s = lax.while_loop(lambda s: s.sum() % 5 != 0, lambda s: s + jnp.arange(3), s)
        return s, s.max()

    check(lambda s: lax.scan(step, s, jnp.arange(9)), linear_values((3,), "int32"))


def test_rare_work_is_a_branch() -> None:
    """A guard without lanes."""

    def step(carry: Any, i: jax.Array) -> Any:
        x, key = carry
        fresh = jax.random.normal(jax.random.fold_in(key, i), (3,))
        done = x[0] > 2
        return (jnp.where(done, fresh, jnp.roll(x, 1) + 0.3), key), x

    check(
        lambda x, key: lax.scan(step, (x, key), jnp.arange(40)),
        linear_values((3,)),
        KEY,
        tolerance=CLOSE,
    )


def test_state_that_is_the_argument_of_other_work() -> None:
    """The loop's initial value is needed afterwards: it must not be overwritten."""

    def program(x: jax.Array) -> Any:
        end = lax.fori_loop(0, 5, lambda i, y: jnp.roll(y, 1) + i, x)
        return end, x * 2, x

    check(program, linear_values((50,), "int32"))


def test_two_loops_one_after_the_other() -> None:
    def program(x: jax.Array) -> Any:
        first = lax.fori_loop(0, 5, lambda i, y: jnp.roll(y, 1) + i, x)
        second = lax.fori_loop(0, 5, lambda i, y: y[::-1] * 3 + i, first)
        return first, second

    check(program, linear_values((50,), "int32"))


@pytest.mark.for_cpus
def test_large_uniform_work_stays_with_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSELANE_MIN_GAIN")
    monkeypatch.setattr(cpu, "load_costs", lambda _: MachineCosts())

    def sorting(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, x: jax.Array) -> jax.Array:
            return lax.sort((x * 3 % 7 + i, x), num_keys=2)[1]

        return lax.fori_loop(0, 100, step, x)

    def product(x: jax.Array, a: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 100, lambda i, x: jnp.tanh(a @ x), x)

    for program, arguments in (
        (sorting, (linear_values((100_000,)),)),
        (product, (linear_values((1024,)), linear_values((1024, 1024)))),
    ):
        (loop, *_) = explain(program, *arguments).loops
        assert not loop.fused
        assert loop.decision.reason.code == "cross-lane"


@pytest.mark.for_cpus
@pytest.mark.parametrize("side", [64, 512])
def test_stencils_of_any_size_are_kernels(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSELANE_MIN_GAIN")
    monkeypatch.setattr(cpu, "load_costs", lambda _: MachineCosts())

    def stencil(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 100, lambda i, x: x + jnp.roll(x, 1, 0) + jnp.roll(x, 1, 1), x)

    (loop,) = explain(stencil, linear_values((side, side))).loops
    assert loop.fused and loop.lanes is None


def test_training_around_a_rollout() -> None:
    """A long loop with lanes inside a loop without: the one inside becomes the kernel."""

    def program(weight: jax.Array, start: jax.Array) -> Any:
        def loss(weight: jax.Array) -> jax.Array:
            end, _ = lax.scan(lambda x, _: (jnp.tanh(weight * x + 0.1), None), start, length=100)
            return jnp.mean((end - 0.5) ** 2)

        def train(weight: jax.Array, _: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, slope = jax.value_and_grad(loss)(weight)
            return weight - 0.1 * slope, value

        return lax.scan(train, weight, jnp.arange(4))

    arguments = np.float32(0.7), np.linspace(-1, 1, 2000).astype(np.float32)
    loops = check(program, *arguments, fused=None, tolerance=CLOSE).loops
    assert [loop.lanes for loop in loops if loop.fused] == [2000, 2000]


ROOTS: Final = (0.0, -0.0, 1.0, 2.0, 3e-39, 1.2e-38, 3.4e38, np.inf, -1.0, -np.inf, np.nan)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inverse_roots(dtype: str) -> None:
    """They are made of roots and quotients where there are no lanes."""

    def roots(values: jax.Array) -> Any:
        def step(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            root = lax.rsqrt(x)
            return jnp.where(jnp.isfinite(root), total + root, total) * 0.5, root

        return lax.scan(step, values[0] * 0, values)

    others = [1.0061859, *np.random.default_rng(0).uniform(0.01, 100, 200)]
    values = np.concatenate([ROOTS, others]).astype(dtype)
    check(roots, values, tolerance=Tolerance(ulp=4), x64=True)
    with jax.enable_x64(True):
        (_, found), _ = run_and_explain(roots, values)
    exact = 1 / np.sqrt(values[len(ROOTS) :].astype(np.longdouble))
    units = np.spacing(exact.astype(dtype))
    assert np.all(np.abs(np.asarray(found)[len(ROOTS) :] - exact) <= 1.5 * units)
