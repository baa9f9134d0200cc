"""How much work a strategy takes: what is counted grows with a module, not with its square."""

from __future__ import annotations

import gc
import random
from collections import Counter
from typing import Any

import pytest

from fuselane.fusion import draft
from fuselane.fusion.gpu import costs
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.pipelines import PIPELINES, parse_pipeline, run_pipeline
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
@pytest.mark.parametrize(
    "name", ["xla-today-cpu", "xla-today-gpu", "xla-2021", "xla-2023", "xla-2024"]
)
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


def rows(num: int) -> HloModule:
    """A matrix, to which a multiple of the sums of its rows is added again and again."""
    body = [
        f"sum{n} = f32[64] reduce(v{n}, zero), dimensions={{1}}, to_apply=add"
        f" half{n} = f32[] constant({n}.5) halves{n} = f32[64] broadcast(half{n}), dimensions={{}}"
        f" part{n} = f32[64] multiply(sum{n}, halves{n})"
        f" wide{n} = f32[64,128] broadcast(part{n}), dimensions={{0}}"
        f" v{n + 1} = f32[64,128] add(wide{n}, v{n})"
        for n in range(num)
    ]
    return module_of(
        "HloModule m add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"
        " ENTRY main { v0 = f32[64,128] parameter(0) zero = f32[] constant(0) "
        f"{' '.join(body)} ROOT r = f32[64,128] negate(v{num}) }}"
    )


def test_few_bodies_are_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a kernel that ends in a sum is made is told without its body, which constants go into
    before it is made."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(draft, "_build", _counted(draft._build, counts))
    module = rows(20)
    run_pipeline(parse_pipeline("priority-fusion"), module)
    kernels = [i for i in module.entry.instructions if i.opcode == "fusion"]
    assert len(kernels) > 20
    assert counts["_build"] < 2 * len(kernels)


def web(num: int) -> HloModule:
    """Each value is made of two of the ten before it."""
    generator, names, body = random.Random(0), ["x"], []
    for step in range(num):
        left, right = (generator.choice(names[-10:]) for _ in range(2))
        body.append(f"v{step} = f32[256] {('add', 'multiply')[step % 2]}({left}, {right})")
        names.append(f"v{step}")
    results = ", ".join(names[-10:])
    return module_of(
        f"HloModule m ENTRY main {{ x = f32[256] parameter(0) {' '.join(body)} ROOT r ="
        f" ({', '.join(['f32[256]'] * 10)}) tuple({results}) }}"
    )


@pytest.mark.parametrize("name", ["xla-2023", "xla-2024", "xla-today-gpu"])
def test_what_passes_remove_is_free_at_once(name: str) -> None:
    """Little is left to Python's collector, which would go through all that is there for it."""
    module = web(200)
    gc.collect()
    gc.disable()
    try:
        run_pipeline(PIPELINES[name], module)
        assert gc.collect() < 200
    finally:
        gc.enable()


def _counted(function: Any, counts: Counter[str]) -> Any:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        counts[function.__name__] += 1
        return function(*arguments, **keywords)

    return counted
