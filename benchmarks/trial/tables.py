"""The suite's results as rows, as a table and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich import box
from rich.table import Table

from programs import CATEGORIES
from programs.program import Program
from trial.outcome import Outcome

Results = Sequence[tuple[Program, Outcome]]

_HEADINGS: Final = (
    "Program",
    "Plain XLA, ms",
    "Fuselane, ms",
    "Times",
    "Target",
    "Compiling",
    "Fused",
    "Reached",
)


def list_cells(program: Program, outcome: Outcome) -> tuple[str, ...]:
    """Returns a row's cells, in the order of the table's columns."""
    target = "" if program.target is None else f"{program.target:g}"
    if not outcome.is_measured:
        return (program.name, "", "", "", target, "", "", outcome.judge(program))
    return (
        program.name,
        f"{outcome.xla_ms:,.2f}",
        f"{outcome.fuselane_ms:,.2f}",
        f"{outcome.times:.2f}",
        target,
        f"{outcome.compile_ratio:.2f}",
        f"{outcome.num_fused} of {len(outcome.loops)}",
        outcome.judge(program),
    )


def format_row(program: Program, outcome: Outcome) -> str:
    """Returns a line to print as soon as a program is done."""
    if not outcome.is_measured:
        return f"{program.name:36} {outcome.skipped or outcome.error}"
    name, xla, ours, times, target, compiling, fused, reached = list_cells(program, outcome)
    return (
        f"{name:36} {xla:>10} {ours:>10} {times:>7} {target:>5} {compiling:>6} {fused:>9} {reached}"
    )


def list_remarks(results: Results) -> Iterator[str]:
    """Yields a line for whatever is wrong, failed, skipped, or was left to XLA."""
    for program, outcome in results:
        if outcome.skipped or outcome.error:
            yield f"{program.name}: {outcome.skipped or outcome.error}"
        if outcome.disagreement:
            yield f"{program.name}: results do not agree. {outcome.disagreement}"
        for loop in outcome.loops:
            if not loop.fused:
                yield f"{program.name}: {loop.describe()}"


def make_table(results: Results) -> Table:
    """Returns all rows, by category."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if i in (0, 7) else "right", no_wrap=True)
    for rows in _group(results).values():
        for program, outcome in rows:
            table.add_row(*list_cells(program, outcome))
        table.add_section()
    return table


def make_markdown(results: Results, machine: Mapping[str, str | int]) -> str:
    """Returns a table for each category, and a sentence about the machine."""
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['vector_bits']}-bit vectors, jax "
        f"{machine['jax']}: both engines in turns in one process, medians."
    ]
    for category, rows in _group(results).items():
        lines += ["", f"### {category.capitalize()}", ""]
        lines += [_markdown_row(_HEADINGS), _markdown_row(["---"] * len(_HEADINGS))]
        lines += [_markdown_row(list_cells(*row)) for row in rows]
    skipped = [f"{p.name} ({o.skipped})" for p, o in results if o.skipped]
    if skipped:
        lines += ["", f"Skipped: {', '.join(skipped)}."]
    return "\n".join(lines) + "\n"


def _group(results: Results) -> dict[str, list[tuple[Program, Outcome]]]:
    groups = {c: [row for row in results if row[0].category == c] for c in CATEGORIES}
    return {category: rows for category, rows in groups.items() if rows}


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
