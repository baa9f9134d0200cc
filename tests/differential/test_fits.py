"""Fits to data: what a loop carries is parameters, and its lanes are the data's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from tests.differential.comparison import CLOSE, CLOSE_DOUBLE
from tests.differential.harness import check
from tests.differential.values import NumpyArray

SIZES = (16, 37, 1000)


def normals(*shape: int, seed: int = 0) -> NumpyArray:
    """Returns normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def lanes_of(report: fuselane.Report) -> list[int | None]:
    return [loop.lanes for loop in report.loops]


def bisect(data: jax.Array) -> Any:
    """Returns about where the middle of some numbers is."""

    def step(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) // 2
        is_low = jnp.sum(data < middle) * 2 < data.size
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    return lax.fori_loop(0, 12, step, (jnp.int32(-1000), jnp.int32(1000)))


@pytest.mark.parametrize("size", SIZES)
def test_counts(size: int) -> None:
    data = np.random.default_rng(0).integers(-900, 900, size).astype(np.int32)
    assert lanes_of(check(bisect, data)) == [size]


def mixture(data: jax.Array) -> Any:
    """Fits three normal distributions; what each of them has of the data is needed twice a step."""

    def step(fit: tuple[jax.Array, ...], _: None) -> Any:
        means, widths, shares = fit
        scores = jnp.log(shares / widths) - 0.5 * ((data[:, None] - means) / widths) ** 2
        parts = jax.nn.softmax(scores)
        total = parts.sum(0)
        means = (parts * data[:, None]).sum(0) / total
        widths = jnp.sqrt((parts * (data[:, None] - means) ** 2).sum(0) / total) + 0.1
        return (means, widths, total / data.size), jax.nn.logsumexp(scores, axis=1).mean()

    start = jnp.array([-1.0, 0.0, 1.0]), jnp.ones(3), jnp.ones(3) / 3
    return lax.scan(step, start, None, length=5)


@pytest.mark.parametrize("size", SIZES)
def test_sums_for_each_of_some_parameters(size: int) -> None:
    data = normals(size)
    assert lanes_of(check(mixture, data, tolerance=CLOSE)) == [size]


def k_means(data: jax.Array, start: jax.Array) -> Any:
    def step(_: int, centres: jax.Array) -> jax.Array:
        nearest = jnp.square(data[:, None] - centres).sum(-1).argmin(1)
        members = jax.nn.one_hot(nearest, len(centres))
        return (members.T @ data) / (members.sum(0)[:, None] + 1.0)

    return lax.fori_loop(0, 5, step, start)


@pytest.mark.parametrize("size", SIZES)
def test_products_summed_over_lanes(size: int) -> None:
    """A matrix product over the data is a sum for each of its results."""
    data, start = normals(size, 3), normals(4, 3, seed=1)
    assert lanes_of(check(k_means, data, start, tolerance=CLOSE)) == [size]


def descend(features: jax.Array, labels: jax.Array) -> Any:
    def loss(weights: jax.Array) -> jax.Array:
        scores = features @ weights
        return (jnp.logaddexp(0.0, scores) - labels * scores).mean()

    def step(weights: jax.Array, _: None) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 0.3 * gradient, value

    return lax.scan(step, jnp.zeros(features.shape[1]), None, length=6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES)
def test_gradient_descent(size: int, dtype: type) -> None:
    is_double = dtype is np.float64
    features: NumpyArray = np.asarray(normals(size, 5), dtype)
    arguments: tuple[NumpyArray, NumpyArray] = (
        features,
        np.asarray(normals(size, seed=1) > 0, dtype),
    )
    tolerance = CLOSE_DOUBLE if is_double else CLOSE
    report = check(descend, *arguments, tolerance=tolerance, x64=is_double)
    assert lanes_of(report) == [size]


def test_batches_of_products() -> None:
    """A product with dimensions of every kind: two batches, the data, and two kept."""
    left, right = normals(2, 200, 3), normals(2, 200, 4, seed=1)

    def program(left: jax.Array, right: jax.Array) -> Any:
        def step(_: int, total: jax.Array) -> jax.Array:
            scale = jnp.sin(left + 0.01 * total.mean())  # else rounding errors grow
            return total * 0.5 + jnp.einsum("bnk,bnm->bkm", scale, right)

        return lax.fori_loop(0, 4, step, jnp.zeros((2, 3, 4)))

    assert lanes_of(check(program, left, right, tolerance=CLOSE)) == [200]


def test_data_that_the_program_holds_itself() -> None:
    """Each gradient of a step has the data for its own, which go together as they are as many."""
    features, labels = normals(300, 4), (normals(300, seed=1) > 0).astype(np.float32)

    def gradient(weights: jax.Array) -> Any:
        return labels @ features - jax.nn.sigmoid(features @ weights) @ features - weights

    def leap(state: tuple[jax.Array, jax.Array], _: None) -> Any:
        weights, speed = state
        speed = speed + 0.01 * gradient(weights)
        weights = weights + 0.02 * speed
        return (weights, speed + 0.01 * gradient(weights)), weights

    def program(speed: jax.Array) -> Any:
        return lax.scan(leap, (jnp.zeros(4), speed), None, length=6)

    speed = normals(4, seed=2)
    assert lanes_of(check(program, speed, tolerance=CLOSE)) == [300]
