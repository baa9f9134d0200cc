"""Serialized modules inside serialized HloProtos, as XLA writes them to files."""

from __future__ import annotations

from typing import Final

_FIRST_MESSAGE_TAG: Final = 0x0A  # field 1, length-delimited: the module inside an HloProto


def module_in(data: bytes) -> bytes:
    """Returns the HloModuleProto of a serialized HloProto, still serialized; nothing is checked.

    Returns no bytes if `data` does not begin with a message.
    """
    if data[:1] != bytes([_FIRST_MESSAGE_TAG]):
        return b""
    length = 0
    for position, byte in enumerate(data[1:10]):
        length |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            start = position + 2
            return data[start : start + length]
    return b""
