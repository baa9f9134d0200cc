"""Kernels written by hand in LLVM IR, and calls of them; no compiler of ours is needed."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from fuselane.codegen.llvm import Bitcode, HostTarget, read_ir
from fuselane.runtime import ffi
from fuselane.runtime.kernel import Kernel, compute_key

# Each tile is one element of the arrays.
_LOOP = """
{declarations}
define void @{symbol}(ptr %inputs, ptr %outputs, i64 %first, i64 %last) nounwind {{
entry:
  %in = load ptr, ptr %inputs
  %out = load ptr, ptr %outputs
  br label %check
check:
  %i = phi i64 [ %first, %entry ], [ %next, {end} ]
  %left = icmp slt i64 %i, %last
  br i1 %left, label %tile, label %done
tile:
  %from = getelementptr {element}, ptr %in, i64 %i
  %to = getelementptr {element}, ptr %out, i64 %i
  %x = load {element}, ptr %from
{body}
  store {element} %y, ptr %to
  %next = add i64 %i, 1
  br label %check
done:
  ret void
}}
"""


def make_kernel(
    body: str,
    num_tiles: int,
    *,
    element: str = "float",
    declarations: str = "",
    max_threads: int = 0,
    target: HostTarget | None = None,
    end: str = "%tile",
    is_finished: bool = True,
) -> Kernel:
    """Returns a kernel that computes `%y` from `%x` for each of `num_tiles` elements.

    Args:
        body: Instructions of the block `tile`, or of several blocks the last of which is `end`.
        is_finished: Whether it has machine code, not bitcode.
    """
    text = _LOOP.format(
        symbol="hand", body=body, element=element, declarations=declarations, end=end
    )
    kernel = Kernel(
        key=compute_key("hand", text, str(num_tiles), str(max_threads), repr(target)),
        symbol="hand",
        object_code=b"",
        num_tiles=num_tiles,
        max_threads=max_threads,
        target=target or HostTarget.host(),
        bitcode=Bitcode(data=read_ir(text)),
    )
    if not is_finished:
        return kernel
    made = dataclasses.replace(kernel, target=HostTarget.host()).finished()
    return dataclasses.replace(made, target=kernel.target)


def scale(factor: str, num_tiles: int, **arguments: Any) -> Kernel:
    """Returns a kernel that multiplies f32 elements by a constant, written as LLVM does."""
    return make_kernel(f"  %y = fmul float %x, {factor}", num_tiles, **arguments)


def call(kernel: Kernel, x: jax.Array, *, key: str = "", image: str | None = None) -> jax.Array:
    """Runs a kernel as XLA would: as a custom call with its two attributes; traceable."""
    text = kernel.to_text() if image is None else image
    function = jax.ffi.ffi_call(ffi.TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype))
    result: jax.Array = function(x, image=text, key=key or kernel.key)
    return result
