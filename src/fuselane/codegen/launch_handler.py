"""LLVM IR of the XLA FFI handler that launches kernels on NVIDIA GPUs, where XLA can't by itself.

Its INSTANTIATE stage is that of all handlers (`codegen.ffi_calls`) and needs no driver,
so programs compile where there is no GPU. `fuselane_launch`, the EXECUTE stage, hands the PTX to
the driver at the kernel's first call, and launches it on XLA's stream. The driver's functions are
called through the global `fuselane_driver`, a table that whoever loads this module fills; while it
is empty, calls fail with a sentence.

A library of the driver belongs to no context, and a launch takes the context of its stream: one
load serves all GPUs of the process. Threads that come to the first call of a kernel together all
load it; the first that is done wins, the others unload theirs.

The handler doesn't say that it may be recorded into command buffers: XLA then ends one before the
call and begins another behind it.

Source: CUDA Driver API, sections 6.12 (library management) and 6.22 (execution control).
"""

from __future__ import annotations

from typing import Final

from fuselane.codegen.ffi_calls import FIND_KERNEL, MESSAGE_CAPACITY, build_common_ir

LAUNCH_SYMBOL: Final = "fuselane_launch"
DRIVER_SYMBOL: Final = "fuselane_driver"

DRIVER_FUNCTIONS: Final = (
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuLibraryUnload",
    "cuLaunchKernel",
    "cuGetErrorString",
)
"""What `fuselane_driver` holds, in order; all of them since CUDA 12.0."""

_GLOBALS: Final = """
; PTX, name, grid, released, threads of a block, bytes of shared memory, operands that are
; parameters, CUkernel and CUlibrary once loaded
%Launch = type { ptr, ptr, i32, i64, i32, i32, i64, ptr, ptr }
%Stream = type { i64, ptr, ptr, ptr }                   ; ..., ctx, stream

@fuselane_driver = global [5 x ptr] zeroinitializer
@no_driver = internal constant [75 x i8]
  c"fuselane: the NVIDIA driver (libcuda.so.1) is missing, or older than 12.0.\\00"
@refusal = internal constant [47 x i8]
  c"fuselane: the NVIDIA driver refused a kernel: \\00"
@format = internal constant [5 x i8] c"%s%s\\00"
@unknown = internal constant [14 x i8] c"unknown error\\00"

declare i32 @snprintf(ptr, i64, ptr, ...)
"""

_LAUNCH: Final = """
define internal ptr @driver_function(i64 %position) alwaysinline nounwind {
  %place = getelementptr [5 x ptr], ptr @fuselane_driver, i64 0, i64 %position
  %function = load ptr, ptr %place
  ret ptr %function
}

define internal ptr @make_driver_error(ptr %frame, i32 %status) nounwind noinline {
entry:
  %message = alloca [{capacity} x i8]
  %text.place = alloca ptr
  store ptr null, ptr %text.place
  %describe = call ptr @driver_function(i64 4)
  %ignored = call i32 %describe(i32 %status, ptr %text.place)
  %text = load ptr, ptr %text.place
  %is_unknown = icmp eq ptr %text, null
  %said = select i1 %is_unknown, ptr @unknown, ptr %text
  %size = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {capacity}, ptr @format,
    ptr @refusal, ptr %said)
  %error = call ptr @make_error(ptr %frame, ptr %message)
  ret ptr %error
}

; Hands a kernel's PTX to the driver. Returns the driver's status, 0 if all is well.
define internal i32 @load_kernel(ptr %launch) nounwind noinline {
entry:
  %library.place = alloca ptr
  %kernel.place = alloca ptr
  %text = load ptr, ptr %launch
  %load = call ptr @driver_function(i64 0)
  %loaded = call i32 %load(ptr %library.place, ptr %text, ptr null, ptr null, i32 0, ptr null,
    ptr null, i32 0)
  %is_loaded = icmp eq i32 %loaded, 0
  br i1 %is_loaded, label %find, label %refused
refused:
  ret i32 %loaded
find:
  %library = load ptr, ptr %library.place
  %name.place = getelementptr %Launch, ptr %launch, i64 0, i32 1
  %name = load ptr, ptr %name.place
  %get = call ptr @driver_function(i64 1)
  %found = call i32 %get(ptr %kernel.place, ptr %library, ptr %name)
  %is_found = icmp eq i32 %found, 0
  br i1 %is_found, label %publish, label %unload
publish:
  %kernel = load ptr, ptr %kernel.place
  %kernel.field = getelementptr %Launch, ptr %launch, i64 0, i32 7
  %exchange = cmpxchg ptr %kernel.field, ptr null, ptr %kernel acq_rel acquire
  %is_first = extractvalue { ptr, i1 } %exchange, 1
  br i1 %is_first, label %keep, label %unload
keep:
  %library.field = getelementptr %Launch, ptr %launch, i64 0, i32 8
  store ptr %library, ptr %library.field
  ret i32 0
unload:
  %drop = call ptr @driver_function(i64 2)
  %ignored = call i32 %drop(ptr %library)
  ret i32 %found
}

define ptr @fuselane_launch(ptr %frame) nounwind {
entry:
  %place = alloca ptr
  %args = alloca %Stream
{find}
  %launch = load ptr, ptr %place
  %run = call ptr @driver_function(i64 3)
  %has_driver = icmp ne ptr %run, null
  br i1 %has_driver, label %ask, label %alone
alone:
  %absence = call ptr @make_error(ptr %frame, ptr @no_driver)
  ret ptr %absence
ask:
  store %Stream { i64 32, ptr null, ptr null, ptr null }, ptr %args
  %no_stream = call ptr @call_stream_get(ptr %frame, ptr %args)
  %has_stream = icmp eq ptr %no_stream, null
  br i1 %has_stream, label %load, label %streamless
streamless:
  ret ptr %no_stream
load:
  %stream.field = getelementptr %Stream, ptr %args, i64 0, i32 3
  %stream = load ptr, ptr %stream.field
  %kernel.field = getelementptr %Launch, ptr %launch, i64 0, i32 7
  %known = load atomic ptr, ptr %kernel.field acquire, align 8
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %prepare, label %first
first:
  %loaded = call i32 @load_kernel(ptr %launch)
  %is_loaded = icmp eq i32 %loaded, 0
  br i1 %is_loaded, label %prepare, label %refused
prepare:
  %kernel = load atomic ptr, ptr %kernel.field acquire, align 8
  %operands = getelementptr %CallFrame, ptr %frame, i64 0, i32 5
  %num_inputs.place = getelementptr %Launch, ptr %launch, i64 0, i32 6
  %num_inputs = load i64, ptr %num_inputs.place
  %results = getelementptr %CallFrame, ptr %frame, i64 0, i32 6
  %num_results.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 6, i32 2
  %num_results = load i64, ptr %num_results.place
  %num_arrays = add i64 %num_inputs, %num_results
  %addresses = alloca ptr, i64 %num_arrays
  %parameters = alloca ptr, i64 %num_arrays
  call void @collect_addresses(ptr %operands, i64 %num_inputs, ptr %addresses)
  %outputs = getelementptr ptr, ptr %addresses, i64 %num_inputs
  call void @collect_addresses(ptr %results, i64 %num_results, ptr %outputs)
  br label %check
check:
  %i = phi i64 [ 0, %prepare ], [ %next, %point ]
  %is_left = icmp slt i64 %i, %num_arrays
  br i1 %is_left, label %point, label %start
point:
  %address = getelementptr ptr, ptr %addresses, i64 %i
  %parameter = getelementptr ptr, ptr %parameters, i64 %i
  store ptr %address, ptr %parameter
  %next = add i64 %i, 1
  br label %check
start:
  %grid.place = getelementptr %Launch, ptr %launch, i64 0, i32 2
  %grid = load i32, ptr %grid.place
  %block.place = getelementptr %Launch, ptr %launch, i64 0, i32 4
  %block = load i32, ptr %block.place
  %shared.place = getelementptr %Launch, ptr %launch, i64 0, i32 5
  %shared = load i32, ptr %shared.place
  %launched = call i32 %run(ptr %kernel, i32 %grid, i32 1, i32 1, i32 %block, i32 1, i32 1,
    i32 %shared, ptr %stream, ptr %parameters, ptr null)
  %is_launched = icmp eq i32 %launched, 0
  br i1 %is_launched, label %done, label %refused
done:
  ret ptr null
refused:
  %status = phi i32 [ %loaded, %first ], [ %launched, %start ]
  %failure = call ptr @make_driver_error(ptr %frame, i32 %status)
  ret ptr %failure
}
"""


def build_launch_ir() -> str:
    """Returns the handler module as LLVM IR text for the host.

    Exports `fuselane_instantiate(frame) -> error`, `fuselane_launch(frame) -> error`, the global
    `fuselane_driver`, to be filled with the addresses of DRIVER_FUNCTIONS, and `fuselane_resolver`,
    as in `ffi_handler.build_handler_ir`, which returns a pointer to %Launch.
    """
    launch = _LAUNCH.replace("{find}", FIND_KERNEL).replace("{capacity}", str(MESSAGE_CAPACITY))
    return "".join((build_common_ir("fuselane_launch"), _GLOBALS, launch))
