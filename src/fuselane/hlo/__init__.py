"""HLO as Python objects: messages in and out, shapes, literals, instructions, computations,
modules, verifier."""

from __future__ import annotations

from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.literal import literal_to_numpy, numpy_to_literal
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.hlo.source_lines import SourceLine
from fuselane.hlo.verifier import verify, verify_computation

__all__ = [
    "HloComputation",
    "HloInstruction",
    "HloModule",
    "PrimitiveType",
    "Shape",
    "SourceLine",
    "literal_to_numpy",
    "numpy_to_literal",
    "reachable_computations",
    "verify",
    "verify_computation",
]
