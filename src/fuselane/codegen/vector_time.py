"""How long a block of lanes takes for a step, by how many vectors of lanes it works on at once.

    work       what there is to compute, load and store, and instructions to fetch
    waiting    each operation waits for those it needs, and a processor looks ahead only so far:
               what is farther behind the oldest unfinished instruction than its window has to wait
    registers  values that do not fit are stored and loaded again; see `codegen.spills`

With one vector more at once there is one chain more that waits for no other; but fewer steps fit
the window, more values are alive, and the code is longer. So a loop's body is run through a small
model of a processor, operation by operation in the order of the program: for a few steps, when its
operands and the window let each begin. The larger of the bounds is what a step takes, with a little
of the others.

Times are cycles; see `codegen.vector_timing` for those of single operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.cost import (
    OPCODE_COST,
    UNKNOWN_TRIP_COUNT,
    count_exchanges,
    exchanges_neighbours,
    instruction_cost,
)
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.indexed_state import MAX_SELECTED, values_in_memory
from fuselane.codegen.indexing import residual_size
from fuselane.codegen.lookahead import Lookahead
from fuselane.codegen.products import find_products
from fuselane.codegen.schedule import needs_lanes
from fuselane.codegen.spills import Value, count_spills
from fuselane.codegen.vector_timing import NOTHING, PRODUCT, Timing, timing_of
from fuselane.codegen.views import Views
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.indexed import get_indices
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import ElementKind, Guard, LaneProgram

_SHARPNESS: Final = 4.0
"""How little smaller bounds add to the largest: the exponent of a norm."""

_LOADS_PER_CYCLE: Final = 2.0
_FETCHED_PER_CYCLE: Final = 5.0
_MAX_DECODED: Final = 2500.0
_DECODING: Final = 0.4
"""Cycles per instruction of loops longer than what a processor keeps decoded."""

_STEP: Final = 2.0
_ELEMENT: Final = 0.5
_BYTE: Final = 1.0
"""Cycles of a loop's own instructions: of a step, of an element of an array that registers have no
room for, stored or not, of one whose elements are bytes, which are widened and narrowed."""

_ROW_LOAD: Final = Timing(2.5, 12)
_ROW_UPDATE: Final = Timing(4, 12)
"""A gather of what lies at the same place in all lanes, with what its index takes; an update of
that by a scatter."""
_OF_ROWS: Final[Mapping[str, Timing]] = {"gather": _ROW_LOAD, "scatter": _ROW_UPDATE}

_BYTE_BITS: Final = 8
SMALL_DOT: Final = 64
DOT_PRODUCT: Final = 1.1
_DOT_WEIGHT: Final = 1.55
_DOT_REST: Final = 0.35
_SUMMED_PRODUCT: Final = 1.3
"""A product of a dot, in products: alone, for each pass through the units, and where loads of
weights bound it, per vector. One of those that are summed over the lanes, with what puts a
vector's entries together now and then (`codegen.products`), for each pass."""

_PARTS: Final = frozenset({"dynamic-slice", "dynamic-update-slice"})
_INDEXING: Final = _PARTS | {"gather", "scatter"}

_GUARD_SHARE: Final = 0.002
_MISPREDICTED: Final = 15.0
_MAIN_WORK: Final = 3.0
_ANEW: Final = 0.25
"""In how many lanes a guard's work is needed, and cycles that are lost where it is. A guard whose
work is so many times the rest of the step is taken to be needed always, or in a quarter of the
steps at least if lanes begin anew by it."""

_NUM_STEPS: Final = 3
_MAX_CHAIN: Final = 32


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VectorUnit:
    """Where blocks of lanes run.

    lanes: Lanes of one vector.
    bits: Width of an element of which one register holds so many.
    registers: How many vector registers there are.
    max_unrolled: The most elements per lane kept in registers.
    passes: How often a register goes through the units that compute. It counts for the products of
        dots, which keep these busy; all else waits more than it computes, and with as many vectors
        at once as for one pass it was faster on such a machine than with half as many.
    """

    lanes: int
    bits: int
    registers: int
    max_unrolled: int
    passes: float = 1.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """What one instruction does to a vector of lanes, all elements of a lane together.

    timing: All of its work; when the last element is done.
    reads: Numbers of the operations whose results it needs.
    size: Registers that its result takes; 0 for what is kept in memory or is another's.
    instructions: Machine instructions.
    moved: Elements loaded from arrays in memory and stored there.
    looping: Work of the loops over such arrays, however many vectors each step works on.
    products: Those of a dot, if it is a loop.
    inner: What it runs: a loop's body, a conditional's branches.
    times: How often.
    """

    timing: Timing = NOTHING
    reads: Sequence[int] = ()
    size: float = 0.0
    instructions: float = 0.0
    moved: float = 0.0
    looping: float = 0.0
    products: float = 0.0
    inner: tuple[VectorBlock, ...] = ()
    times: float = 1.0

    @property
    def is_looped(self) -> bool:
        """Whether its instructions run many times."""
        return bool(self.looping or self.products or self.inner)


@final
class VectorBlock:
    """What a block of lanes does in one run of a computation."""

    def __init__(
        self,
        program: LaneProgram,
        computation: HloComputation,
        unit: VectorUnit,
        *,
        only: Sequence[HloInstruction] | None = None,
        is_tiled: bool = False,
    ) -> None:
        """Reads a computation.

        Args:
            program: What it belongs to.
            computation: The body of a loop, say.
            unit: Where it runs.
            only: The instructions of a guard; by default all that are not guarded.
            is_tiled: Whether another block of lanes follows in every step, and the state is in
                memory meanwhile; else this one goes on with the next step.
        """
        self._program = program
        self._unit = unit
        self._views = Views(program=program, max_unrolled=unit.max_unrolled)
        self._is_tiled = is_tiled
        self._operations: list[_Operation] = []
        self._numbers: dict[HloInstruction, int] = {}
        self._view_loads: dict[HloInstruction, int] = {}
        is_outermost = computation is program.loop.instruction.body
        products = find_products(program) if is_outermost else ()
        self._folds = {product.fold.operands[0]: product.fold for product in products}
        loops = program.loops.values()
        self._loop = next((o for o in loops if o.instruction.body is computation), None)
        self._in_memory = set(self._find_in_memory())
        guards = program.guards.get(computation, ()) if only is None else ()
        guarded = {instruction for guard in guards for instruction in guard.instructions}
        for instruction in computation.instructions if only is None else only:
            is_here = instruction not in guarded and instruction not in program.late
            if is_here and needs_lanes(instruction, program):
                self._add(instruction)
        self._guards = [
            (VectorBlock(program, computation, unit, only=guard.instructions), guard)
            for guard in guards
        ]
        self._carried = dict(self._find_carried(computation)) if only is None else {}
        self._invariant = set(self._find_invariant(computation)) if only is None else set()
        self._uses = self._find_uses()
        self._values = [Value(o.reads, o.size, o.timing.temporaries) for o in self._operations]
        self._throughputs: dict[int, float] = {}
        self._waits: dict[int, float] = {}

    def cycles(self, vectors: int) -> float:
        """Returns the time of one run for a block of so many vectors."""
        return _norm(self.throughput(vectors), self.waiting(vectors))

    def throughput(self, vectors: int) -> float:
        """Returns the time of one run in which nothing waits."""
        if vectors not in self._throughputs:
            work = sum(self._work(operation, vectors) for operation in self._operations)
            stores, loads = self._count_spills(self._unit.registers / vectors)
            if self._is_tiled:
                state = sum(self._operations[first].size for first in self._carried)
                stores, loads = stores + state, loads + state
            moved = sum(operation.moved for operation in self._operations)
            moving = vectors * max(stores, (loads + moved) / _LOADS_PER_CYCLE)
            code = sum(o.instructions for o in self._operations if not o.is_looped)
            length = vectors * (code + stores + loads)
            fetching = length / _FETCHED_PER_CYCLE + _DECODING * max(0.0, length - _MAX_DECODED)
            time = _norm(work, moving, fetching) + _STEP
            self._throughputs[vectors] = self._with_guards(time, vectors)
        return self._throughputs[vectors]

    def waiting(self, vectors: int) -> float:
        """Returns the time of one run that only operands and the window hold up."""
        if vectors not in self._waits:
            self._waits[vectors] = self._wait(vectors)
        return self._waits[vectors]

    def instructions(self) -> float:
        """Returns about how many machine instructions one run for one vector executes."""
        return sum(
            o.instructions + o.times * sum(block.instructions() for block in o.inner)
            for o in self._operations
        )

    def code_size(self) -> float:
        """Returns about how many machine instructions there are, for one vector."""
        own = sum(o.instructions for o in self._operations if not o.is_looped)
        inner = [block for operation in self._operations for block in operation.inner]
        guarded = [block for block, _ in self._guards]
        return own + sum(block.code_size() for block in (*inner, *guarded))

    def count_spills(self, registers: float) -> float:
        """Returns the values that are stored in a step of one vector for want of registers."""
        return self._count_spills(registers)[0]

    # What is in it.

    def _add(self, instruction: HloInstruction) -> None:
        is_named = instruction.opcode in ("get-tuple-element", "parameter")
        if instruction.shape.is_array and not is_named and self._is_view(instruction):
            self._view_loads[instruction] = self._count_view_loads(instruction)
        reads = [self._numbers[o] for o in _operands(instruction) if o in self._numbers]
        operation = self._describe(instruction, reads)
        if operation is None and len(set(reads)) == 1:
            self._numbers[instruction] = reads[0]
        elif operation is not None or reads:
            self._numbers[instruction] = len(self._operations)
            self._operations.append(operation or _Operation(reads=reads))

    def _describe(self, instruction: HloInstruction, reads: Sequence[int]) -> _Operation | None:
        """Returns what an instruction does, or None if it only says what is meant."""
        match instruction.opcode:
            case "parameter" | "tuple":
                return None
            case "while":
                trips = self._program.loops[instruction].trip_count
                times = float(UNKNOWN_TRIP_COUNT if trips is None else trips)
                return self._run(reads, [instruction.body], times)
            case "conditional":
                branches = instruction.called_computations
                return self._run(reads, branches, 1 / len(branches))
            case "get-tuple-element":
                is_carried = instruction.operands[0].opcode == "parameter"
                if not is_carried or instruction in self._program.mutable:
                    return None
                return _Operation(size=self._size(instruction))
        lane = self._program.lane_dimensions.get
        operations = instruction_cost(instruction, lane, lambda _: None)
        if instruction in self._folds:
            return None
        if instruction in self._folds.values():
            factor = _SUMMED_PRODUCT * self._unit.passes * self._width(instruction.shape)
            return _Operation(timing=Timing(PRODUCT.work * factor * operations, 0), reads=reads)
        return self._compute(instruction, reads, operations) if operations else None

    def _run(
        self, reads: Sequence[int], computations: Sequence[HloComputation], times: float
    ) -> _Operation:
        inner = tuple(VectorBlock(self._program, c, self._unit) for c in computations)
        return _Operation(reads=reads, inner=inner, times=times)

    def _compute(
        self, instruction: HloInstruction, reads: Sequence[int], operations: float
    ) -> _Operation:
        opcode = instruction.opcode
        registers = self._width(instruction.shape)
        if opcode == "convert":
            registers = max(registers, self._width(instruction.operands[0].shape))
        count = operations / max(1, OPCODE_COST[opcode]) * registers
        if opcode == "gather" and instruction.operands[0].opcode == "concatenate":
            # Of each part, to select from.
            count *= len(instruction.operands[0].operands)
        one, size = self._timing(instruction), self._size(instruction)
        timing = Timing(one.work * count, one.latency * _chain(instruction), one.temporaries)
        instructions = one.instructions * count
        if opcode == "dot" and operations > SMALL_DOT:
            return _Operation(
                timing=timing, reads=reads, size=size, instructions=instructions, products=count
            )
        is_looped = size == 0 and opcode not in _PARTS
        stored = 0.0 if is_looped and self._is_view(instruction) else 1.0
        operands = dict.fromkeys(instruction.operands)
        if is_looped:
            moved = stored + sum(map(self._count_loads, operands))
        else:
            moved = float(sum(o in self._in_memory for o in operands if opcode not in _INDEXING))
        is_byte = instruction.shape.is_array and instruction.shape.element_type.bits <= _BYTE_BITS
        loop = (_BYTE if is_byte else _ELEMENT) * self._count_elements(instruction, count)
        return _Operation(
            timing=timing,
            reads=reads,
            size=size,
            instructions=instructions,
            moved=moved * count,
            looping=loop if is_looped else 0.0,
        )

    def _count_elements(self, instruction: HloInstruction, count: float) -> float:
        """Returns how often the loop of an array in memory goes round, given its operations."""
        if instruction.opcode != "sort":
            return count
        return count_exchanges(instruction, self._program.lane_dimensions.get)

    def _timing(self, instruction: HloInstruction) -> Timing:
        """Returns `timing_of`; lanes that all read or write at the same place are neighbours."""
        of_rows = _OF_ROWS.get(instruction.opcode)
        if of_rows is not None and not needs_lanes(get_indices(instruction), self._program):
            return of_rows
        return timing_of(instruction)

    def _is_view(self, instruction: HloInstruction) -> bool:
        return self._views.is_view(instruction)

    def _count_loads(self, value: HloInstruction) -> int:
        """Returns how many elements of arrays in memory are loaded for one of a value, beside what
        is counted with what computes it."""
        lane = self._program.lane_dimensions.get(value)
        if not value.shape.is_array or not value.shape.dimensions:
            return 0
        is_small = residual_size(value.shape.dimensions, lane) <= self._unit.max_unrolled
        if is_small and value not in self._in_memory:
            return 0
        return self._view_loads.get(value, 1)

    def _count_view_loads(self, view: HloInstruction) -> int:
        """Returns the same for a view of what has been added before."""
        if view.opcode in ELEMENTWISE_OPCODES or view.opcode == "iota":
            return 0
        return max(map(self._count_loads, view.operands), default=0)

    def _width(self, shape: Shape) -> float:
        """Returns the registers that a vector of an element takes."""
        return max(1.0, shape.element_type.bits / self._unit.bits) if shape.is_array else 1.0

    def _size(self, instruction: HloInstruction) -> float:
        """Returns the registers that a value takes; none if it is kept in memory."""
        if instruction in self._in_memory:
            return 0.0
        if instruction.opcode == "sort":
            is_in_memory = not exchanges_neighbours(instruction)
            return 0.0 if is_in_memory else sum(map(self._size, instruction.operands))
        shape, lane = instruction.shape, self._program.lane_dimensions.get(instruction)
        size = residual_size(shape.dimensions, lane) if shape.is_array else 0
        return size * self._width(shape) if size <= self._unit.max_unrolled else 0.0

    def _find_carried(self, computation: HloComputation) -> Iterator[tuple[int, int]]:
        """Yields the numbers of a state's value at the beginning of a step and at its end."""
        for user in self._named(computation):
            assert self._loop is not None
            root = computation.root.operands[user.tuple_index]
            is_state = self._loop.elements[user.tuple_index].kind is ElementKind.STATE
            if is_state and root in self._numbers and root is not user:
                yield self._numbers[user], self._numbers[root]

    def _find_invariant(self, computation: HloComputation) -> Iterator[int]:
        """Yields the numbers of what a loop brings in and no step changes."""
        for user in self._named(computation):
            assert self._loop is not None
            if self._loop.elements[user.tuple_index].kind is ElementKind.INVARIANT:
                yield self._numbers[user]

    def _named(self, computation: HloComputation) -> Iterator[HloInstruction]:
        """Yields the elements of what a loop carries that its body reads."""
        for user in computation.parameters[0].users if self._loop is not None else ():
            if user.opcode == "get-tuple-element" and user in self._numbers:
                yield user

    def _find_in_memory(self) -> Iterator[HloInstruction]:
        """Yields arrays of few elements that are in memory all the same."""
        if self._loop is None or self._unit.lanes == 1:
            return
        for value in values_in_memory(self._loop):
            lane = self._program.lane_dimensions.get(value)
            if residual_size(value.shape.dimensions, lane) > MAX_SELECTED:
                yield value

    def _find_uses(self) -> list[list[int]]:
        uses: list[list[int]] = [[] for _ in self._operations]
        for number, operation in enumerate(self._operations):
            for read in dict.fromkeys(operation.reads):
                uses[read].append(number)
        return uses

    # The bounds.

    def _work(self, operation: _Operation, vectors: int) -> float:
        if operation.inner:
            return operation.times * sum(block.cycles(vectors) for block in operation.inner)
        if operation.products:
            factor = max(self._unit.passes * DOT_PRODUCT, _DOT_WEIGHT / vectors + _DOT_REST)
            return vectors * PRODUCT.work * operation.products * factor
        return vectors * operation.timing.work + operation.looping

    def _with_guards(self, time: float, vectors: int) -> float:
        """Adds the time in which a block has lanes that need guarded work."""
        result = time
        for block, guard in self._guards:
            asked = guard.question
            lane = self._program.lane_dimensions.get(asked)
            answers = self._unit.lanes * vectors * residual_size(asked.shape.dimensions, lane)
            needed = 1 - (1 - _GUARD_SHARE) ** answers
            guarded = block.cycles(vectors) + _MISPREDICTED
            if self._goes_on_for(guard):
                needed_here = 1.0
            elif guarded > _MAIN_WORK * time:
                needed_here = max(needed, _ANEW) if guard.begins_anew else 1.0
            else:
                needed_here = needed
            result += guarded * needed_here
        return result

    def _goes_on_for(self, guard: Guard) -> bool:
        """Whether a loop that goes on while there is work does a guard's work, and lanes whose
        state it otherwise keeps are done."""
        loop = self._loop
        is_open = loop is not None and loop.trip_count is None and loop.lane_condition is None
        return is_open and guard.keeps_state

    def _wait(self, vectors: int) -> float:
        operations = self._operations
        works = [self._work(operation, vectors) / 2 for operation in operations]
        lengths = [
            vectors * (o.instructions + o.times * sum(b.instructions() for b in o.inner))
            for o in operations
        ]
        latencies = [
            o.times * sum(b.waiting(vectors) for b in o.inner) if o.inner else o.timing.latency
            for o in operations
        ]
        times = list(map(max, latencies, works))
        done = [0.0] * len(operations)
        begin: dict[int, float] = {}
        window = Lookahead()
        finished = []
        for _ in range(_NUM_STEPS):
            for number, operation in enumerate(operations):
                start = max(begin.get(number, 0.0), window.opening())
                for read in operation.reads:
                    start = max(start, done[read])
                done[number] = start + times[number]
                window.push(lengths[number], works[number], done[number])
            if not self._is_tiled:
                begin = {first: done[last] for first, last in self._carried.items()}
            finished.append(window.end)
        return (finished[-1] - finished[0]) / (_NUM_STEPS - 1)

    def _count_spills(self, registers: float) -> tuple[float, float]:
        """Returns the registers stored and loaded in a step, per vector, by how many there are."""
        carried = {} if self._is_tiled else self._carried
        return count_spills(self._values, self._uses, carried, self._invariant, registers)


def _norm(*bounds: float) -> float:
    """Returns a time that is bounded by several others."""
    largest = max(bounds)
    if not largest:
        return 0.0
    return float(largest * sum((b / largest) ** _SHARPNESS for b in bounds) ** (1 / _SHARPNESS))


def _operands(instruction: HloInstruction) -> Iterator[HloInstruction]:
    """Yields what an instruction reads, seen through tuples."""
    for operand in instruction.operands:
        if operand.opcode == "tuple":
            yield from operand.operands
        else:
            yield operand


def _chain(instruction: HloInstruction) -> float:
    """Returns how many operations of an instruction wait for each other."""
    match instruction.opcode:
        case "reduce":
            (result, *_) = instruction.shape.tuple_shapes or [instruction.shape]
            read = instruction.operands[0].shape.num_elements
            return min(_MAX_CHAIN, read / max(1, result.num_elements))
        case "dot":
            return min(_MAX_CHAIN, DotDimensions.of(instruction).contracted_size(instruction))
    return 1.0
