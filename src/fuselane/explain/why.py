"""Why an edge is a boundary: what follows from where the value crosses, for every target.

A value in a loop's state, an argument, a result, a copy, a call of a library: these are boundaries
whatever the fusion pass thinks of them. What is left are two kernels that might have been one; for
those the target's own rules answer (`why_cpu`, `why_gpu`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, final

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.edges import Edge, EdgeKind
from fuselane.explain.emitters import (
    COLLECTIVE_OPCODES,
    COPY_OPCODES,
    LIBRARY_OPCODES,
    get_emitter,
    get_kind,
    get_sort,
    get_wrapped,
    is_library,
)
from fuselane.explain.random_numbers import makes_random_numbers
from fuselane.explain.units import format_bytes, plural
from fuselane.fusion.rules import describe
from fuselane.hlo.instruction import HloInstruction

Rules = Callable[[Edge], BoundaryDecision | None]
"""The target's answer for two kernels, or None if its rules would have fused them."""

_SIDE_EFFECTS: Final = frozenset({"infeed", "outfeed", "recv", "send"})


@final
class Judge:
    """Gives every edge its reason."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._random: dict[HloInstruction, bool] = {}

    def decide(self, edge: Edge) -> BoundaryDecision:
        """Returns why an edge is a boundary."""
        decision = self._from_place(edge) or self._from_sides(edge)
        if decision is None:
            decision = self._rules(edge)
        if decision is None:
            detail = f"No rule of XLA's keeps `{edge.producer.name}` and `{edge.consumer.name}`"
            decision = _decide(BoundaryReason.UNKNOWN, f"{detail} apart.", edge)
        return decision

    def _from_place(self, edge: Edge) -> BoundaryDecision | None:
        """Answers where it is not two kernels of one iteration that meet."""
        size, made = format_bytes(edge.num_bytes), f"`{edge.producer.name}`"
        reads = f"`{edge.consumer.name}`"
        match edge.kind:
            case EdgeKind.EXIT:
                return _decide(
                    BoundaryReason.EXIT, f"{made} is a result of the program, {size}.", edge
                )
            case EdgeKind.ENTRY if get_wrapped(edge.consumer).opcode not in COPY_OPCODES:
                detail = f"{reads} reads {size} of the argument {made}."
                return _decide(BoundaryReason.ENTRY, detail, edge)
            case EdgeKind.CONSTANT if get_wrapped(edge.consumer).opcode not in COPY_OPCODES:
                detail = f"{reads} reads the constant {made}, {size}, from memory."
                return _decide(BoundaryReason.CONSTANT, detail, edge)
            case EdgeKind.PREDICATE:
                return self._from_predicate(edge)
            case EdgeKind.BRANCH:
                detail = f"{made} and {reads} are on two sides of a branch, which is chosen at run"
                return _decide(BoundaryReason.CONDITIONAL, f"{detail} time.", edge)
            case EdgeKind.INITIAL | EdgeKind.CARRIED | EdgeKind.FINAL | EdgeKind.INVARIANT:
                return self._from_loop(edge)
        return None

    def _from_predicate(self, edge: Edge) -> BoundaryDecision:
        if edge.carrier is None:
            detail = f"`{edge.producer.name}` decides which branch `{edge.consumer.name}` takes."
            return _decide(BoundaryReason.CONDITIONAL, detail, edge)
        detail = f"`{edge.producer.name}` decides before each iteration whether"
        return _decide(
            BoundaryReason.LOOP_CONTROL, f"{detail} `{edge.carrier.name}` goes on.", edge
        )

    def _from_loop(self, edge: Edge) -> BoundaryDecision:
        loop, size = edge.carrier, format_bytes(edge.num_bytes)
        assert loop is not None
        made, reads, name = f"`{edge.producer.name}`", f"`{edge.consumer.name}`", f"`{loop.name}`"
        if edge.kind is EdgeKind.FINAL and self._makes_random(edge.producer):
            return self._decide_random(edge)
        what = _describe_element(edge)
        match edge.kind:
            case EdgeKind.INITIAL:
                detail = f"{made} makes {what} of {name}, {size}, before its first iteration."
            case EdgeKind.CARRIED:
                detail = (
                    f"{made} writes {what} of {name}, and {reads} reads it in the next iteration:"
                    f" {size} through memory each time."
                )
            case EdgeKind.INVARIANT:
                detail = f"{made} runs before {name}, and {reads} reads {size} of it in each"
                detail += " iteration."
            case _:
                detail = f"{reads} reads {what} that {name} leaves, {size}."
        return _decide(BoundaryReason.LOOP_CONTROL, detail, edge)

    def _from_sides(self, edge: Edge) -> BoundaryDecision | None:
        """Answers where one of the two is no fusion of XLA's, nor could be part of one."""
        sides = (edge.producer, edge.consumer)
        for side in sides:
            copy = get_wrapped(side)
            if copy.opcode in COPY_OPCODES:
                return _decide_copy(side.name, copy, edge)
        if self._makes_random(edge.producer) and not self._makes_random(edge.consumer):
            return self._decide_random(edge)
        for side in sides:
            decision = _decide_side(side, edge)
            if decision is not None:
                return decision
        return None

    def _decide_random(self, edge: Edge) -> BoundaryDecision:
        what = "loop" if edge.producer.opcode == "while" else "kernel"
        detail = (
            f"A {what} of its own, `{edge.producer.name}`, makes random bits, and"
            f" `{edge.consumer.name}` reads {format_bytes(edge.num_bytes)} of them from memory."
        )
        return _decide(BoundaryReason.RANDOM_NUMBERS, detail, edge)

    def _makes_random(self, instruction: HloInstruction) -> bool:
        if instruction not in self._random:
            self._random[instruction] = makes_random_numbers(instruction)
        return self._random[instruction]


def _decide(reason: BoundaryReason, detail: str, edge: Edge) -> BoundaryDecision:
    return BoundaryDecision(reason=reason, detail=detail, numbers={"bytes": edge.num_bytes})


def _decide_copy(name: str, copy: HloInstruction, edge: Edge) -> BoundaryDecision:
    operand, size = copy.operands[0].shape, format_bytes(copy.shape.byte_size)
    if copy.opcode == "copy" and operand.minor_to_major != copy.shape.minor_to_major:
        detail = f"`{name}` moves {size} from layout {operand} to {copy.shape}."
        return _decide(BoundaryReason.LAYOUT, detail, edge)
    detail = f"`{name}` copies {size}, so that one buffer can be overwritten while the other"
    return _decide(BoundaryReason.COPY, f"{detail} is still needed.", edge)


def _decide_side(side: HloInstruction, edge: Edge) -> BoundaryDecision | None:
    """Answers for one side that no fusion can hold."""
    kind, opcode, name = get_kind(side), side.opcode, f"`{side.name}`"
    if kind == "fuselane":
        detail = f"{name} is code that Fuselane runs as one kernel."
        return _decide(BoundaryReason.FUSELANE_KERNEL, detail, edge)
    if is_library(side):
        detail = f"{name} is computed by a library ({get_emitter(side)}), which XLA cannot fuse"
        return _decide(BoundaryReason.LIBRARY_CALL, f"{detail} into.", edge)
    if kind == "kCustom" and any(i.opcode == "dot" for i in side.to_apply.instructions):
        detail = f"{name} is a product of matrices ({get_emitter(side)}), which XLA sets apart"
        return _decide(BoundaryReason.LIBRARY_CALL, f"{detail} before it fuses the rest.", edge)
    alone = get_wrapped(side)
    if alone.opcode in LIBRARY_OPCODES:
        detail = f"{name} is a {alone.opcode}, for which XLA makes a kernel that holds nothing else"
        return _decide(BoundaryReason.LIBRARY_CALL, f"{detail}.", edge)
    if kind == "custom-call":
        detail = f"{name} calls `{side.custom_call_target}`, whose code XLA cannot see."
        return _decide(BoundaryReason.CUSTOM_CALL, detail, edge)
    if kind == "call":
        what = _describe_call(side)
        reason = BoundaryReason.LOOP_CONTROL if "loop" in what else BoundaryReason.CONDITIONAL
        return _decide(reason, f"XLA compiles {name} into one function: {what}.", edge)
    if opcode in COLLECTIVE_OPCODES:
        detail = f"{describe(side)}, waits for other devices."
        return _decide(BoundaryReason.COLLECTIVE, detail, edge)
    if opcode in _SIDE_EFFECTS:
        return _decide(BoundaryReason.SIDE_EFFECT, f"{name} is an {opcode}.", edge)
    sort = get_sort(side)
    if sort is not None:
        detail = f"{name} sorts {plural(sort.operands[0].shape.num_elements, 'element')}"
        return _decide(BoundaryReason.SORT, f"{detail} in a kernel of its own.", edge)
    return None


def _describe_call(call: HloInstruction) -> str:
    members = call.to_apply.instructions
    loops = sum(member.opcode == "while" for member in members)
    return plural(loops, "small loop") if loops else "a small branch"


def _describe_element(edge: Edge) -> str:
    """Returns what part of a loop's state a value is, in words."""
    loop = edge.carrier
    if loop is None or edge.element is None:
        return "the state"
    if edge.element == get_counter_index(loop):
        return "the counter"
    return f"element {edge.element} of the state"


def get_counter_index(loop: HloInstruction) -> int | None:
    """Returns which element of a loop's state XLA found to count its iterations, or None."""
    try:
        config = json.loads(loop.backend_config or b"{}")
        return int(config["known_induction_variable"]["tuple_index"])
    except (ValueError, KeyError, TypeError):
        return None
