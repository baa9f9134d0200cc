"""Which values of a computation lie in the same memory, whatever XLA finds out about who reads it.

A tuple is the memory of its elements, a bitcast that of its operand. What is overwritten changes
hands: a dynamic-update-slice, a scatter, a fusion that ends in one, a custom call that says so, and
a loop for all that it does not hand through, have their result in the memory of an operand.

A leaf is an array in the result of an instruction: the instruction, and the indices that lead to
the array through tuples. Its origin is the leaf that its contents were first written to.

Source: HloDataflowAnalysis and HloAliasAnalysis of 2026.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from fuselane.errors import FuselaneError
from fuselane.fusion.in_place import overwritten_parameters
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

Path = tuple[int, ...]
Leaf = tuple[HloInstruction, Path]

_PASSING: Final = frozenset({"add-dependency", "bitcast", "domain", "opt-barrier"})
"""Opcodes whose result is their first operand."""

_NOT_KNOWN: Final = (
    "async-start",
    "async-update",
    "async-done",
    "copy-start",
    "copy-done",
    "recv",
    "recv-done",
    "send",
    "send-done",
)


@final
@dataclass(frozen=True, slots=True)
class Use:
    """An instruction that reads a leaf, and where among its operands it finds it."""

    user: HloInstruction
    index: int
    path: Path


@final
@dataclass(frozen=True, slots=True)
class Overwriting:
    """An array of an operand that an instruction overwrites.

    Attributes:
        index: Which operand.
        path: Where in it.
        result: Where in the instruction's result it is found again, or None.
    """

    index: int
    path: Path
    result: Path | None


@final
@dataclass(slots=True)
class Effects:
    """What a computation does with the memory of its parameters.

    Attributes:
        written: Leaves of parameters that it overwrites, by parameter number and path.
        passed: By leaf of the result, the leaf of a parameter that it is, overwritten or not.
    """

    written: set[Path] = field(default_factory=set)
    passed: dict[Path, Path] = field(default_factory=dict)


@final
class Aliases:
    """The values of one computation.

    Raises:
        FuselaneError: for an instruction of which it is not known what memory it uses.
    """

    def __init__(
        self, computation: HloComputation, effects: Mapping[HloComputation, Effects]
    ) -> None:
        self.computation = computation
        self._effects = effects
        for instruction in computation.instructions:
            if instruction.opcode in _NOT_KNOWN:
                raise FuselaneError(f"{instruction.name}, a {instruction.opcode}, is not handled.")

    def origin(self, leaf: Leaf) -> Leaf:
        """Returns the leaf whose contents, in whose memory, a leaf is."""
        instruction, path = leaf
        while True:
            source = self._source(instruction, path)
            if source is None:
                return instruction, path
            instruction, path = source

    def buffer(self, leaf: Leaf) -> Leaf:
        """Returns the leaf that was first in the memory of a leaf."""
        while True:
            instruction, path = self.origin(leaf)
            if instruction.opcode == "while":
                leaf = instruction.operands[0], path
                continue
            before = [o for o in self.overwritten(instruction) if o.result == path]
            if not before:
                return instruction, path
            leaf = instruction.operands[before[0].index], before[0].path

    def uses(self, leaf: Leaf) -> tuple[list[Use], list[Path]]:
        """Returns who reads the contents of a leaf, and where they are in the result."""
        uses: list[Use] = []
        in_result: list[Path] = []
        stack, seen = [leaf], {leaf}
        while stack:
            instruction, path = stack.pop()
            if instruction.is_root:
                in_result.append(path)
            for user in instruction.users:
                if user.opcode == "get-tuple-element" and path[:1] != (user.tuple_index,):
                    continue
                for index, operand in enumerate(user.operands):
                    if operand is not instruction:
                        continue
                    if not _is_alias(user):
                        uses.append(Use(user, index, path))
                    for same in self._targets(user, index, path):
                        if (user, same) not in seen:
                            seen.add((user, same))
                            stack.append((user, same))
        return uses, in_result

    def overwritten(self, instruction: HloInstruction) -> list[Overwriting]:
        """Returns what an instruction overwrites."""
        match instruction.opcode:
            case "dynamic-update-slice":
                return [Overwriting(0, (), ())]
            case "scatter":
                results = range(len(instruction.operands) // 2)
                is_tuple = instruction.shape.is_tuple
                return [Overwriting(k, (), (k,) if is_tuple else ()) for k in results]
            case "fusion" if instruction.fusion_kind != "kCustom":
                return list(_overwritten_by_fusion(instruction))
            case "custom-call":
                return [
                    Overwriting(
                        alias.operand_index,
                        tuple(alias.operand_shape_index),
                        tuple(alias.output_shape_index),
                    )
                    for alias in instruction.proto.output_operand_aliasing
                ]
            case "while":
                return [
                    Overwriting(0, path, path)
                    for path in leaves(instruction.shape)
                    if not self._is_passed(instruction, path)
                ]
            case "call":
                effects = self._effects[instruction.to_apply]
                places = {param: result for result, param in effects.passed.items()}
                return [
                    Overwriting(path[0], path[1:], places.get(path))
                    for path in sorted(effects.written)
                ]
            case _:
                return []

    def effects(self) -> Effects:
        """Returns what the computation does with its parameters' memory."""
        effects = Effects()
        for instruction in self.computation.instructions:
            for overwriting in self.overwritten(instruction):
                leaf = instruction.operands[overwriting.index], overwriting.path
                source, path = self.buffer(leaf)
                if source.opcode == "parameter":
                    effects.written.add((source.parameter_number, *path))
        root = self.computation.root
        for result in leaves(root.shape):
            source, path = self.buffer((root, result))
            if source.opcode == "parameter":
                effects.passed[result] = (source.parameter_number, *path)
        return effects

    def _source(self, instruction: HloInstruction, path: Path) -> Leaf | None:
        """Returns the operand's leaf that a leaf is; None if the instruction writes it."""
        opcode = instruction.opcode
        if opcode == "tuple":
            return instruction.operands[path[0]], path[1:]
        if opcode == "get-tuple-element":
            return instruction.operands[0], (instruction.tuple_index, *path)
        if opcode in _PASSING:
            return instruction.operands[0], path
        if opcode == "while" and self._is_passed(instruction, path):
            return instruction.operands[0], path
        if opcode == "call":
            effects = self._effects[instruction.to_apply]
            place = effects.passed.get(path)
            if place is not None and place not in effects.written:
                return instruction.operands[place[0]], place[1:]
        return None

    def _targets(self, user: HloInstruction, index: int, path: Path) -> list[Path]:
        """Returns the leaves of a user that are a leaf of an operand."""
        opcode = user.opcode
        if opcode == "tuple":
            return [(index, *path)]
        if opcode == "get-tuple-element":
            return [path[1:]]
        if opcode in _PASSING:
            return [path] if index == 0 else []
        if opcode == "while":
            return [path] if self._is_passed(user, path) else []
        if opcode == "call":
            effects, place = self._effects[user.to_apply], (index, *path)
            if place in effects.written:
                return []
            return [result for result, param in effects.passed.items() if param == place]
        return []

    def _is_passed(self, loop: HloInstruction, path: Path) -> bool:
        """Whether a loop hands a leaf through untouched."""
        effects = self._effects[loop.body]
        place = (0, *path)
        return effects.passed.get(path) == place and place not in effects.written


def leaves(shape: Shape) -> Iterator[Path]:
    """Yields the paths of a shape's arrays."""
    if shape.is_array:
        yield ()
    for index, element in enumerate(shape.tuple_shapes):
        for path in leaves(element):
            yield (index, *path)


def _is_alias(instruction: HloInstruction) -> bool:
    """Whether an instruction only gives its operands other names."""
    opcode = instruction.opcode
    return opcode in ("tuple", "get-tuple-element") or opcode in _PASSING


def _overwritten_by_fusion(fusion: HloInstruction) -> Iterator[Overwriting]:
    root = fusion.to_apply.root
    roots = root.operands if root.opcode == "tuple" else [root]
    for number, member in enumerate(roots):
        for inner, parameter in enumerate(overwritten_parameters(member)):
            path = (inner,) if member.shape.is_tuple else ()
            place = (number, *path) if root.opcode == "tuple" else path
            yield Overwriting(parameter.parameter_number, (), place)
