"""Programs that fusion is compared on besides the suite's: CartPole, flax, optax.

They are compiled only, so that sizes hardly matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp

from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS
from programs import PROGRAMS, harmless
from programs.program import Built, Program, Size, load

_SIZE: Final = Size(lanes=256, steps=100)
_CLASSES: Final = 10


def build_cartpole(variant: str, size: Size) -> Built:
    """One of the paper's ways to write the CartPole loop."""
    found = VARIANTS[variant]
    problem = make_problem(size.lanes, size.steps)
    return found.make_rollout(size.steps), found.get_arguments(problem)


def _normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), shape)


def _perceptron() -> Any:
    nn = load("flax.linen")
    return nn.Sequential([nn.Dense(128), nn.gelu, nn.LayerNorm(), nn.Dense(_CLASSES)])


def _convolutional() -> Any:
    nn = load("flax.linen")
    layers = [nn.Conv(16, (3, 3)), nn.GroupNorm(4), nn.relu, partial(jnp.mean, axis=(1, 2))]
    return nn.Sequential([*layers, nn.Dense(_CLASSES)])


def _transformer() -> Any:
    nn = load("flax.linen")
    layers = [nn.Dense(64), nn.SelfAttention(4), nn.LayerNorm(), nn.Dense(256), nn.gelu]
    return nn.Sequential([*layers, nn.Dense(64), partial(jnp.mean, axis=1), nn.Dense(_CLASSES)])


def build_forward(make_model: Callable[[], Any], shape: tuple[int, ...], _: Size) -> Built:
    """A flax model applied."""
    model, x = make_model(), _normal(*shape)
    return model.apply, (model.init(jax.random.key(1), x), x)


def build_training(make_model: Callable[[], Any], shape: tuple[int, ...], _: Size) -> Built:
    """A step of training of a flax model under AdamW."""
    optax = load("optax")
    model, x = make_model(), _normal(*shape)
    labels = jnp.arange(shape[0]) % _CLASSES
    parameters = model.init(jax.random.key(1), x)
    optimizer = optax.adamw(1e-3)

    def loss(parameters: Any) -> jax.Array:
        scores = model.apply(parameters, x)
        value: jax.Array = optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
        return value

    def step(parameters: Any, state: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(parameters), state, parameters)
        return optax.apply_updates(parameters, updates), state

    return step, (parameters, optimizer.init(parameters))


def build_optimizer(make_optimizer: Callable[[Any], Any], _: Size) -> Built:
    """A step of an optax optimizer over a dozen parameters."""
    optax = load("optax")
    optimizer = make_optimizer(optax)
    parameters = {f"w{i}": _normal(16 + i, 24) for i in range(8)}
    parameters |= {f"b{i}": _normal(24 + i) for i in range(4)}

    def step(slopes: Any, state: Any, parameters: Any) -> Any:
        updates, state = optimizer.update(slopes, state, parameters)
        return optax.apply_updates(parameters, updates), state

    return step, (parameters, optimizer.init(parameters), parameters)


def _make(name: str, build: Callable[[Size], Built], *requires: str) -> Program:
    category = name.partition("/")[0]
    return Program(
        name=name, category=category, build=build, full=_SIZE, quick=_SIZE, requires=requires
    )


_MODELS: Final = (
    ("perceptron", _perceptron, (64, 32)),
    ("convolutional", _convolutional, (8, 16, 16, 3)),
    ("transformer", _transformer, (8, 32, 48)),
)
_OPTIMIZERS: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("adam", lambda optax: optax.adam(1e-3)),
    ("lion", lambda optax: optax.lion(1e-3)),
    ("lamb", lambda optax: optax.lamb(1e-3)),
    ("adafactor", lambda optax: optax.adafactor(1e-3)),
    ("clipped", lambda optax: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))),
)

CORPUS: Final[tuple[Program, ...]] = (
    *PROGRAMS,
    *harmless.PROGRAMS,
    *(_make(f"cartpole/{name}", partial(build_cartpole, name)) for name in VARIANTS),
    *(
        _make(f"flax/{name}", partial(build_forward, model, shape), "flax")
        for name, model, shape in _MODELS
    ),
    *(
        _make(f"flax/{name}-training", partial(build_training, model, shape), "flax", "optax")
        for name, model, shape in _MODELS
    ),
    *(
        _make(f"optax/{name}", partial(build_optimizer, make), "optax")
        for name, make in _OPTIMIZERS
    ),
)
