"""What XLA:GPU's passes other than priority fusion ask of an instruction before they fuse it.

Source: xla/service/gpu/gpu_fusible.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, final

from fuselane.fusion.fuse import INPUT, has_several_results
from fuselane.fusion.gpu.emitters import find_hero, is_real_reduction_hero
from fuselane.fusion.gpu.region import Region
from fuselane.fusion.gpu.shapes import (
    ReductionForm,
    TransposeForm,
    is_bitcast_transpose,
    tiled_transpose,
    unnested_form,
)
from fuselane.fusion.growing import heavy_members
from fuselane.fusion.in_place import without_bitcasts
from fuselane.fusion.opcodes import ELEMENTWISE, is_elementwise, is_fusible, opcodes
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

LOOP_FUSIBLE: Final = ELEMENTWISE | opcodes(
    "bitcast broadcast concatenate copy dynamic-slice dynamic-update-slice gather pad "
    "reduce-window reshape reverse slice transpose"
)
"""Opcodes of what can be part of a loop over the elements of another instruction."""
_HEROIC: Final = frozenset({"reduce", "transpose"})


@final
class Candidate:
    """An instruction, as a kernel that may be fused with another.

    Does not handle: copies that change layouts, which XLA's emitters took for transposes until
    2024; here they are loops.

    Attributes:
        instruction: A fusion or any other instruction; not changed while this value is in use.
        tiled: Whether reductions and transposes have emitters that share memory between threads,
            as on GPUs; if not, all is computed element by element, in loops.
        heavy: The members that reduce, transpose or copy.
        may_have_heroes: Whether any member may have an emitter of its own.
    """

    def __init__(
        self,
        instruction: HloInstruction,
        *,
        tiled: bool,
        heavy: Sequence[HloInstruction] | None = None,
    ) -> None:
        self.instruction = instruction
        self.tiled = tiled
        if heavy is None:
            heavy = heavy_members(instruction)
        self.heavy = heavy
        self.may_have_heroes = False
        if tiled and heavy:
            self.may_have_heroes = any(member.opcode in _HEROIC for member in heavy)

    @property
    def name(self) -> str:
        """The instruction's."""
        return self.instruction.name

    @property
    def is_fusion(self) -> bool:
        """Whether it is a fusion of XLA's own code generators."""
        return self.instruction.opcode == "fusion" and not self.is_custom

    @property
    def is_custom(self) -> bool:
        """Whether it is a fusion that something else compiles."""
        instruction = self.instruction
        return instruction.opcode == "fusion" and instruction.fusion_kind == "kCustom"

    @property
    def is_multi_output(self) -> bool:
        """Whether it is a fusion with several results."""
        return has_several_results(self.instruction)

    @cached_property
    def roots(self) -> list[HloInstruction]:
        """The members whose values are the results."""
        instruction = self.instruction
        if instruction.opcode != "fusion":
            return [instruction]
        root = instruction.to_apply.root
        return root.operands if root.opcode == "tuple" else [root]

    @cached_property
    def heroes(self) -> list[HloInstruction]:
        """For each root, the reduction or tiled transpose it comes from, or the root itself."""
        if not self.may_have_heroes:
            return self.roots
        region = Region(self.instruction)
        return [root if self.is_unnested(root) else find_hero(region, root) for root in self.roots]

    @cached_property
    def hero(self) -> HloInstruction:
        """The first hero that an emitter is chosen by, or the first root."""
        if self.may_have_heroes:
            for root, hero in zip(self.roots, self.heroes, strict=True):
                if is_real_reduction_hero(root, hero) or tiled_transpose(hero) is not None:
                    return hero
        return self.roots[0]

    @cached_property
    def reduction(self) -> ReductionForm | None:
        """The form of the hero if it is a reduction that has an emitter of its own."""
        return unnested_form(self.hero) if self.may_have_heroes else None

    @cached_property
    def transposition(self) -> TransposeForm | None:
        """The form of the hero if it is a transpose that has an emitter of its own."""
        return tiled_transpose(self.hero) if self.may_have_heroes else None

    @cached_property
    def loop_shape(self) -> Shape:
        """What the kernel's loop runs over: what a hero of its own emitter reads, or the result."""
        if not self.may_have_heroes:
            return self.hero.shape
        is_tiled = self.reduction is not None or self.transposition is not None
        return self.hero.operands[0].shape if is_tiled else self.hero.shape

    @cached_property
    def is_reduction(self) -> bool:
        """Whether any result comes from a reduction with an emitter of its own."""
        return self.may_have_heroes and any(map(is_real_reduction_hero, self.roots, self.heroes))

    @cached_property
    def is_transpose(self) -> bool:
        """Whether any result comes from a transpose with an emitter of its own."""
        return self.may_have_heroes and any(
            tiled_transpose(hero) is not None for hero in self.heroes
        )

    @property
    def is_scatter(self) -> bool:
        """Whether the result is that of a scatter."""
        instruction = self.instruction
        if instruction.opcode != "fusion":
            return instruction.opcode == "scatter"
        return instruction.fusion_kind == INPUT and self.roots[0].opcode == "scatter"

    @property
    def is_transposing(self) -> bool:
        """Whether any member moves elements to other places of memory."""
        return any(
            member.opcode == "copy"
            or (member.opcode == "transpose" and not is_bitcast_transpose(member))
            for member in self.heavy
        )

    @cached_property
    def has_updates(self) -> bool:
        """Whether any result is an array of which a slice is updated in place."""
        return any(without_bitcasts(r).opcode == "dynamic-update-slice" for r in self.roots)

    @property
    def is_input_fusible(self) -> bool:
        """Whether it can end a kernel that is built around a hero."""
        has_hero = self.may_have_heroes and (self.is_reduction or self.is_transpose)
        if not has_hero and not self.is_scatter:
            return False
        return is_fusible(self.instruction) and not self.is_custom

    @property
    def is_loop_fusible(self) -> bool:
        """Whether it can be part of a loop over the elements of another instruction."""
        instruction = self.instruction
        if not is_fusible(instruction):
            return False
        if instruction.opcode == "fusion":
            return instruction.fusion_kind == "kLoop"
        if instruction.opcode in LOOP_FUSIBLE:
            return True
        return is_elementwise(instruction) and bool(instruction.operands)

    @property
    def is_loop_consumer(self) -> bool:
        """Whether it can end a loop."""
        return self.is_loop_fusible or self.instruction.opcode == "reduce"

    def is_loop_producer(self, *, or_unnested: bool = False) -> bool:
        """Whether a loop can compute it on the way.

        Args:
            or_unnested: Even if it is a reduction with an emitter of its own.
        """
        instruction = self.instruction
        if self.is_loop_fusible or instruction.opcode in ("iota", "constant"):
            return True
        if instruction.opcode != "reduce" or instruction.shape.is_tuple:
            return False
        return or_unnested or not self.is_unnested(instruction)

    def is_unnested(self, member: HloInstruction) -> bool:
        """Whether an instruction is a reduction that has an emitter of its own."""
        return self.tiled and unnested_form(member) is not None
