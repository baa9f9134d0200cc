"""Which elements of a loop's tuple are arrays that can be updated in place.

An array that the body only reads by `dynamic-slice` or `gather` and only changes by a chain of
`dynamic-update-slice`s or `scatter`s, possibly inside nested loops, need not be carried through
registers: it lives in the output buffer, and each update stores a part of it (a *stream*).

    %a = get-tuple-element(%p), index=1                       version 0
    %x = dynamic-slice(%a, %i, %zero)                         reads version 0
    %b = dynamic-update-slice(%a, %y, %j, %zero)              makes version 1; must come after %x
    ROOT tuple(.., %b, ..)                                    version 1 is what is carried on

In place there is one version at a time, so whatever reads a version has to come before the update
that ends it. Code generation puts it there; where the reader needs the update's result, the array
is carried as state or, if it is large, the loop is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from fuselane.analysis.cost import residual_elements
from fuselane.analysis.refusal import refuse
from fuselane.analysis.while_loops import compute_trip_count, is_invariant, match_affine
from fuselane.decisions import Reason
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

MAX_STATE_ELEMENTS: Final = 64
"""An array that is both read and written is kept as state up to this many elements per lane."""

MAX_ALL_STATE_ELEMENTS: Final = 128
"""The same for all such arrays together, small ones first."""

MAX_INDEXED_STATE_ELEMENTS: Final = 16
"""The same for an array that some `scatter` changes, which has to select among all its elements."""

MAX_COPIED_ELEMENTS: Final = 4096
"""An array needed in an older state is carried as state up to this size, else refused."""


@final
@dataclass(slots=True)
class Stream:
    """An array that one loop, with the loops nested in it, updates in place.

    Attributes:
        elements: The loops that carry it, outermost first, with its tuple index in each.
        versions: All instructions that stand for it: `get-tuple-element`s, `dynamic-update-slice`s
            and `scatter`s.
        readers: What reads it: `dynamic-slice`s, `gather`s, conditionals, and `while`s that do not
            change it.
        hazard: A reader that needs a version some update has already ended, or None.
    """

    elements: list[tuple[HloInstruction, int]] = field(default_factory=list)
    versions: list[HloInstruction] = field(default_factory=list)
    readers: list[HloInstruction] = field(default_factory=list)
    hazard: HloInstruction | None = None

    @property
    def is_scattered(self) -> bool:
        """Whether some of its updates read what they change, element by element."""
        return any(version.opcode == "scatter" for version in self.versions)


_READERS: Final = frozenset({"dynamic-slice", "gather"})


def find_streams(
    loop: HloInstruction,
    lane_dimensions: Mapping[HloInstruction, int | None],
    *,
    has_lanes: bool = True,
) -> list[Stream]:
    """Returns the streams of an outermost loop.

    Args:
        loop: A `while` in normal form.
        lane_dimensions: Lane dimension of every value of its body.
        has_lanes: Whether several blocks of lanes run at different times: then what one of them
            writes for all must not be read by others.
    Raises:
        UnsupportedError: STREAM_HAZARD if a large array is needed in a state that is already
            overwritten.
    """
    streams = []
    kept = 0
    traced = (
        (residual_elements(stream.versions[0], lane_dimensions[stream.versions[0]]), stream)
        for stream in _trace_all(loop)
    )
    for elements, stream in sorted(traced, key=operator.itemgetter(0)):
        array = stream.versions[0]
        if stream.hazard is not None and elements > MAX_COPIED_ELEMENTS:
            detail = f"`{stream.hazard.name}` reads it"
            raise refuse(Reason.STREAM_HAZARD, stream.hazard, detail=detail)
        is_shared = has_lanes and lane_dimensions[array] is None
        limit = MAX_INDEXED_STATE_ELEMENTS if stream.is_scattered else MAX_STATE_ELEMENTS
        is_read = stream.readers or stream.is_scattered
        is_small = elements <= limit and kept + elements <= MAX_ALL_STATE_ELEMENTS
        if is_read and (is_shared or is_small or stream.hazard):
            kept += elements
        else:
            streams.append(stream)
    return streams


def _trace_all(loop: HloInstruction) -> Iterator[Stream]:
    """Yields what may be updated in place."""
    for index, shape in enumerate(loop.shape.tuple_shapes):
        stream = Stream()
        if shape.dimensions and not is_invariant(loop, index) and _trace(loop, index, stream):
            yield stream


def is_fully_overwritten(loop: HloInstruction, stream: Stream) -> bool:
    """Whether running the loop writes every element of a stream before anything reads it.

    Matches one `dynamic-update-slice` per iteration, at an index that moves by the size of the
    slice, forward or backward, over the whole of one dimension.
    """
    trip_count = compute_trip_count(loop)
    updates = [v for v in stream.versions if v.opcode == "dynamic-update-slice"]
    if not trip_count or len(updates) != 1 or len(stream.elements) != 1:
        return False
    if stream.readers or stream.is_scattered:
        return False
    update = updates[0]
    sizes = update.shape.dimensions
    slice_sizes = update.operands[1].shape.dimensions
    partial = [d for d, size in enumerate(sizes) if slice_sizes[d] != size]
    if not partial:
        return True
    if len(partial) != 1:
        return False
    dimension = partial[0]
    step = slice_sizes[dimension]
    index = match_affine(update.operands[2 + dimension], loop, trip_count)
    if index is None or (abs(index.slope) != step and trip_count > 1):
        return False
    first = min(index.at(0), index.at(trip_count - 1))
    return first == 0 and step * trip_count == sizes[dimension]


def _trace(loop: HloInstruction, index: int, stream: Stream) -> bool:
    """Follows an array through a loop's body; returns whether it may be updated in place.

    What is found is added to `stream`.
    """
    body = loop.body
    version = _element(body.parameters[0], index)
    if version is None or not _only_reads(loop.condition, index, stream):
        return False
    stream.elements.append((loop, index))
    while True:
        stream.versions.append(version)
        uses = _trace_uses(version, body, index, stream)
        if uses is None or len(uses.updates) + uses.is_carried != 1:
            return False
        if uses.is_carried:
            return True
        update, result = uses.updates[0]
        late = (reader for reader in uses.readers if _depends_on(reader, update))
        stream.hazard = stream.hazard or next(late, None)
        version = result


@dataclass(slots=True)
class _Uses:
    readers: list[HloInstruction] = field(default_factory=list)
    updates: list[tuple[HloInstruction, HloInstruction]] = field(default_factory=list)
    is_carried: bool = False


def _trace_uses(
    version: HloInstruction, body: HloComputation, index: int, stream: Stream
) -> _Uses | None:
    """Sorts the uses of one version; None if one of them needs the array as a value."""
    uses = _Uses()
    for user in version.users:
        for position, operand in enumerate(user.operands):
            if operand is version and not _add_use(uses, user, position, body, index, stream):
                return None
    stream.readers.extend(uses.readers)
    return uses


def _add_use(
    uses: _Uses,
    user: HloInstruction,
    position: int,
    body: HloComputation,
    index: int,
    stream: Stream,
) -> bool:
    if position == 0 and user.opcode in _READERS:
        uses.readers.append(user)
        return True
    is_scatter = user.opcode == "scatter" and user.shape.is_array
    if position == 0 and (user.opcode == "dynamic-update-slice" or is_scatter):
        uses.updates.append((user, user))
        return True
    if user is body.root:
        uses.is_carried = True
        return position == index
    if user.opcode != "tuple" or len(user.users) != 1:
        return False
    nested = user.users[0]
    if nested.opcode == "conditional":
        uses.readers.append(nested)
        return _reads_in_branches(nested, user, position)
    if nested.opcode != "while":
        return False
    if is_invariant(nested, position):
        uses.readers.append(nested)
        return _reads_in_loop(nested, position)
    result = _element(nested, position)
    if result is None or not _trace(nested, position, stream):
        return False
    uses.updates.append((nested, result))
    return True


def _reads_in_loop(loop: HloInstruction, index: int) -> bool:
    """Whether a loop that does not change an array reads it by slices only."""
    inner = Stream()
    value = _element(loop.body.parameters[0], index)
    if value is not None:
        for user in value.users:
            if not _is_read(user, value) and user is not loop.body.root:
                return False
    return _only_reads(loop.condition, index, inner)


def _reads_in_branches(conditional: HloInstruction, argument: HloInstruction, index: int) -> bool:
    """Whether the branches that are given an array read it by slices only."""
    branches = zip(conditional.called_computations, conditional.operands[1:], strict=True)
    given = (branch for branch, operand in branches if operand is argument)
    values = (_element(branch.parameters[0], index) for branch in given)
    return all(value is None or all(_is_read(u, value) for u in value.users) for value in values)


def _only_reads(condition: HloComputation, index: int, stream: Stream) -> bool:
    value = _element(condition.parameters[0], index)
    if value is None:
        return True
    stream.readers.extend(value.users)
    return all(_is_read(user, value) for user in value.users)


def _is_read(user: HloInstruction, value: HloInstruction) -> bool:
    """Whether an instruction only reads parts of an array."""
    return user.opcode in _READERS and value not in user.operands[1:] and user.operands[0] is value


def _depends_on(instruction: HloInstruction, producer: HloInstruction) -> bool:
    stack = [instruction]
    seen: set[HloInstruction] = set()
    while stack:
        top = stack.pop()
        if top is producer:
            return True
        if top not in seen:
            seen.add(top)
            stack.extend(top.operands)
    return False


def _element(tuple_instruction: HloInstruction, index: int) -> HloInstruction | None:
    """Returns the `get-tuple-element` of one index, or None if there is none."""
    for user in tuple_instruction.users:
        if user.opcode == "get-tuple-element" and user.tuple_index == index:
            return user
    return None
