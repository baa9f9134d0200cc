"""Every elementwise opcode and type against XLA:CPU on the values where they change behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax._src.lax import lax as lax_internal
from jax._src.lib.mlir.dialects import hlo  # type: ignore[attr-defined]
from jax.extend.core import Primitive
from jax.interpreters import mlir
from llvmlite import ir

from fuselane.codegen.elemental import ELEMENTAL_OPCODES, emit_elemental
from fuselane.codegen.types import constant, width_of
from fuselane.errors import CodegenError
from fuselane.hlo.shape import PrimitiveType
from tests.codegen.harness import Case, CompiledCases, Emit, NumpyArray, compile_cases
from tests.differential.values import special_values, without_ambiguous
from tests.hlo.xla import UNOPTIMISED

Reference = Callable[..., jax.Array]

WIDTH: Final = 16
PRED = PrimitiveType.PRED
SIGNED: Final = tuple(PrimitiveType[name] for name in ("S8", "S16", "S32", "S64"))
UNSIGNED: Final = tuple(PrimitiveType[name] for name in ("U8", "U16", "U32", "U64"))
INTEGERS: Final = SIGNED + UNSIGNED
FLOATS: Final = tuple(PrimitiveType[name] for name in ("F16", "BF16", "F32", "F64"))
ALL_TYPES: Final = (PRED, *INTEGERS, *FLOATS)
DIRECTIONS: Final = ("EQ", "NE", "LT", "LE", "GT", "GE")
REDUCED_PRECISIONS: Final = ((5, 10), (8, 7), (5, 2), (8, 23), (4, 3), (2, 1), (11, 52))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An opcode with its attributes, and the function of JAX that gives that instruction.

    Attributes:
        max_ulp: Distance allowed from XLA's own result, where both sides approximate.
        flushes: Whether denormal results may be zero where XLA's are not.
    """

    name: str
    opcode: str
    arity: int
    reference: Reference
    attributes: tuple[tuple[str, Any], ...] = ()
    result_type: PrimitiveType | None = None
    max_ulp: int = 0
    flushes: bool = False


def same_type(opcode: str, arity: int, reference: Reference, max_ulp: int = 0) -> Operation:
    return Operation(name=opcode, opcode=opcode, arity=arity, reference=reference, max_ulp=max_ulp)


def compare(direction: str, *, total_order: bool = False) -> Operation:
    reference = getattr(lax, direction.lower())
    if total_order:
        reference = getattr(lax_internal, f"{direction.lower()}_to_p").bind
    return Operation(
        name=f"compare-{direction}{'-total' if total_order else ''}",
        opcode="compare",
        arity=2,
        reference=reference,
        attributes=(("direction", direction), ("total_order", total_order)),
        result_type=PRED,
    )


def reduce_precision(exponent_bits: int, mantissa_bits: int) -> Operation:
    return Operation(
        name=f"reduce-precision-{exponent_bits}-{mantissa_bits}",
        opcode="reduce-precision",
        arity=1,
        reference=lambda x: lax.reduce_precision(x, exponent_bits, mantissa_bits),
        attributes=(("exponent_bits", exponent_bits), ("mantissa_bits", mantissa_bits)),
    )


ANY_TYPE: Final = (
    *(compare(direction) for direction in DIRECTIONS),
    Operation(
        name="select",
        opcode="select",
        arity=2,
        reference=lambda x, y: lax.select(lax.ne(y, lax.full_like(y, 1)), x, y),
    ),
    same_type("copy", 1, lambda x: x),
    same_type("maximum", 2, lax.max),
    same_type("minimum", 2, lax.min),
)
BITWISE: Final = (
    same_type("and", 2, lax.bitwise_and),
    same_type("or", 2, lax.bitwise_or),
    same_type("xor", 2, lax.bitwise_xor),
    same_type("not", 1, lax.bitwise_not),
)
ARITHMETIC: Final = (
    same_type("add", 2, lax.add),
    same_type("subtract", 2, lax.sub),
    same_type("multiply", 2, lax.mul),
    same_type("divide", 2, lax.div),
    Operation(name="remainder", opcode="remainder", arity=2, reference=lax.rem, flushes=True),
    same_type("sign", 1, lax.sign),
    same_type("negate", 1, lax.neg),
    same_type("clamp", 3, lax.clamp),
)
INTEGER: Final = (
    *ARITHMETIC,
    *BITWISE,
    same_type("shift-left", 2, lax.shift_left),
    same_type("shift-right-logical", 2, lax.shift_right_logical),
    same_type("shift-right-arithmetic", 2, lax.shift_right_arithmetic),
    same_type("mulhi", 2, lax.mulhi),
    same_type("popcnt", 1, lax.population_count),
    same_type("count-leading-zeros", 1, lax.clz),
)
FLOATING: Final = (
    *ARITHMETIC,
    *(compare(direction, total_order=True) for direction in ("EQ", "LT", "LE")),
    *(reduce_precision(*bits) for bits in REDUCED_PRECISIONS),
    same_type("abs", 1, lax.abs),
    same_type("ceil", 1, lax.ceil),
    same_type("floor", 1, lax.floor),
    same_type("round-nearest-afz", 1, lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)),
    same_type("round-nearest-even", 1, lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
    same_type("sqrt", 1, lax.sqrt),
    Operation(
        name="is-finite", opcode="is-finite", arity=1, reference=lax.is_finite, result_type=PRED
    ),
)
TRANSCENDENTAL: Final = (
    same_type("atan2", 2, lax.atan2, 4),
    same_type("cbrt", 1, lax.cbrt, 4),
    same_type("cosine", 1, lax.cos, 4),
    same_type("erf", 1, lax.erf, 6),
    same_type("exponential", 1, lax.exp, 4),
    same_type("exponential-minus-one", 1, lax.expm1, 4),
    same_type("log", 1, lax.log, 4),
    same_type("log-plus-one", 1, lax.log1p, 4),
    same_type("logistic", 1, lax.logistic, 6),
    same_type("power", 2, lax.pow, 8),
    same_type("rsqrt", 1, lax.rsqrt, 4),
    same_type("sine", 1, lax.sin, 4),
    same_type("tan", 1, lax.tan, 6),
    same_type("tanh", 1, lax.tanh, 6),
)


def operations_of(element_type: PrimitiveType) -> tuple[Operation, ...]:
    if element_type is PRED:
        return (*ANY_TYPE, *BITWISE)
    if element_type.is_floating:
        return (*ANY_TYPE, *FLOATING)
    extra = (same_type("abs", 1, lax.abs),) if element_type.is_signed else ()
    return (*ANY_TYPE, *INTEGER, *extra)


def emitter(operation: Operation, element_type: PrimitiveType) -> Emit:
    result_type = operation.result_type or element_type
    types = [element_type] * operation.arity

    def emit(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
        if operation.opcode == "select":
            width = width_of(operands[1])
            ones = [operands[1], constant(element_type, 1, width)]
            differs = emit_elemental(builder, "compare", ones, types, PRED, direction="NE")
            return emit_elemental(
                builder, "select", [differs, *operands], [PRED, *types], result_type
            )
        attributes = dict(operation.attributes)
        return emit_elemental(builder, operation.opcode, operands, types, result_type, **attributes)

    return emit


def as_case(operation: Operation, element_type: PrimitiveType) -> Case:
    return Case(
        name=f"{operation.name}.{element_type.lower}",
        emit=emitter(operation, element_type),
        operand_types=(element_type,) * operation.arity,
        result_type=operation.result_type or element_type,
    )


def values_of(element_type: PrimitiveType) -> NumpyArray:
    """Returns special values of a type and some random ones."""
    values = special_values(str(element_type.dtype))
    generator = np.random.default_rng(1)
    if element_type is PRED:
        return values
    bits = generator.integers(0, 1 << element_type.bits, 10, dtype=np.uint64)
    random = bits.astype(f"u{element_type.byte_size}").view(element_type.dtype)
    return np.concatenate([values, random])


def operands_of(element_type: PrimitiveType, group: str, arity: int) -> list[NumpyArray]:
    """Returns all pairs of values (for three operands some triples), padded to whole vectors.

    Transcendental functions get no denormals: XLA's own take them for zero only here and there.
    """
    values = without_ambiguous(values_of(element_type))
    return arrange(flush(values) if group == "transcendental" else values, arity)


def arrange(values: NumpyArray, arity: int) -> list[NumpyArray]:
    size = values.size**2
    pairs = [np.repeat(values, values.size), np.tile(values, values.size)]
    third = np.resize(np.roll(values, 3), size + 1)[1:]
    padded = -(-size // WIDTH) * WIDTH
    return [np.resize(operand, padded) for operand in (*pairs, third)[:arity]]


@cache
def reference_results(element_type: PrimitiveType, group: str) -> dict[str, NumpyArray]:
    """Returns what XLA:CPU gives for each operation of a group, from one compilation."""
    operations = group_of(element_type, group)
    operands = operands_of(element_type, group, 3)

    def program(*arrays: jax.Array) -> list[jax.Array]:
        return [operation.reference(*arrays[: operation.arity]) for operation in operations]

    with jax.enable_x64(True):
        results = jax.jit(program).lower(*operands).compile(UNOPTIMISED)(*operands)
    return {
        operation.name: np.asarray(result)
        for operation, result in zip(operations, results, strict=True)
    }


def group_of(element_type: PrimitiveType, group: str) -> tuple[Operation, ...]:
    return TRANSCENDENTAL if group == "transcendental" else operations_of(element_type)


@cache
def compiled(group: str) -> CompiledCases:
    types = FLOATS if group == "transcendental" else ALL_TYPES
    return compile_cases(
        [as_case(operation, type_) for type_ in types for operation in group_of(type_, group)],
        (0, WIDTH),
    )


def check_equal(ours: NumpyArray, reference: NumpyArray, operands: Sequence[NumpyArray]) -> None:
    """Asserts equal bits, NaN counting as equal to any NaN; says for which operands not."""
    assert ours.dtype == reference.dtype
    bits = f"u{ours.dtype.itemsize}"
    differ = ours.view(bits) != reference.view(bits)
    differ &= ~(is_nan(ours) & is_nan(reference))
    assert not differ.any(), describe(differ, ours, reference, operands)


def check_close(
    ours: NumpyArray, reference: NumpyArray, operands: Sequence[NumpyArray], max_ulp: int
) -> None:
    """Asserts results a few units in the last place apart; exactly the same where not finite."""
    tiny = smallest_normal(ours.dtype)
    flushed = [
        np.where(np.abs(array) <= tiny, np.copysign(np.zeros_like(array), array), array)
        for array in (ours, reference)
    ]
    keys = [ordered_integers(array) for array in flushed]
    special = ~(np.isfinite(flushed[0]) & np.isfinite(flushed[1]))
    distance = np.abs(keys[0] - keys[1])
    differ = np.where(special, distance != 0, distance > max_ulp)
    differ &= ~(is_nan(ours) & is_nan(reference))
    assert not differ.any(), describe(differ, ours, reference, operands)


def ordered_integers(array: NumpyArray) -> NumpyArray:
    """Returns integers in the order of the floats, neighbours one apart, as Python integers."""
    bits = array.dtype.itemsize * 8
    raw = array.view(f"u{array.dtype.itemsize}").astype(object)
    return np.asarray(np.where(raw >> (bits - 1), -(raw & ((1 << (bits - 1)) - 1)), raw))


def flush(array: NumpyArray) -> NumpyArray:
    if array.dtype.kind in "iub":
        return array
    denormal = np.less(np.abs(array), smallest_normal(array.dtype))
    return np.asarray(np.where(denormal, np.copysign(np.zeros_like(array), array), array)).astype(
        array.dtype
    )


def smallest_normal(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).tiny)


def is_nan(array: NumpyArray) -> NumpyArray:
    return np.isnan(array) if array.dtype.kind not in "iub" else np.zeros(array.shape, bool)


def describe(
    differ: NumpyArray,
    ours: NumpyArray,
    reference: NumpyArray,
    operands: Sequence[NumpyArray],
) -> str:
    where = np.flatnonzero(differ)
    lines = [
        f"{[operand[i] for operand in operands]}: {ours[i]!r}, XLA {reference[i]!r}"
        for i in where[:12]
    ]
    return f"{where.size} of {ours.size} differ\n" + "\n".join(lines)


@pytest.mark.parametrize("width", [0, WIDTH])
@pytest.mark.parametrize(
    ("element_type", "operation"),
    [
        pytest.param(type_, operation, id=f"{type_.lower}-{operation.name}")
        for type_ in ALL_TYPES
        for operation in operations_of(type_)
    ],
)
def test_equals_xla(element_type: PrimitiveType, operation: Operation, width: int) -> None:
    operands = operands_of(element_type, "exact", operation.arity)
    name = f"{operation.name}.{element_type.lower}"
    ours = compiled("exact").run(name, width, *operands)
    reference = reference_results(element_type, "exact")[operation.name]
    if operation.flushes:
        ours, reference = flush(ours), flush(reference)
    check_equal(ours, reference, operands)


@pytest.mark.parametrize("width", [0, WIDTH])
@pytest.mark.parametrize("operation", TRANSCENDENTAL, ids=lambda operation: operation.name)
@pytest.mark.parametrize("element_type", FLOATS, ids=lambda type_: type_.lower)
def test_close_to_xla(element_type: PrimitiveType, operation: Operation, width: int) -> None:
    operands = operands_of(element_type, "transcendental", operation.arity)
    name = f"{operation.name}.{element_type.lower}"
    ours = compiled("transcendental").run(name, width, *operands)
    reference = reference_results(element_type, "transcendental")[operation.name]
    check_close(ours, reference, operands, operation.max_ulp)


def conversion_name(source: PrimitiveType, target: PrimitiveType) -> str:
    return f"{source.lower}-to-{target.lower}"


def convert_case(source: PrimitiveType, target: PrimitiveType, opcode: str = "convert") -> Case:
    return Case(
        name=conversion_name(source, target),
        emit=lambda builder, operands: emit_elemental(builder, opcode, operands, [source], target),
        operand_types=(source,),
        result_type=target,
    )


@cache
def compiled_conversions() -> CompiledCases:
    cases = [convert_case(source, target) for source in ALL_TYPES for target in ALL_TYPES]
    return compile_cases(cases, (0, WIDTH))


def conversion_operand(source: PrimitiveType) -> NumpyArray:
    """Returns values of a type; for wide floats also some at and near ties of narrower ones."""
    values = values_of(source)
    if source in (PrimitiveType.F32, PrimitiveType.F64):
        units = np.array([2.0**-bits for bits in (7, 8, 10, 11, 12)])
        near_ties = np.outer(units, [-1.5, -0.5, 0.5, 0.5 + 2.0**-13, 0.5 - 2.0**-30, 1.5])
        values = np.concatenate([values, (1 + near_ties.ravel()).astype(source.dtype)])
    return np.resize(values, -(-values.size // WIDTH) * WIDTH)


def is_denormal(values: NumpyArray) -> NumpyArray:
    return (values != 0) & (abs(values) < ml_dtypes.finfo(values.dtype).tiny)


@pytest.mark.parametrize("source", ALL_TYPES, ids=lambda type_: type_.lower)
def test_convert(source: PrimitiveType) -> None:
    operand = conversion_operand(source)

    def program(array: jax.Array) -> list[jax.Array]:
        return [lax.convert_element_type(array, target.dtype) for target in ALL_TYPES]

    with jax.enable_x64(True):
        compiled_by_xla = jax.jit(program).lower(operand).compile(UNOPTIMISED)
        references = [np.asarray(result) for result in compiled_by_xla(operand)]
    for target, reference in zip(ALL_TYPES, references, strict=True):
        for width in (0, WIDTH):
            ours = compiled_conversions().run(conversion_name(source, target), width, operand)
            if (source, target) == (PrimitiveType.BF16, PrimitiveType.PRED):
                # Whether a denormal is zero differs between versions of XLA.
                ours = np.where(is_denormal(operand), reference, ours)
            check_equal(ours, reference, [operand])


@pytest.mark.parametrize("source", [*INTEGERS, *FLOATS], ids=lambda type_: type_.lower)
def test_bitcast_convert_keeps_bits(source: PrimitiveType) -> None:
    targets = [type_ for type_ in (*INTEGERS, *FLOATS) if type_.bits == source.bits]
    operand = conversion_operand(source)
    ours = compile_cases([convert_case(source, target, "bitcast-convert") for target in targets])
    for target in targets:
        result = ours.run(conversion_name(source, target), WIDTH, operand)
        assert result.tobytes() == operand.tobytes()


def test_bitcast_convert_refuses_another_width() -> None:
    case = convert_case(PrimitiveType.F32, PrimitiveType.S16, "bitcast-convert")
    with pytest.raises(CodegenError, match="keep the element's width"):
        compile_cases([case])


def with_constant(operation: Operation, element_type: PrimitiveType, value: int) -> Case:
    """Returns a case whose second operand is a constant, for which shorter code is emitted."""
    types = [element_type, element_type]

    def emit(builder: ir.IRBuilder, operands: Sequence[ir.Value]) -> ir.Value:
        second = constant(element_type, value, width_of(operands[0]))
        both = [operands[0], second]
        return emit_elemental(builder, operation.opcode, both, types, element_type)

    return Case(
        name=f"{operation.opcode}.{element_type.lower}.{value}",
        emit=emit,
        operand_types=(element_type,),
        result_type=element_type,
    )


@pytest.mark.parametrize("element_type", INTEGERS, ids=lambda type_: type_.lower)
def test_constant_operands_change_nothing(element_type: PrimitiveType) -> None:
    names = ("divide", "remainder", "shift-left", "shift-right-logical", "shift-right-arithmetic")
    operations = [operation for operation in INTEGER if operation.name in names]
    operand = conversion_operand(element_type)
    bits = element_type.bits
    values = [0, 1, 3, 10, bits - 1, bits, *((-1, -5) if element_type.is_signed else (200,))]
    ours = compile_cases(
        [
            with_constant(operation, element_type, value)
            for operation in operations
            for value in values
        ],
        (WIDTH,),
    )
    for operation in operations:
        for value in values:
            both = [operand, np.full_like(operand, value)]
            name = f"{operation.opcode}.{element_type.lower}"
            expected = compiled("exact").run(name, WIDTH, *both)
            check_equal(ours.run(f"{name}.{value}", WIDTH, operand), expected, both)


def stablehlo_function(name: str, operation: Any) -> Reference:
    """Returns a JAX function of two arrays for an instruction that jax.lax does not expose."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x, _: x)
    mlir.register_lowering(primitive, lambda _, x, y: [operation(x, y).result])
    return primitive.bind


@pytest.mark.parametrize("element_type", INTEGERS, ids=lambda type_: type_.lower)
def test_integer_power(element_type: PrimitiveType) -> None:
    reference = stablehlo_function("integer_power", hlo.PowOp)
    operation = same_type("power", 2, reference)
    operands = operands_of(element_type, "exact", 2)
    with jax.enable_x64(True):
        expected = np.asarray(jax.jit(reference)(*operands))
    case = as_case(operation, element_type)
    ours = compile_cases([case])
    for width in (0, WIDTH):
        check_equal(ours.run(case.name, width, *operands), expected, operands)


@pytest.mark.parametrize(
    ("opcode", "operation"),
    [("add", hlo.AddOp), ("multiply", hlo.MulOp), ("maximum", hlo.MaxOp), ("minimum", hlo.MinOp)],
)
def test_arithmetic_of_booleans(opcode: str, operation: Any) -> None:
    operands = operands_of(PRED, "exact", 2)
    expected = np.asarray(jax.jit(stablehlo_function(f"pred_{opcode}", operation))(*operands))
    case = as_case(same_type(opcode, 2, lax.max), PRED)
    check_equal(compile_cases([case]).run(case.name, WIDTH, *operands), expected, operands)


@pytest.mark.parametrize("width", [2, 3, 7, 64])
def test_any_width(width: int) -> None:
    names = ("remainder", "divide", "maximum", "round-nearest-afz", "compare-LT")
    types = (PrimitiveType.S32, PrimitiveType.F32, PrimitiveType.BF16)
    cases = {
        (type_, operation): as_case(operation, type_)
        for type_ in types
        for operation in operations_of(type_)
        if operation.name in names
    }
    ours = compile_cases(list(cases.values()), (0, width))
    for (type_, operation), case in cases.items():
        size = 3 * width
        operands = [
            operand[7 : 7 + size] for operand in operands_of(type_, "exact", operation.arity)
        ]
        scalar = ours.run(case.name, 0, *operands)
        check_equal(ours.run(case.name, width, *operands), scalar, operands)


def test_remainder_of_far_apart_floats_is_exact() -> None:
    generator = np.random.default_rng(3)
    for type_ in (PrimitiveType.F32, PrimitiveType.F64):
        range_ = 120 if type_ is PrimitiveType.F32 else 1000
        exponents = generator.integers(-range_, range_, (2, 8 * WIDTH))
        operands = list(np.ldexp(generator.uniform(-2, 2, exponents.shape), exponents))
        operands = [operand.astype(type_.dtype) for operand in operands]
        case = as_case(same_type("remainder", 2, lax.rem), type_)
        ours = compile_cases([case]).run(case.name, WIDTH, *operands)
        check_equal(flush(ours), flush(np.fmod(*operands)), operands)


@pytest.mark.parametrize("type_", [PrimitiveType.F32, PrimitiveType.F64])
def test_remainder_by_the_smallest_divisors_is_exact(type_: PrimitiveType) -> None:
    """Whose multiples differ from the dividend by what is flushed."""
    generator = np.random.default_rng(5)
    limits = np.finfo(type_.dtype)
    divisor = np.ldexp(generator.uniform(1, 2, 4096 * WIDTH), limits.minexp)
    divisor = np.ldexp(divisor, generator.integers(0, limits.nmant + 4, divisor.size))
    quotient = np.ldexp(1.0, generator.integers(0, 2 * limits.nmant, divisor.size))
    operands = [divisor * np.rint(quotient), divisor]
    operands = [operand.astype(type_.dtype) for operand in operands]
    operands[0] = np.nextafter(operands[0], generator.choice([-np.inf, np.inf], divisor.size))
    operands[0] = operands[0].astype(type_.dtype)
    case = as_case(same_type("remainder", 2, lax.rem), type_)
    ours = compile_cases([case]).run(case.name, WIDTH, *operands)
    operands = [flush(operand) for operand in operands]
    check_equal(flush(ours), flush(np.fmod(*operands)), operands)


@pytest.mark.parametrize("type_", [PrimitiveType.S64, PrimitiveType.U64])
def test_wide_division_on_both_sides_of_what_doubles_hold(type_: PrimitiveType) -> None:
    """Products and their neighbours, where a quotient that is rounded badly would show."""
    generator = np.random.default_rng(4)
    bits = np.repeat(np.arange(2, 64 - type_.is_signed), 16 * WIDTH)
    most = np.ldexp(1.0, bits)
    divisor = np.maximum(1, np.exp2(generator.uniform(0, bits - 0.1))).astype(np.int64)
    dividend = (generator.uniform(0, most / divisor).astype(np.int64) * divisor).astype(type_.dtype)
    dividend += generator.integers(-1, 2, bits.size).astype(type_.dtype)
    divisor = divisor.astype(type_.dtype)
    if type_.is_signed:
        dividend *= generator.choice([-1, 1], bits.size)
        divisor *= generator.choice([-1, 1], bits.size)
    cases = [as_case(same_type(name, 2, lax.rem), type_) for name in ("divide", "remainder")]
    ours = compile_cases(cases, (WIDTH,), opt_level=2)
    remainder = np.fmod(dividend, divisor)
    for case, expected in zip(cases, ((dividend - remainder) // divisor, remainder), strict=True):
        check_equal(ours.run(case.name, WIDTH, dividend, divisor), expected, [dividend, divisor])


@pytest.mark.parametrize("type_", [PrimitiveType.S64, PrimitiveType.U64])
def test_the_largest_numbers_by_divisors_of_all_sizes(type_: PrimitiveType) -> None:
    """Divisors below 2**50 go another way than larger ones, in vectors of which all are."""
    generator = np.random.default_rng(5)
    limits = np.iinfo(type_.dtype)
    bits = np.repeat(np.arange(1, limits.bits - type_.is_signed), 16 * WIDTH)
    least, most = 2 ** (bits.astype(np.uint64) - 1), 2 ** bits.astype(np.uint64) - 1
    divisor = generator.choice([0, 1, 2], bits.size).astype(np.uint64)
    divisor = np.where(divisor == 0, generator.integers(least, most, endpoint=True), divisor)
    divisor = np.where(divisor == 1, least, np.where(divisor == 2, most, divisor)).astype(
        type_.dtype
    )
    below = generator.integers(0, 2**14, bits.size).astype(type_.dtype)
    dividend = limits.max - below
    if type_.is_signed:
        dividend = np.where(generator.random(bits.size) < 0.5, dividend, limits.min + below)
        divisor *= generator.choice([-1, 1], bits.size)
    pairs = [(int(x), int(y)) for x, y in zip(dividend, divisor, strict=True)]
    quotient = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    remainder = [abs(x) % abs(y) * (1 if x >= 0 else -1) for x, y in pairs]
    cases = [as_case(same_type(name, 2, lax.rem), type_) for name in ("divide", "remainder")]
    ours = compile_cases(cases, (WIDTH,), opt_level=2)
    for case, expected in zip(cases, (quotient, remainder), strict=True):
        right = np.array([number % 2**64 for number in expected], np.uint64).view(type_.dtype)
        check_equal(ours.run(case.name, WIDTH, dividend, divisor), right, [dividend, divisor])


def test_every_opcode_is_compared_with_xla() -> None:
    tested = {operation.opcode for type_ in ALL_TYPES for operation in operations_of(type_)}
    tested |= {operation.opcode for operation in TRANSCENDENTAL}
    assert ELEMENTAL_OPCODES - tested == {"bitcast-convert", "convert"}


@pytest.mark.parametrize(
    ("opcode", "element_type"),
    [("sort", PrimitiveType.F32), ("sine", PrimitiveType.S32), ("divide", PRED), ("abs", PRED)],
)
def test_unknown_combinations_are_refused(opcode: str, element_type: PrimitiveType) -> None:
    with pytest.raises(CodegenError, match=f"{opcode} of {element_type.lower}"):
        compile_cases([as_case(same_type(opcode, 2, lax.max), element_type)])
