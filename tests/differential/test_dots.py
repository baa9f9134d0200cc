"""Linear algebra in loops: shared weights, a matrix per lane, types, special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE, CLOSE_DOUBLE, CLOSE_HALF, Tolerance
from tests.differential.harness import Program, check, run_fused
from tests.differential.values import NumpyArray

LANES: Final = 203
STEPS: Final = 40


def repeat(step: Callable[..., Any], *, steps: int = STEPS) -> Program:
    """Returns a program that applies a step of all its arguments again and again."""
    return lambda *state: lax.fori_loop(0, steps, lambda _, s: step(*s), state)


def normal(*shape: int, dtype: Any = np.float32, scale: float = 0.3, seed: int = 0) -> NumpyArray:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal(shape) * scale).astype(dtype)


@pytest.mark.parametrize(("inputs", "hidden", "outputs"), [(4, 64, 2), (3, 7, 5), (6, 33, 1)])
def test_policy_network(inputs: int, hidden: int, outputs: int) -> None:
    """Weights shared by all lanes, biases, activations, an argmax."""

    def step(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
        w1, b1, w2, b2, w3 = weights
        h = jax.nn.relu(jnp.tanh(x @ w1 + b1) @ w2 + b2)
        action = jnp.argmax(h @ w3, axis=1).astype(jnp.float32) - 0.5
        return (x * 0.9 + 0.1 * jnp.sin(x.sum(1) + action)[:, None], *weights)

    shapes = [(LANES, inputs), (inputs, hidden), (hidden,), (hidden, hidden), (hidden,)]
    arrays = [normal(*shape, seed=n) for n, shape in enumerate([*shapes, (hidden, outputs)])]
    check(repeat(step), *arrays, tolerance=CLOSE)


@pytest.mark.parametrize("cell", ["gru", "lstm", "linear"])
def test_recurrent_cells(cell: str) -> None:
    """States with several gates from one product, streams of inputs in and outputs out."""
    hidden, inputs = 24, 10
    gates = {"gru": 3, "lstm": 4, "linear": 1}[cell]

    def step(w: jax.Array, u: jax.Array, state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        h, c = state
        parts = jnp.split(x @ w + h @ u, gates, axis=1)
        if cell == "linear":
            h = parts[0] * 0.5
        elif cell == "gru":
            z, r = jax.nn.sigmoid(parts[0]), jax.nn.sigmoid(parts[1])
            h = z * h + (1 - z) * jnp.tanh(parts[2] * r)
        else:
            i, f, o = (jax.nn.sigmoid(p) for p in parts[:3])
            c = f * c + i * jnp.tanh(parts[3])
            h = o * jnp.tanh(c)
        return (h, c), h

    def program(h: jax.Array, xs: jax.Array, w: jax.Array, u: jax.Array) -> Any:
        return lax.scan(lambda state, x: step(w, u, state, x), (h, h), xs)

    check(
        program,
        normal(LANES, hidden),
        normal(STEPS, LANES, inputs, seed=1),
        normal(inputs, gates * hidden, seed=2),
        normal(hidden, gates * hidden, seed=3),
        tolerance=CLOSE,
    )


@pytest.mark.parametrize(
    ("size", "layout"), [(3, "nij"), (3, "inj"), (6, "ijn"), (11, "nij"), (11, "ijn")]
)
def test_matrix_per_lane(size: int, layout: str) -> None:
    """A covariance and a mean that are predicted and updated, as a Kalman filter does."""

    def step(a: jax.Array, p: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        product = f"{layout},{layout.replace('j', 'k').replace('i', 'j')}"
        ap = jnp.einsum(f"{product}->{layout.replace('j', 'k')}", a, p)
        turned = layout.replace("i", "k")
        p = jnp.einsum(f"{layout},{turned.replace('j', 'l').replace('l', 'j')}->nik", ap, a)
        p = jnp.einsum(f"nik->{layout.replace('j', 'k')}", p) * 0.5 + a
        return a, p, jnp.einsum(f"{layout},nj->ni", a, x) * 0.5 + 0.1

    sizes = {"n": LANES, "i": size, "j": size}
    shape = [sizes[letter] for letter in layout]
    a = normal(*shape) / np.float32(np.sqrt(size))  # else rounding errors grow step by step
    arrays = a, normal(*shape, seed=1), normal(LANES, size, seed=2)
    check(repeat(step), *arrays, tolerance=CLOSE)


def test_lanes_in_every_place() -> None:
    """Free dimension of the left and of the right, minor and major, beside other free ones."""

    def step(x: jax.Array, y: jax.Array, z: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        x = jnp.tanh(x @ w.T + y.T @ w)
        y = jnp.sin(w @ y)
        z = jnp.einsum("tnk,kj->tnj", z, w) * 0.3 + x[None]
        return x, y, z, w

    arrays = normal(LANES, 12), normal(12, LANES), normal(4, LANES, 12), normal(12, 12, seed=1)
    check(repeat(step), *arrays, tolerance=CLOSE)


def test_heads_and_tokens() -> None:
    """Attention within a lane: batch dimensions beside the lanes, two products of lanes' arrays."""

    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        q = jnp.einsum("nti,hij->nhtj", x, w)
        scores = jax.nn.softmax(jnp.einsum("nhtj,nhsj->nhts", q, q), axis=-1)
        mixed = jnp.einsum("nhts,nhsj->nthj", scores, q)
        return x * 0.9 + 0.1 * mixed.mean(2), w

    check(repeat(step), normal(LANES, 5, 8), normal(2, 8, 8, seed=1), tolerance=CLOSE)


@pytest.mark.parametrize("size", [3, 20])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64"])
def test_integers(dtype: str, size: int) -> None:
    """Products and sums wrap."""
    info = np.iinfo(dtype)
    generator = np.random.default_rng(0)
    draw = lambda *shape: generator.integers(info.min, info.max, shape, dtype)  # noqa: E731
    arrays = draw(LANES, size), draw(size, size)
    check(repeat(lambda x, w: (x @ w, w)), *arrays, x64=dtype == "int64")


@pytest.mark.parametrize("size", [3, 20])
@pytest.mark.parametrize(
    ("dtype", "preferred", "tolerance"),
    [
        ("float64", None, CLOSE_DOUBLE),
        ("bfloat16", None, CLOSE_HALF),
        ("bfloat16", "float32", CLOSE_HALF),
        ("float16", "float32", CLOSE_HALF),
        ("int8", "int32", Tolerance()),
    ],
)
def test_types(dtype: str, preferred: str | None, tolerance: Tolerance, size: int) -> None:
    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.dot(x, w, preferred_element_type=preferred).astype(x.dtype), w

    scale = 40 if dtype == "int8" else 0.5 / np.sqrt(size)
    x, w = (normal(n, size, scale=scale, seed=n).astype(jnp.dtype(dtype)) for n in (LANES, size))
    check(repeat(step), x, w, tolerance=tolerance, x64=dtype == "float64")


def test_special_values_stay_in_their_lane() -> None:
    """NaN and infinities reach all outputs of their lane and no other; zero times them is NaN."""
    x = normal(LANES, 20)
    x[5, 3], x[17, 0], x[18, 19] = np.nan, np.inf, -np.inf
    w = normal(20, 20, seed=1)
    w[0, 4] = 0
    step = lambda x, w: (jnp.clip(x @ w, -3, 3), w)  # noqa: E731
    check(repeat(step, steps=4), x, w, tolerance=CLOSE)


def test_weights_that_change() -> None:
    """Weights that are updated in the loop, and others picked by the step."""

    def program(x: jax.Array, w: jax.Array, ws: jax.Array) -> Any:
        def step(state: Any, w_t: jax.Array) -> tuple[Any, None]:
            x, w = state
            return (jnp.tanh(x @ w) @ w_t, w * 0.9 + jnp.eye(w.shape[0]) * 0.1), None

        return lax.scan(step, (x, w), ws)

    arrays = normal(LANES, 18), normal(18, 18, seed=1), normal(STEPS, 18, 18, seed=2)
    check(program, *arrays, tolerance=CLOSE)


def test_weights_of_nested_loops() -> None:
    """Stages of a step share weights of another type, which never change."""

    def step(x: jax.Array, w: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
        def stage(number: jax.Array, k: jax.Array) -> jax.Array:
            hidden = jnp.tanh((x + 0.1 * k) @ w.astype(jnp.float32))
            return hidden @ v.T + number.astype(jnp.float32)

        return x * 0.9 + 0.1 * lax.fori_loop(0, 12, stage, x), w, v

    w = normal(11, 25, seed=1).astype(jnp.bfloat16)
    check(repeat(step), normal(LANES, 11), w, normal(11, 25, seed=2), tolerance=CLOSE)


@pytest.mark.parametrize(
    "options",
    [{"unroll": 1}, {"unroll": 4}, {"tile_lanes": 64}, {"vector_bits": 128}, {"threads": 1}],
    ids=str,
)
def test_layouts(options: dict[str, Any]) -> None:
    """Every layout of the work gives the same sums to within their rounding."""
    program = repeat(lambda x, w: (jnp.tanh(x @ w) + x * 0.1, w))
    arrays = normal(LANES, 21), normal(21, 21, seed=1)
    expected = jax.jit(program)(*arrays)
    actual = run_fused(program, *arrays, options=options)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("way", "size", "observed"),
    [("inv", 4, 2), ("solve", 2, 1), ("solve", 6, 3), ("cho_solve", 4, 1), ("positive", 4, 2)],
)
def test_kalman_filters(way: str, size: int, observed: int) -> None:
    """Predictions, innovations and gains by every way to solve a small system."""
    f: Any = 0.9 * np.eye(size, dtype=np.float32) + normal(size, size, scale=0.05)
    h: Any = normal(observed, size, scale=1, seed=1)

    def gain(s: jax.Array, hp: jax.Array) -> jax.Array:
        match way:
            case "inv":
                return hp.T @ jnp.linalg.inv(s)
            case "solve":
                return jnp.linalg.solve(s, hp).T
            case "cho_solve":
                factor = jax.scipy.linalg.cho_factor(s, lower=True)
                return jax.scipy.linalg.cho_solve(factor, hp).T
        return jax.scipy.linalg.solve(s, hp, assume_a="pos").T

    def filter_one(x: jax.Array, p: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        x, p = f @ x, f @ p @ f.T + 0.1 * jnp.eye(size)
        s = h @ p @ h.T + 0.5 * jnp.eye(observed)
        k = gain(s, h @ p)
        # The determinant comes after the gain: two factorisations at once may never end, see below.
        return (
            x + k @ (y - h @ x),
            (jnp.eye(size) - k @ h) @ p,
            jnp.linalg.slogdet(s + 0 * (h @ k))[1],
        )

    def program(x: jax.Array, p: jax.Array, ys: jax.Array) -> Any:
        def step(state: Any, y: jax.Array) -> tuple[Any, Any]:
            x, p, likelihood = jax.vmap(filter_one)(state[0], state[1], y)
            return (x, p), (x, likelihood)

        return lax.scan(step, (x, p), ys)

    p = np.broadcast_to(np.eye(size, dtype=np.float32), (LANES, size, size)).copy()
    arrays = normal(LANES, size), p, normal(STEPS, LANES, observed, seed=2)
    check(program, *arrays, tolerance=Tolerance(ulp=8, relative=1e-3, absolute=1e-3))


@pytest.mark.parametrize(
    ("rows", "pivoted", "x64", "lanes"),
    [(14, 9, False, 1), (14, 9, True, LANES), (30, 16, False, LANES), (30, 16, True, 1)],
)
def test_larger_matrices(rows: int, pivoted: int, x64: bool, lanes: int) -> None:
    """Loops over their columns and rows, with several matrices and right sides per lane."""

    def step(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        factor = jnp.linalg.cholesky(a @ a.mT + rows * jnp.eye(rows))
        solved = jax.scipy.linalg.solve_triangular(factor, b, lower=True)
        # One after the other: of two at once, jaxlib's threads may all wait for others to be free.
        small = a[..., :pivoted, :pivoted] * 0.3 + 0.01 * solved[..., :pivoted, :1]
        small += jnp.eye(pivoted)
        sign, size = jnp.linalg.slogdet(small)
        other = jnp.linalg.solve(small, b[..., :pivoted, :])
        b = 0.5 * b + solved.at[..., :pivoted, :].add(0.1 * other)
        return 0.9 * a + 0.01 * factor, b + (0.01 * sign * size)[..., None, None]

    float_type = np.float64 if x64 else np.float32
    arrays = [
        a.astype(float_type)
        for a in (normal(lanes, 2, rows, rows), normal(lanes, 2, rows, 3, seed=1))
    ]
    tolerance = Tolerance(ulp=8, relative=1e-9, absolute=1e-9) if x64 else CLOSE
    check(repeat(step, steps=3), *arrays, tolerance=tolerance, x64=x64)


def test_failing_factorisations_stay_in_their_lane() -> None:
    """Matrices that are not positive, singular or not numbers beside others that are."""

    def step(a: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        factor = jnp.linalg.cholesky(a)
        a = jnp.where(factor[..., :1, :1] == -1, 0, a)  # as above
        solved = jnp.linalg.solve(a, x[..., None])[..., 0]
        return a + 0.01 * jnp.nan_to_num(factor), 0.5 * solved + x

    a = normal(LANES, 3, 3)
    a = a @ a.swapaxes(1, 2) + 2 * np.eye(3, dtype=np.float32)
    a[7], a[9, 1, 1], a[20], a[30, 2] = -a[7], -5, np.nan, 0
    a[40] = 0
    check(repeat(step, steps=5), a, normal(LANES, 3), tolerance=CLOSE)


@pytest.mark.parametrize("size", [9, 10])
def test_systems_of_ten_equations(size: int) -> None:
    def step(a: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return a, 0.5 * jnp.linalg.solve(a, x[..., None])[..., 0] + x

    a = normal(LANES, size, size) + 2 * np.eye(size, dtype=np.float32)
    check(repeat(step, steps=5), a, normal(LANES, size), tolerance=CLOSE)


def test_attention_over_a_cache() -> None:
    """Of one sequence, without lanes: keys and values are read where they lie."""
    heads, width, length = 2, 8, 24

    def program(x: jax.Array, *weights: jax.Array) -> Any:
        to_query, to_key, to_value, back = weights

        def step(state: Any, number: jax.Array) -> Any:
            x, keys, values = state
            query, key, value = (
                (x @ w).reshape(1, heads, width) for w in (to_query, to_key, to_value)
            )
            keys, values = keys.at[:, number].set(key), values.at[:, number].set(value)
            scores = jnp.einsum("bhd,bthd->bht", query, keys)
            scores = jnp.where(jnp.arange(length) <= number, scores, -1e9)
            seen = jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), values)
            x = jnp.tanh(x + seen.reshape(1, heads * width) @ back)
            return (x, keys, values), x

        empty = jnp.zeros((1, length, heads, width))
        return lax.scan(step, (x, empty, empty), jnp.arange(length))

    weights = [normal(heads * width, heads * width, seed=n) for n in range(4)]
    check(program, normal(1, heads * width), *weights, tolerance=CLOSE)
