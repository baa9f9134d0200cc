"""The report as text and JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import fuselane
from fuselane.decisions import Decision, LoopDecision, Reason
from fuselane.explain.report import Report
from fuselane.runtime.table import table

REFUSAL = Reason.UNSUPPORTED_OPCODE.decide(
    instruction="sort.3", opcode="sort", source="user.py:8 (f)", numbers={"size": 3.0}
)
FUSED = Reason.FUSED.decide(instruction="while.1", opcode="while", lanes=1000)


def loop(name: str, decision: Decision, *, lanes: int | None = 1000) -> LoopDecision:
    return LoopDecision(
        module="jit_f",
        name=name,
        source="user.py:7 (f)",
        trip_count=12_345 if decision.fused else None,
        lanes=lanes,
        decision=decision,
        kernel="abc" if decision.fused else "",
    )


def test_text() -> None:
    report = Report.of([loop("while.1", FUSED), loop("while.2", REFUSAL, lanes=None)])
    assert report.text().splitlines() == [
        "while.1 at user.py:7 (f): 12,345 steps, 1,000 lanes: fused",
        "while.2 at user.py:7 (f): ? steps, no lanes: not fused, unsupported-opcode: The opcode "
        "`sort` has no lane-by-lane form yet. (sort.3, a sort at user.py:8 (f))",
    ]
    assert str(report) == report.text()
    assert report.num_fused == 1


def test_no_loops() -> None:
    assert Report.of([]).text() == "The program has no loops."
    assert Report.of([], note="Off.").text() == "Off."


def test_json() -> None:
    report = json.loads(Report.of([loop("while.2", REFUSAL, lanes=None)], note="x").json())
    assert report["note"] == "x"
    assert report["loops"] == [
        {
            "module": "jit_f",
            "name": "while.2",
            "source": "user.py:7 (f)",
            "trip_count": None,
            "lanes": None,
            "fused": False,
            "reason": "unsupported-opcode",
            "sentence": "The opcode `sort` has no lane-by-lane form yet.",
            "instruction": "sort.3",
            "opcode": "sort",
            "instruction_source": "user.py:8 (f)",
            "numbers": {"size": 3.0},
            "kernel": "",
        }
    ]


def test_equal_decisions_count_once() -> None:
    """XLA may show a module again; another program may have the same names."""
    fused = loop("while.1", FUSED)
    other = dataclasses.replace(fused, kernel="def")
    refused = loop("while.2", REFUSAL, lanes=None)
    report = Report.of([fused, refused, fused, other, refused])
    assert report.loops == (fused, refused, other)
    assert report.num_fused == 2


def test_explaining_makes_no_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE_CACHE_DIR", str(tmp_path / "kernels"))

    def rollout(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 1000, lambda _, x: jnp.sin(x) * 0.5 + x, x)

    with fuselane.enabled(min_gain=0):
        (loop,) = fuselane.explain(rollout, jnp.ones(2048)).loops
        assert loop.fused and loop.kernel
        assert loop.kernel not in {path.stem for path in tmp_path.rglob("*.kernel")}
        jax.jit(rollout).lower(jnp.ones(2048)).compile()
    table.finish()
    assert loop.kernel in {path.stem for path in tmp_path.rglob("*.kernel")}
