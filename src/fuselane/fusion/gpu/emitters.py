"""Which of XLA:GPU's emitters makes a kernel, and for the sake of which instruction (its hero).

Source: xla/service/gpu/hlo_fusion_analysis.cc and ir_emission_utils.cc of 2026.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, final

from fuselane.fusion.fuse import INPUT, LOOP
from fuselane.fusion.gpu.region import Region, is_custom, result_of
from fuselane.fusion.gpu.shapes import is_bitcast_transpose, tiled_transpose, unnested_form
from fuselane.fusion.opcodes import is_elementwise, opcodes
from fuselane.hlo.instruction import HloInstruction

MAX_CONCATENATED: Final = 4


@final
class Emitter(enum.Enum):
    """XLA:GPU's code generators."""

    LOOP = "loop"
    REDUCTION = "reduction"
    TRANSPOSE = "transpose"
    SCATTER = "scatter"
    CONCATENATE = "concatenate"
    CUSTOM = "custom"

    @property
    def fusion_kind(self) -> str:
        """The kind of a fusion it makes."""
        if self is Emitter.CUSTOM:
            return "kCustom"
        return LOOP if self is Emitter.LOOP else INPUT


@final
class Emission(NamedTuple):
    """How a kernel is made.

    Attributes:
        emitter: The code generator.
        roots: The results.
        heroes: For each result, what the emitter is chosen by.
    """

    emitter: Emitter
    roots: tuple[HloInstruction, ...]
    heroes: tuple[HloInstruction, ...]

    @property
    def hero(self) -> HloInstruction:
        """The first hero the emitter is made for."""
        if self.emitter is Emitter.REDUCTION:
            return next(h for h in self.heroes if unnested_form(h) is not None)
        if self.emitter is Emitter.TRANSPOSE:
            return next(h for h in self.heroes if tiled_transpose(h) is not None)
        return self.heroes[0]


def choose_emitter(region: Region) -> Emission:
    """Returns how XLA:GPU would make a kernel of a region."""
    consumer = region.consumer
    if is_custom(consumer):
        roots = tuple(region.roots)
        return Emission(Emitter.CUSTOM, roots, roots)
    result = result_of(consumer)
    if result.opcode in _JOINING and region.opcodes.isdisjoint(_SEARCHED_FOR):
        return Emission(Emitter.LOOP, (result,), (result,))
    roots = tuple(region.roots)
    if HEROIC.isdisjoint(region.opcodes):
        return Emission(Emitter.LOOP, roots, roots)
    heroes = tuple(find_hero(region, root) for root in roots)
    return Emission(_emitter_of(roots, heroes), roots, heroes)


def _emitter_of(roots: tuple[HloInstruction, ...], heroes: tuple[HloInstruction, ...]) -> Emitter:
    pairs = list(zip(roots, heroes, strict=True))
    if any(is_real_reduction_hero(root, hero) for root, hero in pairs):
        return Emitter.REDUCTION
    if any(tiled_transpose(hero) is not None for hero in heroes):
        return Emitter.TRANSPOSE
    if len(roots) > 1:
        return Emitter.LOOP
    if roots[0].opcode == "scatter":
        return Emitter.SCATTER
    if heroes[0].opcode == "concatenate" and len(heroes[0].operands) <= MAX_CONCATENATED:
        return Emitter.CONCATENATE
    return Emitter.LOOP


def is_real_reduction_hero(root: HloInstruction, hero: HloInstruction) -> bool:
    """Whether a hero is reduced by the reduction emitter, with what comes after it."""
    form = unnested_form(hero)
    return form is not None and (root is hero or form.is_race_free)


def find_hero(region: Region, root: HloInstruction) -> HloInstruction:
    """Returns the reduce, tiled transpose or concatenation behind a root, or the root itself."""
    hero = root
    while is_intermediate(hero, max_operands=1):
        operand = region.operands(hero)[0]
        if operand not in region:
            break
        hero = operand
    for opcode, predicate in _SEARCHED:
        found = _find_unique(region, hero, predicate) if opcode in region.opcodes else None
        if found is not None:
            return found
    return hero if hero.opcode == "reduce" else root


def _is_tiled_transpose(instruction: HloInstruction) -> bool:
    return tiled_transpose(instruction) is not None


def _is_concatenate(instruction: HloInstruction) -> bool:
    return instruction.opcode == "concatenate"


HEROIC: Final = frozenset({"reduce", "transpose", "concatenate", "scatter"})
"""Opcodes without which any kernel is a loop."""

_SEARCHED: Final = (("transpose", _is_tiled_transpose), ("concatenate", _is_concatenate))
_SEARCHED_FOR: Final = frozenset(opcode for opcode, _ in _SEARCHED)

_JOINING: Final = opcodes(
    "add and atan2 clamp compare complex divide maximum minimum multiply or power remainder select "
    "shift-left shift-right-arithmetic shift-right-logical subtract xor"
)
"""Opcodes of several operands, behind which no hero is but those that are searched for."""


def _find_unique(
    region: Region, start: HloInstruction, predicate: Callable[[HloInstruction], bool]
) -> HloInstruction | None:
    """Returns the only match behind intermediate members, if only such lie after it."""
    found: HloInstruction | None = None
    queue, seen = deque([start]), {start}
    while queue:
        member = queue.popleft()
        if predicate(member):
            if found is not None:
                return None
            found = member
            continue
        if not is_intermediate(member, max_operands=3):
            continue
        for operand in region.operands(member):
            if operand in region and operand not in seen:
                seen.add(operand)
                queue.append(operand)
    if found is None or not _has_only_intermediate_users(region, found):
        return None
    return found


def _has_only_intermediate_users(region: Region, hero: HloInstruction) -> bool:
    stack, seen = [hero], {hero}
    while stack:
        for user in region.users(stack.pop()):
            if user in seen:
                continue
            if user.opcode != "tuple" and not is_intermediate(user, max_operands=3):
                return False
            seen.add(user)
            stack.append(user)
    return True


def is_intermediate(instruction: HloInstruction, max_operands: int) -> bool:
    """Whether an instruction may stand between a hero and a root."""
    if not 1 <= len(instruction.operands) <= max_operands:
        return False
    match instruction.opcode:
        case "copy":
            return instruction.shape == instruction.operands[0].shape
        case "bitcast":
            return True
        case "reshape":
            return instruction.shape.is_row_major and instruction.operands[0].shape.is_row_major
        case "transpose":
            return is_bitcast_transpose(instruction)
        case "fusion" | "constant":
            return False
        case _:
            return is_elementwise(instruction)
