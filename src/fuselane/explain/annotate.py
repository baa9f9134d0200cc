"""The user's source, line by line, with the kernels, loops and boundaries it became."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fuselane.explain import costs
from fuselane.explain.costs import KernelCost
from fuselane.explain.model import AdviceModel, BoundaryModel, LoopModel, ModuleModel
from fuselane.explain.source_text import read_source, windows
from fuselane.explain.units import (
    file_name,
    format_bytes,
    format_count,
    format_place,
    format_us,
    plural,
    printable,
)

_MARGIN: Final = 2
"""Lines of source shown around each that became something."""
_MAX_ITEMS: Final = 4
"""Kernels, and boundaries, listed for each line."""


@final
@dataclass(slots=True)
class AnnotatedLine:
    """What one line of the user's source became.

    Attributes:
        kernels: Those whose root it is.
        parts: Those it is a part of.
        boundaries: Those whose producer it is, the edges of the program left out.
        loops: Those it starts.
        advice: What is advised about it.
    """

    kernels: list[KernelCost] = field(default_factory=list)
    parts: list[KernelCost] = field(default_factory=list)
    boundaries: list[BoundaryModel] = field(default_factory=list)
    loops: list[LoopModel] = field(default_factory=list)
    advice: list[AdviceModel] = field(default_factory=list)


def annotate(modules: Sequence[ModuleModel]) -> dict[str, dict[int, AnnotatedLine]]:
    """Returns what each line became, by file and line number; files in order of modelled time."""
    files: dict[str, dict[int, AnnotatedLine]] = {}

    def at(source: object) -> AnnotatedLine:
        file, line = getattr(source, "file", ""), getattr(source, "line", 0)
        return files.setdefault(file, {}).setdefault(line, AnnotatedLine())

    for module in modules:
        for cost in costs.kernel_costs(module):
            root = cost.kernel.source
            at(root).kernels.append(cost)
            for source in cost.kernel.sources:
                if root is None or (source.file, source.line) != (root.file, root.line):
                    at(source).parts.append(cost)
        for boundary in module.boundaries:
            if boundary.decision.reason not in costs.EDGES_OF_THE_PROGRAM:
                at(boundary.source).boundaries.append(boundary)
        for loop in module.loops:
            at(loop.source).loops.append(loop)
        for advice in module.advice:
            at(advice.source).advice.append(advice)
    return dict(sorted(files.items(), key=lambda item: -sum(map(_time_us, item[1].values()))))


def make_listing(modules: Sequence[ModuleModel]) -> RenderableType:
    """Returns the listing of all files that became something."""
    files = annotate(modules)
    total_us = sum(map(costs.time_us, modules))
    parts: list[RenderableType] = []
    for file, lines in files.items():
        parts += [*_file_parts(file, lines, total_us), Text()]
    return Group(*(parts[:-1] or [Text("Nothing in the report has a source line.")]))


def _file_parts(
    file: str, lines: dict[int, AnnotatedLine], total_us: float
) -> list[RenderableType]:
    if not file:
        return [Text("Without a source line", "bold underline"), *_notes(lines[0], total_us)]
    text = read_source(file)
    parts: list[RenderableType] = [Text(printable(file_name(file)), "bold underline")]
    if not text:
        parts.append(Text(f"{printable(file)} is not there to be shown.", "dim"))
        for number in sorted(lines):
            parts.append(_source_line(number, "", lines[number], total_us))
            parts += _notes(lines[number], total_us)
    for index, window in enumerate(windows(set(lines), len(text), _MARGIN)):
        parts += [Text("        ⋯", "dim")] if index else []
        for number in window:
            line = lines.get(number)
            parts.append(_source_line(number, text[number - 1], line, total_us))
            parts += _notes(line, total_us) if line else []
    return parts


def _source_line(
    number: int, text: str, line: AnnotatedLine | None, total_us: float
) -> RenderableType:
    share = _share(_time_us(line), total_us) if line else 0.0
    row = Text(no_wrap=True, overflow="ellipsis")
    row.append(f"{share:4.0%} " if share >= 0.005 else "     ", "bold red")
    row.append(f"{number:5} │ ", "dim")
    return row.append(printable(text.expandtabs()), "" if line else "dim")


def _notes(line: AnnotatedLine, total_us: float) -> list[RenderableType]:
    notes = [_loop_note(loop) for loop in line.loops]
    kernels = costs.worst_first(line.kernels)
    notes += _cut([_kernel_note(cost, total_us) for cost in kernels], "kernels")
    if line.parts:
        names = dict.fromkeys(cost.kernel.name for cost in costs.worst_first(line.parts))
        shown = ", ".join(list(names)[:_MAX_ITEMS])
        rest = f" and {len(names) - _MAX_ITEMS} more" if len(names) > _MAX_ITEMS else ""
        notes.append(Text.assemble(("part of ", "cyan"), printable(shown) + rest))
    boundaries = sorted(line.boundaries, key=costs.crossing_bytes, reverse=True)
    notes += _cut([_boundary_note(boundary) for boundary in boundaries], "boundaries")
    notes += [_advice_note(advice) for advice in line.advice]
    return [Padding(note, (0, 0, 0, 13)) for note in notes]


def _cut(notes: list[Text], nouns: str) -> list[Text]:
    rest = len(notes) - _MAX_ITEMS
    return notes if rest <= 1 else [*notes[:_MAX_ITEMS], Text(f"and {rest} more {nouns}", "dim")]


def _kernel_note(cost: KernelCost, total_us: float) -> Text:
    kernel = cost.kernel
    text = Text.assemble(("kernel ", "cyan"), (printable(kernel.name), "bold"))
    launches = f"{format_count(kernel.launches)} × {format_us(kernel.modelled_us)}"
    share = _share(cost.time_us, total_us)
    text.append(f"  {share:.1%}  {launches}, {format_bytes(cost.bytes)}", "dim")
    if kernel.source is not None and kernel.source.library is not None:
        text.append(f"  in {format_place(kernel.source.library)}", "blue")
    return text


def _loop_note(loop: LoopModel) -> Text:
    text = Text.assemble(("loop ", "green"), (printable(loop.name), "bold"))
    text.append(f"  {plural(loop.trip_count, 'iteration')}", "dim")
    if loop.launches is not None:
        text.append(f", {plural(loop.launches, 'launch', 'launches')}", "dim")
    if loop.decision is not None:
        fused = "fused by Fuselane" if loop.decision.fused else loop.decision.reason.code
        text.append(f", {fused}", "green" if loop.decision.fused else "yellow")
    return text


def _boundary_note(boundary: BoundaryModel) -> Text:
    text = Text.assemble((f"{boundary.decision.reason.code} ", "magenta"))
    text.append(printable(f"{boundary.producer} → {boundary.consumer}"))
    made, read = boundary.source, boundary.consumer_source
    if read is not None and (made is None or (made.file, made.line) != (read.file, read.line)):
        same = made is not None and made.file == read.file
        text.append(f" (line {read.line})" if same else f" ({format_place(read)})", "dim")
    return text.append(f"  {format_bytes(costs.crossing_bytes(boundary))} a run", "dim")


def _advice_note(advice: AdviceModel) -> Text:
    gain = "" if advice.gain is None else f"×{advice.gain:.3g} "
    return Text.assemble((f"advice {gain}", "bold green"), printable(advice.sentence))


def _share(time_us: float, total_us: float) -> float:
    """Returns the share of the modelled time of all modules, 0 to 1."""
    return time_us / total_us if total_us else 0.0


def _time_us(line: AnnotatedLine) -> float:
    return sum(cost.time_us for cost in line.kernels)
