"""The pass timeline: what each pass made of the module, and what became of an instruction.

Stages are read from their messages, without building a module of each: there are dozens of them,
and most instructions are in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.explain.launches import CONTROL_OPCODES, UNLAUNCHED_OPCODES
from fuselane.explain.model import ModuleModel, StageModel
from fuselane.explain.strategy import answers_about
from fuselane.hlo.proto import HloModuleProto, Message
from fuselane.hlo.shape import Shape
from fuselane.xla.captured import CapturedStage

_WALKED: Final = CONTROL_OPCODES - {"async-start"}


def describe_stages(stages: Sequence[CapturedStage]) -> tuple[StageModel, ...]:
    """Returns the stages of a module, oldest first; those that changed nothing are left out."""
    described: list[StageModel] = []
    before: dict[str, str] = {}
    sizes: dict[bytes, int] = {}
    data = b""
    for stage in stages:
        if stage.data == data:
            continue
        data = stage.data
        proto = HloModuleProto.FromString(data)
        now = {i.name: i.opcode for c in proto.computations for i in c.instructions}
        described.append(_describe(stage, proto, now, before, sizes))
        before = now
    return tuple(described)


def _describe(
    stage: CapturedStage,
    proto: Message,
    now: dict[str, str],
    before: dict[str, str],
    sizes: dict[bytes, int],
) -> StageModel:
    """Returns a stage.

    Args:
        stage: Its names.
        proto: Its module.
        now: Opcodes of all instructions of it, by name.
        before: The same of the stage before.
        sizes: Bytes of shapes by their serialized messages; gets those that are new.
    """
    opcodes = Counter(now.values())
    return StageModel(
        pipeline=stage.pipeline,
        name=stage.name,
        num_instructions=len(now),
        num_fusions=opcodes["fusion"],
        opcodes=dict(opcodes.most_common()),
        bytes_moved=_count_bytes(proto, sizes),
        added={n: o for n, o in now.items() if before.get(n) != o},
        removed={n: o for n, o in before.items() if now.get(n) != o},
    )


def _count_bytes(proto: Message, known: dict[bytes, int]) -> int:
    """Returns the bytes that operands and results of all kernels take together."""
    by_id = {computation.id: computation for computation in proto.computations}
    stack, seen, total = [proto.entry_computation_id], {proto.entry_computation_id}, 0
    while stack:
        sizes: dict[int, int] = {}
        for instruction in by_id[stack.pop()].instructions:
            opcode = instruction.opcode
            shape = instruction.shape.SerializeToString()
            size = known.get(shape)
            if size is None:
                size = known[shape] = Shape.from_proto(instruction.shape).byte_size
            sizes[instruction.id] = size
            if opcode in _WALKED:
                fresh = [i for i in instruction.called_computation_ids if i not in seen]
                seen.update(fresh)
                stack.extend(i for i in fresh if i in by_id)
            elif opcode not in UNLAUNCHED_OPCODES:
                total += size + sum(sizes.get(i, 0) for i in instruction.operand_ids)
    return total


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a pass did to instructions.

    Attributes:
        stage: Position in `ModuleModel.stages`.
        pipeline: XLA's pass pipeline.
        name: The pass, or "" for the module as it came.
        added: Names of instructions of the opcode that came, or of the one asked for.
        removed: Names of those that went.
        count: How many instructions of the opcode there are afterwards.
    """

    stage: int
    pipeline: str
    name: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    count: int


def trace(module: ModuleModel, wanted: str) -> tuple[Event, ...]:
    """Returns what became of an instruction, or of all of an opcode: "where did my dot go?".

    Args:
        module: A module with its stages.
        wanted: Name of an instruction at any stage, or an opcode such as `dot`.
    Returns:
        The stages at which one came or went, oldest first; empty if there never was one.
    """
    is_opcode = any(wanted in stage.opcodes for stage in module.stages)
    events = []
    present: set[str] = set()
    for number, stage in enumerate(module.stages):
        added = tuple(_matching(stage.added.items(), wanted, is_opcode))
        removed = tuple(_matching(stage.removed.items(), wanted, is_opcode))
        present = (present - set(removed)) | set(added)
        count = stage.opcodes.get(wanted, 0) if is_opcode else len(present)
        if added or removed:
            events.append(
                Event(
                    stage=number,
                    pipeline=stage.pipeline,
                    name=stage.name,
                    added=added,
                    removed=removed,
                    count=count,
                )
            )
    return tuple(events)


_MAX_NAMES: Final = 4


def describe_trace(module: ModuleModel, wanted: str) -> Iterator[str]:
    """Yields the lines that tell what `trace` found in a module, and a fusion strategy decided."""
    events = trace(module, wanted)
    yield f"{module.name} on {module.target}: `{wanted}`, {len(events)} passes"
    for event in events:
        passed = " / ".join(filter(None, (event.pipeline, event.name))) or "as it came"
        moves = [
            (sign, names) for sign, names in (("+", event.added), ("-", event.removed)) if names
        ]
        told = "; ".join(f"{sign}{len(names)} {_list_names(names)}" for sign, names in moves)
        yield f"  {event.stage:3}  {passed}: {told}; {event.count} now"
    answers = list(answers_about(module, wanted))
    yield from answers
    if not events and not answers:
        yield "  There never was one."


def _list_names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _matching(items: Iterable[tuple[str, str]], wanted: str, is_opcode: bool) -> Iterator[str]:
    for name, opcode in items:
        if wanted == (opcode if is_opcode else name):
            yield name
