"""What a kernel consists of whatever its layout: arguments, scratch memory, lane blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.arrays import Array, Discarded, Memory, Partial, Place, Scratch, Written
from fuselane.codegen.bounds import Region
from fuselane.codegen.builder import KernelBuilder
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.entry import POINTER, KernelEntry
from fuselane.codegen.indexing import i64, residual_size
from fuselane.codegen.memory import I32, LaneBlock, element_pointer, lane_numbers
from fuselane.codegen.plan import Plan
from fuselane.codegen.types import memory_type, splat
from fuselane.codegen.unused import remove_unused
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.program import ElementKind, LaneProgram, LoopElement

_ALIGNMENT: Final = 64
_PAGE_BYTES: Final = 4096
_GAP_BYTES: Final = 320
"""What keeps arrays that follow each other from lying whole pages apart: loads from one would wait
for stores to another that only look alike."""


@final
class Frame:
    """The function a lane program becomes, and what all of its code shares.

    Attributes:
        program: What is being emitted.
        plan: How its work is laid out.
        builder: Where code goes.
        entry: Its function.
        inputs, outputs: Addresses of the arrays.
        scratch_bytes: Scratch memory that the caller has to give, behind the outputs.
    """

    def __init__(self, program: LaneProgram, plan: Plan, entry: KernelEntry) -> None:
        self.program = program
        self.plan = plan
        self.entry = entry
        self._body = entry.function.append_basic_block("body")
        self._stack_bytes = 0
        self.scratch_bytes = 0
        self.inputs = entry.inputs
        self.outputs = entry.outputs
        self._arrays: dict[ir.Value, Region] = {}
        self._add_regions("input", self.inputs, [i.shape.byte_size for i in program.inputs])
        self._add_regions("output", self.outputs, self._output_sizes())
        self.builder = KernelBuilder(self._body, contracts=entry.contracts, calls=entry.calls)

    @property
    def regions(self) -> dict[ir.Value, Region]:
        """The memory that the code may touch, by address."""
        tables = {
            table: Region(name="the arrays' addresses", num_bytes=num_bytes)
            for table, num_bytes in self.entry.tables.items()
        }
        return tables | self._arrays

    def _add_regions(self, name: str, pointers: Sequence[ir.Value], sizes: Sequence[int]) -> None:
        for number, (pointer, size) in enumerate(zip(pointers, sizes, strict=True)):
            self._arrays[pointer] = Region(name=f"{name} {number}", num_bytes=size)

    def _output_sizes(self) -> list[int]:
        """Returns the bytes of each output; of one that is combined later, all its rows."""
        sizes = []
        for output in self.program.outputs:
            size = output.shape.byte_size
            if self.program.loop.elements[output.tuple_index].combiner:
                rows = residual_size(output.shape.dimensions, 0) * self.entry.num_rows
                size = rows * output.shape.element_type.byte_size
            sizes.append(size)
        return sizes

    @property
    def _first_block(self) -> ir.Block:
        return self.entry.function.entry_basic_block

    def finish(self) -> None:
        """Ends the function; nothing can be allocated any more."""
        self.builder.ret_void()
        ir.IRBuilder(self._first_block).branch(self._body)
        remove_unused(self.builder.function)

    def check_room(self, num_bytes: int) -> None:
        """Refuses what will need at least so much scratch memory, if that is more than there is."""
        if num_bytes > self.entry.max_stack_bytes + self._max_scratch_bytes:
            raise self._refusal(num_bytes)

    def allocate(self, element: ir.Type, count: int) -> ir.Value:
        """Returns the address of uninitialised scratch memory that lives as long as the call.

        It is on the stack as long as there is room.

        Raises:
            UnsupportedError: if it is more than there may be.
        """
        bits = getattr(element, "width", 0) or {"half": 16, "float": 32, "double": 64}[str(element)]
        size = count * bits // 8
        if count * bits // 8 % _PAGE_BYTES == 0:
            count += _GAP_BYTES * 8 // bits
        slot_bytes = max(count * bits // 8, _ALIGNMENT)
        if self._stack_bytes + slot_bytes > self.entry.max_stack_bytes:
            return self._allocate_outside(size)
        self._stack_bytes += slot_bytes
        slot = ir.IRBuilder(self._first_block).alloca(element, size=max(count, 1))
        slot.align = _ALIGNMENT
        slot.type = POINTER
        self._arrays[slot] = Region(name=f"scratch memory of {size:,} bytes", num_bytes=size)
        return slot

    def allocate_for_all(self, element: PrimitiveType, size: int) -> tuple[ir.Value, int]:
        """Returns the address of memory for so many elements of each lane, and how many lie from
        one of them to the next: of the tile that has all lanes, or of a GPU's block."""
        warp = self.entry.warp
        if warp is None:
            pitch = self.plan.pitch
            return self.allocate(memory_type(element), size * pitch), pitch
        pitch = self.program.num_lanes
        return warp.common_memory(self.builder, size * pitch * element.byte_size), pitch

    def _allocate_outside(self, size: int) -> ir.Value:
        """Returns the address of scratch memory that the caller gives: its part for a call's first
        tile, which all tiles of the call share.

        Only for tiles that cannot be made smaller: others are better made so.
        """
        tiles = self.plan.num_tiles
        if self.scratch_bytes + size * tiles > self._max_scratch_bytes * tiles:
            raise self._refusal(self._stack_bytes + self.scratch_bytes // tiles + size)
        # As on the stack, what follows must not lie whole pages apart.
        part_bytes = -(-(size + _GAP_BYTES) // _ALIGNMENT) * _ALIGNMENT
        builder = ir.IRBuilder(self._first_block)
        slot = self.entry.scratch(builder, self.scratch_bytes, part_bytes)
        self.scratch_bytes += part_bytes * tiles
        self._arrays[slot] = Region(name=f"scratch memory of {size:,} bytes", num_bytes=size)
        return slot

    @property
    def _max_scratch_bytes(self) -> int:
        """The most scratch memory that the caller gives for one tile."""
        is_whole = self.program.meetings or not self.program.has_lanes
        is_smallest = is_whole or self.plan.tile_vectors == 1
        return self.entry.max_scratch_bytes // self.plan.num_tiles if is_smallest else 0

    def _refusal(self, num_bytes: int) -> UnsupportedError:
        """Returns the error for too much scratch memory, counted in 32-bit values of a lane."""
        lane_bytes = 4 * self.plan.tile_lanes
        limit = self.entry.max_stack_bytes + self._max_scratch_bytes
        decision = Reason.TOO_LARGE.decide(
            instruction=self.program.name,
            opcode="while",
            elements=f"{num_bytes // lane_bytes:,} or more",
            limit=f"{limit // lane_bytes:,}",
        )
        return UnsupportedError(decision)

    def block(self, offset: ir.Value, is_first: ir.Value) -> LaneBlock:
        """Returns the lane block that starts at a lane; masked if the last one can be partial."""
        width, mask, is_whole = self.plan.width, None, None
        if self.program.num_lanes % width:
            remaining = self.builder.sub(i64(self.program.num_lanes), offset)
            whole = self.builder.icmp_signed(">=", remaining, i64(width))
            count = self.builder.select(whole, i64(width), remaining)
            count = splat(self.builder, self.builder.trunc(count, I32), width)
            mask = self.builder.icmp_signed("<", lane_numbers(width, I32.width), count)
            if self.plan.avoids_masks and self.program.num_lanes > width:
                is_whole = whole
        # Threads with several blocks, of which the last one may be missing, don't stay together.
        warp = self.entry.warp if self.plan.tile_vectors == 1 else None
        return LaneBlock(
            width=width,
            offset=offset,
            mask=mask,
            is_first=is_first,
            is_whole=is_whole,
            avoids_gathers=self.plan.avoids_gathers,
            has_equal_zeros=self.plan.has_equal_zeros,
            warp=warp,
        )

    def emitter(self, block: LaneBlock) -> Emitter:
        """Returns an emitter that knows the inputs, for a lane block."""
        place = Place(builder=self.builder, block=block, allocate=self.allocate)
        emitter = Emitter(
            program=self.program,
            place=place,
            max_unrolled=self.plan.max_unrolled,
            vectors_in_registers=self.plan.vectors_in_registers,
            shared_bits=self.plan.shared_bits,
            given=dict(self._shared_elements()),
        )
        overwritten = set(self._initial_states())
        for parameter, pointer in zip(self.program.inputs, self.inputs, strict=True):
            is_state = parameter in overwritten
            written = Written.AFTER_READS if is_state else Written.NEVER
            emitter.values[parameter] = self._memory(parameter, pointer, written)
        return emitter

    def _shared_elements(self) -> Iterator[tuple[int, Scratch]]:
        """Yields the elements that are in a GPU's shared memory, by their index in the loop's."""
        layout, warp, width = self.plan.gpu, self.entry.warp, self.plan.width
        if layout is None or warp is None:
            return
        for index in sorted(layout.arrays):
            element = self.program.loop.elements[index]
            shape, lane = element.shape, element.lane_dimension
            count = residual_size(shape.dimensions, lane)
            size = width * shape.element_type.byte_size
            pointer, distance = warp.own_memory(self.builder, count, size)
            pitch = distance * width
            yield index, Scratch(shape=shape, lane=lane, pointer=pointer, pitch=pitch)

    def _initial_states(self) -> Iterator[HloInstruction]:
        """Yields the initial values of states, but of those beside lanes, whose memory the results
        may share."""
        loop = self.program.loop
        for element in loop.elements:
            is_own = element.lane_dimension is not None or not self.program.has_lanes
            if element.kind is ElementKind.STATE and is_own:
                yield loop.instruction.operands[0].operands[element.index]

    def results(self, tile: ir.Value) -> list[Memory | Partial]:
        """Returns the arrays that the outputs are written to by a tile."""
        arrays: list[Memory | Partial] = []
        for output, pointer in zip(self.program.outputs, self.outputs, strict=True):
            combiner = self.program.loop.elements[output.tuple_index].combiner
            if combiner:
                arrays.append(self._partial(output.shape, pointer, tile, combiner))
            else:
                arrays.append(self._memory(output, pointer, Written.ANY_TIME))
        return arrays

    def _partial(self, shape: Shape, pointer: ir.Value, tile: ir.Value, combiner: str) -> Partial:
        element = shape.element_type
        size = residual_size(shape.dimensions, 0)
        number = self.entry.row(self.builder, tile)
        row = element_pointer(self.builder, pointer, self.builder.mul(number, i64(size)), element)

        def combine(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
            return self.entry.combine_row(builder, combiner, value, element)

        is_writer = self.entry.writes_row(self.builder)
        return Partial(shape=shape, lane=0, pointer=row, combine=combine, is_writer=is_writer)

    def _memory(self, instruction: HloInstruction, pointer: ir.Value, written: Written) -> Memory:
        return Memory(
            shape=instruction.shape,
            lane=self.program.lane_dimensions[instruction],
            pointer=pointer,
            strides=instruction.shape.strides,
            written=written,
        )

    def is_prologue(self, step: object) -> bool:
        """Returns whether a step of the region stands in front of the loop's results."""
        root = self.program.region.root
        return step is not root and step not in self.program.outputs

    def initial(self, emitter: Emitter, outputs: Sequence[Array]) -> list[Array]:
        """Returns the loop's arrays at entry; streams stand for the outputs they are written to."""
        loop = self.program.loop
        operands = loop.instruction.operands[0].operands
        staged = self.plan.gpu.staged if self.plan.gpu else ()
        arrays: list[Array] = []
        for element, operand in zip(loop.elements, operands, strict=True):
            array: Array
            if element.kind is ElementKind.STREAM:
                array = self._stream(element, outputs)
            elif operand in emitter.values:
                array = emitter.array(operand)
            else:
                array = Discarded(shape=element.shape, lane=element.lane_dimension)
            if element.index in staged and isinstance(array, Memory):
                array = replace(array, is_staged=True)
            arrays.append(array)
        return arrays

    def _stream(self, element: LoopElement, outputs: Sequence[Array]) -> Array:
        for output, memory in zip(self.program.outputs, outputs, strict=True):
            if output.tuple_index == element.index:
                return memory
        return Discarded(shape=element.shape, lane=element.lane_dimension)
