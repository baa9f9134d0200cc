"""What a fusion strategy decided: one value per question asked, yes and no alike, and their log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, final

from fuselane.boundary import BoundaryDecision, BoundaryReason

_NO_NUMBERS: Final[Mapping[str, float]] = MappingProxyType({})


@final
class FusionDecision(NamedTuple):
    """Whether a producer may become part of a consumer's kernel.

    Attributes:
        reason: The kind of refusal, or None where nothing speaks against it.
        detail: This case in one plain sentence, with its numbers.
        xla: What XLA itself says in this case, or "".
        numbers: What was compared, by name with its unit at the end, such as `operands`, `limit`.
    """

    reason: BoundaryReason | None
    detail: str
    xla: str = ""
    numbers: Mapping[str, float] = _NO_NUMBERS

    @property
    def can_fuse(self) -> bool:
        """Whether the answer is yes."""
        return self.reason is None

    def boundary(self) -> BoundaryDecision:
        """Returns a refusal as `explain` has it; UNKNOWN for a yes, which leaves no boundary."""
        return BoundaryDecision(
            reason=self.reason or BoundaryReason.UNKNOWN,
            detail=self.detail,
            xla=self.xla,
            numbers=dict(self.numbers),
        )


def allow(detail: str, **numbers: float) -> FusionDecision:
    """Returns a yes."""
    return FusionDecision(None, detail, "", numbers)


def refuse(
    reason: BoundaryReason, detail: str, *, xla: str = "", **numbers: float
) -> FusionDecision:
    """Returns a no."""
    return FusionDecision(reason, detail, xla, numbers)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FusionStep:
    """One question a pass asked, and its answer.

    Attributes:
        pass_name: Name of the pass, such as `instruction-fusion`.
        producer: Name of the producer at that time.
        consumer: Name of the consumer at that time, or "" if all users were asked about at once.
        decision: The answer.
        fusion: Name of the fusion instruction that was made or grown, or "" if none was.
    """

    pass_name: str
    producer: str
    consumer: str
    decision: FusionDecision
    fusion: str = ""


class Named(Protocol):
    """An instruction, or what stands for one."""

    @property
    def name(self) -> str:
        """The instruction's name."""


@final
class FusionLog:
    """The steps of a pipeline over one module, oldest first; made when they are read."""

    def __init__(self) -> None:
        self._notes: list[tuple[str, str, str, FusionDecision, str]] = []

    def append(self, step: FusionStep) -> None:
        """Adds a step."""
        self._notes.append(
            (step.pass_name, step.producer, step.consumer, step.decision, step.fusion)
        )

    def note(
        self,
        pass_name: str,
        producer: Named,
        consumer: Named | None,
        decision: FusionDecision,
        fusion: Named | None = None,
    ) -> None:
        """Adds a step about instructions as they are called now; None for no consumer or fusion."""
        consumer_name = consumer.name if consumer is not None else ""
        fusion_name = fusion.name if fusion is not None else ""
        self._notes.append((pass_name, producer.name, consumer_name, decision, fusion_name))

    @property
    def steps(self) -> list[FusionStep]:
        """All of them."""
        return list(self)

    def __iter__(self) -> Iterator[FusionStep]:
        for pass_name, producer, consumer, decision, fusion in self._notes:
            yield FusionStep(
                pass_name=pass_name,
                producer=producer,
                consumer=consumer,
                decision=decision,
                fusion=fusion,
            )

    def __len__(self) -> int:
        return len(self._notes)

    def refusals(self) -> dict[tuple[str, str], FusionDecision]:
        """Returns the last answer for each pair of producer and consumer that was refused last."""
        last = {
            (producer, consumer): decision for _, producer, consumer, decision, _ in self._notes
        }
        return {pair: decision for pair, decision in last.items() if not decision.can_fuse}
