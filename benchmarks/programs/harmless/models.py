"""Steps of training as libraries write them: flax, optax, equinox, numpyro."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from programs.program import Built, Program, Rule, Size, load

CATEGORY: Final = "models"


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _train(model: Any, optimizer: Any, x: jax.Array, labels: jax.Array) -> Built:
    """Returns a step of training of a flax model that classifies."""
    optax = load("optax")
    parameters = model.init(jax.random.key(0), x)

    def loss(parameters: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        scores = model.apply(parameters, x)
        value: jax.Array = optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
        return value

    def step(parameters: Any, state: Any, x: jax.Array, labels: jax.Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(parameters, x, labels)
        updates, state = optimizer.update(slopes, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return step, (parameters, optimizer.init(parameters), x, labels)


def build_perceptron(size: Size) -> Built:
    """A perceptron of flax under Adam."""
    nn, optax = load("flax.linen"), load("optax")
    model = nn.Sequential([nn.Dense(256), nn.relu, nn.Dense(256), nn.relu, nn.Dense(10)])
    return _train(model, optax.adam(1e-3), _normal(1, size.lanes, 784), jnp.arange(size.lanes) % 10)


def build_convolutional(size: Size) -> Built:
    """A small convolutional network of flax under momentum."""
    nn, optax = load("flax.linen"), load("optax")
    layers = [nn.Conv(16, (3, 3)), nn.relu, lambda x: nn.avg_pool(x, (2, 2), (2, 2))]
    layers += [nn.Conv(32, (3, 3)), nn.relu, lambda x: x.reshape(x.shape[0], -1), nn.Dense(10)]
    x = _normal(1, size.lanes, 28, 28, 1)
    optimizer = optax.sgd(1e-2, momentum=0.9)
    return _train(nn.Sequential(layers), optimizer, x, jnp.arange(size.lanes) % 10)


def build_recurrent(size: Size) -> Built:
    """flax's own GRU over sequences: its scan, and the one backwards, with large matrices."""
    nn, optax = load("flax.linen"), load("optax")
    model = nn.Sequential([nn.RNN(nn.GRUCell(256)), lambda h: h[:, -1], nn.Dense(10)])
    x = _normal(1, size.lanes, size.steps, 64)
    return _train(model, optax.adamw(1e-3), x, jnp.arange(size.lanes) % 10)


def build_encoder(size: Size) -> Built:
    """A block of flax's self-attention under a chain of optax's transformations."""
    nn, optax = load("flax.linen"), load("optax")
    layers = [nn.Dense(64), nn.SelfAttention(4), nn.LayerNorm(), lambda h: h.mean(1), nn.Dense(10)]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-3))
    x = _normal(1, size.lanes, 32, 32)
    return _train(nn.Sequential(layers), optimizer, x, jnp.arange(size.lanes) % 10)


def build_equinox(size: Size) -> Built:
    """A perceptron of equinox under Adam, a regression."""
    eqx, optax = load("equinox"), load("optax")
    model = eqx.nn.MLP(16, 1, 128, 3, key=jax.random.key(0))
    optimizer = optax.adam(1e-3)
    weights, rest = eqx.partition(model, eqx.is_array)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.vmap(eqx.combine(weights, rest))(x)[:, 0] - x.sum(-1)) ** 2)

    def step(weights: Any, state: Any, x: jax.Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), state, value

    return step, (weights, optimizer.init(weights), _normal(1, size.lanes, 16))


def build_density(size: Size) -> Built:
    """The gradient of a log density of numpyro: a logistic regression."""
    numpyro = load("numpyro")
    distributions, util = load("numpyro.distributions"), load("numpyro.infer.util")

    def model(x: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", distributions.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
        numpyro.sample("y", distributions.Bernoulli(logits=x @ w), obs=y)

    def density(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        value: jax.Array = util.log_density(model, (x, y), {}, {"w": w})[0]
        return value

    x = _normal(0, size.lanes, 32)
    return jax.value_and_grad(density), (_normal(1, 32), x, (x.sum(-1) > 0).astype(jnp.int32))


def _make(name: str, lanes: int, steps: int = 1, **settings: Any) -> Program:
    return Program(
        name=f"models/{name}",
        category=CATEGORY,
        full=Size(lanes=lanes, steps=steps),
        quick=Size(lanes=4, steps=1),
        rule=Rule(relative=1e-3),
        **settings,
    )


PROGRAMS: Final = (
    _make("perceptron", 128, build=build_perceptron, requires=("flax", "optax")),
    _make("convolutional", 16, build=build_convolutional, requires=("flax", "optax")),
    _make("recurrent", 16, 20, build=build_recurrent, requires=("flax", "optax")),
    _make("encoder", 32, build=build_encoder, requires=("flax", "optax")),
    _make("equinox", 256, build=build_equinox, requires=("equinox", "optax")),
    _make("density", 20_000, build=build_density, requires=("numpyro",)),
)
