"""The store: what comes back, several processes at once, and files that cannot be used."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselane.runtime.warning import FuselaneWarning, forget_warnings
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.store import Answer, Found, Place, Store

PLACE = Place(device="cpu", versions="1", metric="time", loops=False)
A = Candidate("none")
B = Candidate("instruction-fusion{max-duplication=2}", (("xla_x", "1"),))


def found(name: str = "jit_f", place: Place = PLACE, cost_us: float = 1.0) -> Found:
    return Found(name=name, fingerprint="f", place=place, candidate=B, cost_us=cost_us, xla_us=2.0)


@pytest.fixture(autouse=True)
def clean_warnings() -> None:
    forget_warnings()


def test_answers_come_back(tmp_path: Path) -> None:
    """In order, of one search, in another process as well."""
    answers = {
        B: Answer(result="r", cost_us=1.5, is_best=True),
        A: Answer(result="", cost_us=math.inf, note="It makes no module."),
    }
    for candidate, answer in answers.items():
        Store(tmp_path).add_answer("s", candidate, answer)
    Store(tmp_path).add_answer("other", A, Answer(result="", cost_us=1.0))
    assert list(Store(tmp_path).answers("s").items()) == list(answers.items())
    Store(tmp_path).forget("s")
    assert Store(tmp_path).answers("s") == {}
    assert len(Store(tmp_path).answers("other")) == 1


def test_the_best_replaces_the_one_before(tmp_path: Path) -> None:
    """For the same program, device, versions, metric and choice of loops."""
    modelled = Place(device="cpu", versions="1", metric="modelled", loops=False)
    store = Store(tmp_path)
    for one in (found(cost_us=1.0), found(cost_us=0.5), found(place=modelled)):
        store.add_found(one)
    assert Store(tmp_path).found("cpu", "1") == [found(place=modelled), found(cost_us=0.5)]
    assert Store(tmp_path).found("cpu", "2") == []
    assert Store(tmp_path).found("gpu", "1") == []


def test_nothing_is_made_by_asking(tmp_path: Path) -> None:
    """A process that only looks up leaves no file behind."""
    assert Store(tmp_path / "none").found("cpu", "1") == []
    assert not (tmp_path / "none").exists()


def test_processes_write_at_once(tmp_path: Path) -> None:
    """Nothing is lost."""
    code = """
import sys
from pathlib import Path
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.store import Answer, Store
store = Store(Path(sys.argv[1]))
for i in range(30):
    store.add_answer("s", Candidate(f"{sys.argv[2]}-{i}"), Answer(result="", cost_us=1.0))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(tmp_path), str(n)], env=environment
        )
        for n in range(3)
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    assert len(Store(tmp_path).answers("s")) == 90


def _garbage(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _bent(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200:] = bytes(255 - byte for byte in data[200:])
    path.write_bytes(data)


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


def _no_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE asked")
        connection.execute("DROP TABLE found")


def _foreign_text(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE found SET candidate = '{}'")
        connection.execute("UPDATE asked SET candidate = 'x'")


@pytest.mark.parametrize("damage", [_garbage, _half, _bent, _newer, _no_tables, _foreign_text])
def test_a_file_that_cannot_be_used(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It is set aside with one warning, and a fresh one takes its place."""
    store = Store(tmp_path)
    store.add_found(found())
    store.add_answer("s", A, Answer(result="", cost_us=1.0))
    damage(store.path)
    with pytest.warns(FuselaneWarning, match="What was tuned before is lost") as caught:
        assert Store(tmp_path).found("cpu", "1") == []
        assert Store(tmp_path).answers("s") == {}
        Store(tmp_path).add_found(found())
    assert len(caught) == 1
    assert Store(tmp_path).found("cpu", "1") == [found()]
    assert store.path.with_suffix(".damaged").is_file()


def test_no_right_to_write(tmp_path: Path) -> None:
    """Nothing is kept, with one warning, and nothing fails."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = Store(blocked / "below")
    with pytest.warns(FuselaneWarning, match="cannot be kept") as caught:
        store.add_found(found())
        store.add_answer("s", A, Answer(result="", cost_us=1.0))
        assert store.answers("s") == {}
    assert len(caught) == 1


def test_a_directory_of_others(tmp_path: Path) -> None:
    """What others can write to is not used."""
    Store(tmp_path).add_found(found())
    tmp_path.chmod(0o777)
    with pytest.warns(FuselaneWarning, match="not this user's alone"):
        assert Store(tmp_path).found("cpu", "1") == []
    tmp_path.chmod(0o700)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(tmp_path).found("cpu", "1") == [found()]
