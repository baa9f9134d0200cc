"""Lanes that see each other: what a step needs of other lanes is shared first, then read by all.

    %a = f32[64,64] broadcast(%x), dimensions={0}    %x: f32[64], carried
    %b = f32[64,64] broadcast(%x), dimensions={1}
    %d = f32[64,64] f(%a, %b)                        pairs all with all
    %s = f32[64] reduce(%d, 0), dimensions={1}
->  %c = f32[64] copy(%x)                            known to all lanes from here on
    %b = f32[64,64] broadcast(%c), dimensions={1}    the lanes lie along dimension 0 of %d

    %r = f32[64] concatenate(slice(%x), slice(%x))   moves data along the lanes
->  %c = f32[64] copy(%x)
    %r = f32[64] concatenate(slice(%c), slice(%c))   the same for all lanes
    %o = f32[64] gather(%r, iota)                    each lane's own element of it

A `copy` is what lanes meet in, as in a reduction over all of them: see
`fuselane.codegen.in_step`. In an instruction that maps several dimensions of its result onto the
lanes, they lie along the one its users want; it is computed twice if they want both. What mixes
data along the lanes in another way than a reduction is computed once for all of them.

Does not handle: loops in the loop that mix lanes other than as a whole, conditions that do.
Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.cost import OPCODE_COST
from fuselane.analysis.dimension_classes import DimensionClasses, Nodes, is_leaf
from fuselane.analysis.dimension_rules import assign_class, find_classes
from fuselane.analysis.meeting_lanes import LaneSeed
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.analysis.parallel_classes import is_meeting
from fuselane.analysis.while_loops import is_invariant, loop_of
from fuselane.hlo.computation import HloComputation, instructions_with_branches
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape

MAX_SHARED: Final = 65_536
"""Elements that lanes share in a step, all together: they are stored, and read from the cache."""

MIN_LANES: Final = 4
"""Fewer lanes are not worth it."""

MAX_TRIED: Final = 3
"""Classes of dimensions with the most work that are tried one after the other."""

_MINOR: Final = 1.1
"""How much more a class counts whose elements are neighbours in memory."""

_OWNERS: Final = frozenset({"while", "conditional"})
_NO_ARRAYS: Final = _OWNERS | {"parameter", "tuple"}
_NOT_COMPUTED: Final = _OWNERS | {"get-tuple-element"}

Lane = int | None
_OperandLanes = Sequence[list[Lane] | None]


def share_lanes(region: HloComputation) -> LaneSeed | None:
    """Makes the class of dimensions with the most work in a loop its lanes, in place.

    Returns:
        The lanes, or None if that can't be; the region is as it was then.
    """
    loop = loop_of(region)
    sizes = (size for i in _all_in(loop.body) if i.shape.is_array for size in i.shape.dimensions)
    if all(size < MIN_LANES for size in sizes):
        return None
    classes = find_classes(region)
    work = _find_work(classes, loop)
    mappings: dict[HloInstruction, _OperandLanes] = {}
    for lane_class in sorted(work, key=lambda c: work[c], reverse=True)[:MAX_TRIED]:
        sharing = _Sharing(classes, loop, lane_class, mappings)
        seeds = sharing.run() if sharing.is_possible() else []
        if seeds:
            return _settle(region, loop, seeds)
    return None


def _settle(region: HloComputation, loop: HloInstruction, seeds: Sequence[LaneSeed]) -> LaneSeed:
    """Returns the lanes with the most work, and drops copies of what has others or none: nothing
    but copies may have made them one."""
    classes = find_classes(region)
    work = _find_work(classes, loop)

    def lane_class(seed: LaneSeed) -> int:
        return classes.find(classes.nodes[seed.value][seed.dimension])

    found = max(seeds, key=lambda seed: work.get(lane_class(seed), (0.0, 0)))
    for copy in [i for i in loop.body.instructions if i.opcode == "copy"]:
        if not classes.places(copy.operands[0], lane_class(found)):
            copy.replace_all_uses_with(copy.operands[0])
    loop.body.remove_dead_instructions()
    return found


def _find_work(classes: DimensionClasses, loop: HloInstruction) -> dict[int, tuple[float, int]]:
    """Returns the classes in a loop's body -> (operations of what has them, size)."""
    work: dict[int, float] = {}
    sizes: dict[int, int] = {}
    minor: set[int] = set()
    for instruction in _all_in(loop.body):
        if not instruction.shape.is_array or is_leaf(instruction):
            continue
        operations = OPCODE_COST[instruction.opcode] * instruction.shape.num_elements
        nodes = zip(classes.nodes[instruction], instruction.shape.dimensions, strict=True)
        for lane_class, size in {classes.find(node): size for node, size in nodes}.items():
            if size >= MIN_LANES:
                work[lane_class] = work.get(lane_class, 0.0) + operations
                sizes[lane_class] = size
        minor.update(classes.find(node) for node in classes.nodes[instruction][-1:])
    return {c: (work[c] * (_MINOR if c in minor else 1.0), sizes[c]) for c in work}


def _all_in(computation: HloComputation) -> Iterator[HloInstruction]:
    """Yields the instructions of a computation, of its branches, and of all loops in it."""
    for instruction in instructions_with_branches(computation):
        yield instruction
        if instruction.opcode == "while":
            for called in instruction.called_computations:
                yield from _all_in(called)


def _all_behind(root: HloInstruction) -> set[HloInstruction]:
    """Returns an instruction and all that it is computed from."""
    found = {root}
    stack = [root]
    while stack:
        new = [operand for operand in stack.pop().operands if operand not in found]
        found.update(new)
        stack += new
    return found


@final
class _Sharing:
    """One loop whose body is rewritten for one class of lanes.

    First, from the results up, what is wanted of each value: its lanes along some dimension, or
    None for all of it in each lane. Then, from the parameters down, all that is wanted.
    """

    def __init__(
        self,
        classes: DimensionClasses,
        loop: HloInstruction,
        lane_class: int,
        mappings: dict[HloInstruction, _OperandLanes],
    ) -> None:
        self._classes = classes
        self._loop = loop
        self._class = lane_class
        self._builder = ComputationBuilder.extending(loop.body)
        self._element_lanes: dict[int, int] = {}
        self._mappings = mappings
        self._made: dict[tuple[HloInstruction, Lane], HloInstruction] = {}
        self._mixing = {
            owner
            for owner in loop.body.instructions
            if owner.opcode in _OWNERS and self._is_mixed_in(owner)
        }

    def is_possible(self) -> bool:
        """Whether nothing but the body, and reductions, mix the lanes or pair them."""
        condition = self._loop.condition
        others = (by for by in self._classes.marks(self._class) if by.computation is condition)
        if not all(is_meeting(by, self._loop) for by in others):
            return False
        return all(len(self._places(i)) < 2 for i in condition.instructions)

    def run(self) -> list[LaneSeed]:
        """Rewrites the body, if its lanes see each other; returns where they are in its values."""
        body = self._loop.body
        wanted = self._find_wanted()
        if wanted is None:
            return []
        for value in list(body.instructions):
            if value is not body.root:
                self._make(value, wanted[value])
        lanes = (self._element_lane(index, None) for index in range(len(body.root.operands)))
        roots = [
            self._made[_key(root, lane)]
            for root, lane in zip(body.root.operands, lanes, strict=True)
        ]
        root = self._builder.make_tuple(roots)
        made = _all_behind(root)
        seeds = [
            LaneSeed(value=value, dimension=lane)
            for (_, lane), value in self._made.items()
            if lane is not None and value in made
        ]
        if seeds:
            body.root = root
        body.remove_dead_instructions()
        body.sort()
        return seeds

    # Where the lanes of a value are, or could be.

    def _places(self, value: HloInstruction) -> tuple[int, ...]:
        """Returns the dimensions of a value, or of its first element, that are of the class."""
        elements = self._classes.elements.get(value)
        return (
            self._places_among(elements[0])
            if elements
            else self._classes.places(value, self._class)
        )

    def _places_among(self, nodes: Nodes) -> tuple[int, ...]:
        return tuple(d for d, n in enumerate(nodes) if self._classes.find(n) == self._class)

    def _element_lane(self, index: int, wanted: Lane) -> Lane:
        """Returns where the lanes of a loop element are: where they are first asked for."""
        if index not in self._element_lanes:
            places = self._places_among(self._classes.elements[self._loop][index])
            if not places:
                return None
            lane = places[0] if wanted is None or wanted not in places else wanted
            self._element_lanes[index] = lane
        return self._element_lanes[index]

    def _possible(self, value: HloInstruction, wanted: Lane) -> tuple[int, ...]:
        """Returns the dimensions along which the lanes of a value may lie."""
        if value.opcode in _NO_ARRAYS or is_leaf(value):
            return ()
        if value.opcode == "get-tuple-element":
            owner = value.operands[0]
            if owner.opcode == "parameter":
                lane = self._element_lane(value.tuple_index, wanted)
                return () if lane is None else (lane,)
            if owner.opcode in _OWNERS:
                return () if owner in self._mixing else self._places(value)
            return self._possible(owner, wanted)[:1]
        operand_lanes = self._operand_lanes(value)
        return tuple(d for d in self._places(value) if operand_lanes[d] is not None)

    def _operand_lanes(self, value: HloInstruction) -> _OperandLanes:
        if value not in self._mappings:
            self._mappings[value] = _find_operand_lanes(value)
        return self._mappings[value]

    def _is_mixed_in(self, owner: HloInstruction) -> bool:
        """Whether a loop or a conditional in the body mixes the lanes, or pairs them."""
        inner = {i for called in owner.called_computations for i in _all_in(called)}
        if any(by in inner for by in self._classes.marks(self._class)):
            return True
        elements = self._classes.elements.get(owner, [])
        return any(len(self._places_among(nodes)) > 1 for nodes in elements) or any(
            len(self._classes.places(i, self._class)) > 1 for i in inner
        )

    # What is wanted.

    def _find_wanted(self) -> dict[HloInstruction, _Wanted] | None:
        """Returns how each value is wanted; None if lanes share nothing, or too much."""
        body = self._loop.body
        num_shared = 0
        wanted = {value: _Wanted({}, {}) for value in body.instructions}

        def want(value: HloInstruction, lane: Lane) -> None:
            value, lane = _key(value, lane)
            wanted[value].lanes[lane] = None

        unchanged = set[HloInstruction]()
        for index, root in enumerate(body.root.operands):
            if is_invariant(self._loop, index):
                unchanged.add(root)
            else:
                want(root, self._element_lane(index, None))
        for value in reversed(body.instructions):
            of_value = wanted[value]
            if value in unchanged:  # whose lanes lie where its users want them
                first = next(iter(of_value.lanes), None)
                want(value, self._element_lane(value.tuple_index, first))
            for lane in self._own_lanes(value, of_value.lanes):
                of_value.own[lane] = self._needs(value, lane)
                for operand, at in zip(value.operands, of_value.own[lane], strict=True):
                    want(operand, at)
            num_shared += _count_shared(value, of_value)
            if num_shared > MAX_SHARED:
                return None
        return wanted if num_shared else None

    def _own_lanes(self, value: HloInstruction, wanted: Iterable[Lane]) -> tuple[Lane, ...]:
        """Returns which of what is wanted of a value comes of its operands; the rest comes of
        that."""
        lanes = tuple(wanted)
        if not lanes:
            return ()
        possible = self._possible(value, lanes[0]) if value.shape.is_array else ()
        return tuple(lane for lane in lanes if lane in possible) or possible[:1] or (None,)

    def _needs(self, value: HloInstruction, lane: Lane) -> Sequence[Lane]:
        """Returns what an instruction needs of its operands for its lanes along a dimension."""
        if value.opcode == "tuple":
            is_shared = any(user in self._mixing for user in value.users)
            return [
                None if is_shared else next(iter(self._places_of_operand(value, index)), None)
                for index in range(len(value.operands))
            ]
        if lane is None and is_meeting(value, self._loop):
            source = value.operands[0]
            possible = self._possible(source, None)
            return [next((d for d in possible if d in value.dimensions), None), None]
        if value.opcode in _NOT_COMPUTED or is_leaf(value):
            return [None] * len(value.operands)
        if value.shape.is_tuple:
            lane = next(iter(self._possible(value, None)), None)
        lanes = None if lane is None else self._operand_lanes(value)[lane]
        return lanes or [None] * len(value.operands)

    def _places_of_operand(self, user: HloInstruction, index: int) -> tuple[int, ...]:
        return self._places_among(self._classes.operand_nodes(user, index))

    # Making it.

    def _make(self, value: HloInstruction, wanted: _Wanted) -> None:
        """Makes a value with its lanes wherever they are wanted."""
        lanes = list(wanted.own)
        for lane, needs in wanted.own.items():
            pairs = zip(value.operands, needs, strict=True)
            operands = [self._made[_key(operand, at)] for operand, at in pairs]
            is_same = all(new is old for new, old in zip(operands, value.operands, strict=True))
            if not is_same or lane != lanes[0]:
                made = self._builder.computation.add(value.clone(operands, name=value.name))
            else:
                made = value
            self._made[value, lane] = made
        for lane in wanted.lanes:
            if lane not in lanes:
                if None not in lanes and (value, None) not in self._made:
                    self._made[value, None] = self._share(self._made[value, lanes[0]])
                if lane is not None:
                    self._made[value, lane] = self._own(self._made[value, None], lane)

    def _share(self, value: HloInstruction) -> HloInstruction:
        return self._builder.emit("copy", value.shape, (value,), origin=value)

    def _own(self, value: HloInstruction, lane: int) -> HloInstruction:
        """Returns what all lanes share with each lane's part of it as its own."""
        sizes = value.shape.dimensions
        numbers = (
            ("offset_dims", tuple(d for d in range(len(sizes)) if d != lane)),
            ("collapsed_slice_dims", (lane,)),
            ("start_index_map", (lane,)),
            ("index_vector_dim", 1),
        )
        window = tuple(1 if d == lane else size for d, size in enumerate(sizes))
        indices = self._builder.iota(array_shape(PrimitiveType.S32, (sizes[lane],)), 0)
        return self._builder.emit(
            "gather",
            value.shape,
            (value, indices),
            (("gather_dimension_numbers", numbers), ("gather_slice_sizes", window)),
            origin=value,
        )


@final
@dataclass(frozen=True, slots=True)
class _Wanted:
    """How a value is wanted.

    Attributes:
        lanes: Its lanes along some dimension, or None for all of it in each lane; in the order in
            which they are asked for.
        own: Which of these come of its operands, with what each needs of them; the rest comes of
            that.
    """

    lanes: dict[Lane, None]
    own: dict[Lane, Sequence[Lane]]


def _count_shared(value: HloInstruction, wanted: _Wanted) -> int:
    """Returns how many elements of a value lanes share in a step."""
    is_shared = None not in wanted.own and wanted.lanes.keys() - wanted.own.keys()
    num_copies = len(wanted.own) if value.opcode == "copy" else 0
    return (num_copies + bool(is_shared)) * value.shape.num_elements


def _key(value: HloInstruction, lane: Lane) -> tuple[HloInstruction, Lane]:
    """Returns what tells versions of a value apart; each use of a leaf may have any lanes."""
    has_versions = value.shape.is_array and not is_leaf(value)
    return value, lane if has_versions else None


def _find_operand_lanes(instruction: HloInstruction) -> _OperandLanes:
    """Returns, for each dimension of a result, where the operands' lanes are if its own lie there.

    None for one along which the instruction mixes data. The instruction calls nothing but what
    combines two values.
    """
    if instruction.opcode in ELEMENTWISE_OPCODES:
        spread = [bool(operand.shape.dimensions) for operand in instruction.operands]
        return [[d if has else None for has in spread] for d in range(instruction.shape.rank)]
    classes = DimensionClasses()  # of this instruction alone, each operand standing for itself
    stand_ins = []
    for operand in instruction.operands:
        stand_in = HloInstruction.create("parameter", operand.shape, name=operand.name)
        classes.nodes[stand_in] = classes.fresh(operand.shape)
        stand_ins.append(stand_in)
    copy = instruction.clone(stand_ins)
    assign_class(classes, copy)
    classes.mark_repeated()
    result = classes.nodes[copy] if copy in classes.nodes else classes.elements[copy][0]
    return [
        [classes.place(classes.nodes[i], lane_class) for i in stand_ins]
        if classes.marking(lane_class) == []
        else None
        for lane_class in map(classes.find, result)
    ]
