"""What XLA:CPU's fusion rules say about two kernels of its final module.

XLA asks whether a producer, one instruction, may become part of a consumer. What it saw as the
producer is the root of the producer's kernel, so the question is asked about that: in a copy of the
module in which the root stands outside of its fusion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, final

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.edges import Edge
from fuselane.explain.emitters import get_wrapped
from fuselane.explain.same_values import SameValues
from fuselane.explain.units import plural
from fuselane.explain.why_in_place import explain_in_place
from fuselane.explain.why_several import for_several_results
from fuselane.fusion.cpu_rules import CpuRules
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.growing import GrowingFusion
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.opcodes import is_expensive_on_cpu
from fuselane.fusion.rules import Edge as RuleEdge
from fuselane.fusion.traversal import sequential_computations, xla_post_order
from fuselane.fusion.unduplicable import find_unduplicable
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule


@final
class CpuRefusals:
    """Answers of XLA:CPU's rules for the kernels of one module."""

    def __init__(
        self,
        final: HloModule,
        module: HloModule,
        read_unfused: Callable[[], HloModule] | None = None,
    ) -> None:
        """Remembers what to look at.

        Args:
            final: The final module, whose edges are asked about.
            module: The same once more; it is taken apart.
            read_unfused: Returns the module before instruction fusion, parsed afresh, or None if it
                is not known.
        """
        self._final = final
        self._read_unfused = read_unfused
        self._growing: dict[HloInstruction, GrowingFusion] = {}
        self._rules = CpuRules()
        self._by_name = {i.name: i for c in module.computations for i in c.instructions}
        self._roots: dict[HloInstruction, HloInstruction] = {}
        self._consumers: dict[HloInstruction, HloInstruction] = {}
        for instruction in list(self._by_name.values()):
            if instruction.opcode == "fusion" and instruction.fusion_kind != "kCustom":
                self._take_out_root(instruction)

    def why(self, edge: Edge) -> BoundaryDecision | None:
        """Returns why XLA did not fuse a kernel into another, or None if no rule speaks up."""
        if edge.producer.shape.is_tuple:
            return for_several_results(edge.producer)
        producer, consumer = (self._by_name[i.name] for i in (edge.producer, edge.consumer))
        producer = self._roots.get(producer, producer)
        consumer = self._consumers.get(consumer, consumer)
        index = _find_operand(consumer, producer)
        if index is None:
            return None
        decision = self._rules.should_fuse(_edge(consumer, index, self._growing))
        if not decision.can_fuse:
            return decision.boundary()
        return self._from_history(edge, producer.name)

    def _from_history(self, edge: Edge, name: str) -> BoundaryDecision | None:
        """Answers by what XLA's pass saw, which no longer shows in the final module.

        Args:
            edge: What is asked about.
            name: Today's name of what computes the producer's value.
        """
        former = self._values.former(edge.producer)
        if former is None or self._kept is None:
            return explain_in_place(edge.producer, edge.consumer, self._values)
        return (
            self._kept.why(former, name)
            or explain_in_place(edge.producer, edge.consumer, self._values)
            or (self._replay.why(former) if self._replay is not None else None)
        )

    @functools.cached_property
    def _unfused(self) -> HloModule | None:
        return None if self._read_unfused is None else self._read_unfused()

    @functools.cached_property
    def _values(self) -> SameValues:
        return SameValues(self._final, self._unfused)

    @functools.cached_property
    def _kept(self) -> _Kept | None:
        return None if self._unfused is None else _Kept(self._unfused, self._rules)

    @functools.cached_property
    def _replay(self) -> _Replay | None:
        return None if self._read_unfused is None else _Replay(self._read_unfused())

    def _take_out_root(self, fusion: HloInstruction) -> None:
        """Puts the root of a fusion beside it; the fusion's only instruction in its place."""
        inner = fusion.called_computations[0].root
        if inner.opcode in ("tuple", "parameter"):
            return
        operands = list(inner.operands)
        is_wrapped = get_wrapped(fusion) is inner
        if is_wrapped:
            operands = [
                fusion.operands[o.parameter_number] if o.opcode == "parameter" else o
                for o in operands
            ]
        root = inner.clone(operands, name=inner.name)
        root.computation = fusion.computation
        fusion.replace_all_uses_with(root)
        self._roots[fusion] = root
        if is_wrapped:
            self._consumers[fusion] = root
            for operand in dict.fromkeys(fusion.operands):
                operand.users.remove(fusion)


def _find_operand(consumer: HloInstruction, producer: HloInstruction) -> int | None:
    """Returns which operand of a kernel is a value, or a bitcast or an element of it.

    What is in between is taken out.
    """
    for index, operand in enumerate(consumer.operands):
        value = operand
        while value.opcode in ("bitcast", "get-tuple-element") and value is not producer:
            value = value.operands[0]
        if value is producer:
            operands = consumer.operands
            consumer.set_operands([*operands[:index], producer, *operands[index + 1 :]])
            return index
    return None


@final
class _Kept:
    """What XLA decided not to compute twice, before it fused anything.

    That no longer shows in the final module.
    """

    def __init__(self, module: HloModule, rules: CpuRules) -> None:
        self._kept: set[HloInstruction] = set()
        for computation in sequential_computations(module):
            order = xla_post_order(computation)
            growing: dict[HloInstruction, GrowingFusion] = {}

            def would_fuse(consumer: HloInstruction, index: int, cache: Any = growing) -> bool:
                return rules.should_fuse(_edge(consumer, index, cache)).can_fuse

            self._kept |= find_unduplicable(order, would_fuse)

    def why(self, producer: HloInstruction, name: str) -> BoundaryDecision | None:
        """Returns why an instruction is computed once only, or None if that is not so.

        Args:
            producer: What it was before fusion.
            name: Its name today.
        """
        num_users = len(producer.users)
        if producer not in self._kept or num_users < 2:
            return None
        reason, what = BoundaryReason.DUPLICATION, "which reads more than it makes,"
        if producer.opcode == "concatenate":
            reason = BoundaryReason.CONCATENATE_USERS
            what = f"a concatenation of {plural(len(producer.operands), 'value')},"
        elif is_expensive_on_cpu(producer):
            reason = BoundaryReason.EXPENSIVE_DUPLICATION
            what = f"an expensive {producer.opcode},"
        detail = (
            f"`{name}`, {what} has {plural(num_users, 'user')}; XLA settles what may be"
            " computed twice before it fuses anything, even where all users end up in one kernel."
        )
        return BoundaryDecision(
            reason=reason,
            detail=detail,
            xla="operand can not be duplicated",
            numbers={"users": num_users},
        )


@final
class _Replay:
    """The pass run again on the module as XLA's pass found it.

    Answers for fusions that were in the way when XLA asked, and that later passes took apart.
    """

    def __init__(self, module: HloModule) -> None:
        log = FusionLog()
        InstructionFusion().run(module, log)
        self._refusals = {s.producer: s.decision for s in log if not s.decision.can_fuse}

    def why(self, producer: HloInstruction) -> BoundaryDecision | None:
        """Returns why an instruction was last refused, or None if it was not."""
        decision = self._refusals.get(producer.name)
        return None if decision is None else decision.boundary()


def _edge(
    consumer: HloInstruction, index: int, cache: dict[HloInstruction, GrowingFusion]
) -> RuleEdge:
    """Returns an edge as the rules take it; what is known of a fusion is found out once."""
    growing = None
    if consumer.opcode == "fusion":
        growing = cache.get(consumer)
        if growing is None:
            growing = cache[consumer] = GrowingFusion(consumer)
    return RuleEdge(consumer.operands[index], consumer, index, growing)
