"""All operations of random programs, by HLO opcode as far as they are one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuselane.fuzz.builder import Operation
from fuselane.fuzz.complexes import COMPLEX_FUNCTIONS
from fuselane.fuzz.control import CONTROL
from fuselane.fuzz.elementwise import ELEMENTWISE
from fuselane.fuzz.indexed import INDEXED
from fuselane.fuzz.meeting import MEETING
from fuselane.fuzz.mixing import MIXING
from fuselane.fuzz.states import STATES
from fuselane.fuzz.structural import STRUCTURAL

OPERATIONS: Final[Mapping[str, Operation]] = {
    **ELEMENTWISE,
    **COMPLEX_FUNCTIONS,
    **STRUCTURAL,
    **INDEXED,
    **CONTROL,
    **STATES,
    **MIXING,
    **MEETING,
}

WEIGHTS: Final[Mapping[str, float]] = {
    **dict.fromkeys(OPERATIONS, 1.0),
    **dict.fromkeys(("select", "gather", "scatter", "while", "reduce"), 3.0),
    **dict.fromkeys(("compare", "convert", "dot", "reduce-window", "conditional"), 2.0),
    **dict.fromkeys(("dynamic-slice", "dynamic-update-slice", "slice", "pad"), 2.0),
    **dict.fromkeys(("concatenate", "reshape", "add", "multiply"), 2.0),
    **dict.fromkeys(("factorisation", "custom-call", "split", "look-up"), 0.5),
}
"""How often each is drawn, relative to the others."""
