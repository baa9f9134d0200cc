"""Reductions in loops without lanes: of rows, of columns side by side, in stages or in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.analysis.dimension_rules import find_classes
from fuselane.analysis.lanes import LaneAnalysis
from fuselane.hlo.computation import HloComputation
from fuselane.lanes import form
from tests.differential.comparison import EXACT, Tolerance
from tests.differential.harness import check

Reduction = Callable[..., jax.Array]

SIZES: Final = [(60, 50), (7, 33), (33, 7), (2, 40, 50), (40, 3, 50), (3, 90, 2, 9), (4200, 9)]
CHOOSING: Final[dict[str, Reduction]] = {"max": jnp.max, "min": jnp.min}
COUNTING: Final[dict[str, Reduction]] = CHOOSING | {
    "sum": jnp.sum,
    "any": lambda x, axis: (x > 7).any(axis),
}
ADDING: Final[dict[str, Reduction]] = {
    "sum": jnp.sum,
    "product": lambda x, axis: jnp.prod(1 + x / 64, axis),
    "of functions": lambda x, axis: jnp.exp(x / 8).sum(axis),
}


@pytest.fixture(autouse=True)
def without_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all lanes, which most loops have."""

    def find_none(region: HloComputation, **_: Any) -> LaneAnalysis:
        lane_dimensions, splits = find_classes(region).lane_dimensions(lane_class=None)
        return LaneAnalysis(num_lanes=1, lane_dimensions=lane_dimensions, splits=splits)

    monkeypatch.setattr(form, "find_lanes", find_none)
    monkeypatch.setattr(form, "share_lanes", lambda _: None)


def program(reductions: Mapping[str, Reduction]) -> Callable[[jax.Array], Any]:
    """Returns a loop that reduces its rows and its columns, and in some steps others."""

    def rollout(x: jax.Array) -> Any:
        def reduce(x: jax.Array, axis: int) -> list[jax.Array]:
            return [reduction(x, axis=axis) for reduction in reductions.values()]

        def step(x: jax.Array, number: jax.Array) -> tuple[jax.Array, Any]:
            rows, columns = reduce(x, -1), reduce(x, 0)
            late = lax.cond(
                number % 3 == 1,
                lambda x: (reduce(x, 0), reduce(x + x, -1)),
                lambda x: (columns, rows),
                x[::-1],
            )
            goes_back = columns[0] > rows[0][..., None]
            return jnp.where(goes_back, x[..., ::-1], x[::-1]), (rows, columns, late)

        return lax.scan(step, x, jnp.arange(4))

    return rollout


def check_without_lanes(
    reductions: Mapping[str, Reduction], values: Any, tolerance: Tolerance = EXACT
) -> None:
    report = check(program(reductions), values, tolerance=tolerance)
    assert "without lanes" in report.loops[-1].decision.sentence


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_integers(sizes: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(-9, 9, sizes).astype(np.int32)
    check_without_lanes(COUNTING, values)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_what_is_chosen(dtype: str) -> None:
    """Of floats, NaN above all, and +0 rather than -0."""
    values = np.random.default_rng(0).integers(0, 3, (60, 50)).astype(jnp.dtype(dtype))
    if dtype != "uint8":
        values[values == 1] *= -0.0
        values[:, ::9] = -np.abs(values[:, ::9])
        values[3, 4] = np.nan
    check_without_lanes(CHOOSING, values)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_floats(sizes: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    check_without_lanes(ADDING, values, Tolerance(relative=3e-5, absolute=3e-4))
