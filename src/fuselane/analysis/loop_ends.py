"""What of a loop's condition goes by all of an array at once.

    %any = pred[] reduce(%p), or        the loop goes on while any element of %p holds
    ROOT %go = and(%any, %more)

Numerics: none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def is_all(reduction: HloInstruction) -> bool:
    """Whether a reduction of booleans is by `and` rather than by `or`."""
    return reduction.to_apply.root.opcode == "and"


def find_ends(condition: HloComputation) -> set[HloInstruction]:
    """Returns the reductions that a loop's condition goes by: where they hold it holds the sooner.

    Reductions by `or` are found below `and` and `or`; those by `and` below a `not` as well.
    """
    found: set[HloInstruction] = set()
    unfit: set[HloInstruction] = set()
    stack = [(condition.root, False)]
    seen: set[tuple[HloInstruction, bool]] = set()
    while stack:
        value, is_negated = stack.pop()
        if (value, is_negated) in seen:
            continue
        seen.add((value, is_negated))
        if value.opcode in ("and", "or"):
            stack.extend((operand, is_negated) for operand in value.operands)
        elif value.opcode == "not":
            stack.append((value.operands[0], not is_negated))
        elif _is_boolean_reduction(value):
            (found if is_all(value) == is_negated else unfit).add(value)
        else:
            unfit.update(cone(value))
    for value in found:
        unfit.update(cone(value.operands[0]))
    return found - unfit


def _is_boolean_reduction(value: HloInstruction) -> bool:
    """Whether a value is `any` or `all` of an array."""
    return (
        value.opcode == "reduce"
        and value.shape.is_array
        and not value.shape.dimensions
        and value.shape.element_type is PrimitiveType.PRED
        and _is_plain(value.to_apply)
        and constant_of(value.operands[1]) is (value.to_apply.root.opcode == "and")
    )


def _is_plain(computation: HloComputation) -> bool:
    """Whether an applied computation is `or` or `and` of its two parameters."""
    root = computation.root
    kinds = [operand.opcode for operand in root.operands]
    return (
        root.opcode in ("or", "and") and kinds == ["parameter"] * 2 and len(set(root.operands)) == 2
    )


def constant_of(value: HloInstruction) -> bool | None:
    """Returns what a boolean is wherever it is asked for, or None if that isn't known."""
    if value.opcode != "constant":
        return None
    literal = value.literal
    return bool(literal.flat[0]) if literal.size and np.all(literal == literal.flat[0]) else None


def cone(value: HloInstruction) -> Iterator[HloInstruction]:
    """Yields a value and everything it is made from."""
    stack = [value]
    seen: set[HloInstruction] = set()
    while stack:
        top = stack.pop()
        if top not in seen:
            seen.add(top)
            yield top
            stack.extend(top.operands)


def cone_in_order(value: HloInstruction) -> list[HloInstruction]:
    """Returns a value and everything it is made from, operands first."""
    assert value.computation is not None, "what is asked about is in a computation"
    needed = set(cone(value))
    return [member for member in value.computation.post_order() if member in needed]
