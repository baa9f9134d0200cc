"""Lane vectors in and out of memory: contiguous, strided, masked, and booleans as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

from llvmlite import ir

from fuselane.codegen.indexing import I64, continue_block, emit_once, i64, split
from fuselane.codegen.types import (
    is_vector,
    join_scalars,
    memory_type,
    scalar_type,
    splat_constant,
    vector_of,
)
from fuselane.hlo.shape import PrimitiveType

I1 = ir.IntType(1)
I32 = ir.IntType(32)

_MASKED_BYTES: Final = 4
"""Elements of fewer bytes have no masked loads without AVX-512: LLVM makes a branch of each."""


class Warp(Protocol):
    """Threads of a GPU that get to a place together, each with a lane of its own."""

    def any_thread(self, builder: ir.IRBuilder, predicate: ir.Value) -> ir.Value:
        """Returns an `i1`, the same in all threads: whether a predicate holds in one of them."""
        ...

    def load_row(
        self, builder: ir.IRBuilder, pointer: ir.Value, element: PrimitiveType, length: int
    ) -> list[ir.Value]:
        """Returns neighbouring elements of this thread's lane, loaded with those of all threads.

        Args:
            builder: Where.
            pointer: Address of this thread's first element; the next thread's follow its last one.
            element: Their type.
            length: How many there are.
        """
        ...

    def store_row(
        self,
        builder: ir.IRBuilder,
        values: Sequence[ir.Value],
        pointer: ir.Value,
        element: PrimitiveType,
    ) -> None:
        """Stores neighbouring elements of this thread's lane with those of all threads."""
        ...

    def own_memory(
        self, builder: ir.IRBuilder, count: int, element_bytes: int
    ) -> tuple[ir.Value, int]:
        """Returns the address of shared memory for elements of this thread's own, and how many lie
        from one of them to the next.

        Args:
            builder: At the beginning of the kernel.
            count: How many elements.
            element_bytes: Size of each: those of all lanes of the thread.
        """
        ...

    def common_memory(self, builder: ir.IRBuilder, num_bytes: int) -> ir.Value:
        """Returns the address of shared memory for what all threads of the block see."""
        ...

    def wait(self, builder: ir.IRBuilder) -> None:
        """Waits for all threads of the block, and for what they have written."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBlock:
    """The lanes that one LLVM vector holds at a place in the kernel.

    width: lanes in a vector.
    offset: `i64`, the first of them, counted over all lanes of the program.
    mask: `<width x i1>`, which of them exist; None when all do.
    is_first: `i1`, true in exactly one block of all: who stores what all lanes share.
    is_whole: `i1`, whether all exist after all, where the processor is slow at masks; else None.
    avoids_gathers: Whether the processor is no faster at gathers than at a load for each lane.
    has_equal_zeros: Whether -0 is not less than +0 to the processor's maximum of two.
    active: `<width x i1>`, which of them the results matter of, in a loop that others have left;
        None when of all that exist.
    warp: The threads that are here together, on a GPU; None where some may have gone another way.
    """

    width: int
    offset: ir.Value
    mask: ir.Value | None
    is_first: ir.Value
    is_whole: ir.Value | None = None
    avoids_gathers: bool = False
    has_equal_zeros: bool = False
    active: ir.Value | None = None
    warp: Warp | None = None

    @property
    def on_its_own(self) -> LaneBlock:
        """The same lanes where other threads need not come along."""
        return replace(self, warp=None)

    @property
    def elsewhere(self) -> LaneBlock:
        """As many lanes, all of them there, in a function of the kernel's that has no arguments for
        what tells these apart."""
        return LaneBlock(
            width=self.width,
            offset=i64(0),
            mask=None,
            is_first=ir.Constant(I1, 1),
            avoids_gathers=self.avoids_gathers,
        )

    @property
    def is_surely_first(self) -> bool:
        """Whether no other block gets to where code is emitted for this one."""
        return isinstance(self.is_first, ir.Constant)

    def among_active(self, builder: ir.IRBuilder, lanes: ir.Value) -> ir.Value:
        """Returns those of some lanes, `<width x i1>`, that exist and are active."""
        wanted = self.mask if self.active is None else self.active
        return lanes if wanted is None else builder.and_(lanes, wanted)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """One address for each lane of a block.

    base: An address they have in common.
    offsets: Vector of `i32` or `i64`, in elements from there; none is negative.
    """

    base: ir.Value
    offsets: ir.Value


def vector(element: ir.Type, width: int) -> ir.Type:
    """Returns the type of `width` elements: the element itself for width 1."""
    return vector_of(element, width)


def load(
    builder: ir.IRBuilder, pointer: ir.Value, element: PrimitiveType, width: int = 1
) -> ir.LoadInstr:
    """Loads `width` consecutive elements as one register value."""
    raw = builder.load(pointer, typ=vector(memory_type(element), width), align=element.byte_size)
    return from_memory(builder, raw, element)


def store(
    builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, element: PrimitiveType
) -> None:
    """Stores a register value as consecutive elements."""
    raw = settled(builder, to_memory(builder, value, element))
    builder.store(raw, pointer, align=element.byte_size)


def settled(builder: ir.IRBuilder, raw: ir.Value) -> ir.Value:
    """Returns a value to be stored as it is.

    LLVM makes a masked store of a select between a value and what memory holds already. Processors
    without AVX-512 take many times longer for that than for a plain store; `freeze` hides it.
    """
    return frozen(builder, raw) if isinstance(raw, ir.SelectInstr) else raw


def frozen(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Returns a value as it is, by an instruction that LLVM does not look through."""
    freeze = ir.Instruction(builder.block, value.type, "freeze", [value])
    builder._insert(freeze)
    return freeze


def from_memory(builder: ir.IRBuilder, raw: ir.Value, element: PrimitiveType) -> ir.Value:
    """Returns what memory holds as a register value: bytes become booleans."""
    if element is not PrimitiveType.PRED:
        return raw
    return builder.icmp_unsigned("!=", raw, ir.Constant(raw.type, None))


def to_memory(builder: ir.IRBuilder, value: ir.Value, element: PrimitiveType) -> ir.Value:
    """Returns a register value as memory holds it: booleans become bytes."""
    if element is not PrimitiveType.PRED:
        return value
    width = value.type.count if isinstance(value.type, ir.VectorType) else 1
    return builder.zext(value, vector(ir.IntType(8), width))


def element_pointer(
    builder: ir.IRBuilder, base: ir.Value, offset: ir.Value, element: PrimitiveType
) -> ir.Value:
    """Returns the address of the element at `offset` (in elements) from a base pointer.

    What is known of the offset is added last, to an address that neighbours have in common; that
    one may lie outside of the array.
    """
    type_ = memory_type(element)
    varying, known = split(offset)
    is_whole = known == 0
    pointer = emit_once(
        builder,
        ("element", id(base), id(varying), str(type_), is_whole),
        lambda: builder.gep(base, [varying], inbounds=is_whole, source_etype=type_),
    )
    return pointer if is_whole else builder.gep(pointer, [i64(known)], source_etype=type_)


def load_lanes(
    builder: ir.IRBuilder,
    pointer: ir.Value,
    element: PrimitiveType,
    stride: int,
    block: LaneBlock,
    *,
    invariant: bool = False,
) -> ir.Value:
    """Loads one element of every lane of a block; lanes that don't exist get zero.

    Args:
        pointer: Address of the first lane's element.
        stride: Elements from one lane to the next.
        invariant: Whether nothing writes this memory while the kernel runs.
    """
    raw_type = vector(memory_type(element), block.width)
    if block.width == 1 or stride == 1:
        is_narrow = element.byte_size < _MASKED_BYTES
        (raw,) = in_cases(
            builder,
            block if is_narrow else replace(block, is_whole=None),
            lambda case: [
                _load_neighbours(builder, pointer, raw_type, case, element, invariant=invariant)
            ],
        )
        return from_memory(builder, raw, element)
    addresses = _strided(builder, pointer, stride, block)
    raw = _gather(builder, addresses, element, block, invariant=invariant)
    if block.mask is not None:
        raw = builder.select(block.mask, raw, ir.Constant(raw_type, None))
    return from_memory(builder, raw, element)


def store_lanes(
    builder: ir.IRBuilder,
    value: ir.Value,
    pointer: ir.Value,
    element: PrimitiveType,
    stride: int,
    block: LaneBlock,
) -> None:
    """Stores one element of every lane of a block; lanes that don't exist store nothing."""
    raw = to_memory(builder, value, element)
    if block.width == 1 or stride == 1:
        raw = settled(builder, raw)
        in_cases(
            builder, block, lambda case: store_neighbours(builder, raw, pointer, element, case)
        )
        return
    if block.mask is not None:
        # Where there is no lane, the first one's element is stored once more.
        zeros = ir.Constant(ir.VectorType(I32, block.width), None)
        first = builder.shuffle_vector(raw, raw, zeros)
        raw = builder.select(block.mask, raw, first)
    addresses = _strided(builder, pointer, stride, block)
    _scatter(builder, raw, _pointers(builder, addresses.base, addresses.offsets, element))


def gather(
    builder: ir.IRBuilder, addresses: Addresses, element: PrimitiveType, block: LaneBlock
) -> ir.Value:
    """Loads one element for every lane of a block, each from its own address.

    Lanes that don't exist read at the base address, which must be that of an element.
    """
    offsets = addresses.offsets
    if block.mask is not None:
        offsets = builder.select(block.mask, offsets, ir.Constant(offsets.type, None))
    raw = _gather(builder, replace(addresses, offsets=offsets), element, block)
    return from_memory(builder, raw, element)


def scatter(
    builder: ir.IRBuilder,
    value: ir.Value,
    addresses: Addresses,
    element: PrimitiveType,
    where: ir.Value | None,
    nowhere: ir.Value,
) -> None:
    """Stores one element of every lane of a block, each to its own address.

    Args:
        builder: Where code goes.
        value: Vector of the elements.
        addresses: Where they go.
        element: Their type.
        where: `<width x i1>`, lanes that store something; None for all.
        nowhere: Address of an element that the others may overwrite: without masks there is no
            branch for each lane.
    """
    pointers = _pointers(builder, addresses.base, addresses.offsets, element)
    if where is not None:
        unused = _pointers(builder, nowhere, ir.Constant(addresses.offsets.type, None), element)
        pointers = builder.select(where, pointers, unused)
    _scatter(builder, to_memory(builder, value, element), pointers)


def lane_index(width: int) -> ir.Constant:
    """Returns the index of each lane within its block."""
    return lane_numbers(width, 32)


def lane_numbers(width: int, bits: int = 64) -> ir.Constant:
    """Returns the constant vector 0, 1, ..., width - 1; a scalar for width 1."""
    if width == 1:
        return ir.Constant(ir.IntType(bits), 0)
    return ir.Constant(ir.VectorType(ir.IntType(bits), width), list(range(width)))


def all_lanes(block: LaneBlock) -> ir.Value:
    """Returns the block's mask, or one of all ones."""
    return block.mask if block.mask is not None else _ones(block.width)


def _ones(width: int) -> ir.Constant:
    return splat_constant(ir.Constant(I1, 1), width)


def _suffix(raw_type: ir.VectorType) -> str:
    names = {"float": "f32", "double": "f64", "half": "f16"}
    element = str(raw_type.element)
    return f"v{raw_type.count}{names.get(element, element)}"


def _load_neighbours(
    builder: ir.IRBuilder,
    pointer: ir.Value,
    raw_type: ir.Type,
    block: LaneBlock,
    element: PrimitiveType,
    *,
    invariant: bool,
) -> ir.Value:
    """Loads a vector as it is, but zeros for lanes that don't exist."""
    if block.width == 1 or block.mask is None:
        raw = builder.load(pointer, typ=raw_type, align=element.byte_size)
    else:
        raw = _masked_load(builder, pointer, raw_type, block)
    if invariant:
        _mark_invariant(builder, raw)
    return raw


def _mark_invariant(builder: ir.IRBuilder, loaded: ir.Value) -> None:
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))


def _masked_load(
    builder: ir.IRBuilder, pointer: ir.Value, raw_type: ir.VectorType, block: LaneBlock
) -> ir.Value:
    signature = ir.FunctionType(
        raw_type, [ir.PointerType(), I32, ir.VectorType(I1, block.width), raw_type]
    )
    function = declare(builder.module, f"llvm.masked.load.{_suffix(raw_type)}.p0", signature)
    zero = ir.Constant(raw_type, None)
    align = ir.Constant(I32, _byte_size(raw_type))
    return builder.call(function, [pointer, align, all_lanes(block), zero])


def store_neighbours(
    builder: ir.IRBuilder,
    raw: ir.Value,
    pointer: ir.Value,
    element: PrimitiveType,
    block: LaneBlock,
) -> None:
    """Stores a vector as it is, but for lanes that don't exist."""
    if block.mask is None:
        builder.store(raw, pointer, align=element.byte_size)
        return
    signature = ir.FunctionType(
        ir.VoidType(), [raw.type, ir.PointerType(), I32, ir.VectorType(I1, block.width)]
    )
    function = declare(builder.module, f"llvm.masked.store.{_suffix(raw.type)}.p0", signature)
    align = ir.Constant(I32, element.byte_size)
    builder.call(function, [raw, pointer, align, block.mask])


def address_of_lane(
    builder: ir.IRBuilder, address: ir.Value, block: LaneBlock, lane: int, instead: ir.Value
) -> ir.Value:
    """Returns the address of what one lane of a block has if the lane exists, or else another's.

    Nothing is loaded or stored through a mask for lanes that don't exist, but where there is no
    memory at all, processors take hundreds of cycles to find that out.
    """
    if block.mask is None:
        return address
    bits = builder.bitcast(block.mask, ir.IntType(block.width))
    bit = builder.and_(bits, ir.Constant(bits.type, 1 << lane))
    exists = builder.icmp_unsigned("!=", bit, ir.Constant(bits.type, 0))
    return builder.select(exists, address, instead)


def in_cases(
    builder: ir.IRBuilder, block: LaneBlock, emit: Callable[[LaneBlock], list[ir.Value] | None]
) -> list[ir.Value]:
    """Emits code for a block; twice, without and with masks, where the processor is slow at masks.

    A branch goes to the one or the other: without AVX-512, a masked store takes ten times as long
    as another, as does a masked load of bytes, and all blocks but the last are whole.
    """
    if block.is_whole is None:
        return emit(block) or []
    before = builder.block
    values, ends = [], []
    with builder.if_else(block.is_whole, likely=True) as branches:
        for branch, mask in zip(branches, (None, block.mask), strict=True):
            with branch:
                values.append(emit(replace(block, mask=mask, is_whole=None)) or [])
                ends.append(builder.block)
    continue_block(before, builder.block)
    merged = []
    for alternatives in zip(*values, strict=True):
        phi = builder.phi(alternatives[0].type)
        for value, end in zip(alternatives, ends, strict=True):
            phi.add_incoming(value, end)
        merged.append(phi)
    return merged


def _gather(
    builder: ir.IRBuilder,
    addresses: Addresses,
    element: PrimitiveType,
    block: LaneBlock,
    *,
    invariant: bool = False,
) -> ir.Value:
    """Loads an element from every address of a vector.

    There is no mask: where the processor has no such instruction, or a slow one, LLVM makes a
    branch of each lane of it, and needs minutes for a thousand.
    """
    base, offsets, raw_type = addresses.base, addresses.offsets, memory_type(element)
    if not is_vector(offsets) or block.avoids_gathers:
        values = []
        for offset in _entries(builder, offsets):
            pointer = _pointers(builder, base, offset, element)
            values.append(builder.load(pointer, typ=raw_type, align=element.byte_size))
            if invariant:
                _mark_invariant(builder, values[-1])
        return join_scalars(builder, values)
    pointers = _pointers(builder, base, offsets, element)
    raw_type = vector(raw_type, block.width)
    mask = _ones(block.width)
    signature = ir.FunctionType(raw_type, [pointers.type, I32, mask.type, raw_type])
    name = f"llvm.masked.gather.{_suffix(raw_type)}.v{block.width}p0"
    function = declare(builder.module, name, signature)
    align = ir.Constant(I32, element.byte_size)
    raw = builder.call(function, [pointers, align, mask, ir.Constant(raw_type, None)])
    if invariant:
        _mark_invariant(builder, raw)
    return raw


def _entries(builder: ir.IRBuilder, offsets: ir.Value) -> list[ir.Value]:
    """Returns the entries of a vector of offsets, or the only offset.

    Those of 32 bits leave the vector's register two at a time, as the way out is narrow. They stay
    `i64`, since LLVM would take the halves out one by one if they were made `i32` again.
    """
    if not is_vector(offsets):
        return [offsets]
    width, bits = offsets.type.count, offsets.type.element.width
    if isinstance(offsets, ir.Constant) and offsets.constant is not None:
        known = [getattr(entry, "constant", entry) for entry in offsets.constant]
        return [ir.Constant(offsets.type.element, entry) for entry in known]
    if bits != I32.width or width % 2:
        return [builder.extract_element(offsets, ir.Constant(I32, lane)) for lane in range(width)]
    pairs = builder.bitcast(offsets, ir.VectorType(I64, width // 2))
    entries = []
    for number in range(width // 2):
        pair = builder.extract_element(pairs, ir.Constant(I32, number))
        entries += [builder.and_(pair, i64(2**32 - 1)), builder.lshr(pair, i64(32))]
    return entries


def _scatter(builder: ir.IRBuilder, raw: ir.Value, pointers: ir.Value) -> None:
    """Stores an element to every address of a vector, without a mask, as `_gather` loads."""
    if not is_vector(raw):
        builder.store(raw, pointers, align=_byte_size(raw.type))
        return
    width = raw.type.count
    signature = ir.FunctionType(
        ir.VoidType(), [raw.type, pointers.type, I32, ir.VectorType(I1, width)]
    )
    name = f"llvm.masked.scatter.{_suffix(raw.type)}.v{width}p0"
    align = ir.Constant(I32, _byte_size(raw.type))
    function = declare(builder.module, name, signature)
    builder.call(function, [raw, pointers, align, _ones(width)])


def _strided(builder: ir.IRBuilder, pointer: ir.Value, stride: int, block: LaneBlock) -> Addresses:
    """Returns each lane's address; the first one's, which exists, where there is no lane."""
    places = [lane * stride for lane in range(block.width)]
    offsets = ir.Constant(ir.VectorType(I64, block.width), places)
    if block.mask is not None:
        offsets = builder.select(block.mask, offsets, ir.Constant(offsets.type, None))
    return Addresses(base=pointer, offsets=offsets)


def _pointers(
    builder: ir.IRBuilder, base: ir.Value, offsets: ir.Value, element: PrimitiveType
) -> ir.Value:
    # llvmlite types a gep by its base alone, so the vector of pointers needs its type set by hand.
    pointers = builder.gep(base, [offsets], source_etype=memory_type(element))
    if is_vector(offsets):
        pointers.type = ir.VectorType(ir.PointerType(), offsets.type.count)
    return pointers


def _byte_size(raw_type: ir.VectorType) -> int:
    scalar = scalar_type(raw_type)
    return {"float": 4, "double": 8, "half": 2}.get(str(scalar)) or int(scalar.width // 8)


def declare(module: ir.Module, name: str, signature: ir.FunctionType) -> ir.Function:
    """Returns the function of this name, declared in the module if it isn't yet."""
    existing = module.globals.get(name)
    return existing if existing is not None else ir.Function(module, signature, name)
