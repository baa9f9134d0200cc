"""What one lane of a random program does, traced by JAX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, final

import jax
import numpy as np
from jax import lax

from fuselane.fuzz.kinds import (
    ALL_KINDS,
    INTEGERS,
    Kind,
    Value,
    cast,
    common_kind,
    fit,
    fits,
    is_floating,
)
from fuselane.fuzz.program import NUMBER, Step

LARGEST: Final = 300
"""Elements a value of one lane has at most."""

MAX_DEPTH: Final = 3
"""How deep loops and branches nest inside the outer loop."""

Accept = Callable[[Value], bool]
Operation = Callable[["Builder", Step], Value]

EXACT: Final = frozenset({Kind.EXACT})
COMPUTED: Final = frozenset({Kind.EXACT, Kind.NEAR})
"""Kinds on which several operations may be done one after another."""


@final
class Builder:
    """Builds what one lane does, step by step.

    Attributes:
        values: All values made so far, by number.
        depth: How many inner loops and branches are around.
        smooth: Whether all has a gradient: trip counts are constants, and of near values there is
            no choice of the largest.
        axes: JAX's names of the dimensions of lanes, where these can meet.
        table: A vector that all lanes have together, if there is one.
    """

    def __init__(
        self,
        operations: Mapping[str, Operation],
        values: Mapping[int, Value],
        depth: int = 0,
        *,
        smooth: bool = False,
        axes: tuple[str, ...] = (),
        table: jax.Array | None = None,
    ) -> None:
        self._operations = operations
        self.values = dict(values)
        self.depth = depth
        self.smooth = smooth
        self.axes = axes
        self.table = table

    def run(self, body: Sequence[Step]) -> None:
        """Applies steps in order."""
        for step in body:
            value = self._operations[step.operation](self, step)
            if value.array.size > LARGEST:
                flat = lax.reshape(value.array, (value.array.size,))
                value = value.moved(lax.slice_in_dim(flat, 0, LARGEST))
            self.values[step.number] = value

    def pick(self, wanted: int, accept: Accept = lambda value: True) -> Value:
        """Returns the acceptable value whose number is the nearest up to the wanted one, or else
        the first; if there is none, the number of the loop's step."""
        numbers = sorted(n for n, value in self.values.items() if accept(value))
        below = [n for n in numbers if n <= wanted]
        return self.values[below[-1] if below else numbers[0] if numbers else NUMBER]

    def exact(self, wanted: int, accept: Accept = lambda value: True) -> Value:
        """Returns an exact value."""
        return self.pick(wanted, lambda value: value.kind is Kind.EXACT and accept(value))

    def array(self, wanted: int, kinds: Collection[Kind] = ALL_KINDS) -> Value:
        """Returns a value with dimensions; a few numbers if there is none."""
        value = self.pick(wanted, lambda value: value.kind in kinds and bool(value.shape))
        if value.shape:
            return value
        first = self.values[NUMBER].array
        return Value(lax.iota(first.dtype, 7) * first)

    def index(self, wanted: int) -> jax.Array:
        """Returns an integer of one lane, most often a small one."""
        array = self.exact(wanted, lambda value: not value.shape and value.dtype in INTEGERS).array
        # JAX itself fails at indices whose type can't hold the size.
        return array if array.dtype.itemsize >= 4 else lax.convert_element_type(array, "int32")

    def count(self, wanted: int, limit: int) -> jax.Array:
        """Returns an int32 between 0 and `limit - 1`."""
        array = lax.convert_element_type(self.index(wanted), "uint32")
        return lax.convert_element_type(lax.rem(array, np.uint32(limit)), "int32")

    def small(self, wanted: int) -> jax.Array:
        """Returns an int32 from a value's low bits; negative ones are rare."""
        return cast(self.exact(wanted, lambda value: not value.shape).array, "int32")

    def like(self, wanted: int, value: Value) -> Value:
        """Returns a value that goes with another: of its kind, type and shape."""
        found = self.pick(wanted, lambda other: fits(other, value.kind, value.dtype))
        return fit(found, value.kind, value.dtype, value.shape)

    def together(self, first: int, second: int) -> tuple[Value, Value, Kind]:
        """Returns two values of the first one's type and shape, and of a common kind."""
        left = self.pick(first)
        right = self.pick(second, lambda other: _go_together(left, other))
        kind = common_kind((left, right))
        assert kind is not None  # exact values go with all
        left = fit(left, kind, left.dtype, left.shape)
        return left, fit(right, kind, left.dtype, left.shape), kind

    def inner(self, step: Step, extra: Sequence[Value]) -> Builder:
        """Returns a builder that has run the body of a step, which may use all values so far."""
        numbered = {step.number + 1 + i: value for i, value in enumerate(extra)}
        values = {**self.values, **numbered}
        builder = Builder(
            self._operations,
            values,
            self.depth + 1,
            smooth=self.smooth,
            axes=self.axes,
            table=self.table,
        )
        builder.run(step.body)
        return builder

    def last(self, step: Step) -> Value:
        """Returns what the last step of the body of a step made."""
        return self.pick(step.body[-1].number if step.body else step.number)

    def next(self, step: Step, like: Value) -> Value:
        """Returns the last value of the body of a step that fits another one, fitted to it."""
        last = step.body[-1].number if step.body else step.number
        return self.like(last, like)


def _go_together(left: Value, right: Value) -> bool:
    kind = common_kind((left, right))
    if kind is None or not fits(right, kind, left.dtype) or not fits(left, kind, left.dtype):
        return False
    return kind is not Kind.NEAR or is_floating(left.dtype)
