"""Measures the largest errors of the elementary functions and prints them as a table.

    python benchmarks/accuracy/ulp.py [--exhaustive] [--functions sine log ...] [--width 16]
    python benchmarks/accuracy/ulp.py --specials

Functions of one argument are compared with numpy's double functions on every float16 and bfloat16,
and on every 509th bit pattern of a float32 or, with --exhaustive, on all 2**32; functions of two
arguments on random pairs. double functions are compared with mpmath on random numbers of every
exponent and of usual sizes, the remainder, which is exact but takes denormal numbers for zero, with
the C library's.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import ml_dtypes
import mpmath
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from fuselane.codegen.elemental.floating import emit_floating
from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.codegen.math import MATH_OPCODES, define_short_roots
from fuselane.codegen.types import llvm_type
from fuselane.hlo.shape import PrimitiveType

Array = npt.NDArray[Any]
Kernel = Callable[..., Array]
Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]

OPCODES = MATH_OPCODES | {"remainder"}
BINARY = ("atan2", "power", "remainder")
STRIDE = 509
CHUNK = 1 << 16
NUM_PAIRS = {False: 1 << 22, True: 1 << 27}
NUM_DOUBLES = {False: 1_000, True: 20_000}
_PRECISION_BITS = 200


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A type of floats.

    Attributes:
        element_type: XLA's name for it.
        dtype: numpy's.
        precision: Bits of the mantissa, the hidden one included.
        exponents: Exponents of the smallest normal and of the largest number.
    """

    element_type: PrimitiveType
    dtype: Any
    precision: int
    exponents: tuple[int, int]


FORMATS = {
    "bfloat16": Format(
        element_type=PrimitiveType.BF16,
        dtype=ml_dtypes.bfloat16,
        precision=8,
        exponents=(-126, 127),
    ),
    "float16": Format(
        element_type=PrimitiveType.F16, dtype=np.float16, precision=11, exponents=(-14, 15)
    ),
    "float32": Format(
        element_type=PrimitiveType.F32, dtype=np.float32, precision=24, exponents=(-126, 127)
    ),
    "float64": Format(
        element_type=PrimitiveType.F64, dtype=np.float64, precision=53, exponents=(-1022, 1023)
    ),
}
_NUMPY: dict[str, Callable[..., Any]] = {
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "power": lambda x, y: np.power(x * 1.0, y * 1.0),  # without signalling NaNs
    "remainder": np.fmod,
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
    scalar = llvm_type(FORMATS[dtype].element_type)
    type_ = ir.VectorType(scalar, width) if width else scalar
    index = ir.IntType(64)
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType()] * (num_operands + 1) + [index])
    module = ir.Module()
    if not width:
        define_short_roots(module)
    function = ir.Function(module, signature, "kernel")
    *arrays, size = function.args
    entry, loop, done = (function.append_basic_block(name) for name in ("entry", "loop", "done"))
    ir.IRBuilder(entry).branch(loop)
    builder = ir.IRBuilder(loop)
    position = builder.phi(index)
    places = [builder.gep(array, [position], source_etype=scalar) for array in arrays]
    operands = [builder.load(place, typ=type_, align=2) for place in places[:-1]]
    builder.store(emit(builder, operands), places[-1], align=2)
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

    def emit(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
        return emit_floating(builder, opcode, operands, FORMATS[dtype].element_type)

    return compile_kernel(emit, dtype, width, arity(opcode))


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


def measure_float(opcode: str, dtype: str, width: int, *, exhaustive: bool) -> Measurement:
    """Compares a routine for a type smaller than double with double functions."""
    format_ = FORMATS[dtype]
    routine = compile_routine(opcode, dtype, width)
    exact_values = reference(opcode)
    errors_of = compile_kernel(functools.partial(_emit_errors, format_), "float64", 8, 2)
    worst, num_inputs = -1.0, 0
    where: tuple[float, ...] = ()
    for operands in _float_operands(opcode, format_, exhaustive):
        exact = exact_values(*(operand.astype(np.float64) for operand in operands))
        errors = errors_of(routine(*operands).astype(np.float64), exact)
        index = int(np.argmax(errors))
        num_inputs += errors.size
        if errors[index] > worst:
            worst = float(errors[index])
            where = tuple(float(operand[index]) for operand in operands)
    return Measurement(num_inputs=num_inputs, max_ulp=worst, operands=where)


def _emit_errors(format_: Format, builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Emits |value - exact| in units of the last place of `exact` in a format, all in double.

    An infinity counts as the number after the largest; NaN against a number is inf.
    """
    value, exact = operands
    type_ = exact.type
    bits_type = ir.VectorType(ir.IntType(64), type_.count)
    smallest, largest = format_.exponents

    def integer(number: int) -> ir.Constant:
        return ir.Constant(bits_type, [number] * type_.count)

    def number(number_: float) -> ir.Constant:
        return ir.Constant(type_, [number_] * type_.count)

    def clipped(operand: ir.Value) -> ir.Value:
        beyond_all = 2.0 ** (largest + 1)
        for relation, bound in ((">", number(beyond_all)), ("<", number(-beyond_all))):
            beyond = builder.fcmp_ordered(relation, operand, bound)
            operand = builder.select(beyond, bound, operand)
        return operand

    exact = clipped(exact)
    field = builder.lshr(builder.bitcast(exact, bits_type), integer(52))
    field = builder.and_(field, integer(0x7FF))
    for relation, bound in (("<", integer(1023 + smallest)), (">", integer(1023 + largest))):
        beyond = builder.icmp_unsigned(relation, field, bound)
        field = builder.select(beyond, bound, field)
    unit = builder.sub(integer(2 * 1023 + format_.precision - 1), field)
    scale = builder.shl(unit, integer(52))
    distance = builder.fsub(clipped(value), exact)
    negative = builder.fcmp_ordered("<", distance, number(0.0))
    distance = builder.select(negative, builder.fneg(distance), distance)
    error = builder.fmul(distance, builder.bitcast(scale, type_))
    value_is_nan, exact_is_nan = (builder.fcmp_unordered("uno", x, x) for x in (value, exact))
    error = builder.select(value_is_nan, number(0.0), error)
    differ = builder.xor(value_is_nan, exact_is_nan)
    return builder.select(differ, number(math.inf), error)


def _float_operands(opcode: str, format_: Format, exhaustive: bool) -> Iterator[tuple[Array, ...]]:
    """Yields arrays of arguments: all bit patterns, or every 509th of a float32; random pairs."""
    size = format_.element_type.bits
    pattern = np.dtype(f"uint{size}")
    if opcode not in BINARY:
        step = STRIDE if size > 16 and not exhaustive else 1
        for first in range(0, 1 << size, CHUNK * step):
            bits = np.arange(first, min(first + CHUNK * step, 1 << size), step, dtype=np.uint64)
            padded = np.resize(bits, CHUNK) if bits.size < CHUNK else bits
            yield (padded.astype(pattern).view(format_.dtype),)
        return
    rng = np.random.default_rng(0)
    for number in range(NUM_PAIRS[exhaustive] // CHUNK):
        yield _allowed(opcode, *_float_pairs(opcode, format_, rng, number % 4))


def _allowed(opcode: str, *operands: Array) -> tuple[Array, ...]:
    """Returns operands with those set to zero that a function takes for zero."""
    if opcode != "remainder":
        return operands
    smallest = np.finfo(np.float64 if operands[0].dtype == np.float64 else np.float32).tiny
    return tuple(np.where(np.abs(x) < smallest, x * 0, x).astype(x.dtype) for x in operands)


def _float_pairs(
    opcode: str, format_: Format, rng: np.random.Generator, kind: int
) -> tuple[Array, Array]:
    """Returns pairs: all bit patterns; usual sizes; and results in range from far and near 1."""
    size, dtype = format_.element_type.bits, format_.dtype
    if kind == 0:
        bits = rng.integers(0, 1 << size, (2, CHUNK), dtype=np.dtype(f"uint{size}"))
        first, second = bits.view(dtype)
        return first, second
    x, y = rng.normal(size=(2, CHUNK)).astype(np.float32)
    if kind == 1 or opcode != "power":
        return (x * np.float32(4.0 ** (kind - 1))).astype(dtype), y.astype(dtype)
    base = np.exp(x * 20) if kind == 2 else 1 + x * np.float32(1e-3)
    base = np.abs(base).astype(dtype)
    low, high = (exponent * math.log(2) for exponent in format_.exponents)
    logarithm = np.log(base.astype(np.float64) + 1e-12)
    # From the logarithm of the smallest denormal number to that of the largest.
    low -= format_.precision * math.log(2)
    exponent = rng.uniform(low, high + 1, CHUNK) / logarithm
    return base, exponent.astype(dtype)


def measure_double(opcode: str, dtype: str, width: int, *, exhaustive: bool) -> Measurement:
    """Compares a double routine with mpmath, on random numbers."""
    routine = compile_routine(opcode, dtype, width)
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
    if opcode == "remainder":
        return 0.0 if value == math.fmod(*operands) else math.inf
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
    if opcode == "remainder":
        dividend, divisor = _every_exponent(rng, 2 * count), _every_exponent(rng, 2 * count)
        is_close = np.arange(dividend.size) % 2 == 0
        divisor = np.where(is_close, dividend * rng.normal(size=dividend.size), divisor)
        return _padded(width, *np.where(np.isfinite(divisor), (dividend, divisor), 1.0))
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


def special_values(format_: Format) -> Array:
    """Returns NaN, infinities, zeros, and the smallest and largest denormal numbers."""
    smallest = 2.0 ** (format_.exponents[0] - format_.precision + 1)
    largest = 2.0 ** format_.exponents[0] - smallest
    numbers = [0.0, math.inf, smallest, largest]
    return np.array([math.nan, *numbers, *(-x for x in numbers)]).astype(format_.dtype)


def list_specials(opcode: str, dtype: str, width: int) -> tuple[Array, Array, Array]:
    """Returns special arguments (shape (arity, n)), what a routine makes of them, and what C does.

    Functions of two arguments get all pairs of special values and of ones and twos. The reference
    is rounded to the type; NaN has no sign.
    """
    format_ = FORMATS[dtype]
    values = special_values(format_)
    if opcode in BINARY:
        usual = np.array([1.0, -1.0, 2.0, -2.0, 0.5, 3.0]).astype(format_.dtype)
        values = np.concatenate([values, usual])
        pairs = np.meshgrid(values, values, indexing="ij")
        operands = np.stack(_allowed(opcode, *(x.ravel() for x in pairs)))
    else:
        operands = values[None]
    exact = reference(opcode)(*(np.ascontiguousarray(x, np.float64) for x in operands))
    padded = [np.ascontiguousarray(x) for x in _padded(width, *operands)]
    actual = compile_routine(opcode, dtype, width)(*padded)[: operands.shape[1]]
    return operands, actual, exact.astype(format_.dtype)


def differs(actual: Array, expected: Array) -> Array:
    """Returns where two arrays are not the same number, sign of zero included, within two units."""
    width = f"int{actual.dtype.itemsize * 8}"
    both_nan = np.isnan(actual) & np.isnan(expected)
    distance = np.abs(actual.view(width).astype(object) - expected.view(width).astype(object))
    return np.asarray(~both_nan & (distance > 2))


def print_specials(opcodes: Sequence[str], dtypes: Sequence[str], width: int) -> None:
    """Prints a row per function: what becomes of special values, and where that is not as in C."""
    names = ("NaN", "+0", "+inf", "least denormal", "largest denormal", "-0", "-inf")
    print(f"| function | {' | '.join(names)} | checked | not as in C |")
    print(f"|{'---|' * (len(names) + 3)}")
    for opcode in opcodes:
        found, num_checked, cells = [], 0, [""] * len(names)
        for dtype in dtypes:
            operands, actual, expected = list_specials(opcode, dtype, width)
            num_checked += actual.size
            wrong = np.flatnonzero(differs(actual, expected))
            found += [f"{dtype} {tuple(map(float, operands[:, i]))}: {actual[i]}" for i in wrong]
            if dtype == "float32" and opcode not in BINARY:
                cells = [format_special(*pair) for pair in zip(operands[0], actual, strict=True)]
        row = [f"`{opcode}`", *cells[: len(names)], f"{num_checked:,}", "; ".join(found)]
        print(f"| {' | '.join(row)} |", flush=True)


def format_special(operand: Any, result: Any) -> str:
    """Returns a result as text; x where it is the argument itself."""
    if result == operand and result != 0 and np.isfinite(result):
        return "x"
    return f"{float(result):.6g}"


def format_row(opcode: str, dtype: str, measured: Measurement) -> str:
    """Returns a line of the markdown table."""
    place = ", ".join(f"{operand!r}" for operand in measured.operands)
    count = "all 2^32" if measured.num_inputs == 1 << 32 else f"{measured.num_inputs:,}"
    return f"| `{opcode}` | {dtype} | {count} | {measured.max_ulp:.4f} | {place} |"


def main() -> None:
    """Measures and prints; one row per function and type, as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exhaustive", action="store_true", help="all 2**32 floats (slow)")
    parser.add_argument("--functions", nargs="+", choices=OPCODES, default=sorted(OPCODES))
    parser.add_argument("--types", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--specials", action="store_true", help="the table of special values")
    parser.add_argument(
        "--width", type=int, default=16, help="lanes of a vector; 0 for kernels without lanes"
    )
    options = parser.parse_args()
    with np.errstate(all="ignore"):
        if options.specials:
            print_specials(options.functions, options.types, options.width)
        else:
            print_errors(options)


def print_errors(options: argparse.Namespace) -> None:
    """Prints a row per function and type, as soon as it is known."""
    print("| function | type | arguments | largest error (ulp) | at |")
    print("|---|---|---|---|---|")
    for opcode in options.functions:
        for dtype in options.types:
            measure = measure_double if dtype == "float64" else measure_float
            measured = measure(opcode, dtype, options.width, exhaustive=options.exhaustive)
            print(format_row(opcode, dtype, measured), flush=True)


if __name__ == "__main__":
    main()
