"""Loops that go on while any lane needs it: `vmap` of `while_loop`, alone and in other loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE, EXACT, Tolerance, assert_same_results
from tests.differential.harness import check, linear_values, run_fused
from tests.differential.values import NumpyArray

SIZES: Final = (2, 16, 37, 100, 259)
Program = Callable[..., Any]


def collatz(x: jax.Array) -> Any:
    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, steps = carry
        return jnp.where(x % 2 == 0, x // 2, 3 * x + 1), steps + 1

    return lax.while_loop(lambda c: c[0] > 1, body, (x, jnp.int32(0)))


def numbers(shape: tuple[int, ...], seed: int = 0) -> NumpyArray:
    return np.random.default_rng(seed).integers(1, 1000, shape).astype(np.int32)


@pytest.mark.parametrize("lanes", SIZES)
def test_each_lane_stops_by_itself(lanes: int) -> None:
    check(jax.vmap(collatz), numbers((lanes,)))


LAYOUTS: Final = (
    {"vector_bits": 128},
    {"unroll": 1, "tile_lanes": 64},
    {"unroll": 4},
    {"threads": 1},
)


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_in_every_layout(options: dict[str, Any]) -> None:
    """Blocks leave the loop by themselves whatever was asked of the tiles."""
    start = numbers((259,))
    expected = jax.jit(jax.vmap(nested))(start % 45)
    assert_same_results(expected, run_fused(jax.vmap(nested), start % 45, options=options))


def descend(x: jax.Array) -> jax.Array:
    """Goes down Rosenbrock's valley, in steps that are halved until they are short enough."""

    def height(x: jax.Array) -> jax.Array:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        slope = jax.grad(height)(x)
        least = height(x) - 1e-4 * slope @ slope
        size = lax.while_loop(
            lambda t: (height(x - t * slope) > least) & (t > 1e-6), lambda t: t * 0.5, 1.0
        )
        return x - size * slope, None

    return lax.scan(step, x, length=3)[0]


def test_line_searches_stop_one_by_one() -> None:
    """What ends them is computed from slices, in the condition and again in the body."""
    start = linear_values((37, 5)) / np.float32(100)
    tolerance = Tolerance(relative=1e-3, absolute=1e-3)
    (loop, *_) = check(jax.vmap(descend), start, tolerance=tolerance).loops
    assert loop.lanes == 37


@pytest.mark.parametrize(
    "is_large",
    [
        lambda x, p: (x**2).sum() > jnp.exp(p),
        lambda x, p: jnp.abs(x).max() > 0.05 * p * p,
        lambda x, p: (x * jnp.minimum(jnp.arange(8.0), 3.0)).sum() > p,
        lambda x, p: (x**2).sum() > 0.1 * jnp.linalg.norm(jnp.sin(p * jnp.arange(1.0, 4.0))),
    ],
    ids=["exp", "product", "weights", "norm"],
)
def test_bounds_are_taken_out_of_the_body_alone(is_large: Callable[..., jax.Array]) -> None:
    """XLA computes what no step changes in front of all loops, but in conditions again."""

    def program(x: jax.Array, p: jax.Array) -> Any:
        def step(offset: jax.Array, _: None) -> Any:
            def shrink(carry: Any) -> Any:
                return carry[0] * 0.9 + 0.001, carry[1] + 1

            start = x + offset, jnp.int32(0)
            x_end, count = lax.while_loop(lambda c: is_large(c[0], p), shrink, start)
            return x_end.sum() * 0.01, count

        return lax.scan(step, 0.0, length=5)

    start = np.random.default_rng(0).uniform(0, 4, (37, 8)).astype(np.float32)
    bounds = np.linspace(1, 3, 37, dtype=np.float32)
    # Which sides of a bound a sum is on could hang on its rounding; none of these does.
    (loop,) = check(jax.vmap(program), start, bounds, tolerance=CLOSE).loops
    assert loop.lanes == 37
    assert loop.trip_count == 5


def test_number_of_steps() -> None:
    """Against Python: the test above would pass if both were wrong in the same way."""
    start = numbers((50,))
    _, steps = run_fused(jax.vmap(collatz), start)

    def count(n: int) -> int:
        steps = 0
        while n > 1:
            n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
        return steps

    np.testing.assert_array_equal(steps, [count(int(n)) for n in start])


def test_all_lanes_done_at_once() -> None:
    check(jax.vmap(collatz), np.full(37, 27, np.int32))


def test_no_lane_starts() -> None:
    check(jax.vmap(collatz), np.full(37, -5, np.int32))


@pytest.mark.parametrize("place", [0, 17, 36])
def test_one_lane_goes_on_longest(place: int) -> None:
    start = np.ones(37, np.int32)
    start[place] = 97
    check(jax.vmap(collatz), start)


def test_predicate_false_for_nan() -> None:
    def program(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: x < 100, lambda x: x * 2 + 1, x)

    values = np.array([1, np.nan, 3, np.inf, -np.inf, 99, 100, -0.0] * 5, np.float32)
    values[values == -np.inf] = 5
    check(jax.vmap(program), values)


def test_predicate_true_for_nan() -> None:
    """`not (x >= 100)` holds for NaN; a counter ends the loop."""

    def program(x: jax.Array) -> Any:
        def go(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
            return ~(carry[0] >= 100) & (carry[1] < 9)

        return lax.while_loop(go, lambda c: (c[0] * 2 + 1, c[1] + 1), (x, jnp.int32(0)))

    check(jax.vmap(program), np.array([1, np.nan, 3, np.inf, 99, 100, -0.0] * 3, np.float32))


@pytest.mark.parametrize(
    ("shape", "in_axes"), [((7, 5), (0, 0)), ((7, 5), (1, 0)), ((3, 64), (1, 1))]
)
def test_two_lane_dimensions(shape: tuple[int, int], in_axes: tuple[int, int]) -> None:
    program = jax.vmap(jax.vmap(collatz), in_axes=in_axes[0], out_axes=in_axes[1])
    check(program, numbers(shape))


@pytest.mark.parametrize("axis", [0, 1])
def test_arrays_per_lane(axis: int) -> None:
    def newton(x: jax.Array) -> Any:
        def go(c: Any) -> jax.Array:
            return jnp.any(jnp.abs(c[0] * c[0] - 2) > 1e-3) & (c[1] < 20)

        return lax.while_loop(go, lambda c: (0.5 * (c[0] + 2 / c[0]), c[1] + 1), (x, 0))

    values = np.abs(linear_values((37, 3) if axis == 0 else (3, 37))) + 1
    check(jax.vmap(newton, in_axes=axis, out_axes=(axis, 0)), values, tolerance=CLOSE)


def test_bounds_per_lane() -> None:
    def program(x: jax.Array, n: jax.Array) -> jax.Array:
        return lax.fori_loop(0, n, lambda i, y: y * 3 + i, x)

    check(jax.vmap(program), linear_values((37,), "int32"), np.arange(-3, 34, dtype=np.int32))


def nested(x: jax.Array) -> Any:
    def outer(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, total = carry
        inner = lax.while_loop(lambda y: y % 7 != 0, lambda y: y * 3 + 1, x)
        return x + inner % 5 + 1, total + inner

    return lax.while_loop(lambda c: c[0] < 40, outer, (x, jnp.int32(0)))


@pytest.mark.parametrize("lanes", [2, 37, 100])
def test_nested_two_deep(lanes: int) -> None:
    check(jax.vmap(nested), np.arange(lanes, dtype=np.int32) % 45)


def test_nested_three_deep() -> None:
    def program(x: jax.Array) -> Any:
        def outer(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, total = carry
            _, more = nested(x % 41)
            return x + 9, total + more

        return lax.while_loop(lambda c: c[0] < 100, outer, (x, jnp.int32(0)))

    check(jax.vmap(program), np.arange(37, dtype=np.int32) * 3)


@pytest.mark.parametrize("lanes", (16, 37))
def test_condition_of_what_the_loop_around_knows(lanes: int) -> None:
    """XLA takes what asks for invariants only out of the body, and leaves it in the condition."""

    def program(x: jax.Array, limit: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, k = carry
            is_late = k > limit

            def goes_on(inner: tuple[jax.Array, jax.Array]) -> jax.Array:
                return (inner[0] % 7 != 0) & ~inner[1] & ~is_late & (k < 20)

            def advance(inner: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                return inner[0] * 3 + 1, inner[1] | (inner[0] % 13 == 0)

            x, _ = lax.while_loop(goes_on, advance, (x + k, x > 900))
            return x, k + 1

        start = (x, jnp.int32(0))
        return lax.while_loop(lambda c: (c[1] < limit + 3) & (c[0] % 50 != 0), step, start)

    arguments = numbers((lanes,)), numbers((lanes,), seed=1) % 10
    assert check(jax.vmap(program), *arguments).loops[0].lanes == lanes


def test_a_lane_that_is_done_would_never_leave_the_inner_loop() -> None:
    """XLA runs the inner loop for all lanes too, so it has to end; with lanes left out it ends
    sooner, with the same results."""

    def program(x: jax.Array) -> Any:
        def outer(x: jax.Array) -> jax.Array:
            return x + lax.while_loop(lambda y: y < 1000, lambda y: y + 1, x) % 3 + 1

        return lax.while_loop(lambda x: x < 20, outer, x)

    check(jax.vmap(program), np.arange(37, dtype=np.int32) - 5)


def test_in_a_scan_with_streams() -> None:
    def program(start: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            y, steps = jax.vmap(collatz)(jnp.abs(x + row) % 50)
            return x + steps, (y, steps)

        return lax.scan(step, start, rows)

    check(program, numbers((37,)), numbers((6, 37), seed=1))


def test_known_loop_inside() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, n = carry
            return lax.fori_loop(0, 12, lambda i, y: y * 3 + i, x), n + 1

        return lax.while_loop(lambda c: (c[0] % 5 != 0) & (c[1] < 8), body, (x, jnp.int32(0)))

    check(jax.vmap(program), np.arange(100, dtype=np.int32))


def test_rare_work_inside() -> None:
    """What only some lanes need is skipped for blocks where no lane that goes on needs it."""

    def program(key: jax.Array, x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, key = carry
            key, sub = jax.random.split(key)
            return jnp.where(x % 4 == 0, x + jax.random.randint(sub, (), 1, 9), x + 1), key

        return lax.while_loop(lambda c: c[0] < 40, body, (x, key))[0]

    keys = np.asarray(jax.random.split(jax.random.PRNGKey(3), 37))
    check(jax.vmap(program), keys, np.arange(37, dtype=np.int32))


def test_condition_and_body_weigh_by_a_table() -> None:
    """Of integers counted up, which XLA takes out of the bodies, but not out of the conditions."""

    def distance(point: jax.Array, target: jax.Array) -> jax.Array:
        return ((point - target) ** 2 * jnp.arange(1, 5)).sum()

    def descend(target: jax.Array) -> Any:
        def step(carry: Any) -> Any:
            point, steps = carry
            slope, before = jax.grad(distance)(point, target), distance(point, target)

            def is_too_long(carry: Any) -> jax.Array:
                return (distance(carry[1], target) > before) & (carry[2] < 15)

            def halve(carry: Any) -> Any:
                size, _, tries = carry
                return size / 2, point - size / 2 * slope, tries + 1

            _, point, _ = lax.while_loop(is_too_long, halve, (1.0, point - slope, 0))
            return point, steps + 1

        start = jnp.zeros(4), 0
        return lax.while_loop(
            lambda carry: (distance(carry[0], target) > 1e-3) & (carry[1] < 30), step, start
        )

    targets = np.linspace(-3, 3, 4 * 60, dtype=np.float32).reshape(60, 4)
    report = check(jax.vmap(descend), targets, tolerance=CLOSE)
    assert [loop.lanes for loop in report.loops] == [60]


def test_rejection_sampling() -> None:
    def program(key: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            key, _, _ = carry
            key, sub = jax.random.split(key)
            point = jax.random.uniform(sub, (2,))
            return key, point, jnp.sum(point * point) < 0.3

        start = (key, jnp.zeros(2), jnp.bool_(False))
        return lax.while_loop(lambda c: ~c[2], body, start)[1]

    check(jax.vmap(program), np.asarray(jax.random.split(jax.random.PRNGKey(0), 100)))


@pytest.mark.parametrize("size", [5, 40])
def test_histories_per_lane(size: int) -> None:
    """Written at an index that differs from lane to lane, and read back."""

    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            x, n, seen = carry
            return x * 3 + seen[n // 2], n + 1, seen.at[n % size].set(x)

        start = (x, jnp.int32(0), jnp.zeros(size, jnp.int32))
        return lax.while_loop(lambda c: c[0] < 10_000, body, start)

    check(jax.vmap(program), np.arange(1, 101, dtype=np.int32) * 7)


def test_rows_at_an_index_all_lanes_share() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            x, rows, i = carry
            go = x < 1000
            row = lax.dynamic_slice(rows, (i, 0), (1, 37))
            row = jnp.where(go[None], x[None], row)
            return jnp.where(go, x * 2 + i, x), lax.dynamic_update_slice(rows, row, (i, 0)), i + 1

        start = (x, jnp.zeros((20, 37), jnp.int32), jnp.int32(0))
        return lax.while_loop(lambda c: jnp.any(c[0] < 1000), body, start)[:2]

    check(program, np.arange(1, 38, dtype=np.int32))


def test_written_by_hand_with_a_common_counter() -> None:
    def program(x: jax.Array) -> jax.Array:
        def go(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jnp.any(carry[0] < 50) & (carry[1] < 6)

        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, i = carry
            return jnp.where(x < 50, x * 2 + i, x), i + 1

        return lax.while_loop(go, body, (x, jnp.int32(0)))[0]

    check(program, np.arange(1, 101, dtype=np.int32))


def test_written_by_hand_with_flags() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            x, done, count = carry
            done = done | (x > 100)
            return jnp.where(done, x, x * 2 + 1), done, count + (~done).astype(jnp.int32)

        start = (x, jnp.zeros(x.shape, bool), jnp.zeros(x.shape, jnp.int32))
        return lax.while_loop(lambda c: ~jnp.all(c[1]), body, start)

    check(program, np.arange(37, dtype=np.int32))


def save_up_to(
    now: jax.Array, keep: jax.Array, times: jax.Array, index: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Fills in what is due, lane by lane: as in diffrax a flag says who goes on."""
    count = times.shape[0]

    def is_due(index: jax.Array) -> jax.Array:
        return keep & (times.at[index].get(mode="clip") <= now) & (index < count)

    def body(carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        flag, index, rows = carry

        def write(row: jax.Array, i: jax.Array, flag: jax.Array, value: jax.Array) -> jax.Array:
            there = row.at[i].get(mode="clip")
            return row.at[i].set(jnp.where(flag, value, there))

        rows = jax.vmap(write)(rows, index, flag, now * 10 + index)
        return flag & is_due(index + 1), jnp.where(flag, index + 1, index), rows

    start = (is_due(index), index, rows)
    _, index, rows = lax.while_loop(lambda c: jnp.any(is_due(c[1])), body, start)
    return index, rows


@pytest.mark.parametrize("lanes", [37, 1500])
def test_flags_that_imply_the_condition(lanes: int) -> None:
    """Lanes are done where nothing is due, which only their flag says in the body."""
    times = jnp.asarray(np.linspace(3, 90, 21), jnp.int32)

    def program(x: jax.Array) -> Any:
        def step(carry: Any, t: jax.Array) -> Any:
            now, index, rows = carry
            keep = (now ^ t) % 5 != 0
            later = now + 1 + (now * 7 + t) % 13
            index, rows = save_up_to(later, keep, times, index, rows)
            return (jnp.where(keep, later, now), index, rows), index

        start = (x % 5, jnp.zeros(lanes, jnp.int32), jnp.full((lanes, 21), -1, jnp.int32))
        return lax.scan(step, start, jnp.arange(12))

    check(program, numbers((lanes,)))


def test_flags_that_say_who_begins() -> None:
    """A lane whose result is no good begins with a code that ends it; optimistix does so."""
    lanes = 37

    def solve(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        good = x % 7 != 0

        def body(carry: Any) -> Any:
            flag, x, done, code, i = carry
            following = (x * 5 + 3) % 64
            bad = following == 11
            finished = bad | (following % 8 == 0)
            new = jnp.where(bad, 3, 0)
            return (
                flag & ~finished & (new == 0),
                jnp.where(flag, following, x),
                jnp.where(flag, finished, done),
                jnp.where(flag, new, code),
                i + 1,
            )

        code = jnp.where(good, x % 3, 1)
        start = (good & (code == 0), x, jnp.zeros(lanes, bool), code, jnp.int32(0))
        carry = lax.while_loop(lambda c: jnp.any(~c[2] & (c[3] == 0)) & (c[4] < 12), body, start)
        return carry[1], carry[3]

    def program(x: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> Any:
            x, code = solve(x + i)
            return x, code

        return lax.scan(step, x, jnp.arange(9))

    (loop,) = check(program, numbers((lanes,))).loops
    assert loop.lanes == lanes, loop.decision.sentence


def test_lanes_that_go_on_until_all_are_done() -> None:
    """What a lane has does depend on the others here: each loop runs for all or not at all."""

    def program(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: jnp.any(x < 50), lambda x: x * 2 + 1, x)

    check(program, np.arange(1, 38, dtype=np.int32), fused=None)


def test_steps_of_all_lanes_together() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, i = carry
            return jnp.where(x < 50, x * 2 + 1, x), i + 1

        return lax.while_loop(lambda c: jnp.any(c[0] < 50), body, (x, jnp.int32(0)))

    check(program, np.arange(1, 38, dtype=np.int32), fused=None)


def logistic(x: jax.Array) -> Any:
    def body(carry: Any) -> Any:
        x, n = carry
        return 3.7 * x * (1 - x), n + 1

    return lax.while_loop(lambda c: (jnp.abs(c[0] - 0.5) > 0.1) & (c[1] < 4), body, (x, 0))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", CLOSE), ("float16", CLOSE), ("float64", CLOSE)]
)
def test_types(dtype: str, tolerance: Tolerance) -> None:
    values = (np.arange(37) / 37).astype(dtype)
    tolerance = tolerance if dtype != "float16" else Tolerance(relative=1e-2, absolute=1e-2)
    check(jax.vmap(logistic), values, tolerance=tolerance, x64=True)


def test_many_lanes_on_several_threads() -> None:
    check(jax.vmap(collatz), numbers((20_011,)), tolerance=EXACT)


def julia(z: jax.Array) -> Any:
    def step(_: Any, carry: Any) -> Any:
        z, count = carry
        is_inside = z.real**2 + z.imag**2 < 4.0
        return jnp.where(is_inside, z * z + (-0.4 + 0.6j), z), count + is_inside

    return lax.fori_loop(0, 30, step, (z, jnp.zeros(z.shape, jnp.int32)))


def until_small(x: jax.Array) -> Any:
    def step(carry: Any, _: None) -> Any:
        x, is_large, steps = carry
        x = jnp.where(is_large, jnp.sin(x) * 0.9 + 0.01 * jnp.cos(x), x)
        return (x, is_large & (jnp.abs(x) > 0.1), jnp.where(is_large, steps + 1, steps)), None

    start = x, jnp.ones(x.shape, bool), jnp.zeros(x.shape, jnp.int32)
    return lax.scan(step, start, length=25)[0]


@pytest.mark.parametrize("lanes", [3, 259])
@pytest.mark.parametrize("program", [julia, until_small])
def test_loops_of_so_many_steps_end_once_lanes_are_frozen(
    program: Callable[[jax.Array], Any], lanes: int
) -> None:
    values = np.random.default_rng(0).normal(0, 1.2, (2, lanes)).astype(np.float32)
    values[0, 1] = 1e30 if program is julia else np.nan
    start = lax.complex(*values) if program is julia else values[0]
    check(program, start, tolerance=CLOSE)


def settle(ask: Program, size: int) -> Program:
    """Returns what damps the elements of a lane until all are small, a hundred times over."""

    def in_lane(x: jax.Array, start: jax.Array) -> Any:
        def inner(x: jax.Array) -> Any:
            def damp(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                return state[0] * 0.75 - 0.001, state[1] + 1

            bound = 0.05 + 0.01 * x
            initial = start[:size] * x, jnp.int32(0)
            return lax.while_loop(lambda state: ask(state[0] > bound), damp, initial)

        def step(x: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
            left, steps = inner(x)
            return jnp.mod(x + 0.125 * steps, 3) + 0.125, left.min()

        return lax.scan(step, x, None, length=100)

    return in_lane


@pytest.mark.parametrize("size", [4, 16, 33])
@pytest.mark.parametrize("ask", [jnp.any, lambda p: ~jnp.all(~p)], ids=["any", "all"])
def test_in_another_loop_it_may_go_by_many_elements_of_a_lane(ask: Program, size: int) -> None:
    """XLA asks whether any element of any lane is left; the body, whether one of a lane's is."""
    random = np.random.default_rng(0)
    x = random.uniform(0.25, 2.75, 131).astype(np.float32)
    start = random.uniform(size=(131, 33)).astype(np.float32)
    check(jax.vmap(settle(ask, size)), x, start, tolerance=CLOSE)


def test_what_it_goes_by_may_be_made_from_one_element() -> None:
    """Then the loop carries nothing that has the dimension along which it asks first."""

    def in_lane(x: jax.Array, limit: jax.Array) -> Any:
        def found(w: jax.Array) -> jax.Array:
            return jnp.any((jnp.arange(16) * w + limit) % 64 == 23) & (w < 500)

        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
            w = lax.while_loop(lambda w: found(w) | (w % 4 != i % 4), lambda w: w + 1, x)
            return w % 41, w

        return lax.scan(step, x, jnp.arange(60))

    x, limit = numbers((131,)) % 9, 20 + numbers((131,), 1) % 20
    check(jax.vmap(in_lane), x, limit)


def test_a_refusal_says_whether_a_loop_inside_waits_for_all_lanes() -> None:
    def program(x: jax.Array, y: jax.Array) -> jax.Array:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            return jnp.gcd(x + i, y) * 7 % 1000 + 1, None  # of whole arrays

        return lax.scan(step, x, jnp.arange(50))[0]

    report = check(
        program,
        numbers((512,)),
        numbers((512,), 1),
        refused="data-dependent-trip-count",
        options={"min_gain": 1.5},  # a kernel without lanes is slower than XLA
    )
    if report.loops:
        assert "How often a loop inside it runs" in report.loops[0].decision.sentence
