"""What changed between two reports, by source line and opcode.

HLO's numbers (`fusion.12`) change with anything, so kernels and boundaries are told by the user's
line, the opcode at their root, and the function of a library that they are in. Lines move when a
file is edited: what finds no partner on its own line looks for one in the same function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fuselane.explain import costs
from fuselane.explain.model import BoundaryModel, ModuleModel, to_json
from fuselane.explain.text import to_text
from fuselane.explain.units import (
    file_name,
    format_bytes,
    format_count,
    format_us,
    plural,
    printable,
)
from fuselane.hlo.source_lines import SourceLine

MAX_ROWS: Final = 12
"""Rows of each table of the text."""
_WIDTH: Final = 100
_SAME: Final = 0.005
"""Relative change of a time or size that counts as none."""

_Item = TypeVar("_Item")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much one place of a program costs in one run.

    Attributes:
        count: Kernels, or boundaries.
        launches: Of these kernels; None if their number is unknown. 0 for boundaries.
        bytes: Read and written, or crossing.
        time_us: Modelled time in microseconds; 0 for boundaries.
    """

    count: int = 0
    launches: int | None = 0
    bytes: float = 0
    time_us: float = 0

    def __add__(self, other: Amount) -> Amount:
        unknown = self.launches is None or other.launches is None
        return Amount(
            count=self.count + other.count,
            launches=None if unknown else (self.launches or 0) + (other.launches or 0),
            bytes=self.bytes + other.bytes,
            time_us=self.time_us + other.time_us,
        )

    def is_like(self, other: Amount) -> bool:
        """Whether two amounts are the same up to rounding."""
        near = all(
            abs(a - b) <= _SAME * max(abs(a), abs(b))
            for a, b in ((self.bytes, other.bytes), (self.time_us, other.time_us))
        )
        return near and (self.count, self.launches) == (other.count, other.launches)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A place whose cost changed, came or went.

    Attributes:
        place: The user's line, such as `cartpole.py:57`, or "" for none.
        what: Opcode at the root of the kernel, for boundaries reason and opcodes; and the function
            of a library that the line led to.
        before: None if it came.
        after: None if it went.
    """

    place: str
    what: str
    before: Amount | None
    after: Amount | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDiff:
    """What changed in one module.

    Attributes:
        before: Name and target, or "" if the module came.
        after: Name and target, or "" if it went.
        totals: Kernels of the whole module, before and after.
        kernels: Largest change of modelled time first.
        boundaries: Largest change of bytes first; the program's own edges left out.
    """

    before: str
    after: str
    totals: tuple[Amount, Amount]
    kernels: tuple[Change, ...]
    boundaries: tuple[Change, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDiff:
    """What changed between two reports.

    Attributes:
        modules: One entry per pair of modules, and per module that came or went.
    """

    modules: tuple[ModuleDiff, ...]

    def text(self, width: int = _WIDTH) -> str:
        """Returns a page of plain text, in lines of at most `width` columns."""
        return to_text(self._page(), width)

    def json(self) -> str:
        """Returns the difference as a JSON object; its fields are those of the classes."""
        values: Any = to_json(self)
        return json.dumps(values, indent=2)

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._page()

    def _page(self) -> RenderableType:
        parts: list[RenderableType] = []
        for module in self.modules:
            parts += [*_module_parts(module), Text()]
        return Group(*(parts[:-1] or [Text("There is nothing to compare.")]))


def compare(before: Sequence[ModuleModel], after: Sequence[ModuleModel]) -> ReportDiff:
    """Returns what changed from some modules to others; modules are paired by name, in order."""
    if len(before) == len(after) == 1:
        return ReportDiff(modules=(_compare_modules(before[0], after[0]),))
    left: dict[str, list[ModuleModel]] = {}
    for module in after:
        left.setdefault(module.name, []).append(module)
    diffs = []
    for module in before:
        partners = left.get(module.name, [])
        diffs.append(_compare_modules(module, partners.pop(0) if partners else None))
    diffs += [_compare_modules(None, module) for rest in left.values() for module in rest]
    return ReportDiff(modules=tuple(diffs))


def _compare_modules(before: ModuleModel | None, after: ModuleModel | None) -> ModuleDiff:
    kernels = _changes(_kernels(before), _kernels(after))
    boundaries = _changes(_boundaries(before), _boundaries(after))
    return ModuleDiff(
        before=_title(before),
        after=_title(after),
        totals=(_total(before), _total(after)),
        kernels=tuple(sorted(kernels, key=_by(lambda amount: amount.time_us))),
        boundaries=tuple(sorted(boundaries, key=_by(lambda amount: amount.bytes))),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something is: what two reports are matched by."""

    file: str
    function: str
    line: int
    what: str

    @property
    def in_function(self) -> tuple[str, str, str]:
        return (self.file, self.function, self.what)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


def _place(source: SourceLine | None, what: str) -> _Place:
    if source is None:
        return _Place("", "", 0, what)
    library = source.library
    within = "" if library is None else f" in {file_name(library.file)} ({library.function})"
    return _Place(file_name(source.file), source.function, source.line, what + within)


def _kernels(module: ModuleModel | None) -> dict[_Place, Amount]:
    amounts: dict[_Place, Amount] = {}
    if module is None:
        return amounts
    opcodes = _root_opcodes(module)
    for cost in costs.kernel_costs(module):
        kernel = cost.kernel
        place = _place(kernel.source, opcodes.get(kernel.name, kernel.kind))
        amount = Amount(count=1, launches=kernel.launches, bytes=cost.bytes, time_us=cost.time_us)
        amounts[place] = amounts.get(place, Amount()) + amount
    return amounts


def _boundaries(module: ModuleModel | None) -> dict[_Place, Amount]:
    amounts: dict[_Place, Amount] = {}
    if module is None:
        return amounts
    opcodes = _root_opcodes(module)
    for boundary in module.boundaries:
        if boundary.decision.reason not in costs.EDGES_OF_THE_PROGRAM:
            place = _place(boundary.source, _what_crosses(boundary, opcodes))
            amount = Amount(count=1, bytes=costs.crossing_bytes(boundary))
            amounts[place] = amounts.get(place, Amount()) + amount
    return amounts


def _what_crosses(boundary: BoundaryModel, opcodes: Mapping[str, str]) -> str:
    ends = (opcodes.get(name, "?") for name in (boundary.producer, boundary.consumer))
    return f"{boundary.decision.reason.code}: {' → '.join(ends)}"


def _root_opcodes(module: ModuleModel) -> dict[str, str]:
    """Returns the opcode of each instruction; for a fusion that of its root."""
    opcodes = {x.name: x.opcode for x in module.instructions}
    last = {x.computation: x.opcode for x in module.instructions}
    for x in module.instructions:
        if x.opcode == "fusion" and x.calls:
            opcodes[x.name] = last.get(x.calls[0], x.opcode)
    return opcodes


def _changes(before: dict[_Place, Amount], after: dict[_Place, Amount]) -> list[Change]:
    """Returns what differs; places without a partner look for one in the same function."""
    before, after = dict(before), dict(after)
    pairs = [(place, before.pop(place), after.pop(place)) for place in before.keys() & after.keys()]
    moved: dict[tuple[str, str, str], list[_Place]] = {}
    for place in sorted(after, key=lambda place: place.line):
        moved.setdefault(place.in_function, []).append(place)
    for place in sorted(before, key=lambda place: place.line):
        partners = moved.get(place.in_function, [])
        if partners:
            partner = partners.pop(0)
            pairs.append((partner, before.pop(place), after.pop(partner)))
    changed = [
        Change(place=str(place), what=place.what, before=old, after=new)
        for place, old, new in pairs
        if not old.is_like(new)
    ]
    gone = [Change(place=str(p), what=p.what, before=a, after=None) for p, a in before.items()]
    come = [Change(place=str(p), what=p.what, before=None, after=a) for p, a in after.items()]
    return [*changed, *gone, *come]


def _by(measure: Callable[[Amount], float]) -> Callable[[Change], tuple[float, str, str]]:
    def key(change: Change) -> tuple[float, str, str]:
        old, new = change.before or Amount(), change.after or Amount()
        return (-abs(measure(new) - measure(old)), change.place, change.what)

    return key


def _title(module: ModuleModel | None) -> str:
    return "" if module is None else f"{module.name} on {module.target}"


def _total(module: ModuleModel | None) -> Amount:
    return sum(_kernels(module).values(), Amount())


def _module_parts(module: ModuleDiff) -> list[RenderableType]:
    if not module.before or not module.after:
        verb = "came" if module.after else "went"
        return [Text(f"{printable(module.after or module.before)} {verb}", "bold")]
    old, new = module.totals
    same = module.before == module.after
    names = module.before if same else f"{module.before} → {module.after}"
    parts: list[RenderableType] = [Text(printable(names), "bold"), _totals_line(old, new)]
    for heading, changes, row in (
        ("Kernels, by change of modelled time", module.kernels, _kernel_cells),
        ("Boundaries, by change of bytes a run", module.boundaries, _boundary_cells),
    ):
        if changes:
            parts += [Text(), Text(heading, "bold underline"), _table(changes, row)]
            rest = len(changes) - MAX_ROWS
            if rest > 0:
                parts.append(Padding(Text(f"and {rest} more", "dim"), (0, 0, 0, 2)))
    if not module.kernels and not module.boundaries:
        parts.append(Text("No kernel and no boundary changed.", "dim"))
    return parts


def _totals_line(old: Amount, new: Amount) -> Text:
    pairs = (
        ("kernels", format_count(old.count), format_count(new.count)),
        ("launches", format_count(old.launches), format_count(new.launches)),
        ("moved", format_bytes(old.bytes), format_bytes(new.bytes)),
        ("modelled", format_us(old.time_us), format_us(new.time_us)),
    )
    facts = [f"{a} {noun}" if a == b else f"{a} → {b} {noun}" for noun, a, b in pairs]
    return Text(" · ".join(facts))


def _table(changes: Sequence[Change], row: Callable[[Change], tuple[str, ...]]) -> Table:
    table = Table.grid()
    table.padding = (0, 0, 0, 2)
    table.add_column(no_wrap=True)
    columns = [row(change) for change in changes[:MAX_ROWS]]
    for _ in columns[0]:
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, style="blue", overflow="ellipsis")
    for change, cells in zip(changes, columns, strict=False):
        sign, style = _sign(change)
        what = Text(printable(change.what))
        table.add_row(Text(sign, style), *cells, what, Text(printable(change.place)))
    return table


def _sign(change: Change) -> tuple[str, str]:
    if change.before is None:
        return ("+", "bold red")
    return ("-", "bold green") if change.after is None else ("~", "bold yellow")


def _kernel_cells(change: Change) -> tuple[str, ...]:
    old, new = change.before, change.after
    return (
        _pair(old, new, lambda amount: format_us(amount.time_us)),
        _pair(old, new, lambda amount: plural(amount.launches, "launch", "launches")),
        _pair(old, new, lambda amount: format_bytes(amount.bytes)),
    )


def _boundary_cells(change: Change) -> tuple[str, ...]:
    old, new = change.before, change.after
    return (
        _pair(old, new, lambda amount: format_bytes(amount.bytes)),
        _pair(old, new, lambda amount: plural(amount.count, "edge")),
    )


def _pair(old: Amount | None, new: Amount | None, show: Callable[[Amount], str]) -> str:
    """Returns one value before and after, once if it did not change."""
    shown = [show(amount) for amount in (old, new) if amount is not None]
    if shown[0] == shown[-1]:
        return shown[0]
    first, second = shown
    number, _, noun = second.partition(" ")
    was, _, noun_was = first.partition(" ")
    return f"{was} → {number} {noun}" if noun == noun_was else f"{first} → {second}"
