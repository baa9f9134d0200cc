"""The table of opcodes agrees with XLA's list of them and with what the normaliser does."""

from __future__ import annotations

import re
from typing import Final

import jax
import pytest
from jaxlib import _hlo  # type: ignore[attr-defined]

from fuselane.analysis.opcodes import LANE_OPCODES
from fuselane.analysis.support import DISSOLVED_OPCODES, LEFT_OPCODES, opcode_supports
from fuselane.lanes.normalise import HANDLED_OPCODES

_SPELLINGS: Final = {
    "kClz": "count-leading-zeros",
    "kCos": "cosine",
    "kExp": "exponential",
    "kExpm1": "exponential-minus-one",
    "kLog1p": "log-plus-one",
    "kOptimizationBarrier": "opt-barrier",
    "kPopulationCount": "popcnt",
    "kSin": "sine",
    "kTopK": "topk",
}


_SINCE: Final = {(0, 11): {"collective-reduce"}, (0, 12): {"exp2", "log2", "shuffle"}}
"""Opcodes that only newer versions of JAX know, by the first that does."""


def spelling(name: str) -> str:
    """Returns an opcode as HLO text has it for the name of XLA's enumerator."""
    words = re.sub(r"(?<!^)(?=[A-Z])", "-", name[1:]).lower()
    return _SPELLINGS.get(name, words)


def test_every_opcode_has_one_row() -> None:
    names = [name for name in dir(_hlo.HloOpcode) if name.startswith("k")]
    rows = [row.opcode for row in opcode_supports()]
    newer = (added for first, added in _SINCE.items() if jax.__version_info__ < first)
    assert sorted({*map(spelling, names)}.union(*newer)) == rows


def test_the_kinds_do_not_overlap() -> None:
    assert not DISSOLVED_OPCODES.keys() & LANE_OPCODES
    assert not LEFT_OPCODES.keys() & (LANE_OPCODES | DISSOLVED_OPCODES.keys())


@pytest.mark.parametrize("opcode", sorted(HANDLED_OPCODES))
def test_what_is_handled_is_not_said_to_be_left(opcode: str) -> None:
    assert opcode not in LEFT_OPCODES


@pytest.mark.parametrize("opcode", sorted(LANE_OPCODES | DISSOLVED_OPCODES.keys()))
def test_what_is_said_to_be_fused_is_handled(opcode: str) -> None:
    assert opcode in HANDLED_OPCODES | {"parameter"}
