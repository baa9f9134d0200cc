"""Makes a failing program smaller as long as it fails.

Programs are shrunk by their own structure: programs of the module, steps, bodies, results, carries
and streams are left out, then sizes, options and forms become plainer. What is tried next always
starts from the smallest program that still fails.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from fuselane.fuzz.kinds import WIDE
from fuselane.fuzz.program import Program, Slot, Step

MAX_SECONDS: Final = 240.0

Programs = tuple[Program, ...]
Fails = Callable[[Programs], bool]


def shrink(programs: Sequence[Program], fails: Fails) -> Programs:
    """Returns the smallest programs found that still fail together.

    Args:
        programs: Programs that fail.
        fails: Whether others do, in the same way.
    """
    current = tuple(programs)
    deadline = time.monotonic() + MAX_SECONDS
    while time.monotonic() < deadline:
        candidates = itertools.takewhile(lambda _: time.monotonic() < deadline, smaller(current))
        found = next((candidate for candidate in candidates if fails(candidate)), None)
        if found is None:
            break
        current = found
    return current


def smaller(programs: Programs) -> Iterator[Programs]:
    """Yields programs a little smaller than the given ones, the greatest savings first."""
    if len(programs) > 1:
        half = len(programs) // 2
        yield programs[:half]
        yield programs[half:]
        yield from _without_one(programs)
    for i, program in enumerate(programs):
        for candidate in _smaller_program(program):
            yield (*programs[:i], candidate, *programs[i + 1 :])


def _smaller_program(program: Program) -> Iterator[Program]:
    for body in _smaller_bodies(program.body):
        yield replace(program, body=body)
    for name in ("results", "reductions", "streams"):
        for rest in _without_one(getattr(program, name)):
            yield _changed(program, name, rest)
    if len(program.carries) > 1:
        for i in range(len(program.carries)):
            carries = program.carries[:i] + program.carries[i + 1 :]
            updates = program.updates[:i] + program.updates[i + 1 :]
            yield replace(program, carries=carries, updates=updates)
    plainer: dict[str, Any] = {"outer": "scan", "reverse": False, "chained": False}
    plainer |= {"table": None} if program.table else {}
    plainer |= {"donated": False, "devices": 1, "unroll": 1, "remat": False}
    plainer |= {"aside": 0, "options": {}}
    if not any(slot.dtype in WIDE for slot in program.carries + program.streams):
        plainer["x64"] = False
    for name, value in plainer.items():
        if getattr(program, name) != value:
            yield _changed(program, name, value)
    for steps in {1, 2, program.steps // 2, program.steps - 1}:
        if 0 < steps < program.steps:
            yield replace(program, steps=steps)
    for lanes in _smaller_sizes(program.lanes):
        yield replace(program, lanes=lanes)
    for name in ("carries", "streams"):
        for slots in _plainer_slots(getattr(program, name)):
            yield _changed(program, name, slots)
    if program.table:
        for sizes in _smaller_sizes(program.table.shape):
            yield replace(program, table=replace(program.table, shape=sizes))


def _changed(program: Program, name: str, value: Any) -> Program:
    return replace(program, **{name: value})


def _without_one(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for i in reversed(range(len(items))):
        yield items[:i] + items[i + 1 :]


def _smaller_bodies(body: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    half = len(body) // 2
    if half > 1:
        yield body[:half]
        yield body[half:]
    yield from _without_one(body)
    for i, step in enumerate(body):
        if step.body:
            yield body[:i] + step.body + body[i + 1 :]
        for inner in _smaller_bodies(step.body):
            yield (*body[:i], replace(step, body=inner), *body[i + 1 :])


def _smaller_sizes(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(sizes) > 1:
        yield from _without_one(sizes)
    for i, size in enumerate(sizes):
        for new in sorted({1, 2, size // 2, size - 1}):
            if 0 < new < size:
                yield (*sizes[:i], new, *sizes[i + 1 :])


def _plainer_slots(slots: tuple[Slot, ...]) -> Iterator[tuple[Slot, ...]]:
    for i, slot in enumerate(slots):
        changes: list[Slot] = []
        if slot.shape:
            changes += [replace(slot, shape=shape) for shape in _without_one(slot.shape)]
            changes += [replace(slot, shape=shape) for shape in _smaller_sizes(slot.shape)]
        if slot.place:
            changes.append(replace(slot, place=0))
        if not slot.has_lanes:
            changes.append(replace(slot, has_lanes=True))
        for change in changes:
            yield (*slots[:i], change, *slots[i + 1 :])
