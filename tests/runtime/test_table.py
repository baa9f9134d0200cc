"""Machine code that is made while XLA compiles the rest, and what becomes of calls before that."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
import fuselane.runtime.kernel
from fuselane.codegen.llvm import Bitcode, HostTarget, compile_bitcode
from fuselane.errors import CodegenError
from fuselane.runtime import ffi
from fuselane.runtime.cache import KernelCache, open_cache
from fuselane.runtime.kernel import Kernel
from fuselane.runtime.table import KernelTable, MachineCode, Record, table
from tests.runtime.hand_kernels import call, scale

X = np.arange(4, dtype=np.float32)


class Llvm:
    """Stands in for LLVM: waits until it is let go, and fails as often as it is told."""

    def __init__(self, num_failures: int = 0) -> None:
        self.go = threading.Event()
        self.num_failures = num_failures
        self.threads: list[str] = []

    def __call__(self, bitcode: Bitcode, target: HostTarget) -> bytes:
        self.threads.append(threading.current_thread().name)
        assert self.go.wait(60)
        if len(self.threads) <= self.num_failures:
            raise CodegenError("no code today")
        return compile_bitcode(bitcode, target)


@pytest.fixture(autouse=True)
def registered(own_cache: Path) -> None:
    ffi.register()


@pytest.fixture
def llvm(monkeypatch: pytest.MonkeyPatch) -> Llvm:
    stand_in = Llvm()
    monkeypatch.setattr(fuselane.runtime.kernel, "compile_bitcode", stand_in)
    return stand_in


def compile_call(kernel: Kernel) -> Any:
    return jax.jit(lambda x: call(kernel, x)).lower(X).compile()


def join() -> None:
    for thread in threading.enumerate():
        if thread.name == "fuselane-llvm":
            thread.join(60)


def test_calls_wait_for_machine_code(llvm: Llvm) -> None:
    """XLA has its executable before there is any; two calls at once wait for the same."""
    executable = compile_call(scale("50.0", 4, is_finished=False))
    assert not llvm.go.is_set()
    results: list[Any] = []

    def run() -> None:
        results.append(np.asarray(executable(X)))

    calls = [threading.Thread(target=run) for _ in range(2)]
    for thread in calls:
        thread.start()
    assert not results
    llvm.go.set()
    for thread in calls:
        thread.join(60)
    np.testing.assert_array_equal(results, [50 * X, 50 * X])
    assert llvm.threads == ["fuselane-llvm"]


def test_machine_code_is_kept(llvm: Llvm, own_cache: Path) -> None:
    kernel = scale("51.0", 4, is_finished=False)
    cache = open_cache(own_cache)
    assert cache.get_or_build(kernel.key, lambda: kernel) is kernel
    assert KernelCache(own_cache).get(kernel.key) is None, "bitcode stays off the disk"
    executable = compile_call(kernel)
    llvm.go.set()
    np.testing.assert_array_equal(executable(X), 51 * X)
    assert KernelCache(own_cache).get(kernel.key) == kernel.finished()
    assert cache.get(kernel.key) == kernel.finished()


def test_failure_is_reported_by_calls_until_it_is_over(llvm: Llvm) -> None:
    """The thread and the first call fail; the second call makes the code itself."""
    llvm.num_failures = 2
    executable = compile_call(scale("52.0", 4, is_finished=False))
    llvm.go.set()
    join()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"Fuselane failed: .*no code today"):
        executable(X).block_until_ready()
    np.testing.assert_array_equal(executable(X), 52 * X)


def test_no_thread_to_be_had(llvm: Llvm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    llvm.go.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        executable = compile_call(scale("53.0", 4, is_finished=False))
    assert not llvm.threads
    np.testing.assert_array_equal(executable(X), 53 * X)
    assert llvm.threads != ["fuselane-llvm"] and len(llvm.threads) == 1


def test_bitcode_survives_as_text() -> None:
    kernel = scale("54.0", 4, is_finished=False)
    found = Kernel.from_text(kernel.to_text().encode())
    assert found == kernel and found.bitcode is not None
    assert found.finished() == kernel.finished() != kernel


def test_kernel_begun_is_acquired_or_forgotten(llvm: Llvm) -> None:
    llvm.go.set()
    own = KernelTable()
    begun, dropped = (scale(f"{i}.0", 4, is_finished=False) for i in (55, 56))
    for kernel in (begun, dropped):
        own.begin(kernel)
    address = own.acquire(begun.key, lambda: pytest.fail("loaded twice"))
    assert own.address(begun.key) == address
    assert own.made(address).function
    own.forget()
    assert begun.key not in own and len(own) == 1, "in use, but not for others"
    own.begin(begun)
    assert own.made(address) is not own.made(own.address(begun.key))
    Record.from_address(address).released = 1
    own.forget()
    assert len(own) == 0


def test_code_that_nobody_needs_any_more_is_not_made(llvm: Llvm) -> None:
    code = MachineCode(scale("57.0", 4, is_finished=False), Record())
    code.close()
    code.make()
    assert not llvm.threads and not code.record.function


def test_threads_end(llvm: Llvm) -> None:
    compile_call(scale("58.0", 4, is_finished=False))
    names = [thread.name for thread in threading.enumerate() if not thread.daemon]
    assert "fuselane-llvm" in names, "Python waits for it before it shuts down"
    llvm.go.set()
    join()
    assert "fuselane-llvm" not in [thread.name for thread in threading.enumerate()]


def test_all_can_be_waited_for(llvm: Llvm, own_cache: Path) -> None:
    """Which is how benchmarks time compiling."""

    def loop(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 100, lambda _, y: y * 1.25 + 0.0625, x)

    x = jnp.arange(5000.0)
    with fuselane.enabled(min_gain=0):
        executable = jax.jit(loop).lower(x).compile()
    assert llvm.threads == ["fuselane-llvm"]
    llvm.go.set()
    table.finish()
    assert KernelCache(own_cache).disk_usage()[0] >= 1
    np.testing.assert_allclose(executable(x), loop(x), rtol=1e-6)
