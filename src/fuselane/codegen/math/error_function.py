"""erf."""

from __future__ import annotations

from llvmlite import ir

from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial

# Below it erf is a polynomial, above it 1 minus the eighth power of one.
_SMALL = 1.25

# erf(x) / x - 1 in x**2 on [0, 1.25], relative to erf(x) / x.
_SMALL_FLOAT = coefficients(
    """
    0x1.06eba8p-3 -0x1.81274p-2 0x1.ce2dbcp-4 -0x1.b810e8p-6 0x1.554772p-8 -0x1.b46f0ap-11
    0x1.b0ca52p-14 -0x1.f27bfep-18
    """
)
_SMALL_DOUBLE = coefficients(
    """
    0x1.06eba8214db69p-3 -0x1.812746b037a14p-2 0x1.ce2f21a0443aep-4 -0x1.b82ce312d78e6p-6
    0x1.565bcd16e3f66p-8 -0x1.c02db5149b6dcp-11 0x1.f9a33d5d361c9p-14 -0x1.f4d38e3038d34p-17
    0x1.b9f19f13e2e5fp-20 -0x1.5fb362b1913abp-23 0x1.fe6b0adb5158dp-27
    -0x1.5352473fc99dap-30 0x1.891c49b0b811bp-34 -0x1.2a04304b6d4e5p-38
    """
)
# The eighth root of 1 - erf(x) on [1.25, 3.95] and [1.25, 5.95]; its eighth power relative to
# erf(x).
_LARGE_FLOAT = coefficients(
    """
    0x1.0061aep+0 -0x1.2ddeeap-3 -0x1.db3a3cp-5 -0x1.ca6a96p-7 0x1.cbd57ep-7 -0x1.63da86p-9
    0x1.68cb46p-13
    """
)
_LARGE_DOUBLE = coefficients(
    """
    0x1.fffff5d3b158dp-1 -0x1.20dc124a9f369p-3 -0x1.1d3ff097e66ccp-4 -0x1.0e618daf648ep-9
    0x1.ad08fc925dae9p-8 0x1.ec8163766555cp-13 -0x1.20ef541dc2cep-11 0x1.c81b76d4fab1ep-14
    -0x1.48d449107618cp-17 -0x1.23dc7b72d5fe6p-20 0x1.86d0ae8338d3bp-20
    -0x1.3cffb4341fc39p-21 0x1.288f1b50293b9p-23 -0x1.6960d9f222399p-26
    0x1.2abbd06824cbfp-29 -0x1.4b009a49315b9p-33 0x1.c433fbd1608f2p-38
    -0x1.239475f5acfbcp-43
    """
)


def emit_erf(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the error function, 2 / sqrt(pi) times the integral of e**-t**2 from 0 to x.

    Numerics: <= 1.7 ulp; erf(-0.0) = -0.0, erf(+-inf) = +-1.
    """
    magnitude = emitter.absolute(x)
    square = emitter.multiply(x, x)
    tail = emit_polynomial(emitter, square, _SMALL_DOUBLE if emitter.is_double else _SMALL_FLOAT)
    small = emitter.fma(magnitude, tail, magnitude)
    is_small = emitter.compare("<", magnitude, emitter.constant(_SMALL))
    value = emitter.select(is_small, small, _erf_of_large(emitter, magnitude))
    return emitter.copy_sign(value, x)


def _erf_of_large(emitter: FloatEmitter, magnitude: ir.Value) -> ir.Value:
    clamped = emitter.at_most(magnitude, 5.95 if emitter.is_double else 3.95)
    terms = _LARGE_DOUBLE if emitter.is_double else _LARGE_FLOAT
    # The last step by itself: its rounding counts eight times.
    slope = emit_polynomial(emitter, clamped, terms[1:])
    root = emitter.fma(slope, clamped, emitter.constant(terms[0]))
    fourth = emitter.multiply(root, root)
    fourth = emitter.multiply(fourth, fourth)
    return emitter.fma(emitter.negate(fourth), fourth, emitter.constant(1.0))
