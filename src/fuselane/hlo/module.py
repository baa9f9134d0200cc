"""HLO modules: what XLA compiles at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, final

from google.protobuf.message import DecodeError

from fuselane.errors import VerificationError
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import HloModuleProto, Message
from fuselane.hlo.schedule import update_schedule
from fuselane.hlo.source_lines import SourceLine, SourceLines

MAX_INSTRUCTIONS: Final = 250_000
"""The most instructions a module may have: each takes about 10 us and 3 KiB to read."""

_COMPUTATION_SHIFT: Final = 32


def read_message(data: bytes) -> Message:
    """Returns the HloModuleProto that bytes are.

    Raises:
        VerificationError: if they are none.
    """
    try:
        return HloModuleProto.FromString(data)
    except DecodeError as error:
        raise VerificationError(
            f"These {len(data)} bytes are not an HloModuleProto: {error}."
        ) from None


@final
class HloModule:
    """A program of computations, one of them the entry; equality is identity.

    Attributes:
        name: Such as "jit_step".
        computations: Callees before callers.
        entry: The computation that is run.
        proto: The HloModuleProto without its computations; entry and schedule are brought up to
            date on writing.
    """

    def __init__(
        self, proto: Message, computations: list[HloComputation], entry: HloComputation
    ) -> None:
        self.name: str = proto.name
        self.computations = computations
        self.entry = entry
        self.proto: Message = proto
        for computation in computations:
            computation.module = self

    @classmethod
    def from_bytes(cls, data: bytes) -> HloModule:
        """Returns the module of a serialized HloModuleProto.

        Raises:
            VerificationError: if `data` is not one, operands, roots or called computations are
                missing, or there are more instructions than MAX_INSTRUCTIONS.
        """
        return cls.from_proto(read_message(data))

    @classmethod
    def from_proto(cls, proto: Message) -> HloModule:
        """As `from_bytes`, of a HloModuleProto, whose computations it takes over."""
        count = sum(len(message.instructions) for message in proto.computations)
        if count > MAX_INSTRUCTIONS:
            raise VerificationError(
                f"Module {proto.name} has {count:,} instructions, more than {MAX_INSTRUCTIONS:,}."
            )
        computations = {
            message.id: HloComputation.from_proto(message) for message in proto.computations
        }
        if len(computations) != len(proto.computations):
            raise VerificationError(f"Module {proto.name} has two computations with one id.")
        for computation in computations.values():
            computation.connect_callees(computations)
        entry = computations.get(proto.entry_computation_id)
        if entry is None:
            raise VerificationError(f"Module {proto.name} has no entry computation.")
        proto.ClearField("computations")
        return cls(proto, list(computations.values()), entry)

    @classmethod
    def create(cls, name: str, entry: HloComputation) -> HloModule:
        """Returns a new module of a detached computation and all it calls."""
        module = cls(HloModuleProto(name=name), [], entry)
        module.add(entry)
        return module

    def to_bytes(self) -> bytes:
        """Returns the module as a serialized HloModuleProto that XLA accepts.

        Computations and instructions are written in post order; what was not changed is written as
        it was read.
        """
        has_new_signature = self.entry.has_changed_signature()
        message = HloModuleProto()
        message.MergeFrom(self.proto)
        for computation in reachable_computations(self.computations):
            computation.write_to(message.computations.add())
        message.name = self.name
        message.entry_computation_name = self.entry.name
        message.entry_computation_id = self.entry.id
        if has_new_signature:
            message.host_program_shape.CopyFrom(self.entry.program_shape())
        if message.schedule.sequences:
            update_schedule(message.schedule, self.computations)
        data: bytes = message.SerializeToString()
        return data

    def __repr__(self) -> str:
        return f"module {self.name}"

    # Adding and removing.

    def add(self, computation: HloComputation) -> HloComputation:
        """Adds a detached computation, and detached ones it calls, with new ids and unique names;
        returns it."""
        for callee in reachable_computations([computation]):
            if callee.module is None:
                self.add_alone(callee)
        return computation

    def add_alone(self, computation: HloComputation) -> None:
        """As `add`, for a computation that calls none but those of this module."""
        computation.module = self
        computation.id = self._ids.next_computation_id()
        names = self._computation_names
        if computation.name in names:
            computation.name = _numbered(computation.name, names)
        names.add(computation.name)
        self.adopt(computation.instructions, computation)
        self.computations.append(computation)

    def remove_unused_computations(self) -> int:
        """Removes, and empties, what the entry does not call, directly or not; returns how many."""
        used = set(reachable_computations([self.entry]))
        unused = [computation for computation in self.computations if computation not in used]
        self.computations[:] = [c for c in self.computations if c in used]
        for computation in unused:
            computation.module = None
            computation.empty()
        return len(unused)

    def release(self, computation: HloComputation) -> None:
        """Removes a computation that nobody calls any more, so that the names in it are free."""
        self.computations.remove(computation)
        self.free_names(computation.instructions)
        computation.module = None

    def free_names(self, instructions: Iterable[HloInstruction]) -> None:
        """Lets others have the names of instructions that the module has no more."""
        for instruction in instructions:
            self._stems.pop(instruction.name, None)

    def adopt(self, instructions: Sequence[HloInstruction], computation: HloComputation) -> None:
        """Gives instructions about to be added to a computation of this module ids and names.

        Their names stay where no other instruction has them.
        """
        stems, numbers = self._stems, self._name_numbers
        ids = self._ids.next_ids(computation, len(instructions))
        for instruction, new_id in zip(instructions, ids, strict=True):
            instruction.id = new_id
            name = instruction.name
            stem = stems.get(name)
            if stem is None:
                stem = _stem(name)
            else:
                while (name := f"{stem}.{next(numbers)}") in stems:
                    continue
                instruction.name = name
            stems[name] = stem

    def renumber(self, instructions: Sequence[HloInstruction], computation: HloComputation) -> None:
        """Gives instructions of this module ids of another computation that they move to."""
        ids = self._ids.next_ids(computation, len(instructions))
        for instruction, new_id in zip(instructions, ids, strict=True):
            instruction.id = new_id

    @cached_property
    def _ids(self) -> _Ids:
        return _Ids(self.computations)

    @cached_property
    def _stems(self) -> dict[str, str]:
        """The names of all instructions, and what stands in front of their numbers."""
        return {i.name: _stem(i.name) for c in self.computations for i in c.instructions}

    @cached_property
    def _name_numbers(self) -> Iterator[int]:
        """Numbers that tell apart instructions which had one name; each is tried once."""
        return itertools.count(len(self._stems))

    @cached_property
    def _computation_names(self) -> set[str]:
        return {computation.name for computation in self.computations}

    # Source lines.

    def source(self, instruction: HloInstruction) -> SourceLine | None:
        """Returns the innermost line of the user's program that made `instruction`, or None if
        unknown.

        Frames inside JAX itself are passed over where there are others.
        """
        return self._source_lines.find(instruction.metadata)

    @cached_property
    def _source_lines(self) -> SourceLines:
        return SourceLines(self.proto.stack_frame_index)


class _Ids:
    """Hands out ids nobody has.

    XLA since 2025-09 makes an instruction's id from its computation's (high 32 bits) and a number
    in it (low); before, ids counted through the module. New ids follow what the module does.
    """

    def __init__(self, computations: Sequence[HloComputation]) -> None:
        self._last: dict[int, int] = {}
        self._as_read = {c.id: c for c in computations if c.instructions}
        self._last_computation = max((c.id for c in computations), default=0)
        known = self._as_read.values()
        self._is_composite = not known or any(
            i.id >> _COMPUTATION_SHIFT for c in known for i in c.instructions
        )
        self._last_in_module = 0 if self._is_composite else max(map(_last_id, known))

    def next_ids(self, computation: HloComputation, num: int) -> range:
        """Returns new ids for instructions of a computation."""
        if not self._is_composite:
            first = self._last_in_module + 1
            self._last_in_module += num
        else:
            as_read = self._as_read.pop(computation.id, None)
            if as_read is not None and as_read.instructions:
                self._last[computation.id] = _last_id(as_read)
            first = self._last.get(computation.id, (computation.id << _COMPUTATION_SHIFT) - 1) + 1
            self._last[computation.id] = first + num - 1
        return range(first, first + num)

    def next_computation_id(self) -> int:
        """Returns a new computation id."""
        self._last_computation += 1
        return self._last_computation


def _last_id(computation: HloComputation) -> int:
    return max(instruction.id for instruction in computation.instructions)


def _numbered(name: str, taken: set[str]) -> str:
    """Returns `name` with another number at its end, so that it is not taken."""
    stem = _stem(name)
    numbers = itertools.count(len(taken))
    while (new := f"{stem}.{next(numbers)}") in taken:
        continue
    return new


def _stem(name: str) -> str:
    """Returns what stands in front of a name's number, if it has any."""
    stem, _, number = name.rpartition(".")
    return stem if stem and number.isdecimal() else name
