"""The long trials of trust: what `jax_suite.py`, `library_tests.py`, `no_harm.py` say is right."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from pathlib import Path

import pytest

import jax_suite
import library_tests
import no_harm
from trial import measure, test_runs
from trial.outcome import Loop, Outcome

FUSED = Loop(
    name="while.1",
    source="",
    trip_count=9,
    lanes=8,
    fused=True,
    reason="fused",
    sentence="",
    instruction="",
    opcode="",
    instruction_source="",
)
CHECKOUT = """
import jax, os, pytest

def test_loop():
    jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, y: y * 0.5 + x, x))(jax.numpy.ones(64))

def test_switch():
    assert os.environ["FUSELANE"] == "0"

@pytest.mark.skip
def test_left_out():
    pass
"""
FAULT = """
import jax, pytest
from fuselane import replacing

def fail(*arguments, **options):
    raise RuntimeError("this loop is too much")

def test_loop(monkeypatch):
    monkeypatch.setattr(replacing, "form", fail)
    with pytest.warns(UserWarning, match="failed on a loop"):
        jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, y: y * 0.5 + x, x))(jax.numpy.ones(64))

def test_other():
    pass
"""


@pytest.mark.parametrize(
    ("fuselane_ms", "cpu_ms", "compile_cpu_ratio", "loops", "verdict"),
    [
        (1.04, 1.04, 1.04, (), ""),
        (1.07, 1.07, 1.04, (), "slower"),
        (1.07, 1.00, 1.04, (), ""),
        (1.0, 1.0, 1.07, (), "compile time"),
        (1.07, 1.00, 1.04, (FUSED,), "slower"),
        (0.5, 1.0, 1.5, (FUSED,), ""),
    ],
)
def test_harm_is_named(
    fuselane_ms: float,
    cpu_ms: float,
    compile_cpu_ratio: float,
    loops: tuple[Loop, ...],
    verdict: str,
) -> None:
    """More than 5% of run time count, and of compile time where nothing is fused."""
    outcome = Outcome(
        name="plain/softmax",
        xla_ms=1.0,
        fuselane_ms=fuselane_ms,
        xla_cpu_ms=1.0,
        fuselane_cpu_ms=cpu_ms,
        compile_cpu_ratios=(compile_cpu_ratio, 0.9 * compile_cpu_ratio, 1.5),
        loops=loops,
    )
    assert no_harm.judge(outcome) == verdict


def test_short_runs_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that takes long every other time is reported by its mean, not by one of the two."""
    clock = [0.0]
    turns = itertools.cycle((0.02e-3, 0.10e-3))

    def run() -> tuple[()]:
        clock[0] += next(turns)
        return ()

    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda: clock[0])
    compilation = measure.Compilation(
        executables={"xla": run}, lower_ms=[], compile_ms={}, compile_cpu_ms={}, loops=()
    )
    passed, on_cores = measure.time_run(compilation, "xla", (run, ()))
    assert passed == on_cores == pytest.approx(0.06, rel=0.05)


def test_harmless_programs_run_end_to_end(tmp_path: Path) -> None:
    """A program called many times is measured, its loop told about, and put into a page."""
    page = tmp_path / "trust.md"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*no_harm.MARKS))
    assert no_harm.main(["--only", "calls/fused-loop", "--quick", "--docs", str(page)]) == 0
    row = next(line for line in page.read_text().splitlines() if "calls/fused-loop" in line)
    assert "| 1 of 1 |" in row


def test_jax_suite_tells_how_tests_end(tmp_path: Path) -> None:
    """Outcomes and loops of a run are read; a test that ends differently, or not at all, counts."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "ode_test.py").write_text(CHECKOUT)
    harness = jax_suite.make_harness(jax_suite.parse_options([str(tmp_path)]))
    run = test_runs.run(["tests/ode_test.py"], "always", harness, jobs=0)
    assert {test.rpartition("::")[2]: outcome for test, outcome in run.outcomes.items()} == {
        "test_loop": "passed",
        "test_left_out": "skipped",
        "test_switch": "failed",
    }
    skipped, loop, switch = sorted(run.outcomes)
    assert run.num_fused == {loop: 1}
    assert run.cpu_s.keys() == run.outcomes.keys()
    assert "AssertionError" in run.messages[switch]
    off = dataclasses.replace(run, outcomes={loop: "passed", switch: "passed"})
    assert test_runs.find_differences(off, run, sorted(run.outcomes)) == [skipped, switch]
    assert test_runs.find_differences(off, run, [loop]) == []


def test_faults_within_other_libraries_tests_are_told(tmp_path: Path) -> None:
    """A test passes in which Fuselane fails on a loop, and is named all the same."""
    (tmp_path / "test_fault.py").write_text(FAULT)
    options = library_tests.parse_options([str(tmp_path), "test_fault.py", "-k", "loop"])
    run = test_runs.run(["test_fault.py"], "always", library_tests.make_harness(options), jobs=0)
    assert run.outcomes == {"test_fault.py::test_loop": "passed"}
    assert run.refused == {"internal-error": 1}
    comparison = test_runs.Comparison(file="test_fault.py", runs={"always": run})
    assert len(comparison.list_faults()) == 1
    assert "this loop is too much" in comparison.list_faults()[0]


def test_what_ends_differently_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts if it does so every time; the last message is told."""
    ends = {"off": ["passed"] * 9, "on": ["failed"] * 5 + ["passed"]}

    def run(tests: list[str], setting: str, *_: object, **__: object) -> test_runs.Run:
        outcome = ends[setting].pop(0)
        messages = {test: f"{len(ends[setting])} left" for test in tests}
        return dataclasses.replace(
            test_runs.Run.empty(), outcomes=dict.fromkeys(tests, outcome), messages=messages
        )

    monkeypatch.setattr(test_runs, "run", run)
    harness = test_runs.Harness(checkout=tmp_path)
    assert test_runs.is_steady("test_a", "on", harness) == "3 left"
    assert test_runs.is_steady("test_a", "on", harness) is None


def test_jax_suite_adds_up_what_was_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's parts come from earlier calls and this one, each test once, and make one row.

    All that is run under other settings is in the second.
    """
    make_harness = jax_suite.make_harness
    monkeypatch.setattr(  # what ends differently is not run again
        jax_suite, "make_harness", lambda *a: dataclasses.replace(make_harness(*a), num_repeats=0)
    )
    (tmp_path / "tests").mkdir()
    others = "".join(f"\ndef test_{number}():\n    pass\n" for number in range(6))
    (tmp_path / "tests" / "ode_test.py").write_text(CHECKOUT + others)
    page, results = tmp_path / "trust.md", tmp_path / "results.json"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*jax_suite.MARKS))
    arguments = [str(tmp_path), "--files", "ode_test", "--jobs", "0", "--parts", "2"]
    options = jax_suite.parse_options([*arguments, "--json", str(results)])
    first = test_runs.compare(
        "ode_test", ["tests/ode_test.py"], jax_suite.make_harness(options, (0.0, 0.5))
    )
    results.write_text(json.dumps(jax_suite.to_json([first], options)))
    assert 0 < len(first.runs["always"].outcomes) < 9 and not first.runs["off"].outcomes
    assert jax_suite.main([*arguments, "--json", str(results), "--docs", str(page)]) == 1
    known = test_runs.read_comparisons(json.loads(results.read_text())["rows"])
    assert known[0] == first
    assert [part.share for part in known] == [(0.0, 0.5), (0.5, 1.0)]
    row = next(line for line in page.read_text().splitlines() if "`ode_test`" in line)
    assert f"| {first.day} | 9 | 1 |" in row.replace(known[1].day, first.day)
    with pytest.raises(SystemExit, match="other settings"):
        jax_suite.main([*arguments, "--json", str(results), "--x64"])
