"""The window of a reduce-window: what each element of its result is made of."""

from __future__ import annotations

from typing import NamedTuple, final

from fuselane.hlo.instruction import HloInstruction


@final
class WindowDimension(NamedTuple):
    """One dimension of a window.

    Element `o` of the result combines, for `w` below `size`, the elements `p // base_dilation` of
    the operand with `p = o * stride + w * dilation - low`, where that is whole and within bounds.

    Attributes:
        size: Places in the window.
        stride: From one window to the next.
        low: Padding in front.
        high: Padding behind; only decides how many windows there are.
        dilation: From one place of the window to the next.
        base_dilation: From one element of the operand to the next.
        is_reversed: Whether the window is mirrored.
    """

    size: int
    stride: int
    low: int
    high: int
    dilation: int
    base_dilation: int
    is_reversed: bool

    @property
    def is_trivial(self) -> bool:
        """Whether each element of the operand is a window of its own."""
        return self == (1, 1, 0, 0, self.dilation, 1, self.is_reversed)

    def is_side_by_side(self, operand_size: int) -> bool:
        """Whether every place of the padded operand falls into exactly one window."""
        padded = operand_size + self.low + self.high
        return (
            self.stride == self.size
            and (self.dilation == 1 or self.size == 1)
            and self.base_dilation == 1
            and padded % self.size == 0
        )

    def is_cumulative(self, operand_size: int) -> bool:
        """Whether window `o` holds the elements 0 to `o` of the operand."""
        return self == (operand_size, 1, operand_size - 1, 0, 1, 1, self.is_reversed)


def get_window(reduce_window: HloInstruction) -> tuple[WindowDimension, ...]:
    """Returns the window of a reduce-window, a dimension of it for each of its operand."""
    return tuple(
        WindowDimension(
            size=dimension.size,
            stride=max(dimension.stride, 1),
            low=dimension.padding_low,
            high=dimension.padding_high,
            dilation=max(dimension.window_dilation, 1),
            base_dilation=max(dimension.base_dilation, 1),
            is_reversed=dimension.window_reversal,
        )
        for dimension in reduce_window.proto.window.dimensions
    )
