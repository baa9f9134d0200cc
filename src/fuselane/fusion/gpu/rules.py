"""XLA:GPU's tests of legality: may this producer become part of that consumer's kernel?

Source: PriorityFusion's CanFuse of 2026 (xla/backends/gpu/transforms/priority_fusion.cc) and
xla/service/gpu/gpu_fusible.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, refuse
from fuselane.fusion.gpu.emitters import Emitter
from fuselane.fusion.gpu.kernel_cost import KernelCost
from fuselane.fusion.gpu.region import Opcodes, roots_of
from fuselane.fusion.gpu.shapes import tiled_transpose, unnested_form
from fuselane.fusion.in_place import IN_PLACE, check_in_place, members
from fuselane.fusion.opcodes import (
    ELEMENTWISE,
    is_effective_scalar,
    is_elementwise,
    leaf_shapes,
    opcodes,
)
from fuselane.fusion.rules import describe, reason_of
from fuselane.hlo.instruction import HloInstruction

_FUSIBLE: Final = ELEMENTWISE | opcodes(
    "broadcast concatenate constant copy dynamic-slice dynamic-update-slice gather iota "
    "pad reduce reduce-window reshape reverse scatter slice transpose"
)
_SHARING: Final = frozenset({"reduce", "transpose"})
"""Opcodes that may take shared memory."""

_UPDATING: Final = frozenset({"dynamic-update-slice", "scatter"})
_GUARDED: Final = _SHARING | _UPDATING

_SIGNIFICANT_RATIO: Final = 16
_FEW_COPIES: Final = 16
"""Fewer copies of any operand's code than this leave room for operands as large as the kernel."""


def is_fusible_on_gpu(instruction: HloInstruction) -> bool:
    """Whether XLA:GPU's priority fusion looks at an instruction at all."""
    if instruction.opcode in _FUSIBLE:
        return True
    if instruction.opcode == "fusion":
        return instruction.fusion_kind != "kCustom"
    return is_elementwise(instruction) or is_free_bitcast(instruction)


def is_free_bitcast(instruction: HloInstruction) -> bool:
    """Whether an instruction is a bitcast that keeps the width of elements."""
    if instruction.opcode != "bitcast":
        return False
    return instruction.shape.element_type.bits == instruction.operands[0].shape.element_type.bits


def is_plain(instruction: HloInstruction, opcodes: Opcodes) -> bool:
    """Whether nothing but the size of kernels speaks against fusing an instruction, which computes
    these opcodes, and another plain one."""
    return (
        opcodes.isdisjoint(_GUARDED)
        and instruction.opcode != "bitcast"
        and is_fusible_on_gpu(instruction)
    )


@final
@dataclass(frozen=True, slots=True)
class Demands:
    """What the reductions and transposes in a kernel ask for.

    Attributes:
        shared_bytes: Shared memory of a block.
        reductions: Reductions that the reduction emitter makes.
        is_significant: Whether anything in it reduces at least 16 elements to one.
    """

    shared_bytes: int = 0
    reductions: int = 0
    is_significant: bool = False

    def plus(self, other: Demands) -> Demands:
        """Returns what a kernel asks for that computes all that two do."""
        if other is NO_DEMANDS or self is NO_DEMANDS:
            return self if other is NO_DEMANDS else other
        return Demands(
            self.shared_bytes + other.shared_bytes,
            self.reductions + other.reductions,
            self.is_significant or other.is_significant,
        )


NO_DEMANDS: Final = Demands()
"""Of kernels that neither reduce nor transpose."""


def demands_of(instruction: HloInstruction, opcodes: Opcodes) -> Demands:
    """Returns what an instruction asks for that computes these opcodes."""
    if opcodes.isdisjoint(_SHARING):
        return NO_DEMANDS
    heavy = [member for member in members(instruction) if member.opcode in _SHARING]
    return Demands(
        shared_bytes=sum(map(shared_bytes, heavy)),
        reductions=sum(unnested_form(member) is not None for member in heavy),
        is_significant=any(map(_is_significant, heavy)),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRules:
    """Limits of XLA:GPU's kernels.

    Attributes:
        max_shared_bytes: Shared memory of a block.
        max_reductions: Most reductions the reduction emitter makes in one kernel.
        max_operands: Most operands and results of a kernel, together.
        max_code_size: Most instructions a kernel's code may have, repetitions included.
        max_branches: Most instructions that began new blocks of code, until 2024; each of them also
            doubled the code. Below zero they say nothing.
        tiled_emitters: Reductions and transposes have emitters that share memory between threads;
            if not, as on CPUs, the first two limits say nothing.
    """

    max_shared_bytes: int = 49152
    max_reductions: int = 8
    max_operands: int = 96
    max_code_size: int = 10_000
    max_branches: int = -1
    tiled_emitters: bool = True

    def check(
        self,
        producer: HloInstruction,
        consumer: HloInstruction,
        opcodes: Opcodes,
        costs: tuple[KernelCost, KernelCost],
        demands: tuple[Demands, Demands],
        emitters: tuple[Emitter, Emitter],
    ) -> FusionDecision | None:
        """Refuses what XLA:GPU does of the edges that `check_pair` allows, whatever is gained.

        Args:
            producer: An operand of `consumer`.
            consumer: A fusion or any other instruction.
            opcodes: Of what the two compute.
            costs: Of the producer and of the consumer.
            demands: Of both, as well.
            emitters: What makes a kernel of the producer, and what would make one of both.
        """
        return (
            (check_scatter(producer, consumer) if "scatter" in opcodes else None)
            or _check_reductions(producer, consumer, demands, emitters)
            or self._check_demands(*demands)
            or self.check_size(producer, consumer, *costs, consumer.operands.index(producer))
            or (None if IN_PLACE.isdisjoint(opcodes) else check_in_place(producer, consumer))
        )

    def takes_plain(self, consumer: HloInstruction, opcodes: Opcodes, demands: Demands) -> bool:
        """Whether nothing but the size of kernels speaks against computing a plain instruction in a
        consumer, which computes these opcodes and asks for that."""
        return (
            opcodes.isdisjoint(_UPDATING)
            and consumer.opcode != "bitcast"
            and is_fusible_on_gpu(consumer)
            and self._check_demands(NO_DEMANDS, demands) is None
        )

    def is_light(self, width: int, cost: KernelCost) -> bool:
        """Whether `check_size` surely allows any two that are.

        Args:
            width: Operands and results, repetitions included.
            cost: Of the kernel.
        """
        is_short = cost.copies < _FEW_COPIES and cost.code_size * _FEW_COPIES <= self.max_code_size
        return 2 * width < self.max_operands and is_short

    def check_size(
        self,
        producer: HloInstruction,
        consumer: HloInstruction,
        of: KernelCost,
        into: KernelCost,
        place: int,
    ) -> FusionDecision | None:
        """Refuses kernels that would be too large; all that `check` does where both are plain.

        The producer is the consumer's operand at `place`, and costs are known of both.
        """
        size = into.code_size + into.operands[place].emissions * of.code_size
        return self.check_operands(producer, consumer, is_vertical=True) or (
            None if size <= self.max_code_size else _refuse_code(size, self.max_code_size)
        )

    def check_heavy(self, members: Sequence[HloInstruction]) -> FusionDecision | None:
        """Refuses kernels of these members that would take too much shared memory or hold too many
        reductions."""
        if not self.tiled_emitters:
            return None
        heavy = [member for member in members if member.opcode in _SHARING]
        if not heavy:
            return None
        reductions = sum(unnested_form(member) is not None for member in heavy)
        return self._check_sharing(sum(map(shared_bytes, heavy)), reductions)

    def _check_demands(self, of: Demands, into: Demands) -> FusionDecision | None:
        shared = of.shared_bytes + into.shared_bytes
        return self._check_sharing(shared, of.reductions + into.reductions)

    def _check_sharing(self, shared: int, reductions: int) -> FusionDecision | None:
        if not self.tiled_emitters:
            return None
        if shared > self.max_shared_bytes:
            detail = f"The kernel would need {shared} bytes of shared memory per block."
            return refuse(
                BoundaryReason.BUDGET,
                detail,
                xla="shared memory usage would be over the budget",
                shared_bytes=shared,
                limit=self.max_shared_bytes,
            )
        if reductions > self.max_reductions:
            detail = f"The kernel would compute {reductions} reductions."
            return refuse(
                BoundaryReason.BUDGET,
                detail,
                xla="over 8 unnested reductions in fusion",
                reductions=reductions,
                limit=self.max_reductions,
            )
        return None

    def check_operands(
        self, left: HloInstruction, right: HloInstruction, *, is_vertical: bool
    ) -> FusionDecision | None:
        """Refuses kernels that would have too many operands and results.

        Args:
            left: The producer, or a sibling.
            right: The consumer, or another sibling.
            is_vertical: Whether `left` is an operand of `right`, which is accepted if the number of
                operands does not grow.
        """
        leaves = left.shape.num_leaves + right.shape.num_leaves
        if len(left.operands) + len(right.operands) + leaves < self.max_operands:
            return None  # even if both results are tuples
        outputs = _num_outputs(left) + _num_outputs(right)
        operands = {*left.operands, *right.operands}
        operands -= {left, right}
        if is_vertical and len(operands) <= len(right.operands):
            return None
        total = len(operands) + outputs
        if total <= self.max_operands:
            return None
        return refuse(
            BoundaryReason.BUDGET,
            f"The kernel would have {total} operands and results.",
            xla="number of operands and outputs exceeds the allowed budget",
            operands=total,
            limit=self.max_operands,
        )

    def check_code(
        self, producer: HloInstruction, consumer: HloInstruction, of: KernelCost, into: KernelCost
    ) -> FusionDecision | None:
        """Refuses kernels whose code would be too large."""
        times = emissions(producer, consumer, into)
        size, branches = into.code_size + times * of.code_size, into.branches + times * of.branches
        if self.max_branches < 0:
            branches = 0
        elif branches > self.max_branches:
            return refuse(
                BoundaryReason.CODE_DUPLICATION,
                f"The code of `{consumer.name}` would have {branches} concatenations, pads,"
                " reductions or the like, after each of which much is computed again.",
                xla="will generate huge IR",
                branches=branches,
                limit=self.max_branches,
            )
        size <<= branches
        if size <= self.max_code_size:
            return None
        return refuse(
            BoundaryReason.CODE_DUPLICATION,
            f"The code of `{consumer.name}` would have {size} instructions.",
            xla="will generate huge IR",
            instructions=size,
            limit=self.max_code_size,
        )


_SCATTERING: Final = frozenset({"scatter", "tuple"})
"""Opcodes of roots that are scatters, or name what may be."""


def _refuse_code(size: int, limit: int) -> FusionDecision:
    return refuse(
        BoundaryReason.CODE_DUPLICATION,
        f"The code of the kernel would have {size} instructions.",
        xla="overly large code duplication",
        instructions=size,
        limit=limit,
    )


def emissions(producer: HloInstruction, consumer: HloInstruction, into: KernelCost) -> int:
    """Returns how often a consumer's code would hold that of an operand."""
    return into.operands[consumer.operands.index(producer)].emissions


def check_pair(producer: HloInstruction, consumer: HloInstruction) -> FusionDecision | None:
    """Refuses opcodes without a fused form, results of the program and lone bitcasts."""
    if producer.is_root:
        detail = f"`{producer.name}` is the result of its computation."
        return refuse(BoundaryReason.EXIT, detail, xla="output of the root")
    if not is_fusible_on_gpu(producer):
        return _refuse_form(producer, "producer")
    if not is_fusible_on_gpu(consumer):
        return _refuse_form(consumer, "consumer")
    if is_free_bitcast(consumer):
        detail = f"`{consumer.name}` is a bitcast, which needs no kernel."
        return refuse(BoundaryReason.NOT_FUSIBLE, detail, xla="not fusing into a single bitcast")
    return None


def _refuse_form(side: HloInstruction, role: str) -> FusionDecision:
    detail = f"XLA:GPU has no fused form of {describe(side)}."
    return refuse(reason_of(side), detail, xla=f"the {role} is not fusible")


def check_scatter(producer: HloInstruction, consumer: HloInstruction) -> FusionDecision | None:
    """Refuses a scatter as a producer, and producers of or readers of the array it updates."""
    if not (_may_scatter(producer) or _may_scatter(consumer)):
        return None
    if any(root.opcode == "scatter" for root in roots_of(producer)):
        detail = f"`{producer.name}` ends in a scatter, whose results are in memory."
        return refuse(BoundaryReason.IN_PLACE, detail, xla="output of scatter")
    root = roots_of(consumer)[0]
    if root.opcode != "scatter":
        return None
    outside = (
        dict(zip(consumer.to_apply.parameters, consumer.operands, strict=True))
        if (consumer.opcode == "fusion")
        else {}
    )
    buffer = outside.get(root.operands[0], root.operands[0])
    if buffer is producer or buffer in producer.operands:
        detail = f"`{consumer.name}` updates `{buffer.name}` in place."
        return refuse(BoundaryReason.IN_PLACE, detail, xla="in-place operand of scatter")
    return None


def _may_scatter(instruction: HloInstruction) -> bool:
    """Whether any result may be a scatter's; a body that is yet to be made is not made for this."""
    if instruction.opcode != "fusion":
        return instruction.opcode == "scatter"
    return instruction.to_apply.ends_in(_SCATTERING)


def _check_reductions(
    producer: HloInstruction,
    consumer: HloInstruction,
    demands: tuple[Demands, Demands],
    emitters: tuple[Emitter, Emitter],
) -> FusionDecision | None:
    of, into = demands
    if of.is_significant and into.is_significant:
        detail = f"`{producer.name}` and `{consumer.name}` both reduce."
        return refuse(BoundaryReason.REDUCTION_INTO_REDUCTION, detail, xla="both contain a reduce")
    if emitters == (Emitter.REDUCTION, Emitter.LOOP):
        detail = f"The reduction `{producer.name}` would be computed by single threads."
        return refuse(BoundaryReason.REDUCTION_REUSE, detail, xla="would create a loop fusion")
    return None


def _is_significant(member: HloInstruction) -> bool:
    """Whether a member reduces at least 16 elements to each of an array's."""
    if member.opcode != "reduce" or not member.shape.is_array:
        return False
    read = member.operands[0].shape.num_elements
    return read >= _SIGNIFICANT_RATIO * member.shape.num_elements


def shared_bytes(member: HloInstruction) -> int:
    """Returns the shared memory a member takes per block."""
    form = unnested_form(member)
    if form is not None:
        shapes = leaf_shapes(member.shape)
        size = sum(shape.element_type.byte_size for shape in shapes)
        return size * (32 if form.is_row else 32 * (4 * 32 + 1))
    if tiled_transpose(member) is not None:
        return 32 * 33 * member.shape.element_type.byte_size
    return 0


def is_small_constant(instruction: HloInstruction) -> bool:
    """Whether it is a constant of one element, which every kernel holds a copy of."""
    return instruction.opcode == "constant" and is_effective_scalar(instruction.shape)


def _num_outputs(instruction: HloInstruction) -> int:
    shapes = instruction.shape.num_leaves
    return shapes + 1 if instruction.shape.is_tuple else shapes
