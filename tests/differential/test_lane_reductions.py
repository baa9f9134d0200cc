"""Reductions over lanes whose results only leave the loop: per step, over the run, at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from tests.differential.comparison import CLOSE_DOUBLE, CLOSE_HALF, Tolerance
from tests.differential.harness import IS_OFF, linear_values, run_and_explain, run_fused
from tests.differential.harness import check as check_results
from tests.differential.values import moderate, needs_x64, sample

SIZES: Final = (2, 29, 64, 1000, 2048)
"""Lanes: fewer than a vector, none that fill it, windows of 32 that fit and that don't."""

STEPS: Final = 7

SUMS: Final = Tolerance(ulp=8, relative=2e-5, absolute=2e-4)


def check(
    program: Callable[..., Any], *arguments: Any, has_lanes: bool | None = True, **how: Any
) -> None:
    """Checks a program, see `harness.check`, and that its loops ran over lanes, or did not."""
    num_before = len(fuselane.decisions().loops)
    check_results(program, *arguments, **how)
    for loop in fuselane.decisions().loops[num_before:]:
        assert has_lanes is None or (loop.lanes is not None) == has_lanes, loop


def values(lanes: int, dtype: str = "float32") -> Any:
    return (
        linear_values((lanes,), dtype) / np.asarray(7, dtype)
        if "float" in dtype
        else (linear_values((lanes,), dtype) * 7919 % 1013).astype(dtype)
    )


def stacked(reduction: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a program that stacks what a reduction makes of the lanes in each step."""

    def program(start: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            x = x * 3 + 1
            return x, reduction(x)

        return lax.scan(step, start, None, length=STEPS)

    return program


def accumulated(combine: Callable[..., Any], initial: Any) -> Callable[..., Any]:
    """Returns a program that combines what comes of the lanes over all steps."""

    def program(start: jax.Array) -> Any:
        def step(_: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            x, total = carry
            x = x * 3 + 1
            return x, combine(total, x)

        return lax.fori_loop(0, STEPS, step, (start, initial))

    return program


@pytest.mark.parametrize("lanes", SIZES)
def test_integer_sums_are_exact(lanes: int) -> None:
    check(stacked(jnp.sum), values(lanes, "int32"))


@pytest.mark.parametrize("combine", [lax.add, lax.max, lax.min])
@pytest.mark.parametrize("lanes", [2, 29])
def test_initial_values_that_change_the_result(combine: Callable[..., Any], lanes: int) -> None:
    """Lanes would have no share of them: those of any other dimension are asked for."""

    def reduction(x: jax.Array) -> jax.Array:
        low, high = (lax.reduce(x, np.int32(n), combine, (0,)) for n in (-(2**29), 2**29))
        return jnp.stack([low, high])

    check(stacked(reduction), values(lanes, "int32"), fused=None, has_lanes=None)


@pytest.mark.parametrize("lanes", SIZES)
def test_sums_and_extremes_of_floats(lanes: int) -> None:
    def several(x: jax.Array) -> dict[str, jax.Array]:
        return {"sum": x.sum(), "max": x.max(), "min": jnp.min(x * x), "any": (x > 9).any()}

    check(stacked(several), values(lanes) / 100, tolerance=SUMS)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_every_width(dtype: str) -> None:
    def program(rows: jax.Array) -> Any:
        def step(count: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            results = {"max": row.max(), "min": row.min(), "any": row.any(), "all": row.all()}
            if dtype != "bool":
                results |= {
                    "sum": row.sum(dtype=dtype),
                    "product": row.prod(dtype=dtype),
                    "and": lax.reduce(row, np.asarray(-1).astype(dtype), lax.bitwise_and, (0,)),
                    "or": lax.reduce(row, np.asarray(0, dtype), lax.bitwise_or, (0,)),
                }
            return count + 1, results

        return lax.scan(step, jnp.zeros(rows.shape[1], jnp.int32), rows)

    check(program, sample(dtype, (5, 77)), x64=needs_x64(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_of_every_width(dtype: str) -> None:
    tolerance = {"float32": SUMS, "float64": CLOSE_DOUBLE}.get(dtype, CLOSE_HALF)
    rows = (sample("int8", (5, 77)) / 64).astype(dtype)

    def program(rows: jax.Array) -> Any:
        def step(count: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            return count + 1, {"sum": row.sum(), "mean": row.mean(), "max": row.max()}

        return lax.scan(step, jnp.zeros(rows.shape[1], jnp.int32), rows)

    check(program, rows, x64=needs_x64(dtype), tolerance=tolerance)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
def test_special_values(special: float) -> None:
    """Extremes of NaN are NaN, sums of infinities are infinite, wherever they stand."""
    rows = values(6 * 45).reshape(6, 45)
    rows[1, 0], rows[2, 44], rows[3, 17], rows[4] = special, special, special, special

    def program(rows: jax.Array) -> Any:
        def step(count: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            return count + 1, {"max": row.max(), "min": row.min(), "sum": row.sum()}

        return lax.scan(step, jnp.zeros(rows.shape[1], jnp.int32), rows)

    check(program, rows, tolerance=Tolerance(relative=1e-5, absolute=1e-3))


def test_what_is_not_linear_follows_behind_the_loop() -> None:
    def statistics(x: jax.Array) -> dict[str, jax.Array]:
        x = x / 1000
        mean = x.mean()
        return {
            "deviation": jnp.sqrt(jnp.mean(x * x) - mean * mean),
            "log": jnp.log1p(jnp.abs(mean)),
            "ratio": x.max() / (1 + jnp.abs(x).sum()),
            "both": jnp.stack([mean, x.min()]),
            "flag": mean > x[0] * 0 + 1.5 if False else mean > 1.5,
            "rounded": jnp.round(x.sum()).astype(jnp.int32),
        }

    check(stacked(statistics), values(100), tolerance=Tolerance(relative=2e-4, absolute=2e-4))


@pytest.mark.parametrize("lanes", SIZES)
def test_accumulated(lanes: int) -> None:
    start = values(lanes, "int32")
    check(accumulated(lambda total, x: total + x.sum(), np.int32(5)), start)
    check(accumulated(lambda total, x: jnp.maximum(x.max(), total), np.int32(5)), start)
    check(accumulated(lambda total, x: total * (x | 1).prod(), np.int32(3)), start)


def test_several_are_added_at_once() -> None:
    def combine(total: jax.Array, x: jax.Array) -> jax.Array:
        first = jnp.zeros(3, x.dtype).at[0].set(x.sum())
        return total + first + jnp.pad(x.max()[None] * 0 + (x * x).sum()[None], (2, 0)) - x.sum()

    def linear(total: jax.Array, x: jax.Array) -> jax.Array:
        return total + jnp.pad(x.sum()[None], (0, 2)) - jnp.stack([x.sum(), (x * 2).sum(), x.sum()])

    start = values(77, "int32")
    check(accumulated(linear, np.arange(3, dtype=np.int32)), start)
    check(accumulated(combine, np.arange(3, dtype=np.int32)), start)


def test_accumulated_what_is_not_linear() -> None:
    def combine(total: jax.Array, x: jax.Array) -> jax.Array:
        return total + jnp.sqrt(jnp.mean(x * x))

    check(accumulated(combine, np.float32(2)), values(100) / 100, tolerance=SUMS)


def test_factors_that_change() -> None:
    """Discounted returns: each step's sum has a weight of its own."""

    def program(start: jax.Array, weights: jax.Array, scale: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], weight: jax.Array) -> Any:
            x, total = carry
            x = x * 0.9 + 0.1
            return (x, total + weight * x.sum() / scale), (x * weight).sum() * scale

        return lax.scan(step, (start, jnp.float32(1)), weights)

    weights = np.array([1, 0.5, 0, -3, 0.25], np.float32)
    check(program, values(70), weights, np.float32(4), tolerance=SUMS)
    check(program, values(70), weights, np.float32(0), tolerance=SUMS)


def test_step_numbers_and_recorded_values() -> None:
    def program(start: jax.Array, key: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], i: jax.Array) -> Any:
            x, key = carry
            key, once = jax.random.split(key)
            x = x * 3 + i
            number = jax.random.randint(once, (), 0, 100)
            return (x, key), x.sum() * (i + 1) + number

        return lax.scan(step, (start, key), jnp.arange(STEPS))

    check(program, values(70, "int32"), np.array([3, 4], np.uint32))


@pytest.mark.parametrize("reverse", [False, True])
def test_direction(reverse: bool) -> None:
    def program(rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return x + row, (x * row).sum()

        return lax.scan(step, rows[0], rows, reverse=reverse)

    check(program, linear_values((70, 29), "int32"))


def test_last_value_only() -> None:
    def program(start: jax.Array) -> Any:
        def step(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x = carry[0] * 3 + 1
            return x, x.sum() // 2

        return lax.fori_loop(0, STEPS, step, (start, jnp.int32(0)))

    check(program, values(29, "int32"))


def test_written_into_a_larger_array() -> None:
    def program(out: jax.Array, start: jax.Array) -> Any:
        def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> Any:
            results, x = carry
            x = x * 3 + 1
            row = x.sum()[None, None]
            return lax.dynamic_update_slice(results, row, (i + 2, jnp.int32(1))), x

        return lax.fori_loop(0, 6, body, (out, start))

    check(program, linear_values((9, 3), "int32"), values(29, "int32"))


def test_other_dimensions_are_reduced_too() -> None:
    def reductions(x: jax.Array) -> dict[str, jax.Array]:
        return {
            "all": x.sum(),
            "features": x.sum(0),
            "lanes_and_first": x.sum((0, 1)),
            "nested": x.sum(0).max(),
            "own": x.sum((1, 2)),
        }

    check(stacked(reductions), linear_values((40, 3, 5), "int32"))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lanes_at_every_place(axis: int) -> None:
    def program(start: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            x = x * 3 + 1
            return x, (x.sum(axis), x.max())

        return lax.scan(step, start, None, length=STEPS)

    shape = [3, 2]
    shape.insert(axis, 50)
    check(program, linear_values(shape, "int32"))


def test_two_dimensions_of_lanes() -> None:
    check(stacked(lambda x: (x.sum(), x.max())), linear_values((6, 50), "int32"))


def test_no_state_with_lanes() -> None:
    """Random numbers of all lanes are drawn and added up in each step; only the sum is carried."""

    def program(key: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
            key, total = carry
            key, once = jax.random.split(key)
            return (key, total + jax.random.randint(once, (300,), 0, 9).sum()), None

        return lax.scan(step, (key, jnp.int32(1)), None, length=9)[0]

    check(program, np.array([3, 4], np.uint32))


@pytest.mark.parametrize("steps", [1, 2])
def test_few_steps(steps: int) -> None:
    def program(start: jax.Array) -> Any:
        def step(carry: Any, _: jax.Array) -> Any:
            x, total = carry
            x = jnp.sin(x)
            return (x, total + x.sum()), x.mean()

        return lax.scan(step, (start, jnp.float32(0)), jnp.arange(steps))

    check(program, values(5000), fused=None, tolerance=SUMS)


def test_steps_known_only_at_run_time() -> None:
    def program(start: jax.Array, steps: jax.Array) -> Any:
        def body(_: Any, carry: tuple[jax.Array, jax.Array]) -> Any:
            x, total = carry
            return x * 3 + 1, total + x.sum()

        return lax.fori_loop(0, steps, body, (start, jnp.int32(0)))

    for steps in (0, 1, 9):
        check(program, values(100, "int32"), np.int32(steps))


def test_products_summed_over_lanes() -> None:
    def program(x: jax.Array, y: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
            x, total = carry
            x = x * 0.5 + 0.1
            return (x, total + x.T @ y), jnp.einsum("nk,n->k", x, y[:, 0])

        return lax.scan(step, (x, jnp.zeros((x.shape[1], y.shape[1]))), None, length=STEPS)

    check(program, values(90 * 3).reshape(90, 3), values(90 * 5).reshape(90, 5), tolerance=SUMS)


# Not taken out; where lanes meet in every step, one tile may hold them all.


def test_needed_by_later_lanes() -> None:
    def program(start: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x - x.mean(), None

        return lax.scan(step, start, None, length=400)[0]

    check(program, values(3000), fused=None, has_lanes=None, tolerance=SUMS)


def test_needed_by_later_steps() -> None:
    """A moving average of the sums is no sum of shares."""
    program = accumulated(lambda total, x: total * 0.9 + x.sum(), np.float32(0))
    check(program, values(100) / 100, fused=None, has_lanes=None, tolerance=SUMS)


def test_decides_when_to_stop() -> None:
    def program(start: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> Any:
            x, total = carry
            return x * 2, total + x.sum()

        return lax.while_loop(lambda carry: carry[1] < 1e6, body, (start, jnp.float32(0)))

    check(program, jnp.abs(values(1000)), fused=None, has_lanes=None, tolerance=SUMS)


# The same in every run.


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tile_lanes", [None, 16, 64, 4096])
def test_same_in_every_run(threads: int, tile_lanes: int | None) -> None:
    def program(start: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
            x, total = carry
            x = jnp.sin(x) * 1.1
            return (x, total + x.sum()), jnp.sqrt(jnp.mean(x * x))

        return lax.scan(step, (start, jnp.float32(3)), None, length=300)

    start = values(5000)
    options = {"threads": threads, "tile_lanes": tile_lanes}
    expected = jax.jit(program)(start)
    first, report = run_and_explain(program, start, options=options)
    assert IS_OFF or all(loop.fused for loop in report.loops)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(first), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
    for _ in range(5):
        again = run_fused(program, start, options=options)
        for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(one, other)


def test_lanes_stay_those_that_were_reduced() -> None:
    """The dot sums over 130, which is then the lanes, though 33 would do better behind it."""

    def program(start: jax.Array, rows: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], row: jax.Array) -> Any:
            x, total = carry
            matrices = jnp.broadcast_to(row[:, None, None], (33, 7, 130))
            dots = jnp.einsum("lij,lj->li", matrices, x)
            return (x, total + dots.max(0)), None

        return lax.scan(step, (start, jnp.zeros(7)), rows)

    check(program, linear_values((33, 130)) / 4096, linear_values((2, 33)), tolerance=SUMS)


def test_two_results_that_are_equal_have_memory_of_their_own() -> None:
    """XLA aborts the process where two results share a buffer, and changes both in a loop after."""

    def program(start: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            x = x * 3 + 1
            largest = x.max()
            return x, (largest, largest)

        _, (first, second) = lax.scan(step, start, None, length=STEPS)
        return first, second, lax.fori_loop(0, STEPS, lambda i, y: y.at[i].add(y[0] + i), second)

    check(program, values(29, "int32"), fused=None, has_lanes=None)


def test_sums_over_the_first_of_two_dimensions_in_parallel() -> None:
    """The two never become one, since the sums have only the other."""

    def program(x: jax.Array, total: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, None]:
            x, total = carry
            x = -x
            return (x, total + x.sum(0, dtype=x.dtype)), None

        return lax.scan(step, (x, total), length=4)[0]

    x = np.arange(6, dtype=np.int16).reshape(3, 2)
    check(program, x, np.zeros(2, np.int16))


PICKS: Final[dict[str, Callable[[jax.Array], Any]]] = {
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "some": lambda x: x[3:9],
    "with-stride": lambda x: x[2:20:5],
    "several": lambda x: {"two": x[:2], "one": x[7], "mean": x.mean()},
    "none": lambda x: x[5:5],
    "scaled": lambda x: jnp.sqrt(jnp.abs(x[0])) - x[1] * 2,
}


@pytest.mark.parametrize("name", PICKS)
@pytest.mark.parametrize("lanes", [2, 29])
def test_a_few_lanes_are_written_down(name: str, lanes: int) -> None:
    check(stacked(PICKS[name]), values(lanes) / 100, tolerance=SUMS)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64", "float64", "bfloat16"])
def test_lanes_of_every_type_are_written_down(dtype: str) -> None:
    def program(rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            x = x ^ row if dtype == "bool" else x * 3 + row
            return x, (x[4], x[2:5])

        return lax.scan(step, rows[0], rows)

    tolerance = {"float64": CLOSE_DOUBLE, "bfloat16": CLOSE_HALF}.get(dtype, SUMS)
    rows = moderate(dtype, (STEPS, 100))
    check(program, rows, x64=needs_x64(dtype), tolerance=tolerance)


def test_lanes_that_hold_more_are_written_down_in_part() -> None:
    """Slices of several dimensions, by fixed and by running starts."""

    def program(start: jax.Array) -> Any:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, Any]:
            x = x * 3 + 1
            parts = (x[0], x[2, 1:], x[:2, ::2], lax.dynamic_slice(x, (i, i), (1, 2)))
            return x, parts

        return lax.scan(step, start, jnp.arange(STEPS))

    check(program, linear_values((300, 4), "float32"))
    check(lambda x: program(x.T.reshape(4, 300).T), linear_values((300, 4), "float32"))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_which_lane_is_written_down_may_change_by_step(dtype: str) -> None:
    """Starts outside the array are moved into it."""

    def program(start: jax.Array, places: jax.Array) -> Any:
        def step(x: jax.Array, place: jax.Array) -> tuple[jax.Array, Any]:
            x = x * 3 + 1
            return x, (lax.dynamic_slice(x, (place,), (2,)), x[place])

        return lax.scan(step, start, places)

    places = np.asarray([0, 1, 63, 62, 99, 100, 5]).astype(dtype)
    check(program, values(64, "int32"), places, x64=needs_x64(dtype))
    check(program, values(64), -places.astype("int32"))


def test_infinite_and_undefined_lanes_do_not_spoil_the_one_written_down() -> None:
    start = np.asarray([1, np.inf, np.nan, -np.inf, 0, -0.0, 2, 3] * 8, np.float32)
    check(stacked(lambda x: (x[0], x[2:4], x[-1])), start)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_zeros_written_down_keep_their_sign(dtype: str) -> None:
    """Alone and in what is made of them, which sums of lanes' shares would lose."""

    def program(start: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            x = -x
            return x, (x[3], x[4:6], x[4] * 2, jnp.concatenate([x[2:3], x[:1]]))

        return lax.scan(step, start, None, length=STEPS)

    check(program, np.zeros(40, jnp.dtype(dtype)), x64=needs_x64(dtype))


def test_denormals_written_down_keep_their_bits() -> None:
    def program(start: jax.Array) -> Any:
        def step(bits: jax.Array, _: None) -> tuple[jax.Array, Any]:
            x = lax.bitcast_convert_type(bits ^ jnp.uint32(1 << 31), jnp.float32)
            return bits + 1, (x[3], lax.rev(x, (0,))[:2])

        return lax.scan(step, start, None, length=STEPS)

    start = np.arange(1, 41, dtype=np.uint32)
    expected, (actual, _) = jax.jit(program)(start), run_and_explain(program, start)
    for wanted, got in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        assert (
            np.asarray(wanted).view(np.uint32).tolist() == np.asarray(got).view(np.uint32).tolist()
        )


def test_a_lane_is_added_up_for_as_long_as_it_takes() -> None:
    """Sums need no array of all steps, of which there may be any number."""

    def program(start: jax.Array, last: jax.Array) -> Any:
        def body(carry: Any) -> Any:
            x, total, i = carry
            return x * 0.5 + 1, total - x[3], i + 1

        return lax.while_loop(lambda carry: carry[2] < last, body, (start, jnp.float32(0), 0))

    check(program, values(100), np.int32(9), tolerance=SUMS)


def test_the_last_value_of_a_lane_may_be_carried_out() -> None:
    check(accumulated(lambda total, x: total + x[3], jnp.float32(1)), values(500), tolerance=SUMS)
    check(accumulated(lambda _, x: x[3], jnp.float32(1)), values(500))


@pytest.mark.parametrize("name", ["state", "place"])
def test_lanes_that_look_at_one_of_them_are_mixed(name: str) -> None:
    """The one that is taken out has to be known to all, or which one depends on all."""

    def program(start: jax.Array) -> Any:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            if name == "state":
                return x * 3 + x[0], x[1]
            place = x.sum().astype(jnp.int32)
            return x * 3 + 1, lax.dynamic_index_in_dim(x, place, keepdims=False)

        return lax.scan(step, start, None, length=STEPS)

    check(program, values(64), fused=None, has_lanes=None, tolerance=SUMS)
