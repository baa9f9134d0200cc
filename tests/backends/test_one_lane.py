"""Kernels for GPUs, launch and all, on the CPU beside XLA; see `simulation`."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from tests.backends.programs import LOOPS
from tests.backends.simulation import simulate
from tests.differential.comparison import CLOSE
from tests.differential.harness import check


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


@pytest.mark.parametrize("lanes", [33, 7])
@pytest.mark.parametrize("name", LOOPS)
def test_results_are_those_of_xla(name: str, lanes: int) -> None:
    check(LOOPS[name], jnp.linspace(-3, 5, lanes), tolerance=CLOSE)


@pytest.mark.parametrize("lanes", [0, 1, 31, 32, 150])
@pytest.mark.parametrize("name", ["rows", "totals", "means"])
def test_launches_of_odd_sizes(name: str, lanes: int) -> None:
    """No lane is left out or done twice, and none but they meet: a thread has up to three lanes."""
    if lanes == 0 and name == "means":
        pytest.skip("no lanes have no maximum")
    check(LOOPS[name], jnp.linspace(-3, 5, lanes), fused=None, tolerance=CLOSE)
