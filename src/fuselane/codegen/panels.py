"""Shared weights in the order in which dots need them.

    w f32[32,64], 6 outputs at a time:   w[0, 0:6]  w[1, 0:6]  ..  w[31, 0:6]  w[0, 6:12]  ..

A panel is what one block of outputs needs: read from front to back, it comes from the L2 cache or
beyond as fast as it is used, whatever the layout of the weights. Weights that never change are
copied once per call of a kernel; on the way they are converted to the type of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.arrays import Place
from fuselane.codegen.dot_shape import DotShape
from fuselane.codegen.indexing import Index
from fuselane.codegen.memory import element_pointer, load, store


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """The elements of a dot's shared operand.

    Attributes:
        pointer: The first one.
        shape: Of the dot.
        outputs: How many elements of the operand's free group there are.
    """

    pointer: ir.Value
    shape: DotShape
    outputs: int

    @property
    def num_bytes(self) -> int:
        """What they take."""
        elements = self.shape.batch.size * self.outputs * self.shape.contracting.size
        return elements * self.shape.sum_type.byte_size

    def get(self, place: Place, b: Index, start: Index, n: Index, size: int, k: Index) -> ir.Value:
        """Returns element k of output `start + n`, in the panel of `size` outputs from `start`."""
        pointer = self._address(place, b, start, n, size, k)
        return load(place.builder, pointer, self.shape.sum_type)

    def put(
        self, place: Place, b: Index, start: Index, n: Index, size: int, k: Index, value: ir.Value
    ) -> None:
        """Stores an element."""
        pointer = self._address(place, b, start, n, size, k)
        store(place.builder, value, pointer, self.shape.sum_type)

    def _address(
        self, place: Place, b: Index, start: Index, n: Index, size: int, k: Index
    ) -> ir.Value:
        builder, products = place.builder, self.shape.contracting.size
        position = indexing.multiply(builder, b, self.outputs * products)
        panel = indexing.multiply(builder, start, products)
        position = indexing.add(builder, position, panel)
        within = indexing.add(builder, indexing.multiply(builder, k, size), n)
        position = indexing.add(builder, position, within)
        return element_pointer(builder, self.pointer, indexing.i64(position), self.shape.sum_type)
