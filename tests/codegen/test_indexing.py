"""Indices: worked out while the kernel is built if known, and the same at run time if not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir

from fuselane.codegen import indexing
from fuselane.codegen.indexing import I64, LANE
from tests.codegen.functions import evaluate

NO_CODE: Final = ir.IRBuilder()
"""A builder without a place: whatever emits an instruction fails."""

OPERATIONS: Final[list[tuple[str, Callable[..., Any], Callable[[int, int], Any]]]] = [
    ("add", indexing.add, lambda x, y: x + y),
    ("subtract", indexing.subtract, lambda x, y: x - y),
    ("less", indexing.less, lambda x, y: x < y),
    ("equal", indexing.equal, lambda x, y: x == y),
]
NUMBERS: Final = [0, 1, -1, 7, -100, 1 << 40]


@pytest.mark.parametrize(
    ("operation", "python"), [case[1:] for case in OPERATIONS], ids=[c[0] for c in OPERATIONS]
)
def test_known_or_not(operation: Callable[..., Any], python: Callable[[int, int], Any]) -> None:
    for left, right in itertools.product(NUMBERS, NUMBERS):
        expected = python(left, right)
        assert operation(NO_CODE, left, right) == expected

    pairs = list(itertools.product([0, 1, -1, 9], [0, 1, -1, 9]))[:5]
    for left, right in pairs:
        ways = evaluate(
            lambda b, x, y, left=left, right=right: [
                operation(b, x, y),
                operation(b, left, y),
                operation(b, x, right),
            ],
            left,
            right,
        )
        assert ways == [int(python(left, right))] * 3


def test_nothing_is_emitted_for_nothing() -> None:
    """Neutral elements leave a run-time index as it is."""
    value = ir.Constant(I64, 5)
    assert indexing.add(NO_CODE, value, 0) is value
    assert indexing.add(NO_CODE, 0, value) is value
    assert indexing.subtract(NO_CODE, value, 0) is value
    assert indexing.multiply(NO_CODE, value, 1) is value
    assert indexing.multiply(NO_CODE, value, 0) == 0
    assert indexing.divide(NO_CODE, value, 1) == (value, 0)
    assert indexing.clamp(NO_CODE, value, 3, 3) == 3
    assert indexing.both(NO_CODE, True, value) is value
    assert indexing.both(NO_CODE, value, True) is value
    assert indexing.both(NO_CODE, value, False) is False
    assert indexing.both(NO_CODE, False, value) is False


@given(st.integers(-100, 100), st.integers(1, 50))
def test_known_products_and_clamps(value: int, size: int) -> None:
    assert indexing.multiply(NO_CODE, value, size) == value * size
    assert indexing.clamp(NO_CODE, value, 0, size) == min(max(value, 0), size)
    if value >= 0:
        assert indexing.divide(NO_CODE, value, size) == divmod(value, size)


def test_run_time_products_and_clamps() -> None:
    for value in (0, 5, 41, 1000):
        results = evaluate(
            lambda b, x: [
                indexing.multiply(b, x, 12),
                *indexing.divide(b, x, 12),
                indexing.clamp(b, x, 0, 40),
                indexing.clamp(b, x, -3, 700),
            ],
            value,
        )
        assert results == [12 * value, *divmod(value, 12), min(value, 40), min(value, 700)]
    assert evaluate(lambda b, x: [indexing.clamp(b, x, -3, 40)], -(1 << 62)) == [-3]


DIMENSIONS: Final = [(), (5,), (1,), (2, 3), (4, 1, 5), (3, 2, 2, 2)]


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_flatten_and_unflatten(dimensions: tuple[int, ...]) -> None:
    for position, index in enumerate(np.ndindex(*dimensions)):
        assert indexing.flatten(NO_CODE, index, dimensions) == position
        assert indexing.unflatten(NO_CODE, position, dimensions) == index


@pytest.mark.parametrize("dimensions", DIMENSIONS[3:])
def test_flatten_and_unflatten_at_run_time(dimensions: tuple[int, ...]) -> None:
    for position in (0, 2, math.prod(dimensions) - 1):
        index = list(np.ndindex(*dimensions))[position]
        back = evaluate(lambda b, *at: [indexing.flatten(b, at, dimensions)], *index)
        assert back == [position]
        assert evaluate(lambda b, at: indexing.unflatten(b, at, dimensions), position) == [*index]


@pytest.mark.parametrize(
    ("result", "operand"),
    [
        (((8, 6), 0), ((8, 2, 3), 0)),
        (((2, 3, 8), 2), ((6, 8), 1)),
        (((2, 3, 8, 4), 2), ((6, 8, 2, 2), 1)),
        (((8,), 0), ((1, 8, 1), 1)),
        (((6,), None), ((2, 3), None)),
        (((2, 2, 3), None), ((4, 3), None)),
    ],
)
def test_reshape(
    result: tuple[tuple[int, ...], int | None], operand: tuple[tuple[int, ...], int | None]
) -> None:
    """Every element of the result, found in an operand whose elements say where they are."""
    dimensions, lane = operand
    values = np.arange(math.prod(dimensions)).reshape(dimensions)
    expected = values.reshape(result[0])
    for index in np.ndindex(*result[0]):
        at = list(index)
        number = 0
        element: tuple[int | None, ...] = tuple(at)
        if result[1] is not None:
            number = at[result[1]]
            element = (*at[: result[1]], LANE, *at[result[1] + 1 :])
        found = indexing.reshape(NO_CODE, element, result, operand)
        assert [axis for axis, at in enumerate(found) if at is LANE] == (
            [] if lane is None else [lane]
        )
        whole = tuple(number if at is LANE else at for at in found)
        assert values[whole] == expected[index]


def test_what_a_lane_holds() -> None:
    assert indexing.residual_dimensions((4, 8, 3), 1) == (4, 3)
    assert indexing.residual_dimensions((4, 8, 3), None) == (4, 8, 3)
    assert indexing.residual_size((4, 8, 3), 1) == 12
    assert indexing.residual_size((), None) == 1
    assert indexing.residual_size((8, 0), 0) == 0


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(0, 4))
def test_lane_put_in_and_left_out(index: list[int], lane: int) -> None:
    if lane <= len(index):
        whole = indexing.with_lane(index, lane)
        assert whole[lane] is LANE
        assert indexing.without_lane(whole) == tuple(index)
    assert indexing.with_lane(index, None) == tuple(index)
