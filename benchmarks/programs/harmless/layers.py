"""Scans over the layers of a network, and recurrent networks with large matrices."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size

CATEGORY: Final = "layers"
WIDTH: Final = 256


def _weights(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) / shape[-2] ** 0.5


def build_mlp(size: Size) -> Built:
    """A deep perceptron as a scan over stacked weights."""

    def run(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jax.nn.gelu(x @ w), None), x, weights)[0]

    return run, (_weights(0, size.steps, WIDTH, WIDTH), _weights(1, size.lanes, WIDTH))


def build_mlp_gradient(size: Size) -> Built:
    """The gradient of a deep perceptron: a loop forwards and one backwards."""
    run, (weights, x) = build_mlp(size)
    return jax.grad(lambda w, x: jnp.mean(run(w, x) ** 2)), (weights, x)


def build_transformer(size: Size) -> Built:
    """Blocks of attention with several heads and a perceptron, normalised before."""
    heads = 4

    def normalise(x: jax.Array) -> jax.Array:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def block(x: jax.Array, w: Any) -> Any:
        parts = (normalise(x) @ w["qkv"]).reshape(*x.shape[:-1], 3, heads, -1)
        q, k, v = (parts[..., i, :, :] for i in range(3))
        scores = jnp.einsum("...qhd,...khd->...hqk", q, k) / q.shape[-1] ** 0.5
        mixed = jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), v)
        x = x + mixed.reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(normalise(x) @ w["up"]) @ w["down"], None

    def run(weights: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(block, x, weights)[0]

    n = size.steps
    weights = {
        "qkv": _weights(0, n, WIDTH, 3 * WIDTH),
        "out": _weights(1, n, WIDTH, WIDTH),
        "up": _weights(2, n, WIDTH, 4 * WIDTH),
        "down": _weights(3, n, 4 * WIDTH, WIDTH),
    }
    return run, (weights, jax.random.normal(jax.random.key(4), (2, size.lanes, WIDTH)))


def build_residual_convolutions(size: Size) -> Built:
    """Residual blocks of 3x3 convolutions, scanned over their filters."""

    def block(x: jax.Array, filters: jax.Array) -> Any:
        y = jax.lax.conv_general_dilated(
            x, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return x + jax.nn.relu(y), None

    def run(filters: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(block, x, filters)[0]

    filters = jax.random.normal(jax.random.key(0), (size.steps, 3, 3, 16, 16)) / 30
    return run, (filters, jax.random.normal(jax.random.key(1), (4, size.lanes, size.lanes, 16)))


def build_lstm(size: Size) -> Built:
    """A long short-term memory of 256 units over a batch of sequences."""

    def run(w: jax.Array, u: jax.Array, inputs: jax.Array) -> jax.Array:
        def step(carry: Any, x: jax.Array) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((inputs.shape[1], WIDTH))
        return jax.lax.scan(step, (zeros, zeros), inputs)[1]

    inputs = jax.random.normal(jax.random.key(2), (size.steps, size.lanes, WIDTH))
    return run, (_weights(0, WIDTH, 4 * WIDTH), _weights(1, WIDTH, 4 * WIDTH), inputs)


def build_elman_gradient(size: Size) -> Built:
    """A gradient through time of a plain recurrent network with large matrices."""

    def loss(w: jax.Array, inputs: jax.Array) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> Any:
            return jnp.tanh(h @ w + x), None

        return jnp.mean(jax.lax.scan(step, jnp.zeros_like(inputs[0]), inputs)[0] ** 2)

    inputs = jax.random.normal(jax.random.key(3), (size.steps, size.lanes, WIDTH))
    return jax.grad(loss), (_weights(0, WIDTH, WIDTH), inputs)


def build_training(size: Size) -> Built:
    """Steps of stochastic gradient descent as a scan over batches."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1] - x) ** 2)

    def run(weights: Any, batches: jax.Array) -> Any:
        def step(weights: Any, batch: jax.Array) -> Any:
            value, slope = jax.value_and_grad(loss)(weights, batch)
            return jax.tree.map(lambda w, s: w - 0.1 * s, weights, slope), value

        return jax.lax.scan(step, weights, batches)

    batches = jax.random.normal(jax.random.key(5), (size.steps, size.lanes, 64))
    return run, ((_weights(0, 64, WIDTH), _weights(1, WIDTH, 64)), batches)


def build_decoding(size: Size) -> Built:
    """Greedy decoding with a cache of keys and values, a token per step."""

    def run(table: jax.Array, w: jax.Array) -> jax.Array:
        def step(carry: Any, i: jax.Array) -> Any:
            keys, values, token = carry
            q, k, v = jnp.split(table[token] @ w, 3, axis=-1)
            keys = jax.lax.dynamic_update_slice_in_dim(keys, k[None], i, 0)
            values = jax.lax.dynamic_update_slice_in_dim(values, v[None], i, 0)
            scores = jnp.where(jnp.arange(size.steps) <= i, keys @ q / WIDTH**0.5, -jnp.inf)
            mixed = jax.nn.softmax(scores) @ values
            token = jnp.argmax(table @ mixed).astype(jnp.int32)
            return (keys, values, token), token

        cache = jnp.zeros((size.steps, WIDTH))
        return jax.lax.scan(step, (cache, cache, jnp.int32(0)), jnp.arange(size.steps))[1]

    return run, (_weights(0, size.lanes, WIDTH), _weights(1, WIDTH, 3 * WIDTH))


def _make(name: str, lanes: int, steps: int, **settings: Any) -> Program:
    return Program(
        name=f"layers/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=8, steps=2),
        **{"rule": Rule(relative=1e-3), **settings},
    )


PROGRAMS: Final = (
    _make("mlp", 128, 16, build=build_mlp),
    _make("mlp-gradient", 64, 8, build=build_mlp_gradient),
    _make("transformer", 64, 4, build=build_transformer),
    _make("residual-convolutions", 32, 6, build=build_residual_convolutions),
    _make("lstm", 32, 16, build=build_lstm),
    _make("elman-gradient", 32, 16, build=build_elman_gradient),
    _make("training", 64, 16, build=build_training),
    _make("decoding", 1024, 32, build=build_decoding, rule=Rule(share_apart=0.5)),
)
