"""The operations by which reductions combine values, and the value each leaves as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import numpy as np

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


_IDENTITIES: Final[Mapping[str, Callable[[np.dtype[Any]], Any]]] = {
    "add": lambda dtype: 0,
    "and": lambda dtype: True if dtype.kind == "b" else np.invert(dtype.type(0)),
    "maximum": _lowest,
    "minimum": _highest,
    "multiply": lambda dtype: 1,
    "or": lambda dtype: 0,
}

COMBINERS: Final = frozenset(_IDENTITIES)
"""The opcodes that combine two values, in any order, to one."""


def identity(combiner: str, element_type: PrimitiveType) -> np.generic:
    """Returns the value that combined with any other gives the other, as a NumPy scalar.

    Args:
        combiner: One of `COMBINERS`.
        element_type: Of the values.
    """
    dtype = np.dtype(element_type.dtype)
    return cast(np.generic, np.asarray(_IDENTITIES[combiner](dtype)).astype(dtype)[()])


def match_combiner(computation: HloComputation) -> str | None:
    """Returns the opcode of a computation that applies one commutative, associative operation to
    its two parameters, else None."""
    root = computation.root
    if root.opcode not in _IDENTITIES or len(computation.parameters) != 2:
        return None
    return root.opcode if set(root.operands) == set(computation.parameters) else None


def is_identity(value: HloInstruction, combiner: str) -> bool:
    """Whether a value is a constant that consists of nothing but the identity."""
    if value.opcode in ("broadcast", "reshape"):
        return is_identity(value.operands[0], combiner)
    if value.opcode != "constant" or not value.shape.is_array:
        return False
    return bool(np.all(value.literal == identity(combiner, value.shape.element_type)))
