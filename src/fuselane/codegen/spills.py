"""Which values a loop's step stores and loads again for want of registers.

The step is run through twice, operation by operation in the order of the program, with the values
that are in registers then. The one needed last is the one to go (L. A. Belady, A study of
replacement algorithms for a virtual-storage computer, 1966).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

_MIN_REGISTERS: Final = 2.0


class Value(NamedTuple):
    """What one operation makes.

    Attributes:
        reads: Numbers of the operations whose values it needs.
        size: Registers that it takes; 0 for what is kept in memory or is another's.
        temporaries: Registers that the operation needs in between.
    """

    reads: Sequence[int]
    size: float
    temporaries: int


def count_spills(
    values: Sequence[Value],
    uses: Sequence[Sequence[int]],
    carried: Mapping[int, int],
    invariant: Collection[int],
    registers: float,
) -> tuple[float, float]:
    """Returns the registers stored and loaded in a step.

    Args:
        values: What its operations make, in their order.
        uses: Of each value the numbers of the operations that read it, in their order.
        carried: The state: a value at the beginning of a step by which one it is at the end.
        invariant: Values that no step changes, which are in memory already.
        registers: How many there are, of the values' unit.
    """
    registers = max(registers, _MIN_REGISTERS)
    ends = frozenset(carried.values())
    held: dict[int, float] = {}
    saved = set(invariant)
    stores = loads = 0.0
    for _ in range(2):
        stores = loads = 0.0
        cursor = [0] * len(values)
        for number, value in enumerate(values):
            for read in value.reads:
                size, at = values[read].size, uses[read]
                if size and read not in held:
                    loads += min(size, value.size or size)
                    if size <= registers / 2:
                        held[read] = size
                while cursor[read] < len(at) and at[cursor[read]] <= number:
                    cursor[read] += 1
                if cursor[read] == len(at) and read not in ends:
                    held.pop(read, None)
            if value.size > registers:
                stores += value.size
            elif value.size:
                held[number] = value.size
            excess = sum(held.values()) + value.temporaries - registers
            busy = {number, *value.reads} if excess > 0 else ()
            while excess > 0 and (evictable := [v for v in held if v not in busy]):
                last = max(evictable, key=lambda v: _next_use(uses[v], cursor[v]))
                excess -= held.pop(last)
                if last not in saved:
                    saved.add(last)
                    stores += values[last].size
        saved = {first for first, last in carried.items() if last in saved} | set(invariant)
        held = {first: values[first].size for first, last in carried.items() if last in held}
    return stores, loads


def _next_use(uses: Sequence[int], cursor: int) -> float:
    return uses[cursor] if cursor < len(uses) else float("inf")
