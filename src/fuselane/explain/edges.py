"""Where values cross from one kernel to another: every edge of the dataflow that stays unfused.

Tuples, bitcasts and calls are looked through, and so are elements of a loop's state that its body
passes on unchanged: what reads them reads what was there before the loop.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from fuselane.analysis.hlo_cost import operand_bytes
from fuselane.explain.launches import Launches, is_kernel
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape

_SEEN_THROUGH: Final = frozenset(
    {
        "add-dependency",
        "all-gather-done",
        "all-reduce-done",
        "async-done",
        "async-update",
        "bitcast",
        "collective-permute-done",
        "copy-done",
        "domain",
        "opt-barrier",
    }
)
_MAX_EDGES: Final = 200_000

Path = tuple[int, ...]
"""Which element of a tuple, of which element of that, ..."""


@final
class EdgeKind(enum.Enum):
    """How a value gets from its producer to its consumer."""

    DATAFLOW = "from kernel to kernel in one iteration or run"
    ENTRY = "from an argument of the program"
    CONSTANT = "from a constant"
    EXIT = "to a result of the program"
    INITIAL = "into a loop, as the initial value of its state"
    CARRIED = "from one iteration of a loop to the next"
    FINAL = "out of a loop, as the final value of its state"
    INVARIANT = "from before a loop to each of its iterations"
    PREDICATE = "to what decides whether a loop goes on, or which branch is taken"
    BRANCH = "into a branch or out of one"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value that one kernel leaves in memory for another.

    Attributes:
        producer: A kernel, a parameter of the entry, a constant, a `while` or a `conditional`.
        consumer: A kernel, a `while`, a `conditional`, or the root of the entry for EXIT.
        value: The operand of the consumer that is, or holds, the value.
        shape: Of the value.
        kind: How it gets there.
        num_bytes: What the consumer reads of it per launch.
        count: How often the consumer is launched or entered per run, or None if unknown.
        loop: The innermost loop of the consumer, or None.
        carrier: The loop whose state holds the value on its way, or that it decides about.
        element: Which element of that state it is, or None.
    """

    producer: HloInstruction
    consumer: HloInstruction
    value: HloInstruction
    shape: Shape
    kind: EdgeKind
    num_bytes: int
    count: int | None
    loop: HloInstruction | None
    carrier: HloInstruction | None = None
    element: int | None = None


@final
@dataclass(frozen=True, slots=True)
class _Source:
    producer: HloInstruction
    path: Path
    shape: Shape
    kind: EdgeKind
    carrier: HloInstruction | None = None
    element: int | None = None


def find_edges(module: HloModule, launches: Launches) -> list[Edge]:
    """Returns all edges of a module, in the order of its schedule; each value once per consumer."""
    return list(_Finder(module, launches).edges())[:_MAX_EDGES]


@final
class _Finder:
    def __init__(self, module: HloModule, launches: Launches) -> None:
        self._module = module
        self._launches = launches
        self._known: dict[tuple[HloInstruction, Path], tuple[_Source, ...]] = {}
        self._running: set[tuple[HloInstruction, Path]] = set()

    def edges(self) -> Iterator[Edge]:
        for launch in self._launches.kernels.values():
            kernel = launch.instruction
            yield from self._into(kernel, kernel.operands, launch.count, launch.loop)
        for loop in self._launches.loops.values():
            yield from self._around(loop.instruction, loop.entries, loop.parent)
        for instruction in dict.fromkeys(self._launches.callers.values()):
            if instruction.opcode == "conditional":
                yield from self._branches(instruction)
        yield from self._exits()

    def _into(
        self,
        consumer: HloInstruction,
        operands: Iterable[HloInstruction],
        count: int | None,
        loop: HloInstruction | None,
    ) -> Iterator[Edge]:
        """Yields the edges into a kernel."""
        seen: set[tuple[HloInstruction, Path]] = set()
        for operand in dict.fromkeys(operands):
            for source in self._sources(operand, ()):
                if (source.producer, source.path) in seen:
                    continue
                seen.add((source.producer, source.path))
                read = min(source.shape.byte_size, operand_bytes(consumer, operand))
                yield _edge(source, consumer, operand, int(read), count, loop)

    def _around(
        self, loop: HloInstruction, entries: int | None, parent: HloInstruction | None
    ) -> Iterator[Edge]:
        """Yields the edges into a loop's state, and to its condition's end."""
        for path, shape in _leaves(loop.shape):
            if self._is_invariant(loop, path):
                continue
            for source in self._sources(loop.operands[0], path):
                initial = replace(
                    source, kind=EdgeKind.INITIAL, carrier=loop, element=path[0] if path else None
                )
                size = shape.byte_size
                yield _edge(initial, loop, loop.operands[0], size, entries, parent)
        check = self._launches.kernels.get(loop.condition.root)
        if check is not None and check.count != 0:
            for source in self._sources(loop.condition.root, ()):
                predicate = replace(source, kind=EdgeKind.PREDICATE, carrier=loop)
                yield _edge(predicate, loop, loop.condition.root, 1, check.count, loop)

    def _branches(self, conditional: HloInstruction) -> Iterator[Edge]:
        """Yields the edges to a conditional: what it goes by, and what its branches leave."""
        loop, count = self._place(conditional)
        for source in self._sources(conditional.operands[0], ()):
            predicate = replace(source, kind=EdgeKind.PREDICATE)
            value = conditional.operands[0]
            yield _edge(predicate, conditional, value, value.shape.byte_size, count, loop)
        for branch in conditional.called_computations:
            for path, shape in _leaves(branch.root.shape):
                for source in self._sources(branch.root, path):
                    result = replace(source, kind=EdgeKind.BRANCH)
                    size = shape.byte_size
                    yield _edge(result, conditional, branch.root, size, count, loop)

    def _exits(self) -> Iterator[Edge]:
        root = self._module.entry.root
        for path, shape in _leaves(root.shape):
            for source in self._sources(root, path):
                leaving = replace(source, kind=EdgeKind.EXIT)
                yield _edge(leaving, root, root, shape.byte_size, 1, None)

    def _place(self, instruction: HloInstruction) -> tuple[HloInstruction | None, int | None]:
        """Returns the innermost loop around an instruction, and how often that one runs it."""
        computation = instruction.computation
        while computation in self._launches.callers:
            caller = self._launches.callers[computation]
            if caller.opcode == "while":
                loop = self._launches.loops[caller]
                trips = loop.trip_count
                known = trips is not None and loop.entries is not None
                return caller, (loop.entries or 0) * (trips or 0) if known else None
            computation = caller.computation
        return None, 1

    def _sources(self, value: HloInstruction, path: Path) -> tuple[_Source, ...]:
        """Returns what makes a value, or an element of a tuple."""
        key = (value, path)
        if key in self._running:
            return ()  # a loop hands the value round among its own elements
        if key not in self._known:
            self._running.add(key)
            found = dict.fromkeys(self._find(value, path))
            self._running.discard(key)
            self._known[key] = tuple(found)
        return self._known[key]

    def _find(self, value: HloInstruction, path: Path) -> Iterator[_Source]:
        match value.opcode:
            case "get-tuple-element":
                yield from self._sources(value.operands[0], (value.tuple_index, *path))
            case "tuple":
                if path:
                    yield from self._sources(value.operands[path[0]], path[1:])
                else:
                    for operand in value.operands:
                        yield from self._sources(operand, ())
            case opcode if opcode in _SEEN_THROUGH:
                yield from self._sources(value.operands[0], path)
            case "parameter":
                yield from self._find_argument(value, path)
            case "constant":
                yield _source(value, path, EdgeKind.CONSTANT)
            case "while" if self._is_invariant(value, path):
                yield from self._sources(value.operands[0], path)
            case "while":
                yield replace(
                    _source(value, path, EdgeKind.FINAL),
                    carrier=value,
                    element=path[0] if path else None,
                )
            case "conditional":
                yield _source(value, path, EdgeKind.BRANCH)
            case _ if is_kernel(value):
                yield _source(value, path, EdgeKind.DATAFLOW)
            case "call" | "async-start":
                yield from self._sources(value.called_computations[0].root, path)

    def _find_argument(self, parameter: HloInstruction, path: Path) -> Iterator[_Source]:
        computation = parameter.computation
        caller = self._launches.callers.get(computation) if computation else None
        if caller is None:
            yield _source(parameter, path, EdgeKind.ENTRY)
        elif caller.opcode == "while":
            yield from self._find_state(caller, path)
        elif caller.opcode == "conditional":
            number = 1 + caller.called_computations.index(_not_none(computation))
            for source in self._sources(caller.operands[number], path):
                yield replace(source, kind=EdgeKind.BRANCH)
        else:
            yield from self._sources(caller.operands[parameter.parameter_number], path)

    def _find_state(self, loop: HloInstruction, path: Path) -> Iterator[_Source]:
        """Yields what makes an element of a loop's state for one of its iterations."""
        element = path[0] if path else None
        if path and self._is_invariant(loop, path):
            for source in self._sources(loop.operands[0], path):
                kind = EdgeKind.INVARIANT if source.kind is EdgeKind.DATAFLOW else source.kind
                carrier = source.carrier or loop
                yield replace(source, kind=kind, carrier=carrier, element=source.element or element)
            return
        sources = self._sources(loop.body.root, path) or self._sources(loop.operands[0], path)
        for source in sources:
            yield replace(source, kind=EdgeKind.CARRIED, carrier=loop, element=element)

    def _is_invariant(self, loop: HloInstruction, path: Path) -> bool:
        """Whether the body passes an element of the state on as it is."""
        value, rest = loop.body.root, path
        while True:
            if value.opcode == "tuple" and rest:
                value, rest = value.operands[rest[0]], rest[1:]
            elif value.opcode == "get-tuple-element":
                value, rest = value.operands[0], (value.tuple_index, *rest)
            else:
                return value.opcode == "parameter" and rest == path


def _edge(
    source: _Source,
    consumer: HloInstruction,
    value: HloInstruction,
    num_bytes: int,
    count: int | None,
    loop: HloInstruction | None,
) -> Edge:
    return Edge(
        producer=source.producer,
        consumer=consumer,
        value=value,
        shape=source.shape,
        kind=source.kind,
        num_bytes=num_bytes,
        count=count,
        loop=loop,
        carrier=source.carrier,
        element=source.element,
    )


def _source(producer: HloInstruction, path: Path, kind: EdgeKind) -> _Source:
    shape = producer.shape
    for index in path:
        shape = shape.tuple_shapes[index]
    return _Source(producer, path, shape, kind)


def _leaves(shape: Shape, path: Path = ()) -> Iterator[tuple[Path, Shape]]:
    """Yields the arrays of a shape with their places in it."""
    if shape.is_tuple:
        for number, element in enumerate(shape.tuple_shapes):
            yield from _leaves(element, (*path, number))
    elif shape.is_array:
        yield path, shape


def _not_none(computation: HloComputation | None) -> HloComputation:
    assert computation is not None
    return computation
