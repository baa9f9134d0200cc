"""Candidates priced by running them on this machine, in turns with the best so far.

Each has to give the results of plain XLA: the same integers, and floats as near as rounding
explains (see `fuselane.contract`). What contracts a product and a sum is told from what is wrong by
how far, and in how many elements, plain XLA moves on inputs that differ in their last places.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, final

import numpy as np

from fuselane.contract import DRIFT_FACTOR, CheckedElement, find_wrong
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import XLAS_OWN, RefusedError
from fuselane.tuning.making import Maker
from fuselane.tuning.store import Answer
from fuselane.tuning.timing import compare

NumpyArray = np.ndarray[Any, np.dtype[Any]]

_FIRST_RUNS: Final = 5
_FIRST_S: Final = 2.0
_CONFIRMING: Final = 4.0
"""The last comparison may take so many times longer."""

_SHARE_OF_CHANCE: Final = 1 / 1024
_SHARE_UNVARIED: Final = 0.01
"""How much of an array may differ more than varied runs explain, as chance decides which elements
drift apart: with floats to vary, and without any."""


class Runnable(Protocol):
    """A compiled program."""

    def run(self) -> object:
        """Runs it once, to its end."""

    def results(self, vary: int = 0) -> list[NumpyArray]:
        """Runs it and returns its results.

        Args:
            vary: 1 or -1 moves floating-point arguments up or down in their last places.
        """


Compile = Callable[[Candidate], Runnable]


@final
class Measured:
    """A metric; see `evaluation.Metric`."""

    def __init__(
        self,
        makers: Callable[[Mapping[str, str]], Maker],
        compile_candidate: Compile,
        *,
        max_s: float = 5.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Makes the metric of one program.

        Args:
            makers: Returns what makes modules under some compiler options.
            compile_candidate: Compiles the program in a candidate's way.
            max_s: Seconds that one comparison may take, roughly.
            clock: Seconds.
        """
        self._makers = makers
        self._compile = compile_candidate
        self._max_s = max_s
        self._clock = clock
        self._best: tuple[Candidate, Runnable] | None = None
        self._reference: list[NumpyArray] | None = None
        self._varied: list[list[NumpyArray]] | None = None

    def make(self, candidate: Candidate) -> str:
        """Returns the fingerprint of the module a candidate makes."""
        return self._makers(dict(candidate.compiler_options)).fingerprint(candidate)

    def compare(self, candidate: Candidate, incumbent: Candidate, cost_us: float) -> Answer:
        """Compiles, checks and times a candidate."""
        if candidate == incumbent:
            return Answer(result="", cost_us=self._time(candidate), is_best=True)
        old = self._incumbent(incumbent)
        new = self._compile_checked(candidate)
        found = compare(new.run, old.run, max_s=self._max_s, clock=self._clock)
        if found.is_faster:
            self._best = candidate, new
        ratio = found.ratio if found.is_faster else max(1.0, found.ratio)
        return Answer(result="", cost_us=ratio * cost_us, is_best=found.is_faster)

    def confirm(self, candidate: Candidate) -> float:
        """Times a candidate and plain XLA once more."""
        new = self._incumbent(candidate)
        plain = self._compile(XLAS_OWN)
        plain.run()
        max_s = _CONFIRMING * self._max_s
        found = compare(new.run, plain.run, max_s=max_s, clock=self._clock)
        return found.ratio if found.is_faster else 1.0

    def _time(self, candidate: Candidate) -> float:
        runnable = self._incumbent(candidate)
        times: list[float] = []
        begin = self._clock()
        while len(times) < _FIRST_RUNS and (not times or self._clock() - begin < _FIRST_S):
            start = self._clock()
            runnable.run()
            times.append(self._clock() - start)
        return statistics.median(times) * 1e6

    def _incumbent(self, candidate: Candidate) -> Runnable:
        if self._best is None or self._best[0] != candidate:
            self._best = candidate, self._compile_checked(candidate)
        return self._best[1]

    def _compile_checked(self, candidate: Candidate) -> Runnable:
        """Compiles a candidate and runs it once.

        Raises:
            RefusedError: if XLA does not compile it, or its results are others than plain XLA's.
        """
        try:
            runnable = self._compile(candidate)
            results = runnable.results()
        except RuntimeError as error:  # XLA's errors are of this type
            raise RefusedError(f"XLA fails on it: {first_line(error)}.") from error
        if candidate != XLAS_OWN:
            self._check(results)
        return runnable

    def _check(self, results: list[NumpyArray]) -> None:
        if self._reference is None:
            self._reference = self._compile(XLAS_OWN).results()
        pairs = list(zip(self._reference, results, strict=True))
        if all(_is_same(right, got) for right, got in pairs):
            return
        if self._varied is None:
            plain = self._compile(XLAS_OWN)
            self._varied = [plain.results(vary=sign) for sign in (1, -1)]
        for number, (right, got) in enumerate(pairs):
            self._check_array(number, right, got)

    def _check_array(self, number: int, right: NumpyArray, got: NumpyArray) -> None:
        assert self._varied is not None
        right, got = right.ravel(), got.ravel()
        varied = [run[number].ravel() for run in self._varied]
        num_moved = max(find_wrong(right, run, []).size for run in varied)
        has_moved = any((run != right).any() for run in varied)
        lanes = CheckedElement(
            name="", source="", dimensions=(), minor_to_major=(), lane_stride=1, num_lanes=got.size
        )
        wrong = find_wrong(right, got, varied if has_moved else [], lanes)
        share = _SHARE_OF_CHANCE if has_moved else _SHARE_UNVARIED
        if wrong.size > DRIFT_FACTOR * num_moved + share * right.size:
            at = int(wrong[0])
            raise RefusedError(
                f"Its results are not XLA's: {wrong.size} of {right.size} values differ in result"
                f" {number}; the first is {got[at].item()!r} instead of {right[at].item()!r}."
            )


def _is_same(left: NumpyArray, right: NumpyArray) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def first_line(error: BaseException) -> str:
    """Returns what an error says first, as the end of a sentence."""
    return str(error).strip().partition("\n")[0].rstrip(".")
