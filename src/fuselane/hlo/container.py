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


_GPU_MARK: Final = "fingerprint_before_lhs"
"""An attribute that XLA:GPU's scheduling leaves on modules."""


def is_scheduled_for_gpu(data: bytes) -> bool | None:
    """Whether a serialized HloModuleProto was scheduled by XLA's GPU compiler, or else by that for
    CPUs; None if it is not scheduled."""
    module = HloModuleProto.FromString(data)
    if not module.schedule.sequences:
        return None
    if _GPU_MARK in {entry.key for entry in module.frontend_attributes.map}:
        return True
    instructions = (i for computation in module.computations for i in computation.instructions)
    return any(i.metadata.scheduling_name or i.fusion_kind == "kInput" for i in instructions)
