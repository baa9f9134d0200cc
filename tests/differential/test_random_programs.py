"""Random programs give the same results as under plain XLA; `fuselane fuzz` looks at many more.

`FUSELANE_EXAMPLES=1000 pytest tests/differential/test_random_programs.py` does so here.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from fuselane.fuzz.campaign import MIN_SHARE_FUSED
from fuselane.fuzz.generate import draw_program
from fuselane.fuzz.program import COHORT
from fuselane.fuzz.run import run_programs

NUM_EXAMPLES: Final = int(os.environ.get("FUSELANE_EXAMPLES", 4 * COHORT))


@pytest.mark.parametrize("seed", range(0, NUM_EXAMPLES, COHORT))
def test_random_programs(seed: int) -> None:
    """A module of programs: all agree, nearly all loops are fused."""
    outcome = run_programs([draw_program(seed + i) for i in range(COHORT)])
    assert not outcome.failures
    assert outcome.reasons["fused"] >= MIN_SHARE_FUSED * outcome.reasons.total(), outcome.reasons
