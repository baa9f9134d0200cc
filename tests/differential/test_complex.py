"""Complex numbers: every operation over special values, and programs of loops that carry them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.codegen import control, plan, rare_guards
from tests.differential.comparison import Tolerance
from tests.differential.harness import (
    Program,
    assert_decisions,
    check,
    map_rows,
    run_and_explain,
)
from tests.differential.values import NumpyArray

DTYPES: Final = ("complex64", "complex128")
SPECIAL_PARTS: Final = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 1e-30, -1e-20, 1e30, -1e20),
    *(np.pi / 2, -np.pi, 100.0, -100.0, 1e-4, -0.7, 0.3),
)
EXACT_UNARY: Final[dict[str, Program]] = {
    "abs": lax.abs,
    "conj": lax.conj,
    "imag": lax.imag,
    "is_finite": jnp.isfinite,
    "neg": lax.neg,
    "real": lax.real,
    "sign": lax.sign,
    "swapped": lambda x: lax.complex(lax.imag(x), lax.real(x)),
    "not_one": lambda x: x != 1,
}
# Within so many units in the last place of the larger part.
CLOSE_UNARY: Final[dict[str, tuple[Program, int]]] = {
    "acosh": (lax.acosh, 8),
    "angle": (jnp.angle, 8),
    "asin": (lax.asin, 8),
    "atan": (lax.atan, 8),
    "cos": (lax.cos, 8),
    "cube": (lambda x: lax.integer_pow(x, 3), 8),
    "exp": (lax.exp, 8),
    "expm1": (lax.expm1, 16),
    "log": (lax.log, 64),
    "log1p": (lax.log1p, 256),
    "logistic": (lax.logistic, 16),
    "rsqrt": (lax.rsqrt, 16),
    "sin": (lax.sin, 8),
    "sinh": (lax.sinh, 128),
    "sqrt": (lax.sqrt, 8),
    "square": (lax.square, 8),
    "tan": (lax.tan, 256),
    "tanh": (lax.tanh, 256),
}
BINARY: Final[dict[str, tuple[Program, int]]] = {
    "add": (lax.add, 0),
    "sub": (lax.sub, 0),
    "mul": (lax.mul, 2),
    "div": (lax.div, 4),
    "eq": (lax.eq, 0),
    "ne": (lax.ne, 0),
    "select": (lambda x, y: jnp.where(x.real < y.imag, x, y), 0),
    "maximum": (jnp.maximum, 0),
}


def complex_of(real: Any, imag: Any, dtype: str) -> NumpyArray:
    """Returns complex numbers made of two arrays of parts."""
    result = np.empty(np.shape(real), dtype)
    result.real, result.imag = real, imag
    return result


def random_complex(shape: tuple[int, ...], dtype: str = "complex64", seed: int = 0) -> NumpyArray:
    """Returns numbers around zero, of size one or less."""
    parts = np.random.default_rng(seed).uniform(-0.7, 0.7, (2, *shape))
    return complex_of(parts[0], parts[1], dtype)


def special_rows(dtype: str, seed: int = 0) -> NumpyArray:
    """Returns a stream [3, n] of all pairs of special parts, in random order, and others."""
    real, imag = (grid.ravel() for grid in np.meshgrid(SPECIAL_PARTS, SPECIAL_PARTS))
    values = complex_of(real, imag, dtype)
    more = random_complex((53 + -len(values) % 3 + 1,), dtype) * 9
    values = np.concatenate([values, more])
    values = values[: len(values) // 3 * 3]
    return np.random.default_rng(seed).permutation(values).reshape(3, -1)


def without_infinities(rows: NumpyArray) -> NumpyArray:
    """Returns numbers of moderate size only, ones in the place of all others."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(rows) < 50, rows, rows.dtype.type(1))


def check_complex(
    operations: Mapping[str, tuple[Program, int]], *streams: NumpyArray, x64: bool
) -> None:
    """Checks operations in one loop, with so many units in the last place of the larger part."""
    program = map_rows({name: operation for name, (operation, _) in operations.items()})
    with jax.enable_x64(x64):
        _, expected = jax.block_until_ready(jax.jit(program)(*streams))
        (_, actual), report = run_and_explain(program, *streams)
    assert_decisions(report)
    for name, (_, ulp) in operations.items():
        wanted, got = np.asarray(expected[name]), np.asarray(actual[name])
        assert wanted.dtype == got.dtype
        wrong = _is_wrong(wanted, got, ulp)
        places = [tuple(place) for place in np.argwhere(wrong)[:4]]
        told = [(*(s[p] for s in streams), wanted[p], got[p]) for p in places]
        assert not wrong.any(), f"{name}: {wrong.sum()} differ: {told}"


def _is_wrong(wanted: NumpyArray, got: NumpyArray, ulp: int) -> NumpyArray:
    if wanted.dtype == bool:
        different: NumpyArray = wanted != got
        return different
    limits = np.finfo(wanted.dtype)
    pairs = [(part(wanted), part(got)) for part in (np.real, np.imag)]
    finite = [np.where(np.isfinite(w), np.abs(w), 0) for w, _ in pairs]
    allowed = np.maximum(np.maximum(*finite) * limits.eps, limits.tiny) * ulp
    wrong = np.zeros(wanted.shape, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        for w, g in pairs:
            near = (np.abs(w - g) <= allowed) & np.isfinite(w)
            wrong |= ~(near | (w == g) | (np.isnan(w) & np.isnan(g)))
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_unary(dtype: str) -> None:
    operations = {name: (operation, 0) for name, operation in EXACT_UNARY.items()}
    operations |= {"abs": (lax.abs, 1), "sign": (lax.sign, 2)}
    check_complex(operations, special_rows(dtype), x64=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_close_unary(dtype: str) -> None:
    check_complex(CLOSE_UNARY, without_infinities(random_complex((3, 61), dtype) * 4), x64=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_of_functions(dtype: str) -> None:
    """Zeros, infinities and NaNs; without sizes at which small errors of a part grow large."""
    parts = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, -0.7, 0.3)
    real, imag = (grid.ravel() for grid in np.meshgrid(parts, parts))
    rows = np.stack([complex_of(real, imag, dtype)] * 2)
    check_complex(CLOSE_UNARY, rows, x64=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary(dtype: str) -> None:
    check_complex(BINARY, special_rows(dtype, 1), special_rows(dtype, 2), x64=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_power(dtype: str) -> None:
    bases = random_complex((3, 61), dtype, 1) * 3
    exponents = random_complex((3, 61), dtype, 2) * 5
    bases[0, :9] = [0, 1, 1, 1j, -1, np.inf, np.inf, 0, 2]
    exponents[0, :9] = [0, 1j, 3, 2, 0.5, 2, -2, 2, 0]
    check_complex({"power": (lax.pow, 128)}, bases, exponents, x64=True)


def test_conversions() -> None:
    rows = random_complex((3, 37), "complex64")

    def single(x: jax.Array) -> Any:
        return x.astype(jnp.complex128), (x.astype(jnp.complex128) * 1.1).astype(jnp.complex64)

    def real(x: jax.Array) -> Any:
        numbers = (x.real, x.imag.astype(jnp.float16), (x.real * 9).astype(jnp.int32), x.real > 0)
        return [n.astype(t) for n in numbers for t in (jnp.complex64, jnp.complex128)]

    programs = {"complex": single, "real": real}
    check(map_rows(programs), rows, x64=True)


# Loops.

NUM_STEPS: Final = 7
CLOSE: Final = Tolerance(relative=1e-5, absolute=1e-6)


def repeat(step: Program, state: Any) -> Any:
    return lax.scan(step, state, None, length=NUM_STEPS)


def check_loop(
    program: Program, *arguments: Any, streams: int | None = None, tolerance: Tolerance = CLOSE
) -> None:
    """Checks a program whose results are complex, and how many streams its first loop has."""

    def parts(*values: Any) -> Any:
        results = jax.tree.leaves(program(*values))
        return [
            p(x) for x in results for p in ((jnp.real, jnp.imag) if _is_complex(x) else (_same,))
        ]

    report = check(parts, *arguments, tolerance=tolerance)
    if streams is not None:
        assert report.loops[0].decision.numbers["streams"] == streams


def _is_complex(value: jax.Array) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.complexfloating))


def _same(value: jax.Array) -> jax.Array:
    return value


def test_mandelbrot_of_a_fixed_number_of_steps() -> None:
    def program(c: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            z, count = state
            z = z * z + c
            return (z, count + (jnp.abs(z) < 2)), None

        (_, count), _ = lax.scan(step, (c * 0, jnp.zeros(c.shape, int)), None, length=40)
        return count

    real, imag = np.meshgrid(np.linspace(-2, 0.5, 23), np.linspace(-1, 1, 17))
    points = complex_of(real, imag, "complex64")
    check_loop(program, points)


def test_a_number_times_its_conjugate_is_real() -> None:
    """The root of what rounding would leave of its imaginary part is NaN in half of all lanes."""

    def step(z: jax.Array, _: None) -> Any:
        return z * (0.99 + 0.1j), jnp.sqrt(lax.imag(z * jnp.conj(z)))

    check_loop(lambda z: repeat(step, z), random_complex((61,)))


def test_mandelbrot_of_as_many_steps_as_needed() -> None:
    def escape(c: jax.Array) -> Any:
        def go_on(state: Any) -> jax.Array:
            return (jnp.abs(state[0]) < 2) & (state[1] < 40)

        return lax.while_loop(go_on, lambda s: (s[0] * s[0] + c, s[1] + 1), (c * 0, 0))[1]

    points = complex_of(np.linspace(-2, 0.5, 131), np.full(131, 0.3), "complex64")
    check_loop(jax.vmap(escape), points)


@pytest.mark.for_cpus
@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients_of_several_registers(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to do about NaN is worked out for a register's lanes at a time."""
    emit, made = rare_guards.emit_in_pieces, []

    def emit_and_note(*arguments: Any) -> Any:
        made.append(emit(*arguments))
        return made[-1]

    monkeypatch.setattr(control, "emit_in_pieces", emit_and_note)
    monkeypatch.setattr(plan, "_vectors_in_flight", lambda *_: 4)
    numerators, denominators = special_rows(dtype, 1).ravel(), special_rows(dtype, 2).ravel()

    def divide(numerators: jax.Array, denominators: jax.Array) -> Any:
        def step(_: Any, state: Any) -> Any:
            return state[0] / state[1], lax.conj(state[1])

        return lax.fori_loop(0, 2, step, (numerators, denominators))[0]

    with jax.enable_x64(True):
        expected = np.asarray(jax.jit(divide)(numerators, denominators))
        actual, report = run_and_explain(divide, numerators, denominators)
    assert_decisions(report)
    assert made and None not in made
    assert not _is_wrong(expected, np.asarray(actual), 4).any()


def test_newton_fractal() -> None:
    def step(z: jax.Array, _: None) -> Any:
        return z - (z * z * z - 1) / (3 * z * z), None

    check_loop(lambda z: repeat(step, z)[0], random_complex((61,)) * 0.3 + 1)


@pytest.mark.parametrize("shape", [(), (61,), (61, 3), (3, 61), (5, 4, 3)])
def test_stacked_outputs_are_streams(shape: tuple[int, ...]) -> None:
    def step(z: jax.Array, _: None) -> Any:
        return z * (0.9 + 0.3j), (z, jnp.abs(z))

    check_loop(lambda z: repeat(step, z), random_complex(shape), streams=2)


def test_a_lane_of_each_step() -> None:
    """The parts of one lane leave the loop bit by bit, and are put together behind it."""

    def step(z: jax.Array, _: None) -> Any:
        return z * (0.9 + 0.3j), (z[2:3], z[5], z[:1].reshape(1, 1))

    check_loop(lambda z: repeat(step, z), random_complex((61,)))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_streams_in_and_out(is_reversed: bool) -> None:
    def program(z: jax.Array, rows: jax.Array) -> Any:
        return lax.scan(lambda z, x: (z * 0.5 + x, z * x), z, rows, reverse=is_reversed)

    check_loop(program, random_complex((61,)), random_complex((9, 61), seed=1), streams=1)


def test_updates_in_place() -> None:
    def program(z: jax.Array) -> Any:
        def step(state: Any, t: jax.Array) -> Any:
            z, w = state
            row = lax.dynamic_slice(z, (t, 0), (1, 37)) * 0.5 + w
            return (lax.dynamic_update_slice(z, row, ((t * 3) % 100, 0)), w * 0.9j), None

        return lax.scan(step, (z, z[0]), jnp.arange(NUM_STEPS))[0]

    check_loop(program, random_complex((100, 37)), streams=1)


def test_data_movement() -> None:
    def step(z: jax.Array, t: jax.Array) -> Any:
        turned = jnp.roll(z, 1, axis=1)[:, ::-1]
        padded = jnp.pad(z[:, 1:-1], ((0, 0), (1, 1)), constant_values=1 + 2j)
        joined = jnp.concatenate([turned[:, 2:], padded[:, :2]], axis=1)
        swapped = jnp.swapaxes(joined.reshape(-1, 2, 3), 1, 2).reshape(-1, 6)
        return jnp.where(t % 2 == 0, swapped, joined * 0.5j), (swapped[:, t % 6], padded.T)

    def program(z: jax.Array) -> Any:
        return lax.scan(step, z, jnp.arange(NUM_STEPS))

    check_loop(program, random_complex((37, 6)), streams=2)


def test_reductions() -> None:
    def step(z: jax.Array, _: None) -> Any:
        results = z.sum(1), z.prod(1), z.max(1), jnp.cumsum(z, 1), jnp.cumprod(z, 1), z.mean(1)
        return jnp.sort(z, axis=1) * 0.9j, results

    check_loop(lambda z: repeat(step, z), random_complex((37, 6)))


def test_reductions_over_lanes() -> None:
    def step(state: Any, _: None) -> Any:
        z, total = state
        return (z * 0.9j, total + z.sum()), None

    check_loop(lambda z: repeat(step, (z, jnp.complex64(0))), random_complex((137,)))


def test_products_of_matrices() -> None:
    def step(state: Any, _: None) -> Any:
        z, matrices, shared = state
        z = jnp.einsum("nij,nj->ni", matrices, z) * 0.3 + z @ shared
        return (z, matrices, shared), z

    matrices = random_complex((37, 3, 3), seed=1)
    arguments = random_complex((37, 3)), matrices, random_complex((3, 3), seed=2)
    check_loop(lambda *state: repeat(step, state)[1], *arguments)


def test_gathers_and_scatters() -> None:
    def step(state: Any, _: None) -> Any:
        z, table, index = state
        taken = jax.vmap(lambda row, i: row[i])(z, index) * table[index]
        z = jax.vmap(lambda row, i, v: row.at[i].set(v))(z, index, taken + 1)
        z = jax.vmap(lambda row, i: row.at[i - 1].add(1j))(z, index)
        return (z, table, (index * 3 + 1) % 8), taken

    index = np.arange(37, dtype=np.int32) % 8
    arguments = random_complex((37, 8)), random_complex((8,), seed=1), index
    check_loop(lambda *state: repeat(step, state), *arguments)


def test_loops_in_loops_and_conditionals() -> None:
    def program(z: jax.Array) -> Any:
        def inner(w: jax.Array, _: None) -> Any:
            return w * (0.9 + 0.1j) + 0.1, w

        def step(w: jax.Array, t: jax.Array) -> Any:
            w, rows = lax.scan(inner, w, None, length=3)
            w = lax.cond(t % 2 == 0, lambda w: jnp.exp(w) * 0.3 + jnp.sin(w), lambda w: w * 0.5j, w)
            return w, rows

        return lax.scan(step, z, jnp.arange(NUM_STEPS))

    check_loop(program, random_complex((61,)))


def test_constants() -> None:
    weights = np.array([1 + 2j, 3 - 1j, 0.5j], np.complex64)

    def step(z: jax.Array, _: None) -> Any:
        ramp = lax.iota(jnp.complex64, 37)
        return z * 0.5 + weights[0] + ramp, z[:, None] * weights

    check_loop(lambda z: repeat(step, z), random_complex((37,)), streams=1)


def test_other_types_beside_complex_ones() -> None:
    def step(state: Any, _: None) -> Any:
        z, count, mean = state
        count = count + (z.real > 0)
        mean = mean * 0.5 + jnp.abs(z).astype(mean.dtype)
        return (z * 0.9j, count, mean), (count, mean.astype(jnp.float32), z)

    state = random_complex((37,)), np.zeros(37, np.int8), np.zeros(37, np.float16)
    check_loop(lambda *s: repeat(step, s)[1], *state, streams=3, tolerance=Tolerance(relative=1e-3))


def test_gradients() -> None:
    def loss(z: jax.Array) -> jax.Array:
        final, rows = repeat(lambda w, _: (w * w * 0.5 + z, w), z)
        return jnp.sum(jnp.abs(final) ** 2) + jnp.sum(rows.real)

    check_loop(jax.grad(loss), random_complex((37,)))


@pytest.mark.parametrize("operation", [jnp.fft.fft, lambda z: lax.atan2(z, z + 1)])
def test_what_stays_with_xla(operation: Program) -> None:
    def program(z: jax.Array) -> Any:
        return repeat(lambda z, _: (operation(z) * 0.3, None), z)[0]

    _, report = run_and_explain(program, random_complex((37, 8)))
    assert_decisions(report, ["unsupported-opcode"])
    assert "complex" in report.loops[0].decision.sentence
