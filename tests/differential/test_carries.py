"""Loop carries of every kind: swapped, constant, unused, shared, uniform, of each dtype; and
numbers of lanes and trips."""

from __future__ import annotations

import itertools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from tests.differential.comparison import CLOSE, CLOSE_DOUBLE, CLOSE_HALF
from tests.differential.harness import check, linear_values
from tests.differential.values import DTYPES, moderate, needs_x64

LANES: Final = 27


def vector(seed: int = 0, lanes: int = LANES) -> Any:
    return (linear_values((lanes,), "int32") * 7919 + seed) % 1013


def test_swapped_each_step() -> None:
    """There is nothing to compute, so that fusing is up to Fuselane."""

    def program(a: jax.Array, b: jax.Array) -> Any:
        return lax.fori_loop(0, 5, lambda i, ab: (ab[1], ab[0]), (a, b))

    check(program, vector(1), vector(2), fused=None)


def test_rotated_and_changed() -> None:
    """Each carry takes another one's old value: no assignment may come too early."""

    def program(*values: jax.Array) -> Any:
        def body(i: jax.Array, abc: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            a, b, c, d = abc
            return b, c + a, a, d - b

        return lax.fori_loop(0, 7, body, values)

    check(program, *(vector(i) for i in range(4)))


def test_swapped_between_shapes() -> None:
    """Arrays of several values per lane swap places, in registers or in memory."""

    def program(a: jax.Array, b: jax.Array, count: jax.Array) -> Any:
        return lax.fori_loop(0, count, lambda i, ab: (ab[1][::-1], ab[0] + i), (a, b))

    check(program, linear_values((40, LANES)), -linear_values((40, LANES)), np.int32(5))


def test_fibonacci() -> None:
    def program(a: jax.Array, b: jax.Array) -> Any:
        return lax.scan(lambda ab, _: ((ab[1], ab[0] + ab[1]), ab[0]), (a, b), length=30)

    check(program, vector(1), vector(2))


def test_constant_and_unused() -> None:
    """Carries that never change, that nobody reads, and that are overwritten by constants."""

    def program(kept: jax.Array, unused: jax.Array, overwritten: jax.Array, x: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, ...], _: None) -> tuple[Any, jax.Array]:
            kept, unused, overwritten, x = carry
            return (kept, unused * 2, jnp.full_like(overwritten, 5), x + kept), overwritten

        return lax.scan(step, (kept, unused, overwritten, x), length=6)

    check(program, *(vector(i) for i in range(4)))


def test_constant_in_the_end() -> None:
    """Selected from itself, which XLA sees through unless there are transposes in the way: what
    never changes is handed on, wherever it starts."""

    def program(first: jax.Array, rows: jax.Array) -> Any:
        def body(carry: list[jax.Array], row: jax.Array) -> Any:
            return [lax.select((row != 0)[:, :2], c.T, c.T).T for c in carry], row * row

        return lax.scan(body, [first, jnp.full((2, 3), 7)], rows)

    check(program, vector(1, 6).reshape(2, 3), linear_values((3, 3, 9), "int32"))


def test_same_value_twice() -> None:
    """Two carries start from one array, two results are one value."""

    def program(x: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, Any]:
            a, b = carry
            total = a + b
            return (total, total), (total, total, a)

        return lax.scan(step, (x, x), length=5)

    check(program, vector())


def test_carries_that_start_from_constants() -> None:
    def program(x: jax.Array) -> Any:
        start = (
            jnp.zeros(LANES),
            jnp.full((3, LANES), -1, jnp.int32),
            jnp.arange(LANES),
            jnp.zeros(LANES, bool),
            np.linspace(0, 1, LANES, dtype=np.float32),
        )

        def step(carry: tuple[jax.Array, ...], _: None) -> tuple[Any, None]:
            zero, minus, numbers, flag, line = carry
            flag = flag ^ (numbers > x)
            return (zero + 1, minus * 2 + numbers, numbers + x, flag, line[::1] * 2), None

        return lax.scan(step, start, length=4)

    check(program, vector())


def test_lanes_that_appear_in_the_loop() -> None:
    """A carry starts as a splat constant and takes lane values later."""

    def program(x: jax.Array) -> Any:
        def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> Any:
            late, later = carry
            return late + x, jnp.where(i > 1, late, later)

        return lax.fori_loop(0, 5, body, (jnp.zeros(LANES, jnp.int32), jnp.ones(LANES, jnp.int32)))

    check(program, vector())


def test_uniform_recurrences() -> None:
    """Scalars and small vectors of several dtypes, carried beside the lanes and feeding them."""

    def program(x: jax.Array, weights: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, ...], _: None) -> tuple[Any, Any]:
            x, seed, weights, flag, level = carry
            seed = seed * jnp.uint32(1664525) + jnp.uint32(1013904223)
            weights = weights[::-1] + 1
            flag = ~flag
            level = jnp.where(flag, level * 0.5, level + 1)
            x = x + (seed >> 20).astype(jnp.int32) * weights[0] + jnp.where(flag, 3, 4)
            return (x, seed, weights, flag, level), (seed, level, x & 1)

        start = (x, jnp.uint32(1), weights, jnp.bool_(True), jnp.float32(3))
        return lax.scan(step, start, length=9)

    check(program, vector(), np.array([1, 5, 9], np.int32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    """A recurrence that needs the old value of two carries, in the arithmetic of each dtype."""

    def program(a: jax.Array, b: jax.Array) -> Any:
        def body(i: jax.Array, ab: tuple[jax.Array, jax.Array]) -> Any:
            a, b = ab
            if dtype == "bool":
                return b, a ^ b
            return b - a // 2 if "int" in dtype else b * 0.5 - a * 0.25, a + b

        return lax.fori_loop(0, 6, body, (a, b))

    tolerance = {"float64": CLOSE_DOUBLE, "float16": CLOSE_HALF, "bfloat16": CLOSE_HALF}
    check(
        program,
        moderate(dtype, (LANES,)),
        moderate(dtype, (LANES,), seed=1),
        tolerance=tolerance.get(dtype, CLOSE),
        x64=needs_x64(dtype),
    )


@pytest.mark.parametrize("lanes", [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 1000])
def test_number_of_lanes(lanes: int) -> None:
    """Fewer lanes than a vector has, no multiple of it, none at all; below two there is nothing to
    fuse."""

    def program(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
            return x * 3 + row, (x, (row > x).astype(jnp.int8))

        return lax.scan(step, x, rows)

    rows = linear_values((4, lanes), "int32")
    check(program, vector(lanes=lanes), rows, fused=True if lanes >= 2 else None)


@pytest.mark.parametrize("lanes", [0, 1, 2, 5, 13, 130])
def test_number_of_lanes_in_front(lanes: int) -> None:
    """[lanes, 3] state: the rows of a block that is not full must not run over the array's end."""

    def program(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return x[:, ::-1] * 3 + row, x[:, 1:]

        return lax.scan(step, x, rows)

    x, rows = linear_values((lanes, 3), "int32"), linear_values((70, lanes, 3), "int32")
    check(program, x, rows, fused=True if lanes >= 5 else None)


def test_number_of_lanes_beyond_one_tile() -> None:
    def program(x: jax.Array) -> Any:
        return lax.scan(lambda x, i: (x * 3 + i, (x & 1).astype(jnp.int8)), x, jnp.arange(4))

    check(program, vector(lanes=100_003))


@pytest.mark.parametrize("trips", [0, 1, 2, 3])
def test_number_of_trips(trips: int) -> None:
    """XLA removes loops of no or one trip itself."""

    def program(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return x * 3 + row, x

        return lax.scan(step, x, rows)

    rows = linear_values((trips, LANES), "int32")
    check(program, vector(), rows, fused=True if trips >= 2 else None)


def test_many_trips() -> None:
    def program(x: jax.Array, table: jax.Array) -> Any:
        return lax.fori_loop(0, 30_000, lambda i, y: y * 3 + table[i % 7], x)

    check(program, vector(), linear_values((7, LANES), "int32"))


@pytest.mark.parametrize("start", [0, -3, 7])
@pytest.mark.parametrize("step", [1, 3])
def test_induction_variables(start: int, step: int) -> None:
    """Loops that count up and down from other places than 0, by other steps than 1."""

    def program(x: jax.Array) -> Any:
        def up(carry: tuple[jax.Array, jax.Array]) -> Any:
            return carry[0] * 3 + carry[1], carry[1] + step

        def down(carry: tuple[jax.Array, jax.Array]) -> Any:
            return carry[0] * 5 + carry[1], carry[1] - step

        x, _ = lax.while_loop(lambda c: c[1] < start + 10, up, (x, jnp.int32(start)))
        x, last = lax.while_loop(lambda c: c[1] >= start - 9, down, (x, jnp.int32(start)))
        return x, last

    check(program, vector())


def test_counter_of_another_type() -> None:
    def program(x: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array]) -> Any:
            return carry[0] * 3 + carry[1].astype(jnp.int32), carry[1] + 1

        first = lax.while_loop(lambda c: c[1] != 200, body, (x, jnp.uint8(190)))
        # Wraps around: 250, ..., 255, 0, ..., 4.
        second = lax.while_loop(lambda c: c[1] != 5, body, (x, jnp.uint8(250)))
        return first, second

    check(program, vector())


def test_many_carries() -> None:
    """Sixty carries, more than any machine has registers."""

    def program(x: jax.Array) -> Any:
        def body(i: jax.Array, values: list[jax.Array]) -> list[jax.Array]:
            return [
                values[-1] + i,
                *(a ^ (b + 1) for a, b in itertools.pairwise(values)),
            ]

        return lax.fori_loop(0, 5, body, [x + i for i in range(60)])

    check(program, vector())


def test_mixed_dtypes_in_a_pytree() -> None:
    """Widths from 8 to 64 bits side by side, as dictionaries and tuples nested in each other."""

    def program(state: dict[str, Any]) -> Any:
        def step(s: dict[str, Any], _: None) -> tuple[Any, Any]:
            changed = {
                "position": s["position"] + s["velocity"].astype(jnp.float32) * 0.5,
                "velocity": s["velocity"] * 0.5 + s["small"].astype(jnp.float16),
                "small": s["small"] + jnp.int8(1),
                "nested": (s["nested"][0] ^ (s["position"] > 0), [s["nested"][1][0] * 3 - 1]),
            }
            return changed, {"sum": changed["position"].sum(-1), "flag": changed["nested"][0]}

        return lax.scan(step, state, length=5)

    state = {
        "position": linear_values((LANES, 2)),
        "velocity": (linear_values((LANES, 2)) % 8).astype(np.float16),
        "small": (linear_values((LANES, 2)) % 5).astype(np.int8),
        "nested": (
            linear_values((LANES, 2)) % 3 == 0,
            [linear_values((LANES,), "int64")],
        ),
    }
    check(program, state, x64=True)


@pytest.mark.parametrize("options", [{}, {"tile_lanes": 8, "unroll": 1}], ids=str)
def test_boards_that_are_reset_together(options: dict[str, Any]) -> None:
    """Results of one guard, all in memory, each of which would do where the others are."""

    def program(boards: tuple[jax.Array, ...], ages: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            (a, b, c), ages = state
            moved = (
                jnp.roll(a, 1, axis=1) + 1,
                jnp.roll(b, 2, axis=1) - c,
                c + jnp.roll(b, 3, axis=1),
            )
            drawn = random.randint(key, (3, *a.shape), 0, 100)
            done = (ages + a[:, 3]) % 7 == 0
            merged = [
                jnp.where(done[:, None], new, old) for new, old in zip(drawn, moved, strict=True)
            ]
            return (tuple(merged), jnp.where(done, 0, ages + 1)), merged[0][:, 0]

        return lax.scan(step, (boards, ages), random.split(random.key(0), 9))

    boards = tuple(linear_values((LANES, 40), "int32") * k % 50 for k in (3, 5, 7))
    check(program, boards, vector(), options=options)


@pytest.mark.parametrize("question", ["a lane", "elements"])
@pytest.mark.parametrize("options", [{}, {"tile_lanes": 8, "unroll": 1}], ids=str)
def test_a_board_that_is_changed_where_it_lies_and_reset(
    question: str, options: dict[str, Any]
) -> None:
    """What a lane keeps is copied over the board it is made of before the lanes are asked, and is
    not worked out again from there where some other lane of the block is reset."""

    def program(boards: tuple[jax.Array, ...], ages: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            (a, b), ages = state
            drawn = random.randint(key, a.shape, 0, 100)
            done = ((ages + a[:, 3]) % 7 == 0)[:, None] if question == "a lane" else a % 9 == 0
            new = jnp.where(done, drawn, a * 2 + b)
            return ((new, jnp.roll(b, 2, axis=1)), (ages + 1) % 40), new[:, 0]

        return lax.scan(step, (boards, ages), random.split(random.key(0), 9))

    boards = tuple(linear_values((LANES, 40), "int32") * k % 50 for k in (3, 5))
    check(program, boards, vector(), options=options)
