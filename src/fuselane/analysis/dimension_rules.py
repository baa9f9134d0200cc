"""What each opcode does to the dimensions of its operands: one rule per opcode.

A rule unites the classes of dimensions that its instruction maps onto each other, marks those along
which it mixes data, and returns the classes of the result's dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from fuselane.analysis.dimension_classes import DimensionClasses, Nodes, is_leaf
from fuselane.analysis.loop_ends import find_ends
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.indexed import Indexed, indexed
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.window import get_window

Rule = Callable[[DimensionClasses, HloInstruction], Nodes]
TupleRule = Callable[[DimensionClasses, HloInstruction], list[Nodes]]


def find_classes(region: HloComputation) -> DimensionClasses:
    """Returns the classes of all values of a region, with what mixes which.

    Raises:
        UnsupportedError: UNSUPPORTED_OPCODE for an opcode without a rule.
    """
    classes = DimensionClasses()
    _assign_classes(classes, region)
    classes.mark_repeated()
    return classes


def _assign_classes(classes: DimensionClasses, computation: HloComputation) -> None:
    """Gives all values of a computation their classes; a tuple parameter has them already.

    Raises:
        UnsupportedError: UNSUPPORTED_OPCODE for an opcode without a rule.
    """
    for instruction in computation.instructions:
        assign_class(classes, instruction)


def assign_class(classes: DimensionClasses, instruction: HloInstruction) -> None:
    """Gives one value its classes, and unites those of its operands, which have theirs.

    Raises:
        UnsupportedError: UNSUPPORTED_OPCODE for an opcode without a rule.
    """
    opcode = instruction.opcode
    if opcode in ELEMENTWISE_OPCODES:
        classes.nodes[instruction] = _elementwise(classes, instruction)
    elif is_leaf(instruction):
        classes.nodes[instruction] = classes.fresh(instruction.shape)
    elif opcode == "parameter":
        if instruction.shape.is_array:
            classes.nodes[instruction] = classes.fresh(instruction.shape)
    elif opcode == "get-tuple-element":
        elements = classes.elements[instruction.operands[0]]
        classes.nodes[instruction] = elements[instruction.tuple_index]
    elif opcode in _TUPLE_RULES:
        _add_result(classes, instruction, _TUPLE_RULES[opcode](classes, instruction))
    elif opcode != "tuple":
        rule = _RULES.get(opcode)
        if rule is None:
            raise refuse(Reason.UNSUPPORTED_OPCODE, instruction)
        classes.nodes[instruction] = rule(classes, instruction)


def _add_result(
    classes: DimensionClasses, instruction: HloInstruction, elements: list[Nodes]
) -> None:
    if instruction.shape.is_tuple:
        classes.elements[instruction] = elements
    else:
        (classes.nodes[instruction],) = elements


# Elements, one for one.


def _elementwise(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    if not instruction.shape.dimensions:
        return ()
    arrays = [i for i, operand in enumerate(instruction.operands) if operand.shape.dimensions]
    first = classes.use(instruction, arrays[0])
    for index in arrays[1:]:
        classes.unite(first, classes.use(instruction, index))
    return first


def _broadcast(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    result = list(classes.fresh(instruction.shape))
    operand = classes.use(instruction, 0)
    for node, dimension in zip(operand, instruction.dimensions, strict=True):
        result[dimension] = node
    return tuple(result)


def _transpose(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    operand = classes.use(instruction, 0)
    return tuple(operand[d] for d in instruction.dimensions)


def _reshape(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    operand = classes.use(instruction, 0)
    result = list(classes.fresh(instruction.shape))
    source, target = instruction.operands[0].shape.dimensions, instruction.shape.dimensions
    mapped = dict(matching_dimensions(source, target))
    for dimension, node in enumerate(operand):
        if dimension in mapped:
            result[mapped[dimension]] = node
        else:
            classes.mark(node, instruction, "merges or splits it")
    kept = set(mapped.values())
    for dimension, node in enumerate(result):
        if dimension not in kept:
            classes.mark(node, instruction, "merges or splits it")
    return tuple(result)


# Parts, and arrays made of parts.


def _pad(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    touched = [d for d, edges in enumerate(instruction.padding) if any(edges)]
    return _rearranging(classes, instruction, touched)


def _along_its_dimensions(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    return _rearranging(classes, instruction, instruction.dimensions)


def _rearranging(
    classes: DimensionClasses, instruction: HloInstruction, touched: Sequence[int]
) -> Nodes:
    """Handles opcodes whose result has the operands' dimensions, some of them rearranged."""
    result = classes.fresh(instruction.shape)
    for index, operand in enumerate(instruction.operands):
        if operand.shape.rank != len(result) or operand.shape.rank == 0:
            continue
        for dimension, node in enumerate(classes.use(instruction, index)):
            if dimension in touched:
                classes.mark(node, instruction, "moves data along it")
            else:
                classes.unite((result[dimension],), (node,))
    for dimension in touched:
        classes.mark(result[dimension], instruction, "moves data along it")
    return result


def _copy(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    """Handles what is made known to all lanes; see `fuselane.lanes.sharing`."""
    for node in classes.use(instruction, 0):
        classes.mark(node, instruction, "shares it")
    return classes.fresh(instruction.shape)


def _slice(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    operand = classes.use(instruction, 0)
    result = list(classes.fresh(instruction.shape))
    sizes = instruction.operands[0].shape.dimensions
    for dimension, size in enumerate(instruction.shape.dimensions):
        if size == sizes[dimension]:
            result[dimension] = operand[dimension]
        else:
            classes.mark(operand[dimension], instruction, "takes a part of it")
            classes.mark(result[dimension], instruction, "takes a part of it")
    return tuple(result)


def _dynamic_update_slice(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    result = classes.use(instruction, 0)
    update = classes.use(instruction, 1)
    sizes = instruction.operands[1].shape.dimensions
    for dimension, size in enumerate(instruction.shape.dimensions):
        if size == sizes[dimension]:
            classes.unite((result[dimension],), (update[dimension],))
        else:
            classes.mark(result[dimension], instruction, "updates a part of it")
            classes.mark(update[dimension], instruction, "updates a part of it")
    return result


# Sums of products.


def _dot(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    numbers = DotDimensions.of(instruction)
    left, right = classes.use(instruction, 0), classes.use(instruction, 1)
    for ours, theirs in zip(numbers.left_batch, numbers.right_batch, strict=True):
        classes.unite((left[ours],), (right[theirs],))
    for nodes, contracting in (
        (left, numbers.left_contracting),
        (right, numbers.right_contracting),
    ):
        for dimension in contracting:
            classes.mark(nodes[dimension], instruction, "sums products along it")
    for ours, theirs in zip(numbers.left_contracting, numbers.right_contracting, strict=True):
        classes.unite((left[ours],), (right[theirs],))
    return (
        *(left[d] for d in (*numbers.left_batch, *numbers.left_free)),
        *(right[d] for d in numbers.right_free),
    )


def _gather(classes: DimensionClasses, instruction: HloInstruction) -> Nodes:
    result = classes.fresh(instruction.shape)
    operand, indices = classes.use(instruction, 0), classes.use(instruction, 1)
    where = indexed(instruction)
    for number, position in enumerate(where.batch_positions):
        dimension = number + (number >= where.vector_dimension)
        classes.unite((result[position],), (indices[dimension],))
    _indexed(classes, instruction, where, operand, indices, result)
    return result


def _indexed(
    classes: DimensionClasses,
    instruction: HloInstruction,
    where: Indexed,
    operand: Nodes,
    indices: Nodes,
    values: Nodes,
) -> None:
    """Unites the dimensions that an indexed array has in common with indices and windows."""
    if where.vector_dimension < len(indices):
        classes.mark(indices[where.vector_dimension], instruction, "takes it as an index")
    for dimension, along in where.batching.items():
        classes.unite((operand[dimension],), (indices[along],))
    for dimension, position in zip(where.window, where.window_positions, strict=True):
        is_whole = where.window_sizes[dimension] == where.sizes[dimension]
        if is_whole and dimension not in where.starts:
            classes.unite((operand[dimension],), (values[position],))
        else:
            classes.mark(values[position], instruction, "takes a part of it")
    for dimension, size in enumerate(where.sizes):
        is_whole = where.window_sizes[dimension] == size and dimension not in where.starts
        if dimension not in where.batching and not is_whole:
            classes.mark(operand[dimension], instruction, "indexes it")


# Several results.


def _reduce(classes: DimensionClasses, instruction: HloInstruction) -> list[Nodes]:
    arrays = len(instruction.operands) // 2
    operand = classes.use(instruction, 0)
    for index in range(1, arrays):
        classes.unite(operand, classes.use(instruction, index))
    reduced = set(instruction.dimensions)
    for dimension in reduced:
        if instruction in classes.ends:
            classes.mark_end(operand[dimension], instruction)
        else:
            classes.mark(operand[dimension], instruction, "reduces it")
    kept = tuple(node for d, node in enumerate(operand) if d not in reduced)
    return [kept] * arrays


def _reduce_window(classes: DimensionClasses, instruction: HloInstruction) -> list[Nodes]:
    arrays = len(instruction.operands) // 2
    operand = classes.use(instruction, 0)
    for index in range(1, arrays):
        classes.unite(operand, classes.use(instruction, index))
    shape = instruction.shape.tuple_shapes[0] if instruction.shape.is_tuple else instruction.shape
    result = list(classes.fresh(shape))
    for dimension, window in enumerate(get_window(instruction)):
        if window.is_trivial:
            result[dimension] = operand[dimension]
        else:
            classes.mark(operand[dimension], instruction, "reduces windows of it")
            classes.mark(result[dimension], instruction, "reduces windows of it")
    return [tuple(result)] * arrays


def _scatter(classes: DimensionClasses, instruction: HloInstruction) -> list[Nodes]:
    count = len(instruction.operands) // 2
    arrays = [classes.use(instruction, index) for index in range(count)]
    indices = classes.use(instruction, count)
    where = indexed(instruction)
    for index, array in enumerate(arrays):
        classes.unite(arrays[0], array)
        updates = classes.use(instruction, count + 1 + index)
        _indexed(classes, instruction, where, array, indices, updates)
        for number, position in enumerate(where.batch_positions):
            dimension = number + (number >= where.vector_dimension)
            classes.unite((indices[dimension],), (updates[position],))
            if dimension not in where.batching.values():
                classes.mark(indices[dimension], instruction, "brings what lies along it together")
    return arrays


def _sort(classes: DimensionClasses, instruction: HloInstruction) -> list[Nodes]:
    operand = classes.use(instruction, 0)
    for index in range(1, len(instruction.operands)):
        classes.unite(operand, classes.use(instruction, index))
    classes.mark(operand[instruction.dimensions[0]], instruction, "sorts along it")
    return [operand] * len(instruction.operands)


def _while(classes: DimensionClasses, loop: HloInstruction) -> list[Nodes]:
    elements = [classes.fresh(shape) for shape in loop.shape.tuple_shapes]
    classes.elements[loop] = elements
    _unite_elements(classes, elements, loop.operands[0])
    classes.ends.update((reduction, loop) for reduction in find_ends(loop.condition))
    for computation in (loop.body, loop.condition):
        classes.elements[computation.parameters[0]] = elements
        _assign_classes(classes, computation)
    _unite_elements(classes, elements, loop.body.root)
    return elements


def _conditional(classes: DimensionClasses, instruction: HloInstruction) -> list[Nodes]:
    elements = [classes.fresh(shape) for shape in instruction.shape.tuple_shapes]
    branches = instruction.called_computations
    for branch, argument in zip(branches, instruction.operands[1:], strict=True):
        passed = [classes.use(argument, index) for index in range(len(argument.operands))]
        classes.elements[branch.parameters[0]] = passed
        _assign_classes(classes, branch)
        _unite_elements(classes, elements, branch.root)
    return elements


def _unite_elements(
    classes: DimensionClasses, elements: Iterable[Nodes], tuple_instruction: HloInstruction
) -> None:
    for index, nodes in enumerate(elements):
        classes.unite(nodes, classes.use(tuple_instruction, index))


def matching_dimensions(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the pairs of dimensions that a reshape carries over one to one.

    Dimensions of size one are passed over; what is merged or split is not among the pairs.

    Example: (4, 1, 6, 5) -> (4, 3, 2, 5) yields (0, 0) and (3, 3).
    """
    left = [d for d, size in enumerate(source) if size != 1]
    right = [d for d, size in enumerate(target) if size != 1]
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = source[left[i]], target[right[j]]
        if first == second:
            yield left[i], right[j]
        while first != second:
            if first < second:
                i += 1
                first *= source[left[i]]
            else:
                j += 1
                second *= target[right[j]]
        i += 1
        j += 1


_RULES: Final[Mapping[str, Rule]] = {
    "broadcast": _broadcast,
    "concatenate": _along_its_dimensions,
    "copy": _copy,
    "dot": _dot,
    "dynamic-slice": _slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _along_its_dimensions,
    "slice": _slice,
    "transpose": _transpose,
}

_TUPLE_RULES: Final[Mapping[str, TupleRule]] = {
    "conditional": _conditional,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "sort": _sort,
    "while": _while,
}
