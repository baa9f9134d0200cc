"""Rules of instruction fusion that all targets share: one edge, and why it may not be fused.

Source: xla/service/instruction_fusion.cc of 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, refuse
from fuselane.fusion.growing import RECOMPUTED_INDICES, GrowingFusion, count_uses
from fuselane.fusion.opcodes import is_fusible
from fuselane.fusion.reuse import reuses_operand
from fuselane.hlo.instruction import HloInstruction


@final
class Edge(NamedTuple):
    """An operand of an instruction, as a question: fuse it?

    Attributes:
        producer: The operand.
        consumer: The instruction.
        place: Which operand it is.
        growing: What is known of the consumer if it is a fusion, else None.
    """

    producer: HloInstruction
    consumer: HloInstruction
    place: int
    growing: GrowingFusion | None

    @property
    def is_reused(self) -> bool:
        """Whether the consumer reads elements of the producer several times."""
        if self.growing is not None:
            return self.growing.reused.get(self.producer, False)
        return reuses_operand(self.consumer, self.place)

    @staticmethod
    def of(consumer: HloInstruction, index: int) -> Edge:
        """Returns an edge whose consumer is looked at afresh."""
        growing = GrowingFusion(consumer) if consumer.opcode == "fusion" else None
        return Edge(consumer.operands[index], consumer, index, growing)


def check_fusible(edge: Edge) -> FusionDecision | None:
    """Refuses opcodes that no fusion may hold."""
    for side in (edge.producer, edge.consumer):
        if not is_fusible(side):
            detail = f"No fusion can hold {describe(side)}."
            return refuse(reason_of(side), detail)
    return None


def check_control_edges(producer: HloInstruction) -> FusionDecision | None:
    """Refuses a producer that has to run before or after others."""
    if producer.control_successors or producer.control_predecessors:
        detail = f"`{producer.name}` must run before or after others."
        return refuse(BoundaryReason.SIDE_EFFECT, detail)
    return None


def check_root(edge: Edge) -> FusionDecision | None:
    """Refuses the result of the computation, which has to be in memory."""
    if edge.producer.is_root:
        detail = f"`{edge.producer.name}` is the result of its computation."
        return refuse(BoundaryReason.EXIT, detail, xla="output of the root")
    return None


def check_duplication(
    edge: Edge, *, may_duplicate: bool, is_expensive: Callable[[HloInstruction], bool]
) -> FusionDecision | None:
    """Refuses a producer with other users that would be computed once more."""
    producer = edge.producer
    num_users = len(producer.users)
    if num_users == 1 or is_always_duplicable(producer):
        return None
    if not may_duplicate:
        detail = f"`{producer.name}` has {num_users} users, and this pass repeats no work."
        return refuse(
            BoundaryReason.DUPLICATION, detail, xla="pass cannot duplicate", users=num_users
        )
    if is_expensive(producer):
        detail = (
            f"`{producer.name}`, an expensive {producer.opcode}, would be computed for each of its"
            f" {num_users} users."
        )
        return refuse(
            BoundaryReason.EXPENSIVE_DUPLICATION,
            detail,
            xla="expensive producer would be duplicated",
            users=num_users,
        )
    return None


def check_code_duplication(
    edge: Edge, max_emissions: int, max_consumers: int = 1
) -> FusionDecision | None:
    """Refuses a producer whose code would be emitted too often in the consumer's.

    Broadcasts are always allowed. An opcode whose code cannot be shared between two consumers may
    be emitted, and have consumers, as often as `max_consumers` says.
    """
    if edge.growing is None or edge.producer.opcode == "broadcast":
        return None
    emissions = edge.growing.emissions(edge.producer)
    limit = max_emissions
    if edge.producer.opcode in RECOMPUTED_INDICES:
        emissions, limit = max(emissions, count_uses(edge.producer)), max_consumers
    if emissions <= limit:
        return None
    detail = (
        f"The code of `{edge.producer.name}` would stand {emissions} times in"
        f" `{edge.consumer.name}`, more than {limit}."
    )
    return refuse(
        BoundaryReason.CODE_DUPLICATION,
        detail,
        xla="overly large code duplication",
        emissions=emissions,
        limit=limit,
    )


def check_producer_is_no_fusion(edge: Edge) -> FusionDecision | None:
    """Refuses producers that are fusions: instruction fusion grows one by single instructions."""
    if edge.producer.opcode != "fusion":
        return None
    detail = f"`{edge.producer.name}` is a fusion already."
    return refuse(reason_of(edge.producer), detail, xla="producer is a fusion")


def is_always_duplicable(producer: HloInstruction) -> bool:
    """Whether repeating a producer costs less than reading its result: broadcasts, conversions to
    wider types."""
    if producer.opcode == "broadcast":
        return True
    if producer.opcode != "convert":
        return False
    return producer.operands[0].shape.element_type.bits < producer.shape.element_type.bits


def describe(side: HloInstruction) -> str:
    """Returns name and opcode of an instruction, as sentences have them; of what takes an element
    out of a tuple, which is that, and who makes it."""
    if side.opcode != "get-tuple-element":
        return f"`{side.name}`, {_with_article(side.opcode)}"
    maker, path = _maker_of(side)
    place = ".".join(map(str, path))
    part = "element" if maker.opcode in ("parameter", "tuple") else "result"
    return f"`{side.name}`, {part} {place} of the {maker.opcode} `{maker.name}`"


def _with_article(opcode: str) -> str:
    return f"{'an' if opcode[0] in 'aeio' else 'a'} {opcode}"


def _maker_of(element: HloInstruction) -> tuple[HloInstruction, list[int]]:
    """Returns what makes the tuple that an element is taken out of, and where in it that is."""
    path: list[int] = []
    while element.opcode == "get-tuple-element":
        path.insert(0, element.tuple_index)
        element = element.operands[0]
    return element, path


def reason_of(side: HloInstruction) -> BoundaryReason:
    """Returns why an instruction that cannot be fused is a boundary; an element of a tuple is one
    for the sake of who makes it."""
    if side.opcode == "get-tuple-element":
        maker, _ = _maker_of(side)
        if maker.opcode == "parameter":
            return BoundaryReason.TUPLE
        of_maker = reason_of(maker)
        is_plain = of_maker is BoundaryReason.NOT_FUSIBLE
        return BoundaryReason.MULTI_OUTPUT if is_plain else of_maker
    if side.opcode == "fusion":
        is_custom = side.fusion_kind == "kCustom"
        return BoundaryReason.LIBRARY_CALL if is_custom else BoundaryReason.NOT_FUSIBLE
    reason = _REASON_OF_OPCODE.get(side.opcode)
    if reason is None and side.has_side_effect:
        return BoundaryReason.SIDE_EFFECT
    return reason or BoundaryReason.NOT_FUSIBLE


_REASON_OF_OPCODE: Final = {
    "parameter": BoundaryReason.ENTRY,
    "while": BoundaryReason.LOOP_CONTROL,
    "conditional": BoundaryReason.CONDITIONAL,
    "custom-call": BoundaryReason.CUSTOM_CALL,
    "dot": BoundaryReason.LIBRARY_CALL,
    "convolution": BoundaryReason.LIBRARY_CALL,
    "fft": BoundaryReason.LIBRARY_CALL,
    "sort": BoundaryReason.SORT,
    "rng": BoundaryReason.RANDOM_NUMBERS,
    "rng-bit-generator": BoundaryReason.RANDOM_NUMBERS,
    "rng-get-and-update-state": BoundaryReason.RANDOM_NUMBERS,
    "tuple": BoundaryReason.TUPLE,
}
