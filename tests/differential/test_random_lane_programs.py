"""Random programs of one lane, run for many with `vmap`, give the same results as under plain XLA.

`FUSELANE_EXAMPLES=1000 pytest tests/differential/test_random_lane_programs.py` looks at more of
them, other ones each time.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from tests.differential.comparison import assert_same_results
from tests.differential.harness import run_and_explain
from tests.differential.random_lane_programs import (
    DTYPES,
    WIDE_DTYPES,
    LaneDescription,
    lane_descriptions,
    make_lane_inputs,
    make_lane_program,
)

NUM_EXAMPLES: Final = int(os.environ.get("FUSELANE_EXAMPLES", "8"))
IS_DEFAULT: Final = "FUSELANE_EXAMPLES" not in os.environ


@pytest.mark.parametrize("dtypes", [DTYPES, WIDE_DTYPES], ids=["narrow", "wide"])
def test_random_lane_programs(dtypes: tuple[str, ...]) -> None:
    """Every bit agrees, nothing fails inside, and nearly all loops are fused."""
    codes: Counter[str] = Counter()

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=IS_DEFAULT,
        database=None,
        deadline=None,
        phases=(Phase.generate,) if IS_DEFAULT else (Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(lane_descriptions(dtypes))
    def run(description: LaneDescription) -> None:
        codes.update(check_description(description))

    run()
    if codes:
        assert codes["fused"] >= 0.8 * codes.total(), codes


def check_description(description: LaneDescription) -> list[str]:
    """Checks one program and returns the codes of what became of its loops."""
    program = make_lane_program(description)
    with jax.enable_x64(description.x64):
        arguments = make_lane_inputs(description)
        expected = jax.jit(program)(*arguments)
        actual, report = run_and_explain(program, *arguments, options=description.options)
    for loop in report.loops:
        note(f"{loop.name}: {loop.decision.sentence}")
    assert_same_results(expected, actual)
    codes = [loop.decision.reason.code for loop in report.loops]
    assert "internal-error" not in codes
    return codes
