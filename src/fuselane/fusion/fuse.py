"""The edits all strategies make: a producer becomes part of a consumer's kernel.

    %p = f32[8] sine(%x)                     %f = f32[8] fusion(%x, %y), kind=kLoop, calls={
    %c = f32[8] add(%p, %y)          ->        %a = parameter(0), %b = parameter(1)
                                               ROOT %c = add(sine(%a), %b) }

A producer with other users stays for them, so that its work is done twice. As a further output of
the fusion it is done once; then the fusion returns a tuple:

    %p = f32[8] sine(%x)                     %f = (f32[8], f32[8]) fusion(%x, %y), calls={
    %c = f32[8] add(%p, %y)          ->        ... ROOT %t = tuple(add(sine(%a), %b), sine(%a)) }
    %q = f32[8] negate(%p)                   %c = get-tuple-element(%f), index=0
                                             %q = negate(get-tuple-element(%f), index=1)

Siblings, neither of which reads the other, become one kernel in the same way.

Operands of a fusion are ordered as XLA orders them: a fused producer gives up its place, and its
own operands come last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from fuselane.fusion.absorb import (
    absorb,
    computed_members,
    members_and_uses,
    read_inside,
    read_once,
)
from fuselane.fusion.draft import Draft, Recipe, recipe_of, recipe_of_body
from fuselane.fusion.intake import Intake
from fuselane.hlo.attributes import Works
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape
from fuselane.hlo.transfer import add_copies
from fuselane.hlo.tuples import element_of, tuple_of

LOOP: Final = "kLoop"
INPUT: Final = "kInput"
OUTPUT: Final = "kOutput"

_TUPLE: Final = frozenset({"tuple"})
_PASSING: Final = _TUPLE | {"parameter"}
"""Opcodes of roots that may pass on an operand of the fusion as it is."""


@final
class Fuser:
    """Makes and grows the fusions of one computation.

    Instructions that are not needed any more lose their operands at once and are removed by
    `finish`, which every user calls at the end.
    """

    def __init__(self, module: HloModule, computation: HloComputation) -> None:
        self.module = module
        self.computation = computation
        self._changed: dict[HloComputation, str] = {}
        """Fused computations whose instructions may be out of order, and their fusions' kinds."""
        self._intake: Intake | None = None
        self._drafts: dict[HloInstruction, Draft] = {}
        self._recipes: dict[HloInstruction, Recipe] = {}
        """Of producers that are no fusions."""

    def wrap(self, instruction: HloInstruction, kind: str) -> HloInstruction:
        """Puts an instruction alone into a fusion, which takes its place; returns the fusion."""
        self._end_intake()
        body = _empty_body()
        operands = list(dict.fromkeys(instruction.operands))
        parameters = [HloInstruction.parameter(at, o.shape) for at, o in enumerate(operands)]
        values = dict(zip(operands, parameters, strict=True))
        add_copies(body, [instruction], values, parameters)
        body.root = values[instruction]
        return self._put_in_place(instruction, body, kind)

    def _put_in_place(
        self, instruction: HloInstruction, body: HloComputation, kind: str
    ) -> HloInstruction:
        """Makes a fusion of that body take the place of an instruction, and returns it."""
        self.module.add_alone(body)
        fusion = HloInstruction.create(
            "fusion",
            instruction.shape,
            list(dict.fromkeys(instruction.operands)),
            name="fusion",
            called_computations=[body],
            fusion_kind=kind,
        )
        fusion.proto.metadata.CopyFrom(instruction.metadata)
        self.computation.add(fusion)
        instruction.move_control_edges_to(fusion)
        instruction.replace_all_uses_with(fusion)
        instruction.replace_operands([])
        return fusion

    def fuse(
        self, producer: HloInstruction, consumer: HloInstruction, kind: str
    ) -> tuple[HloInstruction, HloInstruction]:
        """Computes an operand of `consumer` inside of it.

        Args:
            producer: Any instruction; the body of a fusion is merged into the consumer's.
            consumer: A fusion, or an instruction that becomes one.
            kind: Of the fusion: kLoop, kInput, ...
        Returns:
            The fusion, and the producer's value in its body.
        """
        self._end_intake()
        fusion = self._fusion_of(consumer, kind)
        is_kept = producer.is_root or producer.users != [fusion] or producer.control_successors
        value = absorb(fusion, producer, is_last=not is_kept)
        self._drop_if_unread(producer)
        return fusion, value

    def merge(
        self, producer: HloInstruction, consumer: HloInstruction, kind: str
    ) -> HloInstruction:
        """As `fuse`, where bodies are not looked at before most producers were fused: they are made
        when they are, or by `make_bodies`. Returns the fusion."""
        self._end_intake()
        recipe = self._recipe(producer)
        draft = self._draft(consumer, kind) if recipe is not None else None
        if recipe is None or draft is None:
            return self.fuse(producer, consumer, kind)[0]
        fusion = draft.fusion
        if self._changed.get(fusion.to_apply) != kind:
            self._note_kind(fusion, kind)
        draft.take(producer, recipe)
        self._drop_if_unread(producer)
        return fusion

    def _recipe(self, producer: HloInstruction) -> Recipe | None:
        draft = self._drafts.get(producer)
        if draft is not None and not draft.is_over:
            return draft.recipe
        if producer.opcode == "fusion":
            return producer.to_apply.fact(recipe_of_body)
        if producer not in self._recipes:
            self._recipes[producer] = recipe_of(producer)
        return self._recipes[producer]

    def _draft(self, consumer: HloInstruction, kind: str) -> Draft | None:
        """Returns the draft of a fusion whose body nobody has looked at since it began to grow."""
        draft = self._drafts.get(consumer)
        if draft is not None:
            return None if draft.is_over else draft
        if consumer.opcode != "fusion":
            fusion, draft = self._start(consumer, kind)
        else:
            fusion = consumer
            read_once(fusion)
            recipe = fusion.to_apply.fact(recipe_of_body)
            if recipe is None:
                return None
            draft = Draft(fusion, recipe, [member for member, _ in recipe.own.members])
        self._drafts[fusion] = draft
        return draft

    def _start(self, instruction: HloInstruction, kind: str) -> tuple[HloInstruction, Draft]:
        """As `wrap`, for a fusion whose body is yet to be made."""
        root = instruction.copy_with([])
        body = _empty_body()
        body.root = root
        recipe = self._recipes.get(instruction) or recipe_of(instruction)
        fusion = self._put_in_place(instruction, body, kind)
        return fusion, Draft(fusion, recipe, [root])

    def make_bodies(self, shares: Callable[[HloInstruction], bool]) -> None:
        """Makes all bodies that are left to be made.

        Args:
            shares: Says of a fusion whether to compute once what its producers have in common; XLA
                computes it once for each.
        """
        works = Works()
        for fusion, draft in self._drafts.items():
            if not draft.is_over:
                is_shared = shares(fusion)
                draft.make_body(works if is_shared else None)
                if is_shared:  # XLA orders operands by what the body would repeat
                    body = fusion.to_apply
                    read = computed_members(body), draft.recipe.read
                    body.remember(members_and_uses, read)
        self._drafts.clear()

    def take_in(
        self, producer: HloInstruction, consumer: HloInstruction, kind: str
    ) -> tuple[HloInstruction, HloInstruction]:
        """As `fuse`, where the same consumer is likely to take in more: the body of the fusion is
        made for all of them at once. Until it is looked at, the value may read what the producer
        reads."""
        fusion = self._fusion_of(consumer, kind)
        if producer.opcode == "fusion":
            return self.fuse(producer, fusion, kind)
        intake = self._intake
        if intake is None or intake.fusion is not fusion or intake.is_over:
            if fusion.to_apply.ends_in(_PASSING):
                return self.fuse(producer, fusion, kind)
            self._end_intake()
            intake = self._intake = Intake(fusion)
        value = intake.take(producer)
        self._drop_if_unread(producer)
        return fusion, value

    def _end_intake(self) -> None:
        """Makes the body of the fusion that took instructions in last, if that is left to do: its
        operands may become others now."""
        if self._intake is not None:
            self._intake.fusion.to_apply.catch_up()
            self._intake = None

    def fuse_multi_output(
        self, producer: HloInstruction, consumer: HloInstruction, kind: str
    ) -> HloInstruction:
        """Computes an operand of `consumer`, or what makes operands of it as a tuple's elements,
        inside of it, and returns it from there to all others.

        What used to read either reads elements of the fusion's tuple: first the results the
        consumer had, then the producer's. Control edges of both become the fusion's.

        The caller makes sure that no other operand of the consumer depends on the producer; else
        the fusion would depend on itself, and `finish` raises VerificationError.

        Args:
            producer: Any instruction, or a fusion with any number of results.
            consumer: A fusion, or an instruction that becomes one.
            kind: Of the fusion: kLoop, kInput, ...
        Returns:
            The fusion.
        """
        self._end_intake()
        fusion = self._fusion_of(consumer, kind)
        value = absorb(fusion, producer, is_last=True)
        if value.opcode == "tuple":
            read_inside(fusion, producer, value)
        producer.move_control_edges_to(fusion)
        first = self._return_also(fusion, value)
        self._redirect(producer, fusion, first)
        producer.replace_operands([])
        return fusion

    def fuse_siblings(
        self, first: HloInstruction, second: HloInstruction, kind: str
    ) -> HloInstruction:
        """Computes two instructions, neither of which depends on the other, in one kernel.

        As `fuse_multi_output`, but for what they read of each other, which is nothing; that is the
        caller's to make sure of. Returns the fusion: `first`, or what `first` becomes.
        """
        return self.fuse_multi_output(second, first, kind)

    def _drop_if_unread(self, producer: HloInstruction) -> None:
        if producer.users or producer.is_root or producer.control_successors:
            return
        producer.replace_operands([])
        draft = self._drafts.pop(producer, None)
        if draft is not None:
            draft.give_up()

    def _fusion_of(self, consumer: HloInstruction, kind: str) -> HloInstruction:
        fusion = consumer if consumer.opcode == "fusion" else self.wrap(consumer, kind)
        before = self._changed.get(fusion.to_apply)
        if before is None:
            read_once(fusion)
        if before != kind:
            self._note_kind(fusion, kind)
        return fusion

    def _note_kind(self, fusion: HloInstruction, kind: str) -> None:
        self._changed[fusion.to_apply] = kind
        if fusion.fusion_kind != kind:
            fusion.proto.fusion_kind = kind

    def _return_also(self, fusion: HloInstruction, value: HloInstruction) -> int:
        """Makes a value of a fusion's body one more result, or several; returns the first's index.

        What used to read the fusion reads its elements after that.
        """
        body = fusion.to_apply
        self._redirect(fusion, fusion, 0)
        before, added = _results(body.root), _results(value)
        dead = [i for i in (body.root, value) if i.opcode == "tuple"]
        body.root = body.add(tuple_of([*before, *added]))
        fusion.shape = body.root.shape
        for instruction in dead:
            body.remove(instruction)
        return len(before)

    def _redirect(self, old: HloInstruction, fusion: HloInstruction, first: int) -> None:
        """Makes all that reads the results of `old` read those of a fusion from `first` on."""
        if not has_several_results(old):
            old.replace_all_uses_with(self._add_element(fusion, first, old.shape))
            return
        readers = list(old.users)
        if old.is_root or any(reader.opcode != "get-tuple-element" for reader in readers):
            elements = [
                self._add_element(fusion, first + index, shape)
                for index, shape in enumerate(old.shape.tuple_shapes)
            ]
            whole = self.computation.add(tuple_of(elements))
            for reader in readers:
                if reader.opcode != "get-tuple-element":
                    reader.replace_operands([whole if o is old else o for o in reader.operands])
            if old.is_root:
                self.computation.root = whole
        if old is fusion:
            return  # its elements stay where they are
        for reader in readers:
            if reader.opcode == "get-tuple-element":
                reader.proto.tuple_index += first
                reader.replace_operand(0, fusion)

    def _add_element(self, fusion: HloInstruction, index: int, shape: Shape) -> HloInstruction:
        return self.computation.add(element_of(fusion, index, shape))

    def finish(self) -> None:
        """Removes what is dead and puts the computation into post order."""
        self._end_intake()
        self.make_bodies(_repeats)
        self.computation.remove_dead_instructions()
        self.computation.sort()
        self.module.remove_unused_computations()
        for body in self._changed:
            if body.module is not None:
                body.sort()


def _repeats(fusion: HloInstruction) -> bool:
    """Says that nothing is shared in a fusion."""
    return False


def _empty_body() -> HloComputation:
    body = HloComputation.create("fused_computation")
    body.proto.is_fusion_computation = True
    return body


def has_several_results(instruction: HloInstruction) -> bool:
    """Whether an instruction is a fusion whose body makes a tuple of values.

    A reduction of several arrays makes one value, which is a tuple.
    """
    return instruction.opcode == "fusion" and instruction.to_apply.ends_in(_TUPLE)


def _results(value: HloInstruction) -> list[HloInstruction]:
    """Returns the values that a fusion's body makes a tuple of, or the only one."""
    return list(value.operands) if value.opcode == "tuple" else [value]
