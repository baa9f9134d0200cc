"""Reductions in stages: where they become one again, and where they do not."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.normalise import normalise
from fuselane.lanes.reduction_trees import match_reshape
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


def rows(type_: str, shape: str, parts: str, kept: str) -> list[str]:
    """Returns the reductions of a loop that takes the largest of each row in stages of 32."""
    start = "-inf" if type_.startswith("f") else "-2147483648"
    more = COMBINER.format(name="maximum", type=type_)
    body = f"""start = {type_}[] constant({start})
        padded = {type_}[{shape}] pad(e0, start), padding=0_0x0_24
        parts = {type_}[{parts}] reshape(padded)
        few = {type_}[{kept},2] reduce(parts, start), dimensions={{2}}, to_apply=combine
        all = {type_}[{kept}] reduce(few, start), dimensions={{1}}, to_apply=combine
        many = {type_}[{kept},40] broadcast(all), dimensions={{0}}
        changed = {type_}[{kept},40] add(many, e0)"""
    loop = normalise(loop_of(counting_loop(body, ["changed"], [f"{type_}[{kept},40]"], more=more)))
    step = next(i for i in loop.region.instructions if i.opcode == "while").body
    return [
        f"{list(i.operands[0].shape.dimensions)} {list(i.dimensions)}"
        for i in step.instructions
        if i.opcode == "reduce"
    ]


@pytest.mark.parametrize("type_", ["s32", "f32"])
def test_stages_of_rows_become_one(type_: str) -> None:
    assert rows(type_, "30,64", "30,2,32", "30") == ["[30, 40] [1]"]


@pytest.mark.parametrize(
    ("before", "after", "reduced", "found"),
    [
        ((30, 1000), (30, 8, 125), {1, 2}, {1}),
        ((30, 1000), (30, 8, 125), {2}, None),
        ((30, 1000), (30, 8, 125), {0}, None),
        ((6, 5), (2, 15), {0}, None),
        ((6, 5), (2, 15), {0, 1}, {0, 1}),
        ((4, 1, 7), (4, 7), {1}, {1, 2}),
        ((4, 7), (1, 4, 1, 7), {0, 1, 2}, {0}),
        ((4, 7), (4, 1, 7), {0}, None),
        ((0, 7), (7, 0), {0}, None),
        ((3, 4), (3, 2, 2), {0}, None),
        ((3, 4), (3, 4), set(), set()),
    ],
)
def test_dimensions_across_a_reshape(
    before: tuple[int, ...], after: tuple[int, ...], reduced: set[int], found: set[int] | None
) -> None:
    assert match_reshape(before, after, frozenset(reduced)) == found
