"""Layouts of work: what must hold of every one, and which kind a loop gets."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest

from fuselane.codegen.plan import Plan, make_plan, max_unrolled_for, measure
from fuselane.config import Options
from fuselane.device import DeviceDescription
from fuselane.lanes.program import LaneProgram
from tests.codegen.kernels import DEVICE, form_program
from tests.lanes.loops import counting_loop

SMALL: Final = dataclasses.replace(
    DEVICE, vector_bits=128, num_vector_registers=16, l1_bytes=16 * 1024, l2_bytes=64 * 1024
)
MANY_CORES: Final = dataclasses.replace(DEVICE, num_cores=64)


def small_state(lanes: int, trips: int = 10_000, dtype: str = "f32") -> LaneProgram:
    row = f"{dtype}[{lanes}]"
    body = f"y = {row} add(e0, e1)"
    return form_program(counting_loop(body, ["y", "e0"], [row, row], trip_count=trips))


def uncounted(lanes: int) -> LaneProgram:
    body = f"y = f32[{lanes}] add(e0, e0)"
    condition = "ROOT go = pred[] compare(i, e1), direction=LT"
    carried = [f"f32[{lanes}]", "s32[]"]
    program = form_program(counting_loop(body, ["y", "e1"], carried, condition=condition))
    assert program.loop.trip_count is None
    return program


def large_state(lanes: int) -> LaneProgram:
    shape = f"f32[{lanes},100]"
    body = f"y = {shape} reverse(e0), dimensions={{1}}"
    return form_program(counting_loop(body, ["y"], [shape], trip_count=10_000))


def streams(lanes: int) -> LaneProgram:
    body = f"""
      x = f32[1,{lanes}] dynamic-slice(e1, i, zero), dynamic_slice_sizes={{1,{lanes}}}
      x1 = f32[{lanes}] reshape(x)
      y = f32[{lanes}] add(e0, x1)"""
    carried = [f"f32[{lanes}]", f"f32[10000,{lanes}]"]
    return form_program(counting_loop(body, ["y", "e1"], carried, trip_count=10_000))


def shared_work(lanes: int) -> LaneProgram:
    names = ["e1", *(f"w{k}" for k in range(20))]
    work = "\n".join(f"{y} = f32[] sine({x})" for x, y in itertools.pairwise(names))
    body = f"""
      {work}
      ws = f32[{lanes}] broadcast(w19), dimensions={{}}
      y = f32[{lanes}] add(e0, ws)"""
    carried = [f"f32[{lanes}]", "f32[]"]
    return form_program(counting_loop(body, ["y", "w19"], carried, trip_count=10_000))


KINDS: Final[list[Any]] = [small_state, large_state, streams, shared_work]


def all_options() -> Iterator[Options]:
    for bits, unroll, tile, threads in itertools.product(
        (None, 128, 256, 512), (None, 1, 2, 16), (None, 1, 64, 100_000), (None, 1)
    ):
        yield Options(vector_bits=bits, unroll=unroll, tile_lanes=tile, threads=threads)


def check_plan(plan: Plan, lanes: int, device: DeviceDescription) -> None:
    if plan.width == 1:  # so few lanes of so many elements that they count as none
        assert lanes < 5
        assert (plan.num_tiles, plan.tile_vectors, plan.parallel) == (1, 1, False)
        return
    assert plan.tile_vectors >= 1
    assert plan.num_tiles >= 1
    assert plan.tile_lanes * plan.num_tiles >= lanes, "lanes are left out"
    assert plan.tile_lanes * (plan.num_tiles - 1) < lanes, "a tile has no lanes"
    assert plan.pitch >= plan.tile_lanes
    for element_bytes in (4, 8):
        assert plan.pitch * element_bytes % 4096, "rows whole pages apart"
    assert 1 <= plan.max_unrolled <= 64
    assert not plan.parallel or (plan.num_tiles > 1 and device.num_cores > 1)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("lanes", [2, 16, 17, 496, 2048, 65_536])
def test_tiles_cover_all_lanes(make: Any, lanes: int) -> None:
    """Whatever the machine and the options."""
    program = make(lanes)
    for device in (DEVICE, SMALL, MANY_CORES):
        for options in all_options():
            check_plan(make_plan(program, options, device), lanes, device)


def plan_of(program: LaneProgram, device: DeviceDescription = DEVICE, **options: Any) -> Plan:
    return make_plan(program, Options(**options), device)


@pytest.mark.parametrize(("lanes", "width"), [(17, 16), (16, 16), (9, 16), (8, 8), (5, 8), (3, 4)])
def test_few_lanes_have_narrow_vectors(lanes: int, width: int) -> None:
    """Where half a register of 512 bits, or a quarter, holds all of them."""
    wide = dataclasses.replace(DEVICE, vector_bits=512)
    assert plan_of(small_state(lanes), wide).vector_lanes == width
    assert plan_of(small_state(lanes), wide, vector_bits=512).vector_lanes == 16


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_vectors_are_as_wide_as_asked_for(bits: int) -> None:
    assert plan_of(small_state(2048), vector_bits=bits, unroll=1).width == bits // 32
    assert plan_of(small_state(2048), vector_bits=bits, unroll=4).width == 4 * bits // 32
    doubles = small_state(2048, dtype="f64")
    assert plan_of(doubles, vector_bits=bits, unroll=1).width == bits // 64
    narrow = dataclasses.replace(DEVICE, vector_bits=bits)
    assert plan_of(small_state(2048), narrow, unroll=1).width == bits // 32


@pytest.mark.parametrize(
    ("body", "dtype", "lanes", "width"),
    [
        ("y = {a} add(e0, e0)", "u8", 2048, 64),
        ("y = {a} add(e0, e0)", "u8", 60, 32),
        ("y = {a} add(e0, e0)", "u8", 20, 16),
        ("y = {a} add(e0, e0)", "s16", 2048, 32),
        ("y = {a} add(e0, e0)", "bf16", 2048, 16),
        ("y = {a} add(e0, e0)", "pred", 2048, 16),
        ("c = s32{n} convert(e0)\n d = s32{n} multiply(c, c)\n y = {a} convert(d)", "u8", 2048, 16),
        ("q = pred{n} compare(e0, e0), direction=LT\n y = {a} convert(q)", "u8", 2048, 64),
    ],
)
def test_narrow_numbers_fill_registers(body: str, dtype: str, lanes: int, width: int) -> None:
    """If they are most of the work, and there are as many lanes."""
    array = f"{dtype}[{lanes}]"
    text = body.format(a=array, n=f"[{lanes}]")
    program = form_program(counting_loop(text, ["y"], [array], trip_count=10_000))
    assert plan_of(program, unroll=1).width == width


@pytest.mark.parametrize(("lanes", "width"), [(64, 64), (60, 16)])
def test_narrow_numbers_have_no_masks_without_instructions(lanes: int, width: int) -> None:
    body = f"y = u8[{lanes}] add(e0, e0)"
    program = form_program(counting_loop(body, ["y"], [f"u8[{lanes}]"], trip_count=10_000))
    device = dataclasses.replace(DEVICE, has_masked_memory=False)
    assert plan_of(program, device, unroll=1).width == width


def test_integers_that_change_their_width_cost_shuffles() -> None:
    """For each register of the wider ones, of which four hold the bytes of one."""

    def cycles(more: str) -> float:
        body = f"""w = s32[4096] convert(e0)
          v = s32[4096] multiply(w, w)
          n = u8[4096] convert(v)
          {more}"""
        program = form_program(counting_loop(body, ["y"], ["u8[4096]"], trip_count=10_000))
        return plan_of(program, unroll=8).block_cycles / 8

    assert cycles("y = u8[4096] add(n, e0)") > 5
    products = [f"m{k + 1} = u8[4096] multiply(m{k}, e0)" for k in range(9)]
    of_bytes = "\n".join(["m0 = u8[4096] add(n, e0)", *products, "y = u8[4096] add(m9, e0)"])
    assert cycles(of_bytes) > 4 * 5 + 9 * 0.5


def test_small_state_stays_in_registers() -> None:
    """Several vectors at once hide latencies, as long as there are lanes for all threads."""
    plan = plan_of(small_state(65_536))
    assert plan.tile_vectors == 1
    assert plan.width > 16
    assert plan_of(small_state(16)).width == 16


@pytest.mark.parametrize("make", [large_state, streams, shared_work])
def test_what_wants_tiles_gets_them(make: Any) -> None:
    """State beyond the registers, rows of streams, work that all lanes share."""
    assert plan_of(make(65_536)).tile_vectors > 1


def chain(lanes: int, length: int, dtype: str = "f32") -> LaneProgram:
    """Returns a loop of sines, each of the one before."""
    row = f"{dtype}[{lanes}]"
    names = ["e0", *(f"x{k}" for k in range(length))]
    work = "\n".join(f"{y} = {row} sine({x})" for x, y in itertools.pairwise(names))
    return form_program(counting_loop(work, [names[-1]], [row], trip_count=10_000))


def vectors_at_once(program: LaneProgram, device: DeviceDescription = DEVICE) -> int:
    plan = plan_of(program, device)
    return plan.width // plan.vector_lanes


def test_what_waits_is_done_for_several_vectors_at_once() -> None:
    assert vectors_at_once(chain(65_536, 1)) >= 2
    assert vectors_at_once(chain(65_536, 4)) >= 2


def sorts(length: int) -> LaneProgram:
    """A row of each lane's own is put in order, and then changed."""
    shape = f"f32[4096,{length}]"
    more = """
    before {
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      c = s32[] parameter(2)
      d = s32[] parameter(3)
      ROOT less = pred[] compare(a, b), direction=LT
    }
    """
    body = f"""n = s32[4096,{length}] iota(), iota_dimension=1
      pair = ({shape}, s32[4096,{length}]) sort(e0, n), dimensions={{1}}, to_apply=before
      x = {shape} get-tuple-element(pair), index=0
      order = s32[4096,{length}] get-tuple-element(pair), index=1
      w = {shape} convert(order)
      y = {shape} multiply(x, w)
      z = {shape} sine(y)"""
    return form_program(counting_loop(body, ["z"], [shape], trip_count=10_000, more=more))


@pytest.mark.parametrize("length", [12, 24])
def test_what_is_sorted_fills_the_registers_by_itself(length: int) -> None:
    """As many exchanges wait for nothing: in registers, or in memory."""
    assert vectors_at_once(sorts(length)) == 1


def test_blocks_are_left_for_all_threads() -> None:
    eight = dataclasses.replace(DEVICE, num_cores=8)
    assert vectors_at_once(chain(8 * 16, 4), eight) == 1
    assert vectors_at_once(chain(8 * 32, 4), eight) == 2


def test_state_of_blocks_stays_in_the_cache() -> None:
    assert vectors_at_once(large_state(65_536)) == 1


def test_long_bodies_are_compiled_for_one_vector() -> None:
    assert vectors_at_once(chain(65_536, 400)) == 1


def test_partial_blocks_of_tiles_cost_masks() -> None:
    """Without registers for masks a width that divides the lanes is better."""
    narrow = dataclasses.replace(
        DEVICE, vector_bits=256, num_vector_registers=16, has_masked_memory=False
    )
    whole, rest = (vectors_at_once(streams(lanes), narrow) for lanes in (65_536, 65_536 + 8))
    assert rest == 1 < whole


def test_shared_work_is_spread_over_many_lanes() -> None:
    assert plan_of(shared_work(65_536)).tile_lanes > plan_of(large_state(65_536)).tile_lanes


def test_state_of_a_tile_stays_in_the_cache() -> None:
    for device in (DEVICE, SMALL):
        plan = plan_of(streams(65_536), device)
        assert plan.pitch * 4 <= device.l2_bytes // 2


@pytest.mark.parametrize("lanes", [64, 100, 1000])
@pytest.mark.parametrize("tile", [16, 64, 1000])
def test_tiles_are_as_large_as_asked_for(lanes: int, tile: int) -> None:
    plan = plan_of(small_state(lanes), unroll=1, tile_lanes=tile)
    assert plan.tile_lanes == min(tile // 16, -(-lanes // 16)) * 16


def test_threads_only_for_much_work() -> None:
    assert plan_of(small_state(65_536), MANY_CORES).parallel
    assert not plan_of(small_state(65_536, trips=1), DEVICE).parallel
    assert not plan_of(small_state(65_536), dataclasses.replace(DEVICE, num_cores=1)).parallel
    assert not plan_of(small_state(65_536), threads=1).parallel


def test_few_lanes_of_a_loop_of_unknown_length_stay_in_one_thread() -> None:
    assert not plan_of(uncounted(64), SMALL).parallel
    assert plan_of(uncounted(65_536), SMALL).parallel


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("cores", [2, 3, 8])
def test_every_thread_has_a_tile(make: Any, cores: int) -> None:
    device = dataclasses.replace(DEVICE, num_cores=cores)
    plan = plan_of(make(65_536), device)
    assert plan.parallel
    assert plan.num_tiles >= cores


def reversals(length: int, elements: int) -> LaneProgram:
    """Returns a loop that turns arrays of so many elements per lane round and round."""
    shape = f"f32[512,{elements}]"
    names = ["e0", *(f"x{k}" for k in range(length))]
    body = "\n".join(
        f"{y} = {shape} reverse({x}), dimensions={{1}}" for x, y in itertools.pairwise(names)
    )
    return form_program(counting_loop(body, [names[-1]], [shape]))


@pytest.mark.parametrize(
    ("length", "elements", "kept"),
    [(1, 30, 32), (30, 30, 32), (40, 30, 12), (60, 20, 12), (300, 12, 32), (600, 12, 8)],
)
def test_long_bodies_keep_fewer_elements_in_registers(
    length: int, elements: int, kept: int
) -> None:
    """Thousands of unrolled elements would take LLVM minutes."""
    assert plan_of(reversals(length, elements)).max_unrolled == kept


def test_gpus_keep_them_longer() -> None:
    """They have more registers, and their memory is far."""
    program = reversals(40, 30)
    assert max_unrolled_for(program, measure(program)) == 32


def test_work_is_measured() -> None:
    """Loops inside count as often as they run; what all lanes share counts by itself."""
    plan = plan_of(shared_work(512))
    assert plan.uniform_ops > 20 * plan.lane_ops
    assert plan_of(large_state(512)).lane_ops >= 1
