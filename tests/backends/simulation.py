"""Kernels for GPUs on the CPU: the same IR, launched thread by thread.

Whatever depends on the GPU is replaced: a thread's number becomes a parameter, shared memory an
array of the launch, a barrier one of POSIX threads, a shuffle a row of slots between two barriers.
Threads that never meet run one after another.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from fuselane.backends import cpu
from fuselane.codegen import plan as layout
from fuselane.codegen.kernel import KernelCode
from fuselane.codegen.kernel import build_planned as build_for_cpu
from fuselane.codegen.nvptx import ThreadCode, build_threads
from fuselane.codegen.plan import Plan, make_plan, make_thread_plan
from fuselane.config import Options
from fuselane.device import DeviceDescription
from fuselane.gpu import GPUS, GpuDescription
from fuselane.lanes.program import LaneProgram

MAX_MEETING_THREADS: Final = 64

SLOTS: Final = 64
SHARED: Final = 8192
HANDLES: Final = 16_384
ARGUMENTS: Final = 32_768
TEAM_BYTES: Final = 65_536
"""Where a block's barrier (at 0), shuffles, shared memory and threads are in its memory."""

_SHUFFLE: Final = re.compile(
    r'call i32 @"llvm\.nvvm\.shfl\.sync\.(down|idx)\.i32"'
    r"\((i32 [^,]+), (i32 [^,]+), (i32 [^,]+), i32 31\)"
)
_HEADER: Final = re.compile(r'define ptx_kernel void @"(\w+)"\((.*?)\) nounwind')
_LEFT_OUT: Final = re.compile(
    r'^(declare .*"llvm\.nvvm\..*|!nvvm.*|!\d+ = .*"maxntidx".*|@"warps" .*)$\n?', re.MULTILINE
)


def simulate(monkeypatch: pytest.MonkeyPatch, gpu: GpuDescription = GPUS["h100"]) -> None:
    """Makes the CPU's back end run every kernel with lanes as a GPU would.

    Blocks of lanes that meet are small, since these are real threads here.
    """

    def plan(program: LaneProgram, options: Options, device: DeviceDescription) -> Plan:
        if not program.has_lanes:
            return make_plan(program, options, device)
        return make_thread_plan(program)

    def build(program: LaneProgram, plan: Plan, **options: Any) -> KernelCode:
        if not program.has_lanes:
            return build_for_cpu(program, plan, **options)
        code = build_threads(program, plan, gpu)
        return KernelCode(
            ir=host_ir(code, plan.num_tiles, len(program.inputs), len(program.outputs)),
            symbol=code.symbol,
            num_tiles=code.num_rows,
            scratch_bytes=0,
            parallel=False,
            plan=plan,
            num_instructions=code.num_instructions,
            is_bitwise=False,
            has_dots=False,
        )

    monkeypatch.setattr(layout, "_MAX_MEETING_THREADS", MAX_MEETING_THREADS)
    monkeypatch.setattr(cpu, "make_plan", plan)
    monkeypatch.setattr(cpu, "build_planned", build)
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "0")


def host_ir(code: ThreadCode, num_threads: int, num_inputs: int, num_outputs: int) -> str:
    """Returns a module with a function of the CPU's signature that runs a whole launch.

    Args:
        code: The kernel.
        num_threads: Threads that do not leave at once.
        num_inputs, num_outputs: The kernel's arrays.
    """
    meets = "llvm.nvvm.barrier0" in code.ir or "llvm.nvvm.shfl" in code.ir
    text = _LEFT_OUT.sub("", code.ir)
    added = 'i32 %"gpu.thread", i32 %"gpu.block", ptr %"gpu.team"'
    text = _HEADER.sub(rf'define internal void @"\1.thread"(\2, {added}) nounwind', text)
    text = text.replace('call i32 @"llvm.nvvm.read.ptx.sreg.tid.x"()', 'add i32 %"gpu.thread", 0')
    text = text.replace('call i32 @"llvm.nvvm.read.ptx.sreg.ctaid.x"()', 'add i32 %"gpu.block", 0')
    text = text.replace(
        'addrspacecast [32 x i64] addrspace(3)* @"warps" to ptr',
        f'getelementptr i8, ptr %"gpu.team", i64 {SHARED}',
    )
    text = text.replace(
        'call void @"llvm.nvvm.barrier0"()', 'call i32 @pthread_barrier_wait(ptr %"gpu.team")'
    )
    text = _SHUFFLE.sub(r'call i32 @shuffle_\1(i32 %"gpu.thread", \3, \4, ptr %"gpu.team")', text)
    pointers = [f"ptr %a{number}" for number in range(num_inputs + num_outputs)]
    loads = [_load(number, "in", number) for number in range(num_inputs)]
    loads += [_load(num_inputs + number, "out", number) for number in range(num_outputs)]
    return text + _LAUNCH.format(
        symbol=code.symbol,
        pointers=", ".join(pointers),
        loads="\n".join(loads),
        grid=code.grid_blocks,
        block=code.block_threads,
        num_threads=num_threads,
        meets=int(meets),
        slots=SLOTS,
        handles=HANDLES,
        arguments=ARGUMENTS,
        team=TEAM_BYTES,
    )


def _load(argument: int, table: str, number: int) -> str:
    return (
        f"  %p{argument} = getelementptr ptr, ptr %{table}, i64 {number}\n"
        f"  %a{argument} = load ptr, ptr %p{argument}"
    )


_LAUNCH: Final = """
declare i32 @pthread_barrier_wait(ptr)
declare i32 @pthread_barrier_init(ptr, ptr, i32)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)

define internal i32 @shuffle_down(i32 %thread, i32 %value, i32 %distance, ptr %team) {{
  %from = add i32 %thread, %distance
  %warp = and i32 %thread, -32
  %end = add i32 %warp, 32
  %is_inside = icmp ult i32 %from, %end
  %source = select i1 %is_inside, i32 %from, i32 %thread
  %moved = call i32 @exchange(i32 %thread, i32 %value, i32 %source, ptr %team)
  ret i32 %moved
}}

define internal i32 @shuffle_idx(i32 %thread, i32 %value, i32 %number, ptr %team) {{
  %warp = and i32 %thread, -32
  %source = add i32 %warp, %number
  %moved = call i32 @exchange(i32 %thread, i32 %value, i32 %source, ptr %team)
  ret i32 %moved
}}

define internal i32 @exchange(i32 %thread, i32 %value, i32 %source, ptr %team) {{
  %slots = getelementptr i8, ptr %team, i64 {slots}
  %own = getelementptr i32, ptr %slots, i32 %thread
  %other = getelementptr i32, ptr %slots, i32 %source
  store i32 %value, ptr %own
  call i32 @pthread_barrier_wait(ptr %team)
  %moved = load i32, ptr %other
  call i32 @pthread_barrier_wait(ptr %team)
  ret i32 %moved
}}

define internal void @run(ptr %in, ptr %out, i32 %thread, i32 %block, ptr %team) {{
{loads}
  call void @"{symbol}.thread"({pointers}, i32 %thread, i32 %block, ptr %team)
  ret void
}}

define internal ptr @start(ptr %record) {{
  %out_at = getelementptr ptr, ptr %record, i64 1
  %team_at = getelementptr ptr, ptr %record, i64 2
  %thread_at = getelementptr i32, ptr %record, i64 6
  %block_at = getelementptr i32, ptr %record, i64 7
  %in = load ptr, ptr %record
  %out = load ptr, ptr %out_at
  %team = load ptr, ptr %team_at
  %thread = load i32, ptr %thread_at
  %block = load i32, ptr %block_at
  call void @run(ptr %in, ptr %out, i32 %thread, i32 %block, ptr %team)
  ret ptr null
}}

define void @"{symbol}"(ptr %in, ptr %out, i64 %first, i64 %last) {{
entry:
  %team = alloca [{team} x i8], align 64
  %handles = getelementptr i8, ptr %team, i64 {handles}
  %records = getelementptr i8, ptr %team, i64 {arguments}
  %is_all = icmp eq i64 %first, 0
  br i1 %is_all, label %blocks, label %done
blocks:
  %block = phi i32 [ 0, %entry ], [ %next_block, %joined ]
  %before = mul i32 %block, {block}
  %left = sub i32 {num_threads}, %before
  %is_whole = icmp ugt i32 %left, {block}
  %count = select i1 %is_whole, i32 {block}, i32 %left
  call i32 @pthread_barrier_init(ptr %team, ptr null, i32 %count)
  br label %threads
threads:
  %thread = phi i32 [ 0, %blocks ], [ %next_thread, %started ]
  br i1 {meets}, label %parallel, label %serial
serial:
  call void @run(ptr %in, ptr %out, i32 %thread, i32 %block, ptr %team)
  br label %started
parallel:
  %record = getelementptr [32 x i8], ptr %records, i32 %thread
  %out_at = getelementptr ptr, ptr %record, i64 1
  %team_at = getelementptr ptr, ptr %record, i64 2
  %thread_at = getelementptr i32, ptr %record, i64 6
  %block_at = getelementptr i32, ptr %record, i64 7
  store ptr %in, ptr %record
  store ptr %out, ptr %out_at
  store ptr %team, ptr %team_at
  store i32 %thread, ptr %thread_at
  store i32 %block, ptr %block_at
  %handle = getelementptr i64, ptr %handles, i32 %thread
  call i32 @pthread_create(ptr %handle, ptr null, ptr @start, ptr %record)
  br label %started
started:
  %next_thread = add i32 %thread, 1
  %goes_on = icmp ult i32 %next_thread, {block}
  br i1 %goes_on, label %threads, label %joining
joining:
  br i1 {meets}, label %join, label %joined
join:
  %joined_thread = phi i32 [ 0, %joining ], [ %next_joined, %join ]
  %joined_at = getelementptr i64, ptr %handles, i32 %joined_thread
  %joined_handle = load i64, ptr %joined_at
  call i32 @pthread_join(i64 %joined_handle, ptr null)
  %next_joined = add i32 %joined_thread, 1
  %is_left = icmp ult i32 %next_joined, {block}
  br i1 %is_left, label %join, label %joined
joined:
  %next_block = add i32 %block, 1
  %has_more = icmp ult i32 %next_block, {grid}
  br i1 %has_more, label %blocks, label %done
done:
  ret void
}}
"""
