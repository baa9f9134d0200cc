"""A failure anywhere in Fuselane leaves a program that runs as plain XLA, with one warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
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
from fuselane.runtime import cache, hook


def program(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 300, lambda i, x: (x * 3 + i) ^ (x >> 2), x)


def argument() -> jax.Array:
    return jnp.arange(1000, dtype=jnp.int32)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    with fuselane.enabled():
        pass  # the handler is made before anything is injected
    jax.clear_caches()
    yield
    jax.clear_caches()


def run_with_warnings(times: int = 2) -> list[str]:
    """Runs the program under Fuselane, compiled each time; returns Fuselane's warnings."""
    expected = np.asarray(jax.jit(program)(argument()))
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
