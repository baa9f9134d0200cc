"""A module's fingerprint: equal for modules that compute the same by the same kernels.

Names, ids, source lines and the order of instructions that do not depend on each other make no
difference, so a program keeps its fingerprint in other processes, and after edits that move it to
other lines. Fusions do make one: modules of one program fused in two ways differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fuselane.fusion.values import attributes
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule


def fingerprint(module: HloModule) -> str:
    """Returns 32 hex digits; equal ones mean equal modules for all that is known."""
    known: dict[HloComputation, bytes] = {}
    for computation in reachable_computations([module.entry]):
        known[computation] = _digest_of(computation, known)
    return known[module.entry].hex()


def _digest_of(computation: HloComputation, known: dict[HloComputation, bytes]) -> bytes:
    digests: dict[HloInstruction, bytes] = {}
    for instruction in computation.post_order():
        digests[instruction] = _digest(
            [
                attributes(instruction),
                b"operands",
                *(digests[operand] for operand in instruction.operands),
                b"callees",
                *(known[callee] for callee in instruction.called_computations),
                b"predecessors",
                *sorted(digests[p] for p in instruction.control_predecessors),
            ]
        )
    return _digest([digests[computation.root], *sorted(digests.values())])


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()[:16]
