"""Arrays of more than 2^31 elements: threads of a GPU's kernel, run on the CPU in memory that is
only set aside, so that no more than the pages they touch are there."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.codegen.nvptx import build_threads
from fuselane.codegen.thread_plan import make_thread_plan
from fuselane.config import Options
from fuselane.gpu import GPUS
from fuselane.hlo.shape import Shape
from tests.backends.simulation import host_ir
from tests.backends.test_gpu import lane_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory that is only set aside")

STEPS: Final = 12
H100: Final = GPUS["h100"]
_MAP_NORESERVE: Final = 0x4000
"""Linux's, on x86-64 and AArch64; Python's `mmap` has it from 3.13 on."""

_OFFSET: Final = re.compile(r'^(  .* = getelementptr [^\n]*, i64 )(%"[^"]+")$', re.MULTILINE)


def far_memory(shape: Shape) -> np.ndarray[Any, Any]:
    """Returns zeros with as much memory in front and behind, where indices that wrapped end."""
    size = shape.byte_size
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = np.frombuffer(mmap.mmap(-1, 3 * size, flags=flags), np.float32)
    count = size // memory.itemsize
    return memory[count : 2 * count].reshape(shape.dimensions)


def in_32_bits(text: str) -> str:
    """Returns a module whose addresses are worked out in 32 bits."""
    numbers = iter(range(10**6))

    def narrow(found: re.Match[str]) -> str:
        name = f"narrow.{next(numbers)}"
        return (
            f'  %"{name}" = trunc i64 {found[2]} to i32\n'
            f'  %"{name}.wide" = sext i32 %"{name}" to i64\n{found[1]}%"{name}.wide"'
        )

    return _OFFSET.sub(narrow, text)


def differences(width: int, lanes_of_thread: int, *, is_narrow: bool = False) -> Iterator[bool]:
    """Yields for some lanes whether their thread's results are wrong.

    Args:
        width: Neighbours that belong to a lane.
        lanes_of_thread: Lanes of each thread.
        is_narrow: Whether addresses are worked out in 32 bits.
    """

    def loop(x: jax.Array, rows: jax.Array) -> Any:
        def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = x * 0.5 + row[:, 0]
            return x, x[:, None] - row[:, ::-1]

        return jax.lax.scan(step, x, rows)

    num_lanes = (3 << 30) // STEPS // width // 4 * 4
    far = (STEPS, num_lanes, width)
    struct = jax.ShapeDtypeStruct
    program = lane_program(loop, struct((num_lanes,), jnp.float32), struct(far, jnp.float32))
    assert program.num_lanes == num_lanes
    plan = make_thread_plan(program, H100, Options(unroll=lanes_of_thread))
    assert plan.gpu is not None and plan.tile_lanes == lanes_of_thread and not plan.gpu.staged
    code = build_threads(program, plan, H100)
    elements = program.loop.elements
    shapes = [i.shape for i in program.inputs]
    shapes += [elements[output.tuple_index].shape for output in program.outputs]
    arrays = [far_memory(shape) for shape in shapes]
    text = host_ir(code, len(program.inputs), len(program.outputs))
    pointers = ", ".join(f"ptr %a{number}" for number in range(len(arrays)))
    text += (
        f"define void @one_thread({pointers}, i32 %thread, i32 %block) {{\n"
        f'  call void @"{code.symbol}.thread"({pointers}, i32 %thread, i32 %block, ptr null)\n'
        "  ret void\n}\n"
    )
    loaded = load_object(compile_object(in_32_bits(text) if is_narrow else text))
    kinds = [ctypes.c_void_p] * len(arrays) + [ctypes.c_uint32] * 2
    run = ctypes.CFUNCTYPE(None, *kinds)(loaded.address("one_thread"))
    num_inputs = len(program.inputs)
    start, rows = sorted(arrays[:num_inputs], key=np.size)
    end, stacked = sorted(arrays[num_inputs:], key=np.size)
    rows, stacked = rows.reshape(far), stacked.reshape(far)
    assert rows.size > 1 << 31
    for lane in (0, (1 << 31) % num_lanes + 7, num_lanes - 1):
        values = np.arange(1, STEPS * width + 1, dtype=np.float32).reshape(STEPS, width)
        start[lane], rows[:, lane] = 3, values
        number = lane // lanes_of_thread
        run(
            *(array.ctypes.data for array in arrays),
            number % code.block_threads,
            number // code.block_threads,
        )
        x, wrong = np.float32(3), False
        for step, row in enumerate(values):
            x = x * np.float32(0.5) + row[0]
            wrong |= not np.array_equal(stacked[step, lane], x - row[::-1])
        yield wrong or end[lane] != x


@pytest.mark.parametrize(("width", "lanes_of_thread"), [(1, 1), (1, 4), (4, 1)])
def test_arrays_beyond_31_bits_are_indexed_in_64(width: int, lanes_of_thread: int) -> None:
    assert not any(differences(width, lanes_of_thread))


@pytest.mark.parametrize(("width", "lanes_of_thread"), [(1, 1), (1, 4), (4, 1)])
def test_indices_of_32_bits_would_be_noticed(width: int, lanes_of_thread: int) -> None:
    assert any(differences(width, lanes_of_thread, is_narrow=True))
