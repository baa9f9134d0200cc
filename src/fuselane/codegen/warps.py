"""What the threads of a GPU make together: in a warp by shuffles, in a block by shared memory too.

    value                                   one of each thread that is there
    for distance in 1, 2, 4, 8, 16          value := combine(value, the value that far up), where
                                            there is such a thread: thread 0 has the warp's
    shared[warp] := value of thread 0       barrier
    combine(shared[0], shared[1], ..)       barrier, before anyone writes there again

Threads are combined in the same order each time, whatever the launch: results are deterministic.
All threads that are there have to come by, and none of those that have left is waited for.

A warp's part of a row, `length` neighbours for each of its `count` threads, passes through memory
of its own that the warp has in shared memory:

    for i in range(length)       shared[place(i * count + thread)] := row[i * count + thread]
    for i in range(length)       value i := shared[place(thread * length + i)]

`place` leaves out a word behind each 32, so that neither is held up by banks that threads want at
once: with 4, 8 or 16 words a lane, threads would meet in 8, 4 or 2 of them.

What lanes see of each other is in shared memory (`codegen.meetings`), and so may arrays of a
thread's own be (`codegen.own_arrays`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.combining import combine
from fuselane.codegen.indexing import I64, i64
from fuselane.codegen.memory import declare, load, store
from fuselane.codegen.plan import GpuLayout
from fuselane.codegen.types import memory_type
from fuselane.gpu import WARP_LANES
from fuselane.hlo.shape import PrimitiveType

_I1: Final = ir.IntType(1)
_I32: Final = ir.IntType(32)
_VOID: Final = ir.VoidType()
_SHARED: Final = 3
"""LLVM's address space of a block's shared memory on NVIDIA GPUs."""

LINE_BYTES: Final = 128
"""What a warp moves at once at most, from memory or from shared memory."""

_BANK_BYTES: Final = 4
_WARP_BITS: Final = WARP_LANES.bit_length() - 1
_WHOLE_WARP: Final = ir.Constant(_I32, -1)
_LAST_THREAD: Final = WARP_LANES - 1


@final
class Threads:
    """The threads that a launch of a kernel has, from where one of them stands.

    Attributes:
        number: `i64`, of this thread among all.
        num_threads: How many there are; those of higher numbers, in the last block, have left.
    """

    def __init__(self, builder: ir.IRBuilder, num_threads: int, layout: GpuLayout) -> None:
        """Finds out which thread this is.

        Args:
            builder: At the beginning of the kernel.
            num_threads: As the attribute.
            layout: Threads of a block, and what they share.
        """
        self.num_threads = num_threads
        self._block_threads = layout.block_threads
        self._row_bytes = layout.row_bytes
        self._rows: ir.GlobalVariable | None = None
        self._array_bytes = layout.array_bytes
        self._arrays: ir.GlobalVariable | None = None
        self._given_bytes = 0
        self._num_common = 0
        block, self._thread = (_special_register(builder, name) for name in ("ctaid", "tid"))
        first = builder.mul(
            builder.zext(block, I64), i64(self._block_threads), flags=("nsw", "nuw")
        )
        wide = builder.zext(self._thread, I64)
        self.number = builder.add(first, wide, flags=("nsw", "nuw"))
        self._slots: ir.GlobalVariable | None = None

    @property
    def is_full(self) -> bool:
        """Whether no block has threads too many."""
        return self.num_threads % self._block_threads == 0

    @property
    def num_warps(self) -> int:
        """Warps of a launch in which there is a thread."""
        return -(-self.num_threads // WARP_LANES)

    def warp(self, builder: ir.IRBuilder) -> ir.Value:
        """Returns this thread's warp among all, `i64`."""
        return builder.lshr(self.number, i64(_WARP_BITS))

    def is_first_of_warp(self, builder: ir.IRBuilder) -> ir.Value:
        """Returns whether this is its warp's thread 0."""
        return builder.icmp_unsigned("==", self._lane(builder), _i32(0))

    def combine_warp(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns, in thread 0, what the threads of its warp make together; others get anything."""
        count, members = self._count(builder), self._members(builder)
        lane = self._lane(builder)
        distance = 1
        while distance < min(WARP_LANES, self.num_threads):
            other = _shuffle(builder, "down", members, value, distance)
            both = combine(builder, combiner, value, other, element)
            if count is not None:
                is_there = builder.icmp_unsigned("<", builder.add(lane, _i32(distance)), count)
                both = builder.select(is_there, both, value)
            value = both
            distance *= 2
        return value

    def any_thread(self, builder: ir.IRBuilder, predicate: ir.Value) -> ir.Value:
        """Returns, in every thread of a warp, whether a predicate holds in one of them."""
        signature = ir.FunctionType(_I1, [_I32, _I1])
        vote = declare(builder.module, "llvm.nvvm.vote.any.sync", signature)
        return builder.call(vote, [self._members(builder), predicate])

    def load_row(
        self, builder: ir.IRBuilder, pointer: ir.Value, element: PrimitiveType, length: int
    ) -> list[ir.Value]:
        """Returns neighbouring elements of each thread, which its warp loads as they lie."""
        row, moved = self._row(builder, pointer, element, length), _as_it_lies(element)
        turns = self._turns(builder, length)
        parts = [load(builder, _at(builder, row, at, moved), moved) for at in turns]
        for at, part in zip(turns, parts, strict=True):
            store(builder, part, self._shared(builder, at, moved), moved)
        self._wait_for_warp(builder)
        own = self._own(builder, length)
        values = [load(builder, self._shared(builder, at, element), element) for at in own]
        self._wait_for_warp(builder)
        return values

    def store_row(
        self,
        builder: ir.IRBuilder,
        values: Sequence[ir.Value],
        pointer: ir.Value,
        element: PrimitiveType,
    ) -> None:
        """Stores neighbouring elements of each thread, which its warp writes as they lie."""
        length, moved = len(values), _as_it_lies(element)
        row = self._row(builder, pointer, element, length)
        for at, value in zip(self._own(builder, length), values, strict=True):
            store(builder, value, self._shared(builder, at, element), element)
        self._wait_for_warp(builder)
        turns = self._turns(builder, length)
        parts = [load(builder, self._shared(builder, at, moved), moved) for at in turns]
        for at, part in zip(turns, parts, strict=True):
            store(builder, part, _at(builder, row, at, moved), moved)
        self._wait_for_warp(builder)

    def own_memory(
        self, builder: ir.IRBuilder, count: int, element_bytes: int
    ) -> tuple[ir.Value, int]:
        """See `Warp.own_memory`: thread by thread, element by element."""
        if self._arrays is None:
            num_bytes = self._block_threads * self._array_bytes
            self._arrays = _shared_memory(builder.module, "arrays", ir.IntType(8), num_bytes)
        first = _i32(self._block_threads * self._given_bytes)
        self._given_bytes += count * element_bytes
        offset = builder.add(first, builder.mul(self._thread, _i32(element_bytes)))
        arrays = builder.addrspacecast(self._arrays, ir.PointerType())
        own = builder.gep(arrays, [offset], inbounds=True, source_etype=ir.IntType(8))
        return own, self._block_threads

    def common_memory(self, builder: ir.IRBuilder, num_bytes: int) -> ir.Value:
        """See `Warp.common_memory`."""
        name = f"lanes{self._num_common}"
        self._num_common += 1
        memory = _shared_memory(builder.module, name, ir.IntType(8), num_bytes)
        return builder.addrspacecast(memory, ir.PointerType())

    def _turns(self, builder: ir.IRBuilder, length: int) -> list[ir.Value]:
        """Returns which elements of its warp's row a thread moves, `i32`."""
        count = self._count(builder)
        each = _i32(WARP_LANES) if count is None else count
        lane = self._lane(builder)
        return [builder.add(builder.mul(_i32(turn), each), lane) for turn in range(length)]

    def _own(self, builder: ir.IRBuilder, length: int) -> list[ir.Value]:
        """Returns which elements of its warp's row are a thread's own, `i32`."""
        first = builder.mul(self._lane(builder), _i32(length))
        return [builder.add(first, _i32(place)) for place in range(length)]

    def _row(
        self, builder: ir.IRBuilder, pointer: ir.Value, element: PrimitiveType, length: int
    ) -> ir.Value:
        """Returns where a warp's row begins, from where a thread's own part does."""
        before = builder.sub(_i32(0), builder.mul(self._lane(builder), _i32(length)))
        return _at(builder, pointer, before, element)

    def _shared(self, builder: ir.IRBuilder, at: ir.Value, element: PrimitiveType) -> ir.Value:
        """Returns where an element of its warp's row has its place in shared memory."""
        if self._rows is None:
            num_bytes = self._block_threads // WARP_LANES * self._row_bytes
            self._rows = _shared_memory(builder.module, "rows", ir.IntType(8), num_bytes)
        warp = builder.lshr(self._thread, _i32(_WARP_BITS))
        rows = builder.addrspacecast(self._rows, ir.PointerType())
        first = builder.mul(warp, _i32(self._row_bytes))
        own = builder.gep(rows, [first], inbounds=True, source_etype=ir.IntType(8))
        line_bits = (LINE_BYTES // element.byte_size).bit_length() - 1
        line = builder.lshr(at, _i32(line_bits))
        skipped = builder.mul(line, _i32(skipped_elements(element.byte_size)))
        place = builder.add(at, skipped)
        return builder.gep(own, [place], inbounds=True, source_etype=memory_type(element))

    def _wait_for_warp(self, builder: ir.IRBuilder) -> None:
        """Waits for all threads of the warp, and for what they have written."""
        signature = ir.FunctionType(_VOID, [_I32])
        barrier = declare(builder.module, "llvm.nvvm.bar.warp.sync", signature)
        builder.call(barrier, [self._members(builder)])

    def _members(self, builder: ir.IRBuilder) -> ir.Value:
        """Returns an `i32` with a bit for each thread that the warp has."""
        count = self._count(builder)
        return _WHOLE_WARP if count is None else _low_bits(builder, count)

    def combine_block(
        self, builder: ir.IRBuilder, combiner: str, value: ir.Value, element: PrimitiveType
    ) -> ir.Value:
        """Returns, in every thread, what all threads make together, which are one block."""
        value = self.combine_warp(builder, combiner, value, element)
        if self.num_warps == 1:
            return _shuffle(builder, "idx", self._members(builder), value, 0)
        bits, kind = _to_bits(builder, value), value.type
        with builder.if_then(self.is_first_of_warp(builder)):
            builder.store(
                builder.zext(bits, I64) if bits.type != I64 else bits, self._slot(builder)
            )
        self.wait(builder)
        total = self._read(builder, 0, bits.type, kind)
        for warp in range(1, self.num_warps):
            other = self._read(builder, warp, bits.type, kind)
            total = combine(builder, combiner, total, other, element)
        self.wait(builder)
        return total

    def wait(self, builder: ir.IRBuilder) -> None:
        """Waits for all threads of the block, and for what they have written."""
        barrier = declare(builder.module, "llvm.nvvm.barrier0", ir.FunctionType(_VOID, ()))
        builder.call(barrier, ())

    def _lane(self, builder: ir.IRBuilder) -> ir.Value:
        return builder.and_(self._thread, _i32(_LAST_THREAD))

    def _count(self, builder: ir.IRBuilder) -> ir.Value | None:
        """Returns how many threads this warp has, `i32`; None if they are 32 everywhere."""
        if self.num_threads % WARP_LANES == 0:
            return None
        first = builder.and_(self.number, i64(-WARP_LANES))
        left = builder.trunc(builder.sub(i64(self.num_threads), first), _I32)
        whole = builder.icmp_unsigned(">", left, _i32(WARP_LANES))
        return builder.select(whole, _i32(WARP_LANES), left)

    def _slots_in(self, module: ir.Module) -> ir.Value:
        if self._slots is None:
            self._slots = _shared_memory(module, "warps", I64, WARP_LANES)
        return self._slots

    def _slot(self, builder: ir.IRBuilder, warp: int | None = None) -> ir.Value:
        """Returns the address where a warp, by default this thread's, leaves its value."""
        number = _i32(warp) if warp is not None else builder.lshr(self._thread, _i32(_WARP_BITS))
        slots = builder.addrspacecast(self._slots_in(builder.module), ir.PointerType())
        return builder.gep(slots, [number], inbounds=True, source_etype=I64)

    def _read(self, builder: ir.IRBuilder, warp: int, bits: ir.IntType, kind: ir.Type) -> ir.Value:
        raw = builder.load(self._slot(builder, warp), typ=I64)
        return _from_bits(builder, raw if bits == I64 else builder.trunc(raw, bits), kind)


def row_bytes(length: int, element_bytes: int) -> int:
    """Returns the shared memory that a warp needs for a row, in whole lines."""
    num_lines = -(-WARP_LANES * length * element_bytes // LINE_BYTES)
    num_bytes = num_lines * (LINE_BYTES + skipped_elements(element_bytes) * element_bytes)
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES


def skipped_elements(element_bytes: int) -> int:
    """Returns how many elements are left out behind each line of a row in shared memory."""
    return max(1, _BANK_BYTES // element_bytes)


def _as_it_lies(element: PrimitiveType) -> PrimitiveType:
    """Returns the type in which elements are moved from place to place: booleans are bytes."""
    return PrimitiveType.U8 if element is PrimitiveType.PRED else element


def _at(
    builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value, element: PrimitiveType
) -> ir.Value:
    return builder.gep(pointer, [builder.sext(offset, I64)], source_etype=memory_type(element))


def _shared_memory(module: ir.Module, name: str, element: ir.Type, count: int) -> ir.GlobalVariable:
    """Returns uninitialised memory that the threads of a block share."""
    kind = ir.ArrayType(element, count)
    memory = ir.GlobalVariable(module, kind, name, addrspace=_SHARED)
    memory.linkage = "internal"
    memory.initializer = ir.Constant(kind, ir.Undefined)
    memory.align = LINE_BYTES
    return memory


def _low_bits(builder: ir.IRBuilder, count: ir.Value) -> ir.Value:
    """Returns an `i32` whose lowest bits are set, 1 to 32 of them."""
    return builder.lshr(_WHOLE_WARP, builder.sub(_i32(WARP_LANES), count))


def _shuffle(
    builder: ir.IRBuilder, how: str, members: ir.Value, value: ir.Value, argument: int
) -> ir.Value:
    """Returns another thread's value, of any type of at most 64 bits."""
    signature = ir.FunctionType(_I32, [_I32] * 4)
    function = declare(builder.module, f"llvm.nvvm.shfl.sync.{how}.i32", signature)

    def move(part: ir.Value) -> ir.Value:
        return builder.call(function, [members, part, _i32(argument), _i32(_LAST_THREAD)])

    bits = _to_bits(builder, value)
    if bits.type.width < _I32.width:
        moved = builder.trunc(move(builder.zext(bits, _I32)), bits.type)
    elif bits.type.width == _I32.width:
        moved = move(bits)
    else:
        low = builder.zext(move(builder.trunc(bits, _I32)), I64)
        high = builder.zext(move(builder.trunc(builder.lshr(bits, i64(32)), _I32)), I64)
        moved = builder.or_(low, builder.shl(high, i64(32)))
    return _from_bits(builder, moved, value.type)


def _to_bits(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Returns a scalar as an integer of as many bits."""
    if isinstance(value.type, ir.IntType):
        return value
    return builder.bitcast(value, ir.IntType(_FLOAT_BITS[str(value.type)]))


def _from_bits(builder: ir.IRBuilder, bits: ir.Value, kind: ir.Type) -> ir.Value:
    return bits if bits.type == kind else builder.bitcast(bits, kind)


_FLOAT_BITS: Final = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


def _i32(value: int) -> ir.Constant:
    return ir.Constant(_I32, value)


def _special_register(builder: ir.IRBuilder, name: str) -> ir.Value:
    """Returns a register such as `ctaid`, of the first dimension, as `i32`."""
    full_name = f"llvm.nvvm.read.ptx.sreg.{name}.x"
    function = declare(builder.module, full_name, ir.FunctionType(_I32, ()))
    return builder.call(function, ())
