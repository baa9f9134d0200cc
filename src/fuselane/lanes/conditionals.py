"""Conditionals in normal form: selects where the branches are cheap, else branches with tuples.

    %c = (f32[8], s32[]) conditional(%p, %a, %b), branch_computations={%sine, %double}
->  %t0 = (f32[8]) tuple(%x)   %t1 = (f32[8]) tuple(%x)
    %c = (f32[8]) conditional(%p, %t0, %t1)            what no branch changes goes around it

An array of which a branch replaces a part, and that the others leave alone, goes around it too:
what comes out of the branches is the part, new or as it was, and where it belongs.

    true branch:  dynamic-update-slice(%buffer, %row, %i)     false branch:  %buffer
->  dynamic-update-slice(%buffer, %r, %j) with %r, %j from the branches; the false one gives
    dynamic-slice(%buffer, 0), 0

Numerics: bitwise-equal. An index out of range takes the last branch, as XLA has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes.builder import ComputationBuilder
from fuselane.lanes.constants import is_constant, transplant
from fuselane.lanes.values import Inline, Value, array_of

_MAX_SELECTED_COST: Final = 40.0
_CHEAP_OPCODES: Final = ELEMENTWISE_OPCODES | {
    "bitcast",
    "broadcast",
    "call",
    "constant",
    "copy",
    "dynamic-slice",
    "dynamic-update-slice",
    "fusion",
    "get-tuple-element",
    "iota",
    "parameter",
    "reshape",
    "slice",
    "transpose",
    "tuple",
}


def lower_conditional(
    builder: ComputationBuilder,
    instruction: HloInstruction,
    operands: Sequence[Value],
    inline: Inline,
) -> Value:
    """Lowers a conditional.

    Args:
        builder: Where.
        instruction: A `conditional` of the user's module.
        operands: What its operands became: the predicate or index, and an argument per branch.
        inline: How to emit a branch.
    """
    choice, *arguments = operands
    branches = instruction.called_computations
    if _are_cheap(branches):
        values = [
            inline(branch, (argument,), builder)
            for branch, argument in zip(branches, arguments, strict=True)
        ]
        return _select(builder, array_of(choice), values)
    emitted = [
        _Branch(branch, argument, inline)
        for branch, argument in zip(branches, arguments, strict=True)
    ]
    return _Conditional(builder, instruction, array_of(choice), emitted).emit()


def _are_cheap(branches: Sequence[HloComputation]) -> bool:
    """Whether running all branches costs no more than choosing one."""
    cost = 0.0
    for computation in reachable_computations(branches):
        for instruction in computation.instructions:
            if instruction.opcode not in _CHEAP_OPCODES:
                return False
            cost += OPCODE_COST.get(instruction.opcode, 0.0)
    return cost <= _MAX_SELECTED_COST


# Selects.


def _select(builder: ComputationBuilder, choice: HloInstruction, values: Sequence[Value]) -> Value:
    if choice.shape.element_type is PrimitiveType.PRED:
        return _choose(builder, choice, *values)
    result = values[-1]
    for number in reversed(range(len(values) - 1)):
        limit = builder.scalar(number, choice.shape.element_type, choice)
        is_here = builder.compare("EQ", choice, limit, origin=choice)
        result = _choose(builder, is_here, values[number], result)
    return result


def _choose(
    builder: ComputationBuilder, predicate: HloInstruction, then: Value, otherwise: Value
) -> Value:
    """Returns `then if predicate else otherwise`, element by element of tuples."""
    if then is otherwise or then is None or otherwise is None:
        return then if then is otherwise else None
    if isinstance(then, HloInstruction):
        return _choose_array(builder, predicate, then, array_of(otherwise))
    assert isinstance(otherwise, tuple), "all branches have results of one shape"
    return tuple(
        _choose(builder, predicate, left, right)
        for left, right in zip(then, otherwise, strict=True)
    )


def _choose_array(
    builder: ComputationBuilder,
    predicate: HloInstruction,
    then: HloInstruction,
    otherwise: HloInstruction,
) -> HloInstruction:
    if then is otherwise:
        return then
    for updated, other in ((then, otherwise), (otherwise, then)):
        if _is_update_of(updated, other):
            array = _choose_array(builder, predicate, *_in_order(updated is then, updated, other))
            sizes = updated.operands[1].shape.dimensions
            old = builder.dynamic_slice(array, updated.operands[2:], sizes)
            parts = _in_order(updated is then, updated, old, part=True)
            part = _choose_array(builder, predicate, *parts)
            starts = updated.operands[2:]
            return builder.dynamic_update_slice(array, part, starts, origin=updated)
    return builder.emit("select", then.shape, (predicate, then, otherwise))


def _is_update_of(value: HloInstruction, array: HloInstruction) -> bool:
    """Whether a value is an array with parts of it replaced."""
    while value.opcode == "dynamic-update-slice":
        value = value.operands[0]
        if value is array:
            return True
    return False


def _in_order(
    is_first: bool, updated: HloInstruction, other: HloInstruction, *, part: bool = False
) -> tuple[HloInstruction, HloInstruction]:
    """Returns the array or the part of an update, and the other value, in the branches' order."""
    mine = updated.operands[1 if part else 0]
    return (mine, other) if is_first else (other, mine)


# Branches.


@final
class _Branch:
    """One branch in normal form, with its argument as a tuple."""

    def __init__(self, branch: HloComputation, argument: Value, inline: Inline) -> None:
        self.builder = ComputationBuilder(branch.name)
        self.passed = list(dict.fromkeys(_passed(argument)))
        shape = Shape.tuple_of([value.shape for value in self.passed])
        self.parameter = self.builder.parameter(0, shape, branch.parameters[0])
        self.value = inline(branch, (self._rebuild(argument),), self.builder)

    def _rebuild(self, argument: Value) -> Value:
        """Returns the argument as the branch sees it; constants are made in the branch."""
        if argument is None:
            return None
        if isinstance(argument, tuple):
            return tuple(map(self._rebuild, argument))
        if is_constant(argument):
            return transplant(argument, self.builder)
        return self.builder.element(self.parameter, self.passed.index(argument))

    def outside(self, value: HloInstruction) -> HloInstruction | None:
        """Returns the value outside that the branch passes on, or None if it is not just that."""
        if value.opcode == "get-tuple-element" and value.operands[0] is self.parameter:
            return self.passed[value.tuple_index]
        return None


def _passed(argument: Value) -> list[HloInstruction]:
    if argument is None:
        return []
    if isinstance(argument, tuple):
        return [value for element in argument for value in _passed(element)]
    return [] if is_constant(argument) else [argument]


@final
class _Conditional:
    """A conditional that stays one."""

    def __init__(
        self,
        builder: ComputationBuilder,
        instruction: HloInstruction,
        choice: HloInstruction,
        branches: Sequence[_Branch],
    ) -> None:
        self.builder = builder
        self.instruction = instruction
        self.choice = choice
        self.branches = branches
        self.roots: list[list[HloInstruction]] = [[] for _ in branches]
        self.results: list[Callable[[HloInstruction], HloInstruction]] = []

    def emit(self) -> Value:
        """Emits it and returns its value."""
        pick = self._collect([branch.value for branch in self.branches])
        computations = tuple(
            branch.builder.finish(branch.builder.make_tuple(root))
            for branch, root in zip(self.branches, self.roots, strict=True)
        )
        if not self.roots[0]:
            return pick(self.choice)
        return pick(
            self.builder.emit(
                "conditional",
                Shape.tuple_of([value.shape for value in self.roots[0]]),
                (self.choice, *(self.builder.make_tuple(b.passed) for b in self.branches)),
                origin=self.instruction,
                called=computations,
            )
        )

    def _collect(self, values: Sequence[Value]) -> Callable[[HloInstruction], Value]:
        """Makes values results; returns what finds them once the conditional is there."""
        if any(value is None for value in values):
            return lambda _: None
        if isinstance(values[0], tuple):
            tuples = [value for value in values if isinstance(value, tuple)]
            parts = [self._collect(list(elements)) for elements in zip(*tuples, strict=True)]
            return lambda conditional: tuple(part(conditional) for part in parts)
        return self._collect_array([array_of(value) for value in values])

    def _collect_array(
        self, values: Sequence[HloInstruction]
    ) -> Callable[[HloInstruction], HloInstruction]:
        outside = self._common([b.outside(v) for b, v in zip(self.branches, values, strict=True)])
        if outside is not None:
            return lambda _: outside
        update = self._collect_update(values)
        return self._add_result(values) if update is None else update

    def _common(self, values: Sequence[HloInstruction | None]) -> HloInstruction | None:
        return values[0] if all(value is values[0] for value in values) else None

    def _add_result(
        self, values: Sequence[HloInstruction]
    ) -> Callable[[HloInstruction], HloInstruction]:
        number = len(self.roots[0])
        for root, value in zip(self.roots, values, strict=True):
            root.append(value)
        return lambda conditional: self.builder.element(conditional, number)

    def _collect_update(
        self, values: Sequence[HloInstruction]
    ) -> Callable[[HloInstruction], HloInstruction] | None:
        """Makes the part that branches replace of one array a result; None if they do more."""
        updates = [value for value in values if value.opcode == "dynamic-update-slice"]
        arrays = [v.operands[0] if v in updates else v for v in values]
        array = self._common([b.outside(a) for b, a in zip(self.branches, arrays, strict=True)])
        if not updates or array is None or len({str(u.operands[1].shape) for u in updates}) > 1:
            return None
        parts: list[HloInstruction] = []
        starts: list[list[HloInstruction]] = []
        for branch, value, old in zip(self.branches, values, arrays, strict=True):
            if value in updates:
                parts.append(value.operands[1])
                starts.append(list(value.operands[2:]))
            else:
                like = updates[0].operands
                zeros = [branch.builder.scalar(0, s.shape.element_type, s) for s in like[2:]]
                starts.append(zeros)
                sizes = like[1].shape.dimensions
                parts.append(branch.builder.dynamic_slice(old, starts[-1], sizes))
        part = self._add_result(parts)
        places = [self._add_result(list(place)) for place in zip(*starts, strict=True)]

        def write(conditional: HloInstruction) -> HloInstruction:
            at = (part(conditional), [place(conditional) for place in places])
            return self.builder.dynamic_update_slice(array, *at, origin=updates[0])

        return write
