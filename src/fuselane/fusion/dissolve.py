"""Undoing XLA's fusions: what they compute stands in their computations again.

    %f = f32[8] fusion(%x, %y), calls={
      %a = parameter(0), %b = parameter(1)       ->    %p = f32[8] sine(%x)
      %p = sine(%a)  ROOT %c = add(%p, %b) }           %c = f32[8] add(%p, %y)

What several fusions compute is computed once afterwards. Copies that change nothing go too: XLA put
them in for the sake of buffers, and which are needed depends on the fusions; see `buffers`. Custom
fusions, which libraries run, stay, and so does all that XLA compiles into one function.
"""

from __future__ import annotations

from typing import Final

from fuselane.fusion.traversal import separate_bodies, sequential_computations
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_NOT_SHARED: Final = frozenset({"call", "conditional", "custom-call", "fusion", "rng", "while"})
"""Opcodes of which two stay two, whatever they compute."""

_OWN_FIELDS: Final = (
    "name",
    "id",
    "operand_ids",
    "called_computation_ids",
    "control_predecessor_ids",
    "metadata",
    "backend_config",
)
"""Fields that say nothing about the value of an instruction."""


def dissolve(module: HloModule) -> int:
    """Inlines the fusions of a module; returns how many there were."""
    separate_bodies(module)
    num_dissolved = 0
    bodies = _Bodies()
    for computation in sequential_computations(module):
        fusions = [i for i in computation.instructions if is_dissolvable(i)]
        for fusion in fusions:
            inline(module, computation, fusion)
        num_dissolved += len(fusions)
        computation.sort()
        _simplify(computation)
        share(computation, bodies)
        computation.remove_dead_instructions()
    module.remove_unused_computations()
    return num_dissolved


def unfuse_on_gpu(module: HloModule) -> None:
    """Dissolves XLA's fusions in a module that XLA:GPU has scheduled, and forgets its order."""
    dissolve(module)
    forget_order(module)


def forget_order(module: HloModule) -> None:
    """Forgets what XLA:GPU found out last, for the buffers of a module: where it copies, and which
    instruction comes before which, as far as nobody can tell."""
    without_copies(module).proto.ClearField("schedule")
    for computation in sequential_computations(module):
        for instruction in computation.instructions:
            if not instruction.has_side_effect:
                instruction.drop_control_edges()


def without_copies(module: HloModule) -> HloModule:
    """Returns a module after taking out copies that change nothing, and nothing else."""
    for computation in sequential_computations(module):
        _simplify(computation)
        computation.remove_dead_instructions()
    return module


def is_dissolvable(instruction: HloInstruction) -> bool:
    """Whether an instruction is a fusion that one of XLA's strategies may have made."""
    return instruction.opcode == "fusion" and instruction.fusion_kind != "kCustom"


def inline(module: HloModule, computation: HloComputation, fusion: HloInstruction) -> None:
    """Puts what a fusion computes into its computation; the fusion itself is dead then."""
    body = fusion.to_apply
    module.release(body)
    made = dict(zip(body.parameters, fusion.operands, strict=True))
    for member in body.post_order():
        if member.opcode != "parameter":
            copy = member.clone([made[operand] for operand in member.operands])
            made[member] = computation.add(copy)
            fusion.copy_control_edges_to(copy)
    fusion.drop_control_edges()
    fusion.replace_all_uses_with(made[body.root])
    fusion.replace_operands([])


def _simplify(computation: HloComputation) -> None:
    """Removes copies that change nothing, and takes elements of tuples directly."""
    for instruction in computation.instructions:
        source = instruction.operands[0] if instruction.operands else None
        if source is None:
            continue
        if instruction.opcode == "copy" and instruction.shape == source.shape:
            instruction.drop_control_edges()
            instruction.replace_all_uses_with(source)
        elif instruction.opcode == "get-tuple-element" and source.opcode == "tuple":
            instruction.replace_all_uses_with(source.operands[instruction.tuple_index])


class _Bodies:
    """Numbers for computations: equal for two that do the same."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._known: dict[HloComputation, int] = {}

    def number(self, computation: HloComputation) -> int:
        """Returns a computation's number."""
        if computation not in self._known:
            places: dict[HloInstruction, int] = {}
            keys = []
            for instruction in computation.post_order():
                operands = tuple(places[operand] for operand in instruction.operands)
                keys.append((self.key(instruction), operands))
                places[instruction] = len(places)
            key = (places[computation.root], *keys)
            self._known[computation] = self._numbers.setdefault(key, len(self._numbers))
        return self._known[computation]

    def key(self, instruction: HloInstruction) -> tuple[object, ...]:
        """Returns what an instruction computes, its operands apart."""
        proto = type(instruction.proto)()
        proto.CopyFrom(instruction.proto)
        for name in _OWN_FIELDS:
            proto.ClearField(name)
        proto.DiscardUnknownFields()
        attributes = proto.SerializeToString(deterministic=True)
        callees = tuple(self.number(callee) for callee in instruction.called_computations)
        return (instruction.opcode, instruction.shape, attributes, callees)


def share(computation: HloComputation, bodies: _Bodies | None = None) -> None:
    """Makes one of instructions, in post order, that compute the same."""
    bodies = bodies or _Bodies()
    first: dict[object, HloInstruction] = {}
    for instruction in computation.instructions:
        if not _is_shareable(instruction):
            continue
        key = (bodies.key(instruction), tuple(map(id, instruction.operands)))
        kept = first.setdefault(key, instruction)
        if kept is not instruction:
            instruction.replace_all_uses_with(kept)


def _is_shareable(instruction: HloInstruction) -> bool:
    if instruction.opcode == "parameter" or instruction.opcode in _NOT_SHARED:
        return False
    has_edges = instruction.control_predecessors or instruction.control_successors
    return not has_edges and not instruction.has_side_effect
