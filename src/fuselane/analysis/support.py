"""Every HLO opcode and what becomes of it inside a loop; `docs/support.md` shows this table.

The sets of `fuselane.analysis.opcodes` say what a lane program may hold. Here stands the rest: what
normalisation takes apart, what stays with XLA, and under which conditions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES, LANE_OPCODES


@final
class Support(enum.Enum):
    """What becomes of an opcode."""

    FUSED = "fused"
    """Part of the kernel."""
    DISSOLVED = "taken apart"
    """Expressed by other opcodes, or vanishes, in normal form."""
    LEFT = "left to XLA"
    """A loop that contains it is not fused; loops inside that loop still may be."""


@final
class OpcodeSupport(NamedTuple):
    """One row of the table."""

    opcode: str
    support: Support
    note: str


DISSOLVED_OPCODES: Final[Mapping[str, str]] = {
    "bitcast": "between layouts, and between element types of one width",
    "call": "inlined",
    "complex": "complex numbers are pairs of real ones",
    "convolution": "small ones, of at most 64 weights a group, are sums of products",
    "copy": "vanishes; a change of layout becomes a transpose",
    "fusion": "inlined, of every kind",
    "imag": "complex numbers are pairs of real ones",
    "map": "inlined",
    "opt-barrier": "vanishes",
    "real": "complex numbers are pairs of real ones",
}
"""Opcodes that a normal form does not have, and what it has instead."""

_COLLECTIVE: Final = "talks to other devices"
_SIDE_EFFECT: Final = "has an effect besides its value"
_DYNAMIC: Final = "for shapes known only at run time"
_EXPANDED: Final = "XLA:CPU has expanded it before Fuselane sees it"
_LIBRARY: Final = "XLA:CPU calls a library"
_NEW: Final = "new in the XLA of JAX 0.12"

LEFT_OPCODES: Final[Mapping[str, str]] = {
    "acos": _EXPANDED,
    "acosh": _EXPANDED,
    "add-dependency": _SIDE_EFFECT,
    "after-all": _SIDE_EFFECT,
    "all-gather": _COLLECTIVE,
    "all-gather-done": _COLLECTIVE,
    "all-gather-start": _COLLECTIVE,
    "all-reduce": _COLLECTIVE,
    "all-reduce-done": _COLLECTIVE,
    "all-reduce-start": _COLLECTIVE,
    "all-to-all": _COLLECTIVE,
    "asin": _EXPANDED,
    "asinh": _EXPANDED,
    "async-done": _SIDE_EFFECT,
    "async-start": _SIDE_EFFECT,
    "async-update": _SIDE_EFFECT,
    "atanh": _EXPANDED,
    "batch-norm-grad": _EXPANDED,
    "batch-norm-inference": _EXPANDED,
    "batch-norm-training": _EXPANDED,
    "cholesky": _EXPANDED,
    "collective-broadcast": _COLLECTIVE,
    "collective-permute": _COLLECTIVE,
    "collective-permute-done": _COLLECTIVE,
    "collective-permute-start": _COLLECTIVE,
    "collective-reduce": _COLLECTIVE,
    "copy-done": _SIDE_EFFECT,
    "copy-start": _SIDE_EFFECT,
    "cosh": _EXPANDED,
    "domain": _COLLECTIVE,
    "dynamic-reshape": _DYNAMIC,
    "exp2": _NEW,
    "fft": _LIBRARY,
    "get-dimension-size": _DYNAMIC,
    "infeed": _SIDE_EFFECT,
    "log2": _NEW,
    "outfeed": _SIDE_EFFECT,
    "partition-id": _COLLECTIVE,
    "ragged-all-to-all": _COLLECTIVE,
    "ragged-dot": _EXPANDED,
    "recv": _COLLECTIVE,
    "recv-done": _COLLECTIVE,
    "reduce-scatter": _COLLECTIVE,
    "replica-id": _COLLECTIVE,
    "rng": "random numbers that no seed determines",
    "rng-bit-generator": _EXPANDED,
    "rng-get-and-update-state": _SIDE_EFFECT,
    "scaled-dot": _EXPANDED,
    "scan": _EXPANDED,
    "select-and-scatter": "gradients of pooling",
    "send": _COLLECTIVE,
    "send-done": _COLLECTIVE,
    "set-dimension-size": _DYNAMIC,
    "shuffle": _NEW,
    "sinh": _EXPANDED,
    "stochastic-convert": _EXPANDED,
    "topk": "XLA:CPU has made it the custom call `TopK`, which is fused",
    "triangular-solve": _EXPANDED,
}
"""Opcodes that leave a loop to XLA, and why."""

_CONDITIONS: Final[Mapping[str, str]] = {
    "concatenate": "along the lanes in equal parts",
    "conditional": "on what all lanes share; `vmap` makes selects of others",
    "custom-call": "`TopK`, and LAPACK's Cholesky, LU, QR and triangular solves of small matrices",
    "dot": "with shared or per-lane matrices, sums over lanes that leave the loop",
    "gather": "from shared tables and from arrays of the lane's own",
    "reduce": "along the lanes only if the result leaves the loop",
    "scatter": "into arrays of the lane's own",
    "while": "also if lanes are done at different times",
    "dynamic-slice": "not along the lanes",
    "dynamic-update-slice": "not along the lanes",
    "pad": "not along the lanes",
    "reduce-window": "not along the lanes",
    "reverse": "not along the lanes",
    "slice": "along the lanes in equal parts, or a few that are written down",
    "sort": "not along the lanes",
}


def opcode_supports() -> Iterator[OpcodeSupport]:
    """Yields the rows of the table by opcode."""
    known = LANE_OPCODES | set(DISSOLVED_OPCODES) | set(LEFT_OPCODES) | {"custom-call"}
    for opcode in sorted(known):
        if opcode in DISSOLVED_OPCODES:
            yield OpcodeSupport(opcode, Support.DISSOLVED, DISSOLVED_OPCODES[opcode])
        elif opcode in LEFT_OPCODES:
            yield OpcodeSupport(opcode, Support.LEFT, LEFT_OPCODES[opcode])
        else:
            note = "elementwise" if opcode in ELEMENTWISE_OPCODES else _CONDITIONS.get(opcode, "")
            yield OpcodeSupport(opcode, Support.FUSED, note)
