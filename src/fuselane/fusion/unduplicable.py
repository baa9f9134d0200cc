"""What instruction fusion must not compute twice, as seen from the whole computation.

An instruction is kept whole unless it reads at most one array of its own rank, or reads no more
elements than it makes, or can be fused into all its users along all paths:

    %p = f32[8] add(%x, %y)
    %q = f32[8] sort(%p)              no fusion takes the sort, so %p has to be in memory anyway;
    %c = f32[8] multiply(%p, %q)      computed again in %c, it would cost two reads instead of one

Source: InstructionFusion::ComputeGloballyUnfusible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from fuselane.fusion.opcodes import is_effective_scalar, leaf_shapes
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

WouldFuse = Callable[[HloInstruction, int], bool]
"""Whether the operand of an instruction with some number may be fused into it."""


def find_unduplicable(
    post_order: Sequence[HloInstruction], would_fuse: WouldFuse
) -> set[HloInstruction]:
    """Returns the instructions of a computation that must not be computed twice."""
    kept: set[HloInstruction] = set()
    paths: _Paths | None = None
    for consumer in reversed(post_order):
        for producer in consumer.operands:
            if producer in kept or is_effectively_unary(producer) or not shrinks(producer):
                continue
            if paths is None:
                paths = _Paths(post_order, would_fuse)
            if not paths.are_fusible(producer, consumer):
                kept.add(producer)
                paths.keep(producer)
    return kept


def is_effectively_unary(instruction: HloInstruction) -> bool:
    """Whether at most one operand has as many dimensions as the result.

    Dimensions of size one, broadcasts, iotas and scalar constants don't count.
    """
    if len(instruction.operands) <= 1:
        return True
    rank = max([shape.true_rank for shape in leaf_shapes(instruction.shape)], default=0)
    large = [o for o in instruction.operands if o.shape.true_rank >= rank and not _is_small(o)]
    return len(large) <= 1


def shrinks(instruction: HloInstruction) -> bool:
    """Whether an instruction reads more elements than it makes."""
    read = sum(_num_elements(operand.shape) for operand in dict.fromkeys(instruction.operands))
    return read > _num_elements(instruction.shape)


@final
class _Paths:
    """All paths of a computation, as bit sets over the post order."""

    def __init__(self, post_order: Sequence[HloInstruction], would_fuse: WouldFuse) -> None:
        self._position = {instruction: at for at, instruction in enumerate(post_order)}
        self._above = [0] * len(post_order)
        """What an instruction depends on, itself included."""
        self._below = [0] * len(post_order)
        """What depends on an instruction, itself included."""
        self._refusing = [0] * len(post_order)
        """Users of an instruction it cannot be fused into."""
        self._refused = 0
        """Instructions with such users."""
        for at, instruction in enumerate(post_order):
            self._above[at] |= 1 << at
            for index, operand in enumerate(instruction.operands):
                source = self._position[operand]
                self._above[at] |= self._above[source]
                if not would_fuse(instruction, index):
                    self._refusing[source] |= 1 << at
                    self._refused |= 1 << source
        for at in reversed(range(len(post_order))):
            self._below[at] |= 1 << at
            for operand in post_order[at].operands:
                self._below[self._position[operand]] |= self._below[at]

    def keep(self, instruction: HloInstruction) -> None:
        """Takes note that an instruction is not fused into any user."""
        at = self._position[instruction]
        self._refusing[at] = sum(1 << self._position[user] for user in instruction.users)
        self._refused |= 1 << at

    def are_fusible(self, producer: HloInstruction, consumer: HloInstruction) -> bool:
        """Whether each step of each path from a producer to a consumer can be fused."""
        targets = self._above[self._position[consumer]]
        between = self._below[self._position[producer]] & targets & self._refused
        while between:
            at = between.bit_length() - 1
            if self._refusing[at] & targets:
                return False
            between ^= 1 << at
        return True


def _is_small(operand: HloInstruction) -> bool:
    if operand.opcode == "constant":
        return is_effective_scalar(operand.shape)
    return operand.opcode in ("broadcast", "iota")


def _num_elements(shape: Shape) -> int:
    if not shape.is_tuple:
        return shape.num_elements
    return sum([leaf.num_elements for leaf in shape.leaves])
