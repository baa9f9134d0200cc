"""Functions of complex numbers in random programs: two near values in, a part of one out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import jax
from jax import lax

from fuselane.fuzz.builder import COMPUTED, Builder, Operation
from fuselane.fuzz.kinds import Value, fit, full, near, number, part_of, resize, to_near
from fuselane.fuzz.program import Step

Function = Callable[[jax.Array], jax.Array]


def _shifted(function: Function) -> Function:
    """A function around 4, so that it is far from zero and has no jumps."""
    return lambda z: function(lax.add(z, full(4, z)))


def _smaller(function: Function) -> Function:
    return lambda z: function(lax.mul(z, full(0.25, z)))


FUNCTIONS: Final[Mapping[str, tuple[Function, float]]] = {
    "exponential": (lax.exp, 0.09),
    "sine": (lax.sin, 0.18),
    "cosine": (lax.cos, 0.18),
    "log": (_shifted(lax.log), 1.0),
    "sqrt": (_shifted(lax.sqrt), 0.75),
    "rsqrt": (_shifted(lax.rsqrt), 1.0),
    "sign": (_shifted(lax.sign), 1.0),
    "divide": (_shifted(lambda z: lax.div(full(4, z), z)), 0.7),
    "power": (_shifted(lambda z: lax.pow(z, full(1.25, z))), 0.2),
    "tan": (_smaller(lax.tan), 1.0),
    "tanh": (_smaller(lax.tanh), 1.0),
    "logistic": (_smaller(lax.logistic), 1.0),
    "exponential-minus-one": (_smaller(lax.expm1), 1.0),
    "log-plus-one": (_smaller(lax.log1p), 1.0),
    "abs": (_shifted(lambda z: lax.complex(lax.abs(z), lax.abs(z))), 0.3),
    "multiply": (lambda z: lax.mul(z, z), 0.1),
}
"""Each takes parts in [-2, 2] into such parts once multiplied by its factor, and then moves them no
farther than its parts are moved."""


def parts_of_function(name: str, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the scaled parts of a function of x + iy."""
    function, factor = FUNCTIONS[name]
    result = function(lax.complex(x, y))
    scale = number(factor, part_of(str(result.dtype)))
    return lax.real(result) * scale, lax.imag(result) * scale


def complex_function(builder: Builder, step: Step) -> Value:
    """A part of a function of a complex number."""
    found = builder.pick(step.operands[0], lambda value: value.kind in COMPUTED)
    real = to_near(found, "float64" if found.dtype == "float64" else "float32")
    other = builder.pick(step.operands[1], lambda value: value.kind in COMPUTED)
    imaginary = fit(other, real.kind, real.dtype, real.shape)
    names = tuple(FUNCTIONS)
    parts = parts_of_function(
        names[step.variant // 2 % len(names)], real.array, resize(imaginary.array, real.shape)
    )
    return near(parts[step.variant % 2], real, imaginary)


COMPLEX_FUNCTIONS: Final[Mapping[str, Operation]] = {"complex-function": complex_function}
