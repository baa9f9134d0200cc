"""Changes to loops that are run for comparison: more elements, values a little off.

Numerics: `vary` multiplies floats by 1 plus or minus `contract.VARIATION_ULP` units in the last
place, in a pattern that looks random. Small whole numbers stay as they are: they count or choose
more often than they measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from fuselane.contract import VARIATION_ULP
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.hlo.tuples import element_of, tuple_of

S32: Final = Shape.array(PrimitiveType.S32, ())
PRED: Final = Shape.array(PrimitiveType.PRED, ())

_MAX_WHOLE_NUMBER: Final = 65536.0
_HALF_TYPES: Final = {PrimitiveType.F16: 2.0**-10, PrimitiveType.BF16: 2.0**-7}
"""One unit in the last place of 1."""
_HASH_FACTOR: Final = 0x9E3779B1
_LIBRARY_FUSION: Final = "kCustom"


def is_float(shape: Shape) -> bool:
    """Whether values can be varied."""
    return shape.element_type.is_floating or shape.element_type.is_complex


def vary(
    computation: HloComputation, value: HloInstruction, sign: float, number: int
) -> HloInstruction:
    """Returns a copy of a value, a few units in the last place off if it has floats.

    Args:
        computation: A module's, where the new instruction goes, at the end.
        value: An array.
        sign: 1 or -1: two runs with opposite signs err in opposite directions.
        number: Different numbers give different patterns.
    """
    shape = value.shape
    if not is_float(shape):
        return computation.add(HloInstruction.create("copy", shape, [value]))
    fused = HloComputation.create("vary")
    fused.proto.is_fusion_computation = True
    parameter = HloInstruction.create("parameter", shape, parameter_number=0)
    fused.root = _vary(_Builder(fused, shape), fused.add(parameter), sign, number)
    if computation.module is not None:
        computation.module.add(fused)
    fusion = HloInstruction.create(
        "fusion", shape, [value], called_computations=[fused], fusion_kind="kLoop"
    )
    return computation.add(fusion)


@final
class _Builder:
    """Emits instructions on arrays of one shape."""

    def __init__(self, computation: HloComputation, shape: Shape) -> None:
        self.computation = computation
        self.shape = shape

    def like(self, element_type: PrimitiveType) -> Shape:
        return Shape(element_type, self.shape.dimensions, (), self.shape.minor_to_major)

    def emit(
        self, opcode: str, shape: Shape, *operands: HloInstruction, **fields: Any
    ) -> HloInstruction:
        return self.computation.add(HloInstruction.create(opcode, shape, operands, **fields))

    def fill(self, element_type: PrimitiveType, value: float) -> HloInstruction:
        scalar = constant(self.computation, Shape.array(element_type, ()), value)
        return self.emit("broadcast", self.like(element_type), scalar)


def _vary(b: _Builder, value: HloInstruction, sign: float, number: int) -> HloInstruction:
    element_type = value.shape.element_type
    if element_type in _HALF_TYPES:
        x = b.emit("convert", b.like(PrimitiveType.F32), value)
        varied = _multiply(b, x, sign * _HALF_TYPES[element_type], number)
        return b.emit("convert", value.shape, varied)
    step = VARIATION_ULP * float(np.finfo(element_type.dtype).eps)
    return _multiply(b, value, sign * step, number)


def _multiply(b: _Builder, x: HloInstruction, step: float, number: int) -> HloInstruction:
    """Returns `x * (1 + step)` or `x * (1 - step)`, but small whole numbers as they are."""
    element_type = x.shape.element_type
    up, down = (b.fill(element_type, factor) for factor in (1 + step, 1 - step))
    factor = b.emit("select", x.shape, _toss(b, number), up, down)
    product = b.emit("multiply", x.shape, x, factor)
    if element_type.is_complex:
        return product
    pred = b.like(PrimitiveType.PRED)
    whole = b.emit("floor", x.shape, x)
    is_whole = b.emit("compare", pred, whole, x, comparison_direction="EQ")
    limit = b.fill(element_type, _MAX_WHOLE_NUMBER)
    size = b.emit("abs", x.shape, x)
    is_small = b.emit("compare", pred, size, limit, comparison_direction="LT")
    is_kept = b.emit("and", pred, is_whole, is_small)
    return b.emit("select", x.shape, is_kept, x, product)


def _toss(b: _Builder, number: int) -> HloInstruction:
    """Returns a boolean per position that looks random: a hash of indices and a number."""
    u32 = b.like(PrimitiveType.U32)
    bits = b.fill(PrimitiveType.U32, number * _HASH_FACTOR % 2**32)
    for dimension in range(len(b.shape.dimensions)):
        index = b.emit("iota", u32, dimensions=[dimension])
        bits = b.emit("add", u32, bits, index)
        bits = b.emit("multiply", u32, bits, b.fill(PrimitiveType.U32, _HASH_FACTOR))
        high = b.emit("shift-right-logical", u32, bits, b.fill(PrimitiveType.U32, 15))
        bits = b.emit("xor", u32, bits, high)
    bits = b.emit("multiply", u32, bits, b.fill(PrimitiveType.U32, _HASH_FACTOR))
    half = b.fill(PrimitiveType.U32, 2**31)
    return b.emit("compare", b.like(PrimitiveType.PRED), bits, half, comparison_direction="LT")


def vary_sums(computation: HloComputation, sign: float) -> None:
    """Varies what a computation, and all it calls, adds up: a kernel may do so in another order.

    Sums can be much smaller than what is added; nothing else would show how little is left of them.
    """
    for inner in _computations(computation):
        for number, instruction in enumerate(list(inner.instructions)):
            if not _adds_up(instruction):
                continue
            operand = instruction.operands[0]
            builder = _Builder(inner, operand.shape)
            instruction.replace_operand(0, _vary(builder, operand, sign, number))
        inner.sort()


def _computations(root: HloComputation) -> list[HloComputation]:
    """Returns a computation and what it calls, without what others than XLA's emitters compile."""
    result = [root]
    for computation in result:
        for instruction in computation.instructions:
            if instruction.fusion_kind != _LIBRARY_FUSION:
                new = [c for c in instruction.called_computations if c not in result]
                result.extend(new)
    return result


def _adds_up(instruction: HloInstruction) -> bool:
    if not instruction.shape.is_array or not instruction.operands:
        return False
    first = instruction.operands[0].shape
    if not first.is_array or not is_float(first):
        return False
    if instruction.opcode in ("reduce", "reduce-window"):
        return instruction.to_apply.root.opcode == "add"
    return instruction.opcode == "dot" or instruction.fusion_kind == _LIBRARY_FUSION


def constant(computation: HloComputation, shape: Shape, value: float) -> HloInstruction:
    """Returns a scalar constant."""
    literal = shape.element_type.dtype.type(value)
    return computation.add(HloInstruction.create("constant", shape, literal=literal))


def element(computation: HloComputation, operand: HloInstruction, index: int) -> HloInstruction:
    """Returns a `get-tuple-element`."""
    return computation.add(element_of(operand, index))


def widen(computation: HloComputation, shapes: Sequence[Shape]) -> list[HloInstruction]:
    """Adds elements to the tuple that a loop's body or condition gets; returns the new ones."""
    old = computation.parameters[0]
    shape = Shape.tuple_of([*old.shape.tuple_shapes, *shapes])
    new = HloInstruction.create("parameter", shape, name=old.name, parameter_number=0)
    computation.add(new, before=computation.instructions[0])
    for user in list(old.users):
        if user.opcode == "get-tuple-element":
            user.replace_operand(0, new)
    if old.users or old.is_root:
        old.replace_all_uses_with(_narrow(computation, new, old.shape))
    old.drop_control_edges()
    computation.remove(old)
    first = len(old.shape.tuple_shapes)
    return [element(computation, new, first + i) for i in range(len(shapes))]


def _narrow(computation: HloComputation, whole: HloInstruction, shape: Shape) -> HloInstruction:
    """Returns the first elements of a tuple as a tuple of a shape."""
    values = [element(computation, whole, i) for i in range(len(shape.tuple_shapes))]
    return computation.add(HloInstruction.create("tuple", shape, values))


def move_users(old: HloInstruction, new: HloInstruction) -> list[HloInstruction]:
    """Makes all users of a loop use another one that has its elements, and some more.

    Returns:
        What now stands for the old loop's elements and tuple.
    """
    moved = list(old.users)
    for user in moved:
        if user.opcode == "get-tuple-element":
            user.replace_operand(0, new)
    moved = [user for user in moved if user.opcode == "get-tuple-element"]
    if (old.users or old.is_root) and old.computation is not None:
        whole = _narrow(old.computation, new, old.shape)
        old.replace_all_uses_with(whole)
        moved.append(whole)
    return moved


def root_values(body: HloComputation) -> list[HloInstruction]:
    """Returns what a loop's body makes the elements of its tuple."""
    if body.root.opcode == "tuple":
        return list(body.root.operands)
    count = len(body.root.shape.tuple_shapes)
    return [element(body, body.root, i) for i in range(count)]


def set_root_values(body: HloComputation, values: Sequence[HloInstruction]) -> None:
    """Gives a body another root tuple; what only the old one needed goes."""
    old = body.root
    body.root = body.add(tuple_of(values))
    if old.opcode == "tuple":
        old.move_control_edges_to(body.root)
    body.sort()
    body.remove_dead_instructions()
