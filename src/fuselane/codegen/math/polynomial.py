"""Polynomials with constant coefficients."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter

_LONGEST_CHAIN = 5


def coefficients(text: str) -> tuple[float, ...]:
    """Returns the numbers in a text of hexadecimal floating-point literals."""
    return tuple(float.fromhex(word) for word in text.split())


def emit_polynomial(
    emitter: FloatEmitter, x: ir.Value, terms: Sequence[float], square: ir.Value | None = None
) -> ir.Value:
    """Returns terms[0] + terms[1] * x + ...

    Short polynomials are one chain of multiply-adds (Horner). Longer ones are split into pairs of
    terms in `x * x`, again and again, which takes few more instructions and far less latency; none
    more where the caller has the square.

    Args:
        emitter: For the type of `x`.
        x: The variable.
        terms: The coefficients, at least one.
        square: x * x where the caller has it.
    Numerics: the result is within 1 ulp of its largest partial sum when terms fall quickly.
    """
    values: list[ir.Value] = [emitter.constant(term) for term in terms]
    power = square
    while len(values) > _LONGEST_CHAIN - (power is not None):
        values = _pair(emitter, x, values)
        x = power if power is not None else emitter.multiply(x, x)
        power = None
    result = values.pop()
    while values:
        result = emitter.fma(result, x, values.pop())
    return result


def _pair(emitter: FloatEmitter, x: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns a + b * x for all consecutive (a, b)."""
    pairs = zip(values[::2], values[1::2], strict=False)
    paired = [emitter.fma(high, x, low) for low, high in pairs]
    return paired + ([values[-1]] if len(values) % 2 else [])
