"""Copies and control edges without which one value would overwrite another that is still needed.

XLA has put in copies before its hook is called, and looks no further afterwards. Which are needed
depends on what is fused; so `dissolve` takes them out, and this puts in those of the new module:

- What is overwritten (see `aliases`) must be read before, by all that read it, and belong to the
  computation: no constant, no argument of the program or of a branch. If it can be, control edges
  see to that; else a copy is overwritten.
- What a loop's body computes for the next iteration lies where the value of this one was, so that
  must have been read before, too. The kernel that computes the new value may read the old one
  element by element. Otherwise the new value is copied to its place at the end.
- Results of the program and of branches have memory of their own, each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from fuselane.errors import VerificationError
from fuselane.fusion.aliases import Aliases, Effects, Leaf, Overwriting, Path, Use, leaves
from fuselane.fusion.in_place import (
    in_place_operands,
    overwritten_parameters,
    reads_only_updated,
    without_bitcasts,
)
from fuselane.fusion.opcodes import is_elementwise
from fuselane.fusion.traversal import Reachability, sequential_computations
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.tuples import element_of, tuple_of

_BODY, _CALLED, _CONDITION, _OTHER = "body", "called", "condition", "other"
_CONTROL_FLOW: Final = frozenset({"call", "conditional", "while"})


def insert_copies(module: HloModule) -> int:
    """Makes a module safe to be run in place; returns how many copies that takes.

    Raises:
        FuselaneError: if it holds what is not known to be safe.
    """
    effects: dict[HloComputation, Effects] = {}
    roles = _roles(module)
    changeable = set(sequential_computations(module))
    num_copies = 0
    for computation in reachable_computations([module.entry]):
        if computation not in roles:
            continue
        if computation in changeable:
            walk = _Walk(computation, roles[computation], effects)
            walk.run()
            num_copies += walk.num_copies
        effects[computation] = Aliases(computation, effects).effects()
    return num_copies


def _roles(module: HloModule) -> dict[HloComputation, str]:
    """Returns what the computations that run by control flow are to their callers."""
    roles = {module.entry: _OTHER}
    for computation in reversed(reachable_computations([module.entry])):
        if computation not in roles:
            continue
        for instruction in computation.instructions:
            if instruction.opcode not in _CONTROL_FLOW:
                continue
            for callee in instruction.called_computations:
                role = _OTHER
                if instruction.opcode == "call":
                    role = _CALLED
                elif instruction.opcode == "while":
                    role = _BODY if callee is instruction.body else _CONDITION
                if roles.setdefault(callee, role) != role:
                    raise VerificationError(f"{callee.name} is called in different ways.")
    return roles


@final
class _Walk:
    """One computation."""

    def __init__(
        self, computation: HloComputation, role: str, effects: dict[HloComputation, Effects]
    ) -> None:
        self.computation = computation
        self.role = role
        self.aliases = Aliases(computation, effects)
        self.order = Reachability(computation.post_order())
        self.overwriter: dict[Leaf, tuple[HloInstruction, Path | None]] = {}
        """By leaf: what overwrites it, and where in its result."""
        self.claimed: dict[Leaf, HloInstruction] = {}
        """Buffers of results; what first writes to each."""
        self.successor: dict[Path, HloInstruction] = {}
        """For a loop's body: what overwrites each leaf of its parameter at last."""
        self.num_copies = 0

    def run(self) -> None:
        for instruction in self.computation.post_order():
            for overwriting in self.aliases.overwritten(instruction):
                self._admit(instruction, overwriting)
        replaced: dict[Path, HloInstruction] = {}
        root = self.computation.root
        for path in leaves(root.shape) if self.role != _CONDITION else ():
            copy = self._place_in_body(path) if self.role == _BODY else self._place(path)
            if copy is not None:
                replaced[path] = copy
        if replaced:
            self.computation.root = self._rebuild(root, replaced)
            self.computation.remove_dead_instructions()
        self.computation.sort()

    # What is overwritten within the computation.

    def _admit(self, instruction: HloInstruction, overwriting: Overwriting) -> None:
        """Lets an instruction overwrite an operand, or gives it a copy of that to overwrite."""
        place = instruction.operands[overwriting.index], overwriting.path
        leaf = self.aliases.origin(place)
        result = overwriting.result
        index = overwriting.index
        if self._reads_elsewhere(instruction, overwriting):
            index = self._split(instruction, overwriting.index)
        elif self._can_overwrite(instruction, overwriting, leaf):
            self.overwriter[leaf] = instruction, result
            return
        operand = instruction.operands[index]
        copy = self._copy(self._extract(operand, overwriting.path))
        rebuilt = self._rebuild(operand, {overwriting.path: copy})
        instruction.replace_operand(index, rebuilt)
        self.order.connect(rebuilt, instruction)
        self.overwriter[copy, ()] = instruction, result
        if leaf in self.overwriter and not self._let_precede([copy], self.overwriter[leaf][0]):
            raise VerificationError(f"{leaf[0].name} is overwritten before it is copied.")

    def _can_overwrite(
        self, instruction: HloInstruction, overwriting: Overwriting, leaf: Leaf
    ) -> bool:
        if leaf in self.overwriter or not self._is_writable(leaf):
            return False
        uses, in_result = self.aliases.uses(leaf)
        if in_result:
            return False
        readers = []
        for use in uses:
            if use.user is not instruction:
                readers.append(use.user)
            elif (use.index, use.path) != (overwriting.index, overwriting.path):
                return False
        return self._let_precede(readers, instruction)

    def _is_writable(self, leaf: Leaf) -> bool:
        source = leaf[0]
        if source.opcode == "parameter":
            return self.role in (_BODY, _CALLED)
        return source.opcode != "constant"

    def _reads_elsewhere(self, instruction: HloInstruction, overwriting: Overwriting) -> bool:
        """Whether a fusion also reads what it overwrites, and not just where it does."""
        if instruction.opcode != "fusion":
            return False
        buffer = instruction.to_apply.parameters[overwriting.index]
        return not all(
            reads_only_updated(root, buffer)
            for root in _results(instruction.to_apply)
            if buffer in overwritten_parameters(root)
        )

    def _split(self, fusion: HloInstruction, index: int) -> int:
        """Makes what a fusion overwrites an operand of its own, besides what it reads; returns
        which."""
        body = fusion.to_apply
        number, buffer = len(body.parameters), body.parameters[index]
        own = HloInstruction.create(
            "parameter", buffer.shape, name=f"param_{number}", parameter_number=number
        )
        body.add(own)
        for root in _results(body):
            update = without_bitcasts(root)
            for place in in_place_operands(update):
                ways = [update.operands[place]]
                while ways[-1].opcode == "bitcast":
                    ways.append(ways[-1].operands[0])
                if ways.pop() is not buffer:
                    continue
                value = own
                for bitcast in reversed(ways):
                    value = body.add(bitcast.clone([value]))
                update.replace_operand(place, value)
        body.remove_dead_instructions()
        body.sort()
        fusion.replace_operands([*fusion.operands, fusion.operands[index]])
        return number

    # Results.

    def _place(self, path: Path) -> HloInstruction | None:
        """Gives a result of the program, a branch or a call memory of its own; returns a copy."""
        root = self.computation.root
        buffer = self.aliases.buffer((root, path))
        is_parameter = buffer[0].opcode == "parameter" and self.role == _OTHER
        if is_parameter or buffer[0].opcode == "constant" or buffer in self.claimed:
            return self._copy(self._extract(root, path))
        self.claimed[buffer] = buffer[0]
        return None

    def _place_in_body(self, path: Path) -> HloInstruction | None:
        """Puts a new value of a loop where the old one was; returns a copy if it takes one."""
        root, parameter = self.computation.root, self.computation.parameters[0]
        value = self.aliases.origin((root, path))
        uses: list[Use] = []
        last: Leaf | None = (parameter, path)
        while last is not None:
            uses += self.aliases.uses(last)[0]
            if last not in self.overwriter:
                break
            instruction, result = self.overwriter[last]
            last = None if result is None else (instruction, result)
        if value == last:
            return None
        buffer = self.aliases.buffer(value)
        writer = buffer[0]
        if writer.opcode not in ("parameter", "constant") and buffer not in self.claimed:
            others = [use.user for use in uses if not _is_elementwise_in(writer, use)]
            if writer not in others and self._let_precede(others, writer):
                self.claimed[buffer] = self.successor[path] = writer
                return None
        copy = self._copy(self._extract(root, path))
        readers = [use.user for use in uses]
        origin, place = buffer
        if origin is parameter and place in self.successor:
            # The old value of one leaf is the new value of another, which is already gone then.
            end = self.successor[place]
            if end in readers or any(self.order.is_reachable(end, r) for r in readers):
                self._require([copy], end)
                copy = self._copy(copy)
            else:
                self._require([copy], end)
        self._require(readers, copy)
        self.successor[path] = copy
        return copy

    # Edits.

    def _let_precede(self, readers: Iterable[HloInstruction], writer: HloInstruction) -> bool:
        """Makes instructions run before another by control edges; returns False, and does nothing,
        if one depends on it."""
        readers = list(dict.fromkeys(readers))
        if any(self.order.is_reachable(writer, reader) for reader in readers):
            return False
        for reader in readers:
            if not self.order.is_reachable(reader, writer):
                writer.add_control_predecessor(reader)
                self.order.connect(reader, writer)
        return True

    def _require(self, readers: Iterable[HloInstruction], writer: HloInstruction) -> None:
        if not self._let_precede(readers, writer):
            raise VerificationError(f"{writer.name} overwrites what is read after it.")

    def _copy(self, value: HloInstruction) -> HloInstruction:
        self.num_copies += 1
        name = f"copy.{value.name}"
        return self._add(HloInstruction.create("copy", value.shape, [value], name=name))

    def _extract(self, value: HloInstruction, path: Path) -> HloInstruction:
        """Returns an array of a value as an instruction."""
        for index in path:
            if value.opcode == "tuple":
                value = value.operands[index]
            else:
                value = self._add(element_of(value, index))
        return value

    def _rebuild(
        self, value: HloInstruction, replaced: dict[Path, HloInstruction]
    ) -> HloInstruction:
        """Returns a value with other arrays at some paths."""
        if () in replaced:
            return replaced[()]
        elements = []
        for index in range(len(value.shape.tuple_shapes)):
            inner = {path[1:]: new for path, new in replaced.items() if path[0] == index}
            element = self._extract(value, (index,))
            elements.append(self._rebuild(element, inner) if inner else element)
        return self._add(tuple_of(elements))

    def _add(self, instruction: HloInstruction) -> HloInstruction:
        self.computation.add(instruction)
        self.order.add(instruction)
        return instruction


def _is_elementwise_in(writer: HloInstruction, use: Use) -> bool:
    """Whether it is the writer that reads a value, and each element just where it writes."""
    if use.user is not writer or use.path:
        return False
    operand = writer.operands[use.index]
    if operand.shape != writer.shape:
        return False
    if writer.opcode != "fusion":
        return is_elementwise(writer)
    if writer.fusion_kind != "kLoop":
        return False
    reading = {writer.to_apply.parameters[use.index]}
    for member in writer.to_apply.post_order():
        if not any(o in reading for o in member.operands):
            continue
        is_same = (
            member.shape.dimensions == writer.shape.dimensions
            and member.shape.minor_to_major == writer.shape.minor_to_major
        )
        if not is_same or not is_elementwise(member):
            return False
        reading.add(member)
    return True


def _results(body: HloComputation) -> list[HloInstruction]:
    """Returns what a fusion computes."""
    return body.root.operands if body.root.opcode == "tuple" else [body.root]
