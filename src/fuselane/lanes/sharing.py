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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.analysis.dimension_classes import DimensionClasses, Nodes, is_leaf
from fuselane.analysis.dimension_rules import assign_class, assign_classes
from fuselane.analysis.lanes import LaneSeed, is_meeting
from fuselane.analysis.leaving import find_reductions, reduced_classes
from fuselane.analysis.while_loops import is_invariant
from fuselane.hlo.computation import HloComputation, instructions_with_branches
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape

MAX_SHARED: Final = 65_536
"""Elements that lanes share in a step, all together: they are stored, and read from the cache."""

MIN_LANES: Final = 4
"""Fewer lanes are not worth it."""

_OWNERS: Final = frozenset({"while", "conditional"})

Lane = int | None


def share_lanes(region: HloComputation) -> LaneSeed | None:
    """Makes the largest class of dimensions a loop carries, or else reduces, its lanes, in place.

    Returns:
        The lanes, or None if that can't be; the region may be changed then all the same.
    """
    classes = DimensionClasses()
    assign_classes(classes, region)
    classes.mark_repeated()
    loop = next(i for i in region.instructions if i.opcode == "while")
    reduced = reduced_classes(classes, find_reductions(loop.body))
    candidates = {**reduced, **_state_classes(classes, loop)}
    for lane_class in sorted(candidates, key=lambda c: candidates[c], reverse=True):
        if candidates[lane_class][0] >= MIN_LANES:
            sharing = _Sharing(classes, loop, lane_class)
            seed = sharing.run() if sharing.is_possible() else None
            if seed is not None:
                return seed
    return None


def _state_classes(classes: DimensionClasses, loop: HloInstruction) -> dict[int, tuple[int, int]]:
    """Returns the classes of what a loop computes anew in each step, with their ranks."""
    anew = {
        classes.find(node)
        for index, nodes in enumerate(classes.elements[loop])
        if loop.body.root.operands[index].opcode != "dynamic-update-slice"
        for node in nodes
    }
    return {c: rank for c, rank in classes.carried_classes(loop).items() if c in anew}


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
    """One loop whose body is rewritten for one class of lanes."""

    def __init__(self, classes: DimensionClasses, loop: HloInstruction, lane_class: int) -> None:
        self._classes = classes
        self._loop = loop
        self._class = lane_class
        self._builder = ComputationBuilder.extending(loop.body)
        self._known: dict[tuple[HloInstruction, Lane], HloInstruction] = {}
        self._fixed: dict[int, int] = {}
        self._taken: dict[HloInstruction, Lane] = {}
        self._mappings: dict[HloInstruction, _Mapping] = {}
        self._mixing = {
            owner
            for owner in loop.body.instructions
            if owner.opcode in _OWNERS and self._is_mixed_in(owner)
        }

    def is_possible(self) -> bool:
        """Whether nothing but the body mixes the lanes, or pairs them."""
        marks = self._classes.marks(self._class)
        condition = self._loop.condition
        others = [by for by in marks if by.computation is condition]
        if any(not is_meeting(by, self._loop) for by in others):
            return False
        return all(len(self._places(i)) < 2 for i in condition.instructions)

    def run(self) -> LaneSeed | None:
        """Rewrites the body, if its lanes see each other; returns where they are."""
        body = self._loop.body
        old = body.root
        roots = [
            self._get(root, self._element_lane(index, None))
            for index, root in enumerate(old.operands)
        ]
        root = self._builder.make_tuple(roots)
        made = _all_behind(root)
        copies = [value for value in made if value.opcode == "copy"]
        seed = next(
            (
                LaneSeed(value=value, dimension=lane)
                for (_, lane), value in self._known.items()
                if lane is not None and value in made
            ),
            None,
        )
        is_worth = bool(copies) and sum(copy.shape.num_elements for copy in copies) <= MAX_SHARED
        if is_worth and seed is not None:
            body.root = root
            body.remove_dead_instructions()
            self._forget_needless()
        body.remove_dead_instructions()
        body.sort()
        return seed if is_worth else None

    def _forget_needless(self) -> None:
        """Replaces copies of what the loop never changes and no lane has for its own."""
        body = self._loop.body
        for element in body.parameters[0].users:
            if element.opcode != "get-tuple-element":
                continue
            copies = [user for user in element.users if user.opcode == "copy"]
            others = {user for user in element.users if user not in copies}
            if others <= {body.root} and is_invariant(self._loop, element.tuple_index):
                for copy in copies:
                    copy.replace_all_uses_with(element)

    # Where a value's lanes are, or could be.

    def _places(self, value: HloInstruction) -> tuple[int, ...]:
        return self._classes.places(value, self._class)

    def _element_lane(self, index: int, wanted: Lane) -> Lane:
        """Returns where the lanes of a loop element are: the first that is asked for."""
        if index not in self._fixed:
            nodes = self._classes.elements[self._loop][index]
            places = [d for d, n in enumerate(nodes) if self._classes.find(n) == self._class]
            if not places:
                return None
            self._fixed[index] = wanted if wanted in places else places[0]
        return self._fixed[index]

    def _possible(self, value: HloInstruction, wanted: Lane) -> tuple[int, ...]:
        """Returns the dimensions along which the lanes of a value may lie."""
        opcode = value.opcode
        if opcode == "get-tuple-element":
            owner = value.operands[0]
            if owner is self._loop.body.parameters[0]:
                lane = self._element_lane(value.tuple_index, wanted)
                return () if lane is None else (lane,)
            if owner in self._mixing:
                return ()
            places = self._places(value)[:1]
            if places and owner.opcode not in _OWNERS:
                lanes = self._mapping(owner).operand_lanes(places[0])
                return () if lanes is None else places
            return places
        places = self._places(value)
        if not places or opcode == "tuple":
            return ()
        mapping = self._mapping(value)
        return tuple(d for d in places if mapping.operand_lanes(d) is not None)

    def _mapping(self, value: HloInstruction) -> _Mapping:
        if value not in self._mappings:
            self._mappings[value] = _Mapping.of(value)
        return self._mappings[value]

    def _is_mixed_in(self, owner: HloInstruction) -> bool:
        """Whether a loop or a conditional in the body mixes the lanes, or pairs them."""
        inner: set[HloInstruction] = set()
        stack = list(owner.called_computations)
        while stack:
            computation = stack.pop()
            for instruction in instructions_with_branches(computation):
                inner.add(instruction)
                if instruction.opcode == "while":
                    stack.extend(instruction.called_computations)
        if any(by in inner for by in self._classes.marks(self._class)):
            return True
        elements = self._classes.elements.get(owner, [])
        find = self._classes.find
        return any(len(self._places(i)) > 1 for i in inner) or any(
            sum(find(node) == self._class for node in nodes) > 1 for nodes in elements
        )

    # The same value with its lanes along another dimension, or shared.

    def _get(self, value: HloInstruction, lane: Lane) -> HloInstruction:
        """Returns a value with its lanes along a dimension; with None one that all lanes share."""
        if value.opcode in ("constant", "iota", "parameter"):
            return value
        if is_leaf(value):
            # Each use of a scalar has dimensions of its own.
            return self._rebuilt(value, None, [None])
        key = (value, lane)
        if key not in self._known:
            self._known[key] = self._make(value, lane)
        return self._known[key]

    def _make(self, value: HloInstruction, lane: Lane) -> HloInstruction:
        possible = self._possible(value, lane)
        if lane is None:
            if not possible:
                return self._shared(value)
            return self._share(self._get(value, possible[0]))
        if lane not in possible:
            return self._own(self._get(value, None), lane)
        if value.opcode == "get-tuple-element":
            return self._element(value)
        operand_lanes = self._mapping(value).operand_lanes(lane)
        assert operand_lanes is not None, "lanes may lie where their operands' can"
        return self._rebuilt(value, lane, operand_lanes)

    def _element(self, value: HloInstruction) -> HloInstruction:
        owner = value.operands[0]
        if owner.opcode == "parameter":
            return value
        return self._builder.element(self._owner(owner), value.tuple_index)

    def _owner(self, owner: HloInstruction) -> HloInstruction:
        """Returns a loop, a conditional, or what else has several results, with its lanes."""
        key = (owner, None)
        if key in self._known:
            return self._known[key]
        if owner.opcode in _OWNERS:
            is_mixing = owner in self._mixing
            operands = [
                self._tuple(operand, is_mixing)
                if operand.opcode == "tuple"
                else self._get(operand, None)
                for operand in owner.operands
            ]
            self._known[key] = self._with_operands(owner, None, operands)
        else:
            places = self._several(owner)
            lanes = self._mapping(owner).operand_lanes(places[0]) if places else None
            self._known[key] = (
                self._rebuilt(owner, None, [None] * len(owner.operands))
                if lanes is None
                else self._rebuilt(owner, places[0], lanes)
            )
        return self._known[key]

    def _several(self, owner: HloInstruction) -> tuple[int, ...]:
        nodes = self._classes.elements[owner][0]
        return tuple(d for d, n in enumerate(nodes) if self._classes.find(n) == self._class)

    def _tuple(self, value: HloInstruction, is_shared: bool) -> HloInstruction:
        elements = []
        for operand in value.operands:
            places = () if is_shared else self._operand_places(value, operand)
            elements.append(self._get(operand, places[0] if places else None))
        return self._with_operands(value, None, elements)

    def _operand_places(self, user: HloInstruction, operand: HloInstruction) -> tuple[int, ...]:
        nodes = self._classes.operand_nodes(user, user.operands.index(operand))
        return tuple(d for d, n in enumerate(nodes) if self._classes.find(n) == self._class)

    def _shared(self, value: HloInstruction) -> HloInstruction:
        """Returns a value that all lanes share, made of what they share, or meet in."""
        if value.opcode == "get-tuple-element":
            return self._element(value)
        if is_meeting(value, self._loop):
            source, initial = value.operands
            places = self._possible(source, None)
            lane = next((d for d in places if d in value.dimensions), None)
            if lane is not None:
                operands = [self._get(source, lane), self._get(initial, None)]
                return self._with_operands(value, None, operands)
        return self._rebuilt(value, None, [None] * len(value.operands))

    def _rebuilt(
        self, value: HloInstruction, lane: Lane, operand_lanes: Sequence[Lane]
    ) -> HloInstruction:
        operands = [
            self._get(operand, at)
            for operand, at in zip(value.operands, operand_lanes, strict=True)
        ]
        return self._with_operands(value, lane, operands)

    def _with_operands(
        self, value: HloInstruction, lane: Lane, operands: Sequence[HloInstruction]
    ) -> HloInstruction:
        is_same = all(new is old for new, old in zip(operands, value.operands, strict=True))
        if is_same and self._taken.setdefault(value, lane) == lane:
            return value
        return self._builder.computation.add(value.clone(operands, name=value.name))

    def _share(self, value: HloInstruction) -> HloInstruction:
        return self._builder.emit("copy", value.shape, (value,), origin=value)

    def _own(self, value: HloInstruction, lane: int) -> HloInstruction:
        """Returns what all lanes share with each lane's part of it as its own."""
        sizes = value.shape.dimensions
        window = tuple(1 if d == lane else size for d, size in enumerate(sizes))
        numbers = (
            ("offset_dims", tuple(d for d in range(len(sizes)) if d != lane)),
            ("collapsed_slice_dims", (lane,)),
            ("start_index_map", (lane,)),
            ("index_vector_dim", 1),
        )
        indices = self._builder.emit(
            "iota", array_shape(PrimitiveType.S32, (sizes[lane],)), (), (("dimensions", (0,)),)
        )
        return self._builder.emit(
            "gather",
            value.shape,
            (value, indices),
            (("gather_dimension_numbers", numbers), ("gather_slice_sizes", window)),
            origin=value,
        )


@final
@dataclass(frozen=True, slots=True)
class _Mapping:
    """Which dimensions of an instruction's operands one of its result's is.

    Attributes:
        classes: Classes of this instruction alone, in which each operand stands for itself.
        result: The classes of its result.
        operands: Those of its operands.
    """

    classes: DimensionClasses
    result: Nodes
    operands: tuple[Nodes, ...]

    @classmethod
    def of(cls, instruction: HloInstruction) -> _Mapping:
        """Returns the mapping of an instruction that calls nothing but what combines two values."""
        classes = DimensionClasses()
        stand_ins = []
        for operand in instruction.operands:
            stand_in = HloInstruction.create("parameter", operand.shape, name=operand.name)
            classes.nodes[stand_in] = classes.fresh(operand.shape)
            stand_ins.append(stand_in)
        copy = instruction.clone(stand_ins)
        assign_class(classes, copy)
        classes.mark_repeated()
        result = classes.nodes[copy] if copy in classes.nodes else classes.elements[copy][0]
        return cls(classes, result, tuple(classes.nodes[i] for i in stand_ins))

    def operand_lanes(self, lane: int) -> list[Lane] | None:
        """Returns where the operands' lanes are if the result's lie along a dimension.

        None if the instruction mixes data along it.
        """
        lane_class = self.classes.find(self.result[lane])
        if self.classes.marking(lane_class) != []:
            return None
        return [self.classes.place(nodes, lane_class) for nodes in self.operands]
