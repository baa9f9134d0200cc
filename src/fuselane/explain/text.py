"""A report as a page for the terminal: what costs most comes first, long lists are cut.

Pages are built of rich's texts and tables: the console decides on width and colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fuselane.boundary import BoundaryReason
from fuselane.decisions import LoopDecision
from fuselane.explain import costs
from fuselane.explain.costs import KernelCost
from fuselane.explain.model import (
    AdviceModel,
    AnswerCountModel,
    BoundaryModel,
    LoopModel,
    ModuleModel,
)
from fuselane.explain.units import (
    format_bytes,
    format_count,
    format_opcodes,
    format_place,
    format_us,
    plural,
    printable,
)

MAX_MODULES: Final = 4
"""Modules told in full; the others get a line."""
MAX_KERNELS: Final = 12
MAX_LOOPS: Final = 8
MAX_REASONS: Final = 8
MAX_EDGES: Final = 2
"""Boundaries listed for each reason."""
MAX_PASSES: Final = 8
MAX_ADVICE: Final = 8

_BAR_CELLS: Final = 8
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_NARROW: Final = 90
"""Columns below which the page does without bars and opcodes."""
_HEADS: Final = ("share", "", "time", "launches", "bytes", "kernel", "line", "computes")
_NUMBERS: Final = frozenset({0, 2, 3, 4})
_STYLES: Final = {1: "cyan", 5: "bold", 6: "blue", 7: "dim"}
_MAX_CELLS: Final = {5: (28, 28), 6: (28, 44)}
"""Columns of the table of kernels, by number: those that hold numbers, looks, largest widths, on a
page of _NARROW columns and on one twice as wide."""
_MAX_SHAPE: Final = 40
_LAYOUT: Final = re.compile(r"(?<=\])\{[^}]*\}")


def to_text(renderable: RenderableType, width: int) -> str:
    """Returns what a console without colour shows, in lines of at most `width` columns."""
    console = Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=False, emoji=False
    )
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def make_page(modules: Sequence[ModuleModel], note: str, width: int) -> RenderableType:
    """Returns the page of all modules, the one with most modelled time first.

    Args:
        modules: At least one.
        note: A sentence about the whole, or "".
        width: Columns there are.
    """
    ranked = sorted(modules, key=costs.time_us, reverse=True)
    parts: list[RenderableType] = []
    for module in ranked[:MAX_MODULES]:
        parts += [*_module_parts(module, width), Text()]
    rest = ranked[MAX_MODULES:]
    if rest:
        parts += [_heading(f"{plural(len(rest), 'more module')}"), _rest_table(rest), Text()]
    if note:
        parts += [Text(printable(note)), Text()]
    return Group(*parts[:-1])


def _module_parts(module: ModuleModel, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = [_title(module)]
    for heading, body in (
        ("Kernels, by modelled time", _kernel_table(module, width)),
        ("Loops", _loop_table(module)),
        ("Boundaries: what stays unfused, by bytes a run", _boundary_table(module)),
        ("Decisions of the fusion strategy, by pass", _strategy_table(module)),
        ("Advice", _advice_table(module)),
        ("Notes", _note_table(module)),
    ):
        if body is not None:
            parts += [Text(), _heading(heading), body]
    return parts


def _title(module: ModuleModel) -> RenderableType:
    first = Text()
    first.append(printable(module.name), "bold")
    first.append(f" on {printable(module.target)}", "bold")
    if module.compile_s:
        first.append(f", compiled by XLA in {module.compile_s:.2g} s", "dim")
    launches, under_fuselane = module.launches, costs.fuselane_launches(module)
    known = "" if launches is not None else ", with one iteration of each loop of unknown length"
    facts = [
        plural(len(module.kernels), "kernel"),
        f"{plural(launches, 'launch', 'launches')} a run",
        f"{format_bytes(costs.bytes_moved(module))} moved",
        f"{format_us(costs.time_us(module))} modelled{known}",
    ]
    second = Text(" · ".join(facts))
    if under_fuselane is not None and under_fuselane != launches:
        second.append(" · under Fuselane ")
        second.append(f"{plural(under_fuselane, 'launch', 'launches')}", "green")
    return Group(first, second)


def _kernel_table(module: ModuleModel, width: int) -> RenderableType | None:
    groups = _alike(costs.worst_first(costs.kernel_costs(module)))
    if not groups:
        return None
    largest = _share(groups[0]) or 1.0
    rows: list[tuple[str, ...]] = [_HEADS]
    rows += (_kernel_cells(group, largest) for group in groups[:MAX_KERNELS])
    shown = [column for column in range(len(_HEADS)) if width >= _NARROW or column not in (1, 7)]
    widths: dict[int, int] = {}
    for column in shown:
        room = width - sum(widths.values()) - 2 * len(widths) - 2
        widest = max(cell_len(row[column]) for row in rows)
        least, most = _MAX_CELLS.get(column, (widest, widest))
        allowed = least if width < 2 * _NARROW else most
        widths[column] = max(0, min(widest, allowed, room))
    table = Group(*(_kernel_line(row, widths, "dim" if row is rows[0] else "") for row in rows))
    rest = [cost for group in groups[MAX_KERNELS:] for cost in group]
    if not rest:
        return table
    return Group(
        table, _more(f"{plural(len(rest), 'more kernel')} with {_share(rest):.1%} of the time")
    )


def _alike(ranked: Sequence[KernelCost]) -> list[list[KernelCost]]:
    """Returns kernels in groups of one line, kind and opcodes, the group that costs most first."""
    groups: dict[object, list[KernelCost]] = {}
    for cost in ranked:
        kernel = cost.kernel
        opcodes = tuple(sorted(kernel.opcodes.items()))
        key = (kernel.source, kernel.kind, kernel.emitter, kernel.launches, opcodes)
        groups.setdefault(key, []).append(cost)
    return sorted(groups.values(), key=lambda group: -sum(cost.time_us for cost in group))


def _share(group: Iterable[KernelCost]) -> float:
    return sum(cost.share for cost in group)


def _kernel_line(row: Sequence[str], widths: Mapping[int, int], style: str) -> Text:
    line = Text(no_wrap=True)
    for column, width in widths.items():
        cell = Text(row[column], style or _STYLES.get(column, ""))
        cell.truncate(width, overflow="ellipsis")
        padding = " " * (width - cell.cell_len)
        line.append("  ")
        if column in _NUMBERS:
            line.append(padding).append_text(cell)
        else:
            line.append_text(cell).append(padding)
    return line


def _kernel_cells(group: Sequence[KernelCost], largest: float) -> tuple[str, ...]:
    kernel = group[0].kernel
    times = "" if len(group) == 1 else f"{len(group)} × "
    return (
        f"{_share(group):.1%}",
        _bar(_share(group) / largest),
        format_us(sum(cost.time_us for cost in group)),
        times + format_count(kernel.launches),
        format_bytes(sum(cost.bytes for cost in group)),
        printable(kernel.name) + ("" if len(group) == 1 else f" +{len(group) - 1}"),
        format_place(kernel.source),
        printable(f"{kernel.kind}: {format_opcodes(kernel.opcodes)}"),
    )


def _loop_table(module: ModuleModel) -> RenderableType | None:
    if not module.loops:
        return None
    ranked = sorted(module.loops, key=lambda loop: -(loop.launches or 0))
    lines: list[RenderableType] = []
    for loop in ranked[:MAX_LOOPS]:
        lines.append(Padding(_loop_line(loop), (0, 0, 0, 2)))
        if loop.decision is not None:
            lines.append(Padding(_outcome(loop.decision), (0, 0, 0, 4)))
    if ranked[MAX_LOOPS:]:
        lines.append(_more(plural(len(ranked) - MAX_LOOPS, "more loop")))
    return Group(*lines)


def _loop_line(loop: LoopModel) -> Text:
    line = Text()
    line.append(printable(loop.name), "bold")
    runs = _runs(loop)
    line.append(f"  {f'{format_count(runs)} × ' if runs > 1 else ''}")
    line.append(plural(loop.trip_count, "iteration"))
    if loop.kernels_per_iteration:
        line.append(f" × {plural(loop.kernels_per_iteration, 'kernel')}")
    if loop.launches is not None:
        sign = " =" if loop.kernels_per_iteration else ","
        line.append(f"{sign} {plural(loop.launches, 'launch', 'launches')}")
    if loop.fuselane_launches is not None and loop.fuselane_launches != loop.launches:
        line.append(f", {format_count(loop.fuselane_launches)} under Fuselane", "green")
    if loop.function:
        line.append(", all in one function")
    line.append(f"  carries {format_bytes(loop.carried_bytes)}", "dim")
    line.append(f"  {format_place(loop.source)}", "blue")
    return line


def _runs(loop: LoopModel) -> int:
    """Returns how often a loop inside another one is begun in a run."""
    once = (loop.trip_count or 0) * (loop.kernels_per_iteration or 0)
    return round(loop.launches / once) if loop.launches and once else 1


def _outcome(loop: LoopDecision) -> Text:
    decision = loop.decision
    if decision.fused:
        text = Text("fused  ", "green")
    else:
        text = Text(f"not fused, {loop.reason.code}  ", "yellow")
    return text.append(printable(decision.sentence), "dim" if decision.fused else "")


def _boundary_table(module: ModuleModel) -> RenderableType | None:
    groups = costs.by_reason(module.boundaries)
    inner = [(reason, group) for reason, group in groups if not _is_outer(reason)]
    outer = [boundary for reason, group in groups if _is_outer(reason) for boundary in group]
    if not groups:
        return None
    table = _grid()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    for reason, group in inner[:MAX_REASONS]:
        table.add_row(_size(group), _reason_text(reason, group))
        for index, boundary in enumerate(group[:MAX_EDGES]):
            table.add_row("", _edge_lines(boundary, with_detail=index == 0))
        if group[MAX_EDGES:]:
            table.add_row("", Text(f"  and {len(group) - MAX_EDGES} more", "dim"))
    rest = [boundary for _, group in inner[MAX_REASONS:] for boundary in group]
    if rest:
        more = plural(len(rest), "more boundary", "more boundaries")
        table.add_row(_size(rest), Text(f"{more} of other kinds", "dim"))
    if outer:
        table.add_row(_size(outer), Text(f"{len(outer)} at the edges of the program", "dim"))
    return table


def _is_outer(reason: BoundaryReason) -> bool:
    return reason in costs.EDGES_OF_THE_PROGRAM


def _size(group: Iterable[BoundaryModel]) -> str:
    return format_bytes(sum(map(costs.crossing_bytes, group)))


def _reason_text(reason: BoundaryReason, group: Sequence[BoundaryModel]) -> Text:
    text = Text()
    text.append(reason.code, "bold red" if reason is BoundaryReason.UNKNOWN else "bold magenta")
    text.append(f"  {plural(len(group), 'edge')}  ")
    return text.append(reason.sentence, "dim")


def _edge_lines(boundary: BoundaryModel, *, with_detail: bool) -> RenderableType:
    """Returns one edge and, for the first of its kind, what is told of it alone."""
    line = Text()
    line.append(printable(f"{boundary.producer} → {boundary.consumer}"))
    line.append(f"  {_places(boundary)}", "blue")
    line.append(f"  {_short_shape(boundary.shape)}, {_crossing(boundary)}", "dim")
    lines = [Padding(line, (0, 0, 0, 2))]
    own = printable(boundary.decision.detail)
    if with_detail and own and own != boundary.decision.reason.sentence:
        lines.append(Padding(Text(own, "dim"), (0, 0, 0, 4)))
    return Group(*lines)


def _short_shape(shape: str) -> str:
    """Returns a shape without its layout, cut where it is long."""
    text = printable(_LAYOUT.sub("", shape))
    return text if len(text) <= _MAX_SHAPE else f"{text[: _MAX_SHAPE - 1]}…"


def _crossing(boundary: BoundaryModel) -> str:
    once, run = boundary.num_bytes, boundary.bytes_per_run
    if run is None:
        return f"{format_bytes(once)} × ?"
    if not once or run == once:
        return format_bytes(run)
    return f"{format_bytes(once)} × {format_count(run / once)}"


def _places(boundary: BoundaryModel) -> str:
    made, read = boundary.source, boundary.consumer_source
    if made and read and made.innermost == read.innermost:
        read = None
    elif made and read and (made.file, made.line) == (read.file, read.line):
        read = read.library  # what one line led to
    return " → ".join(filter(None, map(format_place, (made, read))))


def _strategy_table(module: ModuleModel) -> RenderableType | None:
    if module.strategy is None:
        return None
    passes: dict[str, list[AnswerCountModel]] = {}
    for count in module.strategy.counts:
        passes.setdefault(count.pass_name, []).append(count)
    if not passes:
        return Padding(Text("No pass asked about anything.", "dim"), (0, 0, 0, 2))
    table = _grid()
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    for name, counts in list(passes.items())[:MAX_PASSES]:
        ranked = sorted(counts, key=lambda count: -count.count)
        yes = sum(count.count for count in counts if count.reason is None)
        no = sum(count.count for count in counts) - yes
        kinds = [f"{x.reason.code} {format_count(x.count)}" for x in ranked if x.reason]
        text = Text(printable(name), "bold").append(f"  {', '.join(kinds)}", "not bold magenta")
        table.add_row(f"{format_count(yes)} yes", f"{format_count(no)} no", text)
    rest = len(passes) - MAX_PASSES
    return table if rest <= 0 else Group(table, _more(plural(rest, "more pass", "more passes")))


def _advice_table(module: ModuleModel) -> RenderableType | None:
    if not module.advice:
        return None
    table = _grid()
    table.add_column(justify="right", no_wrap=True, style="bold green")
    table.add_column(ratio=1)
    for advice in module.advice[:MAX_ADVICE]:
        table.add_row("" if advice.gain is None else f"×{advice.gain:.3g}", _advice_text(advice))
    rest = len(module.advice) - MAX_ADVICE
    return table if rest <= 0 else Group(table, _more(plural(rest, "more piece", "more pieces")))


def _advice_text(advice: AdviceModel) -> Text:
    text = Text()
    text.append(printable(advice.rule), "bold")
    text.append(f"  {format_place(advice.source)}\n", "blue")
    return text.append(printable(advice.sentence))


def _note_table(module: ModuleModel) -> RenderableType | None:
    notes: list[Any] = [Padding(Text(printable(n), "dim"), (0, 0, 0, 2)) for n in module.notes]
    return Group(*notes) if notes else None


def _rest_table(modules: Iterable[ModuleModel]) -> RenderableType:
    table = _grid()
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for module in modules:
        table.add_row(
            format_us(costs.time_us(module)),
            plural(len(module.kernels), "kernel"),
            plural(module.launches, "launch", "launches"),
            Text(printable(f"{module.name} on {module.target}")),
        )
    return table


def _grid() -> Table:
    """Returns an empty table without lines, indented by two columns."""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=True)
    table.padding = (0, 0, 0, 2)
    return table


def _heading(text: str) -> Text:
    return Text(text, "bold underline")


def _more(text: str) -> RenderableType:
    return Padding(Text(f"and {text}", "dim"), (0, 0, 0, 2))


def _bar(share: float) -> str:
    eighths = round(share * _BAR_CELLS * 8)
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
