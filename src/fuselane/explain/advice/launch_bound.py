"""Advice where launching kernels takes longer than what they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel, KernelModel, LoopModel
from fuselane.explain.units import plural

UNROLL_BY: Final = 10
_MIN_SHARE: Final = 0.3
_MAX_KERNELS: Final = 40
"""An unrolled body of more would take too long to compile."""
_MIN_KERNELS: Final = 20
_STOPS: Final = frozenset({"concatenate", "dynamic-update-slice", "reduce", "scatter", "sort"})
"""Opcodes whose results the next iteration's kernel cannot compute again."""
_FEWER: Final = 0.9


def _find_loops(view: View) -> Iterable[AdviceModel]:
    for loop in view.module.loops:
        if not _can_unroll(view, loop):
            continue
        kernels = list(view.within(loop.name))
        launches = sum(map(view.launches, kernels))
        overhead = _overhead_us(view, kernels)
        if overhead < _MIN_SHARE * sum(map(view.time_us, kernels)):
            continue
        shared = _overhead_us(view, _find_shared(kernels))
        gain = view.gain(shared * (1 - 1 / UNROLL_BY))
        if gain is None:
            continue
        share = overhead / sum(map(view.time_us, kernels))
        sentence = (
            f"Launching its {plural(launches, 'kernel')} is {share:.0%} of the time of"
            f" `{loop.name}`. With `unroll={UNROLL_BY}`, {UNROLL_BY} iterations can share them;"
            " compiling takes longer."
        )
        yield AdviceModel(
            rule=UNROLL.name,
            sentence=sentence,
            gain=gain,
            source=loop.source,
            kernels=tuple(kernel.name for kernel in kernels),
            loop=loop.name,
        )


def _overhead_us(view: View, kernels: Iterable[KernelModel]) -> float:
    return sum(view.launches(kernel) * view.dispatch_us(kernel) for kernel in kernels)


def _can_unroll(view: View, loop: LoopModel) -> bool:
    """Whether a loop is an innermost one of enough iterations with a body of fusions and copies."""
    if loop.trip_count is None or loop.trip_count < 2 * UNROLL_BY or loop.carried_bytes == 0:
        return False
    if any(other.parent == loop.name for other in view.module.loops):
        return False
    kernels = list(view.within(loop.name))
    is_fusible = all(k.kind in ("kLoop", "kInput", "copy", "single") for k in kernels)
    return bool(kernels) and len(kernels) <= _MAX_KERNELS and is_fusible


def _find_shared(kernels: Sequence[KernelModel]) -> list[KernelModel]:
    """Returns the kernels that several iterations in one body would share: the counter, copies of
    state, and the work if it is one kernel that can be fused with that of the next iteration."""
    small = [k for k in kernels if k.kind == "copy" or all(o.num_bytes <= 8 for o in k.outputs)]
    work = [k for k in kernels if k not in small]
    is_one = len(work) == 1 and not _STOPS.intersection(work[0].opcodes)
    return small + work if is_one else small


def _find_small_kernels(view: View) -> Iterable[AdviceModel]:
    kernels = [k for k in view.module.kernels if not k.loop and k.kind in ("kLoop", "kInput")]
    if len(kernels) < _MIN_KERNELS:
        return
    time, overhead = sum(map(view.time_us, kernels)), len(kernels) * view.launch_us
    gain = view.gain(overhead * _FEWER)
    if overhead < _MIN_SHARE * time or gain is None:
        return
    slowest = max(kernels, key=view.time_us)
    sentence = (
        f"{len(kernels)} kernels outside of loops spend {overhead / time:.0%} of their time on"
        " being launched. Work on fewer, larger arrays: flatten trees of parameters into one array"
        " (`jax.flatten_util.ravel_pytree`), or batch with `vmap`."
    )
    yield AdviceModel(
        rule=SMALL.name,
        sentence=sentence,
        gain=gain,
        source=slowest.source,
        kernels=tuple(kernel.name for kernel in kernels),
    )


UNROLL: Final = Rule(
    name="scan-unroll",
    summary=(
        "Each iteration of a loop launches its kernels anew and updates the loop's counter. Where"
        " that takes longer than the work, several iterations in one body share the launches, as"
        " XLA fuses across them."
    ),
    before="lax.scan(step, state, xs)",
    after=f"lax.scan(step, state, xs, unroll={UNROLL_BY})",
    find=_find_loops,
)
SMALL: Final = Rule(
    name="launch-bound",
    summary=(
        "Many small kernels, one after the other, whose work takes no longer than their launches:"
        " as an optimizer's update of many small arrays."
    ),
    before="updates, state = optimizer.update(grads, state)  # 300 arrays",
    after="flat, unravel = jax.flatten_util.ravel_pytree(params)  # one array",
    find=_find_small_kernels,
)
