"""Kernels that leave sums over lanes unfinished, in every layout of their work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fuselane.codegen import kernel
from fuselane.codegen.products import find_products
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from tests.codegen.kernels import (
    NumpyArray,
    Settings,
    assert_equal,
    check,
    compile_loop,
    iterate,
    layouts,
    replace_row,
    some,
)
from tests.lanes.loops import counting_loop

SUMS = """
      z = f32[] constant(0)
      low = f32[] constant(-inf)
"""


@layouts
def test_accumulated(lanes: int, options: Settings) -> None:
    shape = f"f32[{lanes}]"
    body = f"""{SUMS}
      y = {shape} add(e0, e0)
      sum = f32[] reduce(y, z), dimensions={{0}}, to_apply=add_f32
      total = f32[] add(sum, e1)
      top = f32[] reduce(y, low), dimensions={{0}}, to_apply=max_f32
      largest = f32[] maximum(e2, top)"""
    module = counting_loop(body, ["y", "total", "largest"], [shape, "f32[]", "f32[]"], trip_count=4)

    def step(i: int, x: NumpyArray, total: NumpyArray, top: NumpyArray) -> Sequence[NumpyArray]:
        return 2 * x, total + (2 * x).sum(), np.maximum(top, 2 * x.max())

    arguments = (some([lanes]), np.float32(3), np.float32(-5))
    check(module, step, 4, *arguments, **options)


@layouts
def test_stacked(lanes: int, options: Settings) -> None:
    """Rows of what lanes make together beside rows of lanes; and what is not linear."""
    body = f"""{SUMS}
      y = f32[{lanes},3] negate(e0)
      sum = f32[3] reduce(y, z), dimensions={{0}}, to_apply=add_f32
      row = f32[1,3] reshape(sum)
      sums = f32[5,3] dynamic-update-slice(e1, row, i, zero)
      all = f32[] reduce(y, z), dimensions={{0,1}}, to_apply=add_f32
      size = f32[] abs(all)
      one_size = f32[1] reshape(size)
      sizes = f32[5] dynamic-update-slice(e2, one_size, i)
      lane_row = f32[1,{lanes},3] reshape(y)
      rows = f32[5,{lanes},3] dynamic-update-slice(e3, lane_row, i, zero, zero)"""
    shapes = [f"f32[{lanes},3]", "f32[5,3]", "f32[5]", f"f32[5,{lanes},3]"]
    module = counting_loop(body, ["y", "sums", "sizes", "rows"], shapes, trip_count=5)

    def step(i: int, x: NumpyArray, *stacks: NumpyArray) -> Sequence[NumpyArray]:
        sums, sizes, rows = stacks
        return (
            -x,
            replace_row(sums, i, -x.sum(0)),
            replace_row(sizes, i, np.abs(x.sum())),
            replace_row(rows, i, -x),
        )

    arguments = (some([lanes, 3]), some([5, 3]), some([5]), some([5, lanes, 3]))
    check(module, step, 5, *arguments, **options)


@layouts
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 5), (9, 6)])
def test_products(rows: int, columns: int, lanes: int, options: Settings) -> None:
    """Gradients of weights: panels that fill the matrix, and those at its edges."""
    x, y = f"f32[{lanes},{rows}]", f"f32[{lanes},{columns}]"
    total = f"f32[{rows},{columns}]"
    body = f"""
      dot = {total} dot(e0, e1), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
      total = {total} add(e2, dot)
      back = {x} negate(e0)"""
    module = counting_loop(body, ["back", "e1", "total"], [x, y, total], trip_count=3)

    def step(i: int, x: NumpyArray, y: NumpyArray, total: NumpyArray) -> Sequence[NumpyArray]:
        return -x, y, total + x.T @ y

    arguments = (some([lanes, rows]), some([lanes, columns], seed=1), some([rows, columns]))
    compiled = check(module, step, 3, *arguments, **options)
    assert len(find_products(compiled.program)) == (lanes > max(rows, columns))


def test_lanes_that_do_not_exist_count_for_nothing() -> None:
    """They would be 1 / 0 here, and their products not a number."""
    shape = "f32[5]"
    body = f"""{SUMS}
      unit = f32[] constant(1)
      one_each = {shape} broadcast(unit), dimensions={{}}
      y = {shape} divide(one_each, e0)
      sum = f32[] reduce(y, z), dimensions={{0}}, to_apply=add_f32
      total = f32[] add(e1, sum)
      next_state = {shape} add(e0, e0)"""
    module = counting_loop(body, ["next_state", "total"], [shape, "f32[]"], trip_count=2)

    def step(i: int, x: NumpyArray, total: NumpyArray) -> Sequence[NumpyArray]:
        return 2 * x, total + (1 / x).sum()

    values = np.array([1, 2, 4, 8, 16], np.float32)
    check(module, step, 2, values, np.float32(0), vector_bits=512, unroll=1)


def test_tiles_make_rows_of_their_own() -> None:
    """So that results don't depend on which tile runs when, or where."""
    shape = "f32[100]"
    body = f"""{SUMS}
      y = {shape} add(e0, e0)
      sum = f32[] reduce(y, z), dimensions={{0}}, to_apply=add_f32
      total = f32[] add(sum, e1)"""
    module = counting_loop(body, ["y", "total"], [shape, "f32[]"], trip_count=3)
    compiled = compile_loop(module, tile_lanes=32, unroll=1)
    count = compiled.code.num_tiles
    assert count > 2
    arguments = ((np.arange(100) / 7).astype(np.float32), np.float32(1))
    expected = compiled.run(*arguments, tiles=[(0, count)])
    assert_equal(compiled.run(*arguments), expected)
    assert_equal(compiled.run(*arguments, tiles=[(1, count), (0, 1)]), expected)

    def step(i: int, x: NumpyArray, total: NumpyArray) -> Sequence[NumpyArray]:
        return 2 * x, total + (2 * x).sum()

    close = iterate(step, 3, *arguments)
    np.testing.assert_allclose(expected[2], close[2], rtol=1e-6)


def test_too_much_to_combine(monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"""{SUMS}
      y = f32[100] negate(e0)
      sum = f32[] reduce(y, z), dimensions={{0}}, to_apply=add_f32
      one_sum = f32[1] reshape(sum)
      sums = f32[10] dynamic-update-slice(e1, one_sum, i)"""
    module = counting_loop(body, ["y", "sums"], ["f32[100]", "f32[10]"])
    compile_loop(module, tile_lanes=32, unroll=1)
    monkeypatch.setattr(kernel, "MAX_PARTIAL_BYTES", 100)
    with pytest.raises(UnsupportedError) as raised:
        compile_loop(module, tile_lanes=32, unroll=1)
    assert raised.value.decision.reason is Reason.UNSUPPORTED_STRUCTURE
    assert "to be combined" in raised.value.decision.sentence
