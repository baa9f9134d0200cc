"""Convolutions of few products in loops, which are written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.differential.comparison import CLOSE, EXACT
from tests.differential.harness import check
from tests.differential.values import NumpyArray

Body = Callable[[jax.Array, jax.Array], jax.Array]


def normal(*sizes: int, seed: int = 0) -> NumpyArray:
    return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


def convolve(**settings: Any) -> Body:
    """Returns a step; every one has results of the size of what it gets."""

    def body(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.tanh(lax.conv_general_dilated(x, kernel, **settings))

    return body


CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize(
    ("body", "shape", "kernel"),
    [
        (convolve(window_strides=(1,), padding="SAME"), (37, 1, 9), (1, 1, 4)),
        (convolve(window_strides=(1, 1), padding="SAME"), (37, 2, 7, 6), (2, 2, 3, 3)),
        (
            convolve(window_strides=(1, 1), padding="SAME", dimension_numbers=CHANNELS_LAST),
            (37, 5, 6, 3),
            (3, 1, 3, 3),
        ),
        (
            convolve(window_strides=(1,), padding="SAME", feature_group_count=4),
            (37, 4, 9),
            (4, 1, 3),
        ),
        (
            convolve(window_strides=(1,), padding="SAME", feature_group_count=2),
            (37, 4, 9),
            (4, 2, 3),
        ),
        (
            convolve(window_strides=(2,), padding=[(2, 3)], lhs_dilation=(2,), rhs_dilation=(2,)),
            (37, 2, 9),
            (2, 2, 3),
        ),
        (convolve(window_strides=(1,), padding=[(-1, 3)]), (37, 1, 9), (1, 1, 3)),
    ],
    ids=["one", "two", "last", "depthwise", "groups", "dilated", "cropped"],
)
def test_each_lane_has_its_own_image(
    body: Body, shape: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    def program(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 4, lambda _, x: body(x, kernel), x)

    (loop,) = check(program, normal(*shape), normal(*kernel, seed=1), tolerance=CLOSE).loops
    assert loop.lanes == 37


def test_each_lane_has_its_own_filter() -> None:
    """`vmap` makes groups of the lanes."""

    def program(tail: jax.Array, blocks: jax.Array, response: jax.Array) -> Any:
        def step(tail: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = jnp.convolve(block, response).at[:3].add(tail)
            return y[8:], y[:8]

        return lax.scan(step, tail, blocks)

    arguments = normal(37, 3), normal(37, 5, 8, seed=1), normal(37, 4, seed=2)
    (loop,) = check(jax.vmap(program), *arguments, tolerance=CLOSE).loops
    assert loop.lanes == 37


def test_integers() -> None:
    def program(x: jax.Array, kernel: jax.Array) -> jax.Array:
        def body(_: Any, x: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(x, kernel, (1,), "SAME") % 101

        return lax.fori_loop(0, 4, body, x)

    generator = np.random.default_rng(0)
    x = generator.integers(-100, 100, (37, 1, 9)).astype(np.int32)
    kernel = generator.integers(-9, 9, (1, 1, 3)).astype(np.int32)
    (loop,) = check(program, x, kernel, tolerance=EXACT).loops
    assert loop.lanes == 37


def test_gradients() -> None:
    """Windows are mirrored on the way back."""

    def program(x: jax.Array, kernel: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            body = convolve(window_strides=(1,), padding="SAME")
            x, _ = lax.scan(lambda x, _: (body(x, kernel), None), x, length=4)
            return (x**2).sum()

        return jax.grad(loss)(x)

    loops = check(program, normal(37, 1, 9), normal(1, 1, 4, seed=1), tolerance=CLOSE).loops
    assert [loop.lanes for loop in loops] == [37, 37]


def test_many_weights_stay_with_the_library() -> None:
    body = convolve(window_strides=(1,), padding="SAME")

    def program(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 4, lambda _, x: body(x, kernel), x)

    arguments = normal(37, 5, 9), normal(5, 5, 3, seed=1)
    check(program, *arguments, refused="unsupported-opcode", tolerance=CLOSE)
