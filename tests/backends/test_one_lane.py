"""Kernels for GPUs, launch and all, on the CPU beside XLA; see `simulation`."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuselane import replacing
from fuselane.backends.backend import Backend, Planned, pick
from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.codegen.nvptx import ThreadCode
from fuselane.codegen.own_arrays import find_own_arrays
from fuselane.codegen.plan import Plan
from fuselane.codegen.reading_ahead import NOTHING_AHEAD, find_reads_ahead
from fuselane.codegen.stream_rows import find_rows
from fuselane.codegen.thread_plan import (
    make_thread_plan,
    with_arrays_shared,
    with_reads_ahead,
    with_staged,
)
from fuselane.config import Options
from fuselane.gpu import GpuDescription
from fuselane.lanes.program import LaneProgram
from tests.backends.programs import CROWDS, LOOPS, picking
from tests.backends.simulation import host_ir, simulate
from tests.differential.comparison import CLOSE
from tests.differential.harness import check


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


@pytest.mark.parametrize("name", LOOPS)
def test_results_are_those_of_xla(name: str) -> None:
    check(LOOPS[name], jnp.linspace(-3, 5, 33), tolerance=CLOSE)


@pytest.mark.parametrize("lanes", [0, 1, 32, 33, 1025])
@pytest.mark.parametrize("name", ["rows", "totals", "means", "boards"])
def test_launches_of_odd_sizes(name: str, lanes: int) -> None:
    """No lane is left out or done twice, and none but they meet: a thread has up to three lanes."""
    if lanes == 0 and name == "means":
        pytest.skip("no lanes have no maximum")
    check(LOOPS[name], jnp.linspace(-3, 5, lanes), fused=None, tolerance=CLOSE)


@pytest.mark.parametrize("trip_count", [200, 203])
def test_steps_left_over_from_unrolling(trip_count: int) -> None:
    def program(x: jax.Array) -> Any:
        rows = jax.lax.broadcasted_iota(jnp.float32, (trip_count, *x.shape), 0)
        return jax.lax.scan(lambda x, row: (x * 0.5 + row, x), x, rows)

    check(program, jnp.linspace(-3, 5, 70), tolerance=CLOSE)


@pytest.mark.parametrize("name", ["collatz", "rows"])
def test_a_launch_of_a_million_lanes(name: str) -> None:
    check(LOOPS[name], jnp.arange(10**6, dtype=jnp.float32) % 7, tolerance=CLOSE)


@pytest.mark.parametrize(("lanes", "unroll"), [(33, 2), (7, 4)])
@pytest.mark.parametrize("name", LOOPS)
def test_threads_have_several_lanes_at_once(
    name: str, lanes: int, unroll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last thread has fewer; where lanes meet, a thread has them one after the other."""
    monkeypatch.setenv("FUSELANE_UNROLL", str(unroll))
    check(LOOPS[name], jnp.linspace(-3, 5, lanes), tolerance=CLOSE)


def with_all_rows_staged(program: LaneProgram, gpu: GpuDescription, options: Options) -> Plan:
    plan = make_thread_plan(program, gpu, replace(options, unroll=1))
    if program.shared:  # a rival of the same loop
        return plan
    rows = [row for row in find_rows(program, plan.max_unrolled) if row.can_be_staged]
    assert {row.is_stored for row in rows} == {False, True}
    return with_staged(plan, rows)


@pytest.mark.parametrize("lanes", [5, 32, 150])
@pytest.mark.parametrize(
    ("length", "dtype"),
    [(3, "float32"), (20, "float32"), (5, "float64"), (7, "bool"), (6, "bfloat16")],
)
def test_rows_pass_through_shared_memory(
    length: int, dtype: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lane gets its own part of what its warp has loaded, and no other thread's is stored."""

    def program(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = x * 0.5 + row.astype(x.dtype).sum(axis=1)
            changed = row[:, ::-1] if row.dtype == bool else row * 2
            return x, jnp.where((x > 3)[:, None], changed, row)

        return jax.lax.scan(step, x, rows)

    simulate(monkeypatch, make_plan_for=with_all_rows_staged)
    count = 4 * lanes * length
    rows = np.random.default_rng(0).integers(-9, 9, count).reshape(4, lanes, length)
    x = np.linspace(-3, 5, lanes, dtype=np.float32)
    check(program, x, rows.astype(jnp.dtype(dtype)), x64=True)


class ReadingAhead:
    """How to plan kernels that read ahead where they can, so many steps at once."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.reads = 0

    def __call__(self, program: LaneProgram, gpu: GpuDescription, options: Options) -> Plan:
        plan = make_thread_plan(program, gpu, options)
        assert plan.gpu is not None
        near = replace(plan, gpu=replace(plan.gpu, ahead=NOTHING_AHEAD, registers=40))
        ahead = find_reads_ahead(program, near.max_unrolled)
        for found in with_reads_ahead(program, near, gpu, ahead):
            assert found.gpu is not None
            if found.gpu.ahead.steps == self.num_steps:
                self.reads += len(found.gpu.ahead.reads)
                return found
        return near  # a rival of the same loop


def _walking(x: jax.Array, rows: jax.Array) -> Any:
    def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x * 0.5 + row.astype(x.dtype)
        return x, x > row

    return jax.lax.scan(step, x, rows, reverse=True)


def _from_a_pool(x: jax.Array, rows: jax.Array) -> Any:
    """Rows at indices that are worked out, of which one is read twice, and before the first step as
    well as after the last there is none: XLA holds them within bounds."""

    def step(carry: Any, t: jax.Array) -> Any:
        x, other = carry
        other = other * 2 + 1
        x = x * 0.5 + rows[(t * 5) % 7] - rows[other % 3] * rows[jnp.minimum(t, 9)]
        return (x, other), x > 0

    return jax.lax.scan(step, (x, jnp.int32(1)), jnp.arange(12))


def _of_blocks(x: jax.Array, rows: jax.Array) -> jax.Array:
    """Several rows in each step, at places that stand in memory."""
    blocks = rows.reshape(6, 2, -1)
    places = jnp.array([3, 5, 0, 0, 4, 1, 2, 3, 5, 5, 1, 0])

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        a, b = blocks[places[i]]
        return x * 0.5 + jnp.where(a > 0, a, b * x)

    return jax.lax.fori_loop(0, 12, step, x)


def _replaced(x: jax.Array, rows: jax.Array) -> jax.Array:
    """A row becomes a state, of which the one before is still read."""
    boards = rows[:, :, None] * jnp.arange(1.0, 7.0)

    def step(carry: Any, board: jax.Array) -> Any:
        x, last = carry
        at = jnp.abs(x * 3).astype(jnp.int32) % 6
        return (x * 0.5 + jnp.take_along_axis(last, at[:, None], 1)[:, 0], board), None

    return jax.lax.scan(step, (x, boards[0] + 1), boards)[0][0]


@pytest.mark.parametrize(("num_steps", "lanes", "unroll"), [(1, 33, 1), (4, 31, 1), (6, 5, 2)])
@pytest.mark.parametrize("program", [_walking, _from_a_pool, _of_blocks, _replaced])
def test_rows_are_read_ahead(
    program: Any, num_steps: int, lanes: int, unroll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step gets the row of its own, be it the only one of an iteration or one of several."""
    planning = ReadingAhead(num_steps)
    simulate(monkeypatch, make_plan_for=planning)
    monkeypatch.setenv("FUSELANE_UNROLL", str(unroll))
    rows = np.random.default_rng(0).normal(size=(12, lanes)).astype(np.float32)
    check(program, jnp.linspace(-3, 5, lanes), rows, tolerance=CLOSE)
    assert planning.reads


def test_elements_of_all_types_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, make_plan_for=ReadingAhead(3))
    rows = np.random.default_rng(0).integers(0, 2, (12, 33))
    for dtype in ("bool", "int8", "bfloat16", "float64"):
        check(_walking, jnp.linspace(-3, 5, 33), rows.astype(jnp.dtype(dtype)), x64=True)


def with_all_arrays_shared(program: LaneProgram, gpu: GpuDescription, options: Options) -> Plan:
    plan = make_thread_plan(program, gpu, options)
    arrays = find_own_arrays(program, plan.width, plan.max_unrolled)
    (shared,) = with_arrays_shared(plan, list(arrays))
    assert shared.gpu is not None and shared.gpu.arrays
    return shared


@pytest.mark.parametrize(("lanes", "unroll"), [(31, 1), (1025, 1), (33, 2), (150, 2)])
@pytest.mark.parametrize(("size", "dtype"), [(40, "int32"), (70, "float32"), (90, "int8")])
def test_arrays_of_lanes_are_in_shared_memory(
    size: int, dtype: str, unroll: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread sees another's, nor is one element of an array another's."""
    simulate(monkeypatch, make_plan_for=with_all_arrays_shared)
    monkeypatch.setenv("FUSELANE_UNROLL", str(unroll))
    program = picking(size, dtype, num_steps=60)
    check(program, jnp.linspace(-3, 5, lanes))


@pytest.mark.parametrize("lanes", [31, 150])
def test_arrays_of_lanes_that_begin_anew_are_in_shared_memory(
    lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are carried as a state, of which an older version is needed."""

    def one(x: jax.Array) -> jax.Array:
        def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            board, at = carry
            at = (at * 5 + board[at] + i) % 50
            changed = board.at[at].add(i + 1)
            return jnp.where(changed[at] > 30, jnp.arange(50), changed), at

        start = jnp.zeros(50, jnp.int32), jnp.abs(x * 7).astype(jnp.int32) % 50
        return jax.lax.fori_loop(0, 60, step, start)[0]

    simulate(monkeypatch, make_plan_for=with_all_arrays_shared)
    check(jax.vmap(one), jnp.linspace(-3, 5, lanes))


@pytest.mark.parametrize("lanes", [5, 33, 700])
@pytest.mark.parametrize("name", CROWDS)
def test_lanes_see_each_other_in_shared_memory(
    name: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads what others have not written yet, nor what they have changed already."""
    formed: list[LaneProgram] = []

    def pick_shared(program: LaneProgram, backend: Backend) -> Planned:
        formed.append(program.rival or program)
        return pick(formed[-1], backend)

    monkeypatch.setattr(replacing, "pick", pick_shared)
    check(CROWDS[name], jnp.linspace(-3, 5, lanes), tolerance=CLOSE)
    assert all(program.num_lanes == lanes and program.shared for program in formed)


_SHUFFLE = 'call i32 @"llvm.nvvm.shfl.sync.down.i32"(i32 {mask}, i32 %"tid", i32 1, i32 31)'
_BARRIER = 'call void @"llvm.nvvm.barrier0"()'


@pytest.mark.parametrize(
    ("first", "others", "said"),
    [
        (_BARRIER, _BARRIER, ""),
        ("", _BARRIER, ""),  # who has left is not waited for
        ("", _SHUFFLE.format(mask=-2), ""),
        ("", _SHUFFLE.format(mask=-1), "names a thread that has left"),
        (_BARRIER, _SHUFFLE.format(mask=-1), "wait for each other"),
        (_SHUFFLE.format(mask=-2), "", "does not name a thread that is there"),
        (_SHUFFLE.format(mask=-1), _SHUFFLE.format(mask=-1), "are at different shuffles"),
    ],
)
def test_rules_of_the_hardware_are_kept(
    first: str, others: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first thread of a warp does one thing, all others do another."""
    text = f"""target datalayout = ""
define ptx_kernel void @"k"(ptr align 16 %"a") nounwind
{{
entry:
  %"tid" = call i32 @"llvm.nvvm.read.ptx.sreg.tid.x"()
  %"is_first" = icmp eq i32 %"tid", 0
  br i1 %"is_first", label %"first", label %"others"
first:
  {first}
  ret void
others:
  {others}
  ret void
}}
"""
    code = ThreadCode(
        ir=text, symbol="k", grid_blocks=1, block_threads=32, num_rows=1, num_instructions=1
    )
    loaded = load_object(compile_object(host_ir(code, 1, 0)))
    launch = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
    array = (ctypes.c_void_p * 1)()
    launch(loaded.address("k"))(array, array, 0, 1)
    heard = capfd.readouterr().out
    assert said in heard and bool(said) == bool(heard)
