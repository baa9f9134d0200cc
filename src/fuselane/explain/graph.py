"""The graph that faces draw: instructions with what only passes values on left out.

A tuple is packed, carried and unpacked without any work, and a bitcast is none either. Edges lead
from what computes a value to what reads it, past these; each carries the boundaries it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from fuselane.explain.model import InstructionModel, ModuleModel

_PASSING_ON: Final = frozenset({"get-tuple-element", "bitcast", "opt-barrier"})
_BOXES: Final = frozenset({"fusion", "while", "conditional", "call", "async-start"})
_MAX_DEPTH: Final = 10_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value on its way.

    Attributes:
        producer: Name of the instruction that computes it.
        consumer: Name of the instruction that reads it.
        shape: As HLO writes it.
        boundaries: Indices into the module's boundaries; none for an edge inside a kernel.
    """

    producer: str
    consumer: str
    shape: str
    boundaries: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What is drawn of one module.

    Attributes:
        instructions: Those drawn, in the model's order.
        edges: Between them; those of boundaries may cross from one computation into another.
        caller: By computation, the name of the instruction whose box it is drawn in; computations
            that are missing are drawn at the top.
    """

    instructions: tuple[InstructionModel, ...]
    edges: tuple[Edge, ...]
    caller: dict[str, str]


def make_graph(module: ModuleModel) -> Graph:
    """Returns what is drawn of a module."""
    everything = {instruction.name: instruction for instruction in module.instructions}
    used = {operand for x in module.instructions for operand in x.operands}
    ended = {name for b in module.boundaries for name in (b.producer, b.consumer)}
    caller, applied = _computations(module)
    drawn = {
        x.name: x
        for x in module.instructions
        if x.computation not in applied and not _is_passed_by(x, used, ended)
    }
    ends = _Ends(everything, drawn)
    edges: dict[tuple[str, str], Edge] = {}
    for consumer in drawn.values():
        for operand in consumer.operands:
            shape = everything[operand].shape if operand in everything else ""
            for producer in ends.sources(operand):
                edge = Edge(producer=producer, consumer=consumer.name, shape=shape)
                edges.setdefault((producer, consumer.name), edge)
    for index, boundary in enumerate(module.boundaries):
        producers, consumers = ends.sources(boundary.producer), ends.sources(boundary.consumer)
        is_own = (
            boundary.producer == boundary.consumer
        )  # what a kernel leaves for the next iteration
        for key in ((p, c) for p in producers for c in consumers if p != c or is_own):
            old = edges.get(key)
            edges[key] = Edge(
                producer=key[0],
                consumer=key[1],
                shape=old.shape if old else boundary.shape,
                boundaries=(*(old.boundaries if old else ()), index),
            )
    return Graph(
        instructions=tuple(drawn.values()),
        edges=tuple(edges.values()),
        caller=_without_cycles(caller, drawn),
    )


def _without_cycles(
    caller: Mapping[str, str], drawn: Mapping[str, InstructionModel]
) -> dict[str, str]:
    """Returns the callers that are drawn and, at last, not within what they call.

    XLA knows no recursion; a file that does must not make a face run for ever.
    """
    kept: dict[str, str] = {}
    for computation, name in caller.items():
        around = drawn[name].computation if name in drawn else computation
        while around != computation and around in kept:
            around = drawn[kept[around]].computation
        if around != computation:
            kept[computation] = name
    return kept


def _computations(module: ModuleModel) -> tuple[dict[str, str], set[str]]:
    """Returns which box each computation is drawn in, and those that are not drawn at all."""
    caller: dict[str, str] = {}
    applied: set[str] = set()
    for instruction in module.instructions:
        for called in instruction.calls:
            if instruction.opcode in _BOXES:
                caller.setdefault(called, instruction.name)
            else:
                applied.add(called)
    return caller, applied - caller.keys()


def _is_passed_by(instruction: InstructionModel, used: set[str], ended: set[str]) -> bool:
    """Whether an instruction is not drawn; single numbers are where a boundary ends at them."""
    opcode = instruction.opcode
    if opcode == "constant":
        return "[]" in instruction.shape and instruction.name not in ended
    return opcode in _PASSING_ON or (opcode == "tuple" and instruction.name in used)


@final
class _Ends:
    """Finds what computes a value, past what only passes it on."""

    def __init__(
        self, everything: dict[str, InstructionModel], drawn: dict[str, InstructionModel]
    ) -> None:
        self._everything = everything
        self._drawn = drawn
        self._known: dict[str, tuple[str, ...]] = {}

    def sources(self, name: str) -> tuple[str, ...]:
        """Returns the drawn instructions behind a name, in order, each once."""
        if name not in self._known:
            self._known[name] = tuple(dict.fromkeys(self._walk(name)))
        return self._known[name]

    def _walk(self, name: str) -> list[str]:
        found: list[str] = []
        stack, seen = [name], set[str]()
        while stack and len(seen) < _MAX_DEPTH:
            current = stack.pop()
            if current in self._drawn:
                found.append(current)
            elif current in self._everything and current not in seen:
                seen.add(current)
                stack += reversed(self._everything[current].operands)
        return found
