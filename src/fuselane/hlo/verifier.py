"""Checks of what every pass may rely on and must keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fuselane.errors import VerificationError
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape

_MANY: Final = 16
"""Users among which one is not searched for one by one."""

_SHAPED: Final = frozenset({"call", "fusion", "get-tuple-element", "tuple", "while"})
"""Opcodes of instructions whose shapes are known from their operands' or what they call."""


def verify(module: HloModule) -> None:
    """Checks a module and all its computations.

    Raises:
        VerificationError: naming the first rule broken: the rules of `verify_computation`; ids
            and names unique in the module; entry and called computations in the module; no
            recursion. A schedule is not looked at: writing the module brings it up to date.
    """
    _check_unique([c.id for c in module.computations], f"computation ids of {module.name}")
    _check_unique([c.name for c in module.computations], f"computation names of {module.name}")
    members = set(module.computations)
    _require(module.entry in members, f"The entry of {module.name} is not in the module.")
    for computation in reachable_computations(module.computations):
        _require(
            computation in members and computation.module is module,
            f"Computation {computation.name} is called but is not in module {module.name}.",
        )
    for computation in module.computations:
        verify_computation(computation)
    instructions = [i for computation in module.computations for i in computation.instructions]
    _check_unique([i.id for i in instructions], f"instruction ids of {module.name}")
    _check_unique([i.name for i in instructions], f"instruction names of {module.name}")


def verify_computation(computation: HloComputation) -> None:
    """Checks one computation; it need not be in a module.

    Raises:
        VerificationError: naming the first rule broken. Operands and control predecessors are in
            the computation and come before the instruction; users and control successors mirror
            them; ids are unique; the root is present; parameters are numbered 0, 1, ...; shapes of
            parameters, tuples, get-tuple-elements, whiles, calls and fusions agree, layouts aside.
    """
    seen: set[HloInstruction] = set()
    many = {i: frozenset(i.users) for i in computation.instructions if len(i.users) > _MANY}
    num_read = num_users = 0
    for instruction in computation.instructions:
        _check_edges(computation, instruction, seen, many)
        seen.add(instruction)
        operands = instruction.operands
        num_read += len(set(operands)) if len(operands) > 1 else len(operands)
        num_users += len(instruction.users)
    _require(computation.root in seen, f"The root of {computation.name} is not in it.")
    _check_unique(
        [i.id for i in computation.instructions], f"instruction ids of {computation.name}"
    )
    _check_parameters(computation)
    for instruction in computation.instructions:
        if num_users > num_read:  # all that read something are listed as users; and some others are
            _check_users(instruction, seen)
        if instruction.control_successors:
            _check_successors(instruction, seen)
        if instruction.opcode in _SHAPED:
            _check_shapes(instruction)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise VerificationError(sentence)


def _check_unique(keys: Sequence[int] | Sequence[str], what: str) -> None:
    if len(set(keys)) == len(keys):
        return
    seen: set[int | str] = set()
    for key in keys:
        if key in seen:
            raise VerificationError(f"The {what} are not unique: {key} occurs twice.")
        seen.add(key)


def _check_edges(
    computation: HloComputation,
    instruction: HloInstruction,
    seen: set[HloInstruction],
    many: Mapping[HloInstruction, Collection[HloInstruction]],
) -> None:
    """Checks what an instruction needs; `many` has the users of those with many of them."""
    name = instruction.name
    if instruction.computation is not computation:
        raise VerificationError(f"{name} is listed in {computation.name} but belongs elsewhere.")
    for operand in instruction.operands:
        if operand not in seen:
            raise VerificationError(
                f"Operand {operand.name} of {name} is not in front of it in {computation.name}."
            )
        users = operand.users
        if instruction not in (many[operand] if len(users) > _MANY else users):
            raise VerificationError(f"{name} is missing among the users of {operand.name}.")
    if not instruction.control_predecessors:
        return
    for predecessor in instruction.control_predecessors:
        if predecessor not in seen:
            raise VerificationError(
                f"Control predecessor {predecessor.name} of {name} is not in front of it."
            )
        if instruction not in predecessor.control_successors:
            raise VerificationError(f"{name} is missing among {predecessor.name}'s successors.")


def _check_users(instruction: HloInstruction, members: set[HloInstruction]) -> None:
    """Checks that what is listed as a user is one, and listed once."""
    for user in instruction.users:
        if user not in members or instruction not in user.operands:
            raise VerificationError(f"{user.name} is listed as a user of {instruction.name}.")
    if len(set(instruction.users)) != len(instruction.users):
        raise VerificationError(f"{instruction.name} lists a user twice.")


def _check_successors(instruction: HloInstruction, members: set[HloInstruction]) -> None:
    for successor in instruction.control_successors:
        if successor not in members or instruction not in successor.control_predecessors:
            raise VerificationError(f"{successor.name} is listed as after {instruction.name}.")


def _check_parameters(computation: HloComputation) -> None:
    present = [i for i in computation.instructions if i.opcode == "parameter"]
    _require(
        set(present) == set(computation.parameters) and len(present) == len(computation.parameters),
        f"The parameters listed for {computation.name} are not those in it.",
    )
    for number, parameter in enumerate(computation.parameters):
        if parameter.parameter_number != number:
            raise VerificationError(f"{computation.name} has no parameter number {number}.")


def _check_shapes(instruction: HloInstruction) -> None:
    match instruction.opcode:
        case "tuple":
            shape = Shape.tuple_of([operand.shape for operand in instruction.operands])
            _require_shape(instruction, shape, "its operands")
        case "get-tuple-element":
            _check_get_tuple_element(instruction)
        case "while":
            _check_while(instruction)
        case "call" | "fusion":
            _check_signature(instruction, instruction.to_apply, instruction.shape)


def _check_get_tuple_element(instruction: HloInstruction) -> None:
    _require(len(instruction.operands) == 1, f"{instruction.name} must have one operand.")
    elements = instruction.operands[0].shape.tuple_shapes
    index = instruction.tuple_index
    _require(index < len(elements), f"{instruction.name} takes element {index} of {len(elements)}.")
    _require_shape(instruction, elements[index], "the tuple's element")


def _check_while(instruction: HloInstruction) -> None:
    _require(len(instruction.operands) == 1, f"{instruction.name} must have one operand.")
    _require_shape(instruction, instruction.operands[0].shape, "its operand")
    _check_signature(instruction, instruction.body, instruction.shape)
    condition = instruction.condition
    _check_signature(instruction, condition, None)
    _require(
        str(condition.root.shape) == "pred[]", f"Condition {condition.name} does not return pred[]."
    )


def _check_signature(
    instruction: HloInstruction, callee: HloComputation, result: Shape | None
) -> None:
    """Checks that `callee` takes the operands of `instruction` and returns `result`."""
    _check_same(
        [operand.shape for operand in instruction.operands],
        [parameter.shape for parameter in callee.parameters],
        f"The parameters of {callee.name} do not fit the operands of {instruction.name}.",
    )
    if result is not None:
        sentence = f"The root of {callee.name} does not fit the shape of {instruction.name}."
        _check_same([result], [callee.root.shape], sentence)


def _check_same(left: Sequence[Shape], right: Sequence[Shape], sentence: str) -> None:
    same = len(left) == len(right) and all(
        a is b or a.is_compatible(b) for a, b in zip(left, right, strict=True)
    )
    _require(same, sentence)


def _require_shape(instruction: HloInstruction, shape: Shape, source: str) -> None:
    if instruction.shape is not shape and not instruction.shape.is_compatible(shape):
        raise VerificationError(
            f"{instruction.name} has shape {instruction.shape}, but {source} say {shape}."
        )
