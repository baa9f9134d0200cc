"""Advice about library calls for small products in a loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fuselane.explain.advice.rule import Rule, View
from fuselane.explain.model import AdviceModel
from fuselane.explain.units import plural

_MAX_FLOPS: Final = 20_000
_MIN_SHARE: Final = 0.05


def _find(view: View) -> Iterable[AdviceModel]:
    calls = [
        kernel
        for kernel in view.module.kernels
        if kernel.loop and kernel.kind == "library" and 0 < kernel.flops <= _MAX_FLOPS
    ]
    edges = {
        boundary.consumer if boundary.producer == call.name else boundary.producer
        for call in calls
        for boundary in view.module.boundaries
        if call.name in (boundary.producer, boundary.consumer)
    }
    split = [name for name in edges if name in view.kernels and view.kernels[name].kind == "kLoop"]
    saved = 2 * sum(view.launches(call) * view.dispatch_us(call) for call in calls)
    gain = view.gain(saved)
    if not calls or not split or gain is None or saved < _MIN_SHARE * view.total_us:
        return
    slowest = max(calls, key=view.time_us)
    sentence = (
        f"{plural(len(calls), 'library call')} for products of at most {_MAX_FLOPS:,} operations"
        f" keep {plural(len(split), 'kernel')} apart that could be one. Written as a sum,"
        " `(a * b).sum(-1)`, such a product is fused with them."
    )
    yield AdviceModel(
        rule=RULE.name,
        sentence=sentence,
        gain=gain,
        source=slowest.source,
        kernels=tuple(call.name for call in calls),
        loop=slowest.loop,
    )


RULE: Final = Rule(
    name="library-call-splits-work",
    summary=(
        "A product of matrices is a library's, and ends a fusion before and after it. For large"
        " matrices that is right; for a few elements in a loop, the calls and the kernels around"
        " them cost more than the product."
    ),
    before="y = jnp.tanh(w @ x)  # w is f32[4,4]",
    after="y = jnp.tanh((w * x).sum(-1))",
    find=_find,
)
