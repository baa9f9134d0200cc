"""The native side of the runtime: LLVM IR of the one XLA FFI handler that runs kernels on CPUs.

The module built here keeps nothing but two globals and calls nothing but XLA's FFI interface, the C
allocator and `sched_yield`, so one object file serves all kernels of a process. It exports

- `fuselane_instantiate`, XLA's INSTANTIATE stage: asks the resolver (a C function pointer in
  `fuselane_resolver`) for the kernel that the custom call's attributes name and makes it the call
  site's state. The only stage that needs Python.
- `fuselane_execute`, XLA's EXECUTE stage: collects buffer addresses and runs the kernel's tiles, on
  XLA's own thread pool when there are several. Takes about a microsecond besides the kernel itself.

Tiles are handed out by an atomic counter, and the calling thread takes them too. A pool that is
busy, has one thread, or never runs a task therefore cannot block a call: a task that comes late
finds no tile left and only drops its reference to the job.

Source: xla/ffi/api/c_api.h of jaxlib (interface version 0.3); sizes and field orders below mirror
its structs.
"""

from __future__ import annotations

from typing import Final

API_MAJOR: Final = 0
API_MINOR: Final = 3
"""The FFI interface version the structs below were written for; XLA refuses handlers it cannot
serve."""

INSTANTIATE_SYMBOL: Final = "fuselane_instantiate"
EXECUTE_SYMBOL: Final = "fuselane_execute"
RESOLVER_SYMBOL: Final = "fuselane_resolver"

MESSAGE_CAPACITY: Final = 1024
"""Bytes the resolver may write as an error message, terminating zero included."""

_TYPES: Final = """
; All begin with struct_size and extensions (...) unless said otherwise.
%Extension = type { i64, i32, ptr }                     ; struct_size, type, next
%Version = type { i64, ptr, i32, i32 }                  ; ..., major, minor
%Metadata = type { i64, %Version, i32, i64 }            ; struct_size, version, traits, state type
%MetadataExtension = type { %Extension, ptr }           ; base, metadata
%Args = type { i64, ptr, i64, ptr, ptr }                ; ..., size, types, args
%Attrs = type { i64, ptr, i64, ptr, ptr, ptr }          ; ..., size, types, names, attrs
; ..., api, ctx, stage, args, rets, attrs, future
%CallFrame = type { i64, ptr, ptr, ptr, i32, %Args, %Args, %Attrs, ptr }
%Buffer = type { i64, ptr, i32, ptr, i64, ptr }         ; ..., dtype, data, rank, dims
%Api = type { i64, ptr, %Version, ptr, [18 x ptr] }     ; ..., version, internal, functions
%ErrorCreate = type { i64, ptr, ptr, i32 }              ; ..., message, code
%ErrorDestroy = type { i64, ptr, ptr }                  ; ..., error
%TypeInfo = type { i64, ptr, ptr }                      ; ..., deleter
%TypeRegister = type { i64, ptr, ptr, i64, ptr, ptr }   ; ..., name, its length, type_id, type_info
%State = type { i64, ptr, ptr, i32, ptr, ptr }          ; ..., ctx, stage, type_id, state
%NumThreads = type { i64, ptr, ptr, ptr }               ; ..., ctx, num_threads
%Schedule = type { i64, ptr, ptr, ptr, ptr }            ; ..., ctx, task, data

; Ours: function, num_tiles, max_threads (0: no limit), released
%Kernel = type { ptr, i64, i64, i64 }
; references, next tile, finished tiles, num_tiles, tiles taken at a time, function, inputs, outputs
%Job = type { i64, i64, i64, i64, i64, ptr, ptr, ptr }
"""

_GLOBALS: Final = """
@fuselane_resolver = global ptr null
@type_id = internal global i64 0
@type_name = internal constant [15 x i8] c"{type}"
@type_info = internal constant %TypeInfo { i64 24, ptr null, ptr @release_kernel }
@no_state = internal constant [38 x i8] c"fuselane: the call site has no kernel\\00"
"""

_MEMORY: Final = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
"""

# Functions of the interface by position in XLA_FFI_Api.
_API_FUNCTIONS: Final = {
    "error_create": 0,
    "error_destroy": 2,
    "stream_get": 4,
    "type_register": 5,
    "state_set": 7,
    "state_get": 8,
    "schedule": 11,
    "num_threads": 12,
}

_ACCESSOR: Final = """
define internal ptr @api_{name}(ptr %frame) alwaysinline nounwind {{
  %api.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 2
  %api = load ptr, ptr %api.place
  %place = getelementptr %Api, ptr %api, i64 0, i32 4, i64 {position}
  %function = load ptr, ptr %place
  ret ptr %function
}}
"""

_ERRORS: Final = """
define internal ptr @make_error(ptr %frame, ptr %message) nounwind noinline {
  %args = alloca %ErrorCreate
  store %ErrorCreate { i64 28, ptr null, ptr null, i32 9 }, ptr %args      ; 9: failed precondition
  %message.place = getelementptr %ErrorCreate, ptr %args, i64 0, i32 2
  store ptr %message, ptr %message.place
  %create = call ptr @api_error_create(ptr %frame)
  %error = call ptr %create(ptr %args)
  ret ptr %error
}

define internal void @destroy_error(ptr %frame, ptr %error) nounwind noinline {
  %args = alloca %ErrorDestroy
  store %ErrorDestroy { i64 24, ptr null, ptr null }, ptr %args
  %error.place = getelementptr %ErrorDestroy, ptr %args, i64 0, i32 2
  store ptr %error, ptr %error.place
  %destroy = call ptr @api_error_destroy(ptr %frame)
  call void %destroy(ptr %args)
  ret void
}
"""

# XLA asks every handler once, at registration, for its interface version and the type of its state.
_METADATA: Final = """
define internal i1 @is_metadata_request(ptr %frame) alwaysinline nounwind {
entry:
  %place = getelementptr %CallFrame, ptr %frame, i64 0, i32 1
  %extension = load ptr, ptr %place
  %absent = icmp eq ptr %extension, null
  br i1 %absent, label %no, label %look
look:
  %type.place = getelementptr %Extension, ptr %extension, i64 0, i32 1
  %type = load i32, ptr %type.place
  %is_metadata = icmp eq i32 %type, 1
  ret i1 %is_metadata
no:
  ret i1 false
}

define internal void @answer_metadata(ptr %frame, i64 %state_type) nounwind noinline {
  %place = getelementptr %CallFrame, ptr %frame, i64 0, i32 1
  %extension = load ptr, ptr %place
  %metadata.place = getelementptr %MetadataExtension, ptr %extension, i64 0, i32 1
  %metadata = load ptr, ptr %metadata.place
  %version = getelementptr %Metadata, ptr %metadata, i64 0, i32 1
  store %Version { i64 24, ptr null, i32 {major}, i32 {minor} }, ptr %version
  %traits = getelementptr %Metadata, ptr %metadata, i64 0, i32 2
  store i32 0, ptr %traits
  %type = getelementptr %Metadata, ptr %metadata, i64 0, i32 3
  store i64 %state_type, ptr %type
  ret void
}

define internal ptr @register_type(ptr %frame) nounwind noinline {
entry:
  %known = load i64, ptr @type_id
  %is_known = icmp ne i64 %known, 0
  br i1 %is_known, label %done, label %register
register:
  %args = alloca %TypeRegister
  store %TypeRegister { i64 48, ptr null, ptr @type_name, i64 15, ptr @type_id, ptr @type_info },
    ptr %args
  %function = call ptr @api_type_register(ptr %frame)
  %error = call ptr %function(ptr %args)
  ret ptr %error
done:
  ret ptr null
}
"""

_INSTANTIATE: Final = """
define ptr @fuselane_instantiate(ptr %frame) nounwind {
entry:
  %message = alloca [{capacity} x i8]
  %args = alloca %State
  %is_metadata = call i1 @is_metadata_request(ptr %frame)
  br i1 %is_metadata, label %metadata, label %resolve
metadata:
  %error = call ptr @register_type(ptr %frame)
  %type = load i64, ptr @type_id
  call void @answer_metadata(ptr %frame, i64 %type)
  ret ptr %error
resolve:
  store i8 0, ptr %message
  %attrs = getelementptr %CallFrame, ptr %frame, i64 0, i32 7
  %resolver = load ptr, ptr @fuselane_resolver
  %kernel = call ptr %resolver(ptr %attrs, ptr %message, i64 {capacity})
  %failed = icmp eq ptr %kernel, null
  br i1 %failed, label %fail, label %keep
fail:
  %refusal = call ptr @make_error(ptr %frame, ptr %message)
  ret ptr %refusal
keep:
  store %State { i64 48, ptr null, ptr null, i32 0, ptr @type_id, ptr null }, ptr %args
  %ctx.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 3
  %ctx = load ptr, ptr %ctx.place
  %ctx.field = getelementptr %State, ptr %args, i64 0, i32 2
  store ptr %ctx, ptr %ctx.field
  %state.field = getelementptr %State, ptr %args, i64 0, i32 5
  store ptr %kernel, ptr %state.field
  %set = call ptr @api_state_set(ptr %frame)
  %outcome = call ptr %set(ptr %args)
  ret ptr %outcome
}

; XLA calls this when the executable that owns a call site is destroyed, on any thread, with or
; without Python running; so it only counts.
define internal void @release_kernel(ptr %kernel) nounwind {
  %released = getelementptr %Kernel, ptr %kernel, i64 0, i32 3
  %before = atomicrmw add ptr %released, i64 1 acq_rel
  ret void
}
"""

_LOOK_UP: Final = """
; Fills `addresses` with the data addresses of the buffers of an XLA_FFI_Args or XLA_FFI_Rets.
define internal void @collect_addresses(ptr %buffers, i64 %count, ptr %addresses)
    alwaysinline nounwind {
entry:
  %list.place = getelementptr %Args, ptr %buffers, i64 0, i32 4
  %list = load ptr, ptr %list.place
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %following, %copy ]
  %is_left = icmp slt i64 %i, %count
  br i1 %is_left, label %copy, label %done
copy:
  %buffer.place = getelementptr ptr, ptr %list, i64 %i
  %buffer = load ptr, ptr %buffer.place
  %data.place = getelementptr %Buffer, ptr %buffer, i64 0, i32 3
  %data = load ptr, ptr %data.place
  %target = getelementptr ptr, ptr %addresses, i64 %i
  store ptr %data, ptr %target
  %following = add i64 %i, 1
  br label %check
done:
  ret void
}

; Puts the call site's kernel at `place`; returns an error if it has none.
define internal ptr @find_kernel(ptr %frame, ptr %place) alwaysinline nounwind {
entry:
  %args = alloca %State
  store %State { i64 48, ptr null, ptr null, i32 0, ptr @type_id, ptr null }, ptr %args
  %ctx.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 3
  %ctx = load ptr, ptr %ctx.place
  %ctx.field = getelementptr %State, ptr %args, i64 0, i32 2
  store ptr %ctx, ptr %ctx.field
  %get = call ptr @api_state_get(ptr %frame)
  %error = call ptr %get(ptr %args)
  %is_found = icmp eq ptr %error, null
  br i1 %is_found, label %found, label %missing
missing:
  ret ptr %error
found:
  %state.field = getelementptr %State, ptr %args, i64 0, i32 5
  %kernel = load ptr, ptr %state.field
  store ptr %kernel, ptr %place
  %is_empty = icmp eq ptr %kernel, null
  br i1 %is_empty, label %empty, label %there
empty:
  %refusal = call ptr @make_error(ptr %frame, ptr @no_state)
  ret ptr %refusal
there:
  ret ptr null
}
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
  %job = call ptr @malloc(i64 64)
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
  %ctx.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 3
  %ctx = load ptr, ptr %ctx.place
  store %Schedule { i64 40, ptr null, ptr null, ptr @pool_task, ptr null }, ptr %args
  %ctx.field = getelementptr %Schedule, ptr %args, i64 0, i32 2
  store ptr %ctx, ptr %ctx.field
  %data.field = getelementptr %Schedule, ptr %args, i64 0, i32 4
  store ptr %job, ptr %data.field
  %schedule = call ptr @api_schedule(ptr %frame)
  br label %more
more:
  %left = phi i64 [ %workers, %share ], [ %fewer, %scheduled ], [ %fewer, %refused ]
  %any_left = icmp sgt i64 %left, 0
  br i1 %any_left, label %submit, label %work
submit:
  %fewer = sub i64 %left, 1
  %error = call ptr %schedule(ptr %args)
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

_EXECUTE: Final = """
; How many pool threads may help: one less than the pool's size, the kernel's limit and the number
; of tiles allow.
define internal i64 @count_workers(ptr %frame, i64 %num_tiles, i64 %max_threads) nounwind noinline {
entry:
  %threads = alloca i64
  store i64 1, ptr %threads
  %args = alloca %NumThreads
  store %NumThreads { i64 32, ptr null, ptr null, ptr null }, ptr %args
  %ctx.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 3
  %ctx = load ptr, ptr %ctx.place
  %ctx.field = getelementptr %NumThreads, ptr %args, i64 0, i32 2
  store ptr %ctx, ptr %ctx.field
  %threads.field = getelementptr %NumThreads, ptr %args, i64 0, i32 3
  store ptr %threads, ptr %threads.field
  %function = call ptr @api_num_threads(ptr %frame)
  %error = call ptr %function(ptr %args)
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
  %is_metadata = call i1 @is_metadata_request(ptr %frame)
  br i1 %is_metadata, label %metadata, label %find
metadata:
  call void @answer_metadata(ptr %frame, i64 0)
  ret ptr null
find:
  %error = call ptr @find_kernel(ptr %frame, ptr %place)
  %is_found = icmp eq ptr %error, null
  br i1 %is_found, label %prepare, label %missing
missing:
  ret ptr %error
prepare:
  %kernel = load ptr, ptr %place
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

_SHARES_PER_THREAD: Final = 16
"""Into how many takes a thread's fair share is split: small enough to balance, large enough to keep
the counter cool."""


def build_handler_ir() -> str:
    """Returns the handler module as LLVM IR text for the host.

    Exports `fuselane_instantiate(frame) -> error`, `fuselane_execute(frame) -> error` and the
    global `fuselane_resolver`, which must hold a C function
    `kernel* (XLA_FFI_Attrs*, char* message, int64_t capacity)` before an executable is
    instantiated. It returns a pointer to { function, num_tiles, max_threads, released } (four
    8-byte fields), or null and a message. `released` is counted up, atomically, for every returned
    pointer when XLA no longer needs it.
    """
    job = _JOB.replace("{shares}", str(_SHARES_PER_THREAD))
    return "".join((build_common_ir("fuselane_kernel"), _MEMORY, job, _EXECUTE))


def build_common_ir(state_type: str) -> str:
    """Returns what handlers on all platforms begin with: their INSTANTIATE stage and look-ups.

    Also defines `fuselane_resolver`; of what it returns, only `released` is touched. To be followed
    by the EXECUTE stage.

    Args:
        state_type: What XLA is to call the type of a call's state, once per platform: 15 letters.
    """
    names = _GLOBALS.replace("{type}", state_type)
    accessors = (
        _ACCESSOR.format(name=name, position=position) for name, position in _API_FUNCTIONS.items()
    )
    metadata = _METADATA.replace("{major}", str(API_MAJOR)).replace("{minor}", str(API_MINOR))
    instantiate = _INSTANTIATE.replace("{capacity}", str(MESSAGE_CAPACITY))
    return "".join((_TYPES, names, *accessors, _ERRORS, metadata, instantiate, _LOOK_UP))
