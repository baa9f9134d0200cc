"""Candidates that are run: which results pass, and who becomes the incumbent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import XLAS_OWN, RefusedError
from fuselane.tuning.measured import Measured

Values = np.ndarray[Any, np.dtype[Any]]
OTHER = Candidate("none")
RIGHT = np.linspace(1.0, 2.0, 4096, dtype=np.float32)


@dataclass
class Clock:
    """Seconds that only runs take."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


@dataclass
class Fake:
    """A program that takes and returns what it is told; varied inputs move its results."""

    values: Values
    seconds: float = 1.0
    drift: Callable[[Values, int], Values] = lambda values, sign: values * (1 + sign * 1e-5)

    def run(self) -> None:
        CLOCK.now += self.seconds

    def results(self, vary: int = 0) -> list[Values]:
        return [self.drift(self.values, vary).astype(self.values.dtype) if vary else self.values]


def metric(plain: Fake, other: Fake) -> Measured:
    def maker(_: object) -> Any:
        raise AssertionError("nothing is made here")

    return Measured(maker, lambda candidate: plain if candidate == XLAS_OWN else other, clock=CLOCK)


def compare(plain: Fake, other: Fake) -> Any:
    return metric(plain, other).compare(OTHER, XLAS_OWN, 100.0)


def test_a_faster_one_becomes_the_best() -> None:
    """Its cost is on the scale of the best before."""
    answer = compare(Fake(RIGHT, 0.006), Fake(RIGHT, 0.003))
    assert answer.is_best
    assert answer.cost_us == pytest.approx(50)


def test_a_slower_one_does_not() -> None:
    """It costs more."""
    answer = compare(Fake(RIGHT, 0.003), Fake(RIGHT, 0.006))
    assert not answer.is_best
    assert answer.cost_us == pytest.approx(200)


def test_the_first() -> None:
    """XLA's own way sets the scale."""
    answer = metric(Fake(RIGHT, 0.003), Fake(RIGHT)).compare(XLAS_OWN, XLAS_OWN, float("inf"))
    assert answer.is_best
    assert answer.cost_us == pytest.approx(3000)


def test_confirming() -> None:
    """Against plain XLA, once more."""
    assert metric(Fake(RIGHT, 0.006), Fake(RIGHT, 0.003)).confirm(OTHER) == pytest.approx(0.5)
    assert metric(Fake(RIGHT, 0.003), Fake(RIGHT, 0.003)).confirm(OTHER) == 1.0


@pytest.mark.parametrize("error", [1e-7, 1e-5])
def test_rounding_passes(error: float) -> None:
    """Up to what varied inputs do."""
    compare(Fake(RIGHT), Fake(RIGHT * np.float32(1 + error)))


def test_what_drifts_in_few_lanes_passes() -> None:
    """Chance decides which lanes of a chaotic program drift apart: not those of varied runs."""

    def drift(values: Values, sign: int) -> Values:
        values = values.copy()
        values[10 + sign] += 0.1
        return values

    drifted = RIGHT.copy()
    drifted[100:103] += 0.9
    compare(Fake(RIGHT, drift=drift), Fake(drifted))


@pytest.mark.parametrize(
    "wrong",
    [
        RIGHT * np.float32(1.001),
        np.where(np.arange(RIGHT.size) % 50 == 0, RIGHT + 1, RIGHT),
        np.where(np.arange(RIGHT.size) % 50 == 0, np.nan, RIGHT).astype(np.float32),
    ],
)
def test_wrong_results(wrong: Values) -> None:
    """All a little, or some by much."""
    with pytest.raises(RefusedError, match=r"results are not XLA's: .* values differ in result 0"):
        compare(Fake(RIGHT), Fake(wrong))


def test_integers() -> None:
    """They are equal, but for a few that hang on floats; all are, where floats do not move them."""
    right = np.arange(4096, dtype=np.int32)
    compare(Fake(right), Fake(right))
    wrong = right.copy()
    wrong[::50] += 1
    with pytest.raises(RefusedError, match="82 of 4096 values differ"):
        compare(Fake(right, drift=lambda values, _: values), Fake(wrong))


def test_what_xla_refuses() -> None:
    """Its first line is the reason."""

    class Broken(Fake):
        def results(self, vary: int = 0) -> list[Values]:
            raise RuntimeError("INTERNAL: No such fusion.\nStack: ...")

    with pytest.raises(RefusedError, match=r"^XLA fails on it: INTERNAL: No such fusion\.$"):
        compare(Fake(RIGHT), Broken(RIGHT))
