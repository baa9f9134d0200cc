"""The data of the page: a report's modules as JSON values, small and ready to be drawn.

What repeats is written once: strings and source lines are referred to by number, and instructions
are columns. Names stay names, so that links keep their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.config import VERSION
from fuselane.explain import costs
from fuselane.explain.graph import make_graph
from fuselane.explain.model import (
    BoundaryModel,
    InstructionModel,
    KernelModel,
    ModuleModel,
    StageModel,
    StrategyModel,
    to_json,
)
from fuselane.explain.palette import FAMILIES, Family
from fuselane.explain.source_text import read_source, windows
from fuselane.explain.units import file_name
from fuselane.hlo.source_lines import SourceLine

_MARGIN: Final = 12
"""Lines of source shown around each that became something."""
_MAX_CHANGES: Final = 400
"""Names of added, and of removed, instructions kept for each stage; the rest is a count."""


def make_payload(modules: Sequence[ModuleModel], note: str) -> dict[str, Any]:
    """Returns the data of the page, the module with most modelled time first."""
    ranked = sorted(modules, key=costs.time_us, reverse=True)
    lines = _Lines()
    strings = _Numbered()
    values = [_module(module, lines, strings) for module in ranked]
    families = list(Family)
    return {
        "version": VERSION,
        "note": note,
        "families": [
            {"label": family.label, "dark": family.on_dark, "light": family.on_light}
            for family in families
        ],
        "reasons": {
            reason.code: [reason.sentence, families.index(FAMILIES[reason])]
            for reason in BoundaryReason
        },
        "modules": values,
        "strings": strings.items,
        "lines": lines.values(),
        "files": lines.files(),
    }


@final
class _Numbered:
    """Numbers equal items alike, from 0."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, item: str) -> int:
        if item not in self._numbers:
            self._numbers[item] = len(self.items)
            self.items.append(item)
        return self._numbers[item]


@final
class _Lines:
    """The source lines a report refers to, by number; -1 stands for none."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}
        self._functions: list[str] = []
        self._files = _Numbered()

    def number(self, source: SourceLine | None) -> int:
        if source is None:
            return -1
        key = (source.file, source.line)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._functions.append(source.function)
            self._files.number(source.file)
        return self._numbers[key]

    def place(self, source: SourceLine | None) -> dict[str, int]:
        """Returns the numbers of a line of the user's and of the one of a library it led to."""
        return {"source": self.number(source), "library": self.number(_library(source))}

    def numbers(self, sources: Iterable[SourceLine | None]) -> list[int]:
        """Returns the numbers of some lines, each once, without -1."""
        return [n for n in dict.fromkeys(map(self.number, sources)) if n >= 0]

    def values(self) -> list[list[Any]]:
        """Returns file number, line number and function of each."""
        return [
            [self._files.number(file), line, function]
            for (file, line), function in zip(self._numbers, self._functions, strict=True)
        ]

    def files(self) -> list[dict[str, Any]]:
        """Returns path, name and text of each file: pieces of a first line number and lines."""
        return [
            {"path": file, "name": file_name(file), "pieces": self._pieces(file)}
            for file in self._files.items
        ]

    def _pieces(self, file: str) -> list[Any]:
        text = read_source(file)
        used = {line for name, line in self._numbers if name == file}
        return [
            [
                window.start,
                [line.expandtabs(4) for line in text[window.start - 1 : window.stop - 1]],
            ]
            for window in windows(used, len(text), _MARGIN)
        ]


def _module(module: ModuleModel, lines: _Lines, strings: _Numbered) -> dict[str, Any]:
    graph = make_graph(module)
    numbers = {x.name: index for index, x in enumerate(graph.instructions)}
    computations = _Numbered()
    callers = graph.caller
    roles = {name: role for x in graph.instructions for name, role in _roles(x)}
    columns = {
        "name": [x.name for x in graph.instructions],
        "opcode": [strings.number(x.opcode) for x in graph.instructions],
        "shape": [strings.number(x.shape) for x in graph.instructions],
        "computation": [computations.number(x.computation) for x in graph.instructions],
        "kernel": [strings.number(x.kernel) for x in graph.instructions],
        "line": [lines.number(x.source) for x in graph.instructions],
        "library": [lines.number(_library(x.source)) for x in graph.instructions],
        "path": [strings.number(x.op_name) for x in graph.instructions],
    }
    return {
        "name": module.name,
        "target": module.target,
        "compile_s": module.compile_s,
        "launches": module.launches,
        "fuselane_launches": costs.fuselane_launches(module),
        "time_us": costs.time_us(module),
        "bytes": costs.bytes_moved(module),
        "notes": list(module.notes),
        "nodes": columns,
        "computations": [
            [name, numbers.get(callers.get(name, ""), -1), roles.get(name, name)]
            for name in computations.items
        ],
        "edges": [
            [numbers[e.producer], numbers[e.consumer], strings.number(e.shape), list(e.boundaries)]
            for e in graph.edges
        ],
        "kernels": [_kernel(cost, lines) for cost in costs.kernel_costs(module)],
        "loops": [to_json(loop) | lines.place(loop.source) for loop in module.loops],
        "boundaries": [_boundary(boundary, lines) for boundary in module.boundaries],
        "advice": [to_json(advice) | lines.place(advice.source) for advice in module.advice],
        "stages": [_stage(stage) for stage in module.stages],
        "strategy": None if module.strategy is None else _strategy(module.strategy, lines),
    }


def _library(source: SourceLine | None) -> SourceLine | None:
    return None if source is None else source.library


def _roles(instruction: InstructionModel) -> Iterable[tuple[str, str]]:
    """Returns what each computation is to the instruction that calls it."""
    if instruction.opcode == "while":
        return zip(instruction.calls, ("body", "condition"), strict=False)
    if instruction.opcode == "conditional":
        return ((name, f"branch {index}") for index, name in enumerate(instruction.calls))
    return ()


def _kernel(cost: costs.KernelCost, lines: _Lines) -> dict[str, Any]:
    kernel: KernelModel = cost.kernel
    sources = (kernel.source, *kernel.sources)
    values: dict[str, Any] = to_json(kernel) | lines.place(kernel.source)
    values["lines"] = lines.numbers((*sources, *map(_library, sources)))
    del values["sources"]
    values["intensity"] = kernel.intensity if math.isfinite(kernel.intensity) else None
    return values | {"time_us": cost.time_us, "bytes": cost.bytes, "share": cost.share}


def _boundary(boundary: BoundaryModel, lines: _Lines) -> dict[str, Any]:
    decision = boundary.decision
    return {
        "producer": boundary.producer,
        "consumer": boundary.consumer,
        "shape": boundary.shape,
        "num_bytes": boundary.num_bytes,
        "bytes_per_run": boundary.bytes_per_run,
        "reason": decision.reason.code,
        "detail": decision.detail,
        "xla": decision.xla,
        "numbers": dict(decision.numbers),
        "loop": boundary.loop,
        **lines.place(boundary.source),
        **{f"consumer_{x}": n for x, n in lines.place(boundary.consumer_source).items()},
    }


def _strategy(strategy: StrategyModel, lines: _Lines) -> dict[str, Any]:
    answers = [to_json(answer) | lines.place(answer.source) for answer in strategy.answers]
    return {"answers": answers, "total": len(answers) + strategy.num_left_out}


def _stage(stage: StageModel) -> dict[str, Any]:
    return {
        "pipeline": stage.pipeline,
        "name": stage.name,
        "instructions": stage.num_instructions,
        "fusions": stage.num_fusions,
        "bytes": stage.bytes_moved,
        "opcodes": dict(stage.opcodes),
        "num_added": len(stage.added),
        "num_removed": len(stage.removed),
        "added": dict(list(stage.added.items())[:_MAX_CHANGES]),
        "removed": dict(list(stage.removed.items())[:_MAX_CHANGES]),
    }
