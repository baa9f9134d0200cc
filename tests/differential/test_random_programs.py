"""Random lane-local loops give the same results as under plain XLA.

`FUSELANE_EXAMPLES=1000 pytest tests/differential/test_random_programs.py` looks at more of them,
other ones each time.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from tests.differential.comparison import Tolerance, assert_same_results
from tests.differential.harness import run_and_explain
from tests.differential.random_programs import (
    DTYPES,
    WIDE_DTYPES,
    Description,
    descriptions,
    make_inputs,
    make_program,
)

NUM_EXAMPLES: Final = int(os.environ.get("FUSELANE_EXAMPLES", "25"))
IS_DEFAULT: Final = "FUSELANE_EXAMPLES" not in os.environ
# Reasons there may be when XLA has simplified away all that depends on the lanes.
WITHOUT_LANES: Final = {"cross-lane", "no-lanes", "too-large"}
NEAR: Final = Tolerance(relative=1e-3, absolute=1e-3)


@pytest.mark.parametrize("dtypes", [DTYPES, WIDE_DTYPES], ids=["narrow", "wide"])
def test_random_programs(dtypes: tuple[str, ...]) -> None:
    """Exact values agree in every bit, near ones closely, and nearly all loops are fused."""
    codes: Counter[str] = Counter()

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=IS_DEFAULT,
        database=None,
        deadline=None,
        phases=(Phase.generate,) if IS_DEFAULT else (Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(descriptions(dtypes))
    def run(description: Description) -> None:
        codes.update(check_description(description))

    run()
    if codes:
        assert codes["fused"] >= 0.8 * codes.total(), codes


def check_description(description: Description) -> list[str]:
    """Checks one program and returns the codes of what became of its loops."""
    program = make_program(description)
    with jax.enable_x64(description.x64):
        arguments = make_inputs(description)
        expected = jax.jit(program)(*arguments)
        actual, report = run_and_explain(program, *arguments, options=description.options)
    assert_same_results(expected[0], actual[0])
    assert_same_results(expected[1], actual[1], NEAR)
    codes = [loop.decision.reason.code for loop in report.loops]
    for loop in report.loops:
        note(f"{loop.name}: {loop.decision.sentence}")
    refusals = [loop.decision for loop in report.loops if not loop.decision.fused]
    assert {decision.reason.code for decision in refusals} <= WITHOUT_LANES
    assert not any(f"size {description.lanes}" in decision.sentence for decision in refusals)
    return codes
