"""The state of a loop from one step to the next.

Few elements are LLVM values, carried by phis. Many live in scratch memory of the loop's own, in
which the next step's are made where that is possible, element by element. Where it isn't, they are
made in other such memory, and the two change places: what is carried is where they are.

    u' = f(u[i - 1], u[i + 1])      made in a spare, which then is `u`, and `u` the spare
    p', u' = u, f(p[i], u[i + 1])   made where `p` is: `p'` is `u`'s memory, `u'` is `p`'s

Only what is made elsewhere still is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from llvmlite import ir

from fuselane.codegen.arrays import Array, Memory, Registers, Scratch, Written, new_scratch
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.indexed_state import largest_in_registers
from fuselane.codegen.liveness import fits, is_handed_over, needs_spare
from fuselane.lanes.program import LaneLoop, LoopElement


@final
class Carry:
    """The state elements of a loop as a flat list of values: the elements of small ones, then where
    large ones are, and then spare memory.

    Args:
        emitter: Where, in front of the loop.
        loop: The loop.
        elements: Those of its elements to be carried.
        initial: An array for every element of its tuple.
    """

    def __init__(
        self,
        emitter: Emitter,
        loop: LaneLoop,
        elements: Sequence[LoopElement],
        initial: Sequence[Array],
    ) -> None:
        self._emitter = emitter
        self._initial = list(initial)
        self._loop, self._body = loop.instruction, loop.instruction.body
        self._large = [e for e in elements if self._is_large(e)]
        self._small = [e for e in elements if e not in self._large]
        is_outermost = loop is emitter.program.loop
        self._handed = {} if is_outermost else self._handed_over()
        self._given = emitter.given if is_outermost else self._handed
        emitter.carries(loop, [element.index for element in self._large])
        self._spares: list[Scratch] = []
        self._moving: set[int] = set()
        """Indices of large elements of which a step may leave the next value elsewhere."""

    def _is_large(self, element: LoopElement) -> bool:
        """Whether an element is in memory: of too many elements for registers, or of some in which
        lanes are updated at an index that only the kernel knows, which would select among all."""
        width, max_unrolled = self._emitter.place.block.width, self._emitter.max_unrolled
        limit = largest_in_registers(self._body, element, width, max_unrolled)
        return self._initial[element.index].size > limit

    def _handed_over(self) -> dict[int, Scratch]:
        """Returns the memory of large state that a loop within another may have as it is; not where
        elements that may change places would have memory of different kinds."""
        emitter, loop, start = self._emitter, self._loop, self._loop.operands[0]
        handed: dict[int, Scratch] = {}
        if start.opcode != "tuple":
            return handed
        for element in self._large:
            array = self._initial[element.index]
            value = start.operands[element.index]
            if isinstance(array, Scratch) and is_handed_over(emitter, value, loop, [start]):
                handed[element.index] = array
        width = emitter.place.block.width
        pitches = {index: array.pitch for index, array in handed.items()}
        for element in self._large:
            pitch = pitches.get(element.index)
            own = 1 if element.lane_dimension is None else width
            if pitch != own and any(pitches.get(k) != pitch for k in self._like(element)):
                handed.pop(element.index, None)
        return handed

    @property
    def is_in_registers(self) -> bool:
        """Whether the carried values are all of the state."""
        return not self._large

    def entering(self) -> list[ir.Value]:
        """Returns the carried values in front of the loop; large state is copied to its scratch,
        unless it is there."""
        place = self._emitter.place
        spared = [
            element
            for element in self._large
            if needs_spare(self._emitter, self._body, element.index, self._like(element))
        ]
        for element in self._large:
            scratch = self._given.get(element.index)
            if scratch is None or any(_key(other) == _key(element) for other in spared):
                scratch = new_scratch(place, element.shape, element.lane_dimension)
            if self._initial[element.index] is not scratch:
                self._emitter.copy(self._initial[element.index], scratch)
            self._initial[element.index] = scratch
        self._spares = [
            new_scratch(place, element.shape, element.lane_dimension) for element in spared
        ]
        values = self._flatten(self._initial)
        return [*values, *(buffer.pointer for buffer in self._buffers(self._initial))]

    def arrays(self, values: Sequence[ir.Value]) -> list[Array]:
        """Returns the loop's arrays for carried values, which are those of a step from here on."""
        arrays = list(self._initial)
        remaining = iter(values)
        for element in self._small:
            size = arrays[element.index].size
            arrays[element.index] = Registers(
                shape=element.shape,
                lane=element.lane_dimension,
                elements=tuple(next(remaining) for _ in range(size)),
            )
        for element in self._large:
            scratch = self._initial[element.index]
            assert isinstance(scratch, Scratch), "large state has been copied"
            arrays[element.index] = replace(scratch, pointer=next(remaining))
        self._spares = [replace(spare, pointer=next(remaining)) for spare in self._spares]
        self._emitter.buffers[self._body.parameters[0]] = self._buffers(arrays)
        return arrays

    def results(self, values: Sequence[ir.Value]) -> list[Array]:
        """As `arrays`, behind the loop: what stays where it is, is known to be there. Where memory
        that others gave changes places, nobody would know which is where: results are copied."""
        before = list(self._initial)
        arrays = self.arrays(values)
        for element in self._large:
            index = element.index
            if index not in self._moving:
                arrays[index] = before[index]
            elif self._handed:
                arrays[index] = self._emitter.in_scratch(arrays[index])
        return arrays

    def following(self, current: Sequence[Array], arrays: Sequence[Array]) -> list[ir.Value]:
        """Returns the carried values at the end of a step.

        Args:
            current: The arrays at its begin.
            arrays: What it has made of them.
        """
        values = self._flatten(arrays)
        free = self._buffers(current)
        places: dict[int, Scratch] = {}
        for element in self._large:
            new = arrays[element.index]
            found = next((b for b in free if is_there(new, b)), None)
            if found is not None:
                places[element.index] = found
                free.remove(found)
        self._copy(current, arrays, places, free)
        for element in self._large:
            before = current[element.index]
            if not isinstance(before, Scratch) or not is_there(places[element.index], before):
                self._moving.add(element.index)
        places_then = [places[element.index].pointer for element in self._large]
        return [*values, *places_then, *(self._take(free, spare).pointer for spare in self._spares)]

    def _copy(
        self,
        current: Sequence[Array],
        arrays: Sequence[Array],
        places: dict[int, Scratch],
        free: list[Scratch],
    ) -> None:
        """Copies what was not made in memory of the loop's own: to where nothing is read from, or
        else to where something was."""
        used = {id(a.pointer) for a in self._emitter.values.values() if isinstance(a, Scratch)}
        used |= {id(a.pointer) for a in current if isinstance(a, Scratch)}
        rewritten: list[tuple[Scratch, Array]] = []
        for element in self._large:
            if element.index in places:
                continue
            home, new = current[element.index], arrays[element.index]
            assert isinstance(home, Scratch), "large state is in scratch memory"
            unused = [buffer for buffer in free if id(buffer.pointer) not in used]
            target = self._take(unused, home) if any(fits(b, home) for b in unused) else None
            if target is None:
                target = home if home in free else self._take(list(free), home)
                rewritten.append((target, new))
            else:
                self._emitter.copy(new, target)
            free.remove(target)
            places[element.index] = target
        rewrite(self._emitter, rewritten)

    def _like(self, element: LoopElement) -> list[int]:
        """Returns the large elements that an element's memory would do for, itself among them."""
        return [other.index for other in self._large if _key(other) == _key(element)]

    def _take(self, buffers: list[Scratch], like: Scratch) -> Scratch:
        """Takes memory for an array like another out of a list."""
        found = next(buffer for buffer in buffers if fits(buffer, like))
        buffers.remove(found)
        return found

    def _buffers(self, arrays: Sequence[Array]) -> list[Scratch]:
        """Returns the memory of all large state and the spares."""
        owned = [arrays[element.index] for element in self._large]
        return [*(array for array in owned if isinstance(array, Scratch)), *self._spares]

    def _flatten(self, arrays: Sequence[Array]) -> list[ir.Value]:
        return list(self._elements(arrays))

    def _elements(self, arrays: Sequence[Array]) -> Iterator[ir.Value]:
        place = self._emitter.place
        for element in self._small:
            array = arrays[element.index]
            for position in range(self._initial[element.index].size):
                yield array.lanes(place, array.flat(place, position))


def _key(element: LoopElement) -> tuple[object, ...]:
    shape = element.shape
    return shape.element_type, shape.dimensions, element.lane_dimension


def is_there(array: Array, buffer: Scratch) -> bool:
    """Whether an array lies in some memory already."""
    if not isinstance(array, Scratch):
        return False
    return array.pointer is buffer.pointer and fits(array, buffer)


def rewrite(emitter: Emitter, updates: Sequence[tuple[Scratch, Array]]) -> None:
    """Stores each array to its scratch, unless it is there, all of them read before any is
    written."""
    changed = [(target, new) for target, new in updates if not is_there(new, target)]
    pointers = {id(target.pointer) for target, _ in changed}

    def safe(array: Array) -> Array:
        if isinstance(array, Registers):
            return array
        if isinstance(array, Memory) and array.written is Written.NEVER:
            return array
        if isinstance(array, Scratch) and id(array.pointer) not in pointers:
            return array
        return emitter.materialize(array, own=True)

    for target, new in [(target, safe(new)) for target, new in changed]:
        emitter.copy(new, target)
