"""HLO modules: what XLA compiles at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

from google.protobuf.message import DecodeError

from fuselane.errors import VerificationError
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import HloModuleProto, Message

_COMPUTATION_SHIFT: Final = 32
_JAX_DIRECTORIES: Final = (
    "/site-packages/jax/",
    "/site-packages/jaxlib/",
    "/dist-packages/jax/",
    "/dist-packages/jaxlib/",
    "/jax/_src/",
)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program.

    Attributes:
        file: Path as Python knew it.
        line: Counted from 1.
        function: Qualified name, or empty if unknown.
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" + (f" ({self.function})" if self.function else "")


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
            VerificationError: if `data` is not one, or operands, roots or called computations are
                missing.
        """
        try:
            proto = HloModuleProto.FromString(data)
        except DecodeError as error:
            raise VerificationError(
                f"These {len(data)} bytes are not an HloModuleProto: {error}."
            ) from None
        computations = {
            message.id: HloComputation.from_proto(message) for message in proto.computations
        }
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
            self._update_schedule(message.schedule)
        data: bytes = message.SerializeToString()
        return data

    def _update_schedule(self, schedule: Message) -> None:
        """Makes the sequences those of today's computations; a sequence still complete stays."""
        by_id = {computation.id: computation for computation in self.computations}
        kept = [entry for entry in schedule.sequences if entry.key in by_id]
        for entry in kept:
            computation = by_id[entry.key]
            if set(entry.value.instruction_ids) != {i.id for i in computation.instructions}:
                entry.value.instruction_ids[:] = [i.id for i in computation.post_order()]
        present = {entry.key for entry in kept}
        del schedule.sequences[:]
        schedule.sequences.extend(kept)
        for computation in self.computations:
            if computation.id not in present and not computation.is_fusion:
                entry = schedule.sequences.add(key=computation.id)
                entry.value.instruction_ids.extend(i.id for i in computation.post_order())

    def __repr__(self) -> str:
        return f"module {self.name}"

    # Adding and removing.

    def add(self, computation: HloComputation) -> HloComputation:
        """Adds a detached computation, and detached ones it calls, with new ids and unique names;
        returns it."""
        for callee in reachable_computations([computation]):
            if callee.module is None:
                self._adopt_computation(callee)
        return computation

    def remove_unused_computations(self) -> int:
        """Removes computations the entry does not call, directly or not; returns how many."""
        used = set(reachable_computations([self.entry]))
        unused = [computation for computation in self.computations if computation not in used]
        self.computations[:] = [c for c in self.computations if c in used]
        for computation in unused:
            computation.module = None
        return len(unused)

    def adopt(self, instruction: HloInstruction, computation: HloComputation) -> None:
        """Gives an instruction that was just added to a computation of this module an id and a
        unique name."""
        instruction.id = self._ids.next_id(computation)
        instruction.name = _unique(instruction.name, self._instruction_names)

    def _adopt_computation(self, computation: HloComputation) -> None:
        computation.module = self
        computation.id = self._ids.next_computation_id()
        computation.name = _unique(computation.name, {c.name for c in self.computations})
        self.computations.append(computation)
        for instruction in computation.instructions:
            self.adopt(instruction, computation)

    @cached_property
    def _ids(self) -> _Ids:
        return _Ids(self.computations)

    @cached_property
    def _instruction_names(self) -> set[str]:
        return {i.name for computation in self.computations for i in computation.instructions}

    # Source lines.

    def source(self, instruction: HloInstruction) -> SourceLine | None:
        """Returns the innermost line of the user's program that made `instruction`, or None if
        unknown.

        Frames inside JAX itself are passed over where there are others.
        """
        metadata = instruction.proto.metadata
        frames = self._stack(metadata.stack_frame_id)
        if frames:
            return next((frame for frame in frames if not _is_jax(frame.file)), frames[0])
        if metadata.source_file:
            return SourceLine(metadata.source_file, metadata.source_line)
        return None

    def _stack(self, frame_id: int) -> list[SourceLine]:
        """Returns a frame and its callers, innermost first."""
        frames = self._frames
        stack: list[SourceLine] = []
        while 1 <= frame_id <= len(frames) and len(stack) <= len(frames):
            line, frame_id = frames[frame_id - 1]
            stack.append(line)
        return stack

    @cached_property
    def _frames(self) -> list[tuple[SourceLine, int]]:
        """Each stack frame's line and its caller's frame id; ids count from 1, 0 is none."""
        index = self.proto.stack_frame_index
        files = ["", *index.file_names]
        functions = ["", *index.function_names]
        locations = [SourceLine("", 0)]
        for location in index.file_locations:
            file, function = files[location.file_name_id], functions[location.function_name_id]
            locations.append(SourceLine(file, location.line, function))
        return [(locations[f.file_location_id], f.parent_frame_id) for f in index.stack_frames]


class _Ids:
    """Hands out ids nobody has.

    XLA since 2025-09 makes an instruction's id from its computation's (high 32 bits) and a number
    in it (low); before, ids counted through the module. New ids follow what the module does.
    """

    def __init__(self, computations: Iterable[HloComputation]) -> None:
        self._last = {c.id: max((i.id for i in c.instructions), default=0) for c in computations}
        self._last_computation = max(self._last, default=0)
        self._last_in_module = max(self._last.values(), default=0)
        self._is_composite = not self._last or self._last_in_module >> _COMPUTATION_SHIFT > 0

    def next_id(self, computation: HloComputation) -> int:
        """Returns a new instruction id."""
        if not self._is_composite:
            self._last_in_module += 1
            return self._last_in_module
        last = self._last.get(computation.id, (computation.id << _COMPUTATION_SHIFT) - 1)
        self._last[computation.id] = last + 1
        return last + 1

    def next_computation_id(self) -> int:
        """Returns a new computation id."""
        self._last_computation += 1
        return self._last_computation


def _unique(name: str, taken: set[str]) -> str:
    """Returns `name`, or `name` with a number, and adds it to `taken`."""
    candidate = name
    number = len(taken)
    while candidate in taken:
        candidate = f"{name}.{number}"
        number += 1
    taken.add(candidate)
    return candidate


def _is_jax(file: str) -> bool:
    return any(directory in file for directory in _JAX_DIRECTORIES)
