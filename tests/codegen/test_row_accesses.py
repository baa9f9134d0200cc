"""Arrays in which lanes are no neighbours: turned round where a loop reads them again and again,
and priced where it doesn't."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import pytest

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.codegen.kernel_time import estimate_kernel_call_us, estimate_kernel_step_us
from fuselane.codegen.plan import make_plan
from fuselane.codegen.row_accesses import count_row_accesses, find_rows_to_stage
from fuselane.config import Options
from fuselane.hlo.module import HloModule
from tests.codegen.kernels import (
    DEVICE,
    NumpyArray,
    Settings,
    check,
    form_program,
    layouts,
)
from tests.lanes.loops import counting_loop

COSTS: Final = MachineCosts()
_DOT: Final = """lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1},
    rhs_contracting_dims={1}"""


def few(shape: tuple[int, ...], seed: int = 0) -> NumpyArray:
    """Returns -1, 0 and 1, of which sums of products stay exact for a few steps."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def own_weights(lanes: int, size: int, trip_count: int = 100, *, minor: str = "2,1,0") -> HloModule:
    """Returns a loop that multiplies a matrix of each lane's own with a vector."""
    row, matrix = f"f32[{lanes},{size}]", f"f32[{lanes},{size},{size}]{{{minor}}}"
    body = f"y = {row} dot(e0, e1), {_DOT}"
    return counting_loop(body, ["y", "e1"], [row, matrix], trip_count=trip_count)


def read_by_rows(trip_count: int) -> HloModule:
    """Returns a loop that reads one of each lane's 100 numbers in a step."""
    row, table = "f32[64]", "f32[64,100]"
    body = f"""
      s = f32[64,1] dynamic-slice(e1, zero, i), dynamic_slice_sizes={{64,1}}
      v = {row} reshape(s)
      y = {row} add(e0, v)"""
    return counting_loop(body, ["y", "e1"], [row, table], trip_count=trip_count)


def read_in_neighbouring_steps(trip_count: int) -> HloModule:
    """Returns a loop that reads of each lane's rows one in a step, and the next one too."""
    row, table = "f32[64]", f"f32[{trip_count},64,8]"
    body = f"""
      next_i = s32[] add(i, one)
      s = f32[1,64,8] dynamic-slice(e1, i, zero, zero), dynamic_slice_sizes={{1,64,8}}
      t = f32[1,64,8] dynamic-slice(e1, next_i, zero, zero), dynamic_slice_sizes={{1,64,8}}
      v = f32[64,8] reshape(s)
      w = f32[64,8] reshape(t)
      d = {row} dot(w, v), {_DOT}
      y = {row} add(e0, d)"""
    return counting_loop(body, ["y", "e1"], [row, table], trip_count=trip_count)


@layouts
def test_weights_of_each_lanes_own(lanes: int, options: Settings) -> None:
    module = own_weights(lanes, 17, trip_count=3)
    check(
        module,
        lambda i, x, w: (np.einsum("lk,lkj->lj", x, w), w),
        3,
        few((lanes, 17)),
        few((lanes, 17, 17), seed=1),
        **options,
    )


@layouts
def test_weights_of_doubles(lanes: int, options: Settings) -> None:
    row, matrix = f"f64[{lanes},9]", f"f64[{lanes},9,9]"
    body = f"y = {row} dot(e0, e1), {_DOT}"
    module = counting_loop(body, ["y", "e1"], [row, matrix], trip_count=3)
    weights = few((lanes, 9, 9), seed=1).astype(np.float64)
    check(
        module,
        lambda i, x, w: (np.einsum("lk,lkj->lj", x, w), w),
        3,
        few((lanes, 9)).astype(np.float64),
        weights,
        **options,
    )


def test_what_is_read_again_and_again_is_turned_round() -> None:
    program = form_program(own_weights(64, 16))
    (index,) = find_rows_to_stage(program, 8, 1 << 20)
    assert count_row_accesses(program, index) == 256
    plan = make_plan(program, Options(), DEVICE)
    assert plan.staged == {index}
    assert plan.tile_lanes * 1024 <= 1 << 19


def test_there_is_room_for_so_much() -> None:
    program = form_program(own_weights(64, 16))
    assert find_rows_to_stage(program, 8, 8 * 1024)
    assert not find_rows_to_stage(program, 8, 8 * 1024 - 1)


@pytest.mark.parametrize(
    "module",
    [
        own_weights(64, 16, trip_count=1),
        own_weights(64, 16, minor="0,2,1"),
        own_weights(64, 2),
        read_by_rows(50),
        read_in_neighbouring_steps(50),
        own_weights(64, 200),
    ],
    ids=["read_once", "lanes_are_neighbours", "too_short_rows", "in_parts", "twice", "too_large"],
)
def test_what_is_left_where_it_is(module: HloModule) -> None:
    assert not make_plan(form_program(module), Options(), DEVICE).staged


def test_turning_round_counts_once_and_lanes_apart_in_every_step() -> None:
    program = form_program(own_weights(64, 16))
    plan = make_plan(program, Options(), DEVICE)
    left = dataclasses.replace(plan, staged=frozenset())
    step, left_step = (estimate_kernel_step_us(program, p, COSTS, DEVICE) for p in (plan, left))
    call, left_call = (estimate_kernel_call_us(program, p, COSTS, DEVICE) for p in (plan, left))
    assert left_step > 3 * step
    assert left_call < call < left_call + 3 * left_step


def test_lanes_pages_apart_compete_for_the_cache() -> None:
    def step_us(size: int) -> float:
        program = form_program(own_weights(64, size, trip_count=1))
        plan = make_plan(program, Options(), DEVICE)
        return estimate_kernel_step_us(program, plan, COSTS, DEVICE)

    assert step_us(32) > 2 * step_us(33)


def test_of_what_is_taken_from_a_part_only_that_counts() -> None:
    """A row from which one element is gathered is not read as a whole."""
    row, table = "f32[64]", "f32[64,100,30]"
    body = f"""
      s = f32[64,1,30] dynamic-slice(e1, zero, i, zero), dynamic_slice_sizes={{64,1,30}}
      t = f32[64,1,1] dynamic-slice(s, zero, zero, i), dynamic_slice_sizes={{64,1,1}}
      v = {row} reshape(t)
      y = {row} add(e0, v)"""
    module = counting_loop(body, ["y", "e1"], [row, table], trip_count=10)
    program = form_program(module)
    index = next(e.index for e in program.loop.elements if e.shape.rank == 3)
    assert count_row_accesses(program, index) == 1
