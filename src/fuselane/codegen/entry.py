"""How a kernel is called: where its arrays are, and which tiles it is to run.

On a CPU one call runs a range of tiles, and finds the addresses of the arrays in memory:

    void kernel(void **inputs, void **outputs, int64 first_tile, int64 last_tile)

On a GPU each thread runs one tile, and arrays are parameters, inputs before outputs:

    .entry kernel(void *input, ..., void *output, ...)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Protocol, final

from llvmlite import ir

from fuselane.codegen.indexing import I64, i64
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.memory import declare
from fuselane.errors import CodegenError

POINTER: Final = ir.PointerType()
_I32: Final = ir.IntType(32)


class KernelEntry(Protocol):
    """The function of a kernel, without its body.

    Attributes:
        function: Empty but for its first block, `entry`.
        inputs, outputs: Addresses of the arrays.
        tables: Addresses at which addresses of arrays are found, with their number of bytes.
    """

    function: ir.Function
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    tables: dict[ir.Value, int]

    def scratch(self, builder: ir.IRBuilder) -> ir.Value:
        """Returns the address of memory the caller gives behind the outputs."""
        ...

    def each_tile(self, builder: ir.IRBuilder) -> contextlib.AbstractContextManager[ir.Value]:
        """Runs what is emitted inside for every tile of the call; gives the tile's number, i64."""
        ...


@final
class CpuEntry:
    """A `KernelEntry` for a CPU."""

    def __init__(self, module: ir.Module, symbol: str, num_inputs: int, num_outputs: int) -> None:
        signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I64])
        self.function = ir.Function(module, signature, symbol)
        self.function.attributes.add("nounwind")
        inputs, self._results, self._first, self._last = self.function.args
        builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.inputs = [_address(builder, inputs, number) for number in range(num_inputs)]
        self.outputs = [_address(builder, self._results, number) for number in range(num_outputs)]
        self.tables = {inputs: 8 * num_inputs, self._results: 8 * num_outputs}

    def scratch(self, builder: ir.IRBuilder) -> ir.Value:
        """Returns the address that comes behind those of the outputs."""
        self.tables[self._results] = 8 * len(self.outputs) + 8
        return _address(builder, self._results, len(self.outputs))

    @contextlib.contextmanager
    def each_tile(self, builder: ir.IRBuilder) -> Iterator[ir.Value]:
        """Loops over the tiles that the caller wants."""
        with counted_loop(builder, self._first, self._last, name="tile") as tile:
            yield tile


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
        block_threads: int,
    ) -> None:
        signature = ir.FunctionType(ir.VoidType(), [POINTER] * (num_inputs + num_outputs))
        self.function = ir.Function(module, signature, symbol)
        self.function.calling_convention = "ptx_kernel"
        self.function.attributes.add("nounwind")
        self.function.append_basic_block("entry")
        self.inputs = list(self.function.args[:num_inputs])
        self.outputs = list(self.function.args[num_inputs:])
        self.tables: dict[ir.Value, int] = {}
        self._num_tiles = num_tiles
        self._block_threads = block_threads

    def scratch(self, builder: ir.IRBuilder) -> ir.Value:
        """Never asked for: no thread runs tiles that large.

        Raises:
            CodegenError: always.
        """
        raise CodegenError("A GPU kernel has no scratch memory of its caller's.")

    @contextlib.contextmanager
    def each_tile(self, builder: ir.IRBuilder) -> Iterator[ir.Value]:
        """Lets each thread run the tile of its number, if there is one."""
        block, thread = (_special_register(builder, name) for name in ("ctaid", "tid"))
        first = builder.mul(block, i64(self._block_threads), flags=("nsw", "nuw"))
        tile = builder.add(first, thread, flags=("nsw", "nuw"))
        if self._num_tiles % self._block_threads == 0:
            yield tile
            return
        with builder.if_then(builder.icmp_unsigned("<", tile, i64(self._num_tiles))):
            yield tile


def _address(builder: ir.IRBuilder, table: ir.Value, number: int) -> ir.Value:
    place = builder.gep(table, [i64(number)], source_etype=POINTER)
    return builder.load(place, typ=POINTER)


def _special_register(builder: ir.IRBuilder, name: str) -> ir.Value:
    """Returns a register such as `ctaid`, of the first dimension, as `i64`."""
    full_name = f"llvm.nvvm.read.ptx.sreg.{name}.x"
    function = declare(builder.module, full_name, ir.FunctionType(_I32, ()))
    return builder.zext(builder.call(function, ()), I64)
