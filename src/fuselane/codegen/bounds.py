"""Bounds checks: a way to build kernels in which no load and no store goes unguarded.

Works on a finished module, whatever emitted it. Every access is traced back, through
`getelementptr`, `select` and `phi`, to the memory that its address comes from, and compared with
the extent of that:

    %v = load <8 x float>, ptr %p           %p = getelementptr float, ptr %input.2, i64 %i
becomes
    %offset = ptrtoint(%p) - ptrtoint(%input.2)
    br (%offset < 0 or %offset > 4096 - 32), label %outside, label %inside
  inside:
    %v = load <8 x float>, ptr %p

A violation writes a sentence that names the kernel and the memory to standard error and aborts the
process: it is a bug of ours, and what the program would go on with is anyone's guess. What tells
LLVM that it cannot happen (`inbounds`, `nsw`, `nuw`, `readnone`) is dropped first; a check must not
rest on what it checks. An access that cannot be traced back is an error when the kernel is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.indexing import I64, i64
from fuselane.codegen.memory import declare, lane_numbers
from fuselane.codegen.types import any_lane, splat
from fuselane.errors import CodegenError

_I32: Final = ir.IntType(32)
_POINTER: Final = ir.PointerType()
_STANDARD_ERROR: Final = 2
_UNLIKELY: Final = (1, 1 << 20)
_PROMISES: Final = frozenset({"nsw", "nuw"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Memory that kernel code may touch.

    name: What it is, for the sentence about a violation.
    num_bytes: Its extent from the address it is known by.
    """

    name: str
    num_bytes: int


def guard(module: ir.Module, regions: Mapping[ir.Value, Region], kernel: str) -> None:
    """Puts a check in front of every load and store of a module.

    Args:
        module: Finished; its own constants need no region.
        regions: Memory by the value that is its address.
        kernel: What the kernel is called in the sentence about a violation.
    Raises:
        CodegenError: for an access to memory of which the extent is unknown.
    """
    for function in module.functions:
        if not function.is_declaration:
            _Guarded(module, function, regions, kernel).guard()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    """A load or store: `num_bytes` at an address, or those of each lane at its own."""

    pointer: ir.Value
    num_bytes: int
    mask: ir.Value | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """What an address may be: one for all lanes (`i64`), or one for each (`<width x i64>`)."""

    first: ir.Value
    num_bytes: ir.Value
    name: str


@final
class _Guarded:
    """One function on its way."""

    def __init__(
        self,
        module: ir.Module,
        function: ir.Function,
        regions: Mapping[ir.Value, Region],
        kernel: str,
    ) -> None:
        self._module = module
        self._function = function
        self._regions = regions
        self._kernel = kernel
        self._violations: dict[str, ir.Block] = {}

    def guard(self) -> None:
        self._function.attributes.discard("readnone")
        blocks = list(self._function.blocks)
        self._function.blocks.clear()
        ends = {block: self._guard_block(block) for block in blocks}
        for block in blocks:
            for instruction in block.instructions:
                if isinstance(instruction, ir.PhiInstr):
                    incomings = [(value, ends[origin]) for value, origin in instruction.incomings]
                    instruction.incomings = incomings
        self._function.blocks += self._violations.values()

    def _guard_block(self, block: ir.Block) -> ir.Block:
        """Cuts a block in front of every access; returns where it ends then."""
        instructions = list(block.instructions)
        block.instructions.clear()
        block.terminator = None
        self._function.blocks.append(block)
        builder = ir.IRBuilder(block)
        for instruction in instructions:
            _drop_promises(instruction)
            access = _access_of(instruction)
            if access is not None:
                self._check(builder, access)
            instruction.parent = builder.block
            builder.block.instructions.append(instruction)
            builder.position_at_end(builder.block)
        builder.block.terminator = instructions[-1]
        return builder.block

    def _check(self, builder: ir.IRBuilder, access: _Access) -> None:
        extent = self._extent(builder, access.pointer)
        is_outside = _is_outside(builder, access, extent)
        inside = builder.append_basic_block("inside")
        branch = builder.cbranch(is_outside, self._violation(extent.name), inside)
        branch.set_weights(_UNLIKELY)
        builder.position_at_end(inside)

    def _extent(self, builder: ir.IRBuilder, pointer: ir.Value) -> _Extent:
        """Returns where an address may lie, given what it comes from."""
        region = self._regions.get(pointer)
        if region is None and isinstance(pointer, ir.PhiInstr):
            region = self._smallest(pointer)
        if region is None and isinstance(pointer, ir.instructions.GEPInstr):
            return self._extent(builder, pointer.pointer)
        if isinstance(pointer, ir.SelectInstr):
            return self._chosen(builder, *pointer.operands)
        if region is None and isinstance(pointer, ir.GlobalVariable):
            region = Region(name="a constant", num_bytes=_byte_size(pointer.initializer.type))
        if region is None:
            raise CodegenError(f"The extent of the memory at {pointer} is unknown.")
        first = builder.ptrtoint(pointer, I64)
        return _Extent(first=first, num_bytes=i64(region.num_bytes), name=region.name)

    def _smallest(self, phi: ir.PhiInstr) -> Region | None:
        """Returns the smallest of the regions that arrays which change places lie in."""
        waiting, seen = [phi], {phi}
        found: list[Region] = []
        while waiting:
            for value, _ in waiting.pop().incomings:
                if value in self._regions:
                    found.append(self._regions[value])
                elif value not in seen and isinstance(value, ir.PhiInstr):
                    seen.add(value)
                    waiting.append(value)
        return min(found, key=lambda region: region.num_bytes, default=None)

    def _chosen(
        self, builder: ir.IRBuilder, condition: ir.Value, one: ir.Value, other: ir.Value
    ) -> _Extent:
        extents = self._extent(builder, one), self._extent(builder, other)
        width = getattr(condition.type, "count", 1)

        def select(field: Callable[[_Extent], ir.Value]) -> ir.Value:
            return builder.select(condition, *(_wide(builder, field(e), width) for e in extents))

        return _Extent(
            first=select(lambda extent: extent.first),
            num_bytes=select(lambda extent: extent.num_bytes),
            name=extents[0].name,
        )

    def _violation(self, name: str) -> ir.Block:
        """Returns the block that ends the process because something lies outside a region."""
        found = self._violations.get(name)
        if found is None:
            found = ir.Block(self._function, "outside")
            self._violations[name] = found
            sentence = f"Fuselane: {self._kernel} goes outside of {name}; the process is aborted.\n"
            _emit_abort(ir.IRBuilder(found), sentence)
        return found


def _access_of(instruction: ir.Instruction) -> _Access | None:
    """Returns what an instruction loads or stores, None if nothing.

    Raises:
        CodegenError: for one that does something else to memory.
    """
    is_call = isinstance(instruction, ir.CallInstr)
    operands = instruction.args if is_call else instruction.operands
    if isinstance(instruction, ir.LoadInstr):
        return _Access(pointer=operands[0], num_bytes=_byte_size(instruction.type))
    if isinstance(instruction, ir.StoreInstr):
        return _Access(pointer=operands[1], num_bytes=_byte_size(operands[0].type))
    if is_call:
        match instruction.callee.name.split(".")[:3]:
            case ["llvm", "masked", "load" | "gather"]:
                pointer, _, mask, _ = operands
                return _masked(pointer, mask, instruction.type)
            case ["llvm", "masked", "store" | "scatter"]:
                value, pointer, _, mask = operands
                return _masked(pointer, mask, value.type)
        if not instruction.callee.is_declaration:  # whose own accesses are guarded
            return None
    is_address_only = isinstance(
        instruction,
        ir.instructions.GEPInstr
        | ir.SelectInstr
        | ir.AllocaInstr
        | ir.PhiInstr
        | ir.instructions.ICMPInstr,
    )
    if not is_address_only and any(map(_is_pointer, (instruction, *operands))):
        raise CodegenError(f"There is no bounds check for {instruction}.")
    return None


def _masked(pointer: ir.Value, mask: ir.Value, type_: ir.VectorType) -> _Access:
    return _Access(pointer=pointer, num_bytes=_byte_size(type_.element), mask=mask)


def _is_outside(builder: ir.IRBuilder, access: _Access, extent: _Extent) -> ir.Value:
    """Returns an `i1`: whether an access leaves its extent, in some lane that its mask has."""
    width = 1 if access.mask is None else access.mask.type.count
    if width == 1:
        address = builder.ptrtoint(access.pointer, I64)
    elif isinstance(access.pointer.type, ir.VectorType):
        address = builder.ptrtoint(access.pointer, ir.VectorType(I64, width))
    else:
        address = splat(builder, builder.ptrtoint(access.pointer, I64), width)
        steps = builder.mul(lane_numbers(width), _wide(builder, i64(access.num_bytes), width))
        address = builder.add(address, steps)
    first, num_bytes, size, zero = (
        _wide(builder, value, width)
        for value in (extent.first, extent.num_bytes, i64(access.num_bytes), i64(0))
    )
    offset = builder.sub(address, first)
    is_before = builder.icmp_signed("<", offset, zero)
    is_behind = builder.icmp_signed(">", offset, builder.sub(num_bytes, size))
    is_outside = builder.or_(is_before, is_behind)
    if access.mask is not None:
        is_outside = builder.and_(is_outside, access.mask)
    return any_lane(builder, is_outside)


def _wide(builder: ir.IRBuilder, value: ir.Value, width: int) -> ir.Value:
    return value if width == 1 or value.type != I64 else splat(builder, value, width)


def _emit_abort(builder: ir.IRBuilder, sentence: str) -> None:
    module, data = builder.module, bytearray(sentence.encode())
    type_ = ir.ArrayType(ir.IntType(8), len(data))
    text = ir.GlobalVariable(module, type_, module.get_unique_name("violation"))
    text.initializer = ir.Constant(type_, data)
    text.global_constant = True
    text.linkage = "private"
    write = declare(module, "write", ir.FunctionType(I64, [_I32, _POINTER, I64]))
    abort = declare(module, "abort", ir.FunctionType(ir.VoidType(), []))
    pointer = builder.gep(text, [i64(0)], source_etype=type_)
    pointer.type = _POINTER
    builder.call(write, [ir.Constant(_I32, _STANDARD_ERROR), pointer, i64(len(data))])
    builder.call(abort, [])
    builder.unreachable()


def _drop_promises(instruction: ir.Instruction) -> None:
    """Drops what would let LLVM conclude that addresses are in bounds."""
    if isinstance(instruction, ir.instructions.GEPInstr):
        instruction.inbounds = False
    instruction.flags = type(instruction.flags)(f for f in instruction.flags if f not in _PROMISES)


def _is_pointer(value: ir.Value) -> bool:
    return isinstance(getattr(value.type, "element", value.type), ir.PointerType)


def _byte_size(type_: ir.Type) -> int:
    """Returns how many bytes of memory a type takes."""
    if isinstance(type_, ir.VectorType | ir.ArrayType):
        return int(type_.count) * _byte_size(type_.element)
    if isinstance(type_, ir.PointerType):
        return 8
    return {"half": 2, "float": 4, "double": 8}.get(str(type_)) or int(type_.width) // 8
