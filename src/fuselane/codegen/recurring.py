"""Loops of so many steps that end once their state is what it was some steps ago.

    done = 0
    while done < 1000:
        before = x
        for _ in range(min(64, 1000 - done)): x = f(x)
        done += 64
        if x == before: done = 1000 - (1000 - done) % 64      bit for bit, in all lanes

See `fuselane.analysis.recurrence` for when this is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from llvmlite import ir

from fuselane.codegen.arrays import Place
from fuselane.codegen.indexing import I64, i64
from fuselane.codegen.loops import Values, emit_counted_loop, emit_while_loop
from fuselane.codegen.types import any_lane, integer_constant, is_vector, like, scalar_type

_BITS: Final = {"half": 16, "float": 32, "double": 64}


def emit_recurring_loop(
    place: Place,
    trip_count: int,
    compared_after: int,
    carried: Sequence[ir.Value],
    body: Callable[[Values], Values],
) -> Values:
    """Emits `for _ in range(trip_count)` with loop-carried values and returns their last values.

    Args:
        place: Where.
        trip_count: Iterations.
        compared_after: After how many of them values are compared, a power of two.
        carried: Values at entry: all that an iteration goes by.
        body: Called once with the values of an iteration; returns those of the next. It may add
            blocks.
    """
    builder = place.builder

    def goes_on(values: Values) -> ir.Value:
        return builder.icmp_signed("<", values[0], i64(trip_count))

    def advance(values: Values) -> Values:
        done, *before = values
        left = builder.sub(i64(trip_count), done)
        is_last = builder.icmp_signed("<", left, i64(compared_after))
        steps = builder.select(is_last, left, i64(compared_after))
        after = emit_counted_loop(builder, steps, before, lambda _, v: body(v), name="steps")
        left = builder.sub(left, steps)
        rest = builder.and_(left, i64(compared_after - 1))
        left = builder.select(_differ(place, before, after), left, rest)
        return [builder.sub(i64(trip_count), left), *after]

    start = [ir.Constant(I64, 0), *carried]
    return emit_while_loop(builder, start, goes_on, advance, name="rounds")[1:]


def _differ(place: Place, before: Values, after: Values) -> ir.Value:
    """Emits whether values are not the same bits in all lanes that matter, i1."""
    builder, block = place.builder, place.block
    changes: dict[str, ir.Value] = {}
    for old, new in zip(before, after, strict=True):
        change = builder.xor(_bits(builder, old), _bits(builder, new))
        key = str(change.type)
        changes[key] = builder.or_(changes[key], change) if key in changes else change
    vectors: list[ir.Value] = []
    scalars: list[ir.Value] = []
    for change in changes.values():
        found = builder.icmp_unsigned("!=", change, integer_constant(change.type, 0))
        (vectors if is_vector(found) else scalars).append(found)
    if vectors:
        among = block.mask if block.active is None else block.active
        scalars.append(any_lane(builder, reduce(builder.or_, vectors), among))
    return reduce(builder.or_, scalars)


def _bits(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Returns a number as an integer of as many bits."""
    bits = _BITS.get(str(scalar_type(value)))
    return value if bits is None else builder.bitcast(value, like(value, ir.IntType(bits)))
