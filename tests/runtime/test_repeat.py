"""`repeat=True`: kernels whose results depend on more than their inputs are found out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane.backends import cpu
from fuselane.runtime import ffi, repeat
from fuselane.runtime.kernel import Kernel
from tests.runtime.hand_kernels import make_kernel

_TILES = 64


@pytest.fixture(autouse=True)
def registered(own_cache: Path) -> None:
    ffi.register()
    repeat.register()


def call(kernel: Kernel, x: jax.Array) -> jax.Array:
    """Runs a kernel again and again."""
    function = jax.ffi.ffi_call(repeat.REPEAT_TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype))
    attributes = {"image": kernel.to_text(), "key": kernel.key, "loop": "hand", "compared": "1"}
    result: jax.Array = function(x, **attributes)
    return result


def error_of(body: str, **arguments: Any) -> str:
    """Returns what is wrong with a kernel."""
    kernel = make_kernel(body, _TILES, **arguments)
    x = jnp.arange(_TILES, dtype=jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(lambda x: call(kernel, x))(x))
    return str(caught.value)


@pytest.mark.parametrize("max_threads", [0, 1])
@pytest.mark.parametrize("num_tiles", [0, 1, 7, 1000])
def test_what_depends_on_inputs_alone(num_tiles: int, max_threads: int) -> None:
    kernel = make_kernel("  %y = fadd float %x, 1.0", num_tiles, max_threads=max_threads)
    x = jnp.arange(num_tiles, dtype=jnp.float32)
    np.testing.assert_array_equal(jax.jit(lambda x: call(kernel, x))(x), np.arange(num_tiles) + 1)


def test_memory_nobody_has_written() -> None:
    error = error_of("  %old = load float, ptr %to\n  %y = fadd float %x, %old")
    assert "INTERNAL: Fuselane's kernel of hand makes something else when it runs again" in error
    assert "64 of 64 elements of result 0 differ, the first at 0" in error


def test_a_stack_nobody_has_written() -> None:
    """LLVM may take such a value for anything; of memory that others might write it cannot."""
    body = """
  %place = alloca float, i64 1000
  call void asm sideeffect "", "r,~{memory}"(ptr %place)
  %old = load float, ptr %place
  %y = fadd float %x, %old
"""
    assert "makes something else" in error_of(body)


def test_tiles_that_read_what_others_write() -> None:
    body = """
  %is_first = icmp eq i64 %i, 0
  %before = getelementptr float, ptr %out, i64 -1
  %neighbour = getelementptr float, ptr %before, i64 %i
  %place = select i1 %is_first, ptr %from, ptr %neighbour
  %other = load float, ptr %place
  %y = fadd float %x, %other
"""
    error = error_of(body, max_threads=1)
    assert "makes something else in other memory, from the last tile to the first" in error


def test_an_input_that_changes() -> None:
    assert "changes what it is only to read, operand 0" in error_of(
        "  store float 0.0, ptr %from\n  %y = fadd float %x, 1.0"
    )


def test_programs_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results in memory of their own and in that of the loop's initial values, scratch memory, and
    partial sums of tiles."""

    def program(x: jax.Array, table: jax.Array) -> Any:
        def step(carry: Any, row: jax.Array) -> Any:
            x, table = carry
            x = x * 3 + row
            return (x, table + jnp.roll(table, 1) + x[0]), (x, x.sum())

        rows = jnp.arange(20 * x.size, dtype=jnp.int32).reshape(20, -1)
        return lax.scan(step, (x, table), rows)

    arguments = np.arange(5000, dtype=np.int32), np.arange(50_000, dtype=np.int32)
    expected = jax.jit(program)(*arguments)
    made: list[str] = []
    attributes_of = repeat.repeat_attributes

    def watch(kernel: Kernel, loop: str, num_compared: int) -> bytes:
        made.append(loop)
        return attributes_of(kernel, loop, num_compared)

    monkeypatch.setattr(cpu, "repeat_attributes", watch)
    with fuselane.enabled(repeat=True, min_gain=0):
        actual = jax.jit(program)(*arguments)
    assert made and re.fullmatch(r"[\w.-]+", made[0])
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        np.testing.assert_array_equal(one, other)


def test_kernels_are_verified_and_repeated() -> None:
    def program(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 30, lambda i, x: x * 0.9 + jnp.sin(x), x)

    x = np.linspace(0, 5, 3000, dtype=np.float32)
    with fuselane.enabled(repeat=True, verify=True, min_gain=0):
        actual = jax.jit(program)(x)
    np.testing.assert_allclose(actual, jax.jit(program)(x), rtol=1e-4)
