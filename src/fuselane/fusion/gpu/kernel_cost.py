"""What XLA:GPU's cost analysis says of one kernel, and sums of it.

Source: xla/service/gpu/model/gpu_hlo_cost_analysis.cc.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

Roots = frozenset[int]
"""Values of a kernel, by number, from which another one is read element by element."""

NO_ROOTS: Final[Roots] = frozenset()


@final
@dataclass(slots=True)
class Operand:
    """How a kernel uses one of its operands.

    Attributes:
        value: Its number among the kernel's values; -1 for operands of what is no fusion, and for
            those only read element by element.
        roots: What it is read element by element from; itself where it is read otherwise.
        utilization: How often each element is read, on average.
        bytes_read: Repeated reads included.
        emissions: How often its code would stand in the kernel's.
    """

    value: int = -1
    roots: Roots = NO_ROOTS
    utilization: float = 0.0
    bytes_read: int = 0
    emissions: int = 1

    def copy(self) -> Operand:
        """Returns one that may be changed where kernels share this one."""
        return Operand(self.value, self.roots, self.utilization, self.bytes_read, self.emissions)


@final
@dataclass(slots=True)
class KernelCost:
    """What one launch of an instruction costs.

    Attributes:
        flops: Operations, each element of each member as often as it is computed.
        bytes_written: Size of the results, or of the update for a dynamic-update-slice.
        operands: How each operand is read.
        code_size: Instructions whose code is emitted, parameters and repetitions included.
        branches: Instructions in front of which XLA's emitters until 2024 began new blocks of code,
            repetitions included: what was computed before them is computed again after them.
        copies: How often the code of any operand would stand in the kernel's, at most.
        member_size: For a fusion: the same without parameters.
        utilization: For a fusion: how often the roots are computed; else nothing.
        emissions: For a fusion: how often the code of the roots stands in it; else nothing.
        result: For a fusion: its value's number, which is a root of its own; else -1.
        flop_bits: For a fusion: bits of the numbers summed up to `flops`, of which the lowest tells
            the largest power of two that divides them all.
        has_fractions: For a fusion: whether any number summed up is no integer.
        reads_evenly: For a fusion: whether every operand is read element by element from the result
            alone.
    """

    flops: float
    bytes_written: int
    operands: list[Operand] = field(default_factory=list)
    code_size: int = 1
    branches: int = 0
    copies: int = 1
    member_size: int = 0
    utilization: dict[int, float] = field(default_factory=dict)
    emissions: dict[int, int] = field(default_factory=dict)
    result: int = -1
    flop_bits: int = 0
    has_fractions: bool = False
    reads_evenly: bool = False

    @property
    def is_fusion(self) -> bool:
        """Whether it is a fusion's."""
        return self.result >= 0

    @property
    def is_exact(self) -> bool:
        """Whether no sum was rounded, in whichever order its terms were added.

        They are multiples of a power of two then, and fewer of it than f32 has integers.
        """
        return not self.has_fractions and self.flops <= _unit(self.flop_bits) * EXACT_IN_F32

    def new_value(self) -> int:
        """Returns the number of one more value of a fusion, which is not computed yet."""
        value = len(self.utilization)
        self.utilization[value], self.emissions[value] = 0.0, 0
        return value

    def compute(self, flops: float, times: float) -> None:
        """Adds operations that are done so often; below 2^24 the sum is yet to be rounded."""
        term = flops if times == 1.0 and flops < EXACT_IN_F32 else to_f32(times * to_f32(flops))
        total = self.flops + term
        self.flops = total if total < EXACT_IN_F32 else to_f32(total)
        whole = int(term)
        self.flop_bits |= whole
        if whole != term:
            self.has_fractions = True

    def settle(self, operands: list[Operand]) -> None:
        """Takes a fusion's operands, in order."""
        self.operands = operands
        if self.reads_evenly:
            self.code_size = self.member_size + len(operands)
            return
        self.copies, self.reads_evenly = 1, True
        size, roots, times = self.member_size, NO_ROOTS, 0
        for operand in operands:
            if operand.roots is not roots:
                roots = operand.roots
                times = sum([self.emissions[root] for root in roots])
                self.copies = max(self.copies, times)
                if len(roots) != 1 or self.result not in roots:
                    self.reads_evenly = False
            operand.emissions = times
            size += times
        self.code_size = size

    def take(self, of: KernelCost, value: Operand, read: Sequence[Operand]) -> bool:
        """Adds the members of another fusion, if its cost tells all about them: where no sum is
        rounded, and its result is computed a power of two times, so is all else in it.

        Args:
            of: The other's cost, without results that are updated in place.
            value: How its result is used.
            read: How its operands, each of them once, are used in this fusion; brought up to date.
        Returns:
            Whether it was possible; if not, nothing has changed.
        """
        used = sum([self.utilization[root] for root in value.roots])
        if self.has_fractions or of.has_fractions or not used or _unit(int(used)) != used:
            return False
        bits = self.flop_bits | int(used) * _unit(of.flop_bits)
        flops = self.flops + used * of.flops
        most = max(self.utilization.values()) + used * max(of.utilization.values())
        if flops > _unit(bits) * EXACT_IN_F32 or most >= EXACT_IN_F32:
            return False
        times = sum([self.emissions[root] for root in value.roots])
        self.flops, self.flop_bits = flops, bits
        self.member_size += times * of.member_size
        self.branches += times * of.branches
        roots_of = {of.result: value.roots}
        """For each value of the other fusion, what stands for it in this one."""
        known: dict[int, int] = {}
        if len(of.utilization) > 1:
            pairs = zip(of.operands, read, strict=True)
            known = {theirs.value: mine.value for theirs, mine in pairs}
        for number in of.utilization:
            if number == of.result:
                continue
            mine = known.get(number, -1)
            if mine < 0:
                mine = self.new_value()
            self.utilization[mine] += used * of.utilization[number]
            self.emissions[mine] += times * of.emissions[number]
            roots_of[number] = frozenset((mine,))
        before, roots = NO_ROOTS, NO_ROOTS
        for theirs, operand in zip(of.operands, read, strict=True):
            if theirs.roots is not before:
                before = theirs.roots
                each = [roots_of[number] for number in before]
                roots = each[0] if len(each) == 1 else NO_ROOTS.union(*each)
            if operand.roots is not roots:
                operand.roots = operand.roots | roots if operand.roots else roots
            if theirs.value >= 0:
                (operand.value,) = roots_of[theirs.value]
        return True

    def take_evenly(self, of: KernelCost) -> bool:
        """As `take`, of a fusion or what is elementwise, that reads evenly and whose result is read
        element by element from this fusion's."""
        bits = self.flop_bits | of.flop_bits
        flops = self.flops + of.flops
        if (
            len(of.utilization) > 1
            or self.emissions[self.result] != 1
            or self.utilization[self.result] != 1.0
            or self.has_fractions
            or of.has_fractions
            or flops > _unit(bits) * EXACT_IN_F32
        ):
            return False
        self.flops, self.flop_bits = flops, bits
        self.member_size += of.member_size
        self.branches += of.branches
        return True

    def common(self, left: Operand, right: Operand) -> float:
        """Returns the utilization that two operands of a fusion share."""
        if left.roots is right.roots:
            return left.utilization
        shared = left.roots & right.roots
        return to_f32(sum([self.utilization[root] for root in shared])) if shared else 0.0


def to_f32(value: float) -> float:
    """Rounds to the type XLA counts in."""
    if -EXACT_IN_F32 < value < EXACT_IN_F32 and value == int(value):
        return value
    result: float
    (result,) = _unpack(_pack(value))
    return result


def round_half_up(value: float) -> int:
    """Rounds to the nearest integer, halves up."""
    return math.floor(value + 0.5)


def _unit(bits: int) -> int:
    """Returns the largest power of two that divides a number."""
    return bits & -bits


_F32: Final = struct.Struct("f")
_pack, _unpack = _F32.pack, _F32.unpack
EXACT_IN_F32: Final = 1 << 24
"""Integers below are what they are in f32."""
