"""Loops that run ahead of what no kernel can do, in branches that are rarely taken.

    while (c(s)) {                              while (c(s)) {
        if (p(s)) print(s)                          if (p(s)) print(s)
        s = f(s)                                    s = f(s)
    }                                    ->         while (c(s) && !p(s)) s = f(s)
                                                }

The loop inside holds no callback, so it may become a kernel; XLA runs the first step and those in
which one of the branches is taken, as it did before. Progress bars, prints every so often and
checks for errors look like that; so does what a library does every hundredth step, such as an
eigendecomposition or a spectrum. Branches with any of that are loud here, others quiet. A condition
may stand within a branch of another; a branch that is not to be taken is left out of the loop
inside, tokens with it.

Does not handle: what is loud outside of conditionals; conditionals with several branches that may
be quiet and others that are loud, if what they return is needed.
Numerics: bitwise-equal, but for what becomes of the loop inside.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple, final

from fuselane.analysis.gain import FEW_TRIPS
from fuselane.analysis.opcodes import FREE_OPCODES
from fuselane.analysis.support import LEFT_OPCODES
from fuselane.analysis.while_loops import get_known_trip_count, is_invariant
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.hlo.tuples import element_of
from fuselane.lanes.factorisations import is_small_factorisation
from fuselane.lanes.periods import find_period
from fuselane.lanes.sorting import TOP_K_TARGET

_PRED: Final = Shape.array(PrimitiveType.PRED, ())
_CALLBACK: Final = "callback"
"""Part of the targets of all custom calls by which JAX calls Python."""
_LOUD_OPCODES: Final = frozenset(LEFT_OPCODES) - FREE_OPCODES


@final
@dataclass(frozen=True, slots=True)
class Ahead:
    """How a loop can run ahead inside another.

    Attributes:
        kept: Which elements of the state of the one around it carries.
        called: Its body and its condition.
        calls_back: Whether the steps that are left to XLA call back.
        quiet_steps: How many steps lie between those by all appearances; few, if nothing tells.
    """

    kept: Sequence[int]
    called: Sequence[HloComputation]
    calls_back: bool
    quiet_steps: float


def find_ahead(loop: HloInstruction, *, rare: bool = False) -> Ahead | None:
    """Returns how a loop can run ahead inside a `while` with loud branches, which is not changed.

    Args:
        loop: A `while` of a module, with a body that nothing else calls.
        rare: Whether branches that seem to be taken rarely count as loud, whatever they hold.
    Returns:
        None if the loop is loud in every step or in none, or if what it goes on with hangs on the
        branches.
    """
    body, condition = loop.body, loop.condition
    if not any(instruction.opcode == "conditional" for instruction in body.instructions):
        return None
    loudness = _Loudness([body, condition], _find_rare(body) if rare else ())
    is_loud_at_times = body in loudness.ever and body not in loudness.always
    if body.root.opcode != "tuple" or not is_loud_at_times or condition in loudness.ever:
        return None
    kept = [i for i, shape in enumerate(loop.shape.tuple_shapes) if not _is_token(shape)]
    try:
        called = [_quiet_body(loop, kept, loudness), _condition(loop, kept, loudness)]
    except _LoudError:
        return None
    computations = reachable_computations([body])
    calls_back = any(_is_effect(i) for c in computations for i in c.instructions)
    quiet_steps = _count_quiet_steps(body, loudness, calls_back)
    return Ahead(kept, called, calls_back, quiet_steps)


def _find_rare(body: HloComputation) -> list[HloComputation]:
    """Returns the branches that a body seems to take only now and then."""
    return [
        branch
        for conditional in body.instructions
        if conditional.opcode == "conditional"
        for number, branch in enumerate(conditional.called_computations)
        if find_period(conditional, number) is not None
    ]


def _count_quiet_steps(body: HloComputation, loudness: _Loudness, calls_back: bool) -> float:
    """Returns how many steps lie between two loud ones; callbacks, which take long, are rare if
    nothing is known of them."""
    share = 0.0
    for conditional, number in loudness.branches(body):
        period = find_period(conditional, number)
        if period is None:
            return FEW_TRIPS if calls_back else 1.0
        share += 1 / period
    return max(1 / share - 1, 1.0)


def insert_ahead(loop: HloInstruction, ahead: Ahead) -> HloInstruction:
    """Makes a loop's body go on with one that runs ahead, behind all else: that changes memory in
    place.

    XLA must evaluate the condition of the loop around it from now on, see `forget_trip_count`.
    Returns the `while` inside.
    """
    body = loop.body
    root, (parameter,) = body.root, body.parameters
    values = [root.operands[index] for index in ahead.kept]
    last = [i for i in body.instructions if set(i.users) <= {root} and i is not root]
    start = body.add(HloInstruction.create("tuple", ahead.called[0].root.shape, values))
    inside = HloInstruction.create(
        "while", start.shape, [start], called_computations=ahead.called, metadata=loop.metadata
    )
    body.add(inside).name = loop.name
    for instruction in last:
        if instruction not in (*values, parameter):
            inside.add_control_predecessor(instruction)
    for position, index in enumerate(ahead.kept):
        if not is_invariant(inside, position):
            root.replace_operand(index, body.add(element_of(inside, position)))
    body.sort()
    return inside


def undo_ahead(inside: HloInstruction) -> None:
    """Takes a loop that `insert_ahead` put in, and that stays with XLA, out again."""
    body, start = inside.computation, inside.operands[0]
    assert body is not None, "it is in the module"
    for element in list(inside.users):
        element.replace_all_uses_with(start.operands[element.tuple_index])
        body.remove(element)
    inside.drop_control_edges()
    body.remove(inside)
    body.remove(start)


def forget_trip_count(loop: HloInstruction) -> None:
    """Makes XLA look at a loop's condition, instead of at how often it would have run."""
    if get_known_trip_count(loop) is not None:
        config = json.loads(loop.backend_config)
        del config["known_trip_count"]
        loop.proto.backend_config = json.dumps(config).encode()


def _quiet_body(loop: HloInstruction, kept: list[int], loudness: _Loudness) -> HloComputation:
    """Returns what a body computes where it takes no loud branch."""
    copier, scope = _Copier(loop.body, kept), _Scope(loop.body, loudness)
    roots = [copier.copy(_Value(loop.body.root.operands[i], scope)) for i in kept]
    root = HloInstruction.create("tuple", copier.made.parameters[0].shape, roots)
    copier.made.root = copier.made.add(root)
    return copier.made


def _condition(loop: HloInstruction, kept: list[int], loudness: _Loudness) -> HloComputation:
    """Returns the condition of a loop that is to end in front of a loud step."""
    copier = _Copier(loop.condition, kept)
    goes_on = copier.copy(_Value(loop.condition.root, _Scope(loop.condition, loudness)))
    is_quiet = copier.add("not", [_find_loud(copier, _Scope(loop.body, loudness))])
    copier.made.root = copier.add("and", [goes_on, is_quiet])
    return copier.made


def _find_loud(copier: _Copier, scope: _Scope) -> HloInstruction:
    """Returns whether a computation takes a loud branch."""
    taken = []
    for conditional, number in scope.loudness.branches(scope.computation):
        index, branches = conditional.operands[0], conditional.called_computations
        is_taken = _is_taken(copier, copier.copy(_Value(index, scope)), number, len(branches))
        if branches[number] not in scope.loudness.always:
            inner = _find_loud(copier, scope.branch(conditional, number))
            is_taken = copier.add("and", [is_taken, inner])
        taken.append(is_taken)
    return reduce(lambda left, right: copier.add("or", [left, right]), taken)


def _is_taken(
    copier: _Copier, index: HloInstruction, number: int, num_branches: int
) -> HloInstruction:
    """Returns whether a conditional takes one of its branches; the last is for all other
    indices."""
    if index.shape.element_type is PrimitiveType.PRED:
        return copier.add("not", [index]) if number else index
    if number < num_branches - 1:
        return copier.compare(index, "EQ", number)
    below = copier.compare(index, "LT", 0)
    return copier.add("or", [below, copier.compare(index, "GE", number)])


def _is_for_xla(instruction: HloInstruction) -> bool:
    """Whether no kernel can hold an instruction."""
    opcode = instruction.opcode
    if opcode == "custom-call":
        is_top_k = instruction.custom_call_target == TOP_K_TARGET
        return not (is_top_k or is_small_factorisation(instruction))
    return opcode in _LOUD_OPCODES or _is_effect(instruction)


def _is_effect(instruction: HloInstruction) -> bool:
    """Whether an instruction calls back, or does something else besides what it computes."""
    if instruction.called_computations:
        return False
    return instruction.has_side_effect or _CALLBACK in instruction.custom_call_target


def _is_token(shape: Shape) -> bool:
    return shape.element_type is PrimitiveType.TOKEN


class _LoudError(Exception):
    """What is asked for hangs on a loud branch."""


@final
class _Loudness:
    """Where in a loop there is what stays with XLA.

    Attributes:
        ever: The computations that hold any of it, or call any that does.
        always: Those that do so whatever their conditionals decide.

    Args:
        roots: A body and a condition.
        loud: Computations that are loud whatever they hold.
    """

    def __init__(self, roots: Sequence[HloComputation], loud: Collection[HloComputation]) -> None:
        self.ever: set[HloComputation] = set()
        self.always: set[HloComputation] = set()
        for computation in reachable_computations(roots):  # callees first
            callers = [i for i in computation.instructions if self.is_called(i)]
            if (
                computation in loud
                or any(caller.opcode != "conditional" for caller in callers)
                or any(map(_is_for_xla, computation.instructions))
            ):
                self.always.add(computation)
            if callers or computation in self.always:
                self.ever.add(computation)

    def is_called(self, instruction: HloInstruction) -> bool:
        """Whether an instruction calls anything loud."""
        return any(callee in self.ever for callee in instruction.called_computations)

    def branches(self, computation: HloComputation) -> list[tuple[HloInstruction, int]]:
        """Returns the loud branches of a computation's conditionals, with their numbers."""
        return [
            (instruction, number)
            for instruction in computation.instructions
            if instruction.opcode == "conditional"
            for number, branch in enumerate(instruction.called_computations)
            if branch in self.ever
        ]


@final
@dataclass(frozen=True, slots=True)
class _Scope:
    """A computation, and what its parameter stands for.

    Attributes:
        computation: A body or condition, or a branch of a conditional.
        loudness: Of the loop.
        argument: What the branch is given; None for the others, which are given the state.
    """

    computation: HloComputation
    loudness: _Loudness
    argument: _Value | None = None

    def branch(self, conditional: HloInstruction, number: int) -> _Scope:
        """Returns a branch of one of its conditionals."""
        argument = _Value(conditional.operands[number + 1], self)
        return _Scope(conditional.called_computations[number], self.loudness, argument)


class _Value(NamedTuple):
    """An instruction of the user's module, and where that is evaluated."""

    instruction: HloInstruction
    scope: _Scope


@final
class _Copier:
    """Copies into a new computation of a loop's state what values depend on.

    Args:
        original: The body or condition that is copied from.
        kept: The elements of the state that are carried.
    """

    def __init__(self, original: HloComputation, kept: list[int]) -> None:
        (parameter,) = original.parameters
        shape = Shape.tuple_of([parameter.shape.tuple_shapes[i] for i in kept])
        self.made = HloComputation.create(f"{original.name}.ahead")
        self._state = self.made.add(HloInstruction.parameter(0, shape, parameter.name))
        self._positions = {index: position for position, index in enumerate(kept)}
        self._is_whole = shape == parameter.shape
        self._copies: dict[_Value, HloInstruction] = {}

    def add(self, opcode: str, operands: list[HloInstruction]) -> HloInstruction:
        """Adds an operation on booleans."""
        return self.made.add(HloInstruction.create(opcode, _PRED, operands))

    def compare(self, index: HloInstruction, direction: str, number: int) -> HloInstruction:
        """Adds the comparison of the index of a branch with a number."""
        literal = index.shape.element_type.dtype.type(number)
        constant = self.made.add(HloInstruction.create("constant", index.shape, literal=literal))
        return self.made.add(
            HloInstruction.create(
                "compare", _PRED, [index, constant], comparison_direction=direction
            )
        )

    def copy(self, value: _Value) -> HloInstruction:
        """Returns the copy of a value."""
        value = _resolve(value)
        stack = [value]
        while stack:
            top = stack[-1]
            needed = self._operands(top)
            missing = [operand for operand in needed if operand not in self._copies]
            if missing:
                stack += missing
                continue
            stack.pop()
            if top not in self._copies:
                self._copies[top] = self._copy(top, [self._copies[o] for o in needed])
        return self._copies[value]

    def _operands(self, value: _Value) -> list[_Value]:
        instruction, scope = value
        operands = [_resolve(_Value(operand, scope)) for operand in instruction.operands]
        return [] if _is_element(instruction, operands) else operands

    def _copy(self, value: _Value, operands: list[HloInstruction]) -> HloInstruction:
        instruction = value.instruction
        if instruction.opcode == "get-tuple-element" and not operands:
            return self.made.add(element_of(self._state, self._position(instruction.tuple_index)))
        if instruction.opcode == "parameter" and self._is_whole:
            return self._state
        if instruction.opcode == "parameter" or _is_token(instruction.shape):
            raise _LoudError
        return self.made.add(instruction.clone(operands))

    def _position(self, index: int) -> int:
        if index not in self._positions:
            raise _LoudError
        return self._positions[index]


def _is_element(instruction: HloInstruction, operands: list[_Value]) -> bool:
    """Whether an instruction takes an element of the state, given what its operands are."""
    is_state = bool(operands) and operands[0].instruction.opcode == "parameter"
    return is_state and instruction.opcode == "get-tuple-element"


def _resolve(value: _Value) -> _Value:
    """Returns what a value is the same as: no parameter of a branch, no element of a `tuple`, and
    nothing of a conditional with loud branches, but what its quiet one makes."""
    while True:
        source = _source(value)
        if source is None:
            return value
        value = source


def _source(value: _Value) -> _Value | None:
    instruction, scope = value
    match instruction.opcode:
        case "parameter":
            return scope.argument
        case "conditional":
            return _quiet_result(instruction, scope)
        case "get-tuple-element":
            whole = _resolve(_Value(instruction.operands[0], scope))
            if whole.instruction.opcode == "tuple":
                return _Value(whole.instruction.operands[instruction.tuple_index], whole.scope)
    return None


def _quiet_result(conditional: HloInstruction, scope: _Scope) -> _Value | None:
    """Returns the result of the only branch that may be taken quietly; None if none is loud."""
    if not scope.loudness.is_called(conditional):
        return None
    branches = conditional.called_computations
    quiet = [n for n, branch in enumerate(branches) if branch not in scope.loudness.always]
    if len(quiet) != 1:
        raise _LoudError
    branch = scope.branch(conditional, quiet[0])
    return _Value(branch.computation.root, branch)
