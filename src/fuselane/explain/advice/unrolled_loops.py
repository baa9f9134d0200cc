"""Advice about loops of Python that became as many copies of their body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel
from fuselane.hlo.instruction import HloInstruction

_MIN_COPIES: Final = 12
_MIN_INSTRUCTIONS: Final = 100
_MIN_SHARE: Final = 0.5
_MIN_BODY: Final = 3
"""Operations in the body of a loop; long chains of one or two are an algorithm, not a loop."""
_MAX_VISITED: Final = 300
_NO_WORK: Final = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "broadcast"})


def _find(view: View) -> Iterable[AdviceModel]:
    if view.first is None:
        return
    module = view.first()
    instructions = [
        i for c in module.computations for i in c.instructions if i.opcode not in _NO_WORK
    ]
    groups: dict[tuple[Any, ...], list[HloInstruction]] = {}
    for instruction in instructions:
        if instruction.metadata.stack_frame_id:
            groups.setdefault(_key(instruction), []).append(instruction)
    large = [group for group in groups.values() if len(group) >= _MIN_COPIES]
    copied = sum(map(len, large))
    if copied < max(_MIN_INSTRUCTIONS, _MIN_SHARE * len(instructions)):
        return
    chained = [group for group in large if _is_chain(group)]
    if not chained:
        return
    lengths = Counter(map(len, chained))  # a body may hold several of an operation
    count = max(lengths, key=lambda length: (lengths[length], length))
    alike = [group for group in large if len(group) == count]
    if len(alike) < _MIN_BODY:
        return
    source = module.source(chained[0][0])
    seconds = view.module.compile_s
    took = f"; XLA took {seconds:.1f} s to compile them" if seconds else ""
    sentence = (
        f"{count} copies of the same {len(alike)} operations, each needing the one before, are"
        f" {copied / len(instructions):.0%} of the program{took}. Write the loop as `lax.scan` or"
        " `lax.fori_loop`, and its body is compiled once."
    )
    yield AdviceModel(rule=RULE.name, sentence=sentence, gain=None, source=source)


def _key(instruction: HloInstruction) -> tuple[Any, ...]:
    """Returns what copies of an operation share: the line with all its callers, opcode, shape."""
    metadata = instruction.metadata
    computation = instruction.computation
    place = computation.id if computation is not None else 0
    frame = metadata.stack_frame_id
    return (place, frame, metadata.op_name, instruction.opcode, instruction.shape)


def _is_chain(group: Sequence[HloInstruction]) -> bool:
    """Whether nearly each of some instructions needs another of them."""
    members, allowed = set(group), len(group) // 5
    for instruction in group:
        allowed -= not _needs(instruction, members)
        if allowed < 0:
            return False
    return True


def _needs(instruction: HloInstruction, members: set[HloInstruction]) -> bool:
    seen, stack = set(instruction.operands), list(instruction.operands)
    while stack and len(seen) < _MAX_VISITED:
        operand = stack.pop()
        if operand in members:
            return True
        fresh = [o for o in operand.operands if o not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return False


RULE: Final = Rule(
    name="python-unrolled-loop",
    summary=(
        "JAX runs Python's loops while it traces, so the program holds a copy of the body for each"
        " iteration. XLA compiles every copy; the time for that grows faster than their number."
    ),
    before="for _ in range(100):\n    x = step(x)",
    after="x = lax.fori_loop(0, 100, lambda _, x: step(x), x)",
    find=_find,
)
