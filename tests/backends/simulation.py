"""Kernels for GPUs on the CPU: the same IR, launched thread by thread.

Whatever depends on the GPU is replaced: a thread's number becomes a parameter, shared memory an
array of the launch. Threads that never meet run one after another. Those that do are coroutines
of one thread of the system (`swapcontext`), which take turns wherever they wait:

- at a barrier, for all threads of the block that have not left;
- at a shuffle, a vote or a barrier of a warp, for the threads of the warp that its mask names. All
  have to come to the same place with the same mask, none of them may have left, and whoever is
  there has to be named.

A launch that breaks these rules, or in which nobody can go on, ends there and says so on the
standard output; its results are left as they are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from fuselane.backends import cpu
from fuselane.codegen.kernel import KernelCode
from fuselane.codegen.kernel import build_planned as build_for_cpu
from fuselane.codegen.llvm import Vectors
from fuselane.codegen.nvptx import ThreadCode, build_threads
from fuselane.codegen.plan import Plan, make_plan
from fuselane.codegen.thread_plan import make_thread_plan
from fuselane.config import Options
from fuselane.device import DeviceDescription
from fuselane.gpu import GPUS, GpuDescription
from fuselane.lanes.program import LaneProgram

_SHUFFLE: Final = re.compile(
    r'call i32 @"llvm\.nvvm\.shfl\.sync\.(down|idx)\.i32"'
    r"\((i32 [^,]+), (i32 [^,]+), (i32 [^,]+), i32 31\)"
)
_WARP_BARRIER: Final = re.compile(r'call void @"llvm\.nvvm\.bar\.warp\.sync"\((i32 [^,)]+)\)')
_VOTE: Final = re.compile(r'call i1 @"llvm\.nvvm\.vote\.any\.sync"\((i32 [^,]+), (i1 [^,)]+)\)')
_SHARED: Final = re.compile(
    r'^@"(\w+)" = internal addrspace\(3\) global (\[[^\]]+\]) .*$\n?', re.MULTILINE
)
_SHARED_ADDRESS: Final = re.compile(r'addrspacecast \[[^\]]+\] addrspace\(3\)\* @"(\w+)" to ptr')
_QUOTIENT: Final = re.compile(
    r'call float @"llvm\.nvvm\.div\.rn\.f"\(float ([^,]+), float ([^)]+)\)'
)
_HEADER: Final = re.compile(r'define ptx_kernel void @"(\w+)"\((.*?)\) nounwind')
_LEFT_OUT: Final = re.compile(
    r'^(declare .*"llvm\.nvvm\..*|!nvvm.*|!\d+ = .*"maxntidx".*)$\n?', re.MULTILINE
)
_EXIT: Final = re.compile(r'call void @"llvm\.nvvm\.exit"\(\)\n +unreachable')


_LAYOUT: Final = 'target datalayout = ""'

_CONTEXT_BYTES: Final = 8192
"""Room for a `ucontext_t`, which has 968 bytes on x86-64 and 4,560 on AArch64."""

_STACK_BYTES: Final = 1 << 18

_UNDEFINED: Final = 0x7FEDCBA9
"""What a shuffle gives of a thread that it does not name."""


MakePlan = Callable[[LaneProgram, GpuDescription, Options], Plan]


def simulate(
    monkeypatch: pytest.MonkeyPatch,
    gpu: GpuDescription = GPUS["h100"],
    make_plan_for: MakePlan = make_thread_plan,
) -> None:
    """Makes the CPU's back end run every kernel with lanes as a GPU would."""

    def plan(program: LaneProgram, options: Options, device: DeviceDescription) -> Plan:
        if not program.has_lanes:
            return make_plan(program, options, device)
        return make_plan_for(program, gpu, options)

    def build(program: LaneProgram, plan: Plan, **options: Any) -> KernelCode:
        if not program.has_lanes:
            return build_for_cpu(program, plan, **options)
        code = build_threads(program, plan, gpu)
        return KernelCode(
            ir=host_ir(code, len(program.inputs), len(program.outputs)),
            symbol=code.symbol,
            num_tiles=code.num_rows,
            scratch_bytes=0,
            parallel=False,
            plan=plan,
            num_instructions=code.num_instructions,
            num_accesses=0,
            is_bitwise=False,
            has_dots=False,
            vectors=Vectors.NOWHERE,
        )

    monkeypatch.setattr(cpu, "make_plan", plan)
    monkeypatch.setattr(cpu, "build_planned", build)
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "0")


def host_ir(code: ThreadCode, num_inputs: int, num_outputs: int) -> str:
    """Returns a module with a function of the CPU's signature that runs a whole launch.

    Args:
        code: The kernel.
        num_inputs, num_outputs: The kernel's arrays.
    """
    meets = any(f"llvm.nvvm.{what}" in code.ir for what in ("barrier0", "bar.warp", "shfl", "vote"))
    shared = dict(_SHARED.findall(code.ir))
    text = _EXIT.sub("ret void", _LEFT_OUT.sub("", _SHARED.sub("", code.ir)))
    added = 'i32 %"gpu.thread", i32 %"gpu.block", ptr %"gpu.team"'
    text = _HEADER.sub(rf'define internal void @"\1.thread"(\2, {added}) nounwind', text)
    text = text.replace('call i32 @"llvm.nvvm.read.ptx.sreg.tid.x"()', 'add i32 %"gpu.thread", 0')
    text = text.replace('call i32 @"llvm.nvvm.read.ptx.sreg.ctaid.x"()', 'add i32 %"gpu.block", 0')
    numbers = {name: number for number, name in enumerate(shared)}
    text = _SHARED_ADDRESS.sub(
        lambda found: (
            f'getelementptr %team, ptr %"gpu.team", i64 0, i32 13, i32 {numbers[found[1]]}'
        ),
        text,
    )
    arguments = 'i32 %"gpu.thread", ptr %"gpu.team"'
    text = text.replace('call void @"llvm.nvvm.barrier0"()', f"call void @barrier({arguments})")
    text = _QUOTIENT.sub(r"fdiv float \1, \2", text)
    places = itertools.count(1)
    text = _SHUFFLE.sub(
        lambda found: (
            f"call i32 @shuffle_{found[1]}({found[2]}, {found[3]}, {found[4]},"
            f" i32 {next(places)}, {arguments})"
        ),
        text,
    )
    text = _VOTE.sub(
        lambda found: f"call i1 @vote({found[1]}, {found[2]}, i32 {next(places)}, {arguments})",
        text,
    )
    text = _WARP_BARRIER.sub(
        lambda found: f"call void @meet({found[1]}, i32 {next(places)}, {arguments})", text
    )
    loads = [_load(number, "in", number) for number in range(num_inputs)]
    loads += [_load(num_inputs + number, "out", number) for number in range(num_outputs)]
    types = _TYPES.format(
        block=code.block_threads,
        context_bytes=_CONTEXT_BYTES,
        shared=", ".join(shared.values()),
    )
    text = text.replace(_LAYOUT, _LAYOUT + types)
    return text + _RUNTIME.format(
        symbol=code.symbol,
        pointers=", ".join(f"ptr %a{number}" for number in range(num_inputs + num_outputs)),
        loads="\n".join(loads),
        grid=code.grid_blocks,
        block=code.block_threads,
        meets=int(meets),
        stack_bytes=_STACK_BYTES,
        undefined=_UNDEFINED,
    )


def _load(argument: int, table: str, number: int) -> str:
    return (
        f"  %p{argument} = getelementptr ptr, ptr %{table}, i64 {number}\n"
        f"  %a{argument} = load ptr, ptr %p{argument}"
    )


_TYPES: Final = """
; arrays in and out; the block; the thread whose turn it is; whether anyone went on in this round;
; what is wrong, if anything; of each thread: whether it has left, barriers and shuffles it has
; come to, and of its last two shuffles the value, the mask and the place in the code; shared
; memory; the launch's own context and those of threads
%context = type [{context_bytes} x i8]
%team = type {{ ptr, ptr, i32, i32, i1, ptr, [{block} x i1], [{block} x i32], [{block} x i32],
  [2 x [{block} x i32]], [2 x [{block} x i32]], [2 x [{block} x i32]], ptr, {{ {shared} }},
  %context, [{block} x %context] }}
"""

_RUNTIME: Final = """
declare i32 @getcontext(ptr)
declare i32 @swapcontext(ptr, ptr)
declare void @makecontext(ptr, ptr, i32, ...)
declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare i32 @puts(ptr)
declare i32 @fflush(ptr)

@stuck = private constant [44 x i8] c"The threads of a launch wait for each other\\00"
@unnamed = private constant [47 x i8] c"A shuffle does not name a thread that is there\\00"
@left = private constant [44 x i8] c"A shuffle names a thread that has left now.\\00"
@differ = private constant [46 x i8] c"Threads of a warp are at different shuffles..\\00"

define internal void @pause(i32 %thread, ptr %team) {{
  %main = getelementptr %team, ptr %team, i64 0, i32 14
  %own = getelementptr %team, ptr %team, i64 0, i32 15, i32 %thread
  call i32 @swapcontext(ptr %own, ptr %main)
  ret void
}}

define internal void @went_on(ptr %team) {{
  %at = getelementptr %team, ptr %team, i64 0, i32 4
  store i1 1, ptr %at
  ret void
}}

define internal void @fail(ptr %message, i32 %thread, ptr %team) {{
  %at = getelementptr %team, ptr %team, i64 0, i32 5
  store ptr %message, ptr %at
  call void @pause(i32 %thread, ptr %team)
  ret void
}}

define internal i32 @count(ptr %at) {{
  %before = load i32, ptr %at
  %number = add i32 %before, 1
  store i32 %number, ptr %at
  ret i32 %number
}}

define internal void @barrier(i32 %thread, ptr %team) {{
entry:
  %own = getelementptr %team, ptr %team, i64 0, i32 7, i32 %thread
  %number = call i32 @count(ptr %own)
  call void @went_on(ptr %team)
  br label %look
look:
  %other = phi i32 [ 0, %entry ], [ 0, %waiting ], [ %next, %there ]
  %left_at = getelementptr %team, ptr %team, i64 0, i32 6, i32 %other
  %has_left = load i1, ptr %left_at
  %come_at = getelementptr %team, ptr %team, i64 0, i32 7, i32 %other
  %come = load i32, ptr %come_at
  %has_come = icmp uge i32 %come, %number
  %is_there = or i1 %has_left, %has_come
  br i1 %is_there, label %there, label %waiting
waiting:
  call void @pause(i32 %thread, ptr %team)
  br label %look
there:
  %next = add i32 %other, 1
  %is_last = icmp eq i32 %next, {block}
  br i1 %is_last, label %over, label %look
over:
  ret void
}}

define internal i32 @shuffle_down(
    i32 %mask, i32 %value, i32 %distance, i32 %place, i32 %thread, ptr %team) {{
  %lane = and i32 %thread, 31
  %from = add i32 %lane, %distance
  %is_inside = icmp ult i32 %from, 32
  %source = select i1 %is_inside, i32 %from, i32 %lane
  %moved = call i32 @shuffle_idx(
    i32 %mask, i32 %value, i32 %source, i32 %place, i32 %thread, ptr %team)
  ret i32 %moved
}}

define internal i32 @shuffle_idx(
    i32 %mask, i32 %value, i32 %source, i32 %place, i32 %thread, ptr %team) {{
entry:
  %warp = and i32 %thread, -32
  %lane = and i32 %thread, 31
  %own = getelementptr %team, ptr %team, i64 0, i32 8, i32 %thread
  %number = call i32 @count(ptr %own)
  %turn = and i32 %number, 1
  %value_at = getelementptr %team, ptr %team, i64 0, i32 9, i32 %turn, i32 %thread
  %mask_at = getelementptr %team, ptr %team, i64 0, i32 10, i32 %turn, i32 %thread
  %place_at = getelementptr %team, ptr %team, i64 0, i32 11, i32 %turn, i32 %thread
  store i32 %value, ptr %value_at
  store i32 %mask, ptr %mask_at
  store i32 %place, ptr %place_at
  call void @went_on(ptr %team)
  %own_part = lshr i32 %mask, %lane
  %names_own = trunc i32 %own_part to i1
  br i1 %names_own, label %look, label %is_unnamed
is_unnamed:
  call void @fail(ptr @unnamed, i32 %thread, ptr %team)
  unreachable
look:
  %other = phi i32 [ 0, %entry ], [ 0, %waiting ], [ %next, %there ]
  %part = lshr i32 %mask, %other
  %names = trunc i32 %part to i1
  br i1 %names, label %named, label %there
named:
  %it = add i32 %warp, %other
  %come_at = getelementptr %team, ptr %team, i64 0, i32 8, i32 %it
  %come = load i32, ptr %come_at
  %has_come = icmp uge i32 %come, %number
  br i1 %has_come, label %compare, label %missing
missing:
  %left_at = getelementptr %team, ptr %team, i64 0, i32 6, i32 %it
  %has_left = load i1, ptr %left_at
  br i1 %has_left, label %is_gone, label %waiting
is_gone:
  call void @fail(ptr @left, i32 %thread, ptr %team)
  unreachable
waiting:
  call void @pause(i32 %thread, ptr %team)
  br label %look
compare:
  %its_mask_at = getelementptr %team, ptr %team, i64 0, i32 10, i32 %turn, i32 %it
  %its_place_at = getelementptr %team, ptr %team, i64 0, i32 11, i32 %turn, i32 %it
  %its_mask = load i32, ptr %its_mask_at
  %its_place = load i32, ptr %its_place_at
  %is_mask = icmp eq i32 %its_mask, %mask
  %is_place = icmp eq i32 %its_place, %place
  %is_same = and i1 %is_mask, %is_place
  br i1 %is_same, label %there, label %is_other
is_other:
  call void @fail(ptr @differ, i32 %thread, ptr %team)
  unreachable
there:
  %next = add i32 %other, 1
  %is_last = icmp eq i32 %next, 32
  br i1 %is_last, label %over, label %look
over:
  %source_part = lshr i32 %mask, %source
  %is_named = trunc i32 %source_part to i1
  %from = add i32 %warp, %source
  %safe = select i1 %is_named, i32 %from, i32 %thread
  %moved_at = getelementptr %team, ptr %team, i64 0, i32 9, i32 %turn, i32 %safe
  %moved = load i32, ptr %moved_at
  %result = select i1 %is_named, i32 %moved, i32 {undefined}
  ret i32 %result
}}

define internal void @meet(i32 %mask, i32 %place, i32 %thread, ptr %team) {{
  %lane = and i32 %thread, 31
  %moved = call i32 @shuffle_idx(
    i32 %mask, i32 0, i32 %lane, i32 %place, i32 %thread, ptr %team)
  ret void
}}

define internal i1 @vote(i32 %mask, i1 %predicate, i32 %place, i32 %thread, ptr %team) {{
entry:
  %warp = and i32 %thread, -32
  %lane = and i32 %thread, 31
  %value = zext i1 %predicate to i32
  %own_value = call i32 @shuffle_idx(
    i32 %mask, i32 %value, i32 %lane, i32 %place, i32 %thread, ptr %team)
  %own = getelementptr %team, ptr %team, i64 0, i32 8, i32 %thread
  %number = load i32, ptr %own
  %turn = and i32 %number, 1
  br label %ask
ask:
  %other = phi i32 [ 0, %entry ], [ %next, %asked ]
  %any = phi i32 [ 0, %entry ], [ %any_now, %asked ]
  %part = lshr i32 %mask, %other
  %names = trunc i32 %part to i1
  br i1 %names, label %named, label %asked
named:
  %it = add i32 %warp, %other
  %value_at = getelementptr %team, ptr %team, i64 0, i32 9, i32 %turn, i32 %it
  %its = load i32, ptr %value_at
  %with_it = or i32 %any, %its
  br label %asked
asked:
  %any_now = phi i32 [ %any, %ask ], [ %with_it, %named ]
  %next = add i32 %other, 1
  %is_last = icmp eq i32 %next, 32
  br i1 %is_last, label %over, label %ask
over:
  %result = trunc i32 %any_now to i1
  ret i1 %result
}}

define internal void @run(i32 %thread, ptr %team) {{
  %out_at = getelementptr %team, ptr %team, i64 0, i32 1
  %block_at = getelementptr %team, ptr %team, i64 0, i32 2
  %in = load ptr, ptr %team
  %out = load ptr, ptr %out_at
  %block = load i32, ptr %block_at
{loads}
  call void @"{symbol}.thread"({pointers}, i32 %thread, i32 %block, ptr %team)
  ret void
}}

define internal void @start(i32 %low, i32 %high) {{
  %low_part = zext i32 %low to i64
  %wide = zext i32 %high to i64
  %high_part = shl i64 %wide, 32
  %address = or i64 %low_part, %high_part
  %team = inttoptr i64 %address to ptr
  %thread_at = getelementptr %team, ptr %team, i64 0, i32 3
  %thread = load i32, ptr %thread_at
  call void @run(i32 %thread, ptr %team)
  %left_at = getelementptr %team, ptr %team, i64 0, i32 6, i32 %thread
  store i1 1, ptr %left_at
  call void @went_on(ptr %team)
  call void @pause(i32 %thread, ptr %team)
  unreachable
}}

define internal void @run_together(ptr %team, ptr %stacks) {{
entry:
  %address = ptrtoint ptr %team to i64
  %low = trunc i64 %address to i32
  %high_part = lshr i64 %address, 32
  %high = trunc i64 %high_part to i32
  %thread_at = getelementptr %team, ptr %team, i64 0, i32 3
  %going_at = getelementptr %team, ptr %team, i64 0, i32 4
  %wrong_at = getelementptr %team, ptr %team, i64 0, i32 5
  %main = getelementptr %team, ptr %team, i64 0, i32 14
  br label %prepare
prepare:
  %new = phi i32 [ 0, %entry ], [ %next_new, %prepare ]
  %context = getelementptr %team, ptr %team, i64 0, i32 15, i32 %new
  call i32 @getcontext(ptr %context)
  %stack_at = getelementptr i8, ptr %context, i64 16  ; uc_stack.ss_sp
  %size_at = getelementptr i8, ptr %context, i64 32  ; uc_stack.ss_size
  %stack = getelementptr [{stack_bytes} x i8], ptr %stacks, i32 %new
  store ptr %stack, ptr %stack_at
  store i64 {stack_bytes}, ptr %size_at
  call void (ptr, ptr, i32, ...) @makecontext(
    ptr %context, ptr @start, i32 2, i32 %low, i32 %high)
  %next_new = add i32 %new, 1
  %are_prepared = icmp eq i32 %next_new, {block}
  br i1 %are_prepared, label %round, label %prepare
round:
  store i1 0, ptr %going_at
  br label %turn
turn:
  %thread = phi i32 [ 0, %round ], [ %next, %turned ]
  %num_left = phi i32 [ 0, %round ], [ %num_left_now, %turned ]
  %left_at = getelementptr %team, ptr %team, i64 0, i32 6, i32 %thread
  %has_left = load i1, ptr %left_at
  br i1 %has_left, label %turned, label %go
go:
  store i32 %thread, ptr %thread_at
  %own = getelementptr %team, ptr %team, i64 0, i32 15, i32 %thread
  call i32 @swapcontext(ptr %main, ptr %own)
  %wrong = load ptr, ptr %wrong_at
  %is_wrong = icmp ne ptr %wrong, null
  br i1 %is_wrong, label %failed, label %turned
turned:
  %one = zext i1 %has_left to i32
  %num_left_now = add i32 %num_left, %one
  %next = add i32 %thread, 1
  %is_round = icmp eq i32 %next, {block}
  br i1 %is_round, label %rounded, label %turn
rounded:
  %are_all = icmp eq i32 %num_left_now, {block}
  br i1 %are_all, label %over, label %look
look:
  %is_going = load i1, ptr %going_at
  br i1 %is_going, label %round, label %failed
failed:
  %message = phi ptr [ @stuck, %look ], [ %wrong, %go ]
  call i32 @puts(ptr %message)
  call i32 @fflush(ptr null)
  br label %over
over:
  ret void
}}

define void @"{symbol}"(ptr %in, ptr %out, i64 %first, i64 %last) {{
entry:
  %size = ptrtoint ptr getelementptr (%team, ptr null, i64 1) to i64
  %is_first = icmp eq i64 %first, 0
  br i1 %is_first, label %blocks, label %over
blocks:
  %block = phi i32 [ 0, %entry ], [ %next_block, %finished ]
  %team = call ptr @calloc(i64 1, i64 %size)
  %out_at = getelementptr %team, ptr %team, i64 0, i32 1
  %block_at = getelementptr %team, ptr %team, i64 0, i32 2
  store ptr %in, ptr %team
  store ptr %out, ptr %out_at
  store i32 %block, ptr %block_at
  br i1 {meets}, label %together, label %alone
together:
  %stacks = call ptr @calloc(i64 {block}, i64 {stack_bytes})
  call void @run_together(ptr %team, ptr %stacks)
  call void @free(ptr %stacks)
  br label %finished
alone:
  %thread = phi i32 [ 0, %blocks ], [ %next_thread, %alone ]
  call void @run(i32 %thread, ptr %team)
  %next_thread = add i32 %thread, 1
  %are_all = icmp eq i32 %next_thread, {block}
  br i1 %are_all, label %finished, label %alone
finished:
  call void @free(ptr %team)
  %next_block = add i32 %block, 1
  %are_done = icmp eq i32 %next_block, {grid}
  br i1 %are_done, label %over, label %blocks
over:
  ret void
}}
"""
