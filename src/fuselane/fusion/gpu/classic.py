"""XLA:GPU's rules for one producer and one consumer, before priority fusion.

A rule answers no, or nothing; what none refuses is fused. Fields tell the years apart.

Source: xla/service/gpu/instruction_fusion.cc and gpu_fusible.cc of 2021 to 2024. In-place updates
are checked as XLA checks them today.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, allow, refuse
from fuselane.fusion.fuse import INPUT, LOOP
from fuselane.fusion.gpu.candidates import LOOP_FUSIBLE, Candidate
from fuselane.fusion.gpu.emitters import is_intermediate
from fuselane.fusion.gpu.rules import GpuRules, check_scatter
from fuselane.fusion.growing import HEAVY
from fuselane.fusion.in_place import MAY_UPDATE, check_in_place, members
from fuselane.fusion.opcodes import is_effective_scalar, is_expensive_on_gpu
from fuselane.fusion.rules import (
    Edge,
    check_code_duplication,
    check_control_edges,
    check_duplication,
    check_producer_is_no_fusion,
    check_root,
    describe,
    reason_of,
)
from fuselane.hlo.instruction import HloInstruction

_CHEAP: Final = frozenset({"divide", "rsqrt"})
_HEAVY_RATIO: Final = 10
_PLAIN: Final = LOOP_FUSIBLE - HEAVY - {"bitcast", "dynamic-update-slice"}
"""Opcodes that loops compute, wherever they stand in a kernel."""


@final
@dataclass(frozen=True, kw_only=True)
class ClassicRules:
    """Which producers XLA:GPU fused into which consumers, without asking what it costs.

    Attributes:
        max_operands: Most operands and results of a kernel, together: 96 since 2024-04.
        max_shared_bytes: Shared memory of a block.
        max_reductions: Most reductions the reduction emitter makes in one kernel.
        max_code_size: Most instructions the code of a merged kernel may have, as since 2022-11.
        max_branches: Most of them that began new blocks of code; each also doubled the code.
        max_duplication: Most times the code of one instruction may stand in a kernel.
        max_consumers: Most consumers of what has to be computed anew for each: a concatenation, a
            pad, a reduction. XLA allows one; in the paper's experiment it was three.
        cheap_exponentials: Exponentials may be repeated, as since 2021-09.
        cheap_roots: Square roots may be repeated, as since 2022-10.
        nested_loops: Loops may stand in each other, but where instruction fusion would repeat more
            than ten steps, as since 2022-09; before, never.
        lone_bitcasts: A bitcast may end a kernel, as until 2024.
        epilogues: Elementwise work may follow a reduction in its kernel, as since 2024, and a
            scatter's array is guarded.
        tiled_emitters: Reductions and transposes have emitters that share memory between threads;
            if not, as on CPUs, all kernels are loops.
    """

    max_operands: int = 64
    max_shared_bytes: int = 49152
    max_reductions: int = 8
    max_code_size: int = 10_000
    max_branches: int = 10
    max_duplication: int = 15
    max_consumers: int = 1
    cheap_exponentials: bool = True
    cheap_roots: bool = True
    nested_loops: bool = True
    lone_bitcasts: bool = True
    epilogues: bool = False
    tiled_emitters: bool = True

    @cached_property
    def limits(self) -> GpuRules:
        """The limits of a kernel's size."""
        return GpuRules(
            max_operands=self.max_operands,
            max_shared_bytes=self.max_shared_bytes,
            max_reductions=self.max_reductions,
            max_code_size=self.max_code_size,
            max_branches=self.max_branches,
            tiled_emitters=self.tiled_emitters,
        )

    @cached_property
    def cheap(self) -> frozenset[str]:
        """Opcodes of floating-point numbers that may be repeated."""
        optional = {"exponential": self.cheap_exponentials, "sqrt": self.cheap_roots}
        return _CHEAP.union(opcode for opcode, is_cheap in optional.items() if is_cheap)

    def is_expensive(self, instruction: HloInstruction) -> bool:
        """Whether an instruction's result is rather read again than computed twice."""
        return is_expensive_on_gpu(instruction, self.cheap)

    def should_fuse(self, edge: Edge, *, may_duplicate: bool = True) -> FusionDecision:
        """Returns the answer of instruction fusion for an edge."""
        producer, consumer = edge.producer, edge.consumer
        refusal = check_producer_is_no_fusion(edge) or self._check_reuse(edge)
        if refusal is not None:
            return refusal
        pair = None if _is_plain(edge) else (self.candidate(producer), self._consumer(edge))
        refusal = (
            (pair and check_coalescing(*pair))
            or check_control_edges(producer)
            or (pair and self.check_pair(*pair))
            or (self._check_loops(*pair) if pair and self.nested_loops else None)
            or check_root(edge)
            or check_duplication(edge, may_duplicate=may_duplicate, is_expensive=self.is_expensive)
            or (pair and self.check_sharing(*pair))
            or self.limits.check_operands(producer, consumer, is_vertical=True)
            or check_code_duplication(edge, self.max_duplication, self.max_consumers)
        )
        return refusal or allow(f"`{producer.name}` is computed where `{consumer.name}` needs it.")

    def kind(self, edge: Edge) -> str:
        """Returns the kind of the fusion an edge becomes."""
        return LOOP if _is_plain(edge) else kind_of(self._consumer(edge))

    def candidate(
        self, instruction: HloInstruction, heavy: Sequence[HloInstruction] | None = None
    ) -> Candidate:
        """Returns an instruction, with heavy members if they are known, as these rules see it."""
        return Candidate(instruction, tiled=self.tiled_emitters, heavy=heavy)

    def check_pair(self, producer: Candidate, consumer: Candidate) -> FusionDecision | None:
        """Refuses what has no fused form, and loops in each other if there may not be any."""
        return (
            self._check_forms(producer, consumer)
            or check_in_place(producer.instruction, consumer.instruction)
            or (None if self.nested_loops else self._check_loops(producer, consumer))
        )

    def check_budget(self, producer: Candidate, consumer: Candidate) -> FusionDecision | None:
        """Refuses kernels with too many operands, reductions, or too much shared memory."""
        return self.check_sharing(producer, consumer) or self.limits.check_operands(
            producer.instruction, consumer.instruction, is_vertical=True
        )

    def check_sharing(self, producer: Candidate, consumer: Candidate) -> FusionDecision | None:
        """Refuses kernels with too many reductions, or too much shared memory."""
        return self.limits.check_heavy([*producer.heavy, *consumer.heavy])

    def _consumer(self, edge: Edge) -> Candidate:
        if edge.growing is None:
            return self.candidate(edge.consumer)
        growing = edge.growing
        if growing.candidate is None:
            growing.candidate = self.candidate(growing.fusion, growing.heavy)
        return growing.candidate

    def _check_forms(self, producer: Candidate, consumer: Candidate) -> FusionDecision | None:
        """Refuses instructions that no loop can compute, and constants but scalars in fusions."""
        refusal = self._check_producer(producer, consumer)
        if refusal is not None:
            return refusal
        is_loop = consumer.is_loop_consumer
        if consumer.instruction.opcode == "bitcast" and not self.lone_bitcasts:
            is_loop = False
        if not is_loop and not consumer.is_input_fusible:
            return refuse(
                reason_of(consumer.instruction),
                f"No kernel can end in {describe(consumer.instruction)}.",
                xla="the consumer is not input-fusible and not loop-fusible",
            )
        if producer.is_multi_output:
            results = len(producer.instruction.shape.tuple_shapes)
            return refuse(
                BoundaryReason.MULTI_OUTPUT,
                f"`{producer.name}` has {results} results.",
                xla="the producer is not fusible as it is a multi-output fusion",
                results=results,
            )
        if producer.instruction.opcode == "constant":
            is_scalar = is_effective_scalar(producer.instruction.shape)
            if not is_scalar or consumer.instruction.opcode != "fusion":
                return refuse(
                    BoundaryReason.CONSTANT,
                    f"`{producer.name}` is a constant, and not a scalar one in a fusion.",
                    xla="not fusing constant",
                )
        return None

    def _check_producer(self, producer: Candidate, consumer: Candidate) -> FusionDecision | None:
        if self.epilogues and producer.is_reduction:
            return check_epilogue(producer, consumer)
        if not producer.is_loop_producer():
            return refuse(
                reason_of(producer.instruction),
                f"No loop can compute {describe(producer.instruction)}, on the way.",
                xla="the producer is not loop-fusible",
            )
        if not self.epilogues:
            return None
        return check_scatter(producer.instruction, consumer.instruction)

    def _check_reuse(self, edge: Edge) -> FusionDecision | None:
        producer = edge.producer
        if not self.is_expensive(producer) or not edge.is_reused:
            return None
        return refuse(
            _reuse_of(producer),
            f"`{edge.consumer.name}` reads each element of `{producer.name}`, an expensive"
            f" {producer.opcode}, several times.",
            xla="the producer is expensive, and the consumer reuses inputs",
        )

    def _check_loops(self, producer: Candidate, consumer: Candidate) -> FusionDecision | None:
        loops = [m for m in producer.heavy if self._is_loop(producer, m)]
        if not loops:
            return None
        for reader in _readers(producer.instruction, consumer.instruction):
            if self._repeats(consumer, reader):
                return refuse(
                    _reuse_of(loops[0]),
                    f"`{reader.name}` would repeat the {loops[0].opcode} `{loops[0].name}`.",
                    xla="the fusion would create a heavy computation"
                    if self.nested_loops
                    else "the fusion would create a nested loop",
                    steps=_num_steps(loops[0]),
                    limit=_HEAVY_RATIO if self.nested_loops else 1,
                )
        return None

    def _is_loop(self, candidate: Candidate, member: HloInstruction) -> bool:
        """Whether each element of a member takes a loop that should not be repeated."""
        match member.opcode:
            case "reduce":
                is_nested = not candidate.is_unnested(member)
                return is_nested and (not self.nested_loops or _num_steps(member) > _HEAVY_RATIO)
            case "reduce-window" if self.nested_loops:
                return _num_steps(member) > _HEAVY_RATIO
            case "reduce-window":
                return _overlaps(member)
            case _:
                return False

    def _repeats(self, consumer: Candidate, reader: HloInstruction) -> bool:
        match reader.opcode:
            case "reduce-window":
                return _overlaps(reader)
            case "reduce":
                return not self.nested_loops and not consumer.is_unnested(reader)
            case "broadcast" | "gather":
                read = reader.operands[0].shape.num_elements
                return self.nested_loops and reader.shape.num_elements > read
            case _:
                return False


def _is_plain(edge: Edge) -> bool:
    """Whether a loop can compute both sides, and nothing but size and repeated work speaks against
    it: then neither need be looked into."""
    producer, consumer, _, growing = edge
    if producer.opcode not in _PLAIN:
        return False
    if growing is None:
        return consumer.opcode in _PLAIN
    return (
        not growing.heavy
        and consumer.fusion_kind == LOOP
        and not consumer.to_apply.ends_in(MAY_UPDATE)
    )


def check_coalescing(producer: Candidate, consumer: Candidate) -> FusionDecision | None:
    """Refuses transposes on the way into a reduction, which would read rows as columns."""
    if not producer.is_transposing or not consumer.is_reduction:
        return None
    return refuse(
        BoundaryReason.LAYOUT,
        f"`{producer.name}` transposes what the reduction `{consumer.name}` reads in rows.",
        xla="fusing the producer would break read coalescing",
    )


def check_epilogue(producer: Candidate, consumer: Candidate) -> FusionDecision | None:
    """Refuses what cannot follow a reduction in the reduction's kernel."""
    form = producer.reduction
    if form is None or not form.is_race_free:
        return refuse(
            BoundaryReason.REDUCTION_REUSE,
            f"Several blocks of threads make each result of `{producer.name}`.",
            xla="Reduction output fusion only works for race free reductions",
        )
    other = next((m for m in members(consumer.instruction) if not is_intermediate(m, 1)), None)
    if other is not None:
        return refuse(
            reason_of(producer.instruction),
            f"{describe(other)}, cannot follow a reduction in its kernel.",
            xla="Reductions from/to continuous dims epilogue not fusible",
        )
    if len(producer.instruction.users) > 1:
        return refuse(
            BoundaryReason.DUPLICATION,
            f"`{producer.name}` has {len(producer.instruction.users)} users.",
            xla="reduction output fusion only works for single user",
        )
    return None


def kind_of(consumer: Candidate) -> str:
    """Returns the kind of the fusion that a consumer ends."""
    return INPUT if consumer.is_input_fusible else LOOP


def _readers(producer: HloInstruction, consumer: HloInstruction) -> Iterator[HloInstruction]:
    """Yields what a producer's value goes through in a consumer."""
    if consumer.opcode != "fusion":
        yield consumer
        return
    stack = [
        parameter
        for operand, parameter in zip(consumer.operands, consumer.to_apply.parameters, strict=True)
        if operand is producer
    ]
    seen = set(stack)
    while stack:
        for user in stack.pop().users:
            if user not in seen:
                seen.add(user)
                stack.append(user)
                yield user


def _num_steps(member: HloInstruction) -> int:
    """Returns how many elements a reduction reads for each it makes."""
    if member.opcode == "reduce-window":
        return math.prod(dimension.size for dimension in member.proto.window.dimensions)
    read = member.operands[0].shape
    return math.prod(read.dimensions[dimension] for dimension in member.dimensions)


def _overlaps(window: HloInstruction) -> bool:
    return any(d.size > d.stride for d in window.proto.window.dimensions)


def _reuse_of(producer: HloInstruction) -> BoundaryReason:
    is_reduce = producer.opcode in ("reduce", "reduce-window")
    return BoundaryReason.REDUCTION_REUSE if is_reduce else BoundaryReason.OPERAND_REUSE
