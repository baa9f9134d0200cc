"""Threads of one call run on different processors."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.codegen.processors import build_processor_ir

_TRIES: Final = 20

_EXPORTS: Final = """
define i64 @here() {
  %number = call i64 @current_processor()
  ret i64 %number
}

define i64 @leave(i64 %processor) {
  call void @leave_processor(i64 %processor)
  %number = call i64 @current_processor()
  ret i64 %number
}
"""


def _functions(platform: str) -> tuple[Any, Callable[[], int], Callable[[int], int]]:
    """Returns what keeps the functions loaded, and both."""
    code = load_object(compile_object(build_processor_ir(platform) + _EXPORTS))
    here = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("here"))
    leave = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("leave"))
    return code, here, leave


def _run_in_thread(function: Callable[[], None]) -> None:
    """Calls a function on a thread of its own, whose processors it may change."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as failure:  # raised again below
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


def test_elsewhere_nothing_happens() -> None:
    _, here, leave = _functions("darwin")
    assert here() == leave(0) == -1


@pytest.mark.skipif(sys.platform != "linux", reason="no other system has the calls")
class TestOnLinux:
    def test_thread_leaves_a_processor(self) -> None:
        """It may still run there; so now and then, on a busy machine, it is back at once."""
        allowed = os.sched_getaffinity(0)
        if len(allowed) < 2:
            pytest.skip("this process may run on one processor only")
        _, here, leave = _functions("linux")

        def run() -> None:
            was_moved = 0
            for _ in range(_TRIES):
                os.sched_setaffinity(0, {min(allowed)})
                os.sched_setaffinity(0, allowed)
                was_moved += leave(here()) in allowed - {min(allowed)}
                assert os.sched_getaffinity(0) == allowed
            assert was_moved > _TRIES // 2

        _run_in_thread(run)

    def test_thread_on_another_processor_stays(self) -> None:
        _, here, leave = _functions("linux")

        def run() -> None:
            only = {min(os.sched_getaffinity(0))}
            os.sched_setaffinity(0, only)
            for other in (-1, here() + 1, 1 << 20):
                assert {leave(other)} == only == os.sched_getaffinity(0)

        _run_in_thread(run)

    def test_thread_that_may_run_on_one_processor_stays(self) -> None:
        _, here, leave = _functions("linux")

        def run() -> None:
            only = {max(os.sched_getaffinity(0))}
            os.sched_setaffinity(0, only)
            assert {leave(here())} == only == os.sched_getaffinity(0)

        _run_in_thread(run)
