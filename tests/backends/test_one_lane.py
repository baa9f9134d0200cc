"""Kernels of one lane at a time, as threads of a GPU run them: here on the CPU, beside XLA."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from fuselane.backends import cpu
from fuselane.codegen.plan import Plan, make_plan, make_thread_plan
from fuselane.config import Options
from fuselane.device import DeviceDescription
from fuselane.lanes.program import LaneProgram
from tests.backends.programs import LOOPS
from tests.differential.comparison import CLOSE
from tests.differential.harness import check


@pytest.fixture(autouse=True)
def one_lane_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(program: LaneProgram, options: Options, device: DeviceDescription) -> Plan:
        if not program.has_lanes or program.meetings:
            return make_plan(program, options, device)
        return make_thread_plan(program)

    monkeypatch.setattr(cpu, "make_plan", plan)
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "0")


@pytest.mark.parametrize("lanes", [33, 7])
@pytest.mark.parametrize("name", LOOPS)
def test_results_are_those_of_xla(name: str, lanes: int) -> None:
    check(LOOPS[name], jnp.linspace(-3, 5, lanes), tolerance=CLOSE)
