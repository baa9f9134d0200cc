"""How often a branch is taken, as far as its condition tells.

    if i % 50 == 0       once in 50 steps, whatever else it asks
    if x.sum() > 0       not known

What is said here is for estimates: nothing is proven.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def find_period(conditional: HloInstruction, branch: int) -> int | None:
    """Returns in how many steps a branch is taken once by all appearances; None if it isn't known.

    Args:
        conditional: One in a module of XLA's, whose condition may be fused.
        branch: The number of the branch.
    """
    index = conditional.operands[0]
    is_pred = index.shape.element_type is PrimitiveType.PRED
    if len(conditional.called_computations) != 2 or branch != (0 if is_pred else 1):
        return None  # not the branch of what is true
    asks_equality, period = False, None
    for instruction in _scalars_behind(index):
        if instruction.opcode == "compare" and instruction.comparison_direction == "EQ":
            asks_equality = True
        period = period or _divisor(instruction)
    return period if asks_equality else None


def _scalars_behind(value: HloInstruction) -> Iterator[HloInstruction]:
    """Yields the integers and booleans that a value is made of, the nearest first."""
    queue, seen = deque([value]), {value}
    while queue:
        instruction = queue.popleft()
        yield instruction
        sources = [*instruction.operands]
        if instruction.opcode == "fusion":
            sources.insert(0, instruction.called_computations[0].root)
        for source in sources:
            is_scalar = source.shape.is_array and source.shape.num_elements == 1
            if is_scalar and not source.shape.element_type.is_floating and source not in seen:
                seen.add(source)
                queue.append(source)


def _divisor(instruction: HloInstruction) -> int | None:
    """Returns by what an instruction divides, if what it makes is the remainder by a constant."""
    element = instruction.shape.element_type
    if instruction.opcode not in ("remainder", "and") or not element.is_integral:
        return None
    divisor = instruction.operands[1]
    while divisor.opcode in ("bitcast", "broadcast", "reshape"):
        (divisor,) = divisor.operands
    if divisor.opcode != "constant":
        return None
    number = int(divisor.literal.flat[0])
    if instruction.opcode == "and":
        return number + 1 if number > 0 and not number & (number + 1) else None
    return abs(number) or None
