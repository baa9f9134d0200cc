"""What searches have found, kept in an SQLite file beside the kernels.

    asked   every candidate a search asked about, and its cost: what a search resumes from
    found   the best way to compile a program on a device: what `tuned=True` uses

Several processes may read and write at once. A file that cannot be used (damaged, written by
another version, others' to write) is set aside with one warning, or, where that cannot be done,
nothing is kept; searches and programs run all the same. What is in it decides speed, never results:
its texts are read as a user's would be.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, final

from fuselane.runtime.private_directory import open_private
from fuselane.runtime.warning import warn_once
from fuselane.tuning.candidate import Candidate

VERSION: Final = 1
"""Of the tables; to be raised with every change to them."""

_NAME: Final = "tuning.sqlite"
_WAIT_S: Final = 10.0
"""How long one process waits for another's writing."""

_NOT_DAMAGED: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
"""Errors after which the file is as good as before: locked for long, no room, no right to write."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS asked (
  search TEXT NOT NULL, candidate TEXT NOT NULL, result TEXT NOT NULL,
  cost_us REAL, is_best INTEGER NOT NULL, note TEXT NOT NULL,
  PRIMARY KEY (search, candidate)
);
CREATE TABLE IF NOT EXISTS found (
  fingerprint TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL,
  metric TEXT NOT NULL, loops INTEGER NOT NULL, name TEXT NOT NULL,
  candidate TEXT NOT NULL, cost_us REAL NOT NULL, xla_us REAL NOT NULL,
  PRIMARY KEY (fingerprint, device, versions, metric, loops)
);
"""
_T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a result holds.

    Attributes:
        device: The machine's key.
        versions: Of Fuselane and jaxlib.
        metric: `time` or `modelled`.
        loops: Whether loops became lane kernels.
    """

    device: str
    versions: str
    metric: str
    loops: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one candidate.

    Attributes:
        result: Fingerprint of the module it makes, or "" where it makes none.
        cost_us: Its time; infinity if it cannot be used.
        is_best: Whether it was the best so far, beyond chance.
        note: Why it cannot be used, or "".
    """

    result: str
    cost_us: float
    is_best: bool = False
    note: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best way to compile a program.

    Attributes:
        name: Of the module, such as `jit_step`.
        fingerprint: Of the module as XLA hands it over.
        place: Where it holds.
        candidate: The way; the empty one if XLA's own is best.
        cost_us: Its time.
        xla_us: That of XLA's own.
    """

    name: str
    fingerprint: str
    place: Place
    candidate: Candidate
    cost_us: float
    xla_us: float


@final
class Store:
    """The file in a directory; see the module's head."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_usable = True

    @property
    def path(self) -> Path:
        """Returns where the file is, or would be."""
        return self._directory / _NAME

    def answers(self, search: str) -> dict[Candidate, Answer]:
        """Returns what a search has asked so far, in order."""

        def read(connection: sqlite3.Connection) -> dict[Candidate, Answer]:
            rows = connection.execute(
                "SELECT candidate, result, cost_us, is_best, note FROM asked"
                " WHERE search = ? ORDER BY rowid",
                (search,),
            )
            return {
                Candidate.from_text(text): Answer(
                    result=result,
                    cost_us=float("inf") if cost is None else float(cost),
                    is_best=bool(is_best),
                    note=note,
                )
                for text, result, cost, is_best, note in rows
            }

        return self._run(read, {})

    def keep_answer(self, search: str, candidate: Candidate, answer: Answer | None) -> None:
        """Keeps what a candidate cost, or forgets what was kept; in the order of the last calls."""
        if answer is not None:
            self.add_answer(search, candidate, answer)
            return
        row = (search, candidate.to_text())
        self._run(
            lambda connection: connection.execute(
                "DELETE FROM asked WHERE search = ? AND candidate = ?", row
            ),
            None,
        )

    def add_answer(self, search: str, candidate: Candidate, answer: Answer) -> None:
        """Keeps what a candidate cost."""
        cost = None if answer.cost_us == float("inf") else answer.cost_us
        row = (search, candidate.to_text(), answer.result, cost, answer.is_best, answer.note)
        self._run(
            lambda connection: connection.execute(
                "INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?, ?, ?)", row
            ),
            None,
        )

    def forget(self, search: str) -> None:
        """Forgets what a search has asked."""
        self._run(
            lambda connection: connection.execute("DELETE FROM asked WHERE search = ?", (search,)),
            None,
        )

    def add_found(self, found: Found) -> None:
        """Keeps the best way to compile a program, in place of the one before."""
        place = found.place
        row = (
            found.fingerprint,
            place.device,
            place.versions,
            place.metric,
            place.loops,
            found.name,
            found.candidate.to_text(),
            found.cost_us,
            found.xla_us,
        )
        self._run(
            lambda connection: connection.execute(
                f"INSERT OR REPLACE INTO found VALUES ({', '.join('?' * len(row))})", row
            ),
            None,
        )

    def found(self, device: str, versions: str) -> list[Found]:
        """Returns all that was found for a device under some versions."""

        def read(connection: sqlite3.Connection) -> list[Found]:
            rows = connection.execute(
                "SELECT name, fingerprint, metric, loops, candidate, cost_us, xla_us FROM found"
                " WHERE device = ? AND versions = ? ORDER BY fingerprint, metric, loops",
                (device, versions),
            )
            return [
                Found(
                    name=name,
                    fingerprint=fingerprint,
                    place=Place(device=device, versions=versions, metric=metric, loops=bool(loops)),
                    candidate=Candidate.from_text(text),
                    cost_us=float(cost_us),
                    xla_us=float(xla_us),
                )
                for name, fingerprint, metric, loops, text, cost_us, xla_us in rows
            ]

        return self._run(read, []) if self.path.exists() else []

    def _run(self, action: Callable[[sqlite3.Connection], _T], default: _T) -> _T:
        """Does something with the file; with a fresh one if it cannot be used."""
        if not self._is_usable:
            return default
        try:
            with self._connect() as connection:
                return action(connection)
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGED:
                self._give_up(str(error))
                return default
            self._set_aside(str(error))
            try:
                with self._connect() as connection:
                    return action(connection)
            except (sqlite3.Error, OSError, ValueError, TypeError) as again:
                self._give_up(str(again))
        except OSError as error:
            self._give_up(error.strerror or str(error))
        return default

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Opens the file for one transaction."""
        with open_private(self._directory, create=True):  # raises if others can write to it
            connection = sqlite3.connect(self.path, timeout=_WAIT_S)
        try:
            _prepare(connection)
            with connection:
                yield connection
        finally:
            connection.close()

    def _set_aside(self, reason: str) -> None:
        warn_once(
            f"What was tuned before is lost, as {str(self.path)!r} cannot be used: {_end(reason)}."
        )
        with contextlib.suppress(OSError):
            os.replace(self.path, self.path.with_suffix(".damaged"))

    def _give_up(self, reason: str) -> None:
        self._is_usable = False
        warn_once(f"Results of tuning cannot be kept in {str(self.path)!r}: {_end(reason)}.")


def _prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables of a new file, and raises DatabaseError for a file of another version."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == VERSION:
        return
    if version:
        raise sqlite3.DatabaseError(f"its tables are of version {version}, not {VERSION}")
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for statement in filter(str.strip, _TABLES.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _end(reason: Any) -> str:
    return " ".join(str(reason).split()).rstrip(".")
