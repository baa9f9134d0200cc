"""A kernel's estimated time: vectors, tiles, threads, what lanes share, streams, scalars."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import pytest

from fuselane.analysis.machine_costs import CACHED_BYTES, MachineCosts
from fuselane.codegen.kernel_time import (
    estimate_kernel_call_us,
    estimate_kernel_step_us,
    estimate_least_us,
    estimate_straight_us,
    is_in_rows,
    is_leaping,
)
from fuselane.codegen.plan import SHARED_BITS, make_plan
from fuselane.codegen.scalar_time import WIDE
from fuselane.config import Options
from fuselane.device import DeviceDescription, describe
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.normalise import normalise
from tests.codegen.kernels import form_program
from tests.lanes.loops import counting_loop, loop_of

COSTS: Final = MachineCosts()
DEVICE: Final = describe(
    machine="x86_64",
    name="test",
    features=frozenset({"avx2", "fma"}),
    l1_bytes=32 << 10,
    l2_bytes=512 << 10,
    num_cores=1,
)
MANY: Final = 100_000


def step_us(
    module: HloModule, device: DeviceDescription = DEVICE, costs: MachineCosts = COSTS
) -> float:
    program = form_program(module)
    plan = make_plan(program, Options(), device)
    return estimate_kernel_step_us(program, plan, costs, device)


def elementwise(opcode: str, lanes: int, trip_count: int = MANY) -> HloModule:
    shape = f"f32[{lanes}]"
    return counting_loop(f"y = {shape} {opcode}(e0)", ["y"], [shape], trip_count=trip_count)


def test_streams_have_a_row_for_each_step_along_any_dimension() -> None:
    """A table of each lane's own, written at one place: its length does not matter."""

    def of(steps: int) -> float:
        body = f"""y = f32[64] negate(e0)
          r = f32[64,1] reshape(y)
          w = f32[64,{steps}] dynamic-update-slice(e1, r, zero, i)"""
        shapes = ["f32[64]", f"f32[64,{steps}]"]
        return step_us(counting_loop(body, ["y", "w"], shapes, trip_count=steps))

    assert of(10_000) < 2 * of(1_000)


def test_time_grows_with_lanes_and_opcode() -> None:
    small, large = step_us(elementwise("sine", 1024)), step_us(elementwise("sine", 10240))
    assert large == pytest.approx(10 * small, rel=0.1)
    assert step_us(elementwise("negate", 10240)) < large / 10


def test_products_of_dots_take_as_many_passes_as_registers_through_their_units() -> None:
    """All else waits rather than computes, and large weights are loaded meanwhile."""

    def more(module: HloModule) -> float:
        wide = dataclasses.replace(DEVICE, vector_bits=512, unit_bits=512)
        return step_us(module, dataclasses.replace(wide, unit_bits=256)) / step_us(module, wide)

    def dot(weights: int, lanes: int = 4096) -> HloModule:
        body = f"""
          y = f32[{weights},{lanes}] dot(e1, e0), lhs_contracting_dims={{1}},
            rhs_contracting_dims={{0}}
        """
        shapes = [f"f32[{weights},{lanes}]", f"f32[{weights},{weights}]"]
        return counting_loop(body, ["y", "e1"], shapes, trip_count=MANY)

    assert 1.7 < more(dot(128)) <= 2
    assert 1 <= more(dot(1024)) < 1.5
    assert 1 <= more(dot(128, lanes=16)) < 1.3, "one vector waits for its weights"
    assert more(elementwise("sine", 4096)) == 1


def test_threads_share_the_lanes() -> None:
    one = step_us(elementwise("sine", 65536))
    four = step_us(elementwise("sine", 65536), dataclasses.replace(DEVICE, num_cores=4))
    assert four == pytest.approx(one / 4, rel=0.1)


def test_threads_have_to_be_woken() -> None:
    program = form_program(elementwise("sine", 65536))
    calls = []
    for cores in (1, 4):
        device = dataclasses.replace(DEVICE, num_cores=cores)
        plan = make_plan(program, Options(), device)
        calls.append(estimate_kernel_call_us(program, plan, COSTS, device))
    assert calls[1] - calls[0] == pytest.approx(COSTS.wake_us)


def test_what_lanes_make_together_is_not_moved_for_each_lane() -> None:
    """A gradient of 16 by 16 weights: 4 MiB if each of 4096 lanes had its own."""
    x, total = "f32[4096,16]", "f32[16,16]"
    body = f"""
      dot = {total} dot(e0, e1), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
      total = {total} add(e2, dot)"""
    program = form_program(counting_loop(body, ["e0", "e1", "total"], [x, x, total]))
    assert any(element.combiner for element in program.loop.elements)
    plan = make_plan(program, Options(), DEVICE)
    own_us = COSTS.moving_us(2 << 22, 1 << 22)
    assert estimate_kernel_call_us(program, plan, COSTS, DEVICE) < own_us / 4
    assert estimate_kernel_step_us(program, plan, COSTS, DEVICE) < own_us


def test_sums_of_lanes_are_not_put_together_lane_by_lane() -> None:
    """One of each step leaves the loop: each lane has a row of them in the program only."""
    body = """y = f32[8192] cosine(e0)
    s = f32[] reduce(y, f0), dimensions={0}, to_apply=add_f32
    row = f32[1] reshape(s)
    sums = f32[100] dynamic-update-slice(e1, row, i)"""
    constant = "f0 = f32[] constant(0)\n"
    shapes = ["f32[8192]", "f32[100]"]
    summed = counting_loop(constant + body, ["y", "sums"], shapes, trip_count=100)
    assert step_us(summed) < 1.5 * step_us(elementwise("cosine", 8192, 100))


def test_nested_loops_count_all_their_steps() -> None:
    nested = """
    w0 = (s32[], f32[4096]) tuple(zero, e0)
    w = (s32[], f32[4096]) while(w0), condition=inner_condition, body=inner_body
    y = f32[4096] get-tuple-element(w), index=1
    """
    inner = """
    inner_body {
      q = (s32[], f32[4096]) parameter(0)
      j = s32[] get-tuple-element(q), index=0
      x = f32[4096] get-tuple-element(q), index=1
      u = s32[] constant(1)
      j1 = s32[] add(j, u)
      x1 = f32[4096] sine(x)
      ROOT r = (s32[], f32[4096]) tuple(j1, x1)
    }
    inner_condition {
      q = (s32[], f32[4096]) parameter(0)
      j = s32[] get-tuple-element(q), index=0
      m = s32[] constant(50)
      ROOT go = pred[] compare(j, m), direction=LT
    }
    """
    module = counting_loop(nested, ["y"], ["f32[4096]"], trip_count=MANY, more=inner)
    assert step_us(module) == pytest.approx(50 * step_us(elementwise("sine", 4096)), rel=0.1)


def test_streams_are_moved() -> None:
    def stacking(rows: int) -> HloModule:
        return counting_loop(
            f"""r = f32[1,65536] reshape(e0)
            s = f32[{rows},65536] dynamic-update-slice(e1, r, i, zero)
            y = f32[65536] negate(e0)""",
            ["y", "s"],
            ["f32[65536]", f"f32[{rows},65536]"],
            trip_count=rows,
        )

    fast = dataclasses.replace(COSTS, memory_bytes_per_us=math.inf)
    slow = dataclasses.replace(COSTS, memory_bytes_per_us=1.0)
    assert 4 * 500**2 < CACHED_BYTES < 4 * 600**2
    assert least_us(500, fast) == least_us(500, slow)
    products_us = 600**2 * 32 / SHARED_BITS * WIDE * COSTS.kernel_operation_us
    assert least_us(600, fast) < least_us(600, slow) == pytest.approx(products_us)


def test_of_what_may_not_run_no_least_time_is_known() -> None:
    assert estimate_least_us(normalise(loop_of(elementwise("sine", 64))).loop, COSTS, DEVICE) == 0
    more = """
    product {
      m = f32[64,64] parameter(0)
      ROOT d = f32[64,64] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }
    nothing { ROOT n = f32[64,64] parameter(0) }
    """
    body = """
    is_odd = pred[] compare(i, one), direction=EQ
    y = f32[64,64] conditional(is_odd, e0, e0), true_computation=product, false_computation=nothing
    """
    module = counting_loop(body, ["y"], ["f32[64,64]"], more=more)
    assert estimate_least_us(normalise(loop_of(module)).loop, COSTS, DEVICE) == 0
