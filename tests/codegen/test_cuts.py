"""Loops that are cut where the rules of their elements change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.kernels import Settings, check, layouts, some
from tests.lanes.loops import counting_loop

SIZE = 90


def rolled(x: str, by: int, axis: int, sizes: tuple[int, int], name: str) -> str:
    """Returns HLO that moves `x`, of [lanes, *sizes], cyclically along one of its dimensions."""
    rest = sizes[axis] - by

    def part(start: int, stop: int) -> tuple[str, str]:
        ranges = [f"[0:{size}]" for size in sizes]
        ranges[axis] = f"[{start}:{stop}]"
        shape = list(sizes)
        shape[axis] = stop - start
        return ", ".join(ranges), ",".join(map(str, shape))

    (tail, tail_shape), (head, head_shape) = part(rest, sizes[axis]), part(0, rest)
    whole = ",".join(map(str, sizes))
    return f"""
      {name}_tail = s32[LANES,{tail_shape}] slice({x}), slice={{[0:LANES], {tail}}}
      {name}_head = s32[LANES,{head_shape}] slice({x}), slice={{[0:LANES], {head}}}
      {name} = s32[LANES,{whole}] concatenate({name}_tail, {name}_head),
          dimensions={{{axis + 1}}}"""


@layouts
@pytest.mark.parametrize("by", [1, 4, 40])
def test_rolled_both_ways(lanes: int, options: Settings, by: int) -> None:
    """A stencil on a torus: concatenates of concatenates."""
    sizes = (9, 41)
    body = (
        rolled("e0", 1, 0, sizes, "down")
        + rolled("down", by, 1, sizes, "right")
        + """
      sum = s32[LANES,9,41] add(e0, right)
      y = s32[LANES,9,41] xor(sum, down)"""
    ).replace("LANES", str(lanes))
    module = counting_loop(body, ["y"], [f"s32[{lanes},9,41]"], trip_count=3)

    def step(_: int, x: np.ndarray) -> tuple[np.ndarray]:
        down = np.roll(x, 1, 1)
        return ((x + np.roll(down, by, 2)) ^ down,)

    values = np.random.default_rng(0).integers(-99, 99, (lanes, *sizes)).astype(np.int32)
    check(module, step, 3, values, **options)


@layouts
@pytest.mark.parametrize(("low", "high"), [(2, 0), (0, 3), (-4, 9), (70, 80)])
def test_padded_reversed_strided(lanes: int, options: Settings, low: int, high: int) -> None:
    """Cuts pass through movement of all kinds."""
    size = SIZE + low + high
    body = f"""
      v = s32[] constant(7)
      padded = s32[{lanes},{size}] pad(e0, v), padding=0_0x{low}_{high}
      r = s32[{lanes},{size}] reverse(padded), dimensions={{1}}
      s = s32[{lanes},{(size + 1) // 2}] slice(r), slice={{[0:{lanes}], [0:{size}:2]}}
      t = s32[{lanes},{SIZE}] pad(s, v), padding=0_0x{SIZE - (size + 1) // 2}_0
      y = s32[{lanes},{SIZE}] subtract(t, e0)"""
    module = counting_loop(body, ["y"], [f"s32[{lanes},{SIZE}]"], trip_count=2)

    def step(_: int, x: np.ndarray) -> tuple[np.ndarray]:
        cut = x[:, max(0, -low) :]
        padded = np.pad(cut, ((0, 0), (max(0, low), high)), constant_values=7)
        strided = padded[:, ::-1][:, ::2]
        extra = SIZE - strided.shape[1]
        moved = np.pad(strided, ((0, 0), (max(0, extra), 0)), constant_values=7)
        return (moved[:, max(0, -extra) :] - x,)

    values = np.random.default_rng(0).integers(-99, 99, (lanes, SIZE)).astype(np.int32)
    check(module, step, 2, values, **options)


def test_cuts_pass_where_dimensions_of_one_come_and_go() -> None:
    """Each loop knows what it puts together, so that none selects."""
    shape, row = "f32[40,50]", "f32[1,40,50]"
    body = f"""
      a = f32[40,1] slice(e0), slice={{[0:40], [49:50]}}
      b = f32[40,49] slice(e0), slice={{[0:40], [0:49]}}
      r = {shape} concatenate(a, b), dimensions={{1}}
      s = {row} reshape(r)
      n = {row} negate(s)
      t = {shape} reshape(n)
      y = {shape} reverse(t), dimensions={{0}}"""
    module = counting_loop(body, ["y"], [shape], trip_count=3)
    compiled = check(
        module, lambda i, x: [-np.roll(x, 1, 1)[::-1]], 3, some([40, 50]), bounds_checks=False
    )
    assert "select" not in compiled.code.ir


def test_reductions_are_cut_where_what_they_take_is() -> None:
    """The sum of a row and the one beside it, one of whose elements comes from elsewhere."""
    shape, row = "f32[40,50]", "f32[1,40,50]"
    body = f"""
      nothing = f32[] constant(0)
      a = f32[40,1] slice(e0), slice={{[0:40], [49:50]}}
      b = f32[40,49] slice(e0), slice={{[0:40], [0:49]}}
      r = {shape} concatenate(a, b), dimensions={{1}}
      beside = {row} reshape(r)
      here = {row} reshape(e0)
      both = f32[2,40,50] concatenate(beside, here), dimensions={{0}}
      sums = {shape} reduce(both, nothing), dimensions={{0}}, to_apply=add_f32
      y = {shape} reverse(sums), dimensions={{0}}"""
    module = counting_loop(body, ["y"], [shape], trip_count=3)
    compiled = check(
        module, lambda i, x: [(np.roll(x, 1, 1) + x)[::-1]], 3, some([40, 50]), bounds_checks=False
    )
    assert "select" not in compiled.code.ir
