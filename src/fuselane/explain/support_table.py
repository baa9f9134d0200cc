"""The table of opcodes in Markdown, as it stands in docs/support.md."""

from __future__ import annotations

from fuselane.analysis.support import opcode_supports


def support_table() -> str:
    """Returns the table: every HLO opcode, what becomes of it inside a loop, and conditions."""
    rows = [f"| `{row.opcode}` | {row.support.value} | {row.note} |" for row in opcode_supports()]
    return "\n".join(["| Opcode | In a loop | |", "|---|---|---|", *rows])
