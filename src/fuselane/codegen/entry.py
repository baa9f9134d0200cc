"""How a kernel is called: where its arrays are, and which tiles it is to run.

On a CPU one call runs a range of tiles, and finds the addresses of the arrays in memory:

    void kernel(void **inputs, void **outputs, int64 first_tile, int64 last_tile)

On a GPU each thread runs one tile, and arrays are parameters, inputs before outputs:

    .entry kernel(void *input, ..., void *output, ...)

Results that all lanes make together leave a kernel in rows, to be combined behind it: one for each
tile on a CPU, one for each warp on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Protocol, final

from llvmlite import ir

from fuselane.codegen.combining import combine_entries
from fuselane.codegen.function import KernelFunction
from fuselane.codegen.indexing import I64, i64
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.memory import Warp
from fuselane.hlo.shape import PrimitiveType

POINTER: Final = ir.PointerType()
_STACK_ALIGNMENT: Final = 64
"""Bytes of the largest registers. LLVM learns too late that some are to be spilled, and then does
so across lines of the cache: with four vectors at once a kernel of Lotka and Volterra's equations
took 1.2 times as long."""
_MAX_STACK_BYTES: Final = 1 << 20
_MAX_SCRATCH_BYTES: Final = 1 << 28


class KernelEntry(Protocol):
    """The function of a kernel, without its body.

    Attributes:
        function: Empty but for its first block, `entry`.
        inputs, outputs: Addresses of the arrays.
        tables: Addresses at which addresses of arrays are found, with their number of bytes.
        max_stack_bytes: The most memory of a call's own.
        max_scratch_bytes: The most memory a caller can give besides.
        num_rows: Rows of results that are combined behind the kernel.
        warp: The threads that run tiles side by side, on a GPU.
        contracts: Whether products and sums are contracted, as in code that XLA makes for the same
            processor.
        calls: Whether what several places do may be a function of its own; see `KernelBuilder`.
    """

    function: ir.Function
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    tables: dict[ir.Value, int]
    max_stack_bytes: int
    max_scratch_bytes: int
    num_rows: int
    warp: Warp | None
    contracts: bool
    calls: bool

    def row(self, builder: ir.IRBuilder, tile: ir.Value) -> ir.Value:
        """Returns the row of a tile, i64."""
        ...

    def writes_row(self, builder: ir.IRBuilder) -> ir.Value | None:
        """Returns whether it is this call that writes the row, i1; None where it always is."""
        ...

    def combine_row(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns what the lanes of a row make together, for the call that writes it."""
        ...

    def combine_all(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns what all lanes make together, of a value for each lane of a block.

        Only where one block of threads, or one call, has all lanes.
        """
        ...

    def scratch(self, builder: ir.IRBuilder, offset: int, part_bytes: int) -> ir.Value:
        """Returns the address of the call's own part of memory that the caller gives.

        Args:
            builder: Where code goes.
            offset: Where the parts of all tiles lie in that memory, one behind the other.
            part_bytes: The size of each.
        """
        ...

    def each_tile(self, builder: ir.IRBuilder) -> contextlib.AbstractContextManager[ir.Value]:
        """Runs what is emitted inside for every tile of the call; gives the tile's number, i64."""
        ...


@final
class CpuEntry:
    """A `KernelEntry` for a CPU."""

    def __init__(
        self, module: ir.Module, symbol: str, num_inputs: int, num_outputs: int, *, num_tiles: int
    ) -> None:
        signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I64])
        self.function = KernelFunction(module, signature, symbol)
        self.function.attributes.add("nounwind")
        self.function.attributes.alignstack = _STACK_ALIGNMENT
        inputs, self._results, self._first, self._last = self.function.args
        builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.inputs = [_address(builder, inputs, number) for number in range(num_inputs)]
        self.outputs = [_address(builder, self._results, number) for number in range(num_outputs)]
        self.tables = {inputs: 8 * num_inputs, self._results: 8 * num_outputs}
        self.max_stack_bytes = _MAX_STACK_BYTES
        self.max_scratch_bytes = _MAX_SCRATCH_BYTES
        self.num_rows = num_tiles
        self.warp: Warp | None = None
        self.contracts, self.calls = True, True

    def row(self, builder: ir.IRBuilder, tile: ir.Value) -> ir.Value:
        """Returns the tile's number: each has a row."""
        del builder
        return tile

    def writes_row(self, builder: ir.IRBuilder) -> ir.Value | None:
        """Returns None: what runs a tile writes its row."""
        del builder
        return None

    def combine_row(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns what the entries of a vector make together."""
        return combine_entries(builder, combiner, value, element)

    def combine_all(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns the same, as one tile has all lanes."""
        return combine_entries(builder, combiner, value, element)

    def scratch(self, builder: ir.IRBuilder, offset: int, part_bytes: int) -> ir.Value:
        """Returns the part of the call's first tile, of memory that comes behind the outputs."""
        self.tables[self._results] = 8 * len(self.outputs) + 8
        memory = _address(builder, self._results, len(self.outputs))
        own = builder.add(i64(offset), builder.mul(self._first, i64(part_bytes)))
        return builder.gep(memory, [own], inbounds=True, source_etype=ir.IntType(8))

    @contextlib.contextmanager
    def each_tile(self, builder: ir.IRBuilder) -> Iterator[ir.Value]:
        """Loops over the tiles that the caller wants."""
        with counted_loop(builder, self._first, self._last, name="tile") as tile:
            yield tile


def _address(builder: ir.IRBuilder, table: ir.Value, number: int) -> ir.Value:
    place = builder.gep(table, [i64(number)], source_etype=POINTER)
    return builder.load(place, typ=POINTER)
