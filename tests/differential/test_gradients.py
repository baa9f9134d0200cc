"""Gradients through loops: forward and backward loops both run over lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from tests.differential.comparison import Tolerance
from tests.differential.harness import IS_OFF
from tests.differential.harness import check as check_results

STEPS: Final = 6
CLOSE_SUMS: Final = Tolerance(ulp=8, relative=5e-5, absolute=5e-5)
WEIGHTS: Final = np.array([0.5, 0.1], np.float32)


def check(program: Callable[..., Any], *arguments: Any, **how: Any) -> None:
    """Checks the gradients of a program, see `harness.check`; its loops must run over lanes."""
    num_before = len(fuselane.decisions().loops)
    check_results(program, *arguments, **{"tolerance": CLOSE_SUMS} | how)
    for loop in fuselane.decisions().loops[num_before:]:
        assert loop.lanes is not None, loop


def lanes(count: int, *residual: int) -> Any:
    """Returns different values between -1 and 1, whose sums don't cancel out."""
    size = int(np.prod([count, *residual]))
    return (np.sin(np.arange(size) * 0.7) * 0.5 + 0.3).astype(np.float32).reshape(count, *residual)


def advance(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x * weights[0] + weights[1])


def final(weights: jax.Array, start: jax.Array) -> jax.Array:
    step = lambda x, _: (advance(weights, x), None)  # noqa: E731
    return lax.scan(step, start, None, length=STEPS)[0]


@pytest.mark.parametrize("count", [2, 29, 64, 1000])
@pytest.mark.parametrize("loss", [jnp.sum, jnp.mean, lambda x: jnp.sqrt(jnp.mean(x * x))])
def test_loss_of_final_states(loss: Callable[..., Any], count: int) -> None:
    """Gradients of what all lanes share, and of what each has for itself."""
    gradient = jax.value_and_grad(lambda w, x: loss(final(w, x)), argnums=(0, 1))
    check(gradient, WEIGHTS, lanes(count))


def test_sums_of_lanes_that_rows_are_added_to() -> None:
    """A table is read by the loop and beside it, so that its gradient begins with the lanes' sum
    and is scattered into, in a fusion of XLA's."""
    picked = np.arange(64, dtype=np.int32) % 7

    def loss(table: jax.Array, start: jax.Array) -> jax.Array:
        step = lambda x, _: (jnp.sin(x @ table), None)  # noqa: E731
        last = lax.scan(step, start, None, length=STEPS)[0]
        return jnp.mean(last) - jnp.sum(table[picked, picked[::-1]])

    check(jax.value_and_grad(loss), lanes(7, 7), lanes(64, 7))


def test_loss_carried_along() -> None:
    def loss(weights: jax.Array, start: jax.Array) -> jax.Array:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
            x, total = carry
            x = advance(weights, x)
            return (x, total + jnp.mean((x - 0.3) ** 2)), None

        return lax.scan(step, (start, jnp.float32(0)), None, length=STEPS)[0][1]

    check(jax.value_and_grad(loss, argnums=(0, 1)), WEIGHTS, lanes(77))


@pytest.mark.parametrize("reverse", [False, True])
def test_loss_of_each_step(reverse: bool) -> None:
    def loss(weights: jax.Array, start: jax.Array, targets: jax.Array) -> jax.Array:
        def step(x: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = advance(weights, x)
            return x, jnp.mean((x - target) ** 2)

        return jnp.sqrt(lax.scan(step, start, targets, reverse=reverse)[1]).sum()

    check(jax.value_and_grad(loss, argnums=(0, 1)), WEIGHTS, lanes(77), lanes(STEPS, 77))
    check(jax.value_and_grad(loss, argnums=2), WEIGHTS, lanes(77), lanes(STEPS, 77))


def test_parameters_of_each_lane() -> None:
    def loss(weights: jax.Array, start: jax.Array) -> jax.Array:
        step = lambda x, _: (jnp.tanh(x * weights[:, 0] + weights[:, 1]), None)  # noqa: E731
        return lax.scan(step, start, None, length=STEPS)[0].sum()

    check(jax.grad(loss, argnums=(0, 1)), lanes(77, 2), lanes(77))


def test_gradient_of_each_lane() -> None:
    gradient = jax.vmap(jax.grad(final), in_axes=(None, 0))
    check(gradient, WEIGHTS, lanes(77))


def test_checkpointed_steps() -> None:
    def loss(weights: jax.Array, start: jax.Array) -> jax.Array:
        @jax.checkpoint
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(advance(weights, x) + x * weights[1]), None

        return lax.scan(step, start, None, length=STEPS)[0].sum()

    check(jax.value_and_grad(loss, argnums=(0, 1)), WEIGHTS, lanes(77))


def dense(count: int) -> tuple[list[Any], Any]:
    """Returns weights and biases of two layers, and states of four values."""
    shapes = [(4, 9), (9,), (9, 4), (4,)]
    return [lanes(*shape) - np.float32(0.2) for shape in shapes], lanes(count, 4)


def network(weights: list[jax.Array], start: jax.Array) -> jax.Array:
    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        hidden = jnp.tanh(x @ weights[0] + weights[1])
        return x + 0.1 * (hidden @ weights[2] + weights[3]), None

    return lax.scan(step, start, None, length=STEPS)[0]


@pytest.mark.parametrize("count", [16, 77, 300])
def test_weights_of_layers(count: int) -> None:
    """Products summed over the lanes, whose rows and columns are no multiples of a panel's."""
    gradient = jax.value_and_grad(lambda w, x: (network(w, x) ** 2).mean(), argnums=(0, 1))
    check(gradient, *dense(count))


def test_recurrent_cell() -> None:
    hidden, inputs = 6, 5

    def loss(weights: list[jax.Array], start: jax.Array, rows: jax.Array) -> jax.Array:
        def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            gates = row @ weights[0] + h @ weights[1] + weights[2]
            update, reset, new = jnp.split(gates, 3, axis=1)
            update = jax.nn.sigmoid(update)
            return update * h + (1 - update) * jnp.tanh(new * jax.nn.sigmoid(reset)), None

        return (lax.scan(step, start, rows)[0] ** 2).mean()

    weights = [lanes(inputs, 3 * hidden), lanes(hidden, 3 * hidden), lanes(3 * hidden)]
    rows = lanes(STEPS, 50, inputs)
    check(jax.value_and_grad(loss), weights, lanes(50, hidden), rows)


def test_double_precision() -> None:
    def loss(weights: jax.Array, start: jax.Array) -> jax.Array:
        return final(weights, start).mean()

    tolerance = Tolerance(ulp=8, relative=1e-11, absolute=1e-11)
    arguments = (WEIGHTS.astype(np.float64), lanes(77).astype(np.float64))
    check(jax.value_and_grad(loss), *arguments, x64=True, tolerance=tolerance)


def test_random_numbers_drawn_in_the_loop() -> None:
    """Sensitivities of a Monte-Carlo estimate."""

    def price(parameters: jax.Array, key: jax.Array) -> jax.Array:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> Any:
            path, key = carry
            key, once = jax.random.split(key)
            noise = jax.random.normal(once, path.shape)
            drift = (parameters[2] - 0.5 * parameters[1] ** 2) * 0.01
            return (path * jnp.exp(drift + parameters[1] * 0.1 * noise), key), None

        start = jnp.full(300, parameters[0])
        paths = lax.scan(step, (start, key), None, length=STEPS)[0][0]
        return jnp.maximum(paths - 1, 0).mean()

    parameters = np.array([1.0, 0.2, 0.05], np.float32)
    check(jax.value_and_grad(price), parameters, np.array([1, 2], np.uint32))


@pytest.mark.parametrize("tile_lanes", [8, 64, 4096])
def test_every_tiling(tile_lanes: int) -> None:
    weights, start = dense(200)
    gradient = jax.grad(lambda w, x: (network(w, x) ** 2).mean(), argnums=(0, 1))
    expected = jax.jit(gradient)(weights, start)
    with fuselane.enabled(tile_lanes=tile_lanes):
        actual = jax.jit(gradient)(weights, start)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def residual_counts(program: Callable[..., Any], *arguments: Any) -> list[tuple[float, float]]:
    """Returns, for the loops of a program, how many stacks are computed anew and left out."""
    loops = fuselane.explain(program, *arguments).loops
    numbers = [loop.decision.numbers for loop in loops]
    names = ("residuals_recomputed", "residuals_left_out")
    return [tuple(each.get(name, 0.0) for name in names) for each in numbers]  # type: ignore[misc]


def test_cheap_residuals_are_computed_again() -> None:
    """`1 - y` is not stacked beside `y`, and both loops' decisions say so.

    That is how JAX up to 0.10 differentiates `y = tanh(..)`; later ones stack `1 - y * y` alone.
    """

    def program(weights: jax.Array, start: jax.Array) -> Any:
        def forward(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            y = advance(weights, x)
            return y, (y, 1 - y)

        def backward(x: jax.Array, rows: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            y, other = rows
            return x * other + x * other * y, None

        last, rows = lax.scan(forward, start, None, length=STEPS)
        return last, lax.scan(backward, start, rows, reverse=True)[0]

    arguments = (WEIGHTS, lanes(77))
    check(program, *arguments)
    if not IS_OFF:
        assert sorted(residual_counts(program, *arguments)) == [(0, 1), (1, 0)]
        report = fuselane.explain(program, *arguments)
        sentences = " ".join(loop.decision.sentence for loop in report.loops)
        assert "computing 1 cheap residual instead of reading" in sentences
        assert "leaving out 1 cheap residual that the loop behind it computes" in sentences


def test_residuals_wanted_elsewhere_are_stored() -> None:
    """Here the caller gets what the forward loop stacks."""

    def program(weights: jax.Array, start: jax.Array) -> Any:
        def forward(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            y = advance(weights, x)
            return y, (y, 1 - y)

        def backward(x: jax.Array, rows: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return x * rows[0] + rows[1], None

        _, rows = lax.scan(forward, start, None, length=STEPS)
        return lax.scan(backward, start, rows, reverse=True)[0], rows[1]

    arguments = (WEIGHTS, lanes(77))
    check(program, *arguments)
    assert IS_OFF or residual_counts(program, *arguments) == [(0, 0), (0, 0)]


def test_residuals_read_at_other_places() -> None:
    """Rows are read forward, backward and more than once, some of them out of bounds."""

    def program(weights: jax.Array, start: jax.Array) -> Any:
        def forward(x: jax.Array, _: None) -> tuple[jax.Array, Any]:
            y = advance(weights, x)
            return y, (y, jnp.abs(1 - y) * 2)

        _, (ys, others) = lax.scan(forward, start, None, length=STEPS)

        def body(i: jax.Array, x: jax.Array) -> jax.Array:
            near = lax.dynamic_index_in_dim(others, i + 2, keepdims=False)
            far = lax.dynamic_index_in_dim(others, 3 - i, keepdims=False)
            return x * lax.dynamic_index_in_dim(ys, i, keepdims=False) + near - far

        return lax.fori_loop(0, STEPS, body, start)

    arguments = (WEIGHTS, lanes(77))
    check(program, *arguments)
    assert IS_OFF or sorted(residual_counts(program, *arguments)) == [(0, 1), (1, 0)]


def test_attention_over_what_each_lane_remembers() -> None:
    """Rows of two histories per lane are written, and gradients of them stacked, in every step."""
    size, length = 4, 24

    def loss(weights: jax.Array, start: jax.Array) -> jax.Array:
        def one(x: jax.Array) -> jax.Array:
            def step(carry: Any, t: jax.Array) -> Any:
                x, keys, values = carry
                keys = keys.at[t].set(x @ weights[0])
                values = lax.dynamic_update_slice(values, (x @ weights[1])[None], (t, 0))
                scores = jnp.where(jnp.arange(length) <= t, keys @ x, -jnp.inf)
                return (jnp.tanh(x + jax.nn.softmax(scores) @ values), keys, values), x[0]

            empty = jnp.zeros((length, size), jnp.float32)
            carry, firsts = lax.scan(step, (x, empty, empty), jnp.arange(length))
            return jnp.sum(carry[0]) + jnp.mean(firsts)

        return jnp.mean(jax.vmap(one)(start))

    check(jax.value_and_grad(loss, argnums=(0, 1)), lanes(2, size, size), lanes(29, size))
