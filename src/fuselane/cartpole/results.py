"""What a CartPole benchmark measured: settings, rows, checks, and their JSON form."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from fuselane.cartpole.check import Agreement
from fuselane.cartpole.contender import Contender
from fuselane.cartpole.variants import BASELINE, VARIANTS
from fuselane.machine import describe_machine

Say = Callable[[str], None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure.

    Attributes:
        num_envs: Environments, at least 1.
        num_steps: Steps, at least 0.
        num_repeats: Timed runs of each contender, of which the median counts.
        variants: Names out of `VARIANTS`.
        with_peers: Whether other tools take part.
    """

    num_envs: int
    num_steps: int
    num_repeats: int
    variants: tuple[str, ...] = tuple(VARIANTS)
    with_peers: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the result.

    Attributes:
        variant: The program.
        engine: What ran it.
        ms: Median time of one run.
        steps_per_s: Environment steps per second.
        times_baseline: How many times as fast as plain XLA on the paper's baseline, `concat`; None
            if that was not measured.
        compile_ms: Time to compile.
        max_abs_diff: Largest difference to plain XLA's final states on the same variant.
    """

    variant: str
    engine: str
    ms: float
    steps_per_s: float
    times_baseline: float | None
    compile_ms: float
    max_abs_diff: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A contender that could not run, and why."""

    variant: str
    engine: str
    reason: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How one engine's results on one variant agree with plain XLA's."""

    variant: str
    engine: str
    agreement: Agreement


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything one call measured."""

    settings: Settings
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    checks: tuple[Check, ...]
    machine: dict[str, str | int]

    @property
    def disagreements(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.agreement.holds)

    def to_json(self) -> dict[str, Any]:
        """Returns what is written to a JSON file."""
        return {
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "machine": self.machine,
            "settings": dataclasses.asdict(self.settings),
            "skipped": [dataclasses.asdict(skipped) for skipped in self.skipped],
            "checks": [
                {
                    "variant": check.variant,
                    "engine": check.engine,
                    "holds": check.agreement.holds,
                    **dataclasses.asdict(check.agreement),
                }
                for check in self.checks
            ],
        }


@final
class Recorder:
    """Collects rows, checks and what was skipped while the contenders run."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._rows: list[Row] = []
        self._skipped: list[Skipped] = []
        self._checks: list[Check] = []

    def skip(self, variant: str, engine: str, reason: str) -> None:
        """Records and says that a contender could not run."""
        self._say(f"{variant}: {engine} is skipped. {reason}")
        self._skipped.append(Skipped(variant=variant, engine=engine, reason=reason))

    def measure(
        self, variant: str, contender: Contender, times_ms: Sequence[float], agreement: Agreement
    ) -> None:
        """Records a contender's times and how it agrees with plain XLA."""
        ms = statistics.median(times_ms)
        num_steps = self._settings.num_envs * self._settings.num_steps
        self._checks.append(Check(variant=variant, engine=contender.engine, agreement=agreement))
        self._rows.append(
            Row(
                variant=variant,
                engine=contender.engine,
                ms=ms,
                steps_per_s=num_steps / (ms * 1e-3),
                times_baseline=None,
                compile_ms=contender.compile_ms,
                max_abs_diff=agreement.max_abs_diff,
            )
        )

    def results(self) -> Results:
        """Returns everything recorded, set in relation to the baseline."""
        baseline_ms = next(
            (row.ms for row in self._rows if row.variant == BASELINE and row.engine == "xla"), None
        )
        rows = (
            row
            if baseline_ms is None
            else dataclasses.replace(row, times_baseline=baseline_ms / row.ms)
            for row in self._rows
        )
        return Results(
            settings=self._settings,
            rows=tuple(rows),
            skipped=tuple(self._skipped),
            checks=tuple(self._checks),
            machine=describe_machine(),
        )
