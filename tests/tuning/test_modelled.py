"""What modules take by model, kernels of Fuselane's among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fuselane import tuner
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import XLAS_OWN
from fuselane.tuning.making import Made, Maker
from fuselane.tuning.modelled import Modelled, clock_of_cpu, modelled_us
from fuselane.xla.programs import program_of

CLOCK = clock_of_cpu(MachineCosts(), num_cores=1)
OURS = Candidate("fuselane")


def straight(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sines and exponentials, of which XLA computes some twice."""
    shared = jnp.sin(x) * jnp.cos(x)
    return shared, shared * jnp.exp(shared)


def loop(x: jax.Array) -> jax.Array:
    """A thousand steps of each element by itself."""
    return jax.lax.fori_loop(0, 1000, lambda _, y: jnp.sin(y) * 1.5, x)


def maker_of(function: Callable[[jax.Array], Any], *, loops: bool = False) -> Maker:
    jax.clear_caches()  # XLA is to compile it once more
    program = program_of(jax.jit(function), (jnp.ones(100_000),))
    return tuner._Makers(program, loops=loops).of({})


def calls(made: Made) -> list[str]:
    """Returns the names of the calls of kernels of ours."""
    entry = made.module.entry
    return [i.name for i in entry.instructions if i.opcode == "custom-call"]


@pytest.mark.parametrize(("function", "loops"), [(straight, False), (loop, True)])
def test_kernels_of_ours_count(function: Callable[[jax.Array], Any], loops: bool) -> None:
    """By the estimate that they were made by, not as a mere call; with loops XLA's own way has
    kernels, too."""
    maker = maker_of(function, loops=loops)
    candidate = XLAS_OWN if loops else OURS
    made = maker.make(candidate)
    (call,) = calls(made)
    kernel_us = made.own_us[call]
    others_us = modelled_us(made.module, CLOCK, {call: 0.0})
    answer = Modelled(maker, CLOCK).compare(candidate, XLAS_OWN, 1e9)
    assert answer.cost_us == pytest.approx(others_us + kernel_us)
    as_xlas_us = modelled_us(made.module, CLOCK)  # a call says nothing of what is behind it
    assert as_xlas_us != pytest.approx(answer.cost_us, rel=0.1)


def test_others_are_as_without() -> None:
    """Modules without kernels of ours are priced by the target's model alone."""
    maker = maker_of(straight)
    made = maker.make(XLAS_OWN)
    assert not made.own_us and not calls(made)
    price = Modelled(maker, CLOCK).compare(XLAS_OWN, XLAS_OWN, 1e9).cost_us
    assert price == modelled_us(made.module, CLOCK)
