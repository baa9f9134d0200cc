"""The benchmark suite: its programs can be traced, and what it says of results is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import suite
from programs import CATEGORIES, PROGRAMS, harmless
from programs.program import EXACT, Program, Rule
from trial.agreement import compare
from trial.outcome import Outcome

ALONE = [program for program in PROGRAMS + harmless.PROGRAMS if not program.requires]
MIN_PROGRAMS = 36


def test_names_tell_programs_apart() -> None:
    """Each program has a name and a category of its own kind, and sizes worth measuring."""
    programs = PROGRAMS + harmless.PROGRAMS
    names = [program.name for program in programs]
    assert len(set(names)) == len(names)
    assert len(PROGRAMS) >= MIN_PROGRAMS
    assert {program.category for program in PROGRAMS} == set(CATEGORIES)
    for program in programs:
        assert program.quick.lanes * program.quick.steps < program.full.lanes * program.full.steps
        assert program.rule.spread is None or program.rule.early_steps is not None, program.name


@pytest.mark.parametrize("program", ALONE, ids=lambda program: program.name)
def test_programs_can_be_traced(program: Program) -> None:
    """Each program that needs no other package can be traced, also its making of arguments."""

    def build_and_call() -> Any:
        function, arguments = program.build(program.quick)
        return function(*arguments)

    with jax.enable_x64(program.x64):
        results = jax.tree.leaves(jax.eval_shape(build_and_call))
    assert results
    assert all(isinstance(result, jax.ShapeDtypeStruct) for result in results)
    has_double = any(result.dtype == jnp.float64 for result in results)
    assert has_double == program.x64


def test_rules_are_strict_early() -> None:
    """A chaotic program's first steps are compared element by element."""
    program = next(program for program in PROGRAMS if program.name == "ode/lorenz")
    assert program.rule_at(program.full).spread is not None
    assert program.rule_at(program.quick) == Rule(relative=program.rule.relative)


@pytest.mark.parametrize(
    ("rule", "actual", "holds"),
    [
        (EXACT, [1.0, 2.0, 4.0], True),
        (EXACT, [1.0, 2.0, 4.0000005], False),
        (Rule(relative=1e-5), [1.0, 2.0, 4.00001], True),
        (Rule(relative=1e-5), [1.0, 2.0, 4.001], False),
        (Rule(relative=1e-5), [1.0, 2.0, jnp.nan], False),
        (Rule(relative=1e-5, share_apart=0.4), [1.0, 2.0, 9.0], True),
        (Rule(relative=1e-5, share_apart=0.3), [1.0, 2.0, 9.0], False),
        (Rule(spread=0.1, early_steps=1), [2.0, 4.0, 1.0], True),
        (Rule(spread=0.1, early_steps=1), [2.0, 4.0, 2.0], False),
    ],
)
def test_rules_judge_floats(rule: Rule, actual: list[float], holds: bool) -> None:
    """A rule allows what it says and no more."""
    agreement = compare(jnp.array([1.0, 2.0, 4.0]), jnp.array(actual), rule)
    assert agreement.holds == holds
    assert bool(agreement.detail) != holds


@pytest.mark.parametrize("seed", [0, 1])
def test_keys_agree_bit_by_bit(seed: int) -> None:
    """Keys of JAX's newer kind are no numbers of NumPy's."""
    keys = jax.random.split(jax.random.key(0), 3), jax.random.split(jax.random.key(seed), 3)
    assert compare(*keys, Rule()).holds == (seed == 0)


@pytest.mark.parametrize("rule", [Rule(relative=1.0), Rule(spread=9.0, early_steps=1)])
def test_integers_have_to_be_equal(rule: Rule) -> None:
    """No tolerance of floats applies to integers and booleans."""
    right = {"n": jnp.arange(4), "x": jnp.array([jnp.inf, jnp.nan])}
    assert compare(right, right, rule).holds
    assert not compare(right, {**right, "n": jnp.array([0, 1, 2, 4])}, rule).holds
    assert not compare(right, {**right, "n": jnp.arange(4) > 0}, rule).holds


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        ({}, "yes"),
        ({"xla_ms": 4.0}, "speed"),
        ({"compile_ratios": (1.4, 1.6, 1.7)}, "compile time"),
        ({"agrees": False}, "wrong"),
        ({"error": "Ended by SIGSEGV"}, "failed"),
        ({"skipped": "Needs gymnax, not installed."}, "skipped"),
    ],
)
def test_outcomes_are_judged(outcome: dict[str, Any], verdict: str) -> None:
    """What is not reached is named; `gbm` is to be six times as fast."""
    program = next(program for program in PROGRAMS if program.name == "monte-carlo/gbm")
    good = {"xla_ms": 70.0, "fuselane_ms": 10.0, "compile_ratios": (0.9, 0.8, 1.9)}
    assert Outcome(name=program.name, **{**good, **outcome}).judge(program) == verdict


def test_programs_run_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program is measured in its own process, written as JSON and put into a page."""
    page, results = tmp_path / "page.md", tmp_path / "suite.json"
    page.write_text(f"before\n{suite.BEGIN}\nold\n{suite.END}\nafter\n")
    options = ["--quick", "--json", str(results), "--docs", str(page)]
    assert suite.main(["--only", "linear-congruence", "lorenz-trajectory", *options]) == 0
    rows = {row["name"]: row for row in json.loads(results.read_text())["rows"]}
    assert set(rows) == {"scalar/linear-congruence", "ode/lorenz-trajectory"}
    row = rows["ode/lorenz-trajectory"]
    assert row["agrees"] and row["xla_ms"] > 0 and row["fuselane_compile_ms"] > 0
    assert [loop["reason"] for loop in row["loops"]] == ["fused"]
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text
    assert "| ode/lorenz-trajectory |" in text
    assert "ode/lorenz-trajectory" in capsys.readouterr().out


def test_a_process_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose process ends without an outcome is reported, not dropped."""
    program = next(program for program in PROGRAMS if program.name == "scalar/linear-congruence")
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    options = suite.parse_options(["--quick"])
    outcome = suite.run_in_child(program, suite.list_child_options(options))
    assert outcome.error.startswith("Exit code 1")
    assert outcome.judge(program) == "failed"
