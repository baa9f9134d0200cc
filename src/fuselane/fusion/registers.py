"""How many registers a fused kernel needs: values that are alive at once while it makes an element.

    %a = add(%x, %y)           x y      2
    %b = multiply(%x, %y)      a b      2     x and y are read for the last time
    ROOT %c = subtract(%a, %b) c        1     the kernel needs 2

Operands that need more come first, as a compiler would have it; what is only moved keeps its
register, and constants need none. A kernel with several results needs each until it is written,
which is at once. Addresses and indices are left out.

On a GPU a thread makes several elements where there are enough of them, and keeps the values of all
of them if it has several results to write at once, or branches on the way. As ptxas has it for
sm_90 (values alive, registers): 31 in a sum of 30 products that are all returned, 128; 42, 58 and
74 in chains of square roots, 56, 72 and 96; 25 in a chain of sines, 204, and with 41 it spills.

Source of the order: R. Sethi, J. D. Ullman, The generation of optimal code for arithmetic
expressions, 1970; for values with several users it is a heuristic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_REGISTER_BITS: Final = 32

_BRANCHING: Final = frozenset({"cosine", "sine", "tan"})
"""Opcodes with another way for large arguments."""

_ALIVE_WITH_BRANCHES: Final = 8
_UNROLL: Final = 4
_FOR_ADDRESSES: Final = 16


def count_registers(body: HloComputation) -> int:
    """Returns the 32-bit registers an element of a fused computation's result takes at the most."""
    order = _order(body)
    last_use = {
        operand: at for at, instruction in enumerate(order) for operand in instruction.operands
    }
    alive: dict[HloInstruction, int] = {}
    most = 0
    for at, instruction in enumerate(order):
        for operand in instruction.operands:
            if last_use[operand] == at:
                alive.pop(operand, None)
        if instruction in last_use or instruction is body.root:
            alive[instruction] = _size(instruction)
        most = max(most, sum(alive.values()))
    return most


def most_registers(module: HloModule, count: Callable[[HloInstruction], int]) -> tuple[int, str]:
    """Returns what the largest fusion of a module needs, and its name; (0, "") without fusions.

    Args:
        module: Any.
        count: Returns what one fusion needs.
    """
    needs = [
        (count(instruction), instruction.name)
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode == "fusion" and instruction.fusion_kind != "kCustom"
    ]
    return max(needs, default=(0, ""))


def thread_registers(fusion: HloInstruction, num_threads: int) -> int:
    """Returns about how many registers a thread of a GPU takes for a fusion.

    Args:
        fusion: The fusion instruction.
        num_threads: That run at once; with fewer elements each thread makes one.
    """
    body = fusion.to_apply
    roots = body.root.operands if body.root.opcode == "tuple" else [body.root]
    times = 1
    if max(root.shape.num_elements for root in roots) > num_threads:
        if any(member.opcode in _BRANCHING for member in body.instructions):
            times = _ALIVE_WITH_BRANCHES
        elif len(roots) > 1:
            times = _UNROLL
    return _FOR_ADDRESSES + times * count_registers(body)


def _order(body: HloComputation) -> list[HloInstruction]:
    """Returns the instructions the root needs, operands first, larger ones before smaller ones."""
    weight: dict[HloInstruction, int] = {}
    for instruction in body.post_order():
        weight[instruction] = 1 + sum(weight[operand] for operand in set(instruction.operands))
    order: list[HloInstruction] = []
    done: set[HloInstruction] = set()
    stack = [(body.root, False)]
    while stack:
        instruction, is_ready = stack.pop()
        if instruction in done:
            continue
        if is_ready:
            done.add(instruction)
            order.append(instruction)
            continue
        stack.append((instruction, True))
        waiting = [operand for operand in instruction.operands if operand not in done]
        stack.extend((operand, False) for operand in sorted(waiting, key=lambda o: weight[o]))
    return order


def _size(instruction: HloInstruction) -> int:
    if instruction.opcode in ("constant", "iota", "tuple"):
        return 0
    if not instruction.shape.is_array:
        return len(instruction.shape.tuple_shapes)
    if instruction.opcode == "broadcast" and instruction.operands[0].opcode == "constant":
        return 0
    return -(-instruction.shape.element_type.bits // _REGISTER_BITS)
