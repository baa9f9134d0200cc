"""Loops whose lanes see each other: what is shared, where the lanes lie, what is left alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes import sharing
from fuselane.lanes.normalise import normalise
from fuselane.lanes.sharing import MIN_LANES, share_lanes
from tests.lanes.loops import counting_loop, loop_of

SHARED = ("copy", "gather")


def shared_body(
    body: str, results: list[str], carried: list[str], *, condition: str = ""
) -> tuple[HloComputation, int | None]:
    """Returns the body of a loop whose lanes share what they see, and the number of its lanes."""
    how = {"condition": condition} if condition else {}
    region = normalise(loop_of(counting_loop(body, results, carried, **how))).region
    seed = share_lanes(region)
    loop = next(i for i in region.instructions if i.opcode == "while")
    return loop.body, seed and seed.value.shape.dimensions[seed.dimension]


def count(body: HloComputation) -> Counter[str]:
    """Returns how often lanes share a value, and take their own of what is shared."""
    return Counter(i.opcode for i in body.instructions if i.opcode in SHARED)


def find(body: HloComputation, opcode: str) -> HloInstruction:
    return next(i for i in body.instructions if i.opcode == opcode)


PAIRS = """
  f0 = f32[] constant(0)
  mine = f32[24,24] broadcast(e0), dimensions={mine}
  theirs = f32[24,24] broadcast(e0), dimensions={theirs}
  pulls = f32[24,24] subtract(mine, theirs)
  bent = f32[24,24] sine(pulls)
  total = f32[24] reduce(bent, f0), dimensions={{1}}, to_apply=add_f32
  moved = f32[24] add(e0, total)
"""


@pytest.mark.parametrize(("mine", "theirs"), [("{0}", "{1}"), ("{1}", "{0}")])
def test_of_a_pair_the_side_that_is_summed_over_is_shared(mine: str, theirs: str) -> None:
    """The lanes lie along the dimension that is left."""
    text = PAIRS.format(mine=mine, theirs=theirs)
    body, lanes = shared_body(text, ["moved"], ["f32[24]"])
    assert lanes == 24
    assert count(body) == {"copy": 1}
    broadcasts = [i for i in body.instructions if i.opcode == "broadcast"]
    (shared,) = (i for i in broadcasts if i.operands[0].opcode == "copy")
    assert tuple(shared.dimensions) == (1,)


def test_what_both_sides_are_summed_over_is_computed_twice() -> None:
    text = PAIRS.format(mine="{0}", theirs="{1}") + (
        "  other = f32[24] reduce(bent, f0), dimensions={0}, to_apply=add_f32\n"
        "  both = f32[24] subtract(moved, other)\n"
    )
    body, lanes = shared_body(text, ["both"], ["f32[24]"])
    assert lanes == 24
    assert sum(i.opcode == "sine" for i in body.instructions) == 2
    assert count(body) == {"copy": 1}


def test_what_never_changes_need_not_be_shared() -> None:
    text = PAIRS.format(mine="{0}", theirs="{1}").replace(
        "broadcast(e0), dimensions={1}", "WEIGHTS"
    )
    text = text.replace("WEIGHTS", "broadcast(e1), dimensions={1}")
    body, lanes = shared_body(text, ["moved", "e1"], ["f32[24]", "f32[24]"])
    assert (lanes, count(body)) == (None, {})


@pytest.mark.parametrize(("own", "summed"), [("{0}", "{1}"), ("{1}", "{0}")])
def test_a_matrix_that_never_changes_has_its_lanes_where_they_are_used(
    own: str, summed: str
) -> None:
    """It stays as it is, by rows or by columns; what it is multiplied by is shared."""
    body, lanes = shared_body(
        f"""
  f0 = f32[] constant(0)
  all = f32[24,24] broadcast(e0), dimensions={summed}
  products = f32[24,24] multiply(all, e1)
  moved = f32[24] reduce(products, f0), dimensions={summed}, to_apply=add_f32
""",
        ["moved", "e1"],
        ["f32[24]", "f32[24,24]"],
    )
    assert lanes == 24
    assert count(body) == {"copy": 1}
    (place,) = find(body, "multiply").operands[0].dimensions
    assert own != f"{{{place}}}"


def test_neighbours_are_moved_for_all_and_taken_by_each() -> None:
    body, lanes = shared_body(
        """
  head = f32[23] slice(e0), slice={[1:24]}
  tail = f32[1] slice(e0), slice={[0:1]}
  turned = f32[24] concatenate(head, tail), dimensions={0}
  moved = f32[24] add(e0, turned)
""",
        ["moved"],
        ["f32[24]"],
    )
    assert lanes == 24
    assert count(body) == {"copy": 1, "gather": 1}
    assert find(body, "gather").operands[0].opcode == "concatenate"


def test_what_has_no_lanes_is_not_shared() -> None:
    """The places to sort are the same for all lanes; only what is made of them is each lane's."""
    body, lanes = shared_body(
        """
  places = s32[24] iota(), iota_dimension=0
  step = s32[24] broadcast(i), dimensions={}
  mixed = s32[24] multiply(places, step)
  numbers = f32[24] convert(mixed)
  order = f32[24] sort(numbers), dimensions={0}, to_apply=less_f32
  head = f32[23] slice(e0), slice={[1:24]}
  tail = f32[1] slice(e0), slice={[0:1]}
  turned = f32[24] concatenate(head, tail), dimensions={0}
  bent = f32[24] sine(turned)
  sum = f32[24] add(bent, order)
  moved = f32[24] add(e0, sum)
""",
        ["moved"],
        ["f32[24]"],
    )
    assert lanes == 24
    assert count(body) == {"copy": 1, "gather": 2}
    assert find(body, "copy").operands[0].opcode == "get-tuple-element"


def test_what_sorts_all_is_done_once_for_all() -> None:
    body, lanes = shared_body(
        """
  sorted = f32[24] sort(e0), dimensions={0}, to_apply=less_f32
  moved = f32[24] add(e0, sorted)
""",
        ["moved"],
        ["f32[24]"],
    )
    assert lanes == 24
    assert find(body, "sort").operands[0].opcode == "copy"


def test_lanes_that_need_nothing_of_others_share_nothing() -> None:
    text = "  moved = f32[24] sine(e0)\n"
    body, lanes = shared_body(text, ["moved"], ["f32[24]"])
    assert (lanes, count(body)) == (None, {})


def test_few_lanes_are_left_alone() -> None:
    few = str(MIN_LANES - 1)
    text = PAIRS.format(mine="{0}", theirs="{1}").replace("24", few)
    body, lanes = shared_body(text, ["moved"], [f"f32[{few}]"])
    assert (lanes, count(body)) == (None, {})


def test_conditions_that_pair_lanes_are_left_alone() -> None:
    """They would be asked for all lanes together; the body stays as it was."""
    condition = """
  f0 = f32[] constant(0)
  mine = f32[24,24] broadcast(e0), dimensions={0}
  theirs = f32[24,24] broadcast(e0), dimensions={1}
  apart = f32[24,24] subtract(mine, theirs)
  most = f32[] reduce(apart, f0), dimensions={0,1}, to_apply=max_f32
  ROOT go = pred[] compare(most, f0), direction=GT
"""
    text = PAIRS.format(mine="{0}", theirs="{1}")
    body, lanes = shared_body(text, ["moved"], ["f32[24]"], condition=condition)
    assert (lanes, count(body)) == (None, {})


def test_elementwise_instructions_are_what_they_are_to_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where operands' lanes are, without the classes of their dimensions, which cost time."""
    body = """
      is_on = pred[] compare(i, i), direction=EQ
      sums = f32[24,5] add(e0, e0)
      low = f32[] constant(0)
      kept = f32[24,5] clamp(low, sums, low)
      y = f32[24,5] select(is_on, kept, e0)"""
    loop = loop_of(counting_loop(body, ["y"], ["f32[24,5]"]))
    asked = [i for i in loop.body.instructions if i.opcode in ELEMENTWISE_OPCODES]
    assert {"add", "clamp", "select", "compare"} <= {i.opcode for i in asked}
    directly = [sharing._find_operand_lanes(i) for i in asked]
    monkeypatch.setattr(sharing, "ELEMENTWISE_OPCODES", frozenset())
    assert directly == [sharing._find_operand_lanes(i) for i in asked]
    assert [None, 1, None] in [lanes[1] for lanes in directly if lanes]


def test_what_has_nothing_to_share_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "find_classes", None)
    assert shared_body("y = f32[3] sine(e0)", ["y"], ["f32[3]"])[1] is None


def test_the_search_ends_with_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the results up, nothing is asked for behind the value that is one too many."""
    text = """
  bent = f32[24] sine(e0)
  head = f32[23] slice(bent), slice={[1:24]}
  tail = f32[1] slice(bent), slice={[0:1]}
  turned = f32[24] concatenate(head, tail), dimensions={0}
  moved = f32[24] add(bent, turned)
"""
    own_lanes, asked = sharing._Sharing._own_lanes, []

    def spy(self: Any, value: HloInstruction, wanted: Any) -> Any:
        asked.append(value.opcode)
        return own_lanes(self, value, wanted)

    monkeypatch.setattr(sharing._Sharing, "_own_lanes", spy)
    assert shared_body(text, ["moved"], ["f32[24]"])[1] == 24
    assert asked.index("sine") < asked.index("parameter")
    asked.clear()
    monkeypatch.setattr(sharing, "MAX_SHARED", 23)
    monkeypatch.setattr(sharing, "MAX_TRIED", 1)
    assert shared_body(text, ["moved"], ["f32[24]"])[1] is None
    assert asked[-1] == "sine"
