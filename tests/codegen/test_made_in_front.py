"""What a region makes for each lane in front of its loop: a tile makes it once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuselane.codegen.made_in_front import find_made_in_front
from fuselane.codegen.plan import make_plan
from fuselane.config import Options
from fuselane.hlo.module import HloModule
from tests.codegen.kernels import (
    DEVICE,
    NumpyArray,
    Settings,
    check,
    form_program,
    replace_row,
    some,
)
from tests.lanes.loops import counting_loop

STEPS = 6


def filters(batch: int, channels: int, size: int) -> HloModule:
    """Returns a loop over batch and channels as lanes, with numbers for each channel."""
    state, numbers = f"f32[{batch},{channels},{size}]", f"f32[{channels},{size}]"
    row, rows = f"f32[{batch},{channels}]", f"f32[{STEPS},{batch},{channels}]"
    body = f"""
      z = f32[] constant(0)
      factors = {state} broadcast(e1), dimensions={{1,2}}
      y = {state} subtract(factors, e0)
      sum = {row} reduce(y, z), dimensions={{2}}, to_apply=add_f32
      one_row = f32[1,{batch},{channels}] reshape(sum)
      ys = {rows} dynamic-update-slice(e2, one_row, i, zero, zero)"""
    carried = [state, numbers, rows]
    return counting_loop(body, ["y", "e1", "ys"], carried, trip_count=STEPS)


def step(i: int, x: NumpyArray, numbers: NumpyArray, ys: NumpyArray) -> Sequence[NumpyArray]:
    y = numbers - x
    return y, numbers, replace_row(ys, i, y.sum(axis=2))


@pytest.mark.parametrize("sizes", [(16, 32, 4), (7, 5, 3), (3, 20, 40)])
@pytest.mark.parametrize("options", [{}, {"tile_lanes": 32}, {"vector_bits": 128, "unroll": 2}])
def test_numbers_of_channels(sizes: tuple[int, int, int], options: Settings) -> None:
    batch, channels, size = sizes
    numbers, ys = some([channels, size], seed=1), some([STEPS, batch, channels], seed=2)
    check(filters(*sizes), step, STEPS, some(sizes), numbers, ys, **options)


def test_a_tile_keeps_what_takes_longer_to_make_than_to_load() -> None:
    program = form_program(filters(16, 32, 4))
    (index,) = find_made_in_front(program)
    assert program.loop.elements[index].shape.dimensions == (16 * 32, 4)
    assert find_made_in_front(program)[index] == 4 * 4, "bytes of a lane"
    assert make_plan(program, Options(), DEVICE).staged == {index}


def test_a_block_that_stays_makes_it_once_anyway() -> None:
    """Without streams the state is in registers, and no tile goes round."""
    state, numbers = "f32[16,32,2]", "f32[32,2]"
    body = f"""
      factors = {state} broadcast(e1), dimensions={{1,2}}
      y = {state} subtract(factors, e0)"""
    program = form_program(counting_loop(body, ["y", "e1"], [state, numbers]))
    assert find_made_in_front(program)
    assert not make_plan(program, Options(), DEVICE).staged


def test_counting_lanes_is_as_fast_as_loading() -> None:
    row, rows = "f32[512]", f"f32[{STEPS},512]"
    body = f"""
      lane = s32[512] iota(), iota_dimension=0
      x = {row} convert(lane)
      y = {row} add(e0, x)
      one_row = f32[1,512] reshape(y)
      ys = {rows} dynamic-update-slice(e1, one_row, i, zero)"""
    assert not find_made_in_front(form_program(counting_loop(body, ["y", "ys"], [row, rows])))
