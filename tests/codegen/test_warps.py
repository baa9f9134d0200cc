"""What threads of a GPU share: whose memory is where."""

from __future__ import annotations

import re

from llvmlite import ir

from fuselane.codegen.plan import GpuLayout
from fuselane.codegen.warps import Threads


def test_arrays_of_threads_lie_one_behind_the_other() -> None:
    """Each thread's elements beside those of its neighbours, behind all of the array in front."""
    layout = GpuLayout(block_threads=64, registers=32, spilled=0.0, array_bytes=3 * 4 + 5 * 8)
    module = ir.Module("test")
    kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), ()), "kernel")
    builder = ir.IRBuilder(kernel.append_basic_block("entry"))
    threads = Threads(builder, 1000, layout)
    distances = [threads.own_memory(builder, *array)[1] for array in ((3, 4), (5, 8))]
    builder.ret_void()
    assert distances == [64, 64]
    text = str(module)
    assert "[3328 x i8]" in text  # 64 * 52
    sizes = re.findall(r"mul i32 %\S+, (\d+)", text)
    firsts = re.findall(r"add i32 (\d+), %", text)
    assert (sizes, firsts) == (["4", "8"], ["0", "768"])  # 64 * 3 * 4
