"""Advice about memory that is moved and need not be: copies of state, outputs, wide types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel, InstructionModel, KernelModel
from fuselane.explain.units import format_bytes, plural

_MIN_SHARE: Final = 0.05
_MOVES: Final = frozenset(
    {"broadcast", "copy", "dynamic-update-slice", "reshape", "select", "slice", "transpose"}
)


def _find_copies(view: View) -> Iterable[AdviceModel]:
    by_loop: dict[str, list[KernelModel]] = {}
    for kernel in view.module.kernels:
        if kernel.kind == "copy" and kernel.loop and not _feeds_random(view, kernel):
            by_loop.setdefault(kernel.loop, []).append(kernel)
    for name, copies in by_loop.items():
        saved = sum(map(view.time_us, copies))
        gain = view.gain(saved)
        if gain is None or saved < _MIN_SHARE * view.total_us:
            continue
        size = sum(kernel.bytes_written for kernel in copies)
        sentence = (
            f"`{name}` copies {format_bytes(size)} of its state in each iteration"
            f" ({plural(len(copies), 'copy', 'copies')}), as a value is still read after it was"
            " replaced. Read all of the old state before any of the new is made, and return no"
            " element in another's place."
        )
        largest = max(copies, key=lambda kernel: kernel.bytes_written)
        yield AdviceModel(
            rule=COPIES.name,
            sentence=sentence,
            gain=gain,
            source=largest.source,
            kernels=tuple(kernel.name for kernel in copies),
            loop=name,
        )


def _feeds_random(view: View, copy: KernelModel) -> bool:
    """Whether a copy belongs to a generator of random numbers, which users cannot change."""
    consumers = (view.kernels.get(b.consumer) for b in view.outgoing.get(copy.name, ()))
    if any(kernel is not None and view.makes_random_numbers(kernel) for kernel in consumers):
        return True
    others = [k for k in view.within(copy.loop) if k.kind != "copy" and sum(k.opcodes.values()) > 1]
    return bool(others) and all(map(view.makes_random_numbers, others))


def _find_outputs(view: View) -> Iterable[AdviceModel]:
    for kernel in view.module.kernels:
        loop = view.loops.get(kernel.loop)
        if loop is None or not loop.trip_count or "dynamic-update-slice" not in kernel.opcodes:
            continue
        written = [o for o in kernel.outputs if _leading(o.shape) == loop.trip_count]
        if not written:
            continue
        size = sum(output.num_bytes for output in written)
        is_move = _MOVES.issuperset(kernel.opcodes)
        moved = kernel.bytes_read + kernel.bytes_written
        share = 1.0 if is_move else kernel.bytes_written / max(moved, 1.0)
        saved = view.time_us(kernel) * share
        gain = view.gain(saved)
        if gain is None or saved < _MIN_SHARE * view.total_us:
            continue
        sentence = (
            f"`{loop.name}` writes {format_bytes(size)} of results, one row per iteration. Return"
            " only what is used later, every n-th row, or a sum kept in the state."
        )
        yield AdviceModel(
            rule=OUTPUTS.name,
            sentence=sentence,
            gain=gain,
            source=kernel.source or loop.source,
            kernels=(kernel.name,),
            loop=loop.name,
        )


def _leading(shape: str) -> int:
    """Returns the first dimension of a shape as HLO writes it, or 0."""
    inside = shape.partition("[")[2].partition("]")[0].split(",")[0]
    return int(inside) if inside.isdigit() else 0


def _find_promotions(view: View) -> Iterable[AdviceModel]:
    entry = [i for i in view.module.instructions if i.opcode == "parameter" and not i.kernel]
    if not any(instruction.shape.startswith("f32[") for instruction in entry):
        return
    found: dict[str, list[InstructionModel]] = {}
    for instruction in view.module.instructions:
        if _widens(view, instruction) and instruction.source is not None:
            found.setdefault(instruction.kernel, []).append(instruction)
    kernels = [view.kernels[name] for name in found if name in view.kernels]
    gain = view.gain(sum(map(view.time_us, kernels)) / 2)
    if not kernels or gain is None:
        return
    slowest = max(kernels, key=view.time_us)
    first = found[slowest.name][0]
    sentence = (
        f"{plural(len(kernels), 'kernel')} compute in f64 what comes as f32: `{first.name}` widens"
        f" {first.shape.partition('{')[0]}. Give constants and NumPy arrays the type of the data;"
        " Python numbers adapt to it by themselves."
    )
    yield AdviceModel(
        rule=PROMOTION.name,
        sentence=sentence,
        gain=gain,
        source=first.source,
        kernels=tuple(kernel.name for kernel in kernels),
    )


def _widens(view: View, instruction: InstructionModel) -> bool:
    """Whether an instruction converts an array from f32 to f64."""
    if instruction.opcode != "convert" or not instruction.shape.startswith("f64["):
        return False
    operand = view.instructions.get(instruction.operands[0])
    is_array = not instruction.shape.startswith("f64[]")
    return is_array and operand is not None and operand.shape.startswith("f32[")


COPIES: Final = Rule(
    name="loop-state-copies",
    summary=(
        "XLA updates loop state in place where it can. Where the old value is still needed after"
        " the new one is made, or elements change places, it copies the state in every iteration."
    ),
    before="return (b, a + b), None  # elements change places",
    after="return (a + 2 * b, a + 3 * b), None  # two steps at once, each in its place",
    find=_find_copies,
)
OUTPUTS: Final = Rule(
    name="per-step-outputs",
    summary=(
        "What a `scan` returns per iteration is written to memory row by row, and often takes"
        " longer than the computation."
    ),
    before="return state, state  # every state is kept",
    after="return state, state.mean()",
    find=_find_outputs,
)
PROMOTION: Final = Rule(
    name="dtype-promotion",
    summary=(
        "With 64-bit types switched on, one f64 operand that is no Python number makes f64 of all"
        " that is computed with it: twice the memory, half the speed on a CPU and less on a GPU."
    ),
    before="x * np.float64(0.5)  # x is f32, the product f64",
    after="x * 0.5",
    find=_find_promotions,
)
