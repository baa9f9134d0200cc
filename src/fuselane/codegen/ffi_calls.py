"""XLA's FFI interface as LLVM IR: what the handlers of all platforms have in common.

The IR exports

- `fuselane_instantiate`, XLA's INSTANTIATE stage: asks the resolver (a C function pointer in
  `fuselane_resolver`) for the kernel that the custom call's attributes name and makes it the call
  site's state. The only stage that needs Python.

and defines, for the EXECUTE stages that follow it, look-ups of the call's kernel and buffers, and
the interface's functions: `@call_NAME(frame, args)` where they take a context, else `@api_NAME`.

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
RESOLVER_SYMBOL: Final = "fuselane_resolver"

MESSAGE_CAPACITY: Final = 1024
"""Bytes the resolver may write as an error message, terminating zero included."""

FIND_KERNEL: Final = """\
  %is_metadata = call i1 @is_metadata_request(ptr %frame)
  br i1 %is_metadata, label %metadata, label %find
metadata:
  call void @answer_metadata(ptr %frame, i64 0)
  ret ptr null
find:
  %error = call ptr @find_kernel(ptr %frame, ptr %place)
  %is_found = icmp eq ptr %error, null
  br i1 %is_found, label %found, label %missing
missing:
  ret ptr %error
found:"""
"""How EXECUTE stages begin, behind an alloca `%place`, which then holds the call's kernel."""

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
%InContext = type { i64, ptr, ptr }                     ; ..., ctx: what calls with a context share
%State = type { i64, ptr, ptr, i32, ptr, ptr }          ; ..., ctx, stage, type_id, state

; Ours, as far as all platforms' kernels are alike: ..., how often XLA has released it
%AnyKernel = type { [3 x i64], i64 }
"""

_GLOBALS: Final = """
@fuselane_resolver = global ptr null
@type_id = internal global i64 0
@type_name = internal constant [15 x i8] c"{type}"
@type_info = internal constant %TypeInfo { i64 24, ptr null, ptr @release_kernel }
@no_state = internal constant [38 x i8] c"fuselane: the call site has no kernel\\00"
"""

API_FUNCTIONS: Final = {
    "error_create": 0,
    "error_destroy": 2,
    "stream_get": 4,
    "type_register": 5,
    "state_set": 7,
    "state_get": 8,
    "schedule": 11,
    "num_threads": 12,
}
"""Functions of the interface by position in XLA_FFI_Api."""
_WITH_CONTEXT: Final = ("stream_get", "state_set", "state_get", "schedule", "num_threads")

_ACCESSOR: Final = """
define internal ptr @api_{name}(ptr %frame) alwaysinline nounwind {{
  %api.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 2
  %api = load ptr, ptr %api.place
  %place = getelementptr %Api, ptr %api, i64 0, i32 4, i64 {position}
  %function = load ptr, ptr %place
  ret ptr %function
}}
"""

_CALL: Final = """
; Calls a function that takes a context: that of the frame.
define internal ptr @call_{name}(ptr %frame, ptr %args) alwaysinline nounwind {{
  %ctx.place = getelementptr %CallFrame, ptr %frame, i64 0, i32 3
  %ctx = load ptr, ptr %ctx.place
  %ctx.field = getelementptr %InContext, ptr %args, i64 0, i32 2
  store ptr %ctx, ptr %ctx.field
  %function = call ptr @api_{name}(ptr %frame)
  %error = call ptr %function(ptr %args)
  ret ptr %error
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
  %state.field = getelementptr %State, ptr %args, i64 0, i32 5
  store ptr %kernel, ptr %state.field
  %outcome = call ptr @call_state_set(ptr %frame, ptr %args)
  ret ptr %outcome
}

; XLA calls this when the executable that owns a call site is destroyed, on any thread, with or
; without Python running; so it only counts.
define internal void @release_kernel(ptr %kernel) nounwind {
  %released = getelementptr %AnyKernel, ptr %kernel, i64 0, i32 1
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
  %error = call ptr @call_state_get(ptr %frame, ptr %args)
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


def build_common_ir(state_type: str) -> str:
    """Returns what handlers on all platforms begin with: their INSTANTIATE stage and look-ups.

    Also defines `fuselane_resolver`; of what it returns, only `released` is touched. To be followed
    by the EXECUTE stage.

    Args:
        state_type: What XLA is to call the type of a call's state, once per platform: 15 letters.
    """
    names = _GLOBALS.replace("{type}", state_type)
    accessors = (
        _ACCESSOR.format(name=name, position=position) for name, position in API_FUNCTIONS.items()
    )
    metadata = _METADATA.replace("{major}", str(API_MAJOR)).replace("{minor}", str(API_MINOR))
    instantiate = _INSTANTIATE.replace("{capacity}", str(MESSAGE_CAPACITY))
    calls = (_CALL.format(name=name) for name in _WITH_CONTEXT)
    return "".join((_TYPES, names, *accessors, *calls, _ERRORS, metadata, instantiate, _LOOK_UP))
