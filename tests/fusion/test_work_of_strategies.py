"""How much work a strategy takes: what is counted grows with a module, not with its square."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fuselane.fusion.gpu import costs
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.pipelines import PIPELINES, run_pipeline
from fuselane.hlo import HloInstruction, HloModule
from tests.hlo.xla import module_of


def chain(num: int) -> HloModule:
    """One value, changed again and again."""
    body = [
        f"sine{n} = f32[256] sine(v{n}) abs{n} = f32[256] abs(v{n})"
        f" both{n} = f32[256] multiply(sine{n}, abs{n}) v{n + 1} = f32[256] add(both{n}, v{n})"
        for n in range(num // 4)
    ]
    return module_of(
        "HloModule m ENTRY main { x = f32[256] parameter(0) v0 = f32[256] negate(x) "
        f"{' '.join(body)} ROOT r = f32[256] sine(v{num // 4}) }}"
    )


def fan(num: int) -> HloModule:
    """One array with many readers."""
    body = [f"sum{n} = f32[256] add(x, y) wave{n} = f32[256] sine(sum{n})" for n in range(num // 2)]
    shapes = ", ".join(["f32[256]"] * (num // 2))
    results = ", ".join(f"wave{n}" for n in range(num // 2))
    return module_of(
        "HloModule m ENTRY main { x = f32[256] parameter(0) y = f32[256] parameter(1) "
        f"{' '.join(body)} ROOT r = ({shapes}) tuple({results}) }}"
    )


@pytest.mark.parametrize("program", [chain, fan])
@pytest.mark.parametrize("name", ["xla-today-cpu", "xla-today-gpu", "xla-2021", "xla-2023"])
def test_work_grows_with_the_module(
    name: str, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies made, members priced, and pairs priced; a module three times as large takes less than
    four times as much."""
    counts: Counter[str] = Counter()
    for owner, function in (
        (HloInstruction, "copy_with"),
        (costs, "_flops"),
        (PerformanceModel, "fused_ticks"),
    ):
        monkeypatch.setattr(owner, function, _counted(getattr(owner, function), counts))
    taken = []
    for num in (200, 600):
        counts.clear()
        run_pipeline(PIPELINES[name], program(num))
        taken.append(dict(counts))
    assert taken[0]["copy_with"] >= 100
    for key, before in taken[0].items():
        assert taken[1][key] < 4 * before + 100, key


def _counted(function: Any, counts: Counter[str]) -> Any:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        counts[function.__name__] += 1
        return function(*arguments, **keywords)

    return counted
