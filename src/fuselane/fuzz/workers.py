"""Processes that run random programs, so that a crash or a hang costs a batch, not the run."""

from __future__ import annotations

import functools
import gc
import math
import multiprocessing
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Final, final

import jax

import fuselane
from fuselane.fuzz.program import MAX_DEVICES, Program
from fuselane.fuzz.run import Failure, Outcome, run_programs

MAX_CPU_S: Final = 300.0
"""How much processor time plain XLA may take for a batch, and how much longer than it Fuselane may,
which has XLA compile the rest; a few seconds are usual."""

TIMEOUT_S: Final = 3600.0
"""How long a batch may take by the clock: who waits for ever uses no processor time, and who shares
the machine with many waits long."""

MAX_BATCHES: Final = 250
"""After how many batches a process is replaced: what JAX and XLA keep of programs adds up."""

BATCHES_PER_CLEANING: Final = 10

_PAST_XLA: Final = "past XLA"
"""What a process sends before the outcome, once plain XLA is done with a batch."""

_context: Final = multiprocessing.get_context("spawn")


@final
class Worker:
    """A process that runs one batch at a time."""

    def __init__(self) -> None:
        self._connection, other = _context.Pipe()
        self._process = _context.Process(target=_work, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self._num_batches = 0
        self._deadline = 0.0
        self._is_past_xla = False
        self.programs: tuple[Program, ...] = ()

    @property
    def connection(self) -> Connection:
        """What becomes ready when the batch is done."""
        return self._connection

    @property
    def is_worn(self) -> bool:
        """Whether it has run enough to be replaced."""
        return self._num_batches >= MAX_BATCHES or not self._process.is_alive()

    def start(self, programs: Sequence[Program], *, is_examined: bool = False) -> None:
        """Hands over a batch; see `run_programs`."""
        self.programs = tuple(programs)
        self._num_batches += 1
        self._deadline = time.monotonic() + TIMEOUT_S
        self._is_past_xla = False
        self._connection.send((self.programs, MAX_CPU_S, is_examined))

    def poll(self) -> Outcome | None:
        """Returns the outcome of the batch, or None while it is running.

        After a crash or a hang the process is gone.
        """
        try:
            while self._connection.poll():
                message: str | Outcome = self._connection.recv()
                if isinstance(message, Outcome):
                    return message
                self._is_past_xla = True
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            if code == -signal.SIGXCPU:
                return self._fail("hang", f"no result after {MAX_CPU_S:.0f} s of processor time")
            return self._fail("crash", f"the process ended with code {code}")
        if time.monotonic() > self._deadline:
            self.stop()
            return self._fail("hang", f"no result after {TIMEOUT_S:.0f} s")
        return None

    def _fail(self, form: str, detail: str) -> Outcome:
        count = len(self.programs)
        form = form if self._is_past_xla else f"xla-{form}"
        failures = dict.fromkeys(range(count), Failure(form, detail))
        return Outcome(num_programs=count, failures=failures)

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


@final
class Workers:
    """Some processes, replaced as they wear out or fail."""

    def __init__(self, count: int) -> None:
        self._workers = [Worker() for _ in range(count)]

    def run(
        self, batches: Iterator[Sequence[Program]], *, is_examined: bool = False
    ) -> Iterator[tuple[tuple[Program, ...], Outcome]]:
        """Yields batches with their outcomes, as they are done."""
        waiting = list(self._workers)
        busy: list[Worker] = []
        while True:
            while waiting:
                batch = next(batches, None)
                if batch is None:
                    waiting.clear()
                    break
                worker = self._renewed(waiting.pop())
                worker.start(batch, is_examined=is_examined)
                busy.append(worker)
            if not busy:
                return
            wait([worker.connection for worker in busy], timeout=1.0)
            for worker in list(busy):
                outcome = worker.poll()
                if outcome is not None:
                    busy.remove(worker)
                    waiting.append(worker)
                    yield worker.programs, outcome

    def run_one(self, batch: Sequence[Program]) -> Outcome:
        """Returns the outcome of one batch, a second time: it has failed."""
        ((_, outcome),) = self.run(iter([batch]), is_examined=True)
        return outcome

    def _renewed(self, worker: Worker) -> Worker:
        if not worker.is_worn:
            return worker
        worker.stop()
        place = self._workers.index(worker)
        self._workers[place] = Worker()
        return self._workers[place]

    def stop(self) -> None:
        """Ends all processes."""
        for worker in self._workers:
            worker.stop()


def _work(connection: Connection) -> None:
    """What a worker does: batches in, outcomes out."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", MAX_DEVICES)
    jax.config.update("jax_traceback_in_locations_limit", 0)  # nobody reads where lines come from
    fuselane.disable()  # whatever the environment says
    gc.freeze()
    gc.disable()  # what it would find can wait for the next cleaning
    num_batches = 0
    while True:
        try:
            programs, seconds, is_examined = connection.recv()
        except EOFError:
            return
        _limit_cpu_time(seconds)
        after_xla = functools.partial(_go_on, connection, seconds, time.process_time())
        connection.send(run_programs(programs, after_xla, is_examined=is_examined))
        num_batches += 1
        if num_batches % BATCHES_PER_CLEANING == 0:
            jax.clear_caches()
            gc.collect()


def _go_on(connection: Connection, seconds: float, start: float) -> None:
    """Grants what compiles programs a second time as long as plain XLA took, and `seconds` more."""
    connection.send(_PAST_XLA)
    _limit_cpu_time(seconds + time.process_time() - start)


def _limit_cpu_time(seconds: float) -> None:
    """Makes the system end this process once it has used so much more processor time."""
    soft = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
