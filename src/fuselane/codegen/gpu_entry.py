"""How a kernel for an NVIDIA GPU is called; see `codegen.entry`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.combining import combine_entries
from fuselane.codegen.entry import POINTER
from fuselane.codegen.function import KernelFunction
from fuselane.codegen.indexing import i64
from fuselane.codegen.memory import Warp, declare
from fuselane.codegen.plan import GpuLayout
from fuselane.codegen.warps import Threads
from fuselane.errors import CodegenError
from fuselane.hlo.shape import PrimitiveType

ALIGNMENT: Final = 16
"""Bytes at multiples of which XLA's arrays begin: at least `kEntryParameterAlignBytes` of its
`service/gpu/gpu_constants.h`."""

_NO_RESULT: Final = ir.FunctionType(ir.VoidType(), ())


@final
class GpuEntry:
    """A `KernelEntry` for an NVIDIA GPU: a thread for each tile.

    Launched with at least as many threads as there are tiles, in one dimension.
    """

    def __init__(
        self,
        module: ir.Module,
        symbol: str,
        num_inputs: int,
        num_outputs: int,
        *,
        num_tiles: int,
        layout: GpuLayout,
        max_stack_bytes: int,
        has_own_rows: bool,
    ) -> None:
        """Declares the kernel.

        Args:
            module: Where it is to be.
            symbol: Its name.
            num_inputs, num_outputs: Its arrays.
            num_tiles: Threads that have something to do.
            layout: Threads of a block, and what they share.
            max_stack_bytes: The most memory of a thread's own.
            has_own_rows: Whether each thread has a row of its own in results to be combined, not
                each warp.
        """
        signature = ir.FunctionType(ir.VoidType(), [POINTER] * (num_inputs + num_outputs))
        self.function = KernelFunction(module, signature, symbol)
        self.function.calling_convention = "ptx_kernel"
        self.function.attributes.add("nounwind")
        for argument in self.function.args:
            argument.attributes.align = ALIGNMENT
        limit = ir.Constant(ir.IntType(32), layout.block_threads)
        annotations = module.add_named_metadata("nvvm.annotations")
        annotations.add(module.add_metadata([self.function, "maxntidx", limit]))
        builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.inputs = list(self.function.args[:num_inputs])
        self.outputs = list(self.function.args[num_inputs:])
        self.tables: dict[ir.Value, int] = {}
        self.max_stack_bytes = max_stack_bytes
        self.max_scratch_bytes = 0
        self.threads = Threads(builder, num_tiles, layout)
        self.warp: Warp | None = self.threads
        self.contracts = False  # as in XLA:GPU's kernels
        self.calls = True
        self._has_own_rows = has_own_rows
        self.num_rows = num_tiles if has_own_rows else self.threads.num_warps

    def row(self, builder: ir.IRBuilder, tile: ir.Value) -> ir.Value:
        """Returns the number of the thread or of its warp."""
        return tile if self._has_own_rows else self.threads.warp(builder)

    def writes_row(self, builder: ir.IRBuilder) -> ir.Value | None:
        """Returns whether this is the first thread of its warp."""
        return None if self._has_own_rows else self.threads.is_first_of_warp(builder)

    def combine_row(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns, in the first thread of a warp, what its threads make together."""
        value = combine_entries(builder, combiner, value, element)
        if self._has_own_rows:
            return value
        return self.threads.combine_warp(builder, combiner, value, element)

    def combine_all(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns what the threads of the only block make together."""
        return self.threads.combine_block(builder, combiner, value, element)

    def scratch(self, builder: ir.IRBuilder, offset: int, part_bytes: int) -> ir.Value:
        """Never asked for: no thread runs tiles that large.

        Raises:
            CodegenError: always.
        """
        raise CodegenError("A GPU kernel has no scratch memory of its caller's.")

    @contextlib.contextmanager
    def each_tile(self, builder: ir.IRBuilder) -> Iterator[ir.Value]:
        """Lets each thread run the tile of its number; threads without one leave at once.

        They exit, rather than jump behind the others' work: no barrier and no warp waits for a
        thread that has (PTX ISA, `exit`).
        """
        if not self.threads.is_full:
            surplus = builder.icmp_unsigned(
                ">=", self.threads.number, i64(self.threads.num_threads)
            )
            with builder.if_then(surplus):
                builder.call(declare(builder.module, "llvm.nvvm.exit", _NO_RESULT), ())
                builder.unreachable()
        yield self.threads.number
