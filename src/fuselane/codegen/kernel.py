"""A lane program to a kernel: LLVM IR for one function that runs a range of tiles.

    void kernel(void **inputs, void **outputs, int64 first_tile, int64 last_tile)

A tile is a run of lanes. For each of its tiles the kernel brings the loop's state in, runs all
steps, and writes the state out; streams are read and written step by step. A tile of one lane
block keeps its state in registers through all steps. A larger tile keeps it in scratch memory that
stays in the L1 cache, and runs each step block by block: what all lanes share (random keys,
counters) is then computed once per step and tile, and rows of streams are touched in long runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Discarded, Memory, Place, Scratch
from fuselane.codegen.control import emit_body, emit_loop, emit_steps, rewrite
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexing import I64, i64
from fuselane.codegen.loops import counted_loop
from fuselane.codegen.memory import LaneBlock, lane_numbers
from fuselane.codegen.plan import Plan, make_plan
from fuselane.codegen.schedule import Step, make_schedule
from fuselane.codegen.sweeps import Sweep, cut_into_sweeps
from fuselane.codegen.types import memory_type, splat
from fuselane.config import Options
from fuselane.device import DeviceDescription
from fuselane.errors import CodegenError
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram, LoopElement

SYMBOL = "fuselane_kernel"
_MAX_STACK_BYTES = 1 << 20
_POINTER = ir.PointerType()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCode:
    """A kernel ready for LLVM.

    ir: Text of the module.
    symbol: The function's name in it.
    num_tiles: Tiles that cover all lanes.
    parallel: Whether tiles are worth handing to several threads.
    plan: How the work is laid out; for reports.
    """

    ir: str
    symbol: str
    num_tiles: int
    parallel: bool
    plan: Plan


def build(program: LaneProgram, options: Options, device: DeviceDescription) -> KernelCode:
    """Returns the kernel of a lane program for a CPU.

    Raises:
        CodegenError: if it needs more scratch memory than a thread's stack may give.
    """
    plan = make_plan(program, options, device)
    module = ir.Module(name=SYMBOL)
    _Kernel(program, plan, module).emit()
    return KernelCode(
        ir=str(module),
        symbol=SYMBOL,
        num_tiles=plan.num_tiles,
        parallel=plan.parallel,
        plan=plan,
    )


class _Kernel:
    """The function frame: arguments, scratch memory, the loop over tiles."""

    def __init__(self, program: LaneProgram, plan: Plan, module: ir.Module) -> None:
        signature = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER, I64, I64])
        self.program = program
        self.plan = plan
        self.function = ir.Function(module, signature, SYMBOL)
        self.function.attributes.add("nounwind")
        self.entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.entry)
        self.stack_bytes = 0
        self.region_steps = make_schedule(program.region, program).steps

    def emit(self) -> None:
        """Emits the whole function."""
        builder = self.builder
        inputs_pointer, outputs_pointer, first, last = self.function.args
        inputs = self._load_pointers(inputs_pointer, len(self.program.inputs))
        outputs = self._load_pointers(outputs_pointer, len(self.program.outputs))
        body = self.function.append_basic_block("body")
        builder.position_at_end(body)
        with counted_loop(builder, first, last, name="tile") as tile:
            self._emit_tile(tile, inputs, outputs)
        builder.ret_void()
        ir.IRBuilder(self.entry).branch(body)

    def _load_pointers(self, array: ir.Value, count: int) -> list[ir.Value]:
        builder = self.builder
        return [
            builder.load(builder.gep(array, [i64(number)], source_etype=_POINTER), typ=_POINTER)
            for number in range(count)
        ]

    def allocate(self, element: ir.Type, count: int) -> ir.Value:
        """Returns the address of uninitialised scratch memory that lives as long as the call."""
        bits = getattr(element, "width", 0) or {"half": 16, "float": 32, "double": 64}[str(element)]
        self.stack_bytes += max(count * bits // 8, 64)
        if self.stack_bytes > _MAX_STACK_BYTES:
            raise CodegenError(
                f"The kernel needs more than {_MAX_STACK_BYTES} bytes of scratch memory per thread."
            )
        slot = ir.IRBuilder(self.entry).alloca(element, size=max(count, 1))
        slot.align = 64
        slot.type = _POINTER
        return slot

    def _emit_tile(
        self, tile: ir.Value, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> None:
        builder, plan = self.builder, self.plan
        offset = builder.mul(tile, i64(plan.tile_lanes), flags=("nsw", "nuw"))
        is_first = builder.icmp_signed("==", tile, i64(0))
        place = Place(builder=builder, block=self.block(offset, is_first), allocate=self.allocate)
        emitter = Emitter(program=self.program, place=place, max_unrolled=plan.max_unrolled)
        for parameter, pointer in zip(self.program.inputs, inputs, strict=True):
            emitter.values[parameter] = self._memory(parameter, pointer, invariant=True)
        stored = [
            self._memory(output, pointer, invariant=False)
            for output, pointer in zip(self.program.outputs, outputs, strict=True)
        ]
        if plan.tile_vectors == 1:
            self._emit_in_registers(emitter, stored)
        else:
            _TiledLoop(self, emitter, stored, offset).emit()

    def _memory(self, instruction: HloInstruction, pointer: ir.Value, *, invariant: bool) -> Memory:
        return Memory(
            shape=instruction.shape,
            lane=self.program.lane_dimensions[instruction],
            pointer=pointer,
            strides=instruction.shape.strides,
            invariant=invariant,
        )

    def block(self, offset: ir.Value, is_first: ir.Value) -> LaneBlock:
        """Returns the lane block that starts at a lane; masked if the last one can be partial."""
        width, mask = self.plan.width, None
        if self.program.num_lanes % width:
            lanes = self.builder.add(splat(self.builder, offset, width), lane_numbers(width))
            count = splat(self.builder, i64(self.program.num_lanes), width)
            mask = self.builder.icmp_signed("<", lanes, count)
        return LaneBlock(width=width, offset=offset, mask=mask, is_first=is_first)

    def _emit_in_registers(self, emitter: Emitter, outputs: Sequence[Memory]) -> None:
        loop = self.program.loop.instruction
        before = [s for s in self.region_steps if s is not loop and self.is_prologue(s)]
        emit_steps(emitter, before)
        initial = self.initial(emitter, outputs)
        results = emit_loop(
            emitter,
            self.program.loop,
            initial,
            lambda arrays: emit_body(emitter, loop.body, arrays),
        )
        for output, target in zip(self.program.outputs, outputs, strict=True):
            array = results[output.tuple_index]
            if not isinstance(array, Memory) or array.pointer is not target.pointer:
                emitter.copy(array, target)

    def is_prologue(self, step: object) -> bool:
        """Returns whether a step of the region stands in front of the loop's results."""
        root = self.program.region.root
        return step is not root and step not in self.program.outputs

    def initial(self, emitter: Emitter, outputs: Sequence[Memory]) -> list[Array]:
        """Returns the loop's arrays at entry; streams stand for the outputs they are written to."""
        loop = self.program.loop
        operands = loop.instruction.operands[0].operands
        arrays: list[Array] = []
        for element, operand in zip(loop.elements, operands, strict=True):
            if element.kind is ElementKind.STREAM:
                arrays.append(self._stream(element, outputs))
            elif operand in emitter.values:
                arrays.append(emitter.array(operand))
            else:
                arrays.append(Discarded(shape=element.shape, lane=element.lane_dimension))
        return arrays

    def _stream(self, element: LoopElement, outputs: Sequence[Memory]) -> Array:
        for output, memory in zip(self.program.outputs, outputs, strict=True):
            if output.tuple_index == element.index:
                return memory
        return Discarded(shape=element.shape, lane=element.lane_dimension)


class _Passed:
    """Scratch memory for what one sweep over a tile leaves to later ones, used again and again."""

    def __init__(self, kernel: _Kernel) -> None:
        self.kernel = kernel
        self.slots: dict[HloInstruction, ir.Value] = {}
        self.free: dict[tuple[str, int], list[ir.Value]] = {}

    def assign(self, values: Sequence[HloInstruction]) -> None:
        """Gives a slot to every value a sweep leaves."""
        for value in values:
            element, size = memory_type(value.shape.element_type), self._size(value)
            free = self.free.get((str(element), size))
            if free:
                self.slots[value] = free.pop()
            else:
                count = size * self.kernel.plan.pitch
                self.slots[value] = self.kernel.allocate(element, count)

    def release(self, values: Sequence[HloInstruction]) -> None:
        """Takes back the slots of values for the last time received.

        The sweep that receives them may leave others there: each block of lanes reads all it
        receives into registers before it writes. Values too large for registers keep their slots.
        """
        for value in values:
            size = self._size(value)
            if size <= self.kernel.plan.max_unrolled:
                key = (str(memory_type(value.shape.element_type)), size)
                self.free.setdefault(key, []).append(self.slots[value])

    def _size(self, value: HloInstruction) -> int:
        lane = self.kernel.program.lane_dimensions[value]
        return indexing.residual_size(value.shape.dimensions, lane)

    def view(self, value: HloInstruction, slot: ir.Value, start: ir.Value) -> Scratch:
        """Returns a value's array for the block that starts at a lane of the tile."""
        return Scratch(
            shape=value.shape,
            lane=self.kernel.program.lane_dimensions[value],
            pointer=slot,
            pitch=self.kernel.plan.pitch,
            start=start,
        )


class _TiledLoop:
    """The loop of a tile of several lane blocks: steps outside, blocks inside."""

    def __init__(
        self, kernel: _Kernel, emitter: Emitter, outputs: Sequence[Memory], offset: ir.Value
    ) -> None:
        self.kernel = kernel
        self.emitter = emitter
        self.outputs = outputs
        self.offset = offset
        self.program = kernel.program
        self.loop = kernel.program.loop
        self.builder = kernel.builder
        self.state = [
            e
            for e in self.loop.elements
            if e.kind is ElementKind.STATE and e.lane_dimension is not None
        ]
        self.scratch = {element.index: self._allocate(element) for element in self.state}
        self.per_lane_prologue: Sequence[Step] = ()

    def emit(self) -> None:
        """Emits entry, steps and exit of the tile."""
        self._emit_entry()
        initial = self.kernel.initial(self.emitter, self.outputs)
        results = emit_loop(
            self.emitter, self.loop, initial, self._emit_step, but=tuple(self.scratch)
        )
        self._emit_exit(results)

    def _allocate(self, element: LoopElement) -> ir.Value:
        size = indexing.residual_size(element.shape.dimensions, element.lane_dimension)
        count = size * self.kernel.plan.pitch
        return self.kernel.allocate(memory_type(element.shape.element_type), count)

    def _emit_entry(self) -> None:
        loop = self.loop.instruction
        program = self.program
        schedule = self.emitter.schedule(program.region)
        prologue = [s for s in schedule.steps if self.kernel.is_prologue(s)]
        skipped = (loop, loop.operands[0])
        uniform = set(map(id, schedule.uniform(program)))
        emit_steps(self.emitter, [s for s in prologue if id(s) in uniform and s not in skipped])
        per_lane = [s for s in prologue if id(s) not in uniform and s not in skipped]
        self.per_lane_prologue = per_lane

        def enter(block: Emitter, start: ir.Value) -> None:
            emit_steps(block, per_lane)
            for element in self.state:
                source = block.array(loop.operands[0].operands[element.index])
                block.copy(source, self._view(element, start))

        self._for_each_block(enter)

    def _emit_step(self, arrays: list[Array]) -> list[Array]:
        body = self.loop.instruction.body
        schedule = self.emitter.schedule(body)
        self.emitter.values[body.parameters[0]] = arrays
        emit_steps(self.emitter, (s for s in schedule.uniform(self.program) if s is not body.root))
        per_lane = [s for s in schedule.per_lane(self.program) if s is not body.root]
        results = [body.root.operands[element.index] for element in self.state]
        sweeps = cut_into_sweeps(per_lane, results, self.program)
        passed = _Passed(self.kernel)
        for number, sweep in enumerate(sweeps):
            later = {value for following in sweeps[number + 1 :] for value in following.received}
            received = {value: passed.slots[value] for value in sweep.received}
            passed.release([value for value in sweep.received if value not in later])
            passed.assign(sweep.left)
            self._emit_sweep(sweep, arrays, passed, received)
        return self._uniform_roots(arrays)

    def _emit_sweep(
        self,
        sweep: Sweep,
        arrays: Sequence[Array],
        passed: _Passed,
        received: Mapping[HloInstruction, ir.Value],
    ) -> None:
        body = self.loop.instruction.body

        def advance(block: Emitter, start: ir.Value) -> None:
            current = self._with_lane_invariants(block, arrays)
            views = {element.index: self._view(element, start) for element in self.state}
            for index, view in views.items():
                current[index] = block.materialize(view)
            block.values[body.parameters[0]] = current
            for value, slot in received.items():
                block.values[value] = block.materialize(passed.view(value, slot, start))
            emit_steps(block, sweep.steps)
            for value in sweep.left:
                block.copy(block.array(value), passed.view(value, passed.slots[value], start))
            if sweep.is_last:
                roots = body.root.operands
                following = {e.index: block.array(roots[e.index]) for e in self.state}
                changed = [i for i in views if following[i] is not current[i]]
                rewrite(block, [(views[i], following[i]) for i in changed])

        self._for_each_block(advance)

    def _with_lane_invariants(self, block: Emitter, arrays: Sequence[Array]) -> list[Array]:
        """Adds the invariants that the region makes per lane, such as an iota over the lanes."""
        operands = self.loop.instruction.operands[0].operands
        late = [
            e.index
            for e in self.loop.elements
            if e.kind is ElementKind.INVARIANT and operands[e.index] not in self.emitter.values
        ]
        current = list(arrays)
        if late:
            emit_steps(block, self.per_lane_prologue)
        for index in late:
            current[index] = block.array(operands[index])
        return current

    def _uniform_roots(self, arrays: list[Array]) -> list[Array]:
        roots = self.loop.instruction.body.root.operands
        following = list(arrays)
        for element in self.loop.elements:
            if element.index not in self.scratch and element.kind is ElementKind.STATE:
                following[element.index] = self.emitter.array(roots[element.index])
        return following

    def _emit_exit(self, results: Sequence[Array]) -> None:
        pairs = list(zip(self.program.outputs, self.outputs, strict=True))
        by_index = {element.index: element for element in self.state}

        def leave(block: Emitter, start: ir.Value) -> None:
            for output, target in pairs:
                element = by_index.get(output.tuple_index)
                if element is not None:
                    block.copy(self._view(element, start), target)

        self._for_each_block(leave)
        for output, target in pairs:
            element = self.loop.elements[output.tuple_index]
            if element.kind is ElementKind.STATE and element.lane_dimension is None:
                self.emitter.copy(results[element.index], target)

    def _view(self, element: LoopElement, start: ir.Value) -> Scratch:
        return Scratch(
            shape=element.shape,
            lane=element.lane_dimension,
            pointer=self.scratch[element.index],
            pitch=self.kernel.plan.pitch,
            start=start,
        )

    def _for_each_block(self, body: Callable[[Emitter, ir.Value], None]) -> None:
        plan, builder = self.kernel.plan, self.builder
        remaining = builder.sub(i64(self.program.num_lanes), self.offset)
        whole = builder.icmp_signed("<", remaining, i64(plan.tile_lanes))
        lanes = builder.select(whole, remaining, i64(plan.tile_lanes))
        rounded = builder.add(lanes, i64(plan.width - 1))
        with counted_loop(builder, 0, builder.udiv(rounded, i64(plan.width)), name="block") as v:
            start = builder.mul(v, i64(plan.width), flags=("nsw", "nuw"))
            offset = builder.add(self.offset, start, flags=("nsw", "nuw"))
            first = builder.and_(
                self.emitter.place.block.is_first, builder.icmp_signed("==", v, i64(0))
            )
            block = self.kernel.block(offset, first)
            body(self.emitter.at(block), start)
