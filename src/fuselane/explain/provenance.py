"""Which line of the user's program an instruction belongs to, its own or that of its neighbours.

Passes make instructions without telling where they come from: copies of loop state, counters,
pieces of what they took apart. Such an instruction gets the line of the instruction of the same
name in an earlier stage, of what it is made of, of an operand, or of a user, nearest first.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, final

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.source_lines import SourceLine

_SUFFIX: Final = re.compile(r"(\.clone|\.remat|\.\d+|_\d+)+$")
_MAX_VISITED: Final = 400


@final
class Provenance:
    """The lines of a module's instructions; each is looked for once."""

    def __init__(
        self,
        module: HloModule,
        callers: Mapping[HloComputation, HloInstruction],
        earlier: Sequence[Callable[[], HloModule]] = (),
    ) -> None:
        """Remembers where to look.

        Args:
            module: The module.
            callers: The instruction that runs each computation.
            earlier: Returns the module as it was before, each one of a stage, latest first.
        """
        self._module = module
        self._callers = callers
        self._earlier = [_Names(stage) for stage in earlier]
        self._known: dict[HloInstruction, SourceLine | None] = {}

    def line(self, instruction: HloInstruction) -> SourceLine | None:
        """Returns the line of an instruction, or None if nothing near it has one."""
        if instruction not in self._known:
            self._known[instruction] = self._find(instruction)
        return self._known[instruction]

    def _find(self, instruction: HloInstruction) -> SourceLine | None:
        own = self._own(instruction)
        if own is not None:
            return own
        seen = {instruction}
        queue = deque([instruction])
        while queue and len(seen) < _MAX_VISITED:
            for neighbour in self._neighbours(queue.popleft()):
                if neighbour in seen:
                    continue
                found = self._own(neighbour)
                if found is not None:
                    return found
                seen.add(neighbour)
                queue.append(neighbour)
        return None

    def _own(self, instruction: HloInstruction) -> SourceLine | None:
        line = self._module.source(instruction)
        if line is None and instruction.opcode == "fusion":
            inner = instruction.called_computations[0]
            members = [inner.root, *reversed(inner.instructions)]
            line = next(filter(None, map(self._module.source, members)), None)
        for stage in self._earlier if line is None else ():
            line = stage.line(instruction)
            if line is not None:
                break
        return line

    def _neighbours(self, instruction: HloInstruction) -> Iterator[HloInstruction]:
        """Yields what an instruction is made of, then who uses it."""
        yield from instruction.operands
        if instruction.opcode == "while":
            yield instruction.body.root
        elif instruction.called_computations:
            yield instruction.called_computations[0].root
        yield from instruction.users
        computation = instruction.computation
        if computation is not None and computation in self._callers:
            yield self._callers[computation]


@final
class _Names:
    """The lines of an earlier stage, by name."""

    def __init__(self, read: Callable[[], HloModule]) -> None:
        self._read = read

    def line(self, instruction: HloInstruction) -> SourceLine | None:
        for name in (instruction.name, _SUFFIX.sub("", instruction.name)):
            other = self._by_name.get(name)
            if other is not None and other.opcode == instruction.opcode:
                return self._module.source(other)
        return None

    @cached_property
    def _module(self) -> HloModule:
        return self._read()

    @cached_property
    def _by_name(self) -> dict[str, HloInstruction]:
        return {i.name: i for c in self._module.computations for i in c.instructions}
