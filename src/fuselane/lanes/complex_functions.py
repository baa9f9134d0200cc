"""What an instruction applies to complex numbers, as a function of real ones.

A reduce of pairs has two parameters for each of the user's, a comparator's come in pairs as before:

    to_apply={ add(p0, p1) }, c64     ->  { tuple(add(p0, p2), add(p1, p3)) }, f32
    to_apply={ compare(p0, p1) }          p0, p1: real parts;  p2, p3: imaginary parts

Where the results don't need each other's parameters, each is a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.applied import apply_to_arrays
from fuselane.lanes.builder import ComputationBuilder, array_shape
from fuselane.lanes.complex_parts import NUM_PARTS, component_shape, has_complex, join, split
from fuselane.lanes.values import Inline, leaves_of


def take_apart(instruction: HloInstruction, inline: Inline) -> HloComputation:
    """Returns what a reduce or a scatter applies as a function of real numbers.

    Args:
        instruction: One of the user's module.
        inline: How to emit what it applies.
    """
    original = instruction.to_apply
    return _take_apart(original, inline, lambda i, part: _number(original, i) + part)


def take_apart_comparator(sort: HloInstruction, inline: Inline) -> HloComputation:
    """Returns the same for a sort's comparator, which has two parameters for each operand."""
    original = sort.to_apply
    return _take_apart(
        original, inline, lambda i, part: _number(original, i - i % 2) + 2 * part + i % 2
    )


def _number(original: HloComputation, parameter: int) -> int:
    """Returns where a parameter's first part comes among those of all parameters."""
    before = original.parameters[:parameter]
    return sum(NUM_PARTS if has_complex(p.shape) else 1 for p in before)


def _take_apart(
    original: HloComputation, inline: Inline, number: Callable[[int, int], int]
) -> HloComputation:
    """Returns a function of complex numbers as one of real numbers.

    Args:
        original: The user's.
        inline: How to emit it.
        number: Returns the number of the parameter for a part of the user's parameter.
    """
    builder = ComputationBuilder(original.name)
    arguments = []
    for i, parameter in enumerate(original.parameters):
        scalar = array_shape(component_shape(parameter.shape).element_type, ())
        count = NUM_PARTS if has_complex(parameter.shape) else 1
        parts = [builder.parameter(number(i, k), scalar, parameter) for k in range(count)]
        is_pair = count == NUM_PARTS
        arguments.append(join(builder, parts[0], parts[1], parameter) if is_pair else parts[0])
    value = inline(original, arguments, builder)
    shape = original.root.shape
    leaves = [
        part
        for leaf, element in zip(leaves_of(value), shape.tuple_shapes or (shape,), strict=True)
        for part in (split(builder, leaf) if has_complex(element) else (leaf,))
    ]
    return builder.finish(leaves[0] if len(leaves) == 1 else builder.make_tuple(leaves))


def separate(applied: HloComputation) -> list[HloComputation] | None:
    """Returns one function for each result, or None if they need each other's parameters."""
    roots = applied.root.operands if applied.root.opcode == "tuple" else [applied.root]
    count = len(roots)
    result = []
    for k, root in enumerate(roots):
        if not _parameters_of(root) <= {k, count + k}:
            return None
        builder = ComputationBuilder(f"{applied.name}.{k}")
        scalar = root.shape
        left, right = (builder.parameter(i, scalar, root) for i in range(2))
        arguments = [left if i == k else right for i in range(2 * count)]
        result.append(builder.finish(apply_to_arrays(builder, root, arguments)))
    return result


def are_alike(one: HloComputation, other: HloComputation) -> bool:
    """Whether two functions do the same."""
    return _form(one) == _form(other)


def _parameters_of(root: HloInstruction) -> set[int]:
    """Returns the numbers of the parameters a value is made from."""
    if root.opcode == "parameter":
        return {root.parameter_number}
    return set().union(*map(_parameters_of, root.operands))


def _form(function: HloComputation) -> list[tuple[object, ...]]:
    """Returns what is equal for functions that do the same."""
    numbers = {instruction: i for i, instruction in enumerate(function.instructions)}
    return [
        (
            i.opcode,
            i.parameter_number,
            i.proto.literal.SerializeToString(deterministic=True),
            *(numbers[operand] for operand in i.operands),
        )
        for i in function.instructions
    ]
