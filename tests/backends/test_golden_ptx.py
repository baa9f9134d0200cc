"""Fragments of PTX, word for word: what a thread is, its loop, warps that meet, vote and gather."""

from __future__ import annotations

import re
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from llvmlite import binding

from tests.backends.programs import LOOPS
from tests.backends.test_gpu import lane_program, lanes, meeting, ptx_of

LLVM: Final = 22
pytestmark = pytest.mark.skipif(
    binding.llvm_version_info[0] != LLVM, reason=f"texts are those of LLVM {LLVM}"
)


def fragment(ptx: str, first: str, last: str) -> str:
    """Returns the lines from one that has a text to one that has another, registers and labels
    numbered anew in the order in which they come."""
    lines = [" ".join(line.split()) for line in ptx.partition(".visible .entry")[2].splitlines()]
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines) if last in line and i > start)
    numbers: dict[str, dict[str, str]] = {}

    def renumber(match: re.Match[str]) -> str:
        kind = numbers.setdefault(match[1], {})
        return kind.setdefault(match[0], f"{match[1]}{len(kind) + 1}")

    text = "\n".join(lines[start : end + 1])
    return re.sub(r"(%r|%rd|%p)\d+", renumber, text.replace("$L__BB0_", "L")) + "\n"


def squared(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 1000, lambda i, x: x * x + 1.5, x)


def test_a_thread_is_a_lane() -> None:
    """Its number is of 64 bits; the last block's 31 surplus threads leave before they read."""
    ptx = ptx_of(lane_program(squared, lanes(33)))
    assert fragment(ptx, "%ctaid.x", "ld.global") == (
        """\
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %tid.x;
mul.wide.u32 %rd1, %r1, 32;
cvt.u64.u32 %rd2, %r2;
or.b64 %rd3, %rd1, %rd2;
setp.lt.u64 %p1, %rd3, 33;
@%p1 bra L2;
bra.uni L1;
L2:
shl.b64 %rd4, %rd3, 2;
add.s64 %rd5, %rd6, %rd4;
ld.global.b32 %r3, [%rd5];
"""
    )
    assert ".maxntid 32\n" in ptx


def test_a_loop_stays_in_registers() -> None:
    """Four of 1,000 steps at once, two instructions each, as XLA:GPU rounds, and nothing else but
    the counter."""
    ptx = ptx_of(lane_program(squared, lanes(33)))
    assert fragment(ptx, ".pragma", "bra $L__BB0_3") == (
        """\
.pragma "nounroll";
mul.rn.f32 %r1, %r2, %r2;
add.rn.f32 %r3, %r1, 0f3FC00000;
mul.rn.f32 %r4, %r3, %r3;
add.rn.f32 %r5, %r4, 0f3FC00000;
mul.rn.f32 %r6, %r5, %r5;
add.rn.f32 %r7, %r6, 0f3FC00000;
mul.rn.f32 %r8, %r7, %r7;
add.rn.f32 %r2, %r8, 0f3FC00000;
add.s64 %rd1, %rd1, -4;
setp.ne.b64 %p1, %rd1, 0;
@%p1 bra L3;
"""
    )


def test_warps_meet_by_shuffles_and_shared_memory() -> None:
    ptx = ptx_of(meeting(64))
    assert fragment(ptx, "add.rn.f32 %r8", "bra.uni $L__BB0_3") == (
        """\
add.rn.f32 %r1, %r2, 0f00000000;
shfl.sync.down.b32 %r3, %r1, 1, 31, -1;
add.rn.f32 %r4, %r1, %r3;
shfl.sync.down.b32 %r5, %r4, 2, 31, -1;
add.rn.f32 %r6, %r4, %r5;
shfl.sync.down.b32 %r7, %r6, 4, 31, -1;
add.rn.f32 %r8, %r6, %r7;
shfl.sync.down.b32 %r9, %r8, 8, 31, -1;
add.rn.f32 %r10, %r8, %r9;
shfl.sync.down.b32 %r11, %r10, 16, 31, -1;
@%p1 bra L3;
add.rn.f32 %r12, %r10, %r11;
cvt.u64.u32 %rd1, %r12;
st.shared.b32 [%rd2], %rd1;
st.shared.b32 [%rd2+4], 0;
bra.uni L3;
"""
    )
    assert fragment(ptx, "bar.sync", "mul.rn.f32") == (
        """\
bar.sync 0;
ld.shared.v2.b64 {%rd1, %rd2}, [warps];
bar.sync 0;
cvt.u32.u64 %r1, %rd1;
cvt.u32.u64 %r2, %rd2;
add.rn.f32 %r3, %r1, %r2;
add.rn.f32 %r4, %r3, 0f00000000;
mul.rn.f32 %r5, %r4, 0f3C800000;
"""
    )


def test_rare_work_is_behind_a_vote_of_the_whole_warp() -> None:
    ptx = ptx_of(lane_program(LOOPS["guarded"], lanes(64)))
    assert fragment(ptx, "setp.gt.f32", "bra.uni") == (
        """\
setp.gt.f32 %p1, %r1, 0f41F00000;
mul.rn.f32 %r2, %r1, 0f3FA66666;
add.rn.f32 %r3, %r2, 0f3E4CCCCD;
vote.sync.any.pred %p2, %p1, -1;
@%p2 bra L2;
bra.uni L7;
"""
    )


def test_lanes_gather_at_places_of_their_own() -> None:
    """In bounds, and through the cache of what no one writes."""

    def program(x: jax.Array, rows: jax.Array) -> jax.Array:
        def one(x: jax.Array, row: jax.Array) -> Any:
            def step(_: Any, x: jax.Array) -> jax.Array:
                return row[jnp.abs(x).astype(jnp.int32) % 100] + x

            return jax.lax.fori_loop(0, 50, step, x)

        return jax.vmap(one)(x, rows)

    found = lane_program(program, lanes(64), jax.ShapeDtypeStruct((64, 100), jnp.float32))
    assert fragment(ptx_of(found), "max.s32", "add.rn.f32") == (
        """\
max.s32 %r1, %r2, 0;
min.s32 %r3, %r1, 99;
mul.wide.u32 %rd1, %r3, 4;
add.s64 %rd2, %rd3, %rd1;
ld.global.nc.b32 %r4, [%rd2];
add.rn.f32 %r5, %r6, %r4;
"""
    )
