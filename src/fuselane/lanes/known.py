"""Elements of index arrays that are known while a program is formed.

    %i = s32[4] iota()                                       known: 0, 1, 2, 3
    %c = s32[4,2] concatenate(reshape(%i), reshape(%x))      known: column 0; of column 1 nothing

Only what XLA makes index vectors of is followed: movement of data and integer work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

Array = npt.NDArray[Any]

_MAX_ELEMENTS: Final = 1 << 24
_MAX_DEPTH: Final = 40


@final
@dataclass(frozen=True, slots=True)
class Known:
    """Some elements of an array.

    Attributes:
        values: An array; what is not known is anything.
        mask: Which of them are known.
    """

    values: Array
    mask: Array


def known_elements(value: HloInstruction) -> Known | None:
    """Returns what is known of an integer or boolean array, None if nothing is."""
    return _Search().visit(value, 0)


class _Search:
    """One run of `known_elements`; remembers what it has seen."""

    def __init__(self) -> None:
        self._seen: dict[HloInstruction, Known | None] = {}

    def visit(self, value: HloInstruction, depth: int) -> Known | None:
        """Returns what is known of a value that so many instructions lie in front of."""
        if value not in self._seen:
            self._seen[value] = self._compute(value, depth)
        return self._seen[value]

    def _compute(self, value: HloInstruction, depth: int) -> Known | None:
        shape = value.shape
        if not shape.is_array or shape.element_type.is_floating or depth > _MAX_DEPTH:
            return None
        if shape.num_elements > _MAX_ELEMENTS:
            return None
        if value.opcode == "constant":
            return _all_known(value.literal)
        if value.opcode == "iota":
            return _all_known(_iota(value))
        if value.opcode == "concatenate":
            return self._concatenate(value, depth)
        if value.opcode in _MOVEMENT:
            operand = self.visit(value.operands[0], depth + 1)
            move = _MOVEMENT[value.opcode]
            return operand and Known(move(value, operand.values), move(value, operand.mask))
        if value.opcode in _ELEMENTWISE:
            return self._elementwise(value, depth)
        return None

    def _concatenate(self, value: HloInstruction, depth: int) -> Known | None:
        parts = [self.visit(operand, depth + 1) for operand in value.operands]
        if not any(parts):
            return None
        dtype = value.shape.element_type.dtype
        filled = [
            part or Known(np.zeros(o.shape.dimensions, dtype), np.zeros(o.shape.dimensions, bool))
            for part, o in zip(parts, value.operands, strict=True)
        ]
        axis = value.dimensions[0]
        return Known(
            np.concatenate([part.values for part in filled], axis),
            np.concatenate([part.mask for part in filled], axis),
        )

    def _elementwise(self, value: HloInstruction, depth: int) -> Known | None:
        operands: list[Known] = []
        for operand in value.operands:
            known = self.visit(operand, depth + 1)
            if known is None:
                return None
            operands.append(known)
        sizes = value.shape.dimensions
        with np.errstate(over="ignore"):
            values = _ELEMENTWISE[value.opcode](value, [operand.values for operand in operands])
        mask = np.logical_and.reduce([np.broadcast_to(o.mask, sizes) for o in operands])
        return Known(values.astype(value.shape.element_type.dtype), mask)


def _all_known(values: Array) -> Known:
    return Known(values, np.broadcast_to(np.bool_(True), values.shape))


def _iota(value: HloInstruction) -> Array:
    sizes, (axis,) = value.shape.dimensions, value.dimensions
    numbers = np.arange(sizes[axis]).astype(value.shape.element_type.dtype)
    return np.broadcast_to(
        numbers.reshape([-1 if d == axis else 1 for d in range(len(sizes))]), sizes
    )


def _broadcast(value: HloInstruction, array: Array) -> Array:
    sizes = value.shape.dimensions
    inner = [size if d in value.dimensions else 1 for d, size in enumerate(sizes)]
    return np.broadcast_to(array.reshape(inner), sizes)


def _slice(value: HloInstruction, array: Array) -> Array:
    ranges = value.slice_ranges
    result: Array = array[tuple(slice(*part) for part in ranges)]
    return result


_MOVEMENT: Final[Mapping[str, Callable[[HloInstruction, Array], Array]]] = {
    "broadcast": _broadcast,
    "reshape": lambda value, array: array.reshape(value.shape.dimensions),
    "reverse": lambda value, array: np.flip(array, value.dimensions),
    "slice": _slice,
    "transpose": lambda value, array: array.transpose(value.dimensions),
}

_COMPARE: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}

_ELEMENTWISE: Final[Mapping[str, Callable[[HloInstruction, Sequence[Array]], Array]]] = {
    "add": lambda _, x: x[0] + x[1],
    "and": lambda _, x: x[0] & x[1],
    "clamp": lambda _, x: np.minimum(np.maximum(x[1], x[0]), x[2]),
    "compare": lambda value, x: _COMPARE[value.comparison_direction](x[0], x[1]),
    "convert": lambda value, x: x[0] != 0 if _is_boolean(value) else x[0],
    "maximum": lambda _, x: np.maximum(x[0], x[1]),
    "minimum": lambda _, x: np.minimum(x[0], x[1]),
    "multiply": lambda _, x: x[0] * x[1],
    "or": lambda _, x: x[0] | x[1],
    "select": lambda _, x: np.where(x[0], x[1], x[2]),
    "subtract": lambda _, x: x[0] - x[1],
}


def _is_boolean(value: HloInstruction) -> bool:
    return value.shape.element_type is PrimitiveType.PRED
