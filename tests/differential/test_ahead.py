"""Loops that call back in branches: XLA calls back, kernels take the steps in between."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import fuselane
from tests.differential.comparison import CLOSE, EXACT, Tolerance, assert_same_results
from tests.differential.harness import check, run_and_explain

STEPS: Final = 23
LANES: Final = 40


class Diary:
    """What a program has told the host, in the order in which it did."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def write(self, *values: Any) -> None:
        """Called back."""
        self.entries.append([np.asarray(value).tolist() for value in values])

    def take(self) -> list[Any]:
        """Returns the entries since it was taken last."""
        jax.effects_barrier()
        taken, self.entries = self.entries, []
        return taken


@pytest.fixture
def diary() -> Diary:
    return Diary()


def check_told(
    program: Any,
    diary: Diary,
    *arguments: Any,
    is_ahead: bool = True,
    tolerance: Tolerance = EXACT,
    in_order: bool = True,
) -> None:
    """Checks that a program gives the same results, and tells the host the same, with and without
    Fuselane; and whether its first loop runs ahead of that."""
    expected = jax.block_until_ready(jax.jit(program)(*arguments))
    told = diary.take()
    actual, report = run_and_explain(program, *arguments)
    assert_same_results(expected, actual, tolerance)
    again = diary.take()
    assert (again == told) if in_order else (sorted(again) == sorted(told))
    assert (report.loops[0].fused, "calls back" in report.loops[0].decision.sentence) == (
        (True, True) if is_ahead else (False, False)
    ), report


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).integers(-50, 50, shape).astype(np.int32)


def advance(x: jax.Array, i: Any) -> jax.Array:
    return x * 3 + i


@pytest.mark.parametrize("every", [2, 5, STEPS + 1])
@pytest.mark.parametrize("ordered", [True, False])
def test_every_so_often(every: int, ordered: bool, diary: Diary) -> None:
    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            def tell() -> None:
                jax.debug.callback(diary.write, i, x, ordered=ordered)

            lax.cond(i % every == every - 1, tell, lambda: None)
            return advance(x, i)

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES), in_order=ordered)


@pytest.mark.parametrize("every", [1, 4])
def test_what_is_stacked_and_read(every: int, diary: Diary) -> None:
    def program(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: Any) -> Any:
            lax.cond(
                row[0] == 0, lambda: jax.debug.callback(diary.write, x, ordered=True), lambda: None
            )
            x = advance(x, row[1])
            return x, (x[::2], row[0] + 1)

        return lax.scan(step, x, rows)

    rows = np.stack([np.arange(STEPS) % every, numbers(STEPS)], axis=1).astype(np.int32)
    check_told(program, diary, numbers(LANES), rows)


def test_effects_in_the_first_and_the_last_step(diary: Diary) -> None:
    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            for special in (0, STEPS - 1):
                lax.cond(
                    i == special,
                    lambda: io_callback(diary.write, None, i, x[:3], ordered=True),
                    lambda: None,
                )
            return advance(x, i)

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES))


def test_branches_within_branches(diary: Diary) -> None:
    """As progress bars have them; neither condition alone says whether the host is called."""

    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            def often(y: jax.Array) -> None:
                lax.cond(
                    y[0] + i > 17,
                    lambda y: jax.debug.callback(diary.write, i, y, ordered=True),
                    lambda _: None,
                    y * 2,
                )

            lax.cond(i > 2, often, lambda _: None, x % 7 + jnp.arange(LANES))
            return advance(x, i)

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES))


def test_one_of_many_branches(diary: Diary) -> None:
    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            def tell(kind: int) -> Any:
                return lambda: jax.debug.callback(diary.write, kind, i, ordered=True)

            lax.switch(i % 9 - 2, [tell(0), lambda: None, lambda: None, tell(3)])
            return advance(x, i)

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES))


def test_what_the_host_returns(diary: Diary) -> None:
    """The loop goes on with it; in all other steps with what it had."""

    def program(x: jax.Array) -> Any:
        def ask(x: jax.Array) -> jax.Array:
            def answer(x: Any) -> Any:
                diary.write(x)
                return (np.asarray(x) // 2).astype(np.int32)

            return jax.pure_callback(answer, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        def step(i: Any, x: jax.Array) -> jax.Array:
            return advance(lax.cond(i % 6 == 3, ask, lambda x: x + 1, x), i)

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES))


def test_a_loop_that_ends_when_it_likes(diary: Diary) -> None:
    """And whose lanes end one by one."""

    def program(x: jax.Array) -> Any:
        def one(x: jax.Array) -> Any:
            return lax.while_loop(lambda c: c[0] < 1000, lambda c: (c[0] * 2 + 1, c[1] + 1), (x, 0))

        def step(c: Any) -> Any:
            i, x, total = c
            lax.cond(i % 4 == 2, lambda: jax.debug.callback(diary.write, i, total), lambda: None)
            y, trips = jax.vmap(one)(x % 90 + 1)
            return i + 1, y, total + trips

        return lax.while_loop(lambda c: (c[0] < STEPS) & (c[2][0] < 50), step, (0, x, x * 0))

    check_told(program, diary, np.abs(numbers(LANES)), in_order=False)


def test_a_check_of_what_a_step_makes(diary: Diary) -> None:
    """All lanes are asked before the step is taken."""

    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            x = jnp.sin(x) * 1.5 + x * 0.4
            lax.cond(
                jnp.max(x) > 1.6,
                lambda: jax.debug.callback(diary.write, i, ordered=True),
                lambda: None,
            )
            return x

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES).astype(np.float32) / 50, tolerance=CLOSE)


def test_without_lanes(diary: Diary) -> None:
    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            lax.cond(
                i % 8 == 7, lambda: jax.debug.callback(diary.write, x, ordered=True), lambda: None
            )
            return x * 3 + i

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, np.int32(7))


@pytest.mark.parametrize("every", [1, 3])
def test_a_table_that_all_tiles_of_lanes_read(every: int, diary: Diary) -> None:
    """XLA changes it in place and a kernel, whose last tile must not see what the first makes of
    it, goes on; with a callback in each step, that is a kernel in XLA's loop."""

    def program(x: jax.Array) -> Any:
        def step(i: Any, state: Any) -> Any:
            x, table = state
            for _ in range(2):
                lax.cond(i % 3 == 2, lambda: jax.debug.callback(diary.write, i), lambda: None)
            if every == 1:
                jax.debug.callback(diary.write, i)

            def change(j: Any, state: Any) -> Any:
                x, table = state
                x = x * 3 + table[(x + j) % 7]
                return x, table.at[(i + j) % 7].set(i * 5 + j)

            return lax.fori_loop(0, 2, change, (x, table.at[i % 7].add(11)))

        return lax.fori_loop(0, STEPS, step, (x, jnp.arange(7)))

    x = np.abs(numbers(1000))
    expected = jax.block_until_ready(jax.jit(program)(x))
    told = sorted(diary.take())
    options = {"min_gain": 0.0, "tile_lanes": 8}
    actual, report = run_and_explain(program, x, options=options)
    assert_same_results(expected, actual, EXACT)
    assert sorted(diary.take()) == told
    assert any(loop.fused and loop.lanes == 1000 for loop in report.loops), report


@pytest.mark.for_cpus  # elsewhere JAX raises it again at every later barrier of the process
def test_an_error_of_the_host_is_raised() -> None:
    def program(x: jax.Array) -> Any:
        def fail(x: Any) -> Any:
            raise ValueError("no such luck")

        def step(i: Any, x: jax.Array) -> jax.Array:
            lax.cond(i == 11, lambda: io_callback(fail, None, x, ordered=True), lambda: None)
            return advance(x, i)

        return lax.fori_loop(0, STEPS, step, x)

    with fuselane.enabled(), pytest.raises(Exception, match="no such luck"):
        jax.block_until_ready(jax.jit(program)(numbers(LANES)))
        jax.effects_barrier()


def test_in_every_step_the_loop_stays(diary: Diary) -> None:
    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            jax.debug.callback(diary.write, i, ordered=True)
            return advance(x, i)

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES), is_ahead=False)


def test_a_result_of_two_quiet_branches_keeps_the_loop(diary: Diary) -> None:
    def program(x: jax.Array) -> Any:
        def tell(x: jax.Array) -> jax.Array:
            jax.debug.callback(diary.write, x, ordered=True)
            return x

        def step(i: Any, x: jax.Array) -> jax.Array:
            return lax.switch(i % 3, [tell, lambda x: x + 1, lambda x: x - 1], x)

        return lax.fori_loop(0, STEPS, step, x)

    check_told(program, diary, numbers(LANES), is_ahead=False)


def test_a_donated_argument(diary: Diary) -> None:
    def program(x: jax.Array) -> Any:
        def step(i: Any, x: jax.Array) -> jax.Array:
            lax.cond(i % 5 == 1, lambda: jax.debug.callback(diary.write, x), lambda: None)
            return advance(x, i)

        return lax.fori_loop(0, STEPS, step, x)

    x = jnp.asarray(numbers(LANES))
    expected = jax.jit(program)(x)
    told = diary.take()
    with fuselane.enabled():
        actual = jax.jit(program, donate_argnums=0)(jnp.copy(x))
    assert_same_results(expected, actual, EXACT)
    assert sorted(diary.take()) == sorted(told)


def test_loops_in_conditions() -> None:
    """Not only those of loops that run ahead may hold loops."""

    def settle(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda _, y: y * 5 // 3 + x, x)

    def program(x: jax.Array, limit: int) -> Any:
        def goes_on(c: Any) -> Any:
            return (c[0] < STEPS) & (jnp.max(settle(c[1])) < limit)

        return lax.while_loop(goes_on, lambda c: (c[0] + 1, advance(c[1], c[0])), (0, x))

    check(program, np.abs(numbers(LANES)) % 5, 500_000)
    check(program, np.abs(numbers(1)), 500_000)
