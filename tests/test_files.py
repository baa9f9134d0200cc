"""Files that are whole or as they were."""

from __future__ import annotations

import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fuselane.files import write_whole

LONG = "x" * 100_000


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Has the system refuse longer ones, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_written_as_any_other(tmp_path: Path) -> None:
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    plain.write_text("a", encoding="utf-8")
    write_whole(whole, "\u00e4\n")
    assert whole.read_bytes() == "\u00e4\n".encode()
    assert whole.stat().st_mode == plain.stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["plain", "whole"]


def test_where_there_is_no_room_it_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    with files_of_at_most(50_000), pytest.raises(OSError, match="too large"):
        write_whole(file, LONG)
    assert file.read_text() == "before"
    with files_of_at_most(50_000), pytest.raises(OSError, match="too large"):
        write_whole(tmp_path / "new", LONG)
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to("file")
    write_whole(link, "after")
    assert link.is_symlink() and file.read_text() == "after"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_pipes_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join()
    assert read == ["through"] and not pipe.is_file()
    write_whole(Path(os.devnull), "away")


def test_where_nothing_can_be_put_beside_it_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("before")

    def touch(path: Path) -> None:
        raise PermissionError(f"Permission denied: {path}")

    monkeypatch.setattr(Path, "touch", touch)
    write_whole(file, "after")
    assert file.read_text() == "after"
