"""Measures the largest errors of the elementary functions and prints them as a table.

    python benchmarks/accuracy/ulp.py [--exhaustive] [--functions sine log ...] [--width 16]

float functions of one argument are compared with the C library's double functions, on every 509th
bit pattern or, with --exhaustive, on all 2**32; functions of two arguments on random pairs. double
functions are compared with mpmath on random numbers of every exponent and of usual sizes.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
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
CHUNK = 1 << 20
NUM_PAIRS = {False: 1 << 22, True: 1 << 27}
NUM_DOUBLES = {False: 1_000, True: 20_000}
_PRECISION_BITS = 200

_TYPES = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_LIBM = {
    "atan2": "atan2",
    "cbrt": "cbrt",
    "cosine": "cos",
    "erf": "erf",
    "exponential": "exp",
    "exponential-minus-one": "expm1",
    "log": "log",
    "log-plus-one": "log1p",
    "power": "pow",
    "sine": "sin",
    "tan": "tan",
    "tanh": "tanh",
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
        seconds: Duration of the measurement.
    """

    num_inputs: int
    max_ulp: float
    operands: tuple[float, ...]
    seconds: float


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


def compile_reference(opcode: str) -> Kernel:
    """Returns the C library's double function, or what defines the opcode by such functions."""

    def emit(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
        one = ir.Constant(ir.DoubleType(), 1.0)
        if opcode == "logistic":
            power = _call(builder, "exp", [builder.fneg(operands[0])])
            return builder.fdiv(one, builder.fadd(one, power))
        if opcode in ("sqrt", "rsqrt"):
            root = _call(builder, "llvm.sqrt.f64", operands)
            return root if opcode == "sqrt" else builder.fdiv(one, root)
        return _call(builder, _LIBM[opcode], operands)

    return compile_kernel(emit, "float64", 0, arity(opcode))


def _call(builder: ir.IRBuilder, name: str, operands: Sequence[ir.Value]) -> ir.Value:
    double = ir.DoubleType()
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(double, [double] * len(operands)), name
    )
    return builder.call(function, operands)


def arity(opcode: str) -> int:
    """Returns the number of operands."""
    return 2 if opcode in BINARY else 1


def measure_float(opcode: str, width: int, *, exhaustive: bool) -> Measurement:
    """Compares a float routine with the C library."""
    start = time.perf_counter()
    routine = compile_routine(opcode, "float32", width)
    reference = compile_reference(opcode)
    worst, num_inputs = -1.0, 0
    where: tuple[float, ...] = ()
    for operands in _float_operands(opcode, exhaustive):
        exact = reference(*(operand.astype(np.float64) for operand in operands))
        errors = float_errors(routine(*operands), exact)
        index = int(np.argmax(errors))
        num_inputs += errors.size
        if errors[index] > worst:
            worst = float(errors[index])
            where = tuple(float(operand[index]) for operand in operands)
    return Measurement(
        num_inputs=num_inputs,
        max_ulp=worst,
        operands=where,
        seconds=time.perf_counter() - start,
    )


def float_errors(values: Array, exact: Array) -> Array:
    """Returns |values - exact| in units of the last place of `exact` as a float.

    An infinity counts as 2**128, the number after the largest; NaN against a number is inf.
    """
    exponents = np.clip((exact.view(np.int64) >> 52) & 0x7FF, 1023 - 126, 1023 + 127)
    units = ((exponents - 23) << 52).view(np.float64)
    largest = 2.0**128
    distance = np.clip(values.astype(np.float64), -largest, largest)
    distance -= np.clip(exact, -largest, largest)
    errors = np.abs(distance) / units
    is_nan = np.isnan(values)
    errors[is_nan] = 0.0
    errors[is_nan != np.isnan(exact)] = np.inf
    return np.asarray(errors)


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
    start = time.perf_counter()
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
        seconds=time.perf_counter() - start,
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
