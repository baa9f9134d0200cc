"""The CartPole results as a table for people."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.table import Table

from fuselane.cartpole.results import Results, Row
from fuselane.cartpole.variants import BASELINE

_COLUMNS: Final = (
    "ms",
    "million\nsteps/s",
    f"times\n{BASELINE}",
    "times\nsame",
    "compile\nms",
    "largest\ndiff",
)


def make_table(results: Results) -> Table:
    """Returns the results' rows, grouped by variant, with what was skipped below.

    "times concat" compares with plain XLA on the baseline, "times same" with plain XLA on the same
    variant: the gain without touching the code. It fits into 80 columns.
    """
    settings = results.settings
    table = Table(
        title=f"CartPole: {settings.num_envs:,} environments x {settings.num_steps:,} steps, "
        f"median of {settings.num_repeats}",
        caption=_make_caption(results),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("variant", no_wrap=True)
    table.add_column("engine", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for variant in settings.variants:
        for row in (row for row in results.rows if row.variant == variant):
            table.add_row(*_format_row(row, results), style=_style(row))
        for skipped in (s for s in results.skipped if s.variant == variant):
            table.add_row(variant, skipped.engine, "skipped", style="dim")
        table.add_section()
    return table


def _format_row(row: Row, results: Results) -> tuple[str, ...]:
    same_ms = next(r.ms for r in results.rows if r.variant == row.variant and r.engine == "xla")
    return (
        row.variant,
        row.engine,
        f"{row.ms:,.2f}",
        f"{row.steps_per_s * 1e-6:,.1f}",
        "-" if row.times_baseline is None else f"{row.times_baseline:.2f}",
        f"{same_ms / row.ms:.2f}",
        f"{row.compile_ms:,.0f}",
        "0" if row.max_abs_diff == 0 else f"{row.max_abs_diff:.1e}",
    )


def _style(row: Row) -> str:
    return "bold" if row.engine == "fuselane" else ""


def _make_caption(results: Results) -> str:
    machine = results.machine
    lines = [f"{machine['cpu']}, {machine['cores']} cores, jax {machine['jax']}."]
    lines += (
        f"{check.variant}: Fuselane left the loop to XLA. {check.agreement.refusal}"
        for check in results.checks
        if check.agreement.refusal
    )
    for check in results.disagreements:
        agreement = check.agreement
        lines.append(
            f"{check.variant} under {check.engine} does not agree with plain XLA: "
            f"{agreement.num_envs_apart} of {agreement.num_envs} environments are apart."
        )
    return "\n".join(lines)
