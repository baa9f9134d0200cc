"""What became of a program, and the faces that show it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from fuselane.config import VERSION
from fuselane.decisions import Decision, LoopDecision
from fuselane.explain.annotate import make_listing
from fuselane.explain.diff import ReportDiff, compare
from fuselane.explain.dot import to_dot
from fuselane.explain.html.page import make_html
from fuselane.explain.model import SCHEMA_VERSION, ModuleModel
from fuselane.explain.model_explorer import to_model_explorer
from fuselane.explain.reader import read_modules
from fuselane.explain.schema import finite, module_values
from fuselane.explain.strategy import describe_answers
from fuselane.explain.text import make_page, to_text
from fuselane.explain.timeline import describe_trace
from fuselane.files import write_whole

_WIDTH: Final = 100
"""Columns of text where there is no terminal to ask."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of one program: its loops under Fuselane and, where asked for, all its kernels.

    `print(report)` shows text as wide as the terminal; rich's consoles show it in colour.

    Attributes:
        loops: One entry per loop of the HLO, outer loops before those inside them.
        modules: What XLA made of each module; empty in a report on decisions alone.
        note: A sentence about the whole, or "".
    """

    loops: tuple[LoopDecision, ...] = ()
    modules: tuple[ModuleModel, ...] = ()
    note: str = ""

    @staticmethod
    def of(decisions: Iterable[LoopDecision], note: str = "") -> Report:
        """Returns the report of decisions in the order they were taken.

        Equal ones count once: XLA may show a module again, and programs are compiled again.
        """
        loops = {_identity(decision): decision for decision in decisions}
        return Report(loops=tuple(loops.values()), note=note)

    @staticmethod
    def of_modules(modules: Iterable[ModuleModel], note: str = "") -> Report:
        """Returns the report of what XLA made of a program's modules."""
        modules = tuple(modules)
        loops = (loop.decision for module in modules for loop in module.loops)
        decisions = (decision for decision in loops if decision is not None)
        return Report(loops=Report.of(decisions).loops, modules=modules, note=note)

    @staticmethod
    def from_json(text: str) -> Report:
        """Returns the report that `json` wrote, such as one kept to be compared with.

        Raises:
            InputError: if the text is no report, or one of another schema.
        """
        loops, modules, note = read_modules(text)
        return Report(loops=loops, modules=modules, note=note)

    @property
    def num_fused(self) -> int:
        """How many loops run as kernels."""
        return sum(loop.fused for loop in self.loops)

    def text(self, width: int | None = None) -> str:
        """Returns a page of plain text: kernels, loops, boundaries and advice, worst first.

        Without modules it is one line per loop: name, source line, trip count, lanes, fused or why
        not.

        Args:
            width: Columns; None takes those of the terminal, or 100 where there is none.
        """
        if not self.modules:
            return self._loop_lines()
        width = _terminal_width() if width is None else width
        return to_text(make_page(self.modules, self.note, width), width)

    def annotated(self, width: int | None = None) -> str:
        """Returns the user's source with the kernels and boundaries each line became.

        Args:
            width: Columns; None takes those of the terminal, or 100 where there is none.
        """
        width = _terminal_width() if width is None else width
        return to_text(make_listing(self.modules), width)

    def trace(self, wanted: str) -> str:
        """Returns, pass by pass, what became of an instruction, or of all of an opcode, and what a
        fusion strategy decided about an instruction.

        Args:
            wanted: Name of an instruction at any stage, or an opcode such as `dot`.
        """
        return "\n".join(line for module in self.modules for line in describe_trace(module, wanted))

    def decided(self) -> str:
        """Returns what the passes of the fusion strategy decided, yes and no, a line each."""
        return "\n".join(line for module in self.modules for line in describe_answers(module))

    def json(self) -> str:
        """Returns the report as a JSON object, as `docs/report.schema.json` describes it."""
        report = {
            "schema": SCHEMA_VERSION,
            "fuselane": VERSION,
            "note": self.note,
            "loops": [_fields(loop) for loop in self.loops],
            "modules": [module_values(module) for module in self.modules],
        }
        return json.dumps(finite(report), indent=2, allow_nan=False)

    def html(self, path: str | Path) -> None:
        """Writes the report as one page for a browser, which needs no network and no other file.

        Raises:
            OSError: if the file cannot be written.
        """
        write_whole(Path(path), make_html(self.modules, self.note))

    def dot(self) -> str:
        """Returns the kernels and what crosses between them as a graph for Graphviz."""
        return to_dot(self.modules)

    def model_explorer(self) -> str:
        """Returns the graph of all instructions as JSON that Model Explorer opens."""
        return to_model_explorer(self.modules)

    def diff(self, other: Report) -> ReportDiff:
        """Returns what changed from this report to another one.

        The two may show two versions of a program, two targets, or Fuselane off and on. What
        belongs together is found by source line and opcode, as HLO's numbers change with anything.
        """
        return compare(self.modules, other.modules)

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.modules:
            yield make_page(self.modules, self.note, options.max_width)
        else:
            yield Text(self._loop_lines())

    def _loop_lines(self) -> str:
        if not self.loops:
            return self.note or "The program has no loops."
        lines = [_line(loop) for loop in self.loops]
        return "\n".join([*lines, self.note] if self.note else lines)


def _terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH, 0)).columns


def _identity(loop: LoopDecision) -> tuple[object, ...]:
    """Returns what tells one loop's entry from another's; programs may share their names."""
    decision = loop.decision
    outcome = (loop.kernel, decision.reason, decision.sentence)
    return (loop.module, loop.name, loop.source, loop.trip_count, loop.lanes, *outcome)


def _line(loop: LoopDecision) -> str:
    steps = "? steps" if loop.trip_count is None else _count(loop.trip_count, "step")
    lanes = "no lanes" if loop.lanes is None else _count(loop.lanes, "lane")
    place = f" at {loop.source}" if loop.source else ""
    return f"{loop.name}{place}: {steps}, {lanes}: {_outcome(loop.decision)}"


def _outcome(decision: Decision) -> str:
    if decision.fused:
        return "fused"
    told = decision.instruction in decision.sentence and decision.source in decision.sentence
    culprit = f" ({_culprit(decision)})" if decision.instruction and not told else ""
    return f"not fused, {decision.reason.code}: {decision.sentence}{culprit}"


def _culprit(decision: Decision) -> str:
    place = f" at {decision.source}" if decision.source else ""
    opcode = f", a {decision.opcode}" if decision.opcode else ""
    return f"{decision.instruction}{opcode}{place}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _fields(loop: LoopDecision) -> dict[str, Any]:
    """Returns a loop's decision as JSON values."""
    decision = loop.decision
    return {
        "module": loop.module,
        "name": loop.name,
        "source": loop.source,
        "trip_count": loop.trip_count,
        "lanes": loop.lanes,
        "fused": loop.fused,
        "reason": loop.reason.code,
        "sentence": decision.sentence,
        "instruction": decision.instruction,
        "opcode": decision.opcode,
        "instruction_source": decision.source,
        "numbers": dict(decision.numbers),
        "kernel": loop.kernel,
    }
