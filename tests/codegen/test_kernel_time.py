"""A kernel's estimated time: vectors, tiles, threads, what lanes share, streams, scalars."""

from __future__ import annotations

import dataclasses
from typing import Final

import jax
import jax.numpy as jnp
import pytest

from fuselane.analysis.machine_costs import CACHED_BYTES, MachineCosts
from fuselane.codegen.kernel_time import (
    estimate_kernel_call_us,
    estimate_kernel_step_us,
    estimate_straight_us,
    is_in_rows,
    is_leaping,
)
from fuselane.codegen.plan import count_passes, make_plan
from fuselane.config import Options
from fuselane.device import DeviceDescription, describe
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.small_calls import take_out_loops
from tests.codegen.kernels import form_program
from tests.hlo.xla import compiled
from tests.lanes.loops import counting_loop

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


def test_what_lanes_leave_for_a_dot_of_vectors_is_copied() -> None:
    """Eight lanes, the columns, have gaps between their rows, which the dot goes along. One thread
    without lanes is their rival."""

    def of(num_rows: int) -> float:
        def program(x: jax.Array, weights: jax.Array, rows: jax.Array) -> jax.Array:
            def step(_: int, x: jax.Array) -> jax.Array:
                return jnp.tanh(x + (x[rows] @ weights)[:64])

            return jax.lax.fori_loop(0, 200, step, x)

        floats, rows = jax.ShapeDtypeStruct((64, 8), "float32"), (num_rows,)
        indices = jax.ShapeDtypeStruct(rows, "int32")
        weights = jax.ShapeDtypeStruct((8, 1), "float32")
        module = HloModule.from_bytes(compiled(program, floats, weights, indices))
        take_out_loops(module)
        lanes = form_program(module).rival
        assert lanes is not None
        plan = make_plan(lanes, Options(), DEVICE)
        return estimate_kernel_step_us(lanes, plan, COSTS, DEVICE)

    more_cycles = (of(256) - of(128)) / COSTS.kernel_cycle_us
    assert 128 * 8 * 3 < more_cycles < 128 * 8 * 6


def test_products_of_dots_take_as_many_passes_as_registers_through_their_units() -> None:
    """All else waits rather than computes, and large weights are loaded meanwhile. Units as wide as
    registers wait for loads themselves."""

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

    assert more(dot(128)) == pytest.approx(2 / count_passes(512, 512), rel=0.05)
    assert 0.9 < more(dot(1024)) < 1.1
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

    slow = dataclasses.replace(COSTS, memory_bytes_per_us=1.0)
    assert step_us(stacking(1000), costs=slow) > 65536 * 4


def test_rows_that_are_read_come_from_memory() -> None:
    """Of a matrix that a loop reads row by row each step moves one, and what the lanes have of the
    next is pages away; what each step reads anew is in the cache by then."""

    def adding(rows: int) -> HloModule:
        table = f"f32[{rows},65536]"
        return counting_loop(
            """r = f32[1,65536] dynamic-slice(e1, i, zero), dynamic_slice_sizes={1,65536}
            s = f32[65536] reshape(r)
            y = f32[65536] add(e0, s)""",
            ["y", "e1"],
            ["f32[65536]", table],
            trip_count=rows,
        )

    slow = dataclasses.replace(COSTS, memory_bytes_per_us=1.0)
    assert step_us(adding(1000), costs=slow) > 65536 * 4
    assert step_us(adding(1000)) > step_us(adding(1000), costs=_like_cache(COSTS)) + 1
    twice = "a = f32[65536] add(e0, e1)\n y = f32[65536] add(a, e1)"
    again = counting_loop(twice, ["y", "e1"], ["f32[65536]"] * 2, trip_count=MANY)
    assert step_us(again, costs=slow) < 65536


def _like_cache(costs: MachineCosts) -> MachineCosts:
    return dataclasses.replace(costs, memory_bytes_per_us=costs.cached_bytes_per_us)


def test_large_state_is_copied_into_inner_loops_and_out_again() -> None:
    shape = "f32[60,60]"
    inner = f"""
    inner_body {{
      q = (s32[], {shape}) parameter(0)
      j = s32[] get-tuple-element(q), index=0
      x = {shape} get-tuple-element(q), index=1
      u = s32[] constant(1)
      j1 = s32[] add(j, u)
      x1 = {shape} reverse(x), dimensions={{0, 1}}
      x2 = {shape} add(x, x1)
      ROOT r = (s32[], {shape}) tuple(j1, x2)
    }}
    inner_condition {{
      q = (s32[], {shape}) parameter(0)
      j = s32[] get-tuple-element(q), index=0
      m = s32[] constant(50)
      ROOT go = pred[] compare(j, m), direction=LT
    }}
    """
    nested = f"""
    w0 = (s32[], {shape}) tuple(zero, e0)
    w = (s32[], {shape}) while(w0), condition=inner_condition, body=inner_body
    y = {shape} get-tuple-element(w), index=1
    """
    module = counting_loop(nested, ["y"], [shape], trip_count=MANY, more=inner)
    slow = dataclasses.replace(COSTS, cached_bytes_per_us=1.0)
    assert step_us(module, costs=slow) > 4 * 14_400


def scalars(body: str, shape: str) -> float:
    return step_us(counting_loop(body, ["y"], [shape], trip_count=MANY))


def test_arrays_whose_elements_branch_are_computed_one_by_one() -> None:
    """LLVM makes no vectors of a loop with a branch, nor of what else the loop computes."""
    shape = "f32[4096]"
    usual, branching = (
        f"a = {shape} reverse(e0), dimensions={{0}}\ny = {shape} {opcode}(a)"
        for opcode in ("exponential", "sine")
    )
    assert scalars(branching, shape) > 2 * scalars(usual, shape)


def test_functions_of_rows_take_what_they_take_of_vectors() -> None:
    """Measured, of 4,096 numbers: quotients 0.23 us, exponentials 1.4, hyperbolic tangents 1.2."""

    def function_us(opcode: str) -> float:
        shape = "f32[4096]"
        operands = "a, a" if opcode == "divide" else "a"
        body = f"a = {shape} reverse(e0), dimensions={{0}}\ny = {shape} {opcode}({operands})"
        return scalars(body, shape)

    assert function_us("divide") < 0.7
    assert 0.9 < function_us("exponential") < 2.0
    assert 0.7 < function_us("tanh") < 1.8


def test_rows_end_where_the_last_dimension_with_elements_does() -> None:
    flat, column = (
        f"r = f32[{shape}] reverse(e0), dimensions={{0}}\ny = f32[{shape}] negate(r)"
        for shape in ("4096", "4096,1")
    )
    assert scalars(column, "f32[4096,1]") == pytest.approx(scalars(flat, "f32[4096]"), rel=0.1)


def test_a_few_rows_are_reduced_in_vectors() -> None:
    """The best of 9 neighbours, of each point of a grid; not of so many that it takes a loop."""

    def reduced_us(count: int, dimension: int) -> float:
        whole, kept = (f"{count},64,64", "1,2") if dimension == 0 else (f"64,64,{count}", "0,1")
        body = f"""
          a = f32[64,64] reverse(e0), dimensions={{0,1}}
          b = f32[{whole}] broadcast(a), dimensions={{{kept}}}
          none = f32[] constant(0)
          y = f32[64,64] reduce(b, none), dimensions={{{dimension}}}, to_apply=max_f32"""
        return scalars(body, "f32[64,64]")

    assert reduced_us(9, 0) < reduced_us(9, 2) / 1.5
    assert reduced_us(40, 0) > 3 * reduced_us(9, 0)


def test_a_picked_number_takes_a_cycle() -> None:
    """Measured in sums over pairs of a graph: 8,000 numbers of 2,000."""
    body = """
      y = f32[8000] gather(e1, e2), offset_dims={}, collapsed_slice_dims={0},
        start_index_map={0}, index_vector_dim=1, slice_sizes={1}"""
    carried = ["f32[8000]", "f32[2000]", "s32[8000,1]"]
    module = counting_loop(body, ["y", "e1", "e2"], carried, trip_count=MANY)
    assert step_us(module) == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(("window", "most"), [(1, 3.0), (2, 6.0)])
def test_sparse_sums_take_what_was_measured(window: int, most: float) -> None:
    """2,000 rows scattered into 500: 1.6 us, of two numbers each 2.8, on a busy machine."""
    body = f"""
      half = f32[] constant(0.5)
      u = f32[2000,{window}] broadcast(half), dimensions={{}}
      y = f32[500,{window}] scatter(e0, e1, u), update_window_dims={{1}},
        inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1,
        to_apply=add_f32"""
    carried = [f"f32[500,{window}]", "s32[2000,1]"]
    module = counting_loop(body, ["y", "e1"], carried, trip_count=MANY)
    assert 0.5 < step_us(module) < most


def test_the_least_of_floats_takes_longer_to_scatter_than_their_sum() -> None:
    """3,000 edges relaxed into 500 nodes: 1.5 ns each, and 0.8 for a sum."""

    def of(computation: str) -> float:
        body = f"""
          half = f32[] constant(0.5)
          u = f32[3000] broadcast(half), dimensions={{}}
          y = f32[500] scatter(e0, e1, u), update_window_dims={{}}, inserted_window_dims={{0}},
            scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={computation}"""
        least = """
        least {
          p = f32[] parameter(0)
          q = f32[] parameter(1)
          ROOT s = f32[] minimum(p, q)
        }"""
        carried = ["f32[500]", "s32[3000,1]"]
        return step_us(counting_loop(body, ["y", "e1"], carried, trip_count=MANY, more=least))

    assert of("least") > 1.5 * of("add_f32")


def test_a_chain_of_scalars_takes_as_long_as_each_waits_for_the_one_before() -> None:
    chain = "a = f32[] multiply(e0, e0)\nb = f32[] multiply(a, e0)\ny = f32[] multiply(b, a)"
    one = scalars("y = f32[] multiply(e0, e0)", "f32[]")
    assert scalars(chain, "f32[]") == pytest.approx(3 * one)


def test_inverse_roots_of_scalars_wait_for_a_root_and_a_quotient() -> None:
    """As kernels without lanes have them: 25 cycles, and 37 where they are refined step by step."""
    module = counting_loop("y = f32[] rsqrt(e0)", ["y"], ["f32[]"], trip_count=MANY)
    assert step_us(module) == pytest.approx(25 * COSTS.kernel_cycle_us, rel=0.1)


def test_what_does_not_wait_runs_side_by_side() -> None:
    wide = "\n".join(f"a{k} = f32[] multiply(e0, c{k})" for k in range(2))
    constants = "c0 = f32[] constant(3)\nc1 = f32[] constant(5)"
    one = scalars("y = f32[] multiply(e0, e0)", "f32[]")
    both = scalars(f"{constants}\n{wide}\ny = f32[] multiply(a0, a1)", "f32[]")
    assert both == pytest.approx(2 * one)


def test_branches_count_by_halves() -> None:
    row = "f32[32]"
    branches = f"""
    cheap {{ ROOT x = {row} parameter(0) }}
    dear {{
      x = {row} parameter(0)
      r = {row} reverse(x), dimensions={{0}}
      ROOT y = {row} sine(r)
    }}
    """
    choice = f"""
    zeroth = f32[1] slice(e0), slice={{[0:1]}}
    first = f32[] reshape(zeroth)
    limit = f32[] constant(0.5)
    is_dear = pred[] compare(first, limit), direction=GT
    y = {row} conditional(is_dear, e0, e0), true_computation=dear, false_computation=cheap
    """
    always = f"r = {row} reverse(e0), dimensions={{0}}\ny = {row} sine(r)"
    chosen = counting_loop(choice, ["y"], [row], trip_count=MANY, more=branches)
    assert step_us(chosen) > scalars(always, row) / 2


def test_a_branch_may_leave_less_than_it_takes() -> None:
    """Unlike a loop's body, it carries nothing on; found by the fuzzer, with seed 900000645."""
    row, taken = "f32[32]", "(f32[32], f32[32])"
    branches = f"""
    both {{
      p = {taken} parameter(0)
      a = {row} get-tuple-element(p), index=0
      b = {row} get-tuple-element(p), index=1
      c = {row} reverse(b), dimensions={{0}}
      d = {row} add(a, c)
      ROOT e = {row} sine(d)
    }}
    one {{
      p = {taken} parameter(0)
      a = {row} get-tuple-element(p), index=1
      b = {row} reverse(a), dimensions={{0}}
      ROOT c = {row} sine(b)
    }}
    """
    choice = f"""
    zeroth = f32[1] slice(e0), slice={{[0:1]}}
    first = f32[] reshape(zeroth)
    limit = f32[] constant(0.5)
    is_less = pred[] compare(first, limit), direction=LT
    two = {taken} tuple(e0, e1)
    y = {row} conditional(is_less, two, two), true_computation=both, false_computation=one
    """
    always = f"r = {row} reverse(e0), dimensions={{0}}\ny = {row} sine(r)"
    chosen = counting_loop(choice, ["e1", "y"], [row] * 2, trip_count=MANY, more=branches)
    assert step_us(chosen) > scalars(always, row) / 2


def test_long_rows_of_uniform_arrays_are_made_vectors() -> None:
    def mixing(rows: int, columns: int) -> float:
        shape = f"f32[{rows},{columns}]"
        body = f"r = {shape} reverse(e0), dimensions={{0,1}}\ny = {shape} negate(r)"
        return scalars(body, shape)

    assert mixing(8, 512) < mixing(512, 8) / 2
    assert mixing(32, 512) == pytest.approx(4 * mixing(8, 512), rel=0.1)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_short_floats_are_widened_and_narrowed(half: str) -> None:
    """With lanes and without; moving them takes no longer."""

    def uniform(element: str) -> float:
        shape = f"{element}[32,512]"
        sums = "".join(f"sum{k + 1} = {shape} add(sum{k}, e0)\n" for k in range(8))
        body = f"sum0 = {shape} reverse(e0), dimensions={{0,1}}\n{sums}y = {shape} add(sum8, e0)"
        return scalars(body, shape)

    def lanes(element: str, opcode: str) -> float:
        shape = f"{element}[4096]"
        body = "\n".join(f"y{k} = {shape} {opcode}(e{k})" for k in range(4))
        names = [f"y{k}" for k in range(4)]
        return step_us(counting_loop(body, names, [shape] * 4, trip_count=MANY))

    assert uniform(half) > 1.5 * uniform("f32")
    assert lanes(half, "floor") > 1.5 * lanes("f32", "floor")
    assert lanes(half, "negate") == pytest.approx(lanes("f32", "negate"), rel=0.2)


def test_streams_that_all_lanes_share_are_not_copied() -> None:
    """A number of each step that lanes meet for, written down: however many there are."""

    def met(steps: int) -> float:
        body = f"""
          low = f32[] constant(0)
          best = f32[] reduce(e0, low), dimensions={{0}}, to_apply=larger
          row = f32[1] reshape(best)
          up = f32[{steps}] dynamic-update-slice(e1, row, i)
          spread = f32[64] broadcast(best), dimensions={{}}
          y = f32[64] multiply(e0, spread)"""
        more = """
          larger {
            a = f32[] parameter(0)
            b = f32[] parameter(1)
            ROOT c = f32[] maximum(a, b)
          }"""
        results, shapes = ["y", "up"], ["f32[64]", f"f32[{steps}]"]
        module = counting_loop(body, results, shapes, trip_count=steps, more=more)
        return step_us(module)

    assert met(100_000) == pytest.approx(met(1000), rel=0.1)


@pytest.mark.parametrize(("lanes", "is_far"), [(32_768, False), (1_048_576, True)])
def test_much_that_lanes_that_meet_pass_on_comes_from_memory(lanes: int, is_far: bool) -> None:
    """What is made before they meet and needed behind: written and read once."""
    shape = f"f32[{lanes}]"

    def from_memory_us(made: str) -> float:
        body = f"""
          zero_f = f32[] constant(0)
          s = {shape} {made}(e0)
          t = f32[] reduce(s, zero_f), dimensions={{0}}, to_apply=sum
          b = {shape} broadcast(t), dimensions={{}}
          y = {shape} divide({"e0" if made == "negate" else "s"}, b)"""
        more = "sum { l = f32[] parameter(0) r = f32[] parameter(1) ROOT o = f32[] add(l, r) }"
        module = counting_loop(body, ["y"], [shape], trip_count=MANY, more=more)
        cached = dataclasses.replace(COSTS, memory_bytes_per_us=COSTS.cached_bytes_per_us)
        return step_us(module) - step_us(module, costs=cached)

    num_bytes = 2 * lanes * 4
    passed_us = COSTS.moving_us(num_bytes, CACHED_BYTES + 1) - COSTS.moving_us(num_bytes, 0)
    more_us = from_memory_us("exponential") - from_memory_us("negate")
    assert more_us == pytest.approx(passed_us if is_far else 0.0, rel=0.01, abs=1e-6)


def test_large_grids_take_as_long_as_memory() -> None:
    def per_point(side: int) -> float:
        shape = f"f32[{side},{side}]"
        body = f"r = {shape} reverse(e0), dimensions={{0,1}}\ny = {shape} negate(r)"
        return scalars(body, shape) / side**2

    assert per_point(128) == pytest.approx(per_point(256), rel=0.1)
    assert per_point(1024) == pytest.approx(COSTS.moving_us(8, CACHED_BYTES + 1), rel=0.1)


def straight_us(opcode: str, lanes: int, cores: int = 1) -> float:
    return straight_module_us(elementwise(opcode, lanes, trip_count=1), cores)


def straight_module_us(module: HloModule, cores: int = 1) -> float:
    device = dataclasses.replace(DEVICE, num_cores=cores)
    program = form_program(module)
    return estimate_straight_us(program, make_plan(program, Options(), device), COSTS, device)


def test_straight_line_code_has_to_move_what_it_reads_and_writes() -> None:
    """A negation takes as long as memory does, which fetches what is written before; a sine longer,
    two threads half as long."""
    lanes = 10_000_000
    assert straight_us("negate", lanes) > COSTS.moving_us(12 * lanes, 12 * lanes)
    assert straight_us("sine", lanes) > 1.5 * straight_us("negate", lanes)
    assert straight_us("sine", lanes, cores=2) == pytest.approx(
        straight_us("sine", lanes) / 2, rel=0.1
    )


@pytest.mark.parametrize(
    "row", ["slice(e1), slice={[3:4],[0:20000]}", "dynamic-slice(e1, i, zero)"]
)
def test_straight_line_code_moves_no_more_rows_than_it_takes(row: str) -> None:
    """One row of an array, however many it has; not what a sum of all of them takes."""
    size = ", dynamic_slice_sizes={1,20000}" if row.startswith("dynamic") else ""

    def of(rows: int, taken: str) -> float:
        shapes = ["f32[20000]", f"f32[{rows},20000]"]
        return straight_module_us(counting_loop(taken, ["y", "e1"], shapes, trip_count=1))

    def one(rows: int) -> float:
        return of(rows, f"r = f32[1,20000] {row}{size}\ny = f32[20000] reshape(r)")

    every = """none = f32[] constant(0)
      y = f32[20000] reduce(e1, none), dimensions={0}, to_apply=add_f32"""
    assert one(8) < one(64) == pytest.approx(one(512), rel=0.1)  # from memory
    assert one(64) < 0.2 * of(64, every)


@pytest.mark.parametrize(
    ("sizes", "lane", "in_rows", "leaps"),
    [
        ((4096,), 0, False, False),
        ((4096, 7), 0, False, False),
        ((4096, 8), 0, True, False),
        ((16, 4096), 1, False, False),
        ((17, 4096), 1, False, True),
        ((17, 4096, 8), 1, True, False),
        ((4096, 8), None, False, False),
    ],
)
def test_where_lanes_lie(
    sizes: tuple[int, ...], lane: int | None, in_rows: bool, leaps: bool
) -> None:
    """Rows are transposed; lanes side by side are found again row after row."""
    shape = Shape.array(PrimitiveType.F32, sizes)
    assert (is_in_rows(shape, lane), is_leaping(shape, lane, 1.0)) == (in_rows, leaps)
    assert not is_leaping(shape, lane, 0.5)


def test_what_does_not_wait_for_the_last_step_begins_before_it_is_over() -> None:
    """A chain of six functions: of the counter, or of what the last step has made."""

    def taken(operand: str) -> float:
        first = f"a0 = f32[] {'convert(i)' if operand == 'i' else 'negate(e0)'}"
        roots = "\n".join(f"a{k + 1} = f32[] tanh(a{k})" for k in range(6))
        return scalars(f"{first}\n{roots}\ny = f32[] add(a6, e0)", "f32[]")

    assert taken("i") < taken("e0") / 2


def test_a_division_by_a_constant_is_none() -> None:
    divided = "c = s32[] constant(97)\na = s32[] remainder({0}, {1})\ny = s32[] add(a, e0)"
    known, unknown = (scalars(divided.format(*two), "s32[]") for two in (("e0", "c"), ("c", "e0")))
    assert known < unknown / 2


def test_single_integers_are_divided_by_a_constant_in_a_few_operations() -> None:
    """By the upper half of a product; vectors have no such product."""

    def taken(opcode: str) -> float:
        body = f"a = s32[] {opcode}(i, c)\ny = s32[] xor(a, e0)"
        return scalars(f"c = s32[] constant(97)\n{body}", "s32[]")

    assert taken("subtract") < taken("remainder") < 3 * taken("subtract")


def test_a_row_written_by_all_lanes_together_is_no_larger_than_it_is() -> None:
    """Of a stream with a thousand rows."""
    row = """s = f32[24] reduce(e0, f0), dimensions={0}, to_apply=add_f32
      m = f32[24] multiply(s, c)
      b = f32[64,24] broadcast(m), dimensions={1}
      x = f32[64,24] subtract(e0, b)
      r = f32[1,24] reshape(m)
      w = f32[%d,24] dynamic-update-slice(e1, r, i, zero)"""
    constants = """f0 = f32[] constant(0)
      k = f32[] constant(0.01)
      c = f32[24] broadcast(k), dimensions={}
      """

    def taken(rows: int) -> float:
        shapes = ["f32[64,24]", f"f32[{rows},24]"]
        return step_us(counting_loop(constants + row % rows, ["x", "w"], shapes, trip_count=rows))

    assert taken(1000) < 1.2 * taken(10)


def test_powers_of_a_constant_need_no_logarithm() -> None:
    def power(base: str) -> float:
        body = "c = f32[] constant(1.01)\nb = f32[4096] broadcast(c), dimensions={}\n"
        return step_us(counting_loop(f"{body}y = f32[4096] power({base})", ["y"], ["f32[4096]"]))

    assert power("b, e0") < power("e0, b") / 2


def test_lanes_that_read_at_one_place_load_neighbours() -> None:
    numbers = """offset_dims={{0}}, collapsed_slice_dims={{1}}, start_index_map={{1}},
        index_vector_dim=1, slice_sizes={{{lanes},1}}"""
    body = f"w = s32[200,1] negate(e1)\nx = f32[64,200] gather(e0, w), {numbers.format(lanes=64)}"
    module = counting_loop(body, ["x", "w"], ["f32[64,200]", "s32[200,1]"])
    program = form_program(module)
    assert program.num_lanes == 64
    loads = 200 * 64 / 8
    assert step_us(module) < loads * 10 * COSTS.kernel_cycle_us


def test_what_all_lanes_share_is_moved_in_vectors() -> None:
    """A table that moves up takes time by its size, and less than its elements one by one; one that
    is updated where it lies takes the same for all."""

    def of(size: int, made: str) -> float:
        table = f"f32[{size}]"
        body = f"""first = f32[1] slice(e0), slice={{[0:1]}}
          new = f32[1] negate(first)
          rest = f32[{size - 1}] slice(e0), slice={{[1:{size}]}}
          u = {table} {made}
          y = f32[64] negate(e1)"""
        return step_us(counting_loop(body, ["u", "y"], [table, "f32[64]"], trip_count=MANY))

    moved = "concatenate(rest, new), dimensions={0}"
    updated = "dynamic-update-slice(e0, new, i)"
    assert 0 < of(20_000, moved) - of(10_000, moved) < 10_000 * COSTS.kernel_scalar_us
    assert of(20_000, updated) == pytest.approx(of(10_000, updated), rel=0.05)
