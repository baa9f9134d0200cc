"""What an instruction is but for its place in a graph: equal for two that do the same."""

from __future__ import annotations

from typing import Final, final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import Message

_PLACE: Final = (
    "name",
    "id",
    "opcode",
    "shape",
    "operand_ids",
    "called_computation_ids",
    "control_predecessor_ids",
    "metadata",
)
"""Fields of HloInstructionProto that are in the graph, or that Python objects hold as well."""


def attributes_of(instruction: HloInstruction, *without: str) -> bytes:
    """Returns an instruction's attributes, serialised.

    Neither name, opcode, shape, operands, callees, control edges and source are among them, nor the
    fields of HloInstructionProto that are given.
    """
    proto = instruction.copy_proto()
    proto.parameter_number = instruction.parameter_number
    for name in (*_PLACE, *without):
        proto.ClearField(name)
    if not proto.frontend_attributes.ByteSize():  # as XLA until 2024 left them
        proto.ClearField("frontend_attributes")
    proto.DiscardUnknownFields()
    return bytes(proto.SerializeToString(deterministic=True))


@final
class Works:
    """What instructions do to their operands; attributes that copies share are looked up once."""

    def __init__(self) -> None:
        self._attributes: dict[int, tuple[Message, bytes]] = {}

    def of(self, instruction: HloInstruction) -> tuple[object, ...]:
        """Returns a value that is equal for instructions that do the same."""
        callees = tuple(callee.name for callee in instruction.called_computations)
        return instruction.opcode, instruction.shape, self.attributes(instruction), callees

    def attributes(self, instruction: HloInstruction) -> bytes:
        """Returns the attributes an instruction computes by, serialised; see `attributes_of`."""
        origin = instruction.origin
        known = self._attributes.get(id(origin))
        if known is None:
            known = origin, attributes_of(instruction, "backend_config", "parameter_number")
            self._attributes[id(origin)] = known
        return known[1]


def work_of(instruction: HloInstruction) -> tuple[object, ...]:
    """Returns what an instruction does to its operands: equal for two that do the same."""
    return Works().of(instruction)
