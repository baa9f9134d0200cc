"""Reductions in stages: where they become one again, and where they do not."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.normalise import normalise
from tests.lanes.loops import counting_loop, loop_of

COMBINER: Final = """combine {{
    x = {type}[] parameter(0)
    y = {type}[] parameter(1)
    ROOT z = {type}[] {name}(x, y)
}}"""


def reductions(type_: str, combiner: str, start: str, between: str) -> list[HloInstruction]:
    """Returns the reductions of a loop that combines 40 x 40 elements in two stages."""
    more = COMBINER.format(name=combiner, type=type_)
    body = f"""start = {type_}[] constant({start})
        between = {type_}[] constant({between})
        padded = {type_}[64,64] pad(e0, between), padding=0_24x0_24
        parts = {type_}[2,32,2,32] reshape(padded)
        few = {type_}[2,2] reduce(parts, between), dimensions={{1,3}}, to_apply=combine
        all = {type_}[] reduce(few, start), dimensions={{0,1}}, to_apply=combine
        many = {type_}[40,40] broadcast(all), dimensions={{}}
        changed = {type_}[40,40] {combiner}(many, e0)"""
    loop = normalise(loop_of(counting_loop(body, ["changed"], [f"{type_}[40,40]"], more=more)))
    step = next(i for i in loop.region.instructions if i.opcode == "while").body
    return [i for i in step.instructions if i.opcode == "reduce"]


@pytest.mark.parametrize(
    ("type_", "combiner", "start"),
    [
        ("pred", "or", "false"),
        ("pred", "and", "true"),
        ("s32", "add", "0"),
        ("u8", "multiply", "1"),
        ("s16", "maximum", "-32768"),
        ("u32", "minimum", "4294967295"),
        ("f32", "maximum", "-inf"),
        ("bf16", "minimum", "inf"),
        ("f32", "add", "0"),
        ("f64", "multiply", "1"),
    ],
)
def test_stages_in_any_order_become_one(type_: str, combiner: str, start: str) -> None:
    (one,) = reductions(type_, combiner, start, start)
    assert one.operands[0].shape.dimensions == (40, 40)
    assert one.dimensions == (0, 1)


@pytest.mark.parametrize(
    ("type_", "combiner", "start", "between"),
    [
        ("f32", "add", "5", "5"),
        ("bf16", "add", "0", "0"),
        ("f16", "multiply", "1", "1"),
        ("s32", "add", "5", "5"),
        ("s32", "maximum", "-2147483648", "0"),
        ("f32", "maximum", "0", "0"),
    ],
    ids=[
        "sum",
        "halves' sum",
        "product",
        "integers' sum",
        "largest from 0 between",
        "largest from 0",
    ],
)
def test_stages_whose_order_or_start_matters_stay(
    type_: str, combiner: str, start: str, between: str
) -> None:
    assert len(reductions(type_, combiner, start, between)) == 2
