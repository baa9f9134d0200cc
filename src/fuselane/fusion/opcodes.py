"""What XLA's fusion passes know about opcodes: elementwise, fusible at all, cheap or expensive.

Source: xla/hlo/ir/hlo_instruction.cc (IsElementwise, IsFusible) and
xla/service/instruction_fusion.cc (IsExpensive).
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape


def opcodes(names: str) -> frozenset[str]:
    """Returns the set of opcodes written one after the other."""
    return frozenset(names.split())


ELEMENTWISE: Final = opcodes(
    "abs acos acosh add and asin asinh atan2 atanh cbrt ceil clamp compare complex convert copy "
    "cosh cosine count-leading-zeros divide erf exponential exponential-minus-one floor imag "
    "is-finite log log-plus-one logistic maximum minimum multiply negate not or popcnt power real "
    "reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left "
    "shift-right-arithmetic shift-right-logical sign sine sinh sqrt stochastic-convert subtract "
    "tan tanh xor"
)
"""Opcodes whose result elements each depend on the same element of every operand."""

ALWAYS_FUSIBLE: Final = ELEMENTWISE | opcodes(
    "broadcast concatenate constant dynamic-slice dynamic-update-slice fusion gather "
    "get-tuple-element iota map pad reduce reduce-window reshape reverse slice transpose tuple"
)
"""Opcodes of instructions that may be part of some fusion."""
_NEVER_FUSIBLE: Final = frozenset({"domain", "parameter", "while", "conditional", "call"})

_CHEAP: Final = opcodes(
    "add and bitcast bitcast-convert broadcast ceil clamp compare complex concatenate constant "
    "convert copy copy-start copy-done count-leading-zeros dynamic-slice dynamic-update-slice "
    "floor get-tuple-element imag infeed iota is-finite maximum minimum multiply negate not "
    "opt-barrier or outfeed pad partition-id popcnt real reduce-precision replica-id reshape "
    "reverse round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic "
    "shift-right-logical slice stochastic-convert subtract transpose tuple xor"
)
_CHEAP_IF_REAL: Final = opcodes("abs cosine sign sine")
_CHEAP_IF_REAL_ON_CPU: Final = _CHEAP_IF_REAL | {"tan"}
CHEAP_FLOAT_ON_GPU: Final = frozenset({"divide", "sqrt", "rsqrt", "exponential"})
_CHEAP_TYPES_ON_GPU: Final = (PrimitiveType.F32, PrimitiveType.F16)
_DIVISIONS: Final = ("divide", "remainder")


def is_elementwise(instruction: HloInstruction) -> bool:
    """Whether each element of the result depends on the same element of every operand.

    A constant counts; a fusion does if all it computes does. A broadcast, iota or reshape does not.
    """
    opcode = instruction.opcode
    if opcode in ELEMENTWISE or opcode == "constant":
        return True
    if opcode == "bitcast-convert":
        return _bits(instruction.shape) == _bits(instruction.operands[0].shape)
    if opcode == "fusion":
        members = instruction.to_apply.instructions
        return all(i.opcode == "parameter" or is_elementwise(i) for i in members)
    return False


def is_fusible(instruction: HloInstruction) -> bool:
    """Whether an instruction may be part of any fusion at all.

    A bitcast of pairs of floats to complex numbers, which only Fuselane writes, may not: XLA's
    emitters take a bitcast's elements one for one.
    """
    opcode = instruction.opcode
    if opcode == "bitcast":
        return instruction.shape.num_elements == instruction.operands[0].shape.num_elements
    if opcode in ALWAYS_FUSIBLE:
        return True
    if opcode == "rng":
        return len(instruction.users) <= 1
    return opcode not in _NEVER_FUSIBLE and not instruction.has_side_effect


def is_expensive(instruction: HloInstruction) -> bool:
    """Whether XLA's fusion would rather read an instruction's result again than compute it twice.

    The list all targets share.
    """
    opcode = instruction.opcode
    if opcode in _CHEAP:
        return False
    if opcode in _CHEAP_IF_REAL:
        return is_complex(instruction.shape)
    if opcode in _DIVISIONS and is_integer(instruction.shape):
        return not _is_scalar_constant(instruction.operands[1])
    return True


def is_expensive_on_gpu(
    instruction: HloInstruction, cheap: frozenset[str] = CHEAP_FLOAT_ON_GPU
) -> bool:
    """As `is_expensive`, but GPUs compute `cheap` opcodes of f32 and f16 cheaply."""
    if instruction.opcode in cheap and instruction.shape.element_type in _CHEAP_TYPES_ON_GPU:
        return False
    return is_expensive(instruction)


def is_expensive_on_cpu(instruction: HloInstruction) -> bool:
    """As `is_expensive`, by the list XLA:CPU has had since 2026-01.

    Conversions of f32 to bf16 are expensive, tangents are not, and an integer division is cheap
    where its dividend is a constant.
    """
    opcode = instruction.opcode
    if opcode == "convert":
        source = instruction.operands[0].shape.element_type
        target = instruction.shape.element_type
        return source is PrimitiveType.F32 and target is PrimitiveType.BF16
    if opcode in _CHEAP_IF_REAL_ON_CPU:
        return is_complex(instruction.shape)
    if opcode in _DIVISIONS and is_integer(instruction.shape):
        return not _is_scalar_constant(instruction.operands[0])
    return is_expensive(instruction)


def may_be_expensive_on_cpu(opcode: str) -> bool:
    """Whether `is_expensive_on_cpu` is true of any instruction with an opcode."""
    return opcode == "convert" or opcode not in _CHEAP


def is_effective_scalar(shape: Shape) -> bool:
    """Whether an array has one element, whatever its rank."""
    return shape.is_array and all(size == 1 for size in shape.dimensions)


def leaf_shapes(shape: Shape) -> tuple[Shape, ...]:
    """Returns the arrays of a shape, which is one itself or a tuple of such."""
    return shape.leaves if shape.is_tuple else (shape,)


def is_complex(shape: Shape) -> bool:
    """Whether the elements are complex numbers."""
    return shape.element_type.is_complex


def is_integer(shape: Shape) -> bool:
    """Whether the elements are integers; booleans are not."""
    return shape.element_type.is_integral


def _is_scalar_constant(instruction: HloInstruction) -> bool:
    """Whether it is a constant of one element, or one spread over an array."""
    if instruction.opcode == "broadcast":
        instruction = instruction.operands[0]
    return instruction.opcode == "constant" and is_effective_scalar(instruction.shape)


def _bits(shape: Shape) -> int:
    return shape.element_type.bits
