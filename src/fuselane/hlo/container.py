"""Serialized modules, as XLA writes them to files."""

from __future__ import annotations

from typing import Final

from fuselane.hlo.proto import HloModuleProto

_FIRST_MESSAGE_TAG: Final = 0x0A  # field 1, length-delimited: the module inside an HloProto


def module_in(data: bytes) -> bytes:
    """Returns the HloModuleProto of a serialized HloProto, still serialized; nothing is checked.

    Returns no bytes if `data` does not begin with a whole message.
    """
    if data[:1] != bytes([_FIRST_MESSAGE_TAG]):
        return b""
    length = 0
    for position, byte in enumerate(data[1:10]):
        length |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            start = position + 2
            return data[start : start + length] if start + length <= len(data) else b""
    return b""


def is_optimized(data: bytes) -> bool:
    """Whether XLA has fused or scheduled a serialized HloModuleProto."""
    module = HloModuleProto.FromString(data)
    instructions = (i for computation in module.computations for i in computation.instructions)
    return bool(module.schedule.sequences) or any(i.opcode == "fusion" for i in instructions)
