"""Peers: the same loop in other tools, each in a child process that is told what to run."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, final

import numpy as np

from fuselane.cartpole.constants import STEPS_WITHOUT_RESET
from fuselane.cartpole.contender import Array, Contender
from fuselane.cartpole.problem import Problem
from fuselane.errors import FuselaneError

COMPILERS: Final = ("cc", "gcc", "clang")
C_FLAGS: Final = ("-O3", "-march=native", "-ffast-math", "-fopenmp")
C_SOURCE: Final = Path(__file__).with_name("peers") / "cartpole.c"
ANSWER_LIMIT_S: Final = 600.0


@final
class PeerUnavailable(FuselaneError):
    """A peer cannot run on this machine."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A tool to compare with.

    Attributes:
        engine: Its name in the tables.
        module: The module in `cartpole.peers` that runs it, or "" for the C program.
        package: The Python package it needs, or "".
    """

    engine: str
    module: str = ""
    package: str = ""


PEERS: Final = (
    Peer(engine="torch", module="torch_eager", package="torch"),
    Peer(engine="torchscript", module="torchscript", package="torch"),
    Peer(engine="inductor", module="inductor", package="torch"),
    Peer(engine="numba", module="numba_prange", package="numba"),
    Peer(engine="c"),
)


@final
class PeerContender(Contender):
    """A peer's process and the folder it shares with us.

    Raises:
        PeerUnavailable: if the peer's package or compiler is missing, or it fails to start.
    """

    def __init__(self, peer: Peer, problem: Problem) -> None:
        self.engine = peer.engine
        self._num_steps = problem.num_steps
        self._shape = (4, problem.num_envs)
        self._scratch = tempfile.TemporaryDirectory(prefix="fuselane-cartpole-")
        self._folder = Path(self._scratch.name)
        self._process: subprocess.Popen[str] | None = None
        try:
            start = time.perf_counter()
            command = _peer_command(peer, self._folder)
            build_ms = (time.perf_counter() - start) * 1e3
            _write_data(problem, self._folder)
            self._errors = (self._folder / "stderr").open("w+")
            self._process = _start(command, self._folder, problem, self._errors)
            self.compile_ms = build_ms + float(self._hear().removeprefix("ready "))
        except BaseException:
            self.close()
            raise

    def run(self) -> float:
        """Has the peer run all steps and returns the milliseconds it took by its own clock."""
        return self._ask(self._num_steps)

    def final_states(self) -> Array:
        """Returns the states after the last run, f32[4, envs]."""
        return np.fromfile(self._folder / "result.bin", np.float32).reshape(self._shape)

    def early_states(self) -> Array:
        """Returns the states after the steps in which nothing can be reset, f32[4, envs]."""
        self._ask(min(self._num_steps, STEPS_WITHOUT_RESET))
        return self.final_states()

    def close(self) -> None:
        """Ends the process and removes the folder."""
        if self._process is not None:
            _end(self._process)
            self._errors.close()
        self._scratch.cleanup()

    def _ask(self, num_steps: int) -> float:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a peer that has ended is noticed when heard
            self._process.stdin.write(f"{num_steps}\n")
            self._process.stdin.flush()
        return float(self._hear())

    def _hear(self) -> str:
        """Returns the peer's next line; kills it when it stays silent for too long."""
        assert self._process is not None and self._process.stdout is not None
        alarm = threading.Timer(ANSWER_LIMIT_S, self._process.kill)
        alarm.start()
        line = self._process.stdout.readline()
        alarm.cancel()
        if not line:
            self._process.wait()
            raise PeerUnavailable(f"It ended early: {_last_line(self._errors)}")
        return line.strip()


def _peer_command(peer: Peer, folder: Path) -> list[str]:
    if not peer.module:
        return [str(_build_c_program(folder))]
    if importlib.util.find_spec(peer.package) is None:
        raise PeerUnavailable(
            f"{peer.package} is not installed (pip install 'fuselane[peers]' brings it)."
        )
    return [sys.executable, "-m", f"fuselane.cartpole.peers.{peer.module}"]


def _build_c_program(folder: Path) -> Path:
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise PeerUnavailable(f"No C compiler is installed (looked for {', '.join(COMPILERS)}).")
    program = folder / "cartpole"
    command = [compiler, *C_FLAGS, str(C_SOURCE), "-o", str(program), "-lm"]
    build = subprocess.run(command, capture_output=True, text=True, check=False)
    if build.returncode != 0:
        reason = (build.stderr.strip().splitlines() or ["no message"])[0]
        raise PeerUnavailable(f"{compiler} {' '.join(C_FLAGS)} failed: {reason}")
    return program


def _write_data(problem: Problem, folder: Path) -> None:
    for name, array in (
        ("state", problem.state),
        ("actions", problem.actions),
        ("resets", problem.resets),
    ):
        np.asarray(array).tofile(folder / f"{name}.bin")


def _start(
    command: list[str], folder: Path, problem: Problem, errors: IO[str]
) -> subprocess.Popen[str]:
    arguments = [str(folder), str(problem.num_envs), str(problem.pool_rows)]
    return subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = errors.read().strip().splitlines()
    return lines[-1] if lines else "it gave no reason."
