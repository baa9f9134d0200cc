"""Runs random programs for a while, shrinks what fails, and keeps count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from fuselane.analysis.support import Support, opcode_supports
from fuselane.errors import InputError
from fuselane.fuzz.generate import DTYPES, Choice, draw_program
from fuselane.fuzz.operations import OPERATIONS
from fuselane.fuzz.program import COHORT, Program
from fuselane.fuzz.reproducer import write_reproducer
from fuselane.fuzz.run import Failure, Outcome
from fuselane.fuzz.shrink import shrink
from fuselane.fuzz.workers import Workers

MIN_SHARE_FUSED: Final = 0.8
"""With fewer of its loops fused, a run tests nothing."""

MAX_FAILURES: Final = 20
"""After this many failures a run ends."""

MAX_SHRUNK: Final = 3
"""How many programs on which XLA disagrees with itself are shrunk."""


SECONDS_PER_REPORT: Final = 30.0

Say = Callable[[str], None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run does.

    Attributes:
        seed: The seed of its first program; the next ones have the next seeds.
        minutes: After how long it ends, if at all.
        num_programs: After how many programs it ends, if at all.
        jobs: Processes.
        folder: Where reproducers are written.
        choice: What programs may hold.
    """

    seed: int
    minutes: float | None
    num_programs: int | None
    jobs: int
    folder: Path
    choice: Choice = field(default_factory=Choice)


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """A program that fails, shrunk, and the file that shows it."""

    seed: int
    failure: Failure
    path: Path | None


@final
@dataclass(slots=True)
class Results:
    """What a run has found."""

    seed: int
    outcome: Outcome = field(default_factory=Outcome)
    findings: list[Finding] = field(default_factory=list)
    xla_findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def share_fused(self) -> float:
        """The share of loops that became kernels."""
        return self.outcome.reasons["fused"] / max(self.outcome.reasons.total(), 1)

    @property
    def is_good(self) -> bool:
        """Whether nothing failed and enough was tested."""
        return not self.findings and self.share_fused >= MIN_SHARE_FUSED

    def line(self) -> str:
        """Returns totals on one line."""
        count = self.outcome.num_programs
        return (
            f"{count:,} programs from seed {self.seed} on, "
            f"{count / max(self.seconds, 1e-9):.2f} per second; {self.share_fused:.1%} of "
            f"{self.outcome.reasons.total():,} loops fused; "
            f"{len(self.findings)} failures; {len(self.xla_findings)} of XLA itself"
        )

    def lines(self) -> Iterator[str]:
        """Yields a report."""
        yield self.line()
        others = [
            f"{code} {n}" for code, n in self.outcome.reasons.most_common() if code != "fused"
        ]
        if others:
            yield f"loops not fused: {', '.join(others)}"
        by_opcode, by_type = self._coverage()
        fused = [row.opcode for row in opcode_supports() if row.support is Support.FUSED]
        missing = [opcode for opcode in fused if not by_opcode[opcode]]
        rare = sorted((opcode for opcode in fused if by_opcode[opcode]), key=by_opcode.__getitem__)
        yield f"{len(fused) - len(missing)} of {len(fused)} opcodes that are fused were met"
        if missing:
            yield f"not met: {', '.join(missing)}"
        yield "rarest: " + ", ".join(f"{opcode} {by_opcode[opcode]}" for opcode in rare[:12])
        yield "types: " + ", ".join(f"{name} {n}" for name, n in by_type.most_common())
        for finding in [*self.xla_findings, *self.findings]:
            place = "" if finding.path is None else f"; {finding.path} shows it"
            yield f"seed {finding.seed}: {finding.failure.form}: {finding.failure.detail}{place}"
        if self.share_fused < MIN_SHARE_FUSED:
            yield f"less than {MIN_SHARE_FUSED:.0%} of the loops were fused: this tests nothing"

    def _coverage(self) -> tuple[Counter[str], Counter[str]]:
        by_opcode: Counter[str] = Counter()
        by_type: Counter[str] = Counter()
        for name, count in self.outcome.opcodes.items():
            opcode, element_type = name.split()
            by_opcode[opcode] += count
            by_type[element_type] += 0 if element_type == "tuple" else count
        by_type.pop("tuple", None)
        return by_opcode, by_type

    def to_json(self) -> Mapping[str, Any]:
        """Returns all numbers."""
        return {
            "seed": self.seed,
            "programs": self.outcome.num_programs,
            "seconds": self.seconds,
            "loops": dict(self.outcome.reasons),
            "opcodes": dict(self.outcome.opcodes),
            "cpu_seconds": dict(self.outcome.seconds),
            "failures": list(map(_finding_to_json, self.findings)),
            "xla_differs": list(map(_finding_to_json, self.xla_findings)),
        }


def _finding_to_json(finding: Finding) -> list[Any]:
    return [finding.seed, finding.failure.form, finding.failure.detail, str(finding.path or "")]


def make_choice(operations: Sequence[str], dtypes: Sequence[str]) -> Choice:
    """Returns what programs may hold; nothing named means everything.

    Raises:
        InputError: for a name that there is not.
    """
    for names, known in ((operations, tuple(OPERATIONS)), (dtypes, DTYPES)):
        for name in names:
            if name not in known:
                raise InputError(f"There is no {name!r} here, only {', '.join(known)}.")
    return Choice(tuple(operations or OPERATIONS), tuple(dtypes or DTYPES))


def run_campaign(settings: Settings, say: Say) -> Results:
    """Runs programs until the time is up, and returns what was found.

    Args:
        settings: What to do.
        say: Is told how it goes, line by line.
    """
    results = Results(settings.seed)
    start = time.monotonic()
    told = start
    workers = Workers(settings.jobs)
    try:
        for programs, outcome in workers.run(_batches(settings, start)):
            results.outcome.add(outcome)
            results.seconds = time.monotonic() - start
            if time.monotonic() - told > SECONDS_PER_REPORT:
                told = time.monotonic()
                say(results.line())
            if outcome.failures:
                _examine(programs, outcome, results, settings.folder, say)
            if len(results.findings) >= MAX_FAILURES:
                say("enough failures")
                break
    finally:
        workers.stop()
    results.seconds = time.monotonic() - start
    return results


def _batches(settings: Settings, start: float) -> Iterator[list[Program]]:
    """Yields programs that share a module, cohort by cohort."""
    seed = settings.seed
    end = None if settings.num_programs is None else seed + settings.num_programs
    while end is None or seed < end:
        if settings.minutes is not None and time.monotonic() - start > 60 * settings.minutes:
            return
        next_cohort = (seed // COHORT + 1) * COHORT
        stop = next_cohort if end is None else min(next_cohort, end)
        yield [draw_program(s, settings.choice) for s in range(seed, stop)]
        seed = stop


def _examine(
    programs: Sequence[Program], outcome: Outcome, results: Results, folder: Path, say: Say
) -> None:
    """Finds out which programs of a batch fail alone, and shrinks them."""
    workers = Workers(1)
    num_alone = 0
    try:
        for i, failure in outcome.failures.items():
            program = programs[i]
            say(f"seed {program.seed}: {failure.form}: {failure.detail}")
            alone = workers.run_one([program]).failures
            if alone:
                num_alone += 1
                _add(results, _explain(workers, [program], alone[0], results, folder, say))
        if not num_alone:  # it takes several
            failure = next(iter(outcome.failures.values()))
            _add(results, _explain(workers, programs, failure, results, folder, say))
    finally:
        workers.stop()


def _explain(
    workers: Workers,
    programs: Sequence[Program],
    failure: Failure,
    results: Results,
    folder: Path,
    say: Say,
) -> Finding:
    """Returns what programs that fail become when they are shrunk; of XLA's, only the first are."""
    if failure.is_xlas and len(results.xla_findings) >= MAX_SHRUNK:
        return Finding(programs[0].seed, failure, None)
    return _shrink(workers, programs, folder, say)


def _add(results: Results, finding: Finding) -> None:
    found = results.xla_findings if finding.failure.is_xlas else results.findings
    found.append(finding)


def _shrink(workers: Workers, programs: Sequence[Program], folder: Path, say: Say) -> Finding:
    first = workers.run_one(programs).failures
    if not first:
        failure = Failure("unsteady", "fails in one run and not in the next")
        return Finding(programs[0].seed, failure, _write(folder, programs, failure, say))
    form = next(iter(first.values())).form

    def fails(candidate: Sequence[Program]) -> bool:
        found = workers.run_one(candidate).failures
        return any(failure.form == form for failure in found.values())

    smallest = shrink(programs, fails)
    last = workers.run_one(smallest).failures
    failure = next(iter(last.values()), Failure("unsteady", "fails in one run, not in the next"))
    return Finding(programs[0].seed, failure, _write(folder, smallest, failure, say))


def _write(folder: Path, programs: Sequence[Program], failure: Failure, say: Say) -> Path | None:
    try:
        path = write_reproducer(folder, programs, failure)
    except Exception as error:  # what fails may be the tracing
        say(f"no reproducer: {type(error).__name__}: {error}")
        return None
    say(f"shrunk: {failure.detail}; {path} shows it")
    return path
