"""Cost table: complete, and as large as its sums."""

from __future__ import annotations

import pytest

from fuselane.analysis.cost import OPCODE_COST, UNKNOWN_TRIP_COUNT, instruction_cost, total_cost
from fuselane.analysis.opcodes import LANE_OPCODES
from fuselane.lanes.form import form
from tests.lanes.loops import counting_loop, loop_of


def test_every_opcode_of_lane_programs_has_a_cost() -> None:
    """And the one that forming adds: what lanes share."""
    assert set(OPCODE_COST) == LANE_OPCODES | {"copy"}


def test_costs_are_per_lane_and_per_element() -> None:
    module = counting_loop("s = f32[64,3] sine(e0)", ["s"], ["f32[64,3]"], trip_count=1000)
    program = form(module, loop_of(module))
    # Both dimensions are lanes: one sine, and the counter's addition.
    assert program.cost == OPCODE_COST["sine"] + 1


def test_reduce_costs_what_it_reads() -> None:
    module = counting_loop(
        """z = f32[] constant(0)
        r = f32[64] reduce(e0, z), dimensions={1}, to_apply=add_f32
        b = f32[64,3] broadcast(r), dimensions={0}""",
        ["b"],
        ["f32[64,3]"],
        trip_count=1000,
    )
    program = form(module, loop_of(module))
    assert program.cost == 3 + 1


@pytest.mark.parametrize(("trip_count", "expected"), [(7, 7), (None, UNKNOWN_TRIP_COUNT)])
def test_loops_cost_all_their_iterations(trip_count: int | None, expected: int) -> None:
    module = counting_loop("s = f32[64] negate(e0)", ["s"], ["f32[64]"], trip_count=1000)
    program = form(module, loop_of(module))
    loop = program.loop.instruction
    lanes = program.lane_dimensions.get
    once = total_cost(loop.body.instructions, lanes, lambda _: None)
    assert instruction_cost(loop, lanes, lambda _: trip_count) == expected * once
