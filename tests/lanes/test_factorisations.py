"""LAPACK's calls written out: the region, run by XLA, against the calls themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
from jax import lax

from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.fuzz.run import quick_options
from fuselane.hlo.computation import reachable_computations
from fuselane.lanes.form import form
from fuselane.lanes.normalise import normalise
from tests.lanes.oracle import (
    as_module,
    capture,
    loops_of,
    region_inputs,
    run_module,
    users_results,
)

BATCH: Final = (3, 5)
Array = Any


def matrices(size: int, *, seed: int = 0, columns: int | None = None) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((*BATCH, size, columns or size)).astype(np.float32)


def positive(size: int) -> np.ndarray[Any, Any]:
    a = matrices(size)
    return a @ a.swapaxes(-1, -2) + size * np.eye(size, dtype=np.float32)


def check(step: Callable[..., Any], *arguments: Any, tolerance: float = 2e-4) -> None:
    """Runs the region of `fori_loop(0, 2, step)` and the loop itself."""

    def program(*arguments: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, state: step(*state), arguments)

    expected = jax.jit(program).lower(*arguments).compile(quick_options())(*arguments)
    module = capture(program, *arguments)
    loop = loops_of(module)[-1]
    normal = normalise(loop)
    for computation in reachable_computations([normal.region]):
        assert not any(i.opcode == "custom-call" for i in computation.instructions)
    lane_program = form(module, loop)
    inputs = region_inputs(lane_program, arguments)
    results = run_module(as_module(lane_program.region, module), inputs)
    actual = users_results(lane_program, results)
    for index, result in zip(lane_program.output_indices, actual, strict=True):
        if index > 0:
            wanted = np.asarray(expected[index - 1])
            np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [1, 2, 5, 13, 20])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(size: int, upper: bool) -> None:
    """Some matrices are not positive: all of their factors are NaN, those of others are not."""

    def step(a: Array, _: Array) -> Array:
        return a + 0.25, jnp.linalg.cholesky(a, upper=upper)

    values = positive(size)
    values[0, 0] *= -1
    values[1, 2, -1, -1] = -1
    values[2, 3, 0, 0] = np.nan
    check(step, values, np.zeros_like(values))


@pytest.mark.parametrize("size", [1, 3, 5, 13, 20])
@pytest.mark.parametrize("lower", [False, True])
def test_triangular_solve(size: int, lower: bool) -> None:
    """From the left with several right sides, from the right; the other triangle is not read."""

    def step(a: Array, *solutions: Array) -> Array:
        sides = iter(solutions)
        solved = [
            lax.linalg.triangular_solve(
                a,
                next(sides),
                left_side=left,
                lower=lower,
                transpose_a=transposed,
                unit_diagonal=unit,
            )
            for left in (False, True)
            for transposed in (False, True)
            for unit in (False, True)
        ]
        return a * 1.5, *solved

    a = matrices(size) * 0.2 + 2 * np.eye(size, dtype=np.float32)
    other = np.triu(np.ones((size, size), bool), 1)
    a[:, :, other if lower else other.T] = np.nan
    rows = [matrices(size, seed=n)[:, :, :1] for n in range(4)]
    columns = [matrices(size, columns=4, seed=n) for n in range(4)]
    check(step, a, *rows, *columns)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (4, 4), (3, 5), (5, 3), (9, 9), (13, 16), (16, 13)]
)
def test_lu(rows: int, columns: int) -> None:
    """Ties take the first row; a column of zeros is left as it is and reported."""

    def step(a: Array, factors: Array, pivots: Array) -> Array:
        factors, pivots, _ = lax.linalg.lu(a)
        return a * 1.5, factors, pivots

    values = matrices(rows, columns=columns)
    values[0, 0] = 1
    values[1, 1, :, 0] = 0
    values[2, 1] = 0
    pivots = np.zeros((*BATCH, min(rows, columns)), np.int32)
    check(step, values, np.zeros_like(values), pivots)


@pytest.mark.parametrize("size", [1, 4])
def test_determinants(size: int) -> None:
    def step(a: Array, d: Array, s: Array) -> Array:
        sign, logarithm = jnp.linalg.slogdet(a)
        return a * 1.5, jnp.linalg.det(a), sign * logarithm

    zeros = np.zeros(BATCH, np.float32)
    check(step, matrices(size), zeros, zeros, tolerance=1e-3)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("lapack_ssyevd_ffi", lambda a: jnp.linalg.eigvalsh(a)[..., None] + a),
        ("lapack_sgesdd_ffi", lambda a: jnp.linalg.svd(a)[0] + a),
    ],
)
def test_other_calls_are_refused_by_name(name: str, step: Callable[..., Any]) -> None:
    assert_refused(name, step, matrices(4))


@pytest.mark.parametrize(
    ("name", "size", "step"),
    [
        ("lapack_spotrf_ffi", 33, jnp.linalg.cholesky),
        ("lapack_sgetrf_ffi", 17, lambda a: lax.linalg.lu(a)[0]),
        ("lapack_sgeqrf_ffi", 9, lambda a: jnp.linalg.qr(a)[1]),
    ],
)
def test_large_matrices_are_refused_by_name(name: str, size: int, step: Callable[..., Any]) -> None:
    assert_refused(name, step, positive(size))


def assert_refused(name: str, step: Callable[..., Any], values: Any) -> None:
    module = capture(lambda a: lax.fori_loop(0, 20, lambda _, a: step(a), a), values)
    with pytest.raises(UnsupportedError) as caught:
        form(module, loops_of(module)[0])
    assert caught.value.decision.reason is Reason.UNSUPPORTED_OPCODE
    assert name in caught.value.decision.sentence


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 3), (2, 4), (4, 4), (3, 1)])
def test_qr(rows: int, columns: int) -> None:
    """Columns of zeros, tiny and huge ones, those that are done already, NaN: all as LAPACK's."""

    def step(a: Array, _: Array, __: Array) -> Array:
        return (a * 0.5, *jnp.linalg.qr(a))

    values = matrices(rows, columns=columns)
    values[0, 0] = 0
    values[0, 1] *= 1e-25
    values[0, 2] *= 1e25
    values[0, 3] = np.triu(values[0, 3])
    values[0, 4, 1:, 0] *= 1e-25
    values[1, 0, -1, -1] = np.nan
    size = min(rows, columns)
    q = np.zeros((*BATCH, rows, size), np.float32)
    r = np.zeros((*BATCH, size, columns), np.float32)
    check(step, values, q, r)


def test_qr_with_all_columns() -> None:
    def step(a: Array, _: Array) -> Array:
        return a * 0.5, jnp.linalg.qr(a, mode="complete")[0]

    check(step, matrices(4, columns=2), np.zeros((*BATCH, 4, 4), np.float32))
