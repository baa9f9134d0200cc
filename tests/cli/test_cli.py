"""The command line: what it prints, the JSON it writes, its exit codes, and bad input."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fuselane
from fuselane import cli
from fuselane.cartpole import peer
from fuselane.runtime import verify

ROW_KEYS = {
    "variant",
    "engine",
    "ms",
    "steps_per_s",
    "times_baseline",
    "compile_ms",
    "max_abs_diff",
}
SCRIPT = """
import sys
import jax, jax.numpy as jnp
import beside
print("given", sys.argv[1:], __name__)
loop = lambda x: jax.lax.fori_loop(0, 50, lambda i, y: jnp.sin(y) + 0.1, x)
print(jax.jit(loop)(jnp.ones((2048, 2))).shape)
sys.exit(beside.code)
"""


@pytest.fixture(autouse=True)
def fuselane_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Starts and ends each test with Fuselane off, whatever the environment says."""
    monkeypatch.delenv("FUSELANE", raising=False)
    monkeypatch.setenv("FUSELANE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    fuselane.disable()
    yield
    fuselane.disable()


def run_cartpole(path: Path, *arguments: str) -> dict[str, Any]:
    """Runs a small `fuselane cartpole` and returns the JSON it wrote."""
    size = ("--envs", "37", "--steps", "25", "--repeats", "1")
    assert cli.main(["cartpole", *size, "--json", str(path), *arguments]) == cli.OK
    results: dict[str, Any] = json.loads(path.read_text())
    return results


def exit_code_of(*arguments: str) -> int | str | None:
    """Returns the exit code of a command line, however it comes out."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return stop.code


def test_cartpole_writes_its_rows_and_agrees_with_xla(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with the kernel by hand in C, where there is a compiler."""
    monkeypatch.setattr("fuselane.cartpole.bench.PEERS", (peer.Peer(engine="c"),))
    quick = ["no_concat", "concat"]  # XLA compiles the others for seconds
    results = run_cartpole(tmp_path / "results.json", "--variants", ",".join(quick), "--peers")
    pairs = [(row["variant"], row["engine"]) for row in results["rows"]]
    by_hand = [] if results["skipped"] else [("no_concat", "c")]
    engines = [(name, engine) for name in quick for engine in ("xla", "fuselane")]
    assert sorted(pairs) == sorted(engines + by_hand)
    for row in results["rows"]:
        assert row.keys() == ROW_KEYS
        assert row["ms"] > 0 and row["compile_ms"] > 0 and row["times_baseline"] > 0
        assert row["steps_per_s"] == pytest.approx(37 * 25 / (row["ms"] * 1e-3))
        assert row["engine"] != "xla" or row["max_abs_diff"] == 0
    assert all(check["holds"] for check in results["checks"])
    assert {"cpu", "cores", "jax", "fuselane", "python"} <= results["machine"].keys()
    printed = capsys.readouterr().out
    assert "37 environments x 25 steps" in printed
    assert all(name in printed for name in quick)


@pytest.mark.parametrize("steps", ["0", "1"])
def test_cartpole_runs_without_a_real_loop(tmp_path: Path, steps: str) -> None:
    results = run_cartpole(tmp_path / "results.json", "--steps", steps, "--variants", "concat")
    assert all(check["holds"] for check in results["checks"])


def test_cartpole_says_which_peers_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the baseline there is no ratio to it either."""
    monkeypatch.setattr(peer, "COMPILERS", ("no-such-compiler",))
    missing = peer.Peer(engine="torch", module="torch_eager", package="no_such_package")
    monkeypatch.setattr("fuselane.cartpole.bench.PEERS", (missing, peer.Peer(engine="c")))
    few = ("--steps", "1", "--variants", "no_concat", "--peers")
    results = run_cartpole(tmp_path / "results.json", *few)
    assert [row["times_baseline"] for row in results["rows"]] == [None, None]
    assert [skipped["engine"] for skipped in results["skipped"]] == ["torch", "c"]
    said = capsys.readouterr().err
    assert "torch is skipped. no_such_package is not installed" in said
    assert "c is skipped. No C compiler is installed" in said


def test_cartpole_under_fuselane_0_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSELANE", "0")
    assert exit_code_of("cartpole") == cli.BAD_INPUT
    assert "switched off" in capsys.readouterr().err


def test_run_runs_a_script_and_lists_its_loops(tmp_path: Path) -> None:
    code = 3
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text(f"code = {code}")
    command = [sys.executable, "-m", "fuselane", "run", str(script), "--speed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == ["given ['--speed', '3'] __main__", "(2048, 2)"]
    loops = [line for line in done.stderr.splitlines() if "script.py:6" in line]
    assert len(loops) == 1 and "50 steps" in loops[0]


def test_run_verifies_when_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace(".shape", ".block_until_ready()"))
    (tmp_path / "beside.py").write_text("code = 0")
    monkeypatch.setattr(verify, "run_check", lambda *_: "told")
    with pytest.raises(SystemExit, match="1"):
        cli.main(["run", "--verify", str(script)])
    said = capsys.readouterr().err
    assert "JaxRuntimeError" in said and "told" in said and "script.py:6" in said


def test_pages_are_printed_where_signs_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "small.hlo"
    module.write_text("HloModule m\n\nENTRY e {\n  ROOT x = f32[8] parameter(0)\n}\n")
    printed = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", printed)
    assert cli.main(["explain", str(module)]) == cli.OK
    printed.seek(0)
    text = printed.read()
    assert "m on cpu" in text and " ? " in text


def test_run_shows_what_a_script_raises_as_python_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("def fail():\n    raise ValueError('no')\n\nfail()\n")
    with pytest.raises(SystemExit, match="1"):
        cli.main(["run", str(script)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{script}", line 4, in <module>'
    assert "ValueError: no" in lines


def test_explain_lists_the_loops_of_a_module_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = compile_module(
        lambda x: jax.lax.fori_loop(0, 50, lambda _, y: jnp.fft.fft(y).real * 0.1, x)
    )
    bare, wrapped = tmp_path / "module.pb", tmp_path / "module.hlo.pb"
    bare.write_bytes(data)
    wrapped.write_bytes(b"\x0a" + encode_varint(len(data)) + data)
    for path in (bare, wrapped):
        assert exit_code_of("explain", str(path)) == cli.OK
        assert "not fused" in capsys.readouterr().out
        assert exit_code_of("explain", str(path), "--json", "-") == cli.OK
        assert json.loads(capsys.readouterr().out)["loops"][0]["fused"] is False


def compile_module(function: Callable[[jax.Array], jax.Array]) -> bytes:
    """Returns the optimized module of a function of f32[2048] as a serialized HloModuleProto."""
    compiled: Any = jax.jit(function).lower(jnp.ones(2048)).compile()
    data: bytes = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return data


def encode_varint(number: int) -> bytes:
    """Returns a number as protocol buffers write it."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def test_doctor_finds_all_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("doctor") == cli.OK
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines_of(capsys))
    assert lines["fuselane"] == fuselane.__version__
    assert lines["hook"] == "installed"
    assert lines["self-test"] == "passed"
    assert {"jax", "llvmlite", "cpu", "features", "cache"} <= lines.keys()


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_doctor_respects_the_switch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSELANE", "0")
    assert exit_code_of("doctor") == cli.OK
    assert "skipped, as FUSELANE=0" in capsys.readouterr().out


BAD_COMMANDS = [
    ([], "required: COMMAND"),
    (["fly"], "'fly'"),
    (["cartpole", "--wings"], "--wings"),
    (["cartpole", "--envs", "0"], "at least 1"),
    (["cartpole", "--envs", "many"], "'many' is not a whole number"),
    (["cartpole", "--steps", "-1"], "'-1' is not a whole number"),
    (["cartpole", "--variants", "concat,fast"], "no variant 'fast'"),
    (["cartpole", "--peers", "--variants", "naive"], "variant 'no_concat'"),
    (["cartpole", "--json", "/no/such/folder/x.json"], "cannot be written"),
    (["run"], "required: script"),
    (["run", "/no/such/script.py"], "no script '/no/such/script.py'"),
    (["explain", "/no/such/module.pb"], "cannot be read: No such file"),
    (["explain"], "Name one script, module, file or folder"),
    (["explain", "x", "-m", "y"], "Name one script, module, file or folder"),
    (["explain", os.__file__ + ":no_such"], "has no function 'no_such'"),
    (["explain", __file__, "--target", "abacus"], "no target 'abacus'"),
    (["explain", "/no/such/script.py"], "no script '/no/such/script.py'"),
    (["explain", "/no/such/script.py:f"], "no script '/no/such/script.py'"),
    (["explain", "-m", "no_such_module"], "no module 'no_such_module'"),
    (["explain", "x.pb", "--fusion", "no-such-pass"], "no-such-pass"),
    (["explain", "/no/such", "--", "more"], "Only scripts take arguments"),
    (["explain", "/no/such", "--html", "/no/such/x.html"], "cannot be written"),
    (["explain", "/no/such", "--max-seconds", "-1"], "'-1' is not a number of seconds"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD_COMMANDS)
def test_bad_input_gets_one_sentence(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(*arguments) == cli.BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1 and said.err.startswith("fuselane: ")
    assert expected in said.err


def test_reports_are_only_overwritten_by_reports(tmp_path: Path) -> None:
    old, new = tmp_path / "old.html", tmp_path / "new.json"
    old.write_text("a report of yesterday")
    arguments = ("explain", "/no/such/module.pb", "--html", str(old), "--json", str(new))
    assert exit_code_of(*arguments) == cli.BAD_INPUT
    assert old.read_text() == "a report of yesterday" and not new.exists()


def test_bad_options_in_variables_get_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSELANE_VECTOR_BITS", "99")
    script = tmp_path / "script.py"
    script.write_text("")
    assert cli.main(["run", str(script)]) == cli.BAD_INPUT
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("fuselane: ")


def test_a_switch_that_is_neither_on_nor_off_gets_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "fuselane", "run", str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "FUSELANE": "perhaps"},
    )
    assert done.returncode == cli.BAD_INPUT
    # Where the extra `gpu` is installed and no GPU is there, XLA says so before.
    *before, sentence = done.stderr.splitlines()
    assert sentence.startswith("fuselane: ")
    assert not [line for line in before if "cuda" not in line and "absl::" not in line]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("--version") == 0
    assert capsys.readouterr().out.strip() == f"fuselane {fuselane.__version__}"
    assert metadata.version("fuselane") == fuselane.__version__


def test_fuzz_runs_programs_of_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report and the JSON say what was run."""
    path = tmp_path / "fuzz.json"
    size = ("--programs", "2", "--seed", "26", "--jobs", "1", "--opcodes", "add,select")
    arguments = ["fuzz", *size, "--folder", str(tmp_path), "--json", str(path)]
    assert cli.main(arguments) == cli.OK
    printed = capsys.readouterr()
    assert "2 programs from seed 26 on" in printed.out and "seed 26" in printed.err
    assert json.loads(path.read_text())["programs"] == 2


def test_fuzz_knows_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuzz", "--opcodes", "add,abracadabra"]) == cli.BAD_INPUT
    assert "'abracadabra'" in capsys.readouterr().err


FUNCTION_FILE = """\
import jax, jax.numpy as jnp

print("importing")

def rollout(x):
    return jax.lax.fori_loop(0, 50, lambda _, y: jnp.sin(y) * 2 + x, x)

def example():
    return rollout, (jnp.ones(2048),)

def nothing():
    return 3

def broken():
    raise KeyError("a\\nb")

def unfit():
    return rollout, (jnp.ones(7), 8)

def mixed():
    return lambda x: x + jnp.ones(7), (jnp.ones(3),)
"""


@pytest.fixture
def function_file(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(FUNCTION_FILE)
    return path


def test_explain_a_function(
    function_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    name = f"{function_file}:example"
    assert exit_code_of("explain", name, "--html", str(page), "--json", "-") == cli.OK
    report = json.loads(capsys.readouterr().out)
    (module,) = report["modules"]
    assert (module["name"], module["target"]) == ("jit_rollout", "cpu")
    assert report["loops"][0]["source"].startswith("program.py:6")
    assert "jit_rollout" in page.read_text()
    assert exit_code_of("explain", name, "--diff", name) == cli.OK
    assert exit_code_of("explain", name, "--annotate") == cli.OK
    assert "jnp.sin(y)" in capsys.readouterr().out
    assert exit_code_of("explain", name, "--trace", "sine") == cli.OK
    traced = capsys.readouterr().out
    assert "as it came: +1 " in traced and "; 1 now" in traced
    assert exit_code_of("explain", name, "--trace", "dot") == cli.OK
    assert "There never was one." in capsys.readouterr().out


def test_explain_compares_with_a_report_that_was_kept(
    function_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, name = tmp_path / "kept.json", f"{function_file}:example"
    assert exit_code_of("explain", name, "--json", str(kept)) == cli.OK
    function_file.write_text(FUNCTION_FILE.replace("jnp.sin(y)", "jnp.cumsum(y)"))
    capsys.readouterr()
    assert exit_code_of("explain", name, "--diff", str(kept)) == cli.OK
    assert "No kernel" not in capsys.readouterr().out
    assert exit_code_of("explain", name, "--diff", str(tmp_path / "none.json")) == cli.BAD_INPUT
    assert "cannot be read" in capsys.readouterr().err
    kept.write_text("{}")
    assert exit_code_of("explain", name, "--diff", str(kept)) == cli.BAD_INPUT


def test_explain_a_script_that_fails(
    function_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with function_file.open("a") as file:
        file.write("import sys\njax.jit(rollout)(jnp.ones(2048))\nsys.exit(int(sys.argv[1]))\n")
    assert exit_code_of("explain", str(function_file), "--", "4") == cli.WRONG
    said = capfd.readouterr()
    assert "jit_rollout on cpu" in said.out
    assert "importing" not in said.out
    assert "The script ended with exit code 4." in said.err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing", "has to return a function and a tuple of its arguments"),
        ("broken", "raised KeyError in line 15: 'a\\nb'"),
        ("unfit", "returns raised TypeError: rollout() takes 1 positional argument but 2 were"),
        ("mixed", "returns raised TypeError in line 21: add got incompatible shapes"),
        ("no_such", "has no function 'no_such'"),
        ("rollout", "takes arguments (x). Name a function that takes none and returns"),
    ],
)
def test_functions_that_give_no_program(
    name: str, expected: str, function_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of("explain", f"{function_file}:{name}") == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert line.startswith("fuselane: ") and expected in line
