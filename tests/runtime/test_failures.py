"""A failure anywhere in Fuselane leaves a program that runs as plain XLA, with one warning."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane import pipeline, replacing
from fuselane.backends import cpu
from fuselane.decisions import DecisionLog
from fuselane.errors import CodegenError, VerificationError
from fuselane.lanes import form as lanes_form
from fuselane.runtime import cache, hook


def program(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 300, lambda i, x: (x * 3 + i) ^ (x >> 2), x)


def argument() -> jax.Array:
    return jnp.arange(1000, dtype=jnp.int32)


def fail(*_: Any, **__: Any) -> Any:
    raise ValueError("injected")


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    with fuselane.enabled():
        pass  # the handler is made before anything is injected
    jax.clear_caches()
    yield
    jax.clear_caches()


@functools.cache
def plain_result() -> np.ndarray[Any, Any]:
    """Returns what the program makes without Fuselane."""
    return np.asarray(jax.jit(program)(argument()))


def run_with_warnings(times: int = 2) -> list[str]:
    """Runs the program under Fuselane, compiled each time; returns Fuselane's warnings."""
    expected = plain_result()
    with warnings.catch_warnings(record=True) as caught, fuselane.enabled():
        warnings.simplefilter("always")
        for _ in range(times):
            jax.clear_caches()
            np.testing.assert_array_equal(jax.jit(program)(argument()), expected)
    return [str(w.message) for w in caught if issubclass(w.category, fuselane.FuselaneWarning)]


def test_nothing_fails_without_injection() -> None:
    assert run_with_warnings() == []


@pytest.mark.parametrize(
    "failure",
    [MemoryError(), RecursionError(), SystemExit(3), GeneratorExit(), AssertionError()],
    ids=repr,
)
def test_failures_of_every_kind(failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    monkeypatch.setattr(replacing, "form", fail)
    (message,) = run_with_warnings()
    assert type(failure).__name__ in message
    if isinstance(failure, Exception):  # then it is that loop's only, and the rest goes on
        assert "failed on a loop" in message


def test_endless_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurse(*arguments: Any, **named: Any) -> Any:
        return recurse(*arguments, **named)

    monkeypatch.setattr(replacing, "form", recurse)
    (message,) = run_with_warnings()
    assert "RecursionError" in message


def test_warnings_as_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program still runs where the user wants warnings to be exceptions."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(replacing, "form", fail)
    with warnings.catch_warnings(), fuselane.enabled():
        warnings.simplefilter("error")
        jax.jit(program)(argument())


def test_a_failed_loop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise CodegenError("injected")

    monkeypatch.setattr(cpu, "build_planned", fail)
    with pytest.warns(fuselane.FuselaneWarning):
        (loop,) = fuselane.explain(program, argument()).loops
    assert not loop.decision.fused
    assert loop.decision.reason.code == "internal-error"
    assert "CodegenError: injected" in loop.decision.sentence
    assert loop.lanes == 1000


def test_a_search_that_fails_leaves_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loops might do besides is not looked for any more; they are replaced all the same."""

    def twice(x: jax.Array) -> jax.Array:
        return program(lax.fori_loop(0, 300, lambda i, x: (x * 5 - i) ^ (x >> 3), x))

    expected = np.asarray(jax.jit(twice)(argument()))
    for search in ("find_residuals", "find_ahead"):

        def fail_there(*_: Any, search: str = search, **__: Any) -> Any:
            raise ValueError(f"injected into {search}")

        with monkeypatch.context() as injected:
            injected.setattr(replacing, search, fail_there)
            jax.clear_caches()
            with pytest.warns(fuselane.FuselaneWarning, match=f"into {search}"), fuselane.enabled():
                np.testing.assert_array_equal(jax.jit(twice)(argument()), expected)
            assert fuselane.explain(twice, argument()).num_fused == 2


def test_straight_code_that_fails_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def softmax(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(3 * x, axis=-1)

    x = np.random.default_rng(0).normal(size=(29, 40)).astype(np.float32)
    expected = np.asarray(jax.jit(softmax)(x))
    monkeypatch.setattr(cpu, "build_planned", fail)
    jax.clear_caches()
    with (
        pytest.warns(fuselane.FuselaneWarning, match="failed on a loop.*injected"),
        fuselane.enabled(fusion="fuselane"),
    ):
        np.testing.assert_allclose(jax.jit(softmax)(x), expected, rtol=1e-6)


def test_unusable_cache_directory(own_cache: Any) -> None:
    """Kernels are then kept in memory: the loop is fused all the same."""
    own_cache.write_text("a file in the way")
    (message,) = run_with_warnings()
    assert "cannot keep kernels" in message
    assert fuselane.explain(program, argument()).num_fused == 1


def test_damaged_cache_files(own_cache: Any) -> None:
    assert run_with_warnings(times=1) == []
    for path in own_cache.glob("*.kernel"):
        path.write_bytes(path.read_bytes()[:100])
    cache.open_cache(own_cache).forget()
    assert run_with_warnings() == []
    assert fuselane.explain(program, argument()).num_fused == 1


@pytest.mark.parametrize("data", [b"", b"\x12\x05while", b"\x12\x05while" * 1000, b"\xff" * 100])
def test_bytes_that_are_no_module(data: bytes) -> None:
    if b"while" in data:
        with pytest.raises(VerificationError):
            pipeline.transform(data, fuselane.Options(), DecisionLog())
    else:
        assert pipeline.transform(data, fuselane.Options(), DecisionLog()) is None


def test_hook_describes_where_it_failed() -> None:
    def fail() -> None:
        raise ValueError("first line\nsecond line")

    try:
        fail()
    except ValueError as error:
        assert hook.describe(error).startswith("ValueError: first line (fail:")
    assert hook.describe(KeyError()) == "KeyError"


def line_of(function: Callable[..., Any]) -> int:
    """Returns the line of a function that is marked with `# here`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize("compile_it", [fuselane.jit, jax.jit])
def test_warnings_point_at_the_call(
    compile_it: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA's thread, on which the failure is, has no line of the user's."""

    def call() -> jax.Array:
        return compiled(argument())  # here

    monkeypatch.setattr(replacing, "form", fail)
    compiled = compile_it(program)
    with pytest.warns(fuselane.FuselaneWarning) as caught, fuselane.enabled():
        call()
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, line_of(call))


def test_warnings_of_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """While XLA compiles for two threads on threads of its own, nobody knows whose line it is;
    there is a warning all the same."""
    both = threading.Barrier(2, timeout=60)
    own: set[bool] = set()

    def fail_together(*_: Any, **__: Any) -> Any:
        both.wait()
        own.add(threading.current_thread() in threads)
        raise ValueError(f"injected on {threading.get_ident()}")

    monkeypatch.setattr(replacing, "form", fail_together)
    with pytest.warns(fuselane.FuselaneWarning) as caught, fuselane.enabled():
        threads = [
            threading.Thread(target=lambda n=n: jax.jit(program)(argument()[n:])) for n in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (is_own,) = own  # as since JAX 0.11
    assert {warning.filename for warning in caught} == {__file__ if is_own else replacing.__file__}


def decided(module: str) -> list[bool]:
    """Returns for each decision on a loop of a module whether it became a kernel."""
    return [loop.fused for loop in fuselane.decisions().loops if loop.module == module]


def test_ctrl_c_in_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the main thread, from which XLA's compilers for GPUs call: it ends the compilation, as
    what it is, and the next one is none the worse."""

    def stopped(x: jax.Array) -> jax.Array:
        return program(x)

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    compiled = fuselane.jit(stopped)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(replacing, "form", interrupt)
        compiled(argument())
    np.testing.assert_array_equal(compiled(argument()), jax.jit(program)(argument()))
    assert decided("jit_stopped") == [True]


def test_ctrl_c_while_the_hook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C waits for the compilation, as it does without Fuselane, and is not lost; the hook on
    its thread of XLA's does not notice. Since JAX 0.11 that is the caller's, and it does."""
    begun: list[threading.Thread] = []
    ended: list[threading.Thread] = []
    real_form = lanes_form.form

    def waited(x: jax.Array) -> jax.Array:
        return program(x)

    def press(*arguments: Any, **named: Any) -> Any:
        begun.append(threading.current_thread())
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)  # a main thread that did not wait would be gone
        result = real_form(*arguments, **named)
        ended.append(threading.current_thread())
        return result

    compiled = fuselane.jit(waited)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(replacing, "form", press)
        compiled(argument())
    assert begun
    assert ended == [thread for thread in begun if thread is not threading.main_thread()]
    np.testing.assert_array_equal(compiled(argument()), jax.jit(program)(argument()))
    assert decided("jit_waited") == [True]
