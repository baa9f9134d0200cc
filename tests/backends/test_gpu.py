"""Loops as PTX: the code, how it is launched, and what XLA's GPU compiler makes of it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jax
import jax.numpy as jnp
import jaxlib
import pytest
from jax._src import xla_bridge
from jaxlib import _hlo, _jax  # type: ignore[attr-defined]
from jaxlib.mlir import ir
from llvmlite import binding

import fuselane
from fuselane import api, pipeline
from fuselane.analysis.gpu_time import Traffic, estimate_thread_step_us
from fuselane.backends import gpu as gpu_backend
from fuselane.backends.gpu import GpuBackend
from fuselane.cartpole.variants import VARIANTS
from fuselane.codegen.llvm import PTX_ARCHITECTURES, compile_ptx, needed_cuda, nvptx_target
from fuselane.codegen.nvptx import build_threads
from fuselane.codegen.plan import Plan
from fuselane.codegen.stream_rows import find_rows
from fuselane.codegen.thread_plan import (
    choose_block_threads,
    make_thread_plan,
    thread_step_us,
    with_staged,
)
from fuselane.config import Options, options_from
from fuselane.decisions import DecisionLog, Reason
from fuselane.errors import OptionError, UnsupportedError
from fuselane.gpu import GPUS, GpuDescription, describe_gpu
from fuselane.hlo.module import HloModule
from fuselane.lanes.form import form
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.small_calls import take_out_loops
from fuselane.lanes.tupled import make_tupled
from fuselane.runtime import driver, hook
from fuselane.runtime.ptx_call import LAUNCH_TARGET, PTX_TARGET, ptx_attributes
from fuselane.runtime.warning import forget_warnings
from fuselane.xla import toolchain
from fuselane.xla.capture import bytecode, lower
from fuselane.xla.captured import CapturedModule
from fuselane.xla.compilation import Source, capture_source, capture_sources
from fuselane.xla.ptxas import assemble
from fuselane.xla.targets import find_target
from fuselane.xla.toolchain import find_toolchain
from tests.backends.programs import CROWDS, LOOPS, picking
from tests.gpu_extra import needs_gpu_extra
from tests.hlo.xla import lowered

H100: Final = GPUS["h100"]
PRE_FUSION: Final = ("collective-optimizations", "simplification")


@cache
def compiled(program: Any, *arguments: Any) -> bytes:
    """Returns the module that XLA:CPU makes of a program, whose code nobody runs."""
    quick = {"xla_backend_optimization_level": 0}
    executable = lower(jax.jit(program), "cpu", *arguments).compile(quick).runtime_executable()
    data: bytes = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    return data


def lane_program(program: Any, *arguments: Any) -> LaneProgram:
    return lane_program_of(compiled(program, *arguments))


def lane_program_of(data: bytes, *, is_placed: bool = False) -> LaneProgram:
    """Returns the program of a module's last loop, with its first step known if `is_placed`, even
    where XLA has made a function of it."""
    module = HloModule.from_bytes(data)
    if is_placed:
        take_out_loops(module)
    loop = next(
        i for c in reversed(module.computations) for i in c.instructions if i.opcode == "while"
    )
    return form(module, make_tupled(loop))


def ptx_of(
    program: LaneProgram,
    gpu_name: str = "h100",
    plan: Plan | None = None,
    *,
    fast_math: bool = False,
) -> str:
    gpu = GPUS[gpu_name]
    plan = plan or make_thread_plan(program, gpu)
    code = build_threads(program, plan, gpu, fast_math=fast_math)
    return compile_ptx(code.ir, nvptx_target(gpu.compute_capability))


def lanes(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), jnp.float32)


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_has_ptx(name: str) -> None:
    ptx = ptx_of(lane_program(LOOPS[name], lanes(33)))
    assert ptx.count(".entry fuselane_kernel") == 1
    assert "%tid.x" in ptx and "%ctaid.x" in ptx


def test_neighbours_in_memory_are_moved_at_once() -> None:
    """Where lanes are not the minor dimension, a lane's part of a row is: here 16 bytes."""

    def one(x: jax.Array) -> Any:
        def step(s: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
            s = jnp.stack([s[0] + s[1] * t, s[1] * 0.9, s[2] + 1, s[3] * s[0]])
            return s, s

        return jax.lax.scan(step, jnp.stack([x] * 4), jnp.arange(8.0))[1]

    ptx = ptx_of(lane_program(jax.vmap(one, out_axes=1), lanes(2048)))
    assert ptx.count("st.global.v4") == 1


def test_long_code_of_few_elements_is_rolled() -> None:
    """Eight sums of eight exponentials each: one loop over the sums, not 64 copies."""

    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(_: Any, x: jax.Array) -> jax.Array:
            return jnp.log(jnp.exp(x[:, :, None] + w).sum(axis=1))

        return jax.lax.fori_loop(0, 100, step, x)

    struct = jax.ShapeDtypeStruct
    found = lane_program(program, struct((4096, 8), jnp.float32), struct((8, 8), jnp.float32))
    log2_e = "0f3FB8AA3B"
    assert ptx_of(found).count(log2_e) == 8


def test_rare_work_is_behind_a_vote() -> None:
    """A warp takes the branch as one, if one of its lanes needs to."""
    ptx = ptx_of(lane_program(LOOPS["guarded"], lanes(64)))
    body = ptx.partition(".visible .entry")[2]
    vote = body.index("vote.sync.any.pred")
    assert body.index("setp.gt.f32") < vote < body.index("fma.rn.f64")
    assert "bra" in body[vote : body.index("fma.rn.f64")]


def test_pieces_are_chosen_by_vote() -> None:
    """Of two versions of a normal random number's polynomials a warp works out one, never both."""
    ptx = ptx_of(lane_program(LOOPS["drawn"], lanes(64)))
    assert ptx.count("vote.sync.any.pred") == 1


def test_lanes_that_leave_one_by_one_do_not_vote() -> None:
    """Who has left the loop cannot vote in it, nor be waited for."""

    def program(x: jax.Array) -> jax.Array:
        def one(x: jax.Array) -> jax.Array:
            def step(x: jax.Array) -> jax.Array:
                return jnp.where(x > 30, jnp.log1p(jnp.abs(x)) ** 1.3, x * 1.3 + 0.2)

            return jax.lax.while_loop(lambda x: x < 35, step, x)

        return jax.vmap(one)(x)

    found = lane_program(program, lanes(64))
    assert found.loop.lane_condition is not None
    assert "vote" not in ptx_of(found)


def rows_of(length: int, num_lanes: int, dtype: Any = jnp.float32) -> LaneProgram:
    """A loop that reads and writes rows of several neighbours a lane."""

    def program(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = x * 0.5 + row.astype(x.dtype).sum(axis=1)
            return x, jnp.where((x > 3)[:, None], row, row + row)

        return jax.lax.scan(step, x, rows)

    return lane_program(
        program, lanes(num_lanes), jax.ShapeDtypeStruct((50, num_lanes, length), dtype)
    )


def cycles_of(length: int, dtype: Any = jnp.float32) -> dict[bool, tuple[float, float]]:
    """Returns for loads and stores what rows take as they lie and staged."""
    rows = find_rows(rows_of(length, 64, dtype), 32)
    return {row.is_stored: (row.direct_cycles(), row.staged_cycles) for row in rows}


def test_rows_that_are_no_multiples_of_16_bytes_want_staging() -> None:
    """By the lines and sectors that each access of a warp touches."""
    assert cycles_of(4) == {False: (4, 16), True: (8, 20)}
    assert cycles_of(3)[False] == (9, 13)  # 3 accesses that each touch 3 lines
    assert cycles_of(3)[True] == (18, 16)
    assert cycles_of(7)[False] == (49, 25)
    for length, dtype in ((5, jnp.float32), (7, jnp.float32), (15, jnp.int8)):
        assert all(direct > staged for direct, staged in cycles_of(length, dtype).values())
    for length, dtype in ((2, jnp.float32), (8, jnp.float32), (16, jnp.int8)):
        assert all(direct < staged for direct, staged in cycles_of(length, dtype).values())


def test_rows_are_staged_where_the_path_to_memory_holds_warps_up() -> None:
    """Not where few warps share it, nor where memory itself is slower."""
    plans = [
        make_thread_plan(rows_of(15, count, dtype), H100)
        for count, dtype in ((4096, jnp.int8), (400_001, jnp.int8), (400_001, jnp.float32))
    ]
    assert [plan.numbers()["staged_streams"] for plan in plans] == [0, 2, 2]
    ptx = ptx_of(rows_of(15, 400_001, jnp.int8), plan=plans[1])
    assert len(re.findall(r"bar\.warp\.sync", ptx)) == 4
    assert ptx.count("ld.shared") == ptx.count("st.shared") == 30


def test_rows_at_indices_of_a_lane_s_own_are_not_staged() -> None:
    def program(x: jax.Array, rows: jax.Array) -> jax.Array:
        def step(i: jax.Array, x: jax.Array) -> jax.Array:
            at = jnp.abs(x).astype(jnp.int32) % 50
            mine = jax.vmap(lambda lane, at: rows[at, lane])(jnp.arange(x.size), at)
            return x * 0.5 + mine.sum(axis=1)

        return jax.lax.fori_loop(0, 50, step, x)

    rows = jax.ShapeDtypeStruct((50, 64, 7), jnp.float32)
    found = find_rows(lane_program(program, lanes(64), rows), 32)
    assert not any(row.can_be_staged for row in found)


def pool_of(num_lanes: int, num_steps: int = 1000, num_rounds: int = 1) -> LaneProgram:
    """A loop that reads a row of a pool in each step, at an index that all lanes share."""

    def program(x: jax.Array, rows: jax.Array) -> jax.Array:
        def step(t: jax.Array, x: jax.Array) -> jax.Array:
            for _ in range(num_rounds):
                x = jnp.sin(x)
            return x + rows[t % 100]

        return jax.lax.fori_loop(0, num_steps, step, x)

    return lane_program(
        program, lanes(num_lanes), jax.ShapeDtypeStruct((100, num_lanes), jnp.float32)
    )


def steps_ahead(program: LaneProgram) -> int:
    """Returns by how many steps a loop's rows are read ahead, 0 if they are not."""
    gpu = make_thread_plan(program, H100).gpu
    assert gpu is not None
    return gpu.ahead.steps if gpu.ahead.reads else 0


def test_rows_are_loaded_before_the_steps_that_need_them() -> None:
    """As many in front of the loop as in it, where they would else be loaded where it begins."""
    ptx = ptx_of(pool_of(2048))
    front, rest = ptx.split("$L__BB0_1:", 1)
    loop = rest.split("\n.func")[0]
    assert front.count("ld.global.nc") == loop.count("ld.global.nc") == 8


def test_steps_are_put_together_where_they_are_short_and_none_is_left_over() -> None:
    assert steps_ahead(pool_of(2048)) == 8
    assert steps_ahead(pool_of(2048, num_steps=1005)) == 5
    assert steps_ahead(pool_of(2048, num_steps=997)) == 1
    assert 8 > steps_ahead(pool_of(2048, num_rounds=16)) > steps_ahead(pool_of(2048, num_rounds=80))
    assert make_thread_plan(pool_of(2048), H100).numbers()["reads_ahead"] == 1


def test_what_is_not_read_ahead() -> None:
    """Rows whose index a lane has of its own, of loops that a condition ends, or where lanes
    meet."""
    rows = jax.ShapeDtypeStruct((100, 64), jnp.float32)

    def own(x: jax.Array, rows: jax.Array) -> jax.Array:
        def step(t: jax.Array, x: jax.Array) -> jax.Array:
            at = jnp.abs(x).astype(jnp.int32) % 100
            return x + jax.vmap(lambda lane, at: rows[at, lane])(jnp.arange(x.size), at)

        return jax.lax.fori_loop(0, 1000, step, x)

    def while_(x: jax.Array, rows: jax.Array) -> Any:
        def step(carry: Any) -> Any:
            t, x = carry
            return t + 1, x + rows[t % 100]

        return jax.lax.while_loop(lambda c: c[0] * c[0] < 999, step, (jnp.int32(0), x))

    def meeting(x: jax.Array, rows: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 1000, lambda t, x: x / jnp.max(x) + rows[t % 100], x)

    for program in (own, while_, meeting):
        assert steps_ahead(lane_program(program, lanes(64), rows)) == 0


def test_remainders_divide_exactly() -> None:
    """Quotients are off by up to 2 ulp elsewhere: 127.5 would be left of 127.5 / 127.5."""

    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 50, lambda i, x: jnp.remainder(x / (x + 2), 0.7), x)

    ptx = ptx_of(lane_program(program, lanes(64)))
    assert "div.rn.f32" in ptx and "div.full.f32" in ptx


def test_arrays_that_lanes_pick_from_are_shared_memory_s() -> None:
    """Where many warps are held up by L1, which gives them a line at a time, and one block has room
    for the arrays of a warp: 48 KiB."""

    def choose(size: int, num_lanes: int, dtype: str = "int32") -> dict[str, float]:
        found = lane_program(picking(size, dtype), lanes(num_lanes))
        return make_thread_plan(found, H100).numbers()

    many = choose(64, 10**6)
    assert many["shared_arrays"] == 1
    assert choose(64, 2048)["shared_arrays"] == 0  # a warp or so to each multiprocessor
    assert choose(500, 10**6)["shared_arrays"] == 0  # 62.5 KiB a warp
    assert choose(300, 10**6)["block_threads"] < many["block_threads"]
    found = lane_program(picking(64), lanes(10**6))
    ptx = ptx_of(found)
    assert ".local" not in ptx
    assert ptx.count("ld.shared") >= 2 and ptx.count("st.shared") >= 1
    as_it_lies = ptx_of(lane_program(picking(64), lanes(2048)))
    assert ".local" not in as_it_lies and ".shared" not in as_it_lies


def test_arrays_at_indices_that_all_lanes_share_stay_in_local_memory() -> None:
    """Where a warp's accesses are one line."""

    def program(x: jax.Array) -> jax.Array:
        def one(x: jax.Array) -> jax.Array:
            def step(i: jax.Array, ring: jax.Array) -> jax.Array:
                return ring.at[i % 64].set(ring[(i + 7) % 64] * 0.5 + x)

            return jax.lax.fori_loop(0, 500, step, jnp.zeros(64))

        return jax.vmap(one)(x)

    found = lane_program(program, lanes(10**6))
    assert make_thread_plan(found, H100).numbers()["shared_arrays"] == 0
    assert ".local" in ptx_of(found)


def test_threads_share_what_all_lanes_do_where_there_are_lanes_enough() -> None:
    """Keys are split once for two or four lanes where issuing holds threads up, not waiting."""

    def choose(num_lanes: int, name: str = "drawn", unroll: int | None = None) -> Plan:
        program = lane_program(LOOPS[name], lanes(num_lanes))
        return make_thread_plan(program, H100, Options(unroll=unroll))

    assert [choose(count).tile_lanes for count in (64, 4096, 10**6)] == [1, 1, 4]
    assert choose(10**6 + 1).tile_lanes == 1  # masks for the last thread alone are not worth it
    assert choose(10**6, "angles").tile_lanes == 1  # shares next to nothing
    assert choose(10**6, "collatz").tile_lanes == 1  # lanes leave one by one
    forced = choose(999, unroll=4)
    assert (forced.tile_lanes, forced.num_tiles) == (4, 250)
    assert choose(999, "means", unroll=4).width == 1  # lanes meet
    registers = [choose(999, unroll=count).numbers()["registers"] for count in (1, 2, 4)]
    assert registers == sorted(set(registers))


def test_lanes_of_a_thread_are_moved_at_once() -> None:
    found = lane_program(LOOPS["rows"], lanes(4096))
    ptx = ptx_of(found, plan=make_thread_plan(found, H100, Options(unroll=4)))
    assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx
    assert "mul.wide.u32" in ptx


def test_layouts_are_recorded() -> None:
    data, log = compiled(LOOPS["drawn"], lanes(10**6)), DecisionLog()
    options = Options(cache_mib=0)
    pipeline.transform(data, options, log, GpuBackend(options, H100))
    numbers = next(iter(log)).decision.numbers
    assert (numbers["lanes_per_thread"], numbers["block_threads"]) == (4, 128)


def _all_functions(x: jax.Array) -> jax.Array:
    y = jnp.tanh(jnp.sin(x)) + jax.nn.sigmoid(jnp.cos(x))
    y = jnp.log(jnp.exp(y) + 1) / (1 + jnp.sqrt(jnp.abs(x))) + jax.lax.rsqrt(jnp.abs(x) + 1)
    return y / 3


APPROXIMATE: Final = frozenset(
    f"{name}.approx.f32"
    for name in ("cos", "div", "ex2", "lg2", "rcp", "rsqrt", "sin", "sqrt", "tanh")
)


def test_approximate_instructions_are_for_who_asks() -> None:
    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda i, x: _all_functions(x), x)

    found = lane_program(program, lanes(64))
    exact = set(re.findall(r"\w+\.approx", ptx_of(found)))
    assert exact <= {"rcp.approx"}  # for 1 / x, within an ulp
    fast = ptx_of(found, fast_math=True)
    assert set(re.findall(r"\w+\.approx\.f32", fast)) == APPROXIMATE
    assert len(re.findall(r"div\.approx", fast)) == 1  # by 3 is multiplied
    older = set(re.findall(r"\w+\.approx\.f32", ptx_of(found, "v100", fast_math=True)))
    assert older == APPROXIMATE - {"tanh.approx.f32"}
    plan = make_thread_plan(found, H100, Options(unroll=2))
    assert len(re.findall(r"tanh\.approx", ptx_of(found, plan=plan, fast_math=True))) == 2


def test_fast_math_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE_FAST_MATH", "1")
    options = options_from({"cache_mib": 0, "min_gain": 0})
    data = compiled(LOOPS["angles"], lanes(64))
    out = pipeline.transform(data, options, DecisionLog(), GpuBackend(options, H100))
    assert out is not None
    assert "sin.approx.f32" in kernel_data(out) and "ex2.approx.f32" in kernel_data(out)


def test_floats_are_divided_as_xla_does() -> None:
    ptx = ptx_of(lane_program(lambda x: jax.lax.fori_loop(0, 9, lambda i, x: 1 / x, x), lanes(8)))
    assert "div.full.f32" in ptx or "rcp" in ptx


def test_state_stays_in_registers() -> None:
    """Lanes and counter are loaded once, in front of the loop, and stored once, behind it."""

    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda i, x: x * x + 1, x)

    ptx = ptx_of(lane_program(program, lanes(64)))
    accesses = re.findall(r"\b(?:ld|st)\.global|\bmul\.(?:rn\.)?f32|fma\.rn\.f32", ptx)
    assert accesses[:2] == ["ld.global"] * 2
    assert accesses[-2:] == ["st.global"] * 2
    assert not any("global" in access for access in accesses[2:-2])
    assert ".local" not in ptx


@pytest.mark.parametrize(("trip_count", "copies"), [(8, 1), (600, 4), (601, 4)])
def test_short_loops_are_unrolled_before_ptxas_would(trip_count: int, copies: int) -> None:
    """Which would write out all 600 steps; of 601, the loop is left in the middle."""

    def program(x: jax.Array) -> Any:
        rows = jax.lax.broadcasted_iota(jnp.float32, (trip_count, *x.shape), 0)
        return jax.lax.scan(lambda x, row: (x / (x + row), x), x, rows)

    ptx = ptx_of(lane_program_of(compiled(program, lanes(64)), is_placed=True))
    assert ptx.count("div.full.f32") == copies
    assert ptx.count('.pragma "nounroll"') == (1 if copies > 1 else 0)


@pytest.mark.parametrize("gpu_name", ["v100", "rtx2080ti", "a100", "l4", "h100", "b200"])
def test_code_is_for_the_gpu(gpu_name: str) -> None:
    major, minor = GPUS[gpu_name].compute_capability
    assert f".target sm_{major}{minor}" in ptx_of(lane_program(LOOPS["rows"], lanes(8)), gpu_name)


def test_code_is_the_same_each_time() -> None:
    assert ptx_of(lane_program(LOOPS["drawn"], lanes(40))) == ptx_of(
        lane_program(LOOPS["drawn"], lanes(40))
    )


def test_random_bits_of_several_lanes_are_not_fenced() -> None:
    """What hides them from LLVM's search for known bits on CPUs has no code on NVIDIA's GPUs."""
    program = lane_program(LOOPS["drawn"], lanes(1024))
    code = build_threads(program, make_thread_plan(program, H100, Options(unroll=2)), H100)
    assert "llvm.fshl.v2i32" in code.ir
    assert "arithmetic.fence" not in code.ir


@pytest.mark.parametrize(
    ("num_lanes", "grid_blocks", "block_threads"),
    [(1, 1, 32), (2, 1, 32), (31, 1, 32), (33, 2, 32), (1025, 33, 32), (10**6, 7813, 128)],
)
@pytest.mark.parametrize("name", ["angles", "rows", "collatz"])
def test_every_lane_has_a_thread(
    name: str, num_lanes: int, grid_blocks: int, block_threads: int
) -> None:
    program = lane_program(LOOPS[name], lanes(num_lanes))
    code = build_threads(program, make_thread_plan(program, H100), H100)
    assert (code.grid_blocks, code.block_threads) == (grid_blocks, block_threads)
    leave = "llvm.nvvm.exit" in code.ir
    assert leave == (num_lanes % block_threads != 0)


def test_nothing_is_launched_for_no_lanes() -> None:
    """A grid of no blocks would be an error."""
    data, options = compiled(LOOPS["rows"], lanes(0)), Options(cache_mib=0, min_gain=0)
    out = pipeline.transform(data, options, DecisionLog(), GpuBackend(options, H100))
    assert out is None or PTX_TARGET.encode() not in out


def test_blocks_leave_no_multiprocessor_idle() -> None:
    for num_threads in (1, 1000, 2048, 10_000, 200_000):
        block = choose_block_threads(num_threads, H100)
        assert block == 32 or num_threads >= block * H100.num_multiprocessors


def meeting(num_lanes: int) -> LaneProgram:
    """A loop whose lanes need their mean in each step."""

    def program(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda i, x: x * 0.5 + jnp.mean(x), x)

    found = lane_program(program, lanes(num_lanes))
    assert found.meetings
    return found


def test_lanes_that_meet_are_threads_of_one_block() -> None:
    """Warps add up by shuffles and pass their sums through shared memory, between two barriers."""
    program = meeting(500)
    code = build_threads(program, make_thread_plan(program, H100), H100)
    assert (code.grid_blocks, code.block_threads) == (1, 512)
    ptx = ptx_of(program)
    assert ".maxntid 512" in ptx
    assert len(re.findall(r"shfl\.sync\.down", ptx)) == 5
    assert len(re.findall(r"bar\.sync", ptx)) == 2
    assert len(re.findall(r"ld\.shared\.v2\.b64", ptx)) == 8  # 16 warps
    assert "st.shared" in ptx
    assert ".local" not in ptx


def test_threads_of_a_large_block_have_fewer_registers() -> None:
    """128 each, of which 24 are for other things."""

    def plan_of(num_lanes: int) -> dict[str, float]:
        def program(x: jax.Array) -> Any:
            state = tuple(x * number for number in range(120))

            def step(_: Any, s: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                return (*(v + 1 for v in s[1:]), s[0] * 0.5 + jnp.mean(s[0]))

            return jax.lax.fori_loop(0, 9, step, state)

        found = lane_program_of(lowered(program, lanes(num_lanes)))
        return make_thread_plan(found, H100).numbers()

    few, many = plan_of(100), plan_of(500)
    assert few["registers"] > 128 and few["spilled_values"] == 0
    assert many["registers"] == 128 and many["spilled_values"] > 10


def test_one_warp_meets_without_barriers() -> None:
    ptx = ptx_of(meeting(20))
    assert ptx.count("shfl.sync.down") == 5 and ptx.count("shfl.sync.idx") == 1
    assert "bar.sync" not in ptx and ".shared" not in ptx


def test_threads_run_several_lanes_where_many_meet() -> None:
    plan = make_thread_plan(meeting(5000), H100)
    assert (plan.num_tiles, plan.tile_vectors) == (512, 10)


def seeing(name: str, num_lanes: int) -> LaneProgram:
    """A loop whose lanes see each other, which may be another form of one without lanes."""
    found = lane_program(CROWDS[name], lanes(num_lanes))
    found = found.rival or found
    assert found.shared and found.num_lanes == num_lanes
    return found


def test_few_lanes_that_see_each_other_are_better_than_none() -> None:
    """One thread would have all of them."""
    data, log = compiled(CROWDS["attracting"], lanes(70)), DecisionLog()
    options = Options(cache_mib=0, min_gain=0)
    pipeline.transform(data, options, log, GpuBackend(options, H100))
    (decision,) = log
    assert decision.fused and decision.lanes == 70


def test_lanes_that_see_each_other_are_threads_of_one_block() -> None:
    """What they see is in shared memory; they wait in front of and behind writing there."""
    ptx = ptx_of(seeing("mating", 500))
    assert ".maxntid 512" in ptx
    (shared,) = re.findall(r"\.shared \.align 128 \.b8 lanes0\[(\d+)\]", ptx)
    assert int(shared) == 500 * 4
    body = ptx.partition(".visible .entry")[2]
    written = body.index("st.shared.b32")
    assert body.index("bar.sync") < written < body.index("bar.sync", written)
    assert body.index("ld.shared.b32") > body.index("bar.sync", written)


def test_lanes_that_see_too_much_of_each_other_are_left_to_xla() -> None:
    found = seeing("attracting", 20_000)
    with pytest.raises(UnsupportedError, match=r"see 48,896 bytes of each other's, not 80,000"):
        GpuBackend(Options(), H100).plan(found)


@pytest.mark.parametrize("num_lanes", [100_001, 102_400])
def test_sums_that_leave_are_one_row_for_each_warp(num_lanes: int) -> None:
    program = lane_program(LOOPS["totals"], lanes(num_lanes))
    assert program.folds
    code = build_threads(program, make_thread_plan(program, H100), H100)
    assert code.num_rows == math.ceil(num_lanes / 32)
    assert ptx_of(program).count("shfl.sync.down") >= 5


def test_sums_that_would_fill_the_memory_are_refused() -> None:
    def program(x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, _: (x * 0.5, x.sum()), x, None, length=100_000)

    found = lane_program(program, lanes(10**6))
    with pytest.raises(UnsupportedError) as caught:
        build_threads(found, make_thread_plan(found, H100), H100)
    assert caught.value.decision.reason is Reason.UNSUPPORTED_STRUCTURE


@pytest.mark.parametrize("target", [PTX_TARGET, LAUNCH_TARGET])
def test_attributes_are_what_mlir_reads(target: str) -> None:
    text = 'a "b"\\\n'
    attributes = ptx_attributes(
        target, text, "k", grid_blocks=3, block_threads=64, num_inputs=2, num_results=1
    )
    with ir.Context():
        parsed = ir.DictAttr(ir.Attribute.parse(attributes.decode()))
        assert ir.StringAttr(parsed["kernel_data"]).value == text
        assert ir.IntegerAttr(parsed["grid_x"]).value == 3
        assert ir.IntegerAttr(parsed["block_x"]).value == 64
        if target == LAUNCH_TARGET:
            assert ir.IntegerAttr(parsed["num_inputs"]).value == 2
        else:
            indices = ir.ArrayAttr(parsed["output_indices"])
            assert [ir.IntegerAttr(index).value for index in indices] == [2]


def looped() -> bytes:
    """A loop as the root of a module, of which it returns an element it does not change."""
    return _hlo.hlo_module_from_text(
        """HloModule forwarding
        body {
          p = (s32[], f32[64], f32[64]) parameter(0)
          i = s32[] get-tuple-element(p), index=0
          x = f32[64] get-tuple-element(p), index=1
          w = f32[64] get-tuple-element(p), index=2
          one = s32[] constant(1)
          next = s32[] add(i, one)
          product = f32[64] multiply(x, w)
          ROOT t = (s32[], f32[64], f32[64]) tuple(next, product, w)
        }
        condition {
          p = (s32[], f32[64], f32[64]) parameter(0)
          i = s32[] get-tuple-element(p), index=0
          end = s32[] constant(1000)
          ROOT c = pred[] compare(i, end), direction=LT
        }
        ENTRY main {
          zero = s32[] constant(0)
          x = f32[64] parameter(0)
          w = f32[64] parameter(1)
          t = (s32[], f32[64], f32[64]) tuple(zero, x, w)
          ROOT loop = (s32[], f32[64], f32[64]) while(t), condition=condition, body=body
        }"""
    ).as_serialized_hlo_module_proto()


def test_every_result_is_named_as_one() -> None:
    """XLA takes an argument that is not named as a result for an operand, and finds none left."""
    options = Options(min_gain=0, cache_mib=0, verify_hlo=True)
    out = pipeline.transform(looped(), options, DecisionLog(), GpuBackend(options, H100))
    assert out is not None
    (call,) = (i for i in HloModule.from_bytes(out).entry.instructions if i.opcode == "custom-call")
    assert len(call.shape.tuple_shapes) == 3  # the third is `w`, which the kernel only reads
    with ir.Context():
        parsed = ir.DictAttr(ir.Attribute.parse(call.backend_config.decode()))
        indices = [ir.IntegerAttr(i).value for i in ir.ArrayAttr(parsed["output_indices"])]
    assert indices == [2, 3, 4]


@needs_gpu_extra
def test_xla_takes_calls_with_more_results_than_the_kernel() -> None:
    options = Options(min_gain=0, cache_mib=0)
    out = pipeline.transform(looped(), options, DecisionLog(), GpuBackend(options, H100))
    source = Source(form="mlir", data=_jax.mlir.hlo_to_stablehlo(out))
    thunks = capture_source(source, find_target("h100"), max_s=300).thunks
    assert thunks.count("fuselane_kernel") == 1


@dataclass
class Client:
    """A client of XLA's, and its only device."""

    device_kind: str
    compute_capability: str
    platform: str = "cuda"
    core_count: int = 20

    def local_devices(self) -> list[Any]:
        return [self]


OURS: Final = Client("NVIDIA H200", "9.0")
OLD: Final = Client("NVIDIA GeForce GTX 1080", "6.1")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int, Callable[[bytes], Any]]]:
    """What is registered with GPU compilers, with whose, at which stage."""
    found: list[tuple[Any, int, Callable[[bytes], Any]]] = []

    def register(compiler: Any, name: str, stage: int, callback: Callable[[bytes], Any]) -> None:
        found.append((compiler, stage, callback))

    monkeypatch.setattr(jaxlib._xla, "register_xla_transform_c_api", register)
    return found


def echo(gpu: GpuDescription, module: bytes) -> bytes:
    return gpu.name.encode() + module


def echo_late(gpu: GpuDescription, module: bytes) -> bytes:
    return b"late " + gpu.name.encode() + module


STAGES: Final = ((0, echo), (1, echo_late))


def test_old_gpus_are_left_to_xla_with_a_warning(registered: list[Any]) -> None:
    forget_warnings()
    with pytest.warns(UserWarning, match=r"GTX 1080 to XLA: .* 7\.0 or later, not 6\.1"):
        hook._register_client(STAGES, OLD)
    assert not registered


@pytest.mark.parametrize(
    ("version", "cuda"), [(11070, (11, 7)), (11080, (11, 8)), (13000, (13, 0))]
)
def test_old_drivers_are_left_alone_with_a_warning(
    version: int, cuda: tuple[int, int], registered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not read the PTX an H200 gets, of CUDA 11.8."""

    def tell(place: Any) -> int:
        place._obj.value = version
        return 0

    library = SimpleNamespace(cuDriverGetVersion=tell)
    monkeypatch.setattr(driver, "open_driver", lambda: library)
    assert driver.driver_version() == cuda
    forget_warnings()
    if cuda >= (11, 8):
        hook._register_client(STAGES, OURS)
        assert registered
        return
    said = r"H200 to XLA: .* driver for CUDA 11\.8 or later, not 11\.7; install a newer driver\.$"
    with pytest.warns(UserWarning, match=said):
        hook._register_client(STAGES, OURS)
    assert not registered


def test_without_a_driver_nothing_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_NAME", "libcuda.so.none")
    assert driver.open_driver() is None and driver.driver_version() is None


def test_clients_of_jax_0_10_are_hooked(registered: list[Any]) -> None:
    client = Client("NVIDIA H200", "9.0")
    hook._register_client(STAGES, client)
    hook._register_client(STAGES, Client("cpu", "", platform="cpu"))
    (_, before, callback), (_, after, callback_late) = registered
    assert all(compiler is client for compiler, _, _ in registered)
    assert (before, after) == (0, 1)
    assert callback(b" module") == b"NVIDIA H200 module"
    assert callback_late(b" module") == b"late NVIDIA H200 module"


def test_plug_ins_of_jax_0_11_are_hooked(
    registered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a client; only that for CUDA, and only for GPUs that are there."""
    cuda, other = object(), object()
    factories = {"cuda": SimpleNamespace(c_api=cuda), "tpu": SimpleNamespace(c_api=other)}
    monkeypatch.setattr(xla_bridge, "_backend_factories", factories)
    monkeypatch.setattr(xla_bridge, "_plugins_registered", True)
    monkeypatch.delattr(xla_bridge, "register_backend_initialization_hook", raising=False)
    hook.install_on_gpus(echo, echo_late)
    (_, _, callback), (_, _, _) = registered
    assert [(compiler, stage) for compiler, stage, _ in registered] == [(cuda, 0), (cuda, 1)]
    monkeypatch.setattr(xla_bridge, "_backends", {})
    assert callback(b" module") is None
    monkeypatch.setattr(xla_bridge, "_backends", {"cuda": Client("NVIDIA H200", "9.0")})
    assert callback(b" module") == b"NVIDIA H200 module"


def test_some_strategies_are_for_cpus(
    registered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for one on a GPU is told once that XLA's own fusions stay."""
    forget_warnings()
    api._prepare_once.cache_clear()
    api._install_on_gpus.cache_clear()
    monkeypatch.setattr(
        xla_bridge, "register_backend_initialization_hook", lambda tell: tell(OURS), raising=False
    )
    monkeypatch.setattr(xla_bridge, "register_plugin_callbacks", lambda _: None, raising=False)
    with fuselane.enabled(fusion="fuselane", cache_mib=0):
        (_, _, before), (_, _, after) = registered
        assert before(b"module") is None
        with pytest.warns(UserWarning, match=r"programs for GPUs keep XLA's own"):
            assert after(b"module") is None
    assert after(b"module") is None


def test_whoever_can_launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XLA by default, but for a compiler that does not know the call."""
    library = tmp_path / "xla_cuda_plugin.so"

    def launcher(knows: bytes, launch: str = "auto") -> str:
        library.write_bytes(b"some\0texts\0" + knows)
        toolchain.knows_call.cache_clear()
        return api._launch_target(Options(gpu_launch=launch))

    found = toolchain.Toolchain(library=library)
    monkeypatch.setattr(toolchain, "find_toolchain", lambda: found)
    assert launcher(PTX_TARGET.encode()) == PTX_TARGET
    assert launcher(b"__gpu$xla.gpu.triton") == LAUNCH_TARGET
    assert launcher(b"", "xla") == PTX_TARGET
    assert launcher(PTX_TARGET.encode(), "fuselane") == LAUNCH_TARGET
    monkeypatch.undo()
    toolchain.knows_call.cache_clear()
    assert toolchain.knows_call(PTX_TARGET), "XLA's own, and those that are nowhere to be found"
    with pytest.raises(OptionError, match="gpu_launch has to be auto, xla or fuselane"):
        Options(gpu_launch="cuda")


def test_unknown_architectures_get_code_for_older_ones() -> None:
    """PTX runs on all later GPUs; its version is the first that knows the architecture, so that the
    oldest driver for it takes it."""
    cpus = {nvptx_target(version).cpu for version in ((10, 3), (11, 0), (13, 7))}
    assert cpus == {"sm_100", "sm_120"}
    for architecture, cuda in PTX_ARCHITECTURES.items():
        text = compile_ptx("define void @f() { ret void }", nvptx_target(architecture))
        (version,) = re.findall(r"\.version (\S+)", text)
        assert _FIRST_CUDA[version] == cuda == needed_cuda(architecture)


_FIRST_CUDA: Final = {
    "6.0": (9, 0),
    "6.3": (10, 0),
    "7.0": (11, 0),
    "7.1": (11, 1),
    "7.8": (11, 8),
    "8.6": (12, 7),
    "8.7": (12, 8),
}
"""Versions of PTX, with the CUDA that came with each; from the PTX ISA's release history."""


def test_what_llvm_has_no_code_for_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """An architecture that is too old, as a file may describe one, and LLVM without NVIDIA's."""

    def decide(gpu: GpuDescription) -> str:
        options, log = Options(min_gain=0, cache_mib=0), DecisionLog()
        assert pipeline.transform(data, options, log, GpuBackend(options, gpu)) is None
        (decision,) = log
        assert decision.reason is Reason.UNSUPPORTED_TARGET
        return decision.decision.sentence

    data = compiled(LOOPS["angles"], lanes(64))
    old = decide(replace(H100, compute_capability=(6, 1)))
    assert old.endswith(": kernels need compute capability 7.0 or later, not 6.1.")

    def find(triple: str) -> Any:
        raise RuntimeError("No available targets are compatible with triple")

    monkeypatch.setattr(binding.Target, "from_triple", find)
    assert "LLVM was built without NVIDIA's; `pip install llvmlite`" in decide(H100)


def test_unknown_gpus_are_described_by_the_closest() -> None:
    laptop = describe_gpu("NVIDIA Laptop GPU", (8, 9), 24)
    assert laptop is not None and laptop.compute_capability == (8, 9)
    assert laptop.num_multiprocessors == 24
    assert describe_gpu("NVIDIA H200", (9, 0), 132) is GPUS["h200"]
    assert describe_gpu("GeForce GTX 680", (3, 0), 8) is None


def test_modules_keep_what_is_not_a_loop() -> None:
    data = compiled(lambda x: LOOPS["angles"](x * 2) + 1, lanes(100))
    log = DecisionLog()
    options = Options(min_gain=0, cache_mib=0, verify_hlo=True)
    out = pipeline.transform(data, options, log, GpuBackend(options, H100))
    assert out is not None
    (decision,) = log
    assert decision.fused and decision.lanes == 100
    calls = [i for i in HloModule.from_bytes(out).entry.instructions if i.opcode == "custom-call"]
    assert [call.custom_call_target for call in calls] == [PTX_TARGET]


def test_estimates_grow_with_what_there_is_to_do() -> None:
    def step_us(num_threads: int, **more: Any) -> float:
        return estimate_thread_step_us(100.0, num_threads, H100, **more)

    assert step_us(32) == step_us(10_000) < step_us(10**6)
    assert step_us(512) < step_us(512, num_meetings=1) < step_us(512, num_meetings=2)
    bound_by_memory = step_us(10**6, traffic=Traffic(written_bytes=3.35e9))
    assert bound_by_memory == pytest.approx(1e3, rel=0.01)


def test_lanes_that_meet_are_left_to_xla_where_one_multiprocessor_takes_too_long() -> None:
    """A mean in each step: XLA launches a few kernels, which have the whole card."""

    def decide(num_lanes: int) -> bool:
        def program(x: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x) + jnp.mean(x), x)

        options, log = Options(cache_mib=0), DecisionLog()
        data = compiled(program, lanes(num_lanes))
        pipeline.transform(data, options, log, GpuBackend(options, H100))
        return next(iter(log)).decision.fused

    assert decide(1000)
    assert not decide(1_000_000)


def test_what_xla_has_to_compute_as_well_is_reckoned_with() -> None:
    """Its threads draw a step's random numbers too: by how much longer one thread of ours takes for
    more of them, so do XLA's."""

    def step_us(num_rounds: int, num_lanes: int) -> tuple[float, float]:
        def program(x: jax.Array) -> jax.Array:
            def step(_: Any, x: jax.Array) -> jax.Array:
                for count in range(num_rounds):
                    x = (x << 13 | x >> 19) ^ x + count
                return x

            return jax.lax.fori_loop(0, 200, step, x)

        words = jax.ShapeDtypeStruct((num_lanes,), jnp.uint32)
        lowered: Any = jax.jit(program).lower(words).compiler_ir("hlo")
        module = HloModule.from_bytes(lowered.as_serialized_hlo_module_proto())
        (loop,) = (i for c in module.computations for i in c.instructions if i.opcode == "while")
        found = lane_program(program, words)
        backend = GpuBackend(Options(), H100)
        ours, _ = backend.kernel_us(found, backend.plan(found))
        return backend.xla_step_us(loop, is_compiled=False), ours

    for num_lanes in (2048, 10**6):
        few, many = step_us(1, num_lanes), step_us(101, num_lanes)
        xla_us, ours = (after - before for before, after in zip(few, many, strict=True))
        assert xla_us == pytest.approx(ours, rel=0.25)


def test_state_beyond_the_registers_is_reckoned_with() -> None:
    def kernel_us(count: int) -> float:
        found = lane_program_of(lowered(rotated(count), lanes(64)))
        backend = GpuBackend(Options(), H100)
        return backend.kernel_us(found, backend.plan(found))[0]

    assert kernel_us(300) / kernel_us(150) > 2 * 1.3


def rotated(count: int) -> Callable[[jax.Array], Any]:
    """A loop that passes a lane's values on, of which it has many and does little with each."""

    def program(x: jax.Array) -> Any:
        state = tuple(x * number for number in range(count))
        return jax.lax.fori_loop(0, 1000, lambda i, s: (*(v + 1 for v in s[1:]), s[0] * 2), state)

    return program


def test_loops_that_spill_badly_are_left_to_xla() -> None:
    """Where L2 has no room for what all threads store and load again in each step."""

    def decide(count: int) -> Any:
        options, log = Options(cache_mib=0), DecisionLog()
        data = lowered(rotated(count), lanes(10**6))
        pipeline.transform(data, options, log, GpuBackend(options, H100))
        return next(iter(log)).decision

    few, many = decide(100), decide(400)
    assert few.fused and few.numbers["spilled_values"] == 0
    assert many.reason is Reason.NOT_PROFITABLE
    assert re.search(r"a thread has no registers for about [\d,]+ values", many.sentence)


def test_spills_beyond_the_caches_go_to_memory() -> None:
    """They do not as long as the threads that are there at once have room for them in L2."""
    found = lane_program_of(lowered(rotated(300), lanes(10**6)))
    plan = make_thread_plan(found, H100, Options(unroll=1))
    spilled = plan.numbers()["spilled_values"]
    assert spilled >= 150
    memory_us = 2 * 4 * 10**6 * spilled / H100.memory_bytes_per_s * 1e6
    assert thread_step_us(found, plan, H100) < 0.5 * memory_us
    small = replace(H100, l2_bytes=6 << 20)
    assert thread_step_us(found, plan, small) == pytest.approx(memory_us, rel=0.05)


def test_code_the_driver_would_take_long_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_backend, "MAX_PTX_LINES", 50)
    log, options = DecisionLog(), Options(min_gain=0, cache_mib=0)
    data = compiled(LOOPS["angles"], lanes(64))
    assert pipeline.transform(data, options, log, GpuBackend(options, H100)) is None
    (decision,) = log
    assert decision.decision.reason is Reason.TOO_MUCH_CODE
    assert "lines of PTX" in decision.decision.sentence


def test_short_loops_are_left_to_xla() -> None:
    data = compiled(lambda x: jax.lax.fori_loop(0, 1, lambda i, x: x * 2, x), lanes(8))
    options = Options(cache_mib=0)
    assert pipeline.transform(data, options, DecisionLog(), GpuBackend(options, H100)) is None


def find_ptxas() -> Path:
    ptxas = find_toolchain().ptxas
    assert ptxas is not None
    return ptxas


def kernel_data(module: bytes) -> str:
    """Returns the PTX of a module's only kernel, which XLA's compiler passes on as it is."""
    instructions = (i for c in HloModule.from_bytes(module).computations for i in c.instructions)
    (call,) = (
        i for i in instructions if i.opcode == "custom-call" and i.custom_call_target == PTX_TARGET
    )
    with ir.Context():
        parsed = ir.DictAttr(ir.Attribute.parse(call.backend_config.decode()))
        return str(ir.StringAttr(parsed["kernel_data"]).value)


ARCHITECTURES: Final = ("rtx2080ti", "a100", "h100", "b200")
"""GPUs of compute capability 7.5, 8.0, 9.0 and 10.0."""

MAX_REGISTERS: Final = {
    "angles": 40,
    "drawn": 40,
    "rows": 32,
    "matrices": 32,
    "collatz": 16,
    "boards": 40,
    "totals": 32,
    "means": 40,
    "guarded": 40,
    "sorted": 24,
    "attracting": 104,  # for sm_75; 38 for the others
    "neighbouring": 40,
    "mating": 48,
    "picking": 96,  # for sm_75
}
"""Of each loop, for any of them: a step of registers above what ptxas 12.9 gives at most."""


@needs_gpu_extra
@pytest.mark.parametrize("gpu_name", ARCHITECTURES)
def test_ptxas_takes_every_loop(gpu_name: str) -> None:
    """Shuffles, barriers, local memory, calls: for every architecture."""
    texts = [ptx_of(lane_program(LOOPS[name], lanes(70)), gpu_name) for name in LOOPS]
    names = list(LOOPS)
    for name in CROWDS:
        texts.append(ptx_of(seeing(name, 70), gpu_name))
        names.append(name)
    found = lane_program(picking(40), lanes(10**6))
    texts.append(ptx_of(found, gpu_name))
    assert ".shared" in texts[-1]
    names.append("picking")
    for length, dtype in ((3, jnp.float32), (5, jnp.float64), (7, jnp.int8), (6, jnp.bfloat16)):
        with jax.enable_x64(dtype is jnp.float64):
            found = rows_of(length, 70, dtype)
        one = make_thread_plan(found, GPUS[gpu_name], Options(unroll=1))
        staged = with_staged(one, list(find_rows(found, one.max_unrolled)))
        texts.append(ptx_of(found, gpu_name, staged, fast_math=True))
        names.append(f"rows of {length}")
    for name, text in zip(names, texts, strict=True):
        (usage,) = assemble(find_ptxas(), [text]).values()
        assert usage.spill_bytes == 0, name
        assert usage.registers <= MAX_REGISTERS.get(name, 80), name


NUM_ENVS: Final = (64, 2048, 1_048_576)


@cache
def cartpoles(name: str) -> dict[int, CapturedModule]:
    """Returns by number of environments what XLA:GPU does to a variant by itself."""
    modules = [lowered_cartpole(name, num_envs).compiler_ir() for num_envs in NUM_ENVS]
    sources = [Source(form="mlir", data=bytecode(module)) for module in modules]
    captured, _ = capture_sources(sources, find_target("h100"), max_s=300, with_usage=False)
    return dict(zip(NUM_ENVS, captured, strict=True))


def lowered_cartpole(name: str, num_envs: int) -> Any:
    struct = jax.ShapeDtypeStruct
    arguments: tuple[Any, ...] = (struct((4, num_envs), jnp.float32),)
    if name == "naive":
        arguments += (struct((2,), jnp.uint32),)
    else:
        arguments += (struct((100, num_envs), jnp.int32), struct((100, 4, num_envs), jnp.float32))
    return lower(jax.jit(VARIANTS[name].make_rollout(10_000)), "h100", *arguments)


def module_in_front_of_fusion(captured: CapturedModule) -> bytes:
    return [stage for stage in captured.stages if stage.pipeline in PRE_FUSION][-1].data


def assert_little_is_needed(data: bytes, gpu_name: str, options: Options) -> None:
    """The loop of a module takes at most 64 registers, 150 if it reads ahead, and no spills."""
    backend = GpuBackend(options, GPUS[gpu_name])
    log = DecisionLog()
    out = pipeline.transform(data, options, log, backend)
    assert out is not None
    usage = assemble(find_ptxas(), [kernel_data(out)])["fuselane_kernel"]
    reads_ahead = next(iter(log)).decision.numbers["reads_ahead"]
    assert usage.registers <= (150 if reads_ahead else 64), gpu_name
    assert usage.spill_bytes == 0, gpu_name


@needs_gpu_extra
@pytest.mark.parametrize("name", VARIANTS)
def test_cartpole_is_one_launch(name: str) -> None:
    """What thousands of launches did, XLA's own GPU compiler turns into one of our kernel."""
    before = cartpoles(name)[2048]
    data = module_in_front_of_fusion(before)
    options = Options(cache_mib=0, verify_hlo=True)
    out = pipeline.transform(data, options, DecisionLog(), GpuBackend(options, H100))
    assert out is not None
    source = Source(form="mlir", data=_jax.mlir.hlo_to_stablehlo(out))
    after = capture_source(source, find_target("h100"), max_s=300)
    assert "kWhile" in before.thunks
    assert "kWhile" not in after.thunks
    assert after.thunks.count("fuselane_kernel") == 1
    for gpu_name in ARCHITECTURES:
        assert_little_is_needed(data, gpu_name, options)


@needs_gpu_extra
@pytest.mark.parametrize("name", VARIANTS)
def test_cartpole_on_gpus_needs_little_at_any_size(name: str) -> None:
    """Also where it is left to XLA by estimate; two lanes in a thread would be beyond 64."""
    for num_envs in (64, 1_048_576):
        data = module_in_front_of_fusion(cartpoles(name)[num_envs])
        for gpu_name in ARCHITECTURES:
            assert_little_is_needed(data, gpu_name, Options(cache_mib=0, min_gain=0))


def test_the_gpu_benchmark_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    if shutil.which("nvidia-smi", path=environment["PATH"]):
        pytest.skip("there is one")
    run = subprocess.run(
        [str(script), "--results", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 2
    assert run.stderr.strip().endswith("nvidia-smi is missing.")
    page, data = sorted(tmp_path.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert "Nothing was measured. There is no NVIDIA GPU" in page.read_text(encoding="utf-8")
    assert json.loads(data.read_text(encoding="utf-8"))["machine"]


@needs_gpu_extra
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="there the hook needs a GPU")
def test_the_hook_works_in_xlas_gpu_compiler() -> None:
    """With donation, command buffers, four GPUs, JAX's cache: one call where there was a loop."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.backends.topology"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    launched = found.pop("launched")
    assert found.pop("cache entries") == [1, 1, 2], "of JAX's own, which nobody else's is taken for"
    assert {(case["calls"], case["loops"]) for case in found.values()} == {(1, 0)}
    assert found["plain"]["copies"] == 1 and found["plain"]["aliased"] == 0
    assert found["donated"]["copies"] == 0 and found["donated"]["aliased"] == 400_000
    assert found["plain"]["lanes"] == found["sums"]["lanes"] == [100_000]
    assert found["sharded"]["lanes"] == found["shard_map"]["lanes"] == [25_000]
    # Our own handler, which XLA's compiler has asked for the state of every call.
    assert launched.pop("resolved") == 3
    assert {(case["own calls"], case["calls"]) for case in launched.values()} == {(1, 0)}
    same = ("loops", "copies", "aliased")
    for name, case in launched.items():
        assert [case[key] for key in same] == [found[name][key] for key in same]


@needs_gpu_extra
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="there the hook needs a GPU")
def test_strategies_work_in_xlas_gpu_compiler() -> None:
    """XLA launches the kernels that a strategy forms, or else those it would have made itself."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.backends.topology_fusion"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    own = found.pop("")["launches"]
    assert {case["aliased"] for case in found.values()} == {4 * 256 * 128}
    for name in ("none", "xla-2021", "xla-today-gpu", "xla-today-cpu"):
        case = found[name]
        assert [case["launches"]] == case["formed"] and not case["told"], name
    assert found["none"]["launches"] > own == found["xla-today-gpu"]["launches"]
    assert found["xla-2021"]["launches"] != own
    assert not any(found["xla-today-gpu"]["is_new"])
    assert (found["loops"]["calls"], found["loops"]["loops"]) == (1, 0)
    assert all(found["loops"]["is_new"]) and not found["loops"]["told"]
    for name, sentence in (
        ("for CPUs", "'fuselane' goes on from XLA:CPU's fusions"),
        ("late", "stay in jit_straight: It took longer than 0.01 seconds"),
        ("aborted", "stay in jit_straight: XLA's compiler ended with exit code -"),
    ):
        assert found[name]["launches"] == own
        assert len(found[name]["told"]) == 1 and sentence in found[name]["told"][0]


@needs_gpu_extra
def test_explain_tells_what_becomes_of_loops_on_a_gpu() -> None:
    report = fuselane.explain(LOOPS["angles"], lanes(2048), target="h100")
    (module,) = report.modules
    (loop,) = module.loops
    assert loop.decision is not None and loop.decision.fused
    assert loop.launches is not None and loop.launches >= 20
    assert loop.fuselane_launches == 1
