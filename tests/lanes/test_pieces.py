"""Piecewise work: which selects are emitted in two versions together, and with what."""

from __future__ import annotations

import pytest

from fuselane.lanes.form import form
from fuselane.lanes.pieces import MIN_SAVED_COST
from fuselane.lanes.program import Piecewise
from tests.lanes.loops import counting_loop, loop_of

ROW = "f32[64]"


def pieces_of(body: str, results: list[str]) -> list[Piecewise]:
    module = counting_loop(body, results, [ROW] * len(results), trip_count=1000)
    program = form(module, loop_of(module))
    return [pieces for found in program.pieces.values() for pieces in found]


def polynomial(predicate: str, *, degree: int = 8) -> str:
    """Returns a polynomial in x where a predicate holds, elsewhere another in a root: `y`."""
    lines = [
        f"low = {ROW} sqrt(x)",
        f"z = {ROW} select({predicate}, x, low)",
        f"p0 = {ROW} select({predicate}, x, z)",
    ]
    for k in range(degree):
        lines += [
            *(f"c{n} = f32[] constant(0.{n})" for n in (2 * k, 2 * k + 1)),
            *(f"b{n} = {ROW} broadcast(c{n}), dimensions={{}}" for n in (2 * k, 2 * k + 1)),
            f"sel{k} = {ROW} select({predicate}, b{2 * k}, b{2 * k + 1})",
            f"t{k} = {ROW} multiply(p{k}, z)",
            f"p{k + 1} = {ROW} add(t{k}, sel{k})",
        ]
    return "\n".join([*lines, f"y = {ROW} negate(p{degree})"]) + "\n"


PREDICATE = f"""unit = f32[] constant(1)
    ones = {ROW} broadcast(unit), dimensions={{}}
    x = {ROW} abs(e0)
    small = pred[64] compare(x, ones), direction=LT
"""


def test_polynomials_by_one_predicate() -> None:
    (pieces,) = pieces_of(PREDICATE + polynomial("small"), ["y"])
    assert pieces.predicate.name == "small"
    assert (pieces.side, len(pieces.selects)) == (1, 10)
    names = [i.name for i in pieces.instructions]
    assert "low" in names
    assert not {"x", "small", "y"} & set(names)
    assert names[-1] == "p8"
    usual = [i.name for i in pieces.usual]
    assert "low" not in usual
    assert usual == [n for k in range(8) for n in (f"t{k}", f"p{k + 1}")]


def test_few_selects_are_left_alone() -> None:
    assert not pieces_of(PREDICATE + polynomial("small", degree=3), ["y"])


def test_value_that_others_need_ends_the_work() -> None:
    body = PREDICATE + polynomial("small") + f"u = {ROW} add(p4, y)"
    (pieces,) = pieces_of(body, ["u"])
    assert pieces.instructions[-1].name == "u"
    assert not pieces_of(PREDICATE + polynomial("small"), ["y", "p4"])


@pytest.mark.parametrize(("direction", "side"), [("EQ", 2), ("LT", 1)])
def test_equal_numbers_are_rare(direction: str, side: int) -> None:
    body = PREDICATE.replace("direction=LT", f"direction={direction}") + polynomial("small")
    (pieces,) = pieces_of(body, ["y"])
    assert pieces.side == side
    assert pieces.saved >= MIN_SAVED_COST


def test_product_stands_with_its_sum() -> None:
    """Behind the last select, and in front of a sum in the middle."""
    body = f"{PREDICATE}in_front = {ROW} multiply(x, ones)\n" + polynomial("small").replace(
        "add(t7, sel7)", "add(in_front, sel7)"
    ).replace(
        f"y = {ROW} negate(p8)",
        f"behind = {ROW} multiply(p8, t7)\n y = {ROW} subtract(behind, x)",
    )
    (pieces,) = pieces_of(body, ["y"])
    names = [i.name for i in pieces.instructions]
    assert "in_front" in names
    assert names[-1] == "y"


def test_work_of_a_guard_is_left_to_it() -> None:
    work = "\n".join(f"w{k + 1} = {ROW} sine(w{k})" for k in range(10))
    body = (
        PREDICATE
        + polynomial("small")
        + f"big = pred[64] compare(e0, ones), direction=GT\n w0 = {ROW} add(y, x)\n"
        + work
        + f"\n u = {ROW} select(big, w10, x)"
    )
    module = counting_loop(body, ["u"], [ROW], trip_count=1000)
    program = form(module, loop_of(module))
    (guards,) = program.guards.values()
    assert "p8" in {i.name for i in guards[0].instructions}
    assert not program.pieces
