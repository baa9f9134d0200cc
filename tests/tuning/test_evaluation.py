"""Answers to searches: each measured once, the best kept, budgets, and going on later."""

from __future__ import annotations

import contextlib
import functools
import math
import random
from pathlib import Path

import pytest

from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import (
    XLAS_OWN,
    Budget,
    BudgetOverError,
    Evaluation,
    Progress,
    RefusedError,
)
from fuselane.tuning.searches import SEARCHES
from fuselane.tuning.store import Answer, Store


class Halves:
    """A metric: candidates are numbers, two make the same module, 13 none, and 20 is the best."""

    def __init__(self) -> None:
        self.measured: list[tuple[str, str]] = []

    def make(self, candidate: Candidate) -> str:
        number = int(candidate.fusion or 0)
        if number == 13:
            raise RefusedError("It makes no module.")
        return str(number // 2)

    def compare(self, candidate: Candidate, incumbent: Candidate, cost_us: float) -> Answer:
        self.measured.append((candidate.fusion, incumbent.fusion))
        cost = 1.0 + abs(int(candidate.fusion or 0) // 2 - 10)
        return Answer(result="", cost_us=cost, is_best=cost < cost_us)

    def confirm(self, candidate: Candidate) -> float:
        raise NotImplementedError


class Line:
    """A space: one number up or down."""

    def starts(self) -> list[Candidate]:
        return [Candidate("4")]

    def neighbours(self, candidate: Candidate) -> list[list[Candidate]]:
        number = int(candidate.fusion)
        return [[Candidate(str(n))] for n in (number - 1, number + 1, number + 3) if n >= 0]


def test_each_module_is_measured_once() -> None:
    """Against the best so far."""
    metric = Halves()
    reports: list[Progress] = []
    evaluation = Evaluation(metric, Budget(), report=reports.append)
    costs = [evaluation.cost(Candidate(text)) for text in ("4", "5", "4", "20", "21", "13", "18")]
    assert costs == [9.0, 9.0, 9.0, 1.0, 1.0, math.inf, 2.0]
    assert metric.measured == [("", ""), ("4", ""), ("20", "4"), ("18", "20")]
    assert (evaluation.best, evaluation.best_us) == (Candidate("20"), 1.0)
    assert evaluation.refusals() == {Candidate("13"): "It makes no module."}
    assert reports[-1] == Progress(
        num_asked=7,
        num_measured=4,
        num_refused=1,
        best=Candidate("20"),
        best_us=1.0,
        xla_us=11.0,
        used_s=reports[-1].used_s,
    )


def test_what_costs_little_more() -> None:
    """Each module once, but for the best's, and none that nobody asked about."""
    evaluation = Evaluation(Halves(), Budget())
    for text in ("4", "13", "22", "20", "16"):
        evaluation.cost(Candidate(text))
    assert (evaluation.best, evaluation.best_us) == (Candidate("20"), 1.0)
    assert evaluation.near_best(map(Candidate, ("21", "22", "16", "13"))) == []
    evaluation.best_us = 2.0  # so that 22 at 2 and 16 at 3 are near
    asked = map(Candidate, ("4", "13", "21", "23", "22", "16", "18", "20"))
    assert evaluation.near_best(asked) == [Candidate("22"), Candidate("16")]


def test_what_makes_the_same_module_as_a_refused_one() -> None:
    """It is refused for the same reason."""

    class Wrong(Halves):
        def compare(self, candidate: Candidate, incumbent: Candidate, cost_us: float) -> Answer:
            if candidate.fusion:
                self.measured.append((candidate.fusion, ""))
                raise RefusedError("Its results are not XLA's.")
            return Answer(result="", cost_us=1.0, is_best=True)

    metric = Wrong()
    evaluation = Evaluation(metric, Budget())
    assert evaluation.cost(Candidate("8")) == evaluation.cost(Candidate("9")) == math.inf
    assert metric.measured == [("8", "")]
    assert set(evaluation.refusals().values()) == {"Its results are not XLA's."}


def test_a_budget_of_questions() -> None:
    """New ones count, and what is known is free."""
    evaluation = Evaluation(Halves(), Budget(questions=2))
    for text in ("4", "4", "5", "4"):
        evaluation.cost(Candidate(text))
    with pytest.raises(BudgetOverError):
        evaluation.cost(Candidate("6"))
    assert evaluation.cost(Candidate("5")) == 9.0


def test_a_budget_of_seconds() -> None:
    """XLA's own way is always priced."""
    evaluation = Evaluation(Halves(), Budget(seconds=1e-9))
    assert evaluation.xla_us == 11.0
    with pytest.raises(BudgetOverError):
        evaluation.cost(Candidate("4"))


@pytest.mark.parametrize("search", SEARCHES)
def test_going_on_later(search: str, tmp_path: Path) -> None:
    """Two runs of four questions measure what one of eight does, and nothing twice."""

    def run(store: Store, questions: int) -> tuple[Evaluation, Halves]:
        metric = Halves()
        evaluation = Evaluation(
            metric,
            Budget(questions=questions),
            known=store.answers("s"),
            keep=functools.partial(store.keep_answer, "s"),
        )
        with contextlib.suppress(BudgetOverError):  # greedy search may end before
            SEARCHES[search](Line(), evaluation.cost, random.Random(3))
        return evaluation, metric

    whole, at_once = run(Store(tmp_path / "whole"), 8)
    parts = Store(tmp_path / "parts")
    (_, first), (resumed, second) = run(parts, 4), run(parts, 4)
    assert first.measured + second.measured == at_once.measured
    assert (resumed.best, resumed.best_us) == (whole.best, whole.best_us)
    assert resumed.best != XLAS_OWN
    assert resumed.progress().num_asked == whole.progress().num_asked >= 6


def test_what_ends_the_process(tmp_path: Path) -> None:
    """It is not tried again; what the user interrupts is."""

    class Abort(BaseException):
        """Stands for XLA's."""

    store = Store(tmp_path)
    kept: list[tuple[Candidate, Answer | None]] = []

    def keep(candidate: Candidate, answer: Answer | None) -> None:
        kept.append((candidate, answer))
        if answer is not None and answer.note:
            store.keep_answer("s", candidate, answer)
            raise Abort  # the process is no more

    evaluation = Evaluation(Halves(), Budget(), keep=keep)
    with pytest.raises(Abort):
        evaluation.cost(Candidate("4"))
    again = Evaluation(Halves(), Budget(), known=store.answers("s"))
    assert again.cost(Candidate("4")) == math.inf
    assert again.refusals()[Candidate("4")] == "The process ended when it was tried."

    class Interrupted(Halves):
        def compare(self, candidate: Candidate, incumbent: Candidate, cost_us: float) -> Answer:
            if candidate.fusion:
                raise KeyboardInterrupt
            return super().compare(candidate, incumbent, cost_us)

    other = Store(tmp_path / "other")
    evaluation = Evaluation(Interrupted(), Budget(), keep=functools.partial(other.keep_answer, "s"))
    with pytest.raises(KeyboardInterrupt):
        evaluation.cost(Candidate("4"))
    assert list(other.answers("s")) == [XLAS_OWN]
