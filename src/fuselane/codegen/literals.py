"""Constants of a lane program: scalars in the code, larger ones as data of the LLVM module."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import final

import numpy as np
from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Array, Memory, Place, Written, pick, row_major_strides
from fuselane.codegen.indexing import Element
from fuselane.codegen.types import constant
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError

_MAX_SELECTED_CONSTANTS = 8
_MAX_CONSTANT_BYTES = 32 * 2**20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Literal(Array):
    """A constant all lanes share: scalars in the code, larger ones read at run-time indices.

    values: The constant.
    placed: Its array in memory, once something needs it.
    """

    values: np.ndarray
    placed: list[Memory] = field(default_factory=list)

    def get(self, place: Place, index: Element) -> ir.Value:
        """See `Array.get`."""
        inner = indexing.without_lane(index)
        if all(isinstance(coordinate, int) for coordinate in inner):
            return constant(self.shape.element_type, self.values[inner])
        if self.values.strides and not any(self.values.strides):
            return constant(self.shape.element_type, self.values.flat[0])
        if self.values.size <= _MAX_SELECTED_CONSTANTS and any(map(indexing.varies, inner)):
            elements = [constant(self.shape.element_type, value) for value in self.values.flat]
            return pick(place, elements, indexing.flatten(place.builder, inner, self.dimensions))
        return self.in_memory(place).get(place, index)

    def in_memory(self, place: Place) -> Memory:
        """Returns the same constant as a read-only array of the LLVM module, lanes side by side."""
        if not self.placed:
            order = list(range(self.values.ndim))
            if self.lane is not None:
                order.append(order.pop(self.lane))
            values = self.values.transpose(order)
            strides = dict(zip(order, row_major_strides(values.shape), strict=True))
            memory = Memory(
                shape=self.shape,
                lane=self.lane,
                pointer=global_constant(place.builder.module, values),
                strides=tuple(strides[dimension] for dimension in range(len(order))),
                written=Written.NEVER,
            )
            self.placed.append(memory)
        return self.placed[0]


def global_constant(module: ir.Module, values: np.ndarray) -> ir.Value:
    """Returns a pointer to the values, row-major, as read-only data of the module.

    Equal values share their memory.

    Raises:
        UnsupportedError: for more than belongs into code.
    """
    if values.nbytes > _MAX_CONSTANT_BYTES:
        detail = f"it holds a constant of {values.nbytes / 2**20:,.0f} MiB"
        raise UnsupportedError(Reason.TOO_MUCH_CODE.decide(detail=detail))
    data = np.ascontiguousarray(values).tobytes()
    name = f"constant.{hashlib.sha256(data).hexdigest()[:32]}"
    known = module.globals.get(name)
    if known is not None:
        return known
    array = ir.ArrayType(ir.IntType(8), len(data))
    variable = ir.GlobalVariable(module, array, name)
    variable.initializer = ir.Constant(array, bytearray(data))
    variable.global_constant = True
    variable.linkage = "private"
    variable.align = 64
    variable.type = ir.PointerType()
    return variable
