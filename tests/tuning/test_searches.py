"""The searches on spaces whose best candidate is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from fuselane.tuning.searches import SEARCHES

Point = tuple[int, ...]


@dataclass
class Grid:
    """Points of whole numbers, each of which goes up or down by one."""

    size: int
    start: Point

    def starts(self) -> Sequence[Point]:
        return [self.start]

    def neighbours(self, point: Point) -> Sequence[Sequence[Point]]:
        around = [
            (*point[:i], value + step, *point[i + 1 :])
            for i, value in enumerate(point)
            for step in (-1, 1)
        ]
        return [[p for p in around if all(0 <= value < self.size for value in p)], []]


class OutOfQuestionsError(Exception):
    """The test's own budget."""


def find_best(
    search: str, space: Grid, cost: Callable[[Point], float], *, seed: int = 0, budget: int = 10**6
) -> tuple[Point, list[Point]]:
    """Returns the best point and all that were asked about, in order, without repetitions."""
    asked: dict[Point, float] = {}

    def answer(point: Point) -> float:
        if point not in asked:
            if len(asked) == budget:
                raise OutOfQuestionsError
            asked[point] = cost(point)
        return asked[point]

    try:
        SEARCHES[search](space, answer, random.Random(seed))
    except OutOfQuestionsError:
        assert len(asked) == budget
    return min(asked, key=asked.__getitem__), list(asked)


def bowl(point: Point) -> float:
    return 1.0 + sum((value - 7) ** 2 for value in point)


def ridge(point: Point) -> float:
    """Has a dip at (2, 2) that is no good, and a wall of two points to the best at (7, 7)."""
    x, y = point
    near = min(abs(x - 2) + abs(y - 2), 3)
    far = abs(x - 7) + abs(y - 7)
    return 1.00 + 0.01 * near if far > 6 else 0.9 + 0.015 * far


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seed", range(3))
def test_a_bowl(search: str, seed: int) -> None:
    """Where each step down leads to the best, all find it and end."""
    best, asked = find_best(search, Grid(10, (0, 9, 3)), bowl, seed=seed)
    assert best == (7, 7, 7)
    assert len(asked) <= 1000


@pytest.mark.parametrize("search", SEARCHES)
def test_the_best_start(search: str) -> None:
    """Starts are compared with each other first."""

    @dataclass
    class TwoStarts:
        def starts(self) -> Sequence[int]:
            return [1, 2, 3]

        def neighbours(self, candidate: int) -> Sequence[Sequence[int]]:
            del candidate
            return []

    asked: list[int] = []

    def cost(candidate: int) -> float:
        asked.append(candidate)
        return abs(candidate - 2) + 1.0

    SEARCHES[search](TwoStarts(), cost, random.Random(0))
    assert set(asked) == {1, 2, 3}


def test_greedy_stops_in_a_dip() -> None:
    """It is greedy."""
    best, asked = find_best("greedy", Grid(10, (2, 2)), ridge)
    assert best == (2, 2)
    assert len(asked) == 5


@pytest.mark.parametrize("search", ["beam", "annealing"])
def test_others_leave_a_dip(search: str) -> None:
    """Candidates that are worse lead to better ones."""
    best, _ = find_best(search, Grid(10, (2, 2)), ridge)
    assert best == (7, 7)


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_seed_asks_the_same(search: str) -> None:
    """Another seed asks in another order."""
    space = Grid(10, (1, 1, 1))
    asked = [find_best(search, space, bowl, seed=seed)[1] for seed in (4, 4, 5)]
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_budget(search: str) -> None:
    """What ends a search is passed on, and a longer one begins with the same questions."""
    space = Grid(30, (0, 0, 0))
    short, long = (find_best(search, space, bowl, budget=n)[1] for n in (12, 25))
    assert len(short) == 12
    assert long[:12] == short


@pytest.mark.parametrize("search", SEARCHES)
def test_what_cannot_be_used(search: str) -> None:
    """It is gone around, and is never the best."""

    def cost(point: Point) -> float:
        return math.inf if point == (4, 4) else bowl(point)

    best, _ = find_best(search, Grid(10, (3, 3)), cost)
    assert best == (7, 7)
    best, _ = find_best(search, Grid(1, (0, 0)), lambda _: math.inf)
    assert best == (0, 0)
