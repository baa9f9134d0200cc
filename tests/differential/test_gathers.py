"""Gathers and scatters at indices that differ from lane to lane, as `vmap` makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.harness import check, linear_values
from tests.differential.values import NumpyArray

LANES: Final = 19
STEPS: Final = 7
INDEX_TYPES: Final = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
PAYLOADS: Final = ["bool", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float64"]

LaneFunction = Callable[..., Any]


def indices(size: int, *more: int, dtype: str = "int32", seed: int = 0) -> NumpyArray:
    """Returns indices [steps, lanes, ...], most of them within bounds, some far outside."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, LANES, *more)
    within = rng.integers(-size if dtype.startswith("i") else 0, size, shape)
    limits = np.iinfo(dtype)
    edges = [size, size + 1, limits.max, limits.min, limits.max // 2 + 1, 0, size - 1, -size - 1]
    edges = [edge for edge in edges if limits.min <= edge <= limits.max]
    outside = rng.choice(np.array(edges, dtype=object), shape)
    return np.where(rng.random(shape) < 0.3, outside, within).astype(dtype)


def read_each_step(read: LaneFunction) -> Callable[..., Any]:
    """Returns a program that reads an array of each lane once a step: `read(array, index)`."""

    def program(array: jax.Array, starts: jax.Array) -> Any:
        def step(count: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            return count + 1, jax.vmap(read)(array, start)

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), starts)

    return program


def change_each_step(*changes: LaneFunction) -> Callable[..., Any]:
    """Returns a program that changes arrays of each lane: `change(array, index, number)` each."""

    def program(array: jax.Array, starts: jax.Array) -> Any:
        def step(state: list[jax.Array], inputs: tuple[jax.Array, jax.Array]) -> Any:
            start, number = inputs
            return [
                jax.vmap(change, in_axes=(0, 0, None))(x, start, number)
                for change, x in zip(changes, state, strict=True)
            ], None

        return lax.scan(step, [array] * len(changes), (starts, jnp.arange(1, STEPS + 1)))[0]

    return program


def look_and_change(program: LaneFunction) -> LaneFunction:
    """Returns `program` with its array looked at as a whole each step, so that it stays state."""

    def looking(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        changed = program(array, index, number)
        return jnp.where(changed == changed[::-1], changed, changed + 1).astype(array.dtype)

    return looking


# Reading.


@pytest.mark.parametrize("size", [2, 5, 16, 40, 200])
def test_element_of_array_per_lane(size: int) -> None:
    """Small arrays are selected from, large ones read from memory."""
    check(
        read_each_step(lambda array, index: array[index]),
        linear_values((LANES, size)),
        indices(size),
    )


@pytest.mark.parametrize("size", [2, 5, 16, 40, 200])
def test_element_of_shared_table(size: int) -> None:
    def program(table: jax.Array, starts: jax.Array) -> Any:
        def step(count: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            return count + 1, table[start]

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), starts)

    check(program, linear_values((size,)), indices(size))


@pytest.mark.parametrize("size", [3, 9, 100])
def test_rows_of_constant_table(size: int) -> None:
    table = linear_values((size, 2), "int32")

    def program(position: jax.Array, starts: jax.Array) -> Any:
        def step(position: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            return position + jnp.asarray(table)[start], None

        return lax.scan(step, position, starts)[0]

    check(program, linear_values((LANES, 2), "int32"), indices(size))


@pytest.mark.parametrize("residual", [(6,), (3, 4), (2, 3, 2), (12, 11)])
def test_indices_in_all_dimensions(residual: tuple[int, ...]) -> None:
    """Several components, each outside in its own way."""
    starts = np.stack([indices(size, seed=d) for d, size in enumerate(residual)], axis=-1)

    def read(array: jax.Array, index: jax.Array) -> Any:
        return array[tuple(index)]

    check(read_each_step(read), linear_values((LANES, *residual)), starts)


@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
def test_modes_of_take(mode: str) -> None:
    def read(array: jax.Array, index: jax.Array) -> Any:
        return jnp.take(array, index, mode=mode)

    check(read_each_step(read), linear_values((LANES, 5)), indices(5))


@pytest.mark.parametrize("dtype", INDEX_TYPES)
def test_types_of_indices(dtype: str) -> None:
    """Of arrays smaller and larger than the type counts, and than registers hold."""

    def read(array: jax.Array, index: jax.Array) -> Any:
        small = array[:7]
        return [x[index] for x in (small, array)], [
            lax.dynamic_slice(x, (index,), (3,)) for x in (small, array)
        ]

    array = linear_values((LANES, 300))
    check(read_each_step(read), array, indices(100, dtype=dtype), x64=dtype.endswith("64"))


@pytest.mark.parametrize("size", [6, 100])
def test_types_of_elements(size: int) -> None:
    """All payloads in one loop, several indices each."""

    def program(arrays: Any, starts: jax.Array) -> Any:
        def step(count: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            read = jax.vmap(lambda array, index: array[index])
            return count + 1, {name: read(array, start) for name, array in arrays.items()}

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), starts)

    arrays = {
        name: jnp.dtype(name).type(0) + linear_values((LANES, size)).astype(jnp.dtype(name))
        for name in PAYLOADS
        if name not in ("int64", "float64")
    }
    check(program, arrays, indices(size, 2))


@pytest.mark.parametrize("name", ["int64", "float64"])
def test_wide_elements(name: str) -> None:
    def read(array: jax.Array, index: jax.Array) -> Any:
        return array[index]

    check(read_each_step(read), linear_values((LANES, 50), name), indices(50), x64=True)
    check(read_each_step(read), linear_values((LANES, 5), name), indices(5), x64=True)


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("size", [4, 70])
def test_several_indices_per_lane(count: int, size: int) -> None:
    def read(array: jax.Array, index: jax.Array) -> Any:
        return array[index], jnp.take_along_axis(array, index % size, axis=0)

    check(read_each_step(read), linear_values((LANES, size)), indices(size, count))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("array_axis", [0, 1, 2])
def test_places_of_lanes(axis: int, array_axis: int) -> None:
    """Lanes in other dimensions than the first, of the array and of the indices."""
    array = np.moveaxis(linear_values((LANES, 4, 6)), 0, array_axis)
    starts = np.moveaxis(indices(4, 3), 1, 1 + axis)

    def program(array: jax.Array, starts: jax.Array) -> Any:
        def step(count: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            read = jax.vmap(lambda a, i: a[i, i], in_axes=(array_axis, axis), out_axes=axis)
            return count + 1, read(array, start)

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), starts)

    check(program, array, starts)


@pytest.mark.parametrize("size", [4, 70])
def test_uniform_indices(size: int) -> None:
    """Lanes that are a dimension of the window: rows of a table per lane."""

    def program(array: jax.Array, starts: jax.Array) -> Any:
        def step(count: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            return count + 1, array[:, start]

        return lax.scan(step, jnp.zeros(LANES, jnp.int32), starts)

    check(program, linear_values((LANES, size)), indices(size)[:, :5])


@pytest.mark.parametrize("size", [9, 90])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_dynamic_slices_per_lane(size: int, window: int) -> None:
    def read(array: jax.Array, index: jax.Array) -> Any:
        return lax.dynamic_slice(array, (index[0], index[1]), (window, 2))

    check(read_each_step(read), linear_values((LANES, size, 3)), indices(size, 2))


def test_arange_by_hand() -> None:
    """`x[arange(n), i]`: what vmap makes, written by the user."""

    def program(array: jax.Array, starts: jax.Array) -> Any:
        def step(state: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            rows = jnp.arange(LANES)
            state = state.at[rows, start].add(1.0, mode="drop")
            return state, state[rows, start]

        return lax.scan(step, array, starts)

    check(program, linear_values((LANES, 8)), indices(8))


def test_two_dimensions_of_lanes() -> None:
    def program(array: jax.Array, starts: jax.Array) -> Any:
        def step(state: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
            read = jax.vmap(jax.vmap(lambda a, i: a[i]))
            write = jax.vmap(jax.vmap(lambda a, i, v: a.at[i].set(v)))
            value = read(state, start)
            return write(state, (start + 1) % 5, value * 2), value

        return lax.scan(step, array, starts)

    starts = np.random.default_rng(0).integers(0, 5, (STEPS, 6, 7)).astype(np.int32)
    check(program, linear_values((6, 7, 5), "int32"), starts)


# Changing.


OPERATIONS: Final = ["set", "add", "multiply", "min", "max"]


@pytest.mark.parametrize("is_looked_at", [False, True])
@pytest.mark.parametrize("size", [1, 7, 40, 150])
def test_element_is_changed(size: int, is_looked_at: bool) -> None:
    """Small arrays stay in registers, larger ones are changed in place or in scratch memory."""

    def changing(operation: str) -> LaneFunction:
        def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
            changed: jax.Array = getattr(array.at[index], operation)(number * 3 - 7)
            return changed

        return look_and_change(change) if is_looked_at else change

    array = linear_values((LANES, size), "int32")
    check(change_each_step(*map(changing, OPERATIONS)), array, indices(size))


PLACES: Final = {
    "few": [3, 0, -1],
    "some": [*range(5), *range(8, 3, -1), -2],
    "outside": [2, 99, -99, 4],
    "many": list(range(-70, 30)),
}


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("size", [12, 60])
def test_places_are_known(size: int, places: str) -> None:
    """A move of a puzzle: the same elements of every lane, wherever its array is."""

    def move(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        at = jnp.array(PLACES[places])
        moved = array.at[at].set(jnp.roll(array[at], 2) + number, mode="drop")
        return moved.at[jnp.flip(jnp.arange(7))].add(moved[at[:7] - 1].sum() + index)

    check(change_each_step(move), linear_values((LANES, size), "int32"), indices(9))


@pytest.mark.parametrize("steps", [2, 9])
def test_moves_of_a_cube(steps: int) -> None:
    """Rows and columns of three sides, places joined of ranges up and down; two moves to choose
    from."""

    def turn(side: int) -> Callable[[jax.Array], jax.Array]:
        up, down = jnp.arange(3), jnp.flip(jnp.arange(3))
        rows = jnp.concatenate([up, jnp.full(3, side), down])
        columns = jnp.concatenate([jnp.full(3, 2 - side), up, jnp.full(3, side)])
        sides = jnp.repeat(jnp.array([1, 2, 0]), 3)

        def moved(cube: jax.Array) -> jax.Array:
            return cube.at[sides, rows, columns].set(jnp.roll(cube[sides, rows, columns], 3))

        return moved

    def program(cubes: jax.Array, moves: jax.Array) -> Any:
        def step(cubes: jax.Array, move: jax.Array) -> tuple[jax.Array, jax.Array]:
            cubes = jax.vmap(lambda i, cube: lax.switch(i, [turn(0), turn(2)], cube))(move, cubes)
            return cubes, cubes[:, 1].sum(1)

        return lax.scan(step, cubes, moves)

    cubes = np.arange(LANES * 27, dtype=np.int8).reshape(LANES, 3, 3, 3)
    moves = np.random.default_rng(0).integers(0, 2, (steps, LANES)).astype(np.int32)
    check(program, cubes, moves)


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("size", [5, 60])
def test_modes_of_changes(mode: str, size: int) -> None:
    def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        return array.at[index].add(number, mode=mode)

    check(change_each_step(change), linear_values((LANES, size)), indices(size))


@pytest.mark.parametrize("dtype", INDEX_TYPES)
def test_types_of_changed_indices(dtype: str) -> None:
    def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        return array.at[index].set(number.astype(array.dtype))

    def change_part(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        return array.at[:7].set(change(array[:7], index, number))

    size = min(300, np.iinfo(dtype).max)
    array = linear_values((LANES, size), "int32")
    starts = indices(size, dtype=dtype)
    check(change_each_step(change, change_part), array, starts, x64=dtype.endswith("64"))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_types_of_changed_elements(payload: str) -> None:
    def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        return array.at[index].set((number % 3).astype(array.dtype))

    def change_part(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        return array.at[:6].set(change(array[:6], index, number))

    array = linear_values((LANES, 100)).astype(jnp.dtype(payload))
    program = change_each_step(change, change_part)
    check(program, array, indices(100), x64=payload.endswith("64"))


@pytest.mark.parametrize("size", [3, 90])
def test_several_updates_of_one_element(size: int) -> None:
    """Updates of a lane come in order, also where they meet."""

    def changing(operation: str) -> LaneFunction:
        def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
            values = (jnp.arange(5) + number) * jnp.array([1, -1, 2, 3, -2])
            changed: jax.Array = getattr(array.at[index], operation)(values)
            return changed

        return change

    program = change_each_step(*map(changing, ["set", "add", "multiply"]))
    check(program, linear_values((LANES, size), "int32"), indices(3, 5))


@pytest.mark.parametrize("size", [9, 90])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_dynamic_updates_per_lane(size: int, window: int) -> None:
    def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        update = jnp.full((window, 2), number, array.dtype) + array[:window, :2]
        return lax.dynamic_update_slice(array, update, (index[0], index[1]))

    array = linear_values((LANES, size, 3))
    check(change_each_step(change, look_and_change(change)), array, indices(size, 2))


def test_windows_partly_outside_are_left_out() -> None:
    """Scatter drops what `dynamic_update_slice` would move inside."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(0,), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,)
    )

    def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        update = jnp.arange(3) + number
        return lax.scatter_add(array, index[None], update, numbers, mode="fill")

    starts = np.random.default_rng(0).integers(-3, 9, (STEPS, LANES)).astype(np.int32)
    check(change_each_step(change), linear_values((LANES, 7), "int32"), starts)
    check(change_each_step(change), linear_values((LANES, 70), "int32"), starts + 62)


def test_history_is_read_and_written() -> None:
    """A ring buffer per lane, larger than registers: read and changed in place each step."""

    def program(history: jax.Array, starts: jax.Array) -> Any:
        def step(state: Any, start: jax.Array) -> tuple[Any, Any]:
            history, place = state
            old = jax.vmap(lambda h, p: h[p])(history, place)
            history = jax.vmap(lambda h, p, v: h.at[p].set(v))(history, place, old * 2 + 1)
            newer = jax.vmap(lambda h, p: h[p])(history, start)
            return (history, (place + start) % 100), (old, newer)

        return lax.scan(step, (history, jnp.zeros(LANES, jnp.int32)), starts)

    starts = np.random.default_rng(0).integers(0, 100, (40, LANES)).astype(np.int32)
    check(program, linear_values((LANES, 100)), starts)


def test_q_learning() -> None:
    """A table of values for each lane, an epsilon-greedy policy, a chain of states."""

    def program(table: jax.Array, draws: jax.Array) -> Any:
        def lane(table: jax.Array, state: jax.Array, draw: jax.Array) -> Any:
            action = jnp.where(draw < 0.3, (draw * 10).astype(jnp.int32), jnp.argmax(table[state]))
            following = jnp.clip(state + jnp.where(action == 0, -1, 1), 0, 19)
            target = (following == 19) + 0.5 * table[following].max()
            table = table.at[state, action].add(0.25 * (target - table[state, action]))
            return table, jnp.where(following == 19, 0, following)

        def step(carry: Any, draw: jax.Array) -> tuple[Any, jax.Array]:
            table, state = carry
            carry = jax.vmap(lane)(table, state, draw)
            return carry, carry[1]

        return lax.scan(step, (table, jnp.zeros(LANES, jnp.int32)), draws)

    draws = np.random.default_rng(0).random((60, LANES)).astype(np.float32)
    check(program, np.zeros((LANES, 20, 2), np.float32), draws)


def test_shared_table_that_lanes_change() -> None:
    """A histogram over all lanes mixes them: left to XLA."""

    def program(counts: jax.Array, starts: jax.Array) -> Any:
        def step(state: Any, start: jax.Array) -> tuple[Any, jax.Array]:
            counts, sums = state
            return (counts.at[start].add(1), sums + start), sums

        return lax.scan(step, (counts, jnp.zeros(LANES, jnp.int32)), starts)

    check(program, np.zeros(9, np.int32), indices(9), fused=None)


@pytest.mark.parametrize("size", [6, 30, 120])
def test_rolls_per_lane(size: int) -> None:
    """What vmap makes of a roll: a window of an array that is put together from two."""

    def program(array: jax.Array, shifts: jax.Array) -> Any:
        def step(state: jax.Array, shift: jax.Array) -> tuple[jax.Array, Any]:
            rolled = jax.vmap(lambda a, s: jnp.roll(a, s, axis=1))(state, shift)
            return rolled + 1, rolled[:, 0, 0]

        return lax.scan(step, array, shifts)

    shifts = np.random.default_rng(0).integers(-3, 4, (STEPS, LANES)).astype(np.int32)
    check(program, linear_values((LANES, 3, size)), shifts)


def test_indices_computed_in_front_of_the_loop() -> None:
    """XLA moves what never changes out of the loop, the lanes' numbers with it."""

    def program(table: Any, place: Any) -> Any:
        def step(table: Any, i: Any) -> Any:
            read = jax.vmap(lambda row, p: row[p % 5])(table, place)
            table = jax.vmap(lambda row, p, x: row.at[p % 7].set(x + i))(table, place, read)
            return table, read

        return lax.scan(step, table, jnp.arange(4))

    rng = np.random.default_rng(0)
    check(
        program,
        rng.integers(0, 99, (37, 80)).astype(np.int32),
        rng.integers(0, 99, 37).astype(np.int32),
    )


@pytest.mark.parametrize("size", [7, 90])
def test_updates_under_conditions(size: int) -> None:
    """`where(p, x.at[i].set(v), x)`, one update and several, either way round."""

    def change(array: jax.Array, index: jax.Array, number: jax.Array) -> jax.Array:
        changed = array.at[index[0]].add(number).at[index[1]].set(number * 2)
        array = jnp.where(index[0] > 2, changed, array)
        other = lax.dynamic_update_slice(array, array[:2] + number, (number % 4,))
        array = jnp.where(index[1] > 1, array, other)
        return jnp.where(index[0] > index[1], array.at[0].set(number), array)

    check(change_each_step(change), linear_values((LANES, size), "int32"), indices(size, 2))


@pytest.mark.parametrize("seed", range(8))
def test_versions_of_large_arrays(seed: int) -> None:
    """Arrays too large for registers, old versions of which are read at random later."""
    rng = np.random.default_rng(seed)
    plan = [(rng.integers(9), *rng.integers(0, 99, 3)) for _ in range(9)]

    def lane(arrays: list[jax.Array], index: jax.Array, number: jax.Array) -> list[jax.Array]:
        versions = list(arrays)
        for kind, first, second, third in plan:
            a, b = versions[first % len(versions)], versions[second % len(versions)]
            c = versions[third % len(versions)]
            new = [
                lambda a, b, c: a.at[index].set(b[number]),
                lambda a, b, c: a.at[index].add(b[(index + 3) % 80]),
                lambda a, b, c: lax.dynamic_update_slice(a, b[:5] + c[3:8], (index,)),
                lambda a, b, c: lax.dynamic_update_slice(a, b[40:] * 2, (number,)),
                lambda a, b, c: jnp.where(index > 4, a, b),
                lambda a, b, c: jnp.where(index > 9, a.at[index].set(c[0]), a),
                lambda a, b, c: a[::-1] - b,
                lambda a, b, c: a + jnp.roll(b, 1) * (c.sum() % 5),
                lambda a, b, c: a * 3 + b,
            ][kind](a, b, c)
            versions.append(new)
        chosen = np.random.default_rng(seed).permutation(len(versions))[: len(arrays)]
        return [versions[k] for k in chosen]

    def program(array: jax.Array, starts: jax.Array) -> Any:
        def step(arrays: list[jax.Array], inputs: tuple[jax.Array, jax.Array]) -> Any:
            start, number = inputs
            return jax.vmap(lane, in_axes=(0, 0, None))(arrays, start, number), None

        arrays = [array, array[:, ::-1] + 1, array * 3]
        return lax.scan(step, arrays, (starts, jnp.arange(STEPS)))[0]

    starts = rng.integers(0, 80, (STEPS, LANES)).astype(np.int32)
    check(program, linear_values((LANES, 80), "int32"), starts)


def test_indices_folded_into_a_constant() -> None:
    """Where all lanes write to the same place, XLA makes one constant of all index vectors."""

    def program(table: Any) -> Any:
        def step(table: Any, i: Any) -> Any:
            table = jax.vmap(lambda row: row.at[3].set(row[1] * 2 + i))(table)
            return jax.vmap(lambda row: row.at[jnp.array([5, 1])].add(i))(table), None

        return lax.scan(step, table, jnp.arange(4))

    check(program, np.random.default_rng(0).integers(0, 99, (37, 8)).astype(np.int32))
