"""Which of two programs of one loop becomes a kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from fuselane.backends.backend import Backend, pick
from fuselane.lanes.program import LaneProgram
from tests.codegen.kernels import form_program
from tests.lanes.loops import counting_loop


class _Timed:
    """A backend that knows how long each program takes."""

    def __init__(self, step_us: dict[str, float]) -> None:
        self._step_us = step_us

    def plan(self, program: LaneProgram) -> Any:
        return program.name

    def kernel_us(self, program: LaneProgram, plan: Any) -> tuple[float, float]:
        return self._step_us[program.name], 0.0


@pytest.mark.parametrize(("rival_us", "expected"), [(0.95, "first"), (0.8, "rival")])
def test_a_rival_has_to_be_clearly_faster(rival_us: float, expected: str) -> None:
    body = "y = f32[16] multiply(e0, e0)"
    program = replace(form_program(counting_loop(body, ["y"], ["f32[16]"])), name="first")
    program = replace(program, rival=replace(program, name="rival"))
    backend = cast(Backend, _Timed({"first": 1.0, "rival": rival_us}))
    assert pick(program, backend).program.name == expected
