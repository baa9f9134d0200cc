"""Tuning from end to end, with budgets of a few questions, and what `tuned=True` makes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuselane
from fuselane import api, cli
from fuselane.cli.tune import _duration
from fuselane.device import host_device
from fuselane.errors import InputError, OptionError
from fuselane.tuner import tune_input
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import Progress, RefusedError
from fuselane.tuning.measured import Measured
from fuselane.tuning.result import Tuning
from fuselane.tuning.searches import SEARCHES
from fuselane.tuning.settings import TuneSettings
from fuselane.tuning.store import Answer, Store
from fuselane.tuning.tuned import device_key, load_tuned, module_name, versions
from tests.gpu_extra import needs_gpu_extra
from tests.hlo.xla import lowered
from tests.test_docs import ROOT

X = np.linspace(-2, 2, 4096, dtype=np.float32)


def shared(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two results that share work; a fresh function for each call of `make`."""
    y = jnp.tanh(x) * 2 + 1
    return jnp.sum(y * x), y - x


def make() -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns a function JAX has not compiled yet, always of the same name."""

    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return shared(x)

    return step


def num_kernels(**options: Any) -> int:
    """Returns how many fusions the program has when it is compiled with Fuselane on."""
    with fuselane.enabled(loops=False, **options):
        text = jax.jit(make()).lower(X).compile().as_text()
    assert text is not None
    entry = text[text.index("\nENTRY") :]
    return len(re.findall(r" fusion\(", entry))


def tune(**settings: Any) -> Tuning:
    return fuselane.tune(make(), X, **{"budget_s": 30.0, "questions": 4} | settings)


def keep(fusion: str, directory: Path, **changes: Any) -> None:
    """Makes a strategy the best for the program, whatever measuring says."""
    tune(metric="modelled", questions=0)
    store = Store(directory)
    (found,) = store.found(*_here())
    store.add_found(replace(found, candidate=Candidate(fusion), **changes))


def _here() -> tuple[str, str]:
    return device_key(host_device()), versions()


@pytest.mark.parametrize("search", SEARCHES)
def test_measured(search: str, own_cache: Path) -> None:
    """Candidates are looked at until the budget is over, and the result is kept."""
    reports: list[Progress] = []
    result = tune(search=search, on_progress=reports.append)
    assert result.name == "jit_step"
    assert result.num_asked == 5
    assert not result.is_complete
    assert 0 < result.best_us <= result.xla_us
    assert [report.num_asked for report in reports] == [1, 2, 3, 4, 5]
    (found,) = Store(own_cache).found(*_here())
    assert (found.name, found.candidate) == ("jit_step", result.best)
    assert str(result.best) in result.text()


def test_a_named_pipeline_that_is_faster_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was slower when the search asked is compared with what it found once more."""
    asked: list[str] = []

    def compare(_: Any, candidate: Candidate, incumbent: Candidate, cost_us: float) -> Answer:
        if candidate == incumbent:
            return Answer(result="", cost_us=100.0, is_best=True)
        asked.append(candidate.fusion)
        is_best = candidate.fusion != "none" or asked.count("none") > 1
        return Answer(result="", cost_us=cost_us * (0.9 if is_best else 1.2), is_best=is_best)

    monkeypatch.setattr(Measured, "compare", compare)
    monkeypatch.setattr(Measured, "confirm", lambda *_: 0.8)
    result = tune(starts=("fuselane", "none"), search="greedy", questions=2)
    assert asked == ["fuselane", "none", "none"]
    assert result.best == Candidate("none")
    assert result.best_us == pytest.approx(80.0)


def test_modelled() -> None:
    """From a pipeline that fuses nothing, a search finds more than XLA does; the same each time."""
    settings = {"metric": "modelled", "search": "greedy", "starts": ("none",), "budget_s": 600.0}
    result = tune(questions=30, **settings)
    assert result.best_us < result.xla_us
    assert result.best.fusion
    again = tune(questions=0, **settings)
    assert again == result


def test_going_on() -> None:
    """A second run starts where the first one ended, unless it is to start afresh."""
    reports: list[Progress] = []
    tune(questions=3)
    tune(questions=2, on_progress=reports.append)
    assert [report.num_asked for report in reports] == [5, 6]
    reports.clear()
    tune(questions=2, fresh=True, on_progress=reports.append)
    assert [report.num_asked for report in reports] == [1, 2, 3]


def press_after(count: int, times: int = 1) -> Callable[[Progress], None]:
    """Returns what presses Ctrl-C once so many candidates have been looked at."""

    def show(progress: Progress) -> None:
        if progress.num_asked == count and not progress.is_interrupted:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return show


def test_interrupted() -> None:
    """What was found is kept, and the next search goes on from there."""
    usual = signal.getsignal(signal.SIGINT)
    result = tune(questions=9, on_progress=press_after(3))
    assert (result.num_asked, result.is_interrupted, result.is_complete) == (3, True, False)
    assert "3 candidates" in result.text()
    assert "interrupted, and goes on from here when run again" in result.text()
    assert signal.getsignal(signal.SIGINT) is usual
    reports: list[Progress] = []
    again = tune(questions=1, on_progress=reports.append)
    assert [report.num_asked for report in reports] == [4]
    assert not again.is_interrupted
    assert "the budget is used up" in again.text()


def test_interrupted_twice() -> None:
    """The second Ctrl-C is not waited for; what was answered is kept all the same."""
    with pytest.raises(KeyboardInterrupt):
        tune(questions=9, on_progress=press_after(3, times=2))
    assert tune(questions=0).num_asked == 3


def test_interrupted_among_several_programs(tmp_path: Path) -> None:
    """The rest of a script's programs are left alone."""
    path = tmp_path / "script.py"
    path.write_text(
        "import jax, jax.numpy as jnp\n"
        "f, g = (jax.jit(f) for f in (lambda x: x @ jnp.tanh(x), lambda x: x @ jnp.exp(-x)))\n"
        "for _ in range(30):\n    f(jnp.ones((256, 256))), g(jnp.ones((256, 256)))\n"
    )
    settings = TuneSettings(questions=1)
    assert len(tune_input([str(path)], settings)) > 1
    results = tune_input([str(path)], TuneSettings(questions=3), press_after(3))
    assert [result.is_interrupted for result in results] == [True]


def test_killed(own_cache: Path) -> None:
    """The search goes on where it was in a process that is no more."""
    code = (
        "import os, signal\nfrom tests.tuning.test_tuner import tune\n"
        "tune(on_progress=lambda p: p.num_asked == 3 and os.kill(os.getpid(), signal.SIGKILL))"
    )
    environment = os.environ | {"FUSELANE_CACHE_DIR": str(own_cache)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    reports: list[Progress] = []
    tune(questions=1, on_progress=reports.append)
    assert [report.num_asked for report in reports] == [4]


def test_one_function_twice() -> None:
    """What JAX remembers of a function's first search does not keep XLA from showing it again."""
    step = jax.jit(make())
    first, second = (fuselane.tune(step, X, metric="modelled", questions=0) for _ in range(2))
    assert first == second


def test_tuned_is_used_and_right(own_cache: Path) -> None:
    """The program is fused as was found best; another one as without."""
    fused, single = num_kernels(), num_kernels(fusion="none")
    assert fused < single
    assert num_kernels(tuned=True) == fused
    keep("none", own_cache)
    assert num_kernels(tuned=True) == single
    assert num_kernels(tuned=True, fusion="xla-today-cpu") == single
    with fuselane.enabled(loops=False, tuned=True):
        tuned = jax.jit(make())(X)
    for value, plain in zip(tuned, jax.jit(make())(X), strict=True):
        np.testing.assert_allclose(value, plain, rtol=1e-5)


def test_jit_with_a_strategy_of_its_own(own_cache: Path) -> None:
    """It has its way, whatever was found."""
    keep("none", own_cache)
    fuselane.enable(tuned=True, loops=False)
    compiled = [
        f.lower(X).compile()
        for f in (jax.jit(make()), fuselane.jit(make(), fusion="xla-today-cpu"))
    ]
    tuned, own = (len(re.findall(r" fusion\(", c.as_text() or "")) for c in compiled)
    assert own < tuned


@pytest.mark.parametrize(
    "changes",
    [{"fingerprint": "0" * 32}, {"name": "jit_other"}],
)
def test_another_program(own_cache: Path, changes: dict[str, str]) -> None:
    """What was found for another program, or another one of the same name, is left alone."""
    keep("", own_cache)
    keep("none", own_cache, **changes)
    assert num_kernels(tuned=True) == num_kernels()


def test_text_that_is_no_pipeline(own_cache: Path) -> None:
    """A result of a pass that is gone is as good as none."""
    keep("no-such-pass", own_cache)
    assert len(load_tuned()) == 0
    assert num_kernels(tuned=True) == num_kernels()


def test_new_results_are_new_programs(own_cache: Path) -> None:
    """JAX's caches tell programs apart that were compiled with other results at hand."""
    function = jax.jit(make())
    with fuselane.enabled(tuned=True, loops=False):
        function(X)
        assert function._cache_size() == 1  # type: ignore[attr-defined]
    keep("none", own_cache)
    with fuselane.enabled(tuned=True, loops=False):
        function(X)
        function(X)
    assert function._cache_size() == 2  # type: ignore[attr-defined]


def test_only_known_names_are_read(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules nobody has tuned cost a look at their name."""
    keep("none", own_cache)
    tuned = load_tuned()

    def other(x: jax.Array) -> jax.Array:
        return x + 1

    data = lowered(other, X)
    assert module_name(data) == "jit_other"
    monkeypatch.setattr("fuselane.tuning.tuned.HloModule", None)
    assert tuned.find(data, loops=False) is None


def test_budgets() -> None:
    """In seconds, minutes and hours."""
    assert [_duration(text) for text in ("90", "90s", "1.5m", "2h")] == [90, 90, 90, 7200]


def test_wrong_settings() -> None:
    """One sentence each."""
    for settings, sentence in (
        ({"speed": 1}, "There is no setting 'speed'; settings are metric,"),
        ({"metric": "beauty"}, "The metric is time or modelled, not 'beauty'."),
        ({"search": "luck"}, "There is no search 'luck', only greedy, beam, annealing."),
        ({"budget_s": 0}, "The budget has to be a number of seconds above zero."),
        ({"metric": "time", "target": "h100"}, "Times are measured on this machine's CPU; for h1"),
        ({"target": "h1000"}, "There is no target 'h1000'; targets are cpu,"),
        ({"starts": ("none", "all")}, "There is no fusion pass 'all'"),
        ({"metric": "modelled", "xla_options": True}, "No model knows what options of XLA"),
    ):
        with pytest.raises((OptionError, InputError), match=re.escape(sentence)):
            tune(**settings)


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to tune then."""
    monkeypatch.setenv("FUSELANE", "0")
    with pytest.raises(InputError, match="switched off"):
        tune()


def test_options_of_xla() -> None:
    """They are tried as well; what needs them says so."""
    result = tune(search="annealing", xla_options=True, questions=12, starts=("none",))
    assert result.num_asked == 13
    tuned = replace(result, best=replace(result.best, compiler_options=(("xla_a", "1"),)))
    assert "jax.jit(..., compiler_options={'xla_a': '1'})" in tuned.text()


def test_fuselane_stays_as_it_is() -> None:
    """Tuning leaves no setting behind."""
    tune(questions=1)
    assert not api.is_enabled()


SCRIPT = """
import sys
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x) @ x + jnp.exp(-x))
x = jnp.ones((256, 256))
for _ in range(int(sys.argv[1])):
    x = step(x)
print("done", x.shape)
sys.exit(3)

def example():
    return lambda x, y: jnp.sum(jnp.tanh(x) * y), (x, 2.0)
"""
SHARING = """
import jax.numpy as jnp

def example():
    return lambda x: (jnp.tanh(x) * 2, jnp.tanh(x) + 1), (jnp.ones(4096),)
"""
FUNCTION = SCRIPT.replace("sys.exit(3)", "").replace("int(sys.argv[1])", "0")


def test_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its programs are tuned after it has run; those that take no time are left alone."""
    path, results = tmp_path / "script.py", tmp_path / "results.json"
    path.write_text(SCRIPT)
    command = ["tune", str(path), "--candidates", "2", "--json", str(results), "--", "50"]
    assert cli.main(command) == cli.OK
    output = capsys.readouterr()
    assert output.out.startswith("done (256, 256)\njit__lambda  ")
    assert output.err == ""  # no terminal, no progress
    values = json.loads(results.read_text())
    assert "jit__lambda" in [value["name"] for value in values]
    assert all(value["num_asked"] == 3 for value in values)
    assert set(values[0]["best"]) == {"fusion", "compiler_options"}


def test_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results are printed, and the exit code tells."""
    path = tmp_path / "script.py"
    path.write_text(SHARING)
    monkeypatch.setattr("fuselane.cli.tune._ProgressLine.show", lambda _, p: press_after(2)(p))
    command = ["tune", f"{path}:example", "--metric", "modelled"]
    assert cli.main(command) == cli.INTERRUPTED
    assert "2 candidates, 2 different; interrupted" in capsys.readouterr().out


def test_refusals_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how many candidates each holds for."""

    def fail(*_: Any, **__: Any) -> None:
        raise RefusedError("It is refused on purpose.")

    monkeypatch.setattr(Measured, "_check", fail)
    path, results = tmp_path / "script.py", tmp_path / "results.json"
    path.write_text(SHARING)
    command = ["tune", f"{path}:example", "--from", "none", "--candidates", "2"]
    assert cli.main([*command, "--json", str(results)]) == cli.OK
    (value,) = json.loads(results.read_text())
    assert value["refusals"] == {"It is refused on purpose.": 2}


def test_a_function_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named after a colon."""
    path = tmp_path / "script.py"
    path.write_text(FUNCTION)
    command = ["tune", f"{path}:example", "--metric", "modelled", "--candidates", "3"]
    assert cli.main([*command, "--from", "none", "--search", "greedy"]) == cli.OK
    assert re.search(r"^jit__lambda .* modelled for cpu", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.py"], "There is no script 'none.py'."),
        (["none.py", "--search", "luck"], "There is no search 'luck', only"),
        (["none.py", "--from", "all"], "There is no fusion pass 'all'"),
        (["none.py", "--target", "abacus"], "There is no target 'abacus'"),
        (["none.py", "--budget", "long"], "'long' is no time such as 90s, 5m or 1h"),
        ([str(ROOT / "README.md")], "so name a script (.py) that does, not"),
        ([], "the following arguments are required: input"),
    ],
)
def test_bad_input(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2."""
    try:
        code = cli.main(["tune", *arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == cli.BAD_INPUT
    assert sentence.lower() in capsys.readouterr().err.lower()


def test_a_script_that_compiles_nothing(tmp_path: Path) -> None:
    """There is nothing to tune."""
    path = tmp_path / "script.py"
    path.write_text("pass")
    with pytest.raises(InputError, match="no program that could be run again"):
        tune_input([str(path)], TuneSettings())


def test_a_script_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is shown as Python shows it, and nothing is tuned."""
    path = tmp_path / "script.py"
    path.write_text("import jax\njax.jit(abs)(1.0)\nraise ValueError('no data')\n")
    assert cli.main(["tune", str(path), "--budget", "1s"]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert "ValueError: no data" in said
    assert "failed, so it is not tuned." in said


@needs_gpu_extra
def test_a_gpu_that_is_not_there(own_cache: Path) -> None:
    """By model, from XLA:GPU's own module; kept under the GPU's name."""
    result = tune(metric="modelled", target="h100", search="greedy", starts=("none",))
    assert result.target == "h100"
    assert 0 < result.best_us <= result.xla_us
    assert "modelled for h100" in result.text()
    (found,) = Store(own_cache).found("h100", versions())
    assert found.place.device == "h100"
    assert len(load_tuned()) == 0
