"""The native side of the runtime: LLVM IR of the one XLA FFI handler that runs kernels on CPUs.

The module built here keeps nothing but a few globals and calls nothing but XLA's FFI interface, the
C library and what its globals hold, so one object file serves all kernels of a process. Behind the
INSTANTIATE stage of all handlers (`codegen.ffi_calls`) it exports

- `fuselane_execute`, XLA's EXECUTE stage: collects buffer addresses and runs the kernel's tiles, on
  XLA's own thread pool when there are several. Takes about a microsecond besides the kernel itself;
- `fuselane_run_filled`, for `runtime.repeat`: runs some tiles on a stack full of some byte.

Tiles are handed out by an atomic counter, and the calling thread takes them too. A pool that is
busy, has one thread, or never runs a task therefore cannot block a call: a task that comes late
finds no tile left and only drops its reference to the job.
"""

from __future__ import annotations

from typing import Final

from fuselane.codegen.ffi_calls import FIND_KERNEL, MESSAGE_CAPACITY, build_common_ir
from fuselane.codegen.processors import build_processor_ir

EXECUTE_SYMBOL: Final = "fuselane_execute"
WAITER_SYMBOL: Final = "fuselane_waiter"
FILLED_SYMBOL: Final = "fuselane_run_filled"

_TYPES: Final = """
; Structs of the interface, as in `ffi_calls`.
%NumThreads = type { i64, ptr, ptr, ptr }               ; ..., ctx, num_threads
%Schedule = type { i64, ptr, ptr, ptr, ptr }            ; ..., ctx, task, data

; Ours: function (null: not made yet), num_tiles, max_threads (0: no limit), released, being_made
%Kernel = type { ptr, i64, i64, i64, i64 }
; references, next tile, finished tiles, num_tiles, tiles taken at a time, function, inputs,
; outputs, the caller's processor
%Job = type { i64, i64, i64, i64, i64, ptr, ptr, ptr, i64 }
"""

_MEMORY: Final = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i32 @usleep(i32)
"""

_JOB: Final = """
define internal void @drop_job(ptr %job) nounwind {
entry:
  %before = atomicrmw sub ptr %job, i64 1 acq_rel
  %is_last = icmp eq i64 %before, 1
  br i1 %is_last, label %delete, label %done
delete:
  call void @free(ptr %job)
  br label %done
done:
  ret void
}

define internal void @run_tiles(ptr %job) nounwind {
entry:
  %next = getelementptr %Job, ptr %job, i64 0, i32 1
  %finished = getelementptr %Job, ptr %job, i64 0, i32 2
  %num_tiles.place = getelementptr %Job, ptr %job, i64 0, i32 3
  %num_tiles = load i64, ptr %num_tiles.place
  %step.place = getelementptr %Job, ptr %job, i64 0, i32 4
  %step = load i64, ptr %step.place
  %function.place = getelementptr %Job, ptr %job, i64 0, i32 5
  %function = load ptr, ptr %function.place
  %inputs.place = getelementptr %Job, ptr %job, i64 0, i32 6
  %inputs = load ptr, ptr %inputs.place
  %outputs.place = getelementptr %Job, ptr %job, i64 0, i32 7
  %outputs = load ptr, ptr %outputs.place
  br label %take
take:
  %first = atomicrmw add ptr %next, i64 %step monotonic
  %is_left = icmp slt i64 %first, %num_tiles
  br i1 %is_left, label %run, label %done
run:
  %end = add i64 %first, %step
  %is_short = icmp slt i64 %num_tiles, %end
  %last = select i1 %is_short, i64 %num_tiles, i64 %end
  call void %function(ptr %inputs, ptr %outputs, i64 %first, i64 %last)
  %count = sub i64 %last, %first
  %before = atomicrmw add ptr %finished, i64 %count release
  br label %take
done:
  ret void
}

define internal void @pool_task(ptr %job) nounwind {
  %processor.place = getelementptr %Job, ptr %job, i64 0, i32 8
  %processor = load i64, ptr %processor.place
  call void @leave_processor(i64 %processor)
  call void @run_tiles(ptr %job)
  call void @drop_job(ptr %job)
  ret void
}

; Waits for tiles that pool threads are still running: a short spin, then the processor is offered
; to others.
define internal void @wait_for_tiles(ptr %job, i64 %num_tiles) nounwind {
entry:
  %finished = getelementptr %Job, ptr %job, i64 0, i32 2
  br label %look
look:
  %looks = phi i64 [ 0, %entry ], [ %more, %again ]
  %count = load atomic i64, ptr %finished acquire, align 8
  %is_done = icmp sge i64 %count, %num_tiles
  br i1 %is_done, label %done, label %pause
pause:
  %is_long = icmp ugt i64 %looks, 256
  br i1 %is_long, label %yield, label %again
yield:
  %ignored = call i32 @sched_yield()
  br label %again
again:
  %more = add i64 %looks, 1
  br label %look
done:
  ret void
}

; The calling thread's share: never fewer than all tiles that nobody else has taken.
define internal void @run_parallel(ptr %frame, ptr %function, i64 %num_tiles, i64 %workers,
    ptr %inputs, ptr %outputs) nounwind noinline {
entry:
  %args = alloca %Schedule
  %job = call ptr @malloc(i64 72)
  %is_there = icmp ne ptr %job, null
  br i1 %is_there, label %share, label %alone
alone:
  call void %function(ptr %inputs, ptr %outputs, i64 0, i64 %num_tiles)
  ret void
share:
  %references = add i64 %workers, 1
  store i64 %references, ptr %job
  %next = getelementptr %Job, ptr %job, i64 0, i32 1
  store i64 0, ptr %next
  %finished = getelementptr %Job, ptr %job, i64 0, i32 2
  store i64 0, ptr %finished
  %num_tiles.place = getelementptr %Job, ptr %job, i64 0, i32 3
  store i64 %num_tiles, ptr %num_tiles.place
  %shares = mul i64 %references, {shares}
  %quotient = sdiv i64 %num_tiles, %shares
  %is_small = icmp slt i64 %quotient, 1
  %step = select i1 %is_small, i64 1, i64 %quotient
  %step.place = getelementptr %Job, ptr %job, i64 0, i32 4
  store i64 %step, ptr %step.place
  %function.place = getelementptr %Job, ptr %job, i64 0, i32 5
  store ptr %function, ptr %function.place
  %inputs.place = getelementptr %Job, ptr %job, i64 0, i32 6
  store ptr %inputs, ptr %inputs.place
  %outputs.place = getelementptr %Job, ptr %job, i64 0, i32 7
  store ptr %outputs, ptr %outputs.place
  %processor.place = getelementptr %Job, ptr %job, i64 0, i32 8
  %processor = call i64 @current_processor()
  store i64 %processor, ptr %processor.place
  store %Schedule { i64 40, ptr null, ptr null, ptr @pool_task, ptr null }, ptr %args
  %data.field = getelementptr %Schedule, ptr %args, i64 0, i32 4
  store ptr %job, ptr %data.field
  br label %more
more:
  %left = phi i64 [ %workers, %share ], [ %fewer, %scheduled ], [ %fewer, %refused ]
  %any_left = icmp sgt i64 %left, 0
  br i1 %any_left, label %submit, label %work
submit:
  %fewer = sub i64 %left, 1
  %error = call ptr @call_schedule(ptr %frame, ptr %args)
  %is_scheduled = icmp eq ptr %error, null
  br i1 %is_scheduled, label %scheduled, label %refused
scheduled:
  br label %more
refused:
  call void @destroy_error(ptr %frame, ptr %error)
  call void @drop_job(ptr %job)
  br label %more
work:
  call void @run_tiles(ptr %job)
  call void @wait_for_tiles(ptr %job, i64 %num_tiles)
  call void @drop_job(ptr %job)
  ret void
}
"""

_WAIT: Final = """
@fuselane_waiter = global ptr null

; Waits for a kernel's function while a thread makes it, at first without Python, which may be on
; its way out. If none does, asks for it; returns an error if there will be none.
define internal ptr @wait_for_function(ptr %frame, ptr %kernel) nounwind noinline {
entry:
  %message = alloca [{capacity} x i8]
  %being_made.place = getelementptr %Kernel, ptr %kernel, i64 0, i32 4
  br label %look
look:
  %naps = phi i64 [ 0, %entry ], [ %more, %sleep ]
  %known = load atomic ptr, ptr %kernel acquire, align 8
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %done, label %missing
missing:
  %being_made = load atomic i64, ptr %being_made.place acquire, align 8
  %is_being_made = icmp ne i64 %being_made, 0
  %is_early = icmp slt i64 %naps, {naps}
  %waits = and i1 %is_being_made, %is_early
  br i1 %waits, label %sleep, label %ask
sleep:
  %more = add i64 %naps, 1
  %ignored = call i32 @usleep(i32 {microseconds})
  br label %look
ask:
  store i8 0, ptr %message
  %waiter = load ptr, ptr @fuselane_waiter
  %function = call ptr %waiter(ptr %kernel, ptr %message, i64 {capacity})
  %failed = icmp eq ptr %function, null
  br i1 %failed, label %fail, label %done
fail:
  %refusal = call ptr @make_error(ptr %frame, ptr %message)
  ret ptr %refusal
done:
  ret ptr null
}
"""

_EXECUTE: Final = """
; How many pool threads may help: one less than the pool's size, the kernel's limit and the number
; of tiles allow.
define internal i64 @count_workers(ptr %frame, i64 %num_tiles, i64 %max_threads) nounwind noinline {
entry:
  %threads = alloca i64
  store i64 1, ptr %threads
  %args = alloca %NumThreads
  store %NumThreads { i64 32, ptr null, ptr null, ptr null }, ptr %args
  %threads.field = getelementptr %NumThreads, ptr %args, i64 0, i32 3
  store ptr %threads, ptr %threads.field
  %error = call ptr @call_num_threads(ptr %frame, ptr %args)
  %is_known = icmp eq ptr %error, null
  br i1 %is_known, label %known, label %unknown
unknown:
  call void @destroy_error(ptr %frame, ptr %error)
  ret i64 0
known:
  %available = load i64, ptr %threads
  %exceeds_tiles = icmp slt i64 %num_tiles, %available
  %useful = select i1 %exceeds_tiles, i64 %num_tiles, i64 %available
  %is_unlimited = icmp eq i64 %max_threads, 0
  %limit = select i1 %is_unlimited, i64 %useful, i64 %max_threads
  %exceeds_limit = icmp slt i64 %limit, %useful
  %allowed = select i1 %exceeds_limit, i64 %limit, i64 %useful
  %workers = sub i64 %allowed, 1
  ret i64 %workers
}

define ptr @fuselane_execute(ptr %frame) nounwind {
entry:
  %place = alloca ptr
{find}
  %kernel = load ptr, ptr %place
  %known = load atomic ptr, ptr %kernel acquire, align 8
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %made, label %wait
wait:
  %refusal = call ptr @wait_for_function(ptr %frame, ptr %kernel)
  %is_made = icmp eq ptr %refusal, null
  br i1 %is_made, label %made, label %failed
failed:
  ret ptr %refusal
made:
  %operands = getelementptr %CallFrame, ptr %frame, i64 0, i32 5
  %num_inputs.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 5, i32 2
  %num_inputs = load i64, ptr %num_inputs.place
  %inputs = alloca ptr, i64 %num_inputs
  call void @collect_addresses(ptr %operands, i64 %num_inputs, ptr %inputs)
  %results = getelementptr %CallFrame, ptr %frame, i64 0, i32 6
  %num_outputs.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 6, i32 2
  %num_outputs = load i64, ptr %num_outputs.place
  %outputs = alloca ptr, i64 %num_outputs
  call void @collect_addresses(ptr %results, i64 %num_outputs, ptr %outputs)
  %function = load ptr, ptr %kernel
  %num_tiles.place = getelementptr %Kernel, ptr %kernel, i64 0, i32 1
  %num_tiles = load i64, ptr %num_tiles.place
  %max_threads.place = getelementptr %Kernel, ptr %kernel, i64 0, i32 2
  %max_threads = load i64, ptr %max_threads.place
  %is_single_tile = icmp slt i64 %num_tiles, 2
  %is_single_thread = icmp eq i64 %max_threads, 1
  %is_alone = or i1 %is_single_tile, %is_single_thread
  br i1 %is_alone, label %alone, label %ask
ask:
  %workers = call i64 @count_workers(ptr %frame, i64 %num_tiles, i64 %max_threads)
  %has_workers = icmp sgt i64 %workers, 0
  br i1 %has_workers, label %together, label %alone
alone:
  call void %function(ptr %inputs, ptr %outputs, i64 0, i64 %num_tiles)
  ret ptr null
together:
  call void @run_parallel(ptr %frame, ptr %function, i64 %num_tiles, i64 %workers,
    ptr %inputs, ptr %outputs)
  ret ptr null
}
"""

_FILLED: Final = """
; More than a kernel may have for its own, which then lies in it.
define internal void @fill_stack(i8 %byte) nounwind noinline {
  %memory = alloca [1179648 x i8], align 64
  call void @llvm.memset.p0.i64(ptr %memory, i8 %byte, i64 1179648, i1 true)
  ret void
}

define void @fuselane_run_filled(ptr %function, ptr %inputs, ptr %outputs, i64 %first, i64 %last,
    i8 %byte) nounwind noinline {
  call void @fill_stack(i8 %byte)
  call void %function(ptr %inputs, ptr %outputs, i64 %first, i64 %last)
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

_NAP_US: Final = 100
"""How long a call sleeps before it looks again whether its machine code has been made."""

_MAX_NAPS: Final = 20_000
"""And how often, before it asks Python all the same: should the caller hold Python's lock, the
thread that makes the code cannot go on, but who asks lets go of it."""

_SHARES_PER_THREAD: Final = 16
"""Into how many takes a thread's fair share is split: small enough to balance, large enough to keep
the counter cool."""


def build_handler_ir() -> str:
    """Returns the handler module as LLVM IR text for the host.

    Exports `fuselane_instantiate(frame) -> error`, `fuselane_execute(frame) -> error` and two
    globals, which must hold C functions before an executable is instantiated:

    - `fuselane_resolver`, `kernel* (XLA_FFI_Attrs*, char* message, int64_t capacity)`, returns a
      pointer to { function, num_tiles, max_threads, released, being_made } (five 8-byte fields), or
      null and a message. `released` is counted up, atomically, for every returned pointer when XLA
      no longer needs it. While the function is null, calls wait as long as `being_made` is not 0;
    - `fuselane_waiter`, `function* (kernel*, char* message, int64_t capacity)`, is asked by a call
      then. It has put the function there when it returns, or returns null and a message.

    `fuselane_run_filled` takes a kernel's function, inputs, outputs, first tile and the one behind
    the last, and a byte.
    """
    job = _JOB.replace("{shares}", str(_SHARES_PER_THREAD))
    wait = _WAIT.replace("{capacity}", str(MESSAGE_CAPACITY))
    wait = wait.replace("{microseconds}", str(_NAP_US)).replace("{naps}", str(_MAX_NAPS))
    execute = _EXECUTE.replace("{find}", FIND_KERNEL)
    common = build_common_ir("fuselane_kernel")
    parts = common, _TYPES, _MEMORY, build_processor_ir(), job, wait, execute, _FILLED
    return "".join(parts)
