"""Kernels that are only written down while they grow: what each computes, as parts of parts.

    %p = fusion(%x, %y)                      %f: own members, and in the place of its operand %p
    %f = fusion(%p, %x)              ->          the recipe of %p, with %x and %y for its inputs

A strategy that fuses producers into all of their users copies the same work into many kernels, and
from these into others. Here that work is a `Recipe`, made once and shared by all kernels that hold
it, and taking it in costs as much as the operands it has. A body is made when it is looked at, with
everything that XLA would repeat, or at the end, with each thing once.

XLA orders operands by where a body reads them last. Where that is follows from *marks*: for each
input one where the body's post order comes by it first, which is where the members go that may take
its place, and one where it is read last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.fusion.repetitions import Computed, is_tidy
from fuselane.hlo.attributes import Works
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction

_PASSING: Final = frozenset({"parameter", "tuple"})
Marks = list[int]
"""Twice an input's number where it is come by first, and one more where it is read last."""
_UNTIDY: Final = 6
"""Marks per input, two of which are needed."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """What an instruction computed before anything was fused into it.

    Attributes:
        members: Instructions, operands before users, with a number for each operand: of a member
            or, negated and less one, of an input.
        num_inputs: Operands, each counted once.
    """

    members: list[tuple[HloInstruction, tuple[int, ...]]]
    num_inputs: int


def recipe_of(instruction: HloInstruction) -> Recipe:
    """Returns the recipe of an instruction that is no fusion."""
    numbers = {o: n for n, o in enumerate(dict.fromkeys(instruction.operands))}
    codes = tuple([~numbers[operand] for operand in instruction.operands])
    marks = [2 * n for n in numbers.values()]
    marks += [2 * n + 1 for n in reversed(numbers.values())]
    return _recipe(Own([(instruction, codes)], len(numbers)), marks, marks)


def recipe_of_body(body: HloComputation) -> Recipe | None:
    """Returns what a fusion's body says; None where no recipe can say it."""
    order = body.post_order()
    members = [member for member in order if member.opcode != "parameter"]
    is_simple = (
        not body.ends_in(_PASSING)
        and members[-1] is body.root
        and all(parameter.users for parameter in body.parameters)
        and not any(member.control_predecessors for member in order)
    )
    if not is_simple:
        return None
    code = {parameter: ~number for number, parameter in enumerate(body.parameters)}
    code.update((member, number) for number, member in enumerate(members))
    coded = [(member, tuple([code[o] for o in member.operands])) for member in members]
    reads = [_reads(codes) for _, codes in coded]
    reached = _reach(coded, reads)
    if reached is None:
        return None
    inputs = range(len(body.parameters))
    listed: Marks = []
    for (_, codes), read in zip(coded, reads, strict=True):
        if read:
            listed += [2 * ~code for code in codes if code < 0] + read
    return _recipe(Own(coded, len(inputs)), _thin(reached, inputs), _thin(listed, inputs))


def _recipe(own: Own, reached: Marks, listed: Marks) -> Recipe:
    return Recipe(own, (), tuple(range(own.num_inputs)), reached, listed)


def _reach(
    members: Sequence[tuple[HloInstruction, tuple[int, ...]]], reads: Sequence[Marks]
) -> Marks | None:
    """Returns the marks of the order in which members, of whose `_reads` these are, are reached
    from the last; None if not all are."""
    marks: Marks = []
    root = len(members) - 1
    path, entered = [(root, iter(members[root][1]))], {root}
    while path:
        top, rest = path[-1]
        for code in rest:
            if code < 0:
                marks.append(2 * ~code)
            elif code not in entered:
                entered.add(code)
                path.append((code, iter(members[code][1])))
                break
        else:
            path.pop()
            marks += reads[top]
    return marks if len(entered) == len(members) else None


def _reads(codes: tuple[int, ...]) -> Marks:
    """Returns the marks of a member's reading, the first operand's last."""
    inputs = [~code for code in codes if code < 0]
    return [2 * number + 1 for number in reversed(dict.fromkeys(inputs))] if inputs else []


def _thin(marks: Marks, inputs: Collection[int]) -> Marks:
    """Leaves the first of each input's marks where it is come by, and the last where it is read."""
    kept: dict[int, None] = {}
    for mark in marks:
        if mark >> 1 in inputs:
            if mark & 1:
                kept.pop(mark, None)
            kept[mark] = None
    return list(kept)


def _splice(marks: Marks, number: int, inner: Marks) -> None:
    """Puts members in the place of an input, of which other marks may be left."""
    place = marks.index(2 * number)
    marks[place : place + 1] = inner


@final
class Recipe:
    """What a kernel computes; not changed once it is made.

    Attributes:
        own: What it computed before anything was fused into it.
        parts: What was, in order: the input each took the place of, its recipe, and the inputs that
            stand for its own inputs.
        inputs: The inputs that are left, by operand.
        reached: Marks of the order in which members are reached from the root, the last own one.
        listed: Marks of the order in which own members are listed, and others reached from them.
    """

    __slots__ = ("_read", "inputs", "listed", "own", "parts", "reached")

    def __init__(
        self,
        own: Own,
        parts: tuple[tuple[int, Recipe, tuple[int, ...]], ...],
        inputs: tuple[int, ...],
        reached: Marks,
        listed: Marks,
    ) -> None:
        self.own, self.parts, self.inputs = own, parts, inputs
        self.reached, self.listed = reached, listed
        self._read: list[int] | None = None

    @property
    def read(self) -> list[int]:
        """The places of the operands that are read, the last one first."""
        if self._read is None:
            places = {number: place for place, number in enumerate(self.inputs)}
            self._read = [places[mark >> 1] for mark in reversed(self.listed) if mark & 1]
        return self._read


@final
class Draft:
    """A fusion whose body is yet to be made; its operands and users are as if it had been.

    Attributes:
        fusion: It has each operand once.
        is_over: Whether the body was made.
    """

    def __init__(
        self, fusion: HloInstruction, recipe: Recipe, members: list[HloInstruction]
    ) -> None:
        """Starts with what a fusion computes: own members only, for which these stand."""
        own = recipe.own
        self.fusion = fusion
        self.is_over = False
        self._own = own
        self._members = members
        self._parts: list[tuple[int, Recipe, tuple[int, ...]]] = []
        self._inputs = list(range(own.num_inputs))
        self._next = own.num_inputs
        self._reached, self._listed = recipe.reached, recipe.listed
        self._recipe: Recipe | None = recipe
        fusion.to_apply.postpone(self.make_body)

    @property
    def recipe(self) -> Recipe:
        """What it computes now."""
        if self._recipe is None:
            self._tidy()
            self._recipe = Recipe(
                self._own, tuple(self._parts), tuple(self._inputs), self._reached, self._listed
            )
        return self._recipe

    def take(self, producer: HloInstruction, recipe: Recipe) -> None:
        """Computes an operand, which has that recipe, inside of the fusion."""
        fusion = self.fusion
        place = fusion.operands.index(producer)
        number = self._inputs[place]
        inside = dict(zip(fusion.operands, self._inputs, strict=True))
        del inside[producer]
        operands = producer.operands
        if producer.opcode != "fusion":
            operands = list(dict.fromkeys(operands))
        new: list[HloInstruction] = []
        for read in recipe.read:
            operand = operands[read]
            if operand not in inside:
                inside[operand] = self._next + len(new)
                new.append(operand)
        fusion.exchange_operand(place, new)
        del self._inputs[place]
        self._inputs.extend(range(self._next, self._next + len(new)))
        self._next += len(new)
        stand_ins = tuple([inside[operand] for operand in operands])
        self._parts.append((number, recipe, stand_ins))
        here = dict(zip(recipe.inputs, stand_ins, strict=True))
        reached = [2 * here[mark >> 1] + (mark & 1) for mark in recipe.reached]
        is_one = self._listed is self._reached
        if self._recipe is not None:  # these lists are its own
            self._recipe, self._reached = None, self._reached.copy()
            self._listed = self._reached if is_one else self._listed.copy()
        _splice(self._reached, number, reached)
        if not is_one:
            _splice(self._listed, number, reached)
        if len(self._reached) > _UNTIDY * (len(self._inputs) + 1):
            self._tidy()

    def _tidy(self) -> None:
        """Drops all marks that say nothing any more."""
        is_one, inputs = self._listed is self._reached, set(self._inputs)
        self._reached = _thin(self._reached, inputs)
        self._listed = self._reached if is_one else _thin(self._listed, inputs)

    def give_up(self) -> None:
        """Takes note that the body will not be needed."""
        self.is_over = True
        self.fusion.to_apply.abandon()

    def make_body(self, works: Works | None = None) -> None:
        """Makes the body.

        Args:
            works: What instructions do, if what the parts have in common is to be computed once.
        """
        if self.is_over:
            return
        self.is_over = True
        fusion = self.fusion
        fusion.to_apply.abandon()
        parameters = [
            HloInstruction.parameter(number, operand.shape)
            for number, operand in enumerate(fusion.operands)
        ]
        computed = None if works is None else Computed(works)
        made = _build(self.recipe, parameters, self._members, computed)
        kept = sum(number < self._own.num_inputs for number in self._inputs)
        fusion.to_apply.refill(parameters, kept, self._members, made)
        if computed is not None and computed.all_new(self._members):
            fusion.to_apply.remember(is_tidy, True)


@final
class _Frame:
    """A recipe on its way to become instructions."""

    __slots__ = ("key", "left", "number", "recipe", "values")

    def __init__(
        self, recipe: Recipe, arguments: Sequence[HloInstruction], number: int, key: object
    ) -> None:
        self.recipe = recipe
        self.values = dict(zip(recipe.inputs, arguments, strict=True))
        self.left = len(recipe.parts)
        self.number = number
        self.key = key


def _build(
    recipe: Recipe,
    arguments: Sequence[HloInstruction],
    own: Sequence[HloInstruction],
    computed: Computed | None,
) -> list[HloInstruction]:
    """Makes instructions compute a recipe of some arguments, and returns all but its own members,
    which there are already; those are new.

    Args:
        recipe: What is computed.
        arguments: For each of its inputs.
        own: Its own members.
        computed: Nothing so far, if each thing is to be computed once; gets all that is returned.
    """
    made: list[HloInstruction] = [] if computed is None else computed.values
    known: dict[object, HloInstruction] = {}

    def make(template: Own, read: tuple[HloInstruction, ...]) -> HloInstruction:
        copies: list[HloInstruction] = []
        if computed is None:
            for member, codes in template.members:
                copies.append(member.copy_with([copies[c] if c >= 0 else read[~c] for c in codes]))
            made.extend(copies)
            return copies[-1]
        value = known.get((template, read))
        if value is None:
            for member, codes in template.members:
                operands = [copies[c] if c >= 0 else read[~c] for c in codes]
                copies.append(computed.find(member, operands, HloInstruction.copy_with))
            value = known[template, read] = copies[-1]
        return value

    frames = [_Frame(recipe, arguments, 0, None)]
    while True:
        frame = frames[-1]
        values = frame.values
        if frame.left:
            frame.left -= 1
            number, part, inputs = frame.recipe.parts[frame.left]
            given = tuple([values[n] for n in inputs])
            if not part.parts:
                values[number] = make(part.own, given)
                continue
            key = (part, given)
            value = known.get(key)
            if value is None:
                frames.append(_Frame(part, given, number, key))
            else:
                values[number] = value
            continue
        frames.pop()
        template = frame.recipe.own
        read = tuple([values[n] for n in range(template.num_inputs)])
        if not frames:
            break
        value = frames[-1].values[frame.number] = make(template, read)
        if computed is not None:
            known[frame.key] = value
    for member in own:
        member.users = []
    for member, (_, codes) in zip(own, template.members, strict=True):
        member.connect([own[c] if c >= 0 else read[~c] for c in codes])
    return made
