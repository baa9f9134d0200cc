"""What stands for each instruction while a lane program is turned into LLVM IR.

Few elements per lane are unrolled, each in a register of its own; many are kept in the kernel's own
arrays and worked on in loops. The rules are the same for both: a rule says, for one element of an
instruction's result, how it comes from elements of the operands (an `Elemental`), and `define`
decides where the elements live. The rules themselves are in `codegen.instructions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

from llvmlite import ir

from fuselane.codegen import folding
from fuselane.codegen.arrays import (
    Array,
    Place,
    Registers,
    Scratch,
    Stored,
    View,
    new_scratch,
    widen,
)
from fuselane.codegen.builder import may_contract
from fuselane.codegen.contraction import contract
from fuselane.codegen.cuts import cuts_of, has_too_many_parts, is_cut
from fuselane.codegen.elemental import emit_elemental
from fuselane.codegen.indexed_state import MAX_SELECTED
from fuselane.codegen.indexing import Element, Index, all_indices, residual_size
from fuselane.codegen.memory import LaneBlock
from fuselane.codegen.panels import Panels
from fuselane.codegen.rotations import mix, rotate
from fuselane.codegen.schedule import Schedule, Step, make_schedule, number_parts
from fuselane.codegen.types import is_vector
from fuselane.codegen.views import Views
from fuselane.codegen.windows import store_window
from fuselane.errors import CodegenError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape
from fuselane.lanes.program import LaneLoop, LaneProgram

Binding = Array | list[Array]
Elemental = Callable[[Element], ir.Value]


@final
@dataclass(slots=True, kw_only=True)
class Emitter:
    """Emits instructions one after another at a place, remembering what each one's value is.

    program: What is being emitted.
    place: Where: builder, lane block, own arrays.
    max_unrolled: The most elements per lane that are kept in registers.
    vectors_in_registers: How many vectors of lanes the machine's registers hold.
    shared_bits: Of vectors along what all lanes share; 0 where there are none.
    values: What each instruction emitted so far stands for; lists are tuples.
    schedules: The orders of emission worked out so far.
    orders: When their instructions are emitted for the last time.
    carried: For parameters of loop bodies the elements whose scratch memory is the loop's own.
    owned: The same for parameters of branches, and for loops and conditionals: what of their
        results is in scratch memory that nobody else has.
    buffers: For the same parameters the memory of all large elements and what there is to spare;
        it may change places.
    given: For elements of the program's loop where they are in a GPU's shared memory.
    homes: Scratch memory in which a guard wants a result of its work to be.
    asked: Steps of bodies that their conditions have emitted.
    panels: Weights copied for dots.
    copies: Other operands of dots that were copied to memory here: the array, and its copy.
    """

    program: LaneProgram
    place: Place
    max_unrolled: int
    vectors_in_registers: int
    shared_bits: int = 0
    values: dict[HloInstruction, Binding] = field(default_factory=dict)
    schedules: dict[HloComputation, Schedule] = field(default_factory=dict)
    orders: dict[HloComputation, dict[HloInstruction, int]] = field(default_factory=dict)
    carried: dict[HloInstruction, frozenset[int]] = field(default_factory=dict)
    owned: dict[HloInstruction, frozenset[int]] = field(default_factory=dict)
    buffers: dict[HloInstruction, list[Scratch]] = field(default_factory=dict)
    given: Mapping[int, Scratch] = field(default_factory=dict)
    homes: dict[HloInstruction, Scratch] = field(default_factory=dict)
    asked: set[Step] = field(default_factory=set)
    panels: dict[HloInstruction, Panels] = field(default_factory=dict)
    copies: dict[HloInstruction, tuple[Array, Scratch]] = field(default_factory=dict)
    views: Views = field(init=False)

    def __post_init__(self) -> None:
        """Knows from the beginning what is never stored, but for weights that are still packed."""
        self.views = Views(program=self.program, max_unrolled=self.max_unrolled, panels=self.panels)

    @property
    def builder(self) -> ir.IRBuilder:
        """The builder in use."""
        return self.place.builder

    @property
    def has_vectors(self) -> bool:
        """Whether the machine has vector registers; a GPU's threads have none."""
        return self.shared_bits > 0

    def at(self, block: LaneBlock) -> Emitter:
        """Returns an emitter for another lane block; it sees these values but adds none to them."""
        other = Emitter(
            program=self.program,
            place=replace(self.place, block=block),
            max_unrolled=self.max_unrolled,
            vectors_in_registers=self.vectors_in_registers,
            shared_bits=self.shared_bits,
            values=dict(self.values),
            schedules=self.schedules,
            orders=self.orders,
            carried=self.carried,
            owned=self.owned,
            buffers=self.buffers,
            given=self.given,
            homes=self.homes,
            asked=self.asked if block.width == self.place.block.width else set(),
            panels=self.panels,
        )
        other.views = self.views
        return other

    def schedule(self, computation: HloComputation) -> Schedule:
        """Returns the order in which to emit a computation."""
        found = self.schedules.get(computation)
        if found is None:
            found = self.schedules[computation] = make_schedule(computation, self.program)
        return found

    def carries(self, loop: LaneLoop, elements: Iterable[int]) -> None:
        """Notes that a loop has scratch memory of its own for some of its elements."""
        parameter = loop.instruction.body.parameters[0]
        own = self.owned[loop.instruction] = frozenset(elements)
        self.carried[parameter] = self.carried.get(parameter, frozenset()) | own

    def order(self, computation: HloComputation) -> dict[HloInstruction, int]:
        """Returns when each instruction of a computation is emitted, in steps from its start; what
        is emitted several times, when for the last time."""
        found = self.orders.get(computation)
        if found is None:
            found = self.orders[computation] = number_parts(self.schedule(computation).steps)
        return found

    def lane(self, instruction: HloInstruction) -> int | None:
        """Returns the lane dimension of an instruction's value, None if all lanes share it."""
        return self.program.lane_dimensions.get(instruction)

    def array(self, instruction: HloInstruction) -> Array:
        """Returns the array an emitted instruction stands for."""
        value = self.values[instruction]
        if isinstance(value, list):
            raise CodegenError(f"{instruction.name} is a tuple where an array is needed.")
        return value

    def tuple_elements(self, instruction: HloInstruction) -> list[Array]:
        """Returns the elements of an emitted tuple-shaped instruction."""
        value = self.values[instruction]
        return value if isinstance(value, list) else [value]

    def define(
        self,
        instruction: HloInstruction,
        element: Elemental,
        home: Scratch | None = None,
        operands: Iterable[HloInstruction] | None = None,
        is_long: bool = False,
    ) -> None:
        """Decides where an instruction's elements live: registers, nowhere (a view) or scratch.

        With at most 32 elements per lane in registers:

            %a = f32[8,4] add(..)        4 registers
            %b = f32[8,99] add(..)       scratch, filled by a loop; a view if read once, element by
                                         element
            %c = f32[99,8] transpose(%b) a view: each read of it is a read of %b
            %d = s32[8,4] broadcast(%e)  a view if %e is a constant

        Args:
            instruction: What is defined.
            element: How an element of it comes about.
            home: Where to store it whatever the above says; see `codegen.liveness`.
            operands: What `element` reads, if not the instruction's operands.
            is_long: Whether a loop makes its elements, few as they may be; see `codegen.code_size`.
        """
        shape, lane = instruction.shape, self.lane(instruction)
        is_small = residual_size(shape.dimensions, lane) <= self.max_unrolled
        in_front = instruction.computation is self.program.region
        is_free = in_front or not is_small or self.views.is_table(instruction)
        may_stay = is_free and self.stays_view(instruction)
        is_looped = home is not None or is_long or self._is_read_in_loops(instruction)
        if is_small and not may_stay and not is_looped:
            self.values[instruction] = in_registers(shape, lane, element)
            return
        sources = instruction.operands if operands is None else operands
        arrays = [v for o in sources if isinstance(v := self.values[o], Array)]
        view = View(shape=shape, lane=lane, element=element, cuts=cuts_of(instruction, arrays))
        if home is not None:
            self.copy(view, home)
            self.values[instruction] = home
        elif may_stay:
            self.values[instruction] = view
        else:
            self.values[instruction] = self.in_scratch(view, max_unrolled=1 if is_looped else None)

    def store_parts(self, instruction: HloInstruction) -> None:
        """Stores operands that are put together from parts if, without lanes, there would be too
        many for a loop each: one loop over all would work out every part at each element."""
        if self.program.has_lanes:
            return
        if residual_size(instruction.shape.dimensions, self.lane(instruction)) <= self.max_unrolled:
            return
        arrays = [self.array(operand) for operand in instruction.operands]
        if has_too_many_parts(instruction, arrays):
            for operand, array in zip(instruction.operands, arrays, strict=True):
                if is_cut(array):
                    self.values[operand] = self.in_scratch(array)

    @contextmanager
    def stored_for_loops(self, instruction: HloInstruction) -> Iterator[None]:
        """While this lasts, operands in registers are in memory if a loop over more elements than
        there are registers reads them: at an index that counts, it would select among all."""
        held: dict[HloInstruction, Binding] = {}
        # A GPU keeps such memory far away.
        most = 1 if self.has_vectors else MAX_SELECTED
        if residual_size(instruction.shape.dimensions, self.lane(instruction)) > self.max_unrolled:
            for operand in instruction.operands:
                array = self.values[operand]
                if isinstance(array, Registers) and array.size > most:
                    held[operand] = array
                    self.values[operand] = self.in_scratch(array)
        yield
        self.values.update(held)

    def _is_read_in_loops(self, instruction: HloInstruction) -> bool:
        """Whether a loop over more elements than there are registers reads those of straight-line
        code, which registers would have to be selected for."""
        size = residual_size(instruction.shape.dimensions, self.lane(instruction))
        if not MAX_SELECTED < size <= self.max_unrolled or not self.program.is_straight:
            return False
        return any(
            user.shape.is_array
            and residual_size(user.shape.dimensions, self.lane(user)) > self.max_unrolled
            for user in instruction.users
        )

    def stays_view(self, instruction: HloInstruction) -> bool:
        """Returns whether an instruction with too many elements for registers is never stored."""
        return self.views.stays_view(instruction)

    def is_made_anew(self, instruction: HloInstruction) -> bool:
        """Whether a dynamic-update-slice changes no array but makes one."""
        return self.views.is_made_anew(instruction)

    def is_view(self, instruction: HloInstruction) -> bool:
        """Whether reading an instruction's value may be reading its operands."""
        return self.views.is_view(instruction)

    def materialize(self, array: Array, *, own: bool = False) -> Array:
        """Returns the array with every element computed: in registers if few, else in scratch.

        Args:
            array: Any array.
            own: Whether scratch must be this call's own, not one that others may write.
        """
        if isinstance(array, Registers):
            return array
        if array.size <= self.max_unrolled:
            return in_registers(array.shape, array.lane, partial(array.get, self.place))
        if isinstance(array, Scratch) and not own:
            return array
        scratch = new_scratch(self.place, array.shape, array.lane)
        self.copy(array, scratch)
        return scratch

    def addressable(self, array: Array, starts: Sequence[Index]) -> Array:
        """Returns the array in memory if it would be read from registers at run-time indices."""
        known = all(isinstance(start, int) for start in starts)
        if known or not isinstance(array, Registers) or array.size <= MAX_SELECTED:
            return array
        return self.in_scratch(array)

    def in_scratch(self, array: Array, max_unrolled: int | None = None) -> Scratch:
        """Returns a copy of the array in scratch memory; see `copy`."""
        scratch = new_scratch(self.place, array.shape, array.lane)
        self.copy(array, scratch, max_unrolled)
        return scratch

    def copy(self, source: Array, target: Stored, max_unrolled: int | None = None) -> None:
        """Stores every element of one array to another of the same shape.

        Args:
            source: What is copied.
            target: Where to.
            max_unrolled: The most elements for which there is no loop; by default the emitter's.
        """
        limit = self.max_unrolled if max_unrolled is None else max_unrolled
        store_window(self.place, target, source, (0,) * len(target.shape.dimensions), limit)

    def store(self, target: Stored, update: Array, starts: Sequence[Index]) -> None:
        """Stores an array into the window of another that starts at an index."""
        store_window(self.place, target, update, starts, self.max_unrolled)

    def apply(self, instruction: HloInstruction, values: Sequence[ir.Value]) -> ir.Value:
        """Emits one element of an elementwise instruction; scalars are widened to meet vectors."""
        folded = folding.fold(instruction, values)
        if folded is not None:
            return folded
        are_vectors = [is_vector(value) for value in values]
        if any(are_vectors) and not all(are_vectors):
            values = [widen(self.place, value) for value in values]
        builder, opcode = self.place.builder, instruction.opcode
        joins = [contract] if may_contract(builder) else []
        for join in (*joins, rotate, *([mix] if self.has_vectors else [])):
            joined = join(builder, instruction, values)
            if joined is not None:
                return joined
        reduces = opcode == "reduce-precision"
        return emit_elemental(
            builder,
            opcode,
            values,
            [operand.shape.element_type for operand in instruction.operands],
            instruction.shape.element_type,
            direction=instruction.comparison_direction if opcode == "compare" else "",
            mantissa_bits=instruction.mantissa_bits if reduces else 0,
            exponent_bits=instruction.exponent_bits if reduces else 0,
        )


def in_registers(shape: Shape, lane: int | None, element: Elemental) -> Registers:
    """Returns an array of which every element is computed."""
    elements = tuple(map(element, all_indices(shape.dimensions, lane)))
    return Registers(shape=shape, lane=lane, elements=elements)
