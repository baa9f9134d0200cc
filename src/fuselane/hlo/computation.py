"""HLO computations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from fuselane.errors import VerificationError
from fuselane.hlo.instruction import SIDE_EFFECT_OPCODES, HloInstruction
from fuselane.hlo.ordering import post_order
from fuselane.hlo.proto import HloComputationProto, Message, ProgramShapeProto
from fuselane.hlo.shape import Shape

if TYPE_CHECKING:
    from fuselane.hlo.module import HloModule

_detached_ids: Final = itertools.count(1)
_Signature = tuple[tuple[Shape, ...], Shape]
_Fact = TypeVar("_Fact")


@final
class HloComputation:
    """A list of instructions with parameters and a root; equality is identity.

    Attributes:
        id: Unique in the module.
        name: Unique in the module.
        instructions: Operands before users; `sort` restores that where an edit broke it.
        parameters: Its parameter instructions by number.
        module: The module it is in, or None.
        proto: The HloComputationProto without its instructions; the fields `name`, `id`, `root_id`
            and `program_shape` are brought up to date when a module is written.
    """

    __slots__ = (
        "__weakref__",
        "_facts",
        "_has_dropped",
        "_instructions",
        "_parameters",
        "_post_order",
        "_postponed",
        "_root",
        "_signature_in_proto",
        "id",
        "module",
        "name",
        "proto",
    )

    def __init__(self, proto: Message, id: int, name: str) -> None:
        self.id = id
        self.name = name
        self._instructions: list[HloInstruction] = []
        self._parameters: list[HloInstruction] = []
        self.module: HloModule | None = None
        self.proto: Message = proto
        self._root: HloInstruction | None = None
        self._post_order: list[HloInstruction] | None = None
        self._facts: dict[Callable[..., Any], Any] = {}
        self._has_dropped = False
        self._postponed: Callable[[], None] | None = None
        self._signature_in_proto: _Signature | None = None

    @classmethod
    def create(cls, name: str) -> HloComputation:
        """Returns an empty computation that is in no module."""
        return cls(HloComputationProto(), next(_detached_ids), name)

    @classmethod
    def from_proto(cls, proto: Message) -> HloComputation:
        """Returns the computation of a HloComputationProto, whose instructions it takes over.

        Called computations are not connected yet; `connect_callees` does.

        Raises:
            VerificationError: if an operand, control predecessor or the root is not there or comes
                too late.
        """
        self = cls(proto, proto.id, proto.name)
        by_id: dict[int, HloInstruction] = {}
        messages = proto.instructions[:]
        for message in messages:
            instruction = _read_instruction(message, by_id)
            instruction.computation = self
            by_id[instruction.id] = instruction
        if len(by_id) != len(messages):
            raise VerificationError(f"Computation {self.name} has two instructions with one id.")
        self._instructions.extend(by_id.values())
        parameters = [i for i in self._instructions if i.opcode == "parameter"]
        self._parameters.extend(sorted(parameters, key=_parameter_number))
        self._root = by_id.get(proto.root_id)
        if self._root is None:
            raise VerificationError(f"Computation {self.name} has no root.")
        self._signature_in_proto = self._signature()
        proto.ClearField("instructions")
        return self

    def connect_callees(self, computations: Mapping[int, HloComputation]) -> None:
        """Finds, by id, the computations that the instructions of a freshly read one call."""
        for instruction in self._instructions:
            ids = instruction.origin.called_computation_ids
            if not ids:
                continue
            try:
                instruction.called_computations = tuple([computations[i] for i in ids])
            except KeyError:
                raise VerificationError(
                    f"{instruction.name} calls a computation that is not there."
                ) from None

    def write_to(self, message: Message) -> None:
        """Writes the computation, instructions in post order, into an empty HloComputationProto."""
        proto = self.proto
        proto.name = self.name
        proto.id = self.id
        proto.root_id = self.root.id
        signature = self._signature()
        if signature != self._signature_in_proto:
            proto.program_shape.CopyFrom(self.program_shape())
            self._signature_in_proto = signature
        message.MergeFrom(proto)
        for instruction in self.post_order():
            instruction.write_to(message.instructions.add())

    def program_shape(self) -> Message:
        """Returns a new ProgramShapeProto with the shapes of parameters and root."""
        return ProgramShapeProto(
            parameters=[parameter.shape.to_proto() for parameter in self.parameters],
            result=self.root.shape.to_proto(),
            parameter_names=[parameter.name for parameter in self.parameters],
        )

    def has_changed_signature(self) -> bool:
        """Whether parameters or root hold other elements than those the computation was read with.

        An order in memory does not count: of an entry computation that is agreed with who calls it.
        """
        before = self._signature_in_proto
        if before is None:
            return True
        (were, root), (are, new_root) = before, self._signature()
        return (
            len(were) != len(are)
            or not root.is_compatible(new_root)
            or not all(a.is_compatible(b) for a, b in zip(were, are, strict=True))
        )

    def _signature(self) -> _Signature:
        return tuple(parameter.shape for parameter in self.parameters), self.root.shape

    def __repr__(self) -> str:
        return f"computation {self.name}"

    @property
    def instructions(self) -> list[HloInstruction]:
        """See above."""
        if self._postponed is not None:
            self.catch_up()
        if self._has_dropped:
            self._has_dropped = False
            self._instructions[:] = [i for i in self._instructions if i.computation is self]
        return self._instructions

    @property
    def parameters(self) -> list[HloInstruction]:
        """See above."""
        if self._postponed is not None:
            self.catch_up()
        return self._parameters

    def postpone(self, edit: Callable[[], None]) -> None:
        """Has an edit made once anybody looks at the computation; the root stays."""
        self.catch_up()
        self._postponed = edit

    def abandon(self) -> None:
        """Drops the edit that was postponed, if any."""
        self._postponed = None

    def catch_up(self) -> None:
        """Makes the edit that was postponed, if any."""
        edit, self._postponed = self._postponed, None
        if edit is not None:
            edit()

    @property
    def is_fusion(self) -> bool:
        """Whether it is the body of a fusion instruction."""
        result: bool = self.proto.is_fusion_computation
        return result

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value is the result. Raises VerificationError before it is set."""
        if self._postponed is not None:
            self.catch_up()
        if self._root is None:
            raise VerificationError(f"Computation {self.name} has no root.")
        return self._root

    @root.setter
    def root(self, instruction: HloInstruction) -> None:
        self._root = instruction
        self._facts.clear()

    def peek_root(self) -> HloInstruction:
        """Returns the root without making a postponed edit, which leaves it the root, and its
        opcode and shape; what it reads may not be there yet."""
        return self.root if self._root is None else self._root

    def has_root(self, instruction: HloInstruction) -> bool:
        """Whether `instruction` is the root; False before one is set."""
        return self._root is instruction

    def ends_in(self, opcodes: Collection[str]) -> bool:
        """Whether the root has one of some opcodes; that no postponed edit changes."""
        return self._root is not None and self._root.opcode in opcodes

    def post_order(self) -> list[HloInstruction]:
        """Returns the instructions, operands and control predecessors before their users.

        The order of `instructions` is kept where it is such an order. Raises VerificationError for
        a cycle.
        """
        if self._postponed is not None:
            self.catch_up()
        if self._post_order is None:
            has_edges = any(map(_control_predecessors, self.instructions))
            dependencies = _dependencies if has_edges else _operands
            self._post_order = post_order(self.instructions, dependencies)
        return self._post_order.copy()

    def note_edit(self) -> None:
        """Takes note that an instruction was added, removed, or got another operand."""
        self._post_order = None
        if self._facts:
            self._facts.clear()

    def forget_facts(self) -> None:
        """Drops what functions said of the computation, see `fact`; it was not edited."""
        self._facts.clear()

    def fact(self, find_out: Callable[[HloComputation], _Fact]) -> _Fact:
        """Returns what a function says of the computation; remembered until that is edited.

        What was returned may be changed by who is about to edit the computation.
        """
        if self._postponed is not None:
            self.catch_up()
        if find_out not in self._facts:
            self._facts[find_out] = find_out(self)
        fact: _Fact = self._facts[find_out]
        return fact

    def remember(self, find_out: Callable[[HloComputation], _Fact], fact: _Fact) -> None:
        """Takes what a function would say of the computation as it is now; see `fact`."""
        self._facts[find_out] = fact

    def sort(self) -> None:
        """Puts `instructions` into post order."""
        self.instructions[:] = self.post_order()

    def add(
        self, instruction: HloInstruction, before: HloInstruction | None = None
    ) -> HloInstruction:
        """Adds a detached instruction at the end, or in front of another, and returns it.

        In a module it gets an id and, where its name is taken, a name of its own.

        Raises:
            VerificationError: if it is in a computation already.
        """
        if instruction.computation is not None:
            raise VerificationError(
                f"{instruction.name} is already in {instruction.computation.name}."
            )
        if self.module is not None:
            self.module.adopt([instruction], self)
        self.catch_up()
        instruction.computation = self
        self.note_edit()
        if before is None:
            self._instructions.append(instruction)
        else:
            self.instructions.insert(self.instructions.index(before), instruction)
        if instruction.opcode == "parameter":
            self.parameters.append(instruction)
            if instruction.parameter_number != len(self.parameters) - 1:
                self.parameters.sort(key=_parameter_number)
        return instruction

    def remove(self, instruction: HloInstruction) -> None:
        """Removes an instruction nobody needs.

        Raises:
            VerificationError: if it is not in here, is the root, has users or is a control
                predecessor.
        """
        self.catch_up()
        self._check_removable(instruction)
        del self._instructions[_find_from_end(self._instructions, instruction)]
        for operand in dict.fromkeys(instruction.operands):
            operand.users.remove(instruction)
        self._detach(instruction)

    def replace_all(self, by: Mapping[HloInstruction, HloInstruction]) -> None:
        """Removes instructions whose users use others instead, in time linear in the computation.

        Args:
            by: What takes the place of each, and stays; it has the same shape. None of what is
                replaced is the root or has control edges.
        """
        self.instructions[:] = [i for i in self.instructions if i not in by]
        for replaced in by:
            _let_go(replaced)
        for instruction in self.instructions:
            instruction.users = []
        for instruction in self.instructions:
            instruction.set_operands([by.get(o, o) for o in instruction.operands])
            for operand in instruction.operands:
                users = operand.users
                if not users or users[-1] is not instruction:
                    users.append(instruction)
        self.note_edit()

    def empty(self) -> None:
        """Drops all that is in a computation which nobody needs any more."""
        self.abandon()
        for instruction in self._instructions:
            _let_go(instruction)
        self._instructions, self._parameters, self._root = [], [], None
        self.note_edit()

    def drop_parameter(self, parameter: HloInstruction) -> None:
        """Removes a parameter nobody reads, and takes one off the numbers of those behind it.

        It is not looked for among the instructions before these are asked for.
        """
        number = parameter.parameter_number
        del self.parameters[number]
        for behind in self.parameters[number:]:
            behind.parameter_number -= 1
        parameter.computation = None
        self._has_dropped = True
        self.note_edit()

    def extend(
        self, parameters: Sequence[HloInstruction], instructions: Sequence[HloInstruction]
    ) -> None:
        """Adds detached parameters, numbered behind those there are, and then others, as `add`."""
        added = [*parameters, *instructions]
        if self.module is not None:
            self.module.adopt(added, self)
        for instruction in added:
            instruction.computation = self
        self.parameters.extend(parameters)
        self._instructions += added
        self.note_edit()

    def refill(
        self,
        parameters: Sequence[HloInstruction],
        num_first: int,
        members: Sequence[HloInstruction],
        added: Sequence[HloInstruction],
    ) -> None:
        """Gives a computation other contents; the root is the last of `members`.

        Args:
            parameters: New ones.
            num_first: How many of them are listed in front of the members, the others behind.
            members: What it holds already, or new instructions.
            added: New instructions, listed behind those.
        """
        if self.module is not None:
            kept = set(members)
            self.module.free_names([i for i in self._instructions if i not in kept])
            new = [member for member in members if member.computation is None]
            self.module.adopt([*parameters, *new, *added], self)
        self._instructions = [*parameters[:num_first], *members, *parameters[num_first:], *added]
        for instruction in self._instructions:
            instruction.computation = self
        self._parameters = list(parameters)
        self._has_dropped = False
        self.root = members[-1]
        self.note_edit()

    def receive(self, instructions: Sequence[HloInstruction]) -> None:
        """Adds instructions that another computation of the module gives up; they keep their
        names."""
        if self.module is not None:
            self.module.renumber(instructions, self)
        for instruction in instructions:
            instruction.computation = self
        self.catch_up()
        self._instructions += instructions
        self.note_edit()

    def remove_dead_instructions(self) -> int:
        """Removes what neither root nor side effects need, parameters excepted; returns how many.

        Takes time linear in the number of instructions.
        """
        dead = self._dead_instructions()
        if not dead:
            return 0
        gone = [instruction for instruction in self.instructions if instruction in dead]
        self.instructions[:] = [i for i in self.instructions if i not in dead]
        for value in {operand: None for i in gone for operand in i.operands}:
            value.users[:] = [user for user in value.users if user not in dead]
        for instruction in reversed(gone):
            instruction.operands.clear()
            instruction.drop_control_edges()
            instruction.computation = None
        self.note_edit()
        return len(gone)

    def _dead_instructions(self) -> set[HloInstruction]:
        """Returns what nothing needs, and what then is not needed any more."""
        dead: set[HloInstruction] = set()
        needed: dict[HloInstruction, int] = {}
        """What something dead needed, and how many instructions that stay do."""
        stack = [i for i in self.instructions if not (i.users or i.control_successors)]
        while stack:
            instruction = stack.pop()
            if instruction is self._root or _is_kept(instruction):
                continue
            dead.add(instruction)
            others = instruction.operands
            if len(others) > 1 or instruction.control_predecessors:
                others = [*dict.fromkeys(others), *instruction.control_predecessors]
            for other in others:
                if other not in needed:
                    needed[other] = len(other.users) + len(other.control_successors)
                needed[other] -= 1
                if not needed[other]:
                    stack.append(other)
        return dead

    def _check_removable(self, instruction: HloInstruction) -> None:
        if instruction.computation is not self:
            raise VerificationError(f"{instruction.name} is not in computation {self.name}.")
        if instruction.is_root or instruction.users or instruction.control_successors:
            raise VerificationError(f"{instruction.name} is still needed in {self.name}.")

    def _detach(self, instruction: HloInstruction) -> None:
        """Takes leave of an instruction that its operands no longer have among their users."""
        instruction.operands.clear()
        instruction.drop_control_edges()
        instruction.computation = None
        self.note_edit()
        if instruction.opcode == "parameter":
            self.parameters.remove(instruction)


def _let_go(instruction: HloInstruction) -> None:
    """Makes an instruction that is removed name no others, nor its computation: they are free then
    as soon as nobody has them, without Python's collector, which goes through everything."""
    instruction.operands, instruction.users = [], []
    instruction.computation = None


def _find_from_end(instructions: list[HloInstruction], instruction: HloInstruction) -> int:
    """Returns the position of an instruction, in time proportional to its distance from the end."""
    size, looked_at = len(instructions), 0
    while looked_at < size:
        looked_at = 4 * looked_at + 16
        tail = instructions[-looked_at:]
        if instruction in tail:
            return size - len(tail) + tail.index(instruction)
    raise VerificationError(f"{instruction.name} is not listed in its computation.")


def instructions_with_branches(computation: HloComputation) -> Iterator[HloInstruction]:
    """Yields the instructions of a computation, and those of the branches of its conditionals."""
    for instruction in computation.instructions:
        yield instruction
        if instruction.opcode == "conditional":
            for branch in instruction.called_computations:
                yield from instructions_with_branches(branch)


def reachable_computations(roots: Iterable[HloComputation]) -> list[HloComputation]:
    """Returns `roots` and all they call, directly or not, callees first."""
    return post_order(roots, _known_callees)


def _known_callees(computation: HloComputation) -> list[HloComputation]:
    return computation.fact(_callees)


def _callees(computation: HloComputation) -> list[HloComputation]:
    return list(itertools.chain.from_iterable(map(_called, computation.instructions)))


def _dependencies(instruction: HloInstruction) -> list[HloInstruction]:
    if instruction.control_predecessors:
        return [*instruction.operands, *instruction.control_predecessors]
    return instruction.operands


_operands: Final[Callable[[HloInstruction], list[HloInstruction]]] = attrgetter("operands")
_control_predecessors: Final = attrgetter("control_predecessors")
_called: Final[Callable[[HloInstruction], Iterable[HloComputation]]] = attrgetter(
    "called_computations"
)

_KEPT: Final = SIDE_EFFECT_OPCODES | {"custom-call", "parameter"}
"""Opcodes of instructions that may not be dropped though nobody reads them."""


def _is_kept(instruction: HloInstruction) -> bool:
    """Whether it may not be dropped though nobody reads it."""
    if not (instruction.called_computations or instruction.opcode in _KEPT):
        return False
    return instruction.opcode == "parameter" or instruction.has_side_effect


def _parameter_number(parameter: HloInstruction) -> int:
    return parameter.parameter_number


def _read_instruction(message: Message, by_id: Mapping[int, HloInstruction]) -> HloInstruction:
    shape = Shape.from_proto(message.shape)
    instruction = HloInstruction(message, message.id, message.name, message.opcode, shape)
    instruction._shape_in_proto = shape
    try:
        instruction.connect([by_id[operand_id] for operand_id in message.operand_ids[:]])
        if message.control_predecessor_ids:
            for predecessor_id in message.control_predecessor_ids:
                instruction.add_control_predecessor(by_id[predecessor_id])
    except KeyError:
        raise VerificationError(
            f"{instruction.name} comes before an operand or control predecessor of its own."
        ) from None
    return instruction
