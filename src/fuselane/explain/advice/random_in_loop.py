"""Advice about random numbers that a loop draws in every iteration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel, KernelModel
from fuselane.explain.random_numbers import is_random_name
from fuselane.explain.units import plural
from fuselane.hlo.source_lines import SourceLine


def _find(view: View) -> Iterable[AdviceModel]:
    by_loop: dict[str, list[KernelModel]] = {}
    for kernel in view.module.kernels:
        if kernel.loop and view.random_share(kernel) > 0:
            by_loop.setdefault(view.outermost(kernel.loop), []).append(kernel)
    for name, kernels in by_loop.items():
        loop = view.loops[name]
        if is_random_name("while", view.instructions[name].op_name):
            continue  # the generator's own loop
        gain = view.gain(sum(_saved_us(view, kernel) for kernel in kernels))
        if gain is None or (loop.trip_count is not None and loop.trip_count < 2):
            continue
        only = [kernel for kernel in kernels if view.makes_random_numbers(kernel)]
        what = (
            f"{plural(len(only), 'kernel')} of `{name}` only make random numbers{_told(only)}."
            if only
            else f"Kernels of `{name}` make random numbers beside what they do with them."
        )
        sentence = (
            f"{what} Draw them before the loop, for all iterations at once, and pass them to it;"
            " the gain holds where they are drawn once for many runs."
        )
        slowest = max(only or kernels, key=view.time_us)
        yield AdviceModel(
            rule=RULE.name,
            sentence=sentence,
            gain=gain,
            source=_find_line(view, slowest) or loop.source,
            kernels=tuple(kernel.name for kernel in only or kernels),
            loop=name,
        )


def _told(kernels: list[KernelModel]) -> str:
    """Returns how often some kernels are launched, in words, if that is known."""
    counts = [kernel.launches for kernel in kernels if kernel.launches is not None]
    known = len(counts) == len(kernels)
    return f", in {plural(sum(counts), 'launch', 'launches')} a run" if known else ""


def _saved_us(view: View, kernel: KernelModel) -> float:
    """Returns the time of a kernel that making random numbers takes; with nothing else in it, its
    launches too."""
    if view.makes_random_numbers(kernel):
        return view.time_us(kernel)
    work = max(0.0, kernel.modelled_us - view.dispatch_us(kernel)) * view.launches(kernel)
    return work * view.random_share(kernel)


def _find_line(view: View, kernel: KernelModel) -> SourceLine | None:
    """Returns the line of the first random number a kernel makes."""
    for member in view.members.get(kernel.name, ()):
        if member.source and is_random_name(member.opcode, member.op_name, kernel.emitter):
            return member.source
    return kernel.source


RULE: Final = Rule(
    name="random-numbers-in-loop",
    summary=(
        "A generator inside a loop is a chain of small kernels in every iteration, which nothing"
        " else can be fused with. Numbers drawn before the loop come from one large kernel; drawn"
        " once and used by many runs, they cost nothing at all."
    ),
    before=(
        "def step(carry, _):\n    state, key = carry\n    key, draw = jax.random.split(key)\n"
        "    return (state + jax.random.normal(draw, state.shape), key), None"
    ),
    after=(
        "noise = jax.random.normal(key, (steps, *state.shape))\n"
        "end, _ = lax.scan(lambda state, x: (state + x, None), state, noise)"
    ),
    find=_find,
)
