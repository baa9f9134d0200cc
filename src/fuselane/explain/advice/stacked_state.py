"""Advice about loop state that every iteration puts together and takes apart again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel, BoundaryModel, InstructionModel, KernelModel
from fuselane.explain.units import format_bytes, plural

_MIN_GAIN_ON_CPU: Final = 1.04
"""The estimate says little below that; see the rule's summary."""


def _find(view: View) -> Iterable[AdviceModel]:
    for kernel in view.module.kernels:
        if not kernel.loop or "concatenate" not in kernel.opcodes:
            continue
        if view.makes_random_numbers(kernel) or not _is_stacked(view, kernel):
            continue
        chain = list(_chain(view, kernel))
        if not any(_is_carried(boundary) for boundary in chain):
            continue
        parts = max(len(m.operands) for m in view.members[kernel.name] if m.opcode == "concatenate")
        if not any("slice" in view.kernels[b.consumer].opcodes for b in chain if _reads(view, b)):
            continue
        gain = view.gain(_saved_us(view, chain))
        if gain is None or (view.module.target == "cpu" and gain < _MIN_GAIN_ON_CPU):
            continue
        place = next(m for m in view.members[kernel.name] if m.opcode == "concatenate")
        sentence = (
            f"`{kernel.name}` concatenates {plural(parts, 'array')} into the state of"
            f" `{kernel.loop}`, {format_bytes(chain[0].num_bytes)} that the next iteration takes"
            f" apart again. Carry the {parts} arrays as a tuple."
        )
        yield AdviceModel(
            rule=RULE.name,
            sentence=sentence,
            gain=gain,
            source=place.source or kernel.source,
            kernels=(kernel.name, *(b.consumer for b in chain if _is_copy(view, b))),
            loop=kernel.loop,
        )


def _is_stacked(view: View, kernel: KernelModel) -> bool:
    """Whether a concatenation of a kernel is its result: moved about or chosen from, at most."""
    users: dict[str, list[InstructionModel]] = {}
    for member in view.members[kernel.name]:
        for operand in member.operands:
            users.setdefault(operand, []).append(member)
    for member in view.members[kernel.name]:
        if member.opcode == "concatenate" and _only_moves(member.name, users):
            return True
    return False


def _only_moves(name: str, users: dict[str, list[InstructionModel]]) -> bool:
    """Whether nothing computes with a value on its way to the kernel's result."""
    stack = [name]
    while stack:
        for user in users.get(stack.pop(), ()):
            if user.opcode not in _MOVES:
                return False
            if user.opcode != "fusion":  # the kernel itself, which its operands have as a user
                stack.append(user.name)
    return True


_MOVES: Final = frozenset(
    {"bitcast", "copy", "fusion", "reshape", "select", "transpose", "tuple", "dynamic-update-slice"}
)


def _chain(view: View, kernel: KernelModel) -> Iterator[BoundaryModel]:
    """Yields the boundaries from a kernel on, through copies and what only selects elements."""
    seen, stack = {kernel.name}, [kernel.name]
    while stack:
        for boundary in view.outgoing.get(stack.pop(), ()):
            if boundary.loop != kernel.loop:
                continue
            yield boundary
            consumer = view.kernels.get(boundary.consumer)
            if consumer is None or consumer.name in seen or _is_carried(boundary):
                continue
            if consumer.kind == "copy" or boundary.shape == consumer.outputs[0].shape:
                seen.add(consumer.name)
                stack.append(consumer.name)


def _is_carried(boundary: BoundaryModel) -> bool:
    return boundary.crossing == "carried"


def _is_copy(view: View, boundary: BoundaryModel) -> bool:
    return boundary.consumer in view.kernels and view.kernels[boundary.consumer].kind == "copy"


def _reads(view: View, boundary: BoundaryModel) -> bool:
    return boundary.consumer in view.kernels


def _saved_us(view: View, chain: Iterable[BoundaryModel]) -> float:
    """Returns the time of copies of the state, and of the kernels' way through memory."""
    saved = 0.0
    for consumer, boundary in {b.consumer: b for b in chain}.items():
        kernel = view.kernels.get(consumer)
        if kernel is None:
            continue
        if kernel.kind == "copy":
            saved += view.time_us(kernel)
        elif not _is_carried(boundary):
            moved = 2 * boundary.num_bytes / view.bytes_per_us
            saved += view.launches(kernel) * (view.dispatch_us(kernel) + moved)
    return saved


RULE: Final = Rule(
    name="stacked-state",
    summary=(
        "State that is stacked into one array at the end of each iteration, and sliced at the start"
        " of the next, makes a kernel that decides for every element which part it belongs to, a"
        " copy of the whole, and a boundary where several users need it. As a tuple of arrays"
        " nothing has to be put together. The gain counts copies and ways through memory, not how"
        " well LLVM compiles either form, which weighs more on a CPU: ten programs for which it was"
        " 2% to 6% there took 0.7 to 1.4 times as long stacked as they did with a tuple. Try both."
    ),
    before="return jnp.stack([position, velocity]), None",
    after="return (position, velocity), None",
    find=_find,
)
