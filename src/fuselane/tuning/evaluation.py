"""Answers what candidates cost: from memory, from what modules alike cost, or by measuring.

    candidate -> module it makes -> seen before? its cost
                                 -> too many live values? refused
                                 -> measured against the best so far, which it may replace

Most decisions change nothing in a given module, so most candidates make a module that is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from fuselane.tuning.candidate import Candidate
from fuselane.tuning.interrupt import Interrupt
from fuselane.tuning.store import Answer

XLAS_OWN: Final = Candidate()

_NEAR: Final = 1.5
"""Times the best's cost."""

_FATAL: Final = "The process ended when it was tried."


class BudgetOverError(Exception):
    """A search is to end: its budget is used up, or the user wants it; not an error."""


class RefusedError(Exception):
    """A candidate cannot be used; the message says why."""


class Metric(Protocol):
    """How candidates are priced."""

    def make(self, candidate: Candidate) -> str:
        """Returns the fingerprint of the module a candidate makes.

        Raises:
            RefusedError: if it makes none, or one that is not to be run.
        """

    def compare(self, candidate: Candidate, incumbent: Candidate, cost_us: float) -> Answer:
        """Prices a candidate that `make` has accepted.

        Args:
            candidate: Which.
            incumbent: The best so far; itself for the first.
            cost_us: The incumbent's cost; infinity for the first.
        Returns:
            Its cost on the incumbent's scale, and whether it is better beyond chance. One that
            seems better, but not beyond chance, costs as much as the incumbent.
        Raises:
            RefusedError: if it cannot be compiled, or gives other results.
        """

    def confirm(self, candidate: Candidate) -> float:
        """Returns the cost of a candidate once more, divided by that of XLA's own way; 1 if it is
        not better beyond chance."""


@final
@dataclass(slots=True, kw_only=True)
class Budget:
    """How long a search may go on.

    Attributes:
        seconds: From now, or infinity.
        questions: New candidates that may still be looked at, or infinity.
        interrupt: What ends it at once.
    """

    seconds: float = math.inf
    questions: float = math.inf
    interrupt: Interrupt = field(default_factory=Interrupt)
    start_s: float = 0.0

    def __post_init__(self) -> None:
        """Starts the clock."""
        self.start_s = time.monotonic()

    @property
    def used_s(self) -> float:
        """Returns the seconds since the start."""
        return time.monotonic() - self.start_s

    def take(self) -> None:
        """Takes one question from the budget.

        Raises:
            BudgetOverError: if there is nothing left, or the user has interrupted.
        """
        if self.interrupt.has_come or self.questions < 1 or self.used_s >= self.seconds:
            raise BudgetOverError
        self.questions -= 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search has come.

    Attributes:
        num_asked: Different candidates it asked about.
        num_measured: Different modules that were priced, earlier runs included.
        num_refused: Candidates that cannot be used.
        best: The best so far.
        best_us: Its cost.
        xla_us: That of XLA's own.
        used_s: Seconds since this run began.
        is_interrupted: Whether the user has ended the search; only a last comparison is left.
    """

    num_asked: int
    num_measured: int
    num_refused: int
    best: Candidate
    best_us: float
    xla_us: float
    used_s: float
    is_interrupted: bool = False


@final
class Evaluation:
    """Costs of candidates, and the best of them.

    Attributes:
        best: The best candidate so far.
        best_us: Its cost.
        best_plain: The best so far that leaves XLA's options alone.
        xla_us: Cost of XLA's own way.
    """

    def __init__(
        self,
        metric: Metric,
        budget: Budget,
        *,
        known: dict[Candidate, Answer] | None = None,
        keep: Callable[[Candidate, Answer | None], None] = lambda *_: None,
        report: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """Prices XLA's own way, which everything else is compared with.

        Args:
            metric: What measures.
            budget: How long; XLA's own way is always priced.
            known: What earlier runs of the same search were answered, in order.
            keep: Called with every new answer; with one that says so before a candidate is tried
                that may end the process, and with None if it was interrupted.
            report: Called after each answer.
        """
        self._metric = metric
        self._budget = budget
        self._keep = keep
        self._report = report
        self.best = self.best_plain = XLAS_OWN
        self.best_us = math.inf
        self._answers: dict[Candidate, Answer] = {}
        self._by_result: dict[str, Answer] = {}
        for candidate, answer in (known or {}).items():
            self._remember(candidate, answer)
        if XLAS_OWN not in self._answers:
            result = metric.make(XLAS_OWN)
            self._add(XLAS_OWN, self._compare(XLAS_OWN, result))
        self.xla_us = self._answers[XLAS_OWN].cost_us

    def cost(self, candidate: Candidate) -> float:
        """Returns a candidate's cost; infinity if it cannot be used.

        Raises:
            BudgetOverError: if it is a new one, and the search is to end.
        """
        answer = self._answers.get(candidate)
        if answer is None:
            self._budget.take()
            answer = self._ask(candidate)
            self._add(candidate, answer)
        return answer.cost_us

    def refusals(self) -> dict[Candidate, str]:
        """Returns why candidates cannot be used."""
        return {c: answer.note for c, answer in self._answers.items() if answer.note}

    def near_best(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Returns those of some candidates that cost little more than the best, one for each
        module that it does not make."""
        seen, near = {self._answers[self.best].result}, list[Candidate]()
        for candidate in candidates:
            answer = self._answers.get(candidate)
            if answer is None or answer.result in seen or answer.cost_us > _NEAR * self.best_us:
                continue
            seen.add(answer.result)
            near.append(candidate)
        return near

    def progress(self) -> Progress:
        """Returns how far it has come."""
        return Progress(
            num_asked=len(self._answers),
            num_measured=len(self._by_result),
            num_refused=len(self.refusals()),
            best=self.best,
            best_us=self.best_us,
            xla_us=self._answers[XLAS_OWN].cost_us,
            used_s=self._budget.used_s,
        )

    def _ask(self, candidate: Candidate) -> Answer:
        result = ""
        try:
            result = self._metric.make(candidate)
            alike = self._by_result.get(result)
            if alike is not None:
                return Answer(result=result, cost_us=alike.cost_us, note=alike.note)
            # XLA aborts on some modules. The next run of this search will not try this one again.
            self._keep(candidate, Answer(result=result, cost_us=math.inf, note=_FATAL))
            return self._compare(candidate, result)
        except RefusedError as refusal:
            return Answer(result=result, cost_us=math.inf, note=str(refusal))
        except BaseException:
            self._keep(candidate, None)
            raise

    def _compare(self, candidate: Candidate, result: str) -> Answer:
        answer = self._metric.compare(candidate, self.best, self.best_us)
        return Answer(
            result=result, cost_us=answer.cost_us, is_best=answer.is_best, note=answer.note
        )

    def _add(self, candidate: Candidate, answer: Answer) -> None:
        self._remember(candidate, answer)
        self._keep(candidate, answer)
        self._report(self.progress())

    def _remember(self, candidate: Candidate, answer: Answer) -> None:
        self._answers[candidate] = answer
        if answer.result:
            self._by_result.setdefault(answer.result, answer)
        if answer.is_best:
            self.best, self.best_us = candidate, answer.cost_us
            if not candidate.compiler_options:
                self.best_plain = candidate
