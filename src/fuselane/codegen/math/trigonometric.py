"""sine, cosine and tan.

The angle is reduced to a remainder in [-pi/4, pi/4] and a quadrant. sine and cosine of one angle
start with the same instructions, so LLVM computes them once when a kernel asks for both.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from fuselane.codegen.math.argument_reduction import (
    LARGEST_SMALL_ANGLE_DOUBLE,
    ReducedAngle,
    largest_small_angle,
    reduce_float_as_double,
    reduce_large_angle,
    reduce_small_angle,
    reduce_small_angle_accurately,
)
from fuselane.codegen.math.emitter import FloatEmitter
from fuselane.codegen.math.polynomial import coefficients, emit_polynomial
from fuselane.codegen.math.rare import emit_rare
from fuselane.codegen.types import splat

# (sin(r) / r - 1) / r**2 in r**2, relative to sin(r).
_SINE_FLOAT = coefficients(
    """
    -0x1.555544p-3 0x1.1106aap-7 -0x1.990d74p-13
    """
)
_SINE_DOUBLE = coefficients(
    """
    -0x1.5555555555545p-3 0x1.111111110f25fp-7 -0x1.a01a019b4b6f8p-13 0x1.71de34ca29472p-19
    -0x1.ae5ddd5dfead3p-26 0x1.5d6b1f8027183p-33
    """
)
# (cos(r) - 1 + r**2 / 2) / r**4 in r**2, relative to cos(r).
_COSINE_FLOAT = coefficients(
    """
    0x1.555548p-5 -0x1.6c0af4p-10 0x1.99911cp-16
    """
)
_COSINE_DOUBLE = coefficients(
    """
    0x1.5555555555548p-5 -0x1.6c16c16c1498ep-10 0x1.a01a019beb5b1p-16 -0x1.27e4f77ad81f1p-22
    0x1.1ee98ae647505p-29 -0x1.8f7c8cb3f2e25p-37
    """
)
# (tan(r) / r - 1) / r**2 in r**2, relative to tan(r).
_TANGENT_FLOAT = coefficients(
    """
    0x1.555562p-2 0x1.110d1ap-3 0x1.baf0bap-5 0x1.5bd4d4p-6 0x1.679468p-7 -0x1.70741ap-14
    0x1.24a0ap-8
    """
)
_TANGENT_DOUBLE = coefficients(
    """
    0x1.555555555555fp-2 0x1.1111111110499p-3 0x1.ba1ba1bacfdfbp-5 0x1.664f485991c2dp-6
    0x1.226e3af56c8cfp-7 0x1.d6d2d4b66789cp-9 0x1.7db29d0754c26p-10 0x1.34b18e37ef43fp-11
    0x1.ffc54281433ddp-13 0x1.5b73f2e9c5928p-14 0x1.1f789d83be46ep-14 -0x1.ca221d0c224f9p-16
    0x1.a3c261d7e79dbp-15 -0x1.a2f6d8b10e0d8p-16 0x1.4e0a00a49ffa2p-17
    """
)

_OfReduced = Callable[[FloatEmitter, ir.Value, ReducedAngle], ir.Value]


def emit_sine(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the sine of x radians.

    Numerics: <= 1.6 ulp for all x; sin(-0.0) = -0.0; NaN for +-inf.
    """
    return _emit_sine(emitter, x, emitter.absolute(x), 0)


def emit_cosine(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the cosine of x radians: the sine of |x|, a quadrant further.

    Numerics: <= 1.6 ulp for all x; NaN for +-inf.
    """
    angle = emitter.absolute(x)
    return _emit_sine(emitter, angle, angle, 1)


def emit_tan(emitter: FloatEmitter, x: ir.Value) -> ir.Value:
    """Returns the tangent of x radians.

    Numerics: <= 2 ulp for all x; tan(-0.0) = -0.0; NaN for +-inf.
    """
    angle = emitter.absolute(x)
    usual = _tangent_of_reduced(emitter, x, reduce_small_angle_accurately(emitter, angle))

    def of_any(rare: FloatEmitter, x: ir.Value, usual: ir.Value) -> ir.Value:
        return _of_any(rare, x, usual, _tangent_of_reduced)

    return emit_rare(emitter, "tan", _is_large(emitter, angle), [x, usual], of_any)


def _emit_sine(emitter: FloatEmitter, x: ir.Value, angle: ir.Value, offset: int) -> ir.Value:
    """Returns sin(x + offset * pi / 2), given angle = |x|."""
    quadrant, remainder = reduce_small_angle(emitter, angle)
    if offset:
        quadrant = emitter.builder.add(quadrant, emitter.integer(offset))
    usual = _sine_of_reduced(emitter, None if offset else x, quadrant, remainder)
    scalar_offset = ir.Constant(ir.IntType(emitter.format.bits), offset)
    operands = [x, scalar_offset, usual]
    return emit_rare(emitter, "sine", _is_large(emitter, angle), operands, _sine_of_any)


def _sine_of_any(emitter: FloatEmitter, x: ir.Value, offset: ir.Value, usual: ir.Value) -> ir.Value:
    def of_reduced(some: FloatEmitter, x: ir.Value, angle: ReducedAngle) -> ir.Value:
        quadrant = some.builder.add(angle.quadrant, splat(some.builder, offset, some.width))
        return _sine_of_reduced(some, x, quadrant, angle.remainder)

    return _of_any(emitter, x, usual, of_reduced)


def _of_any(
    emitter: FloatEmitter, x: ir.Value, usual: ir.Value, of_reduced: _OfReduced
) -> ir.Value:
    """Replaces `usual` where angles are large: floats are reduced as doubles, all lanes at once, as
    long as they are small for those."""
    if emitter.is_double:
        return _lane_by_lane(emitter, x, usual, of_reduced)
    angle = emitter.absolute(x)
    value = of_reduced(emitter, x, reduce_float_as_double(emitter, angle))
    usual = emitter.select(_is_large(emitter, angle), value, usual)
    builder = emitter.builder
    huge = emitter.compare(">", angle, emitter.constant(LARGEST_SMALL_ANGLE_DOUBLE))
    condition = emitter.any(huge)
    before = builder.block
    with builder.if_then(condition, likely=False):
        replaced = _lane_by_lane(emitter, x, usual, of_reduced)
        inside = builder.block
    result = builder.phi(emitter.type)
    result.add_incoming(usual, before)
    result.add_incoming(replaced, inside)
    return result


def _is_large(emitter: FloatEmitter, angle: ir.Value) -> ir.Value:
    return emitter.compare(">", angle, emitter.constant(largest_small_angle(emitter)))


def _sine_of_reduced(
    emitter: FloatEmitter, sign: ir.Value | None, quadrant: ir.Value, remainder: ir.Value
) -> ir.Value:
    """Returns the sine of quadrant * pi / 2 + remainder, with the sign of `sign` on top."""
    sine, cosine = _sine_and_cosine(emitter, remainder)
    value = emitter.select(_is_odd(emitter, quadrant), cosine, sine)
    flips = emitter.shift_left(quadrant, emitter.format.bits - 2)
    if sign is not None:
        flips = emitter.builder.xor(flips, emitter.to_bits(sign))
    return emitter.flip_sign(value, flips)


def _tangent_of_reduced(emitter: FloatEmitter, x: ir.Value, angle: ReducedAngle) -> ir.Value:
    square = emitter.multiply(angle.remainder, angle.remainder)
    terms = _TANGENT_DOUBLE if emitter.is_double else _TANGENT_FLOAT
    tail = emit_polynomial(emitter, square, terms)
    cube = emitter.multiply(square, angle.remainder)
    # tan(r + low) = tan(r) + low * (1 + tan(r)**2).
    low = emitter.fma(angle.low, square, angle.low)
    tangent = emitter.add(angle.remainder, emitter.fma(cube, tail, low))
    odd = _is_odd(emitter, angle.quadrant)
    numerator = emitter.select(odd, emitter.constant(-1.0), tangent)
    denominator = emitter.select(odd, tangent, emitter.constant(1.0))
    return emitter.flip_sign(emitter.divide(numerator, denominator), emitter.to_bits(x))


def _sine_and_cosine(emitter: FloatEmitter, r: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns (sin(r), cos(r)) for |r| <= 1.02 * pi / 4."""
    square = emitter.multiply(r, r)
    sine_tail = emit_polynomial(emitter, square, _SINE_DOUBLE if emitter.is_double else _SINE_FLOAT)
    cube = emitter.multiply(square, r)
    sine = emitter.fma(cube, sine_tail, r)
    cosine_terms = _COSINE_DOUBLE if emitter.is_double else _COSINE_FLOAT
    cosine_tail = emit_polynomial(emitter, square, cosine_terms)
    cosine_tail = emitter.fma(cosine_tail, square, emitter.constant(-0.5))
    return sine, emitter.fma(cosine_tail, square, emitter.constant(1.0))


def _is_odd(emitter: FloatEmitter, quadrant: ir.Value) -> ir.Value:
    low_bit = emitter.builder.and_(quadrant, emitter.integer(1))
    return emitter.builder.icmp_unsigned("!=", low_bit, emitter.integer(0))


def _lane_by_lane(
    emitter: FloatEmitter, x: ir.Value, usual: ir.Value, of_reduced: _OfReduced
) -> ir.Value:
    """Replaces `usual` in the lanes with angles that are large as doubles, one after the other."""
    if not emitter.width:
        return _of_large_angle(emitter, x, of_reduced)
    builder = emitter.builder
    index_type = ir.IntType(32)
    entry = builder.block
    loop = builder.append_basic_block("lane")
    done = builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    lane = builder.phi(index_type)
    result = builder.phi(emitter.type)
    scalar = emitter.at(emitter.type.element)
    number = builder.extract_element(x, lane)
    bound = scalar.constant(LARGEST_SMALL_ANGLE_DOUBLE)
    large = scalar.compare(">", scalar.absolute(number), bound)
    before = builder.block
    with builder.if_then(large):
        value = _of_large_angle(scalar, number, of_reduced)
        replaced = builder.insert_element(result, value, lane)
        inside = builder.block
    merged = builder.phi(emitter.type)
    merged.add_incoming(result, before)
    merged.add_incoming(replaced, inside)
    next_lane = builder.add(lane, ir.Constant(index_type, 1))
    lane.add_incoming(ir.Constant(index_type, 0), entry)
    lane.add_incoming(next_lane, builder.block)
    result.add_incoming(usual, entry)
    result.add_incoming(merged, builder.block)
    more = builder.icmp_unsigned("<", next_lane, ir.Constant(index_type, emitter.width))
    builder.cbranch(more, loop, done)
    builder.position_at_end(done)
    return merged


def _of_large_angle(emitter: FloatEmitter, x: ir.Value, of_reduced: _OfReduced) -> ir.Value:
    return of_reduced(emitter, x, reduce_large_angle(emitter, emitter.absolute(x)))
