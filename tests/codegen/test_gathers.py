"""Gathers and scatters as machine code, in every layout; nothing out of bounds is ever touched."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from fuselane.lanes.program import ElementKind
from tests.codegen.kernels import NumpyArray, Settings, check, form_program, layouts
from tests.lanes.loops import counting_loop

TRIPS = 4


def lane_vectors(lanes: int, indices: str) -> str:
    """Returns the text of index vectors: the lane, and an index of `indices`."""
    return f"""
      lane = s32[{lanes},1] iota(), iota_dimension=0
      column = s32[{lanes},1] reshape({indices})
      vectors = s32[{lanes},2] concatenate(lane, column), dimensions={{1}}"""


def some_indices(lanes: int, size: int) -> NumpyArray:
    """Returns indices within bounds and far outside."""
    choices = [0, 1, size - 1, size // 2, size, -1, 2**31 - 1, -(2**31), size * 1000]
    return np.random.default_rng(lanes + size).choice(np.array(choices), lanes).astype(np.int32)


def some_values(*sizes: int) -> NumpyArray:
    return np.arange(np.prod(sizes), dtype=np.int32).reshape(sizes) * 3 + 1


def turn(indices: NumpyArray, size: int) -> NumpyArray:
    """Returns the next step's indices, as the loops below do."""
    return indices ^ np.int32(size // 2)


@layouts
@pytest.mark.parametrize("size", [5, 20, 100])
def test_gather_per_lane(lanes: int, options: Settings, size: int) -> None:
    """From registers among few elements, from scratch, and from the input where it lies."""
    body = f"""{lane_vectors(lanes, "e1")}
      g = s32[{lanes},1,1] gather(e0, vectors), offset_dims={{1,2}}, collapsed_slice_dims={{}},
        start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{1,1}}
      r = s32[{lanes}] reshape(g)
      total = s32[{lanes}] add(e2, r)
      half = s32[] constant({size // 2})
      halves = s32[{lanes}] broadcast(half), dimensions={{}}
      x = s32[{lanes}] xor(e1, halves)
      all = s32[{lanes},{size}] broadcast(r), dimensions={{0}}
      y = s32[{lanes},{size}] add(e0, all)"""
    vector, array = f"s32[{lanes}]", f"s32[{lanes},{size}]"

    def step(i: int, x: NumpyArray, at: NumpyArray, total: NumpyArray) -> Sequence[NumpyArray]:
        read = x[np.arange(lanes), np.clip(at, 0, size - 1)]
        return x, turn(at, size), total + read

    arguments = (some_values(lanes, size), some_indices(lanes, size), some_values(lanes))
    kept = counting_loop(body, ["e0", "x", "total"], [array, vector, vector], trip_count=TRIPS)
    check(kept, step, TRIPS, *arguments, **options)

    def changing(i: int, x: NumpyArray, at: NumpyArray, total: NumpyArray) -> Sequence[NumpyArray]:
        read = x[np.arange(lanes), np.clip(at, 0, size - 1)]
        return x + read[:, None], turn(at, size), total + read

    changed = counting_loop(body, ["y", "x", "total"], [array, vector, vector], trip_count=TRIPS)
    check(changed, changing, TRIPS, *arguments, **options)


@layouts
@pytest.mark.parametrize("dtype", ["s32", "pred", "f64"])
def test_gather_from_shared_table(lanes: int, options: Settings, dtype: str) -> None:
    """Rows of two of a table that all lanes share, indices of another type."""
    body = f"""column = u8[{lanes},1] reshape(e1)
      g = {dtype}[{lanes},1,2] gather(e0, column), offset_dims={{1,2}}, collapsed_slice_dims={{}},
        start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,2}}
      r = {dtype}[{lanes},2] reshape(g)
      w = s32[{lanes},2] convert(r)
      total = s32[{lanes},2] add(e2, w)
      three = u8[] constant(77)
      threes = u8[{lanes}] broadcast(three), dimensions={{}}
      x = u8[{lanes}] add(e1, threes)"""
    carried = [f"{dtype}[100,2]", f"u8[{lanes}]", f"s32[{lanes},2]"]
    module = counting_loop(body, ["e0", "x", "total"], carried, trip_count=TRIPS)
    table = {"s32": some_values(100, 2), "f64": some_values(100, 2) * 0.5}.get(
        dtype, some_values(100, 2) % 4 == 1
    )

    def step(i: int, table: NumpyArray, at: NumpyArray, total: NumpyArray) -> Sequence[NumpyArray]:
        read = table[np.minimum(at.astype(int), 99)].astype(np.int32)
        return table, at + np.uint8(77), total + read

    at = (some_values(lanes) * 31).astype(np.uint8)
    check(module, step, TRIPS, table, at, some_values(lanes, 2), **options)


@layouts
def test_table_of_constants_is_read_where_it_is(lanes: int, options: Settings) -> None:
    """No lane has its own copy of what all lanes read at one place."""
    table = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    body = f"""
      numbers = s32[12] constant({{{str(table)[1:-1]}}})
      table = s32[{lanes},12] broadcast(numbers), dimensions={{1}}
      picked = s32[{lanes},1] dynamic-slice(table, zero, i), dynamic_slice_sizes={{{lanes},1}}
      p0 = s32[{lanes}] reshape(picked)
      y = s32[{lanes}] add(e0, p0)"""
    module = counting_loop(body, ["y"], [f"s32[{lanes}]"], trip_count=TRIPS)

    def step(i: int, x: NumpyArray) -> Sequence[NumpyArray]:
        return (x + table[i],)

    compiled = check(module, step, TRIPS, some_values(lanes), **options)
    assert compiled.code.ir.count("store ") < 12


@layouts
@pytest.mark.parametrize("size", [5, 40, 100])
def test_scatter_in_order(lanes: int, options: Settings, size: int) -> None:
    """Three updates per lane, some outside, some of one element, combined in order."""
    body = f"""
      lane = s32[{lanes},3,1] iota(), iota_dimension=0
      column = s32[{lanes},3,1] reshape(e1)
      vectors = s32[{lanes},3,2] concatenate(lane, column), dimensions={{2}}
      s = s32[{lanes},{size}] scatter(e0, vectors, e2), update_window_dims={{}},
        inserted_window_dims={{0,1}}, scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=2,
        to_apply=twice_and_add
      y = s32[{lanes},{size}] reverse(s), dimensions={{1}}
      half = s32[] constant({size // 2})
      halves = s32[{lanes},3] broadcast(half), dimensions={{}}
      x = s32[{lanes},3] xor(e1, halves)"""
    more = """twice_and_add {
        l = s32[] parameter(0)  r = s32[] parameter(1)  t = s32[] add(l, l)
        ROOT o = s32[] add(t, r)
    }"""
    carried = [f"s32[{lanes},{size}]", f"s32[{lanes},3]", f"s32[{lanes},3]"]

    def scattered(x: NumpyArray, at: NumpyArray, update: NumpyArray) -> NumpyArray:
        x = x.copy()
        for lane in range(lanes):
            for place, value in zip(at[lane], update[lane], strict=True):
                if 0 <= place < size:
                    x[lane, place] = 2 * x[lane, place] + value
        return x

    def plain(i: int, x: NumpyArray, at: NumpyArray, u: NumpyArray) -> Sequence[NumpyArray]:
        return scattered(x, at, u), turn(at, size), u

    def backward(i: int, x: NumpyArray, at: NumpyArray, u: NumpyArray) -> Sequence[NumpyArray]:
        return scattered(x, at, u)[:, ::-1], turn(at, size), u

    at = some_indices(lanes * 3, size).reshape(lanes, 3)
    at[:, 2] = at[:, 0]
    for step, result in ((plain, "s"), (backward, "y")):
        module = counting_loop(body, [result, "x", "e2"], carried, trip_count=TRIPS, more=more)
        arguments = (some_values(lanes, size), at, some_values(lanes, 3))
        check(module, step, TRIPS, *arguments, **options)


@layouts
def test_scatter_of_several_arrays(lanes: int, options: Settings) -> None:
    """Two arrays at once: the larger value wins, and takes its companion along."""
    body = f"""{lane_vectors(lanes, "e2")}
      u = s32[{lanes},1,1] reshape(e3)
      v = f32[{lanes},1,1] convert(u)
      both = (s32[{lanes},70], f32[{lanes},70]) scatter(e0, e1, vectors, u, v),
        update_window_dims={{1,2}}, inserted_window_dims={{}},
        scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1, to_apply=larger
      s = s32[{lanes},70] get-tuple-element(both), index=0
      t = f32[{lanes},70] get-tuple-element(both), index=1"""
    more = """larger {
        a = s32[] parameter(0)  b = f32[] parameter(1)
        c = s32[] parameter(2)  d = f32[] parameter(3)
        q = pred[] compare(c, a), direction=GT
        x = s32[] select(q, c, a)  y = f32[] select(q, d, b)
        ROOT o = (s32[], f32[]) tuple(x, y)
    }"""
    carried = [f"s32[{lanes},70]", f"f32[{lanes},70]", f"s32[{lanes}]", f"s32[{lanes}]"]
    module = counting_loop(body, ["s", "t", "e2", "e3"], carried, trip_count=2, more=more)

    def step(
        i: int, x: NumpyArray, y: NumpyArray, at: NumpyArray, update: NumpyArray
    ) -> Sequence[NumpyArray]:
        x, y = x.copy(), y.copy()
        for lane in range(lanes):
            place = at[lane]
            if 0 <= place < 70 and update[lane] > x[lane, place]:
                x[lane, place], y[lane, place] = update[lane], update[lane]
        return x, y, at, update

    values = some_values(lanes, 70) % 1000
    arguments = (values, values.astype(np.float32) + 1, some_indices(lanes, 70))
    check(module, step, 2, *arguments, some_values(lanes) * 7 % 1000, **options)


@layouts
def test_large_arrays_are_changed_in_place(lanes: int, options: Settings) -> None:
    """Read and written at lanes' own places only, an array never leaves memory."""
    body = f"""{lane_vectors(lanes, "e1")}
      g = s32[{lanes},1,1] gather(e0, vectors), offset_dims={{1,2}}, collapsed_slice_dims={{}},
        start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{1,1}}
      u = s32[{lanes},1,1] add(g, g)
      s = s32[{lanes},90] scatter(e0, vectors, u), update_window_dims={{1,2}},
        inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1,
        to_apply=second
      half = s32[] constant(45)
      halves = s32[{lanes}] broadcast(half), dimensions={{}}
      x = s32[{lanes}] xor(e1, halves)"""
    more = """second {
        l = s32[] parameter(0)  r = s32[] parameter(1)  ROOT o = s32[] maximum(r, r)
    }"""
    carried = [f"s32[{lanes},90]", f"s32[{lanes}]"]
    module = counting_loop(body, ["s", "x"], carried, trip_count=TRIPS, more=more)

    def step(i: int, x: NumpyArray, at: NumpyArray) -> Sequence[NumpyArray]:
        x = x.copy()
        for lane, place in enumerate(at):
            if 0 <= place < 90:
                x[lane, place] *= 2
        return x, turn(at, 90)

    assert form_program(module).loop.elements[1].kind is ElementKind.STREAM
    check(module, step, TRIPS, some_values(lanes, 90), some_indices(lanes, 90), **options)


@layouts
def test_versions_live_on(lanes: int, options: Settings) -> None:
    """An old version that is read later is not overwritten, one that isn't is."""
    body = f"""{lane_vectors(lanes, "e1")}
      u = s32[{lanes},1,1] reshape(e1)
      a = s32[{lanes},90] scatter(e0, vectors, u), update_window_dims={{1,2}},
        inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1,
        to_apply=larger
      b = s32[{lanes},90] scatter(a, vectors, u), update_window_dims={{1,2}},
        inserted_window_dims={{}}, scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1,
        to_apply=smaller
      old = s32[{lanes},90] reverse(e0), dimensions={{1}}
      between = s32[{lanes},90] subtract(a, old)
      y = s32[{lanes},90] add(b, between)"""
    more = """
      larger { l = s32[] parameter(0)  r = s32[] parameter(1)  ROOT o = s32[] maximum(l, r) }
      smaller { l = s32[] parameter(0)  r = s32[] parameter(1)  ROOT o = s32[] subtract(l, r) }"""
    carried = [f"s32[{lanes},90]", f"s32[{lanes}]"]
    module = counting_loop(body, ["y", "e1"], carried, trip_count=TRIPS, more=more)

    def step(i: int, x: NumpyArray, at: NumpyArray) -> Sequence[NumpyArray]:
        a = x.copy()
        b = x.copy()
        for lane, place in enumerate(at):
            if 0 <= place < 90:
                a[lane, place] = max(a[lane, place], place)
                b[lane, place] = a[lane, place] - place
        return b + (a - x[:, ::-1]), at

    check(module, step, TRIPS, some_values(lanes, 90) % 97, some_indices(lanes, 90), **options)


def test_updates_put_together_are_read_part_by_part() -> None:
    """Without lanes: a loop for each part, none of which selects among them."""
    body = """
      r = s32[500] reverse(e0), dimensions={0}
      u = s32[1500] concatenate(r, e0, r), dimensions={0}
      s = s32[500] scatter(e0, e1, u), update_window_dims={}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum"""
    sums = """
    sum {
      p = s32[] parameter(0)
      q = s32[] parameter(1)
      ROOT s = s32[] add(p, q)
    }"""
    module = counting_loop(body, ["s", "e1"], ["s32[500]", "s32[1500,1]"], trip_count=2, more=sums)

    def step(_: int, x: NumpyArray, at: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        result = x.copy()
        inside = (at[:, 0] >= 0) & (at[:, 0] < 500)
        updates = np.concatenate([x[::-1], x, x[::-1]])
        np.add.at(result, at[inside, 0], updates[inside])
        return result, at

    generator = np.random.default_rng(0)
    x, at = generator.integers(-9, 9, 500), generator.integers(-20, 520, (1500, 1))
    compiled = check(module, step, 2, x.astype(np.int32), at.astype(np.int32))
    assert not compiled.program.has_lanes
    blocks = re.split(r"\n\S+:\n", compiled.code.ir)
    assert max(block.count(" = select") for block in blocks) <= 4


@pytest.mark.parametrize("computation", ["add", "minimum"])
def test_what_is_outside_is_not_written_back(computation: str) -> None:
    """Without lanes: a branch around the update, instead of a select of what is there."""
    body = """
      u = f32[1500] broadcast(seven), dimensions={}
      s = f32[500] scatter(e0, e1, u), update_window_dims={}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=take"""
    taken = f"""
    take {{
      p = f32[] parameter(0)
      q = f32[] parameter(1)
      ROOT s = f32[] {computation}(p, q)
    }}"""
    body = "seven = f32[] constant(7)" + body
    module = counting_loop(body, ["s", "e1"], ["f32[500]", "s32[1500,1]"], trip_count=2, more=taken)

    def step(_: int, x: NumpyArray, at: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        result = x.copy()
        inside = at[(at >= 0) & (at < 500)]
        (np.add if computation == "add" else np.minimum).at(result, inside, np.float32(7))
        return result, at

    generator = np.random.default_rng(0)
    x = generator.integers(-9, 19, 500).astype(np.float32)
    at = generator.integers(-20, 520, (1500, 1)).astype(np.int32)
    compiled = check(module, step, 2, x, at)
    assert not compiled.program.has_lanes
    assert not re.search(r" = select .*float ", compiled.code.ir)
