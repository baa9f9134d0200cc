"""Random programs give the same results as under plain XLA; `fuselane fuzz` looks at many more.

`FUSELANE_EXAMPLES=1000 pytest tests/differential/test_random_programs.py` does so here.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from fuselane.fuzz.campaign import MIN_SHARE_FUSED
from fuselane.fuzz.generate import draw_program
from fuselane.fuzz.program import COHORT, Program, Slot, Step
from fuselane.fuzz.run import run_programs

NUM_EXAMPLES: Final = int(os.environ.get("FUSELANE_EXAMPLES", 4 * COHORT))


@pytest.mark.parametrize("seed", range(0, NUM_EXAMPLES, COHORT))
def test_random_programs(seed: int) -> None:
    """A module of programs: all agree, nearly all loops are fused."""
    outcome = run_programs([draw_program(seed + i) for i in range(COHORT)])
    assert not outcome.failures
    assert outcome.reasons["fused"] >= MIN_SHARE_FUSED * outcome.reasons.total(), outcome.reasons


def test_the_only_parallel_dimension_is_beside_the_point() -> None:
    """Beside an array of lanes that is reduced; shrunk from seed 80001249."""
    program = Program(
        seed=80001249,
        lanes=(2,),
        outer="counted",
        steps=1,
        reverse=False,
        carries=(
            Slot(dtype="uint64", shape=(), kind="exact", place=0, has_lanes=True),
            Slot(dtype="int32", shape=(2,), kind="exact", place=0, has_lanes=True),
        ),
        streams=(Slot(dtype="int16", shape=(), kind="exact", place=0, has_lanes=False),),
        body=(
            Step(number=21, operation="conditional", operands=(3, 17, 17), variant=59221, body=()),
            Step(number=26, operation="divide", operands=(18, 18, 25), variant=16425, body=()),
            Step(number=29, operation="or", operands=(22, 27, 28), variant=9961, body=()),
        ),
        updates=(28, 30),
        results=(),
        reductions=((29, 3),),
        x64=True,
    )
    assert not run_programs([program]).failures
