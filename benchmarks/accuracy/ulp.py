"""Measures the largest errors of the elementary functions and prints them as a table.

    python benchmarks/accuracy/ulp.py [--exhaustive] [--functions sine log ...] [--width 16]

float functions of one argument are compared with numpy's double functions, on every 509th bit
pattern or, with --exhaustive, on all 2**32; functions of two arguments on random pairs. double
functions are compared with mpmath on random numbers of every exponent and of usual sizes.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import mpmath
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from fuselane.codegen.llvm import compile_object, load_object
from fuselane.codegen.math import MATH_OPCODES, emit_math

Array = npt.NDArray[Any]
Kernel = Callable[..., Array]
Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]

BINARY = ("atan2", "power")
STRIDE = 509
CHUNK = 1 << 16
NUM_PAIRS = {False: 1 << 22, True: 1 << 27}
NUM_DOUBLES = {False: 1_000, True: 20_000}
_PRECISION_BITS = 200

_TYPES = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_NUMPY: dict[str, Callable[..., Any]] = {
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "power": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
_MPMATH: dict[str, Callable[..., Any]] = {
    "atan2": mpmath.atan2,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "cosine": mpmath.cos,
    "erf": mpmath.erf,
    "exponential": mpmath.exp,
    "exponential-minus-one": mpmath.expm1,
    "log": mpmath.log,
    "log-plus-one": mpmath.log1p,
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
    "power": mpmath.power,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sine": mpmath.sin,
    "sqrt": mpmath.sqrt,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The largest error found.

    Attributes:
        num_inputs: How many arguments (or pairs) were tried.
        max_ulp: In units in the last place of the exact result; inf where NaN or inf is wrong.
        operands: Where it is.
    """

    num_inputs: int
    max_ulp: float
    operands: tuple[float, ...]


def compile_kernel(emit: Emit, dtype: str, width: int, num_operands: int) -> Kernel:
    """Returns a function over arrays, of a size that `width` divides, for emitted code."""
    scalar = _TYPES[dtype]
    type_ = ir.VectorType(scalar, width) if width else scalar
    index = ir.IntType(64)
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType()] * (num_operands + 1) + [index])
    function = ir.Function(ir.Module(), signature, "kernel")
    *arrays, size = function.args
    entry, loop, done = (function.append_basic_block(name) for name in ("entry", "loop", "done"))
    ir.IRBuilder(entry).branch(loop)
    builder = ir.IRBuilder(loop)
    position = builder.phi(index)
    places = [builder.gep(array, [position], source_etype=scalar) for array in arrays]
    operands = [builder.load(place, typ=type_, align=4) for place in places[:-1]]
    builder.store(emit(builder, operands), places[-1], align=4)
    following = builder.add(position, ir.Constant(index, max(width, 1)))
    position.add_incoming(ir.Constant(index, 0), entry)
    position.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, size), loop, done)
    ir.IRBuilder(done).ret_void()
    loaded = load_object(compile_object(function.module))
    arguments = [ctypes.c_void_p] * (num_operands + 1) + [ctypes.c_int64]
    call = ctypes.CFUNCTYPE(None, *arguments)(loaded.address("kernel"))

    def run(*operands: Array) -> Array:
        result = np.empty_like(operands[0])
        call(*(operand.ctypes.data for operand in operands), result.ctypes.data, result.size)
        return result

    run.__dict__["code"] = loaded
    return run


def compile_routine(opcode: str, dtype: str, width: int) -> Kernel:
    """Returns one of the package's functions over arrays."""
    return compile_kernel(
        lambda builder, operands: emit_math(builder, opcode, operands), dtype, width, arity(opcode)
    )


def reference(opcode: str) -> Kernel:
    """Returns numpy's double function; the C library's erf, which numpy lacks."""
    return compile_kernel(_emit_erf, "float64", 0, 1) if opcode == "erf" else _NUMPY[opcode]


def _emit_erf(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    double = ir.DoubleType()
    function = ir.Function(builder.module, ir.FunctionType(double, [double]), "erf")
    return builder.call(function, operands)


def arity(opcode: str) -> int:
    """Returns the number of operands."""
    return 2 if opcode in BINARY else 1


def measure_float(opcode: str, width: int, *, exhaustive: bool) -> Measurement:
    """Compares a float routine with double functions."""
    routine = compile_routine(opcode, "float32", width)
    exact_values = reference(opcode)
    errors_of = compile_kernel(_emit_errors, "float64", 8, 2)
    worst, num_inputs = -1.0, 0
    where: tuple[float, ...] = ()
    for operands in _float_operands(opcode, exhaustive):
        exact = exact_values(*(operand.astype(np.float64) for operand in operands))
        errors = errors_of(routine(*operands).astype(np.float64), exact)
        index = int(np.argmax(errors))
        num_inputs += errors.size
        if errors[index] > worst:
            worst = float(errors[index])
            where = tuple(float(operand[index]) for operand in operands)
    return Measurement(num_inputs=num_inputs, max_ulp=worst, operands=where)


def _emit_errors(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Emits |value - exact| in units of the last place of `exact` as a float, all in double.

    An infinity counts as 2**128, the number after the largest; NaN against a number is inf.
    """
    value, exact = operands
    type_ = exact.type
    bits_type = ir.VectorType(ir.IntType(64), type_.count)

    def integer(number: int) -> ir.Constant:
        return ir.Constant(bits_type, [number] * type_.count)

    def number(number_: float) -> ir.Constant:
        return ir.Constant(type_, [number_] * type_.count)

    def clipped(operand: ir.Value) -> ir.Value:
        for relation, bound in ((">", number(2.0**128)), ("<", number(-(2.0**128)))):
            beyond = builder.fcmp_ordered(relation, operand, bound)
            operand = builder.select(beyond, bound, operand)
        return operand

    exact = clipped(exact)
    field = builder.lshr(builder.bitcast(exact, bits_type), integer(52))
    field = builder.and_(field, integer(0x7FF))
    for relation, bound in (("<", integer(1023 - 126)), (">", integer(1023 + 127))):
        beyond = builder.icmp_unsigned(relation, field, bound)
        field = builder.select(beyond, bound, field)
    scale = builder.shl(builder.sub(integer(2 * 1023 + 23), field), integer(52))
    distance = builder.fsub(clipped(value), exact)
    negative = builder.fcmp_ordered("<", distance, number(0.0))
    distance = builder.select(negative, builder.fneg(distance), distance)
    error = builder.fmul(distance, builder.bitcast(scale, type_))
    value_is_nan, exact_is_nan = (builder.fcmp_unordered("uno", x, x) for x in (value, exact))
    error = builder.select(value_is_nan, number(0.0), error)
    differ = builder.xor(value_is_nan, exact_is_nan)
    return builder.select(differ, number(math.inf), error)


def _float_operands(opcode: str, exhaustive: bool) -> Iterator[tuple[Array, ...]]:
    if opcode not in BINARY:
        step = 1 if exhaustive else STRIDE
        for first in range(0, 1 << 32, CHUNK * step):
            bits = np.arange(first, min(first + CHUNK * step, 1 << 32), step, dtype=np.uint64)
            padded = np.resize(bits, CHUNK) if bits.size < CHUNK else bits
            yield (padded.astype(np.uint32).view(np.float32),)
        return
    rng = np.random.default_rng(0)
    for number in range(NUM_PAIRS[exhaustive] // CHUNK):
        yield _float_pairs(opcode, rng, number % 4)


def _float_pairs(opcode: str, rng: np.random.Generator, kind: int) -> tuple[Array, Array]:
    """Returns pairs: all bit patterns; usual sizes; and results in range from far and near 1."""
    if kind == 0:
        bits = rng.integers(0, 1 << 32, (2, CHUNK), dtype=np.uint32)
        return tuple(bits.view(np.float32))
    x, y = rng.normal(size=(2, CHUNK)).astype(np.float32)
    if kind == 1 or opcode != "power":
        return x * np.float32(4.0 ** (kind - 1)), y
    base = np.exp(x * 20) if kind == 2 else 1 + x * np.float32(1e-3)
    base = np.abs(base).astype(np.float32)
    exponent = rng.uniform(-104, 89, CHUNK) / np.log(base.astype(np.float64) + 1e-12)
    return base, exponent.astype(np.float32)


def measure_double(opcode: str, width: int, *, exhaustive: bool) -> Measurement:
    """Compares a double routine with mpmath, on random numbers."""
    routine = compile_routine(opcode, "float64", width)
    operands = double_operands(opcode, NUM_DOUBLES[exhaustive], width)
    values = routine(*operands)
    errors = [
        double_error(opcode, float(value), numbers)
        for value, *numbers in zip(values, *operands, strict=True)
    ]
    index = int(np.argmax(errors))
    return Measurement(
        num_inputs=len(errors),
        max_ulp=errors[index],
        operands=tuple(float(operand[index]) for operand in operands),
    )


def double_error(opcode: str, value: float, operands: Sequence[float]) -> float:
    """Returns |value - exact| in units of the last place of the exact result."""
    with mpmath.workprec(_PRECISION_BITS):
        exact = _MPMATH[opcode](*(mpmath.mpf(float(operand)) for operand in operands))
        if abs(exact) >= mpmath.mpf(2) ** 1024 - mpmath.mpf(2) ** 970:
            return 0.0 if value == math.copysign(math.inf, exact) else math.inf
        if not math.isfinite(value):
            return math.inf
        exponent = max(mpmath.frexp(exact)[1], -1021)
        return float(abs(mpmath.mpf(value) - exact) * mpmath.mpf(2) ** (53 - exponent))


def double_operands(opcode: str, count: int, width: int = 1) -> tuple[Array, ...]:
    """Returns random arguments of which the function has a finite value, or overflows."""
    rng = np.random.default_rng(1)
    if opcode == "power":
        base = np.concatenate([np.abs(_every_exponent(rng, count)), 1 + rng.normal(size=count) / 9])
        base = np.abs(base)
        exponent = rng.uniform(-740, 705, base.size) / np.log(base)
        return _padded(width, base, exponent)
    if opcode == "atan2":
        scales = _every_exponent(rng, 2 * count)
        return _padded(
            width,
            scales * rng.normal(size=scales.size),
            scales * rng.normal(size=scales.size),
        )
    parts = [
        _every_exponent(rng, count),
        rng.normal(size=count) * 3,
        rng.uniform(-750, 750, count),
        rng.choice([-1.0, 1.0], count) + rng.normal(size=count) / 4,
        rng.integers(0, 2**30, count) * (math.pi / 2),
    ]
    return _padded(width, _in_domain(opcode, np.concatenate(parts)))


def _every_exponent(rng: np.random.Generator, count: int) -> Array:
    numbers = np.ldexp(rng.uniform(1, 2, count), rng.integers(-1021, 1023, count))
    return np.asarray(numbers * rng.choice([-1.0, 1.0], count))


def _in_domain(opcode: str, x: Array) -> Array:
    if opcode in ("log", "rsqrt", "sqrt"):
        return np.abs(x)
    return x[x > -1] if opcode == "log-plus-one" else x


def _padded(width: int, *operands: Array) -> tuple[Array, ...]:
    size = -(-operands[0].size // max(width, 1)) * max(width, 1)
    return tuple(np.resize(operand, size) for operand in operands)


def format_row(opcode: str, dtype: str, measured: Measurement) -> str:
    """Returns a line of the markdown table."""
    place = ", ".join(f"{operand!r}" for operand in measured.operands)
    count = "all 2^32" if measured.num_inputs == 1 << 32 else f"{measured.num_inputs:,}"
    return f"| `{opcode}` | {dtype} | {count} | {measured.max_ulp:.4f} | {place} |"


def main() -> None:
    """Measures and prints; one row per function and type, as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exhaustive", action="store_true", help="all 2**32 floats (slow)")
    parser.add_argument("--functions", nargs="+", default=sorted(MATH_OPCODES))
    parser.add_argument("--types", nargs="+", default=["float32", "float64"])
    parser.add_argument("--width", type=int, default=16, help="lanes of a vector, 0 for scalars")
    options = parser.parse_args()
    print("| function | type | arguments | largest error (ulp) | at |")
    print("|---|---|---|---|---|")
    measures = {"float32": measure_float, "float64": measure_double}
    with np.errstate(all="ignore"):
        for opcode in options.functions:
            for dtype in options.types:
                measured = measures[dtype](opcode, options.width, exhaustive=options.exhaustive)
                print(format_row(opcode, dtype, measured), flush=True)


if __name__ == "__main__":
    main()
