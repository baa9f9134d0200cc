"""XLA:CPU's rules of instruction fusion: may this producer become part of that consumer's kernel?

A rule looks at one edge and answers no, yes, or nothing; the first answer counts. The numbers that
rules compare with are fields of `CpuRules`.

Source: xla/service/cpu/cpu_instruction_fusion.cc of 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, allow, refuse
from fuselane.fusion.in_place import IN_PLACE, check_in_place
from fuselane.fusion.opcodes import (
    ALWAYS_FUSIBLE,
    ELEMENTWISE,
    is_effective_scalar,
    is_elementwise,
    is_expensive_on_cpu,
    may_be_expensive_on_cpu,
    opcodes,
)
from fuselane.fusion.rules import (
    Edge,
    check_code_duplication,
    check_control_edges,
    check_duplication,
    check_fusible,
    check_producer_is_no_fusion,
    check_root,
    describe,
    reason_of,
)
from fuselane.hlo.instruction import HloInstruction

_LOOP_FUSIBLE: Final = ELEMENTWISE | opcodes(
    "bitcast broadcast concatenate dynamic-slice dynamic-update-slice gather iota pad reduce "
    "reshape reverse slice transpose"
)
Rule = Callable[[Edge], FusionDecision | None]


def first_answer(edge: Edge, rules: Sequence[Rule]) -> FusionDecision:
    """Returns the answer of the first rule that has one; the last rule should always have one."""
    for rule in rules:
        decision = rule(edge)
        if decision is not None:
            return decision
    return allow("No rule speaks against it.")


@final
@dataclass(frozen=True, kw_only=True)
class CpuRules:
    """XLA:CPU's instruction fusion.

    Attributes:
        max_concat_operands: Most operands of a concatenation that is fused.
        max_concat_minor_size: Extent of the minor-most dimension from which on a concatenation
            along it is not fused.
        max_reduces: A fusion with more reductions takes no further one.
        max_duplication: Most times the code of one instruction may stand in a kernel.
        max_vector_bytes: A product of a matrix and a vector computes the matrix on the fly if the
            vector takes less than this.
    """

    max_concat_operands: int = 8
    max_concat_minor_size: int = 128
    max_reduces: int = 5
    max_duplication: int = 15
    max_vector_bytes: int = 16 * 1024

    def should_fuse(self, edge: Edge, *, may_duplicate: bool = True) -> FusionDecision:
        """Returns XLA:CPU's answer for an edge."""

        opcodes = edge.producer.opcode, edge.consumer.opcode
        rules = self._relevant.get((may_duplicate, *opcodes))
        if rules is None:
            rules = self._relevant[may_duplicate, *opcodes] = self._rules(*opcodes, may_duplicate)
        return first_answer(edge, rules)

    @cached_property
    def _relevant(self) -> dict[tuple[bool, str, str], Sequence[Rule]]:
        """The rules that may have an answer, by whether work may be repeated and two opcodes."""
        return {}

    def _rules(self, producer: str, consumer: str, may_duplicate: bool) -> Sequence[Rule]:
        """Returns the rules that may have an answer for opcodes, in XLA's order."""

        def check_work(edge: Edge) -> FusionDecision | None:
            return check_duplication(
                edge, may_duplicate=may_duplicate, is_expensive=is_expensive_on_cpu
            )

        is_grown = consumer == "fusion"
        rules = (
            (check_fusible, not ALWAYS_FUSIBLE.issuperset((producer, consumer))),
            (_check_control_edges, True),
            (_check_large_constant, producer == "constant"),
            (_accept_output_fusion, producer == "dot"),
            (_check_output_fusible_add, producer == "add"),
            (_check_loop_fusible_producer, producer not in _LOOP_FUSIBLE),
            (self._check_concatenates, "concatenate" in (producer, consumer)),
            (_check_reuse, may_be_expensive_on_cpu(producer)),
            (check_root, True),
            (check_work, True),
            (_check_in_place_update, consumer in IN_PLACE),
            (self._check_reduces, is_grown and producer == "reduce"),
            (_check_lone_constant, producer == "constant"),
            (check_producer_is_no_fusion, producer == "fusion"),
            (self._check_code, is_grown and producer != "broadcast"),
            (self._accept_vector_dot, consumer == "dot"),
            (_answer_loop_fusible_consumer, True),
        )
        return [rule for rule, is_relevant in rules if is_relevant]

    def kind(self, edge: Edge) -> str:
        """Returns the kind of the fusion an edge becomes."""
        return "kOutput" if can_be_output_fused(edge.producer, edge.consumer) else "kLoop"

    def _check_concatenates(self, edge: Edge) -> FusionDecision | None:
        for side in (edge.producer, edge.consumer):
            if side.opcode != "concatenate":
                continue
            operands, extent = len(side.operands), side.shape.dimensions[side.dimensions[0]]
            is_minor = side.shape.rank >= 2 and side.dimensions[0] == side.shape.minor_to_major[0]
            if operands > self.max_concat_operands:
                detail = f"`{side.name}` concatenates {operands} values: each element would search."
            elif is_minor and extent >= self.max_concat_minor_size:
                detail = f"`{side.name}` concatenates rows of {extent} elements: copying is faster."
            else:
                continue
            return refuse(
                BoundaryReason.NOT_FUSIBLE,
                detail,
                xla="concatenate is inefficient",
                operands=operands,
                max_operands=self.max_concat_operands,
                extent=extent,
                max_extent=self.max_concat_minor_size,
            )
        return None

    def _check_reduces(self, edge: Edge) -> FusionDecision | None:
        if edge.growing is None or edge.producer.opcode != "reduce":
            return None
        if edge.growing.num_reduces <= self.max_reduces:
            return None
        return refuse(
            BoundaryReason.BUDGET,
            f"`{edge.consumer.name}` computes {edge.growing.num_reduces} reductions already.",
            xla="too many reductions",
            reductions=edge.growing.num_reduces,
            limit=self.max_reduces,
        )

    def _check_code(self, edge: Edge) -> FusionDecision | None:
        return check_code_duplication(edge, self.max_duplication)

    def _accept_vector_dot(self, edge: Edge) -> FusionDecision | None:
        dot = edge.consumer
        if dot.opcode != "dot" or dot.shape.rank > 1:
            return None
        vector = dot.operands[1 - edge.place].shape
        if vector.rank != 1 or vector.byte_size >= self.max_vector_bytes:
            return None
        return allow(
            "The product with a small vector computes its matrix on the fly.",
            vector_bytes=vector.byte_size,
            limit=self.max_vector_bytes,
        )


def _check_control_edges(edge: Edge) -> FusionDecision | None:
    return check_control_edges(edge.producer)


def _check_large_constant(edge: Edge) -> FusionDecision | None:
    if edge.producer.opcode != "constant" or is_effective_scalar(edge.producer.shape):
        return None
    return refuse(
        BoundaryReason.CONSTANT,
        f"`{edge.producer.name}` is a constant of {edge.producer.shape.num_elements} elements.",
        xla="non-scalar constant",
        elements=edge.producer.shape.num_elements,
    )


def _accept_output_fusion(edge: Edge) -> FusionDecision | None:
    if can_be_output_fused(edge.producer, edge.consumer):
        return allow("The addition becomes the end of the product of a matrix and a vector.")
    return None


def _check_output_fusible_add(edge: Edge) -> FusionDecision | None:
    add = edge.producer
    for operand in add.operands:
        if operand.opcode == "dot" and can_be_output_fused(operand, add):
            return refuse(
                BoundaryReason.LIBRARY_CALL,
                f"`{add.name}` is to become the end of a product of a matrix and a vector.",
                xla="bailing: producer is output-fusible",
            )
    return None


def _check_loop_fusible_producer(edge: Edge) -> FusionDecision | None:
    if is_loop_fusible_on_cpu(edge.producer):
        return None
    return refuse(
        reason_of(edge.producer),
        f"XLA:CPU has no loop form of {describe(edge.producer)}.",
        xla="Producer is not loop-fusible",
    )


def _check_reuse(edge: Edge) -> FusionDecision | None:
    producer = edge.producer
    if not is_expensive_on_cpu(producer) or not edge.is_reused:
        return None
    is_reduce = producer.opcode == "reduce"
    return refuse(
        BoundaryReason.REDUCTION_REUSE if is_reduce else BoundaryReason.OPERAND_REUSE,
        f"`{edge.consumer.name}` reads each element of `{producer.name}`, an expensive"
        f" {producer.opcode}, several times.",
        xla="Fusion is not profitable",
    )


def _check_in_place_update(edge: Edge) -> FusionDecision | None:
    """Refuses what would read a buffer while it is overwritten; see `in_place`."""
    return check_in_place(edge.producer, edge.consumer)


def _check_lone_constant(edge: Edge) -> FusionDecision | None:
    if edge.producer.opcode != "constant" or edge.consumer.opcode == "fusion":
        return None
    return refuse(
        BoundaryReason.CONSTANT,
        f"`{edge.producer.name}` is a constant, and `{edge.consumer.name}` no fusion yet.",
        xla="insufficient non-constant nodes",
    )


def _answer_loop_fusible_consumer(edge: Edge) -> FusionDecision:
    consumer = edge.consumer
    if consumer.opcode == "fusion":
        is_loop = consumer.fusion_kind == "kLoop"
    else:
        is_loop = is_loop_fusible_on_cpu(consumer)
    if is_loop:
        return allow(f"`{edge.producer.name}` is computed where `{consumer.name}` needs it.")
    return refuse(
        reason_of(consumer),
        f"XLA:CPU has no loop form of {describe(consumer)}.",
        xla="not found a fusible case",
    )


def is_loop_fusible_on_cpu(instruction: HloInstruction) -> bool:
    """Whether XLA:CPU can compute an instruction inside a loop over another's elements."""
    opcode = instruction.opcode
    return opcode in _LOOP_FUSIBLE or (opcode != "fusion" and is_elementwise(instruction))


def can_be_output_fused(producer: HloInstruction, consumer: HloInstruction) -> bool:
    """Whether an addition can end the code of a product of a matrix and a vector."""
    return (
        consumer.opcode == "add"
        and producer.opcode == "dot"
        and producer.shape.rank <= 1
        and not producer.shape.element_type.is_complex
        and not producer.proto.dot_dimension_numbers.lhs_batch_dimensions
        and len(producer.users) == 1
        and consumer.operands.count(producer) == 1
    )
