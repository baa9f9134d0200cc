"""What XLA:GPU itself said about two kernels of its final module.

XLA records what its fusion pass refused and how long it expects kernels to take, under the names
instructions had then. Later passes rename fusions, so each kernel's name is followed back.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Final, final

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.edges import Edge
from fuselane.explain.emitters import get_wrapped
from fuselane.explain.same_values import SameValues
from fuselane.explain.units import plural
from fuselane.explain.why_in_place import explain_in_place
from fuselane.explain.why_several import for_several_results
from fuselane.fusion.opcodes import is_fusible
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.xla.captured import CapturedModule, CapturedStage, XlaRefusal

_RENAMING: Final = "rename_fusions"
_REASONS: Final[Sequence[tuple[str, BoundaryReason]]] = (
    ("output of the root", BoundaryReason.EXIT),
    ("producer is not fusible", BoundaryReason.NOT_FUSIBLE),
    ("consumer is not fusible", BoundaryReason.NOT_FUSIBLE),
    ("bitcast", BoundaryReason.NOT_FUSIBLE),
    ("contain a reduce", BoundaryReason.REDUCTION_INTO_REDUCTION),
    ("create a loop fusion", BoundaryReason.REDUCTION_REUSE),
    ("output of scatter", BoundaryReason.IN_PLACE),
    ("in-place", BoundaryReason.IN_PLACE),
    ("DUS", BoundaryReason.IN_PLACE),
    ("multiple dus", BoundaryReason.IN_PLACE),
    ("shared memory usage", BoundaryReason.BUDGET),
    ("unnested reductions in fusion", BoundaryReason.BUDGET),
    ("allowed budget", BoundaryReason.BUDGET),
    ("code duplication", BoundaryReason.CODE_DUPLICATION),
    ("huge IR", BoundaryReason.CODE_DUPLICATION),
    ("too large IR", BoundaryReason.CODE_DUPLICATION),
    ("execute slower", BoundaryReason.SLOWER),
    ("can not be tiled", BoundaryReason.NOT_FUSIBLE),
    ("valid tilings", BoundaryReason.NOT_FUSIBLE),
    ("heroless fusion", BoundaryReason.NOT_FUSIBLE),
    ("can not be duplicated", BoundaryReason.DUPLICATION),
    ("cannot duplicate", BoundaryReason.DUPLICATION),
    ("would be duplicated", BoundaryReason.EXPENSIVE_DUPLICATION),
    ("different loop shapes", BoundaryReason.LOOP_SHAPES),
    ("different shapes", BoundaryReason.LOOP_SHAPES),
)
"""Fragments of XLA's sentences, and what they come down to."""


@final
class GpuRefusals:
    """XLA:GPU's answers for the kernels of one module."""

    def __init__(
        self,
        captured: CapturedModule,
        module: HloModule,
        read_unfused: Callable[[], HloModule] | None = None,
    ) -> None:
        """Sorts what XLA said.

        Args:
            captured: What it did.
            module: The final module, whose edges are asked about.
            read_unfused: Returns the module before fusion, or None if it is not known.
        """
        self._module = module
        self._read_unfused = read_unfused
        self._former = _find_former_names(captured.stages, module)
        self._pairs: dict[tuple[str, str], XlaRefusal] = {}
        self._prices: dict[str, XlaRefusal] = {}
        self._whole: dict[str, XlaRefusal] = {}
        for refusal in captured.refusals:
            if refusal.consumer:
                self._pairs[refusal.producer, refusal.consumer] = refusal
                self._prices[refusal.producer] = refusal  # a price is for all consumers together
            else:
                self._whole[refusal.producer] = refusal

    def why(self, edge: Edge) -> BoundaryDecision | None:
        """Returns why XLA did not fuse a kernel into another, or None if nothing tells."""
        if edge.producer.shape.is_tuple:
            return for_several_results(edge.producer)
        decision = self._ask(self._former[edge.producer.name], edge)
        if decision is None:
            # What XLA left alone it wrapped into a fusion last, after it had decided about it.
            alone = self._values.former(edge.producer)
            decision = None if alone is None else self._ask(alone.name, edge)
        return decision or self._find_update(edge)

    def _find_update(self, edge: Edge) -> BoundaryDecision | None:
        """Answers for a value of which a user updates in place what it is made from.

        XLA notices that only when it is about to fuse the two, and says nothing.
        """
        producer = edge.producer
        decision = explain_in_place(producer, edge.consumer, self._values)
        if decision is not None:
            return decision
        users = [u for u in producer.users if u.opcode == "fusion"]
        other = next((u for u in users if explain_in_place(producer, u, self._values)), None)
        return None if other is None else _for_other_user(producer, other, "")

    def _ask(self, producer: str, edge: Edge) -> BoundaryDecision | None:
        """Returns what XLA said of a producer by a name it had."""
        whole = self._whole.get(producer)
        if whole is not None:
            return _from_refusal(whole, edge)
        other = _find_unfusible_user(edge.producer, edge.consumer)
        if other is not None:
            return _for_other_user(edge.producer, other, "")
        consumer = self._former[edge.consumer.name]
        priced = self._pairs.get((producer, consumer)) or self._prices.get(producer)
        if priced is not None:
            return _from_price(priced, edge)
        return None

    @functools.cached_property
    def _values(self) -> SameValues:
        unfused = None if self._read_unfused is None else self._read_unfused()
        return SameValues(self._module, unfused)


def _from_refusal(refusal: XlaRefusal, edge: Edge) -> BoundaryDecision:
    """Answers in XLA's words, which are about all users of the producer."""
    other = _find_unfusible_user(edge.producer, edge.consumer)
    if other is not None and "consumer is not fusible" in refusal.reason:
        return _for_other_user(edge.producer, other, refusal.reason)
    reason = next(
        (reason for words, reason in _REASONS if words in refusal.reason),
        BoundaryReason.NOT_FUSIBLE,
    )
    if get_wrapped(edge.producer).opcode == "concatenate" and len(edge.producer.users) > 1:
        reason = BoundaryReason.CONCATENATE_USERS
    detail = f"XLA kept `{edge.producer.name}` apart from what reads it: {refusal.reason}."
    return BoundaryDecision(reason=reason, detail=detail, xla=refusal.reason)


def _for_other_user(
    producer: HloInstruction, other: HloInstruction, words: str
) -> BoundaryDecision:
    """Answers for a value that something needs in memory anyway."""
    detail = (
        f"`{producer.name}` is also needed in memory, by `{other.name}` ({other.opcode}); XLA fuses"
        " a producer into all of its users or into none."
    )
    numbers = {"users": float(len(producer.users))}
    return BoundaryDecision(
        reason=BoundaryReason.MULTI_OUTPUT, detail=detail, xla=words, numbers=numbers
    )


def _from_price(priced: XlaRefusal, edge: Edge) -> BoundaryDecision | None:
    fused, unfused = priced.us_fused, priced.us_unfused
    if fused is None or unfused is None or fused < unfused:
        return None
    num_users = len(edge.producer.users)
    numbers = {"us_fused": fused, "us_unfused": unfused, "users": num_users}
    reason, where = BoundaryReason.SLOWER, "where it is read"
    if num_users > 1:
        where = f"in each of its {plural(num_users, 'user')}"
        if holds_concatenate(edge.producer):
            reason = BoundaryReason.CONCATENATE_USERS
    detail = (
        f"XLA expects {fused:.1f} µs with `{edge.producer.name}` computed {where} and"
        f" {unfused:.1f} µs as it is."
    )
    return BoundaryDecision(reason=reason, detail=detail, numbers=numbers)


def holds_concatenate(kernel: HloInstruction) -> bool:
    """Whether a kernel's result is a concatenation."""
    if kernel.opcode != "fusion":
        return kernel.opcode == "concatenate"
    root = kernel.called_computations[0].root
    while root.opcode in ("bitcast", "copy"):
        root = root.operands[0]
    return root.opcode == "concatenate"


def _find_unfusible_user(
    producer: HloInstruction, consumer: HloInstruction
) -> HloInstruction | None:
    """Returns another user of a value that no fusion can hold, or None."""
    for user in producer.users:
        if user is consumer or user.opcode == "get-tuple-element":
            continue
        if user.opcode in ("tuple", "copy") or not is_fusible(user):
            return user
    return None


def _find_former_names(stages: Sequence[CapturedStage], module: HloModule) -> dict[str, str]:
    """Returns the names that the final module's instructions had before fusions were renamed.

    Renaming keeps ids. A fusion made later around one instruction stands for that.
    """
    renamed: dict[str, str] = {}
    for before, after in itertools.pairwise(stages):
        if after.name == _RENAMING:
            old = {i.id: i.name for c in before.module().computations for i in c.instructions}
            new = {i.id: i.name for c in after.module().computations for i in c.instructions}
            renamed = {name: old[key] for key, name in new.items() if key in old}
    former: dict[str, str] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            name = instruction.name
            wrapped = get_wrapped(instruction).name.rpartition(".")[0]
            former[name] = renamed.get(name) or (wrapped if name.startswith("wrapped_") else name)
    return former
