"""What one operation takes on a register of lanes: work, time until it is done, registers.

Cycles of a core with two units for floating-point numbers, registers of 256 bits; those of
sequences were measured, of our own code (`codegen.math`, `codegen.elemental`), on AMD Zen 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.cost import OPCODE_COST, is_known, known_number
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.codegen.math.half_power import is_half_power
from fuselane.hlo.instruction import HloInstruction

_INSTRUCTIONS_PER_WORK: Final = 2.2


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """An opcode on one register.

    work: Cycles it keeps a core busy that has much else to do.
    latency: Cycles until its result is there.
    temporaries: Registers it needs in between.
    """

    work: float
    latency: float
    temporaries: int = 0

    @property
    def instructions(self) -> float:
        """About how many machine instructions it is."""
        is_single = 0 < self.latency <= 1
        return 1.0 if is_single else self.work * _INSTRUCTIONS_PER_WORK


NOTHING: Final = Timing(0, 0)
PRODUCT: Final = Timing(0.45, 4)
_SUM: Final = Timing(0.45, 3)
_CONVERSION: Final = Timing(0.5, 4)
_LOGICAL: Final = Timing(0.3, 1)
_INTEGER_PRODUCT: Final = Timing(0.5, 3)
_LONG_PRODUCT: Final = Timing(1.8, 7, 2)
_INTEGER_DIVISION: Final = Timing(11, 37, 4)
_KNOWN_DIVISION: Final = Timing(4, 11, 2)
_KNOWN_LONG_DIVISION: Final = Timing(20, 25, 2)
"""By a constant: a product of which the upper half counts, and shifts; of 64 bits, lane by lane."""

_SPREAD: Final = Timing(1.5, 4)
_PUT_TOGETHER: Final = Timing(3.5, 8)
"""Integers that become wider, from one register in several, or narrower, for each register of the
wider ones: in the one unit that shuffles. Measured, the two together, on Intel's of AVX-512."""

_NARROW_BITS: Final = 16
_NARROWED: Final = Timing(5, 14, 1)
"""Floats that become integers of at most 16 bits: brought into range in the wider registers."""

_MEMORY: Final[Mapping[str, Timing]] = {
    "dynamic-slice": Timing(0.5, 7),
    "dynamic-update-slice": Timing(1, 0),
    "gather": Timing(10, 24, 1),
    "scatter": Timing(30, 30, 1),
}

_SEQUENCES: Final[Mapping[str, Timing]] = {
    "atan2": Timing(16, 51, 4),
    "cbrt": Timing(15, 54, 4),
    "clamp": Timing(2.7, 7, 1),
    "cosine": Timing(12, 43, 4),
    "divide": Timing(2.7, 13),
    "erf": Timing(12.5, 35, 4),
    "exponential": Timing(8, 43, 3),
    "exponential-minus-one": Timing(9.5, 42, 3),
    "log": Timing(12, 40, 4),
    "log-plus-one": Timing(15.5, 48, 4),
    "logistic": Timing(18, 70, 4),
    "maximum": Timing(1.2, 6, 1),
    "minimum": Timing(1.2, 6, 1),
    "power": Timing(52, 80, 6),
    "reduce-precision": Timing(3, 8, 2),
    "remainder": Timing(6.4, 25, 3),
    "round-nearest-afz": Timing(1.3, 7, 1),
    "rsqrt": Timing(8.3, 37, 3),
    "sign": Timing(1.8, 7, 1),
    "sine": Timing(12, 43, 4),
    "sqrt": Timing(4.4, 17),
    "tan": Timing(19, 55, 5),
    "tanh": Timing(6.5, 36, 3),
}
"""Of f32."""

_POWER_OF_KNOWN: Final = Timing(14, 56, 5)
"""Of a constant: LLVM works out its logarithm."""

_HALF_POWER: Final = Timing(14, 42, 4)
_INVERSE_HALF_POWER: Final = Timing(20, 60, 4)
"""By a constant such as 1.5 or -1.5, see `math.half_power`."""

_DOUBLE_WORK: Final = 1.6
_DOUBLE_LATENCY: Final = 1.2
"""How much more polynomials of f64 take."""

_INTEGERS: Final[Mapping[str, Timing]] = {
    "count-leading-zeros": Timing(4.3, 9, 2),
    "divide": _INTEGER_DIVISION,
    "mulhi": Timing(3, 8, 2),
    "popcnt": Timing(2.9, 9, 2),
    "power": _INTEGER_DIVISION,
    "remainder": _INTEGER_DIVISION,
}

_LOGICAL_OPCODES: Final = frozenset({"and", "compare", "not", "or", "select", "xor"})
_CONVERSIONS: Final = frozenset({"ceil", "convert", "floor", "round-nearest-even"})
_SUMS: Final = frozenset({"add", "subtract"})
_ROUNDED: Final = ELEMENTWISE_OPCODES - _LOGICAL_OPCODES - {"abs", "convert", "negate"}
"""What makes new numbers, of those that go element by element."""


def timing_of(instruction: HloInstruction) -> Timing:
    """Returns the timing of an instruction's operation on one register of its elements.

    Floats of 16 bits are widened for each operation, and its result is narrowed.
    """
    timing = _timing_in_registers(instruction)
    if not is_half(instruction) or instruction.opcode not in _ROUNDED:
        return timing
    work, latency = 2 * _CONVERSION.work, 2 * _CONVERSION.latency
    return Timing(timing.work + work, timing.latency + latency, timing.temporaries)


def is_half(value: HloInstruction) -> bool:
    """Whether a value is made of floats of 16 bits."""
    shape = value.shape
    return shape.is_array and shape.element_type.is_floating and shape.element_type.bits == 16


def _timing_of_integers(instruction: HloInstruction, *, is_wide: bool) -> Timing:
    opcode = instruction.opcode
    if opcode in ("divide", "remainder") and is_known(instruction.operands[1]):
        return _KNOWN_LONG_DIVISION if is_wide else _KNOWN_DIVISION
    if opcode == "convert":
        return _timing_of_conversion(instruction)
    if opcode == "multiply":
        return _LONG_PRODUCT if is_wide else _INTEGER_PRODUCT
    return _INTEGERS.get(opcode, _LOGICAL)


def _timing_of_conversion(convert: HloInstruction) -> Timing:
    source, target = convert.operands[0].shape.element_type, convert.shape.element_type
    if source.is_floating:
        return _NARROWED if target.bits <= _NARROW_BITS else _CONVERSION
    if not source.is_integral or source.bits == target.bits:
        return _CONVERSION
    return _SPREAD if source.bits < target.bits else _PUT_TOGETHER


def _timing_in_registers(instruction: HloInstruction) -> Timing:
    """Returns the timing of an operation whose operands and result are as registers have them.

    A product that only a sum needs is part of the sum: the two are fused.
    """
    opcode, shape = instruction.opcode, instruction.shape
    if opcode == "reduce":
        return _timing_of_reduce(instruction)
    if opcode in _MEMORY:
        return _MEMORY[opcode]
    is_wide = shape.is_array and shape.element_type.bits == 64
    if shape.is_array and not shape.element_type.is_floating:
        return _timing_of_integers(instruction, is_wide=is_wide)
    if opcode in _SEQUENCES:
        timing = _timing_of_power(instruction) if opcode == "power" else _SEQUENCES[opcode]
        if not is_wide:
            return timing
        work, latency = timing.work * _DOUBLE_WORK, timing.latency * _DOUBLE_LATENCY
        return Timing(work, latency, timing.temporaries)
    if opcode in _SUMS:
        return PRODUCT if any(map(_is_fused, instruction.operands)) else _SUM
    if opcode in _LOGICAL_OPCODES:
        return _LOGICAL
    if _is_fused(instruction):
        return NOTHING
    return _CONVERSION if opcode in _CONVERSIONS else PRODUCT


def _timing_of_reduce(reduce: HloInstruction) -> Timing:
    """Returns the timing of one of the operations by which a reduction takes an element in, and
    how long all of them take one after the other."""
    applied = reduce.to_apply
    done: dict[HloInstruction, float] = {}
    work = temporaries = 0.0
    for instruction in applied.post_order():
        begin = max([done[operand] for operand in instruction.operands], default=0.0)
        done[instruction] = begin
        if instruction.opcode in ELEMENTWISE_OPCODES:
            timing = timing_of(instruction)
            done[instruction] += timing.latency
            work += timing.work
            temporaries = max(temporaries, timing.temporaries)
    operations = sum(OPCODE_COST[i.opcode] for i in applied.instructions)
    return Timing(work / max(1, operations), done[applied.root], int(temporaries))


def _timing_of_power(power: HloInstruction) -> Timing:
    base, exponent = power.operands
    if is_known(base):
        return _POWER_OF_KNOWN
    number = known_number(exponent)
    if not is_half_power(number):
        return _SEQUENCES["power"]
    return _HALF_POWER if number > 0 else _INVERSE_HALF_POWER


def _is_fused(instruction: HloInstruction) -> bool:
    """Whether an instruction is a product that becomes part of a sum."""
    users = instruction.users
    return instruction.opcode == "multiply" and len(users) == 1 and users[0].opcode in _SUMS
