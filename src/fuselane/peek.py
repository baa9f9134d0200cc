"""What a search in the bytes of a serialized module tells, before it is read."""

from __future__ import annotations

from typing import Final

_WHILE_FIELD: Final = b"\x12\x05while"
"""How the opcode of a `while` looks in a serialized HloInstructionProto: field 2, 5 bytes long."""


def has_loops(data: bytes) -> bool:
    """Whether a serialized HloModuleProto has a `while`; now and then true of one without."""
    return _WHILE_FIELD in data
