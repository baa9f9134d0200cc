"""How far a processor looks ahead: which instructions may begin before others are done."""

from __future__ import annotations

from typing import Final, final

_WINDOW: Final = 128.0
"""Vector instructions that may be under way: there are so many registers behind the named ones."""


@final
class Lookahead:
    """The instructions that a processor has before it: those behind the oldest unfinished one.

    Attributes:
        end: When all that has been added is done, in cycles.
    """

    def __init__(self) -> None:
        self.end = 0.0
        self._position = 0.0
        self._positions = [0.0]
        self._ends = [0.0]
        self._oldest = 0

    def push(self, length: float, work: float, done: float) -> None:
        """Adds instructions that take so much work and are done at a time.

        Args:
            length: How many there are.
            work: Cycles that they keep the processor busy.
            done: When the last is done.
        """
        self.end = max(self.end + work, done)
        if length:
            self._position += length
            self._positions.append(self._position)
            self._ends.append(self.end)

    def opening(self) -> float:
        """Returns from when on the next instruction is in the window."""
        behind = self._position - _WINDOW
        if behind <= 0:
            return 0.0
        while self._positions[self._oldest + 1] <= behind:
            self._oldest += 1
        first, last = self._positions[self._oldest : self._oldest + 2]
        begin, end = self._ends[self._oldest : self._oldest + 2]
        return begin + (end - begin) * (behind - first) / (last - first)
