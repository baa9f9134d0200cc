"""Programs without any loop, as most of what people compile."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "no loops"


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def build_softmax(size: Size) -> Built:
    """A softmax and its entropy along rows."""

    def run(x: jax.Array) -> Any:
        p = jax.nn.softmax(x)
        return p, -(p * jax.nn.log_softmax(x)).sum(-1)

    return run, (_normal(0, size.steps, size.lanes),)


def build_products(size: Size) -> Built:
    """A chain of matrix products."""

    def run(a: jax.Array, b: jax.Array) -> jax.Array:
        return (a @ b) @ (b @ a) @ b

    return run, (_normal(0, size.lanes, size.lanes), _normal(1, size.lanes, size.lanes))


def build_attention(size: Size) -> Built:
    """Attention by JAX's own function."""
    shape = (2, size.lanes, 4, 32)
    return jax.nn.dot_product_attention, (
        _normal(0, *shape),
        _normal(1, *shape),
        _normal(2, *shape),
    )


def build_convolutions(size: Size) -> Built:
    """Two convolutions with a maximum over windows between them."""

    def run(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        names = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=names)
        window = (1, 2, 2, 1)
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, window, "SAME")
        return jax.lax.conv_general_dilated(x, second, (1, 1), "SAME", dimension_numbers=names)

    filters = _normal(1, 3, 3, 3, 16), _normal(2, 3, 3, 16, 32)
    return run, (_normal(0, 4, size.lanes, size.lanes, 3), *filters)


def build_transforms(size: Size) -> Built:
    """A two-dimensional Fourier transform, a filter, and the way back."""

    def run(x: jax.Array) -> jax.Array:
        return jnp.fft.irfft2(jnp.fft.rfft2(x) * 0.5)

    return run, (_normal(0, size.lanes, size.lanes),)


def build_sorts(size: Size) -> Built:
    """A sort, an arg-sort and the largest few of each row."""

    def run(x: jax.Array) -> Any:
        return jnp.sort(x), jnp.argsort(x), jax.lax.top_k(x, 4)

    return run, (_normal(0, size.steps, size.lanes),)


def build_embedding(size: Size) -> Built:
    """Rows of a table gathered, and their gradient scattered."""

    def loss(table: jax.Array, tokens: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(table[tokens]) ** 2)

    tokens = jax.random.randint(jax.random.key(1), (size.lanes,), 0, 1000)
    return jax.grad(loss), (_normal(0, 1000, 64), tokens)


def build_reductions(size: Size) -> Built:
    """Sums, maxima, positions and moments of the same array."""

    def run(x: jax.Array) -> Any:
        return x.sum(0), x.max(1), x.argmin(0), x.std(), jnp.cumsum(x, 1)[:, -1]

    return run, (_normal(0, size.steps, size.lanes),)


def build_histogram(size: Size) -> Built:
    """Counts by a scatter."""

    def run(x: jax.Array) -> jax.Array:
        return jnp.zeros(64, jnp.int32).at[jnp.clip(x * 8 + 32, 0, 63).astype(jnp.int32)].add(1)

    return run, (_normal(0, size.lanes),)


def build_solve(size: Size) -> Built:
    """A linear system by Cholesky's decomposition, and its determinant."""

    def run(a: jax.Array, b: jax.Array) -> Any:
        factor = jnp.linalg.cholesky(a @ a.T / a.shape[0] + jnp.eye(a.shape[0]))
        return jax.scipy.linalg.cho_solve((factor, True), b), jnp.log(jnp.diag(factor)).sum()

    return run, (_normal(0, size.lanes, size.lanes), _normal(1, size.lanes, 4))


def build_singular_values(size: Size) -> Built:
    """Singular values."""

    def run(a: jax.Array) -> jax.Array:
        return jnp.linalg.svd(a, compute_uv=False)

    return run, (_normal(0, size.lanes, size.lanes),)


def build_random_numbers(size: Size) -> Built:
    """Normal, uniform and categorical numbers; JAX writes its generator as a loop."""

    def run(key: jax.Array) -> Any:
        keys = jax.random.split(key, 3)
        logits = jnp.linspace(0.0, 1.0, 8)
        return (
            jax.random.normal(keys[0], (size.lanes,)),
            jax.random.uniform(keys[1], (size.lanes,)),
            jax.random.categorical(keys[2], logits, shape=(size.lanes // 8,)),
        )

    return run, (jax.random.key(0),)


def build_integers(size: Size) -> Built:
    """A hash of integers: shifts, products and exclusive ors."""

    def run(x: jax.Array) -> jax.Array:
        for shift in (16, 13, 15, 11, 7):
            x = (x ^ (x >> shift)) * jnp.uint32(0x7FEB352D)
        return x

    return run, (jnp.arange(size.lanes, dtype=jnp.uint32),)


def build_half_precision(size: Size) -> Built:
    """A perceptron's layer in bfloat16."""

    def run(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w)

    x, w = _normal(0, size.lanes, 256), _normal(1, 256, 256) / 16
    return run, (x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))


def build_scan_in_parallel(size: Size) -> Built:
    """A linear recurrence by `associative_scan`, which is no loop."""

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    def run(decay: jax.Array, x: jax.Array) -> jax.Array:
        result: jax.Array = jax.lax.associative_scan(combine, (decay, x))[1]
        return result

    decay = jax.random.uniform(jax.random.key(0), (size.lanes,))
    return run, (decay, _normal(1, size.lanes))


def _make(name: str, lanes: int, steps: int = 1, **settings: Any) -> Program:
    return Program(
        name=f"plain/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=16, steps=1),
        rule=Rule(relative=1e-3),
        **settings,
    )


PROGRAMS: Final = (
    _make("softmax", 2000, 200, build=build_softmax),
    _make("products", 384, build=build_products),
    _make("attention", 128, build=build_attention),
    _make("convolutions", 48, build=build_convolutions),
    _make("transforms", 512, build=build_transforms),
    _make("sorts", 1000, 50, build=build_sorts),
    _make("embedding", 20_000, build=build_embedding),
    _make("reductions", 2000, 200, build=build_reductions),
    _make("histogram", 100_000, build=build_histogram),
    _make("solve", 384, build=build_solve),
    _make("singular-values", 128, build=build_singular_values),
    _make("random-numbers", 80_000, build=build_random_numbers),
    _make("integers", 1_000_000, build=build_integers),
    _make("half-precision", 128, build=build_half_precision),
    _make("scan-in-parallel", 100_000, build=build_scan_in_parallel),
)
