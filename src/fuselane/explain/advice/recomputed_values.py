"""Advice about values that one kernel computes several times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel

_MIN_SHARE: Final = 0.05


def _find(view: View) -> Iterable[AdviceModel]:
    for name, found in view.recomputed.items():
        kernel = view.kernels[name]
        if view.makes_random_numbers(kernel):
            continue
        kept = view.dispatch_us(kernel) + 2 * found.num_bytes / view.bytes_per_us
        saved = (kernel.modelled_us * found.share - kept) * view.launches(kernel)
        gain = view.gain(saved) if saved > 0 else None
        if gain is None or saved < _MIN_SHARE * view.total_us:
            continue
        member = view.instructions[found.instruction.name]
        where = (
            "carried to the next iteration, or returned"
            if kernel.loop
            else "a result of the jitted function as well"
        )
        sentence = (
            f"`{name}` computes `{member.name}` about {found.times:.0f} times for each element, at"
            f" each place where it is read. XLA computes it once if it is {where}."
        )
        yield AdviceModel(
            rule=RULE.name,
            sentence=sentence,
            gain=gain,
            source=member.source or kernel.source,
            kernels=(name,),
            loop=kernel.loop,
        )


RULE: Final = Rule(
    name="recomputed-value",
    summary=(
        "A kernel that reads a value at several places, as a difference of neighbours does,"
        " computes it at each of them: with a `tanh` at five places, most of the time. XLA removes"
        " `lax.optimization_barrier` too early to help on a CPU, but keeps in memory what something"
        " else needs there as well: a result, or the state of a loop."
    ),
    before="y = jnp.tanh(x)\nreturn y[1:] - y[:-1]",
    after="y = jnp.tanh(x)\nreturn y[1:] - y[:-1], y  # returned as well: computed once",
    find=_find,
)
