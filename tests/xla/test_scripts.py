"""Scripts run as they are, and every program they compile."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from fuselane.errors import CaptureError, FuselaneError
from fuselane.xla.scripts import capture_script
from fuselane.xla.targets import find_target
from tests.gpu_extra import needs_gpu_extra

MAX_S = 120.0

SCRIPT = """\
import sys
import jax, jax.numpy as jnp

print("arguments", *sys.argv[1:])

def rollout(x):
    jax.debug.callback(lambda x: None, x)
    return jax.lax.fori_loop(0, 7, lambda _, y: jnp.sin(y) + jax.random.normal(KEY, y.shape), x)

if __name__ == "__main__":
    KEY = jax.random.key(0)
    first = jax.jit(rollout)(jnp.ones(100))
    again = jax.jit(lambda x: rollout(x))(jnp.ones(100))
    if "fail" in sys.argv:
        sys.exit(3)
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where temporary folders are made; running scripts has to leave it empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my_script.py"
    path.write_text(SCRIPT)
    return path


def test_every_module_of_a_script(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    capture = capture_script(
        [str(script), "a", "b c"], find_target("cpu"), max_s=MAX_S, on_progress=said.append
    )
    assert capture.exit_code == 0
    assert {"jit_rollout", "jit__lambda"} <= {module.name for module in capture.modules}
    printed, complained = capfd.readouterr()
    assert not printed
    assert "arguments a b c" in complained
    assert said[0] == f"running {script} a b c"


def test_equal_modules_count_once(script: Path) -> None:
    script.write_text(
        "import jax.numpy as jnp\nfor _ in range(3): jnp.sin(jnp.ones(3))\n"
        "import jax; jax.clear_caches(); jnp.sin(jnp.ones(3))\n"
    )
    capture = capture_script([str(script)], find_target("cpu"), max_s=MAX_S)
    assert [module.name for module in capture.modules].count("jit_sin") == 1


def test_a_module(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(script.parent)
    capture = capture_script(["-m", "my_script", "fail"], find_target("cpu"), max_s=MAX_S)
    assert capture.exit_code == 3
    assert "jit_rollout" in {module.name for module in capture.modules}


@needs_gpu_extra
def test_a_script_for_a_gpu(script: Path) -> None:
    """It runs on the CPU, while XLA gets what it would get for a GPU."""
    said: list[str] = []
    capture = capture_script(
        [str(script), "fail"], find_target("h100"), max_s=MAX_S, on_progress=said.append
    )
    assert capture.exit_code == 3
    assert not capture.refused
    module = next(module for module in capture.modules if module.name == "jit_rollout")
    final = module.module()
    sines = [i for c in final.computations for i in c.instructions if i.opcode == "sine"]
    assert {str(final.source(sine)).split(" ")[0] for sine in sines} == {"my_script.py:8"}
    assert module.target == "h100"
    assert said[-1] == f"compiled {len(capture.modules)} of {len(capture.modules)} modules for h100"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("print('nothing')", "The script compiled nothing with JAX."),
        ("1 / 0", "The script compiled nothing with JAX, and ended with exit code 1."),
        (
            "import os; os.environ['XLA_FLAGS'] = ''",
            "The script compiled nothing with JAX that XLA showed: the script sets XLA_FLAGS, which"
            " it has to extend instead.",
        ),
        ("import time; time.sleep(99)", "It took longer than 1 seconds, so it was stopped."),
    ],
)
def test_scripts_without_programs(text: str, sentence: str, script: Path) -> None:
    script.write_text(text)
    max_s = 1 if "sleep" in text else MAX_S
    with pytest.raises(FuselaneError) as caught:
        capture_script([str(script)], find_target("cpu"), max_s=max_s)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["no_such_file.py"], "There is no script 'no_such_file.py'."),
        (["-m", "no_such_module"], "There is no module 'no_such_module'."),
        (["-m", "no_such.module"], "There is no module 'no_such.module'."),
    ],
)
def test_scripts_that_are_not_there(command: list[str], sentence: str) -> None:
    with pytest.raises(FuselaneError) as caught:
        capture_script(command, find_target("cpu"), max_s=MAX_S)
    assert str(caught.value) == sentence


def test_no_process_outlives_a_capture(script: Path, tmp_path: Path) -> None:
    """A script that starts others, which sleep on, is stopped with them."""
    script.write_text(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(CaptureError):
        capture_script([str(script)], find_target("cpu"), max_s=3)
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/status")
    for _ in range(100):  # it has been killed, but may not have run since
        if not _is_running(status):
            break
        time.sleep(0.1)
    assert not _is_running(status)


def _is_running(status: Path) -> bool:
    try:
        return "State:\tZ" not in status.read_text()
    except FileNotFoundError:
        return False
