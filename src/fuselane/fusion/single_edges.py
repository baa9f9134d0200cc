"""Single decisions: a producer into a consumer's kernel, or a value into a kernel of its own.

    fuse-edge{producer=1,consumer=2}                  computed in the consumer, once more if others
                                                      read it too
    fuse-edge{producer=1,consumer=2,returned=true}    computed in the consumer only, and returned
    split-kernel{kernel=2,value=1}                    not computed in the consumer any more

Kernels and values are named by numbers that stay, see `fusion.values`. A kernel is named by any
value it returns. `edges_around` and `splits_of` name all there are in a module.

Does not handle: producers with several results as operands; what reads them can be their sibling.
Results of several shapes in one kernel, which XLA:GPU computes around a reduction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.cpu_rules import is_loop_fusible_on_cpu
from fuselane.fusion.decision import FusionDecision, FusionLog, FusionStep, allow, refuse
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.in_place import check_in_place
from fuselane.fusion.rules import reason_of
from fuselane.fusion.traversal import Reachability, sequential_computations
from fuselane.fusion.values import Values
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_NO_KERNELS: Final = frozenset({"bitcast", "constant", "copy"})
"""Opcodes that are in loops, but are not worth one of their own, or nothing at all."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FuseEdge:
    """Computes a producer in a consumer's kernel, or two siblings in one, where that can be.

    Attributes:
        producer: A value that one kernel returns.
        consumer: A value that another one returns.
        returned: The producer's value is also returned to all others that read it, so that it is
            computed once. Always so for siblings.
    """

    name: ClassVar[str] = "fuse-edge"
    producer: int = 0
    consumer: int = 0
    returned: bool = False

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Fuses the edge wherever it is; returns whether it was."""
        changed = False
        for number, computation in enumerate(sequential_computations(module)):
            values = Values(computation, number)
            producer = _find(values, self.producer)
            consumer = _find(values, self.consumer)
            if producer is None or consumer is None or producer is consumer:
                continue
            decision = self._decide(computation, producer, consumer)
            fusion = ""
            if decision.can_fuse:
                fusion = self._fuse(module, computation, producer, consumer)
                changed = True
            log.append(
                FusionStep(
                    pass_name=self.name,
                    producer=producer.name,
                    consumer=consumer.name,
                    decision=decision,
                    fusion=fusion,
                )
            )
        return changed

    def _decide(
        self, computation: HloComputation, producer: HloInstruction, consumer: HloInstruction
    ) -> FusionDecision:
        for side in (producer, consumer):
            if not _is_kernel(side):
                return refuse(reason_of(side), f"`{side.name}` is no kernel that can be fused.")
        is_operand = producer in consumer.operands
        if is_operand and producer.shape.is_tuple:
            detail = f"`{producer.name}` has several results."
            return refuse(BoundaryReason.MULTI_OUTPUT, detail)
        if is_operand and not self.returned:
            refusal = check_in_place(producer, consumer)
            return refusal or allow(f"`{producer.name}` is computed in `{consumer.name}`.")
        if _extent(producer) != _extent(consumer):
            sizes = f"{list(_extent(producer))} and {list(_extent(consumer))}"
            return refuse(
                BoundaryReason.LOOP_SHAPES,
                f"One loop cannot compute the results of `{producer.name}` and `{consumer.name}`,"
                f" of the shapes {sizes}.",
            )
        reach = Reachability(computation.post_order())
        users = [user for user in producer.users if user is not consumer]
        if any(reach.is_reachable(u, consumer) for u in users) or reach.is_reachable(
            consumer, producer
        ):
            detail = f"The kernel of `{producer.name}` and `{consumer.name}` would need itself."
            return refuse(BoundaryReason.MULTI_OUTPUT, detail)
        refusal = check_in_place(producer, consumer) or check_in_place(consumer, producer)
        return refusal or allow(f"`{producer.name}` and `{consumer.name}` become one kernel.")

    def _fuse(
        self,
        module: HloModule,
        computation: HloComputation,
        producer: HloInstruction,
        consumer: HloInstruction,
    ) -> str:
        fuser = Fuser(module, computation)
        kind = consumer.fusion_kind or LOOP
        if producer not in consumer.operands:
            fusion = fuser.fuse_siblings(consumer, producer, kind)
        elif self.returned:
            fusion = fuser.fuse_multi_output(producer, consumer, kind)
        else:
            fusion, _ = fuser.fuse(producer, consumer, kind)
        fuser.finish()
        return fusion.name


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKernel:
    """Takes a value, and all that only it needs, out of a kernel and into one of its own.

    Attributes:
        kernel: A value the kernel returns.
        value: One that is computed in it.
    """

    name: ClassVar[str] = "split-kernel"
    kernel: int = 0
    value: int = 0

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Splits the kernel wherever it is; returns whether it was."""
        changed = False
        for number, computation in enumerate(sequential_computations(module)):
            values = Values(computation, number)
            fusion = _find(values, self.kernel)
            if fusion is None or fusion not in values.members:
                continue
            members = values.members[fusion]
            member = next((m for m, value in members.items() if value == self.value), None)
            if member is None or not _can_stand_alone(member):
                continue
            first = _extract(module, computation, fusion, member, None)
            second = _extract(module, computation, fusion, fusion.to_apply.root, (member, first))
            fusion.drop_control_edges()
            fusion.replace_all_uses_with(second)
            Fuser(module, computation).finish()
            changed = True
            decision = refuse(BoundaryReason.SLOWER, "The two were told to be two kernels.")
            log.append(
                FusionStep(
                    pass_name=self.name,
                    producer=first.name,
                    consumer=second.name,
                    decision=decision,
                )
            )
        return changed


def edges_around(module: HloModule) -> Iterator[FuseEdge]:
    """Yields every edge between two kernels of a module, and siblings that read the same value."""
    for number, computation in enumerate(sequential_computations(module)):
        values = Values(computation, number)
        for producer in computation.instructions:
            kernels = [user for user in dict.fromkeys(producer.users) if _is_kernel(user)]
            if _is_kernel(producer):
                for consumer in kernels:
                    ends = values.outputs[producer][0], values.outputs[consumer][0]
                    yield FuseEdge(producer=ends[0], consumer=ends[1])
                    is_shared = len(producer.users) > 1 or producer.is_root
                    if is_shared and _extent(producer) == _extent(consumer):
                        yield FuseEdge(producer=ends[0], consumer=ends[1], returned=True)
            for at, left in enumerate(kernels):
                for right in kernels[at + 1 :]:
                    if _extent(left) == _extent(right):
                        ends = values.outputs[left][0], values.outputs[right][0]
                        yield FuseEdge(producer=ends[0], consumer=ends[1], returned=True)


def splits_of(module: HloModule) -> Iterator[SplitKernel]:
    """Yields every value that is used several times in one kernel of a module."""
    for number, computation in enumerate(sequential_computations(module)):
        values = Values(computation, number)
        for fusion, members in values.members.items():
            for member, value in members.items():
                if len(member.users) > 1 and _can_stand_alone(member):
                    yield SplitKernel(kernel=values.outputs[fusion][0], value=value)


def _find(values: Values, number: int) -> HloInstruction | None:
    """Returns the kernel that returns a value, or whatever else does."""
    for instruction, outputs in values.outputs.items():
        if number in outputs and instruction.opcode not in ("get-tuple-element", "tuple"):
            return instruction
    return None


def _is_kernel(instruction: HloInstruction) -> bool:
    if instruction.opcode == "fusion":
        return instruction.fusion_kind != "kCustom"
    return instruction.opcode not in _NO_KERNELS and is_loop_fusible_on_cpu(instruction)


def _can_stand_alone(member: HloInstruction) -> bool:
    return _is_kernel(member) and not member.is_root


def _extent(kernel: HloInstruction) -> tuple[int, ...]:
    """Returns the sizes a kernel's loop runs over."""
    shape = kernel.shape.tuple_shapes[0] if kernel.shape.is_tuple else kernel.shape
    return shape.dimensions


def _extract(
    module: HloModule,
    computation: HloComputation,
    fusion: HloInstruction,
    root: HloInstruction,
    known: tuple[HloInstruction, HloInstruction] | None,
) -> HloInstruction:
    """Adds a fusion that computes a member of another one, and returns it.

    Args:
        module: Where.
        computation: Where in it.
        fusion: The other one.
        root: The member.
        known: A member that need not be computed, and what it is outside.
    """
    outside = dict(zip(fusion.to_apply.parameters, fusion.operands, strict=True))
    if known is not None:
        outside[known[0]] = known[1]
    body = HloComputation.create("fused_computation")
    body.proto.is_fusion_computation = True
    operands: list[HloInstruction] = []
    copies: dict[HloInstruction, HloInstruction] = {}
    for member in _cone(root, outside):
        if member not in outside:
            copies[member] = body.add(member.clone([copies[o] for o in member.operands]))
            continue
        operand = outside[member]
        if operand not in operands:
            operands.append(operand)
            parameter = HloInstruction.create(
                "parameter", operand.shape, parameter_number=len(operands) - 1
            )
            copies[member] = body.add(parameter)
        else:
            copies[member] = body.parameters[operands.index(operand)]
    body.root = copies[root]
    module.add(body)
    part = computation.add(
        HloInstruction.create(
            "fusion",
            root.shape,
            operands,
            name=fusion.name,
            called_computations=[body],
            fusion_kind=LOOP,
            metadata=root.metadata,
        )
    )
    fusion.copy_control_edges_to(part)
    return part


def _cone(
    root: HloInstruction, outside: dict[HloInstruction, HloInstruction]
) -> list[HloInstruction]:
    """Returns what a member needs, itself included, operands first, up to what is outside."""
    order: list[HloInstruction] = []
    done: set[HloInstruction] = set()
    stack = [(root, False)]
    while stack:
        member, is_ready = stack.pop()
        if member in done:
            continue
        if is_ready or member in outside:
            done.add(member)
            order.append(member)
            continue
        stack.append((member, True))
        stack.extend((operand, False) for operand in reversed(member.operands))
    return order
