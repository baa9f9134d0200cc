"""The garbage collector waits while modules are compiled."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import fuselane
from fuselane import replacing
from fuselane.collector import paused
from fuselane.lanes.form import form


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector is as it was before, whatever a test does."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_nothing_is_collected_while_a_loop_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is off while a loop is formed, and on again behind."""
    seen = []

    def spy(*arguments: object, **keywords: object) -> object:
        seen.append(gc.isenabled())
        return form(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(replacing, "form", spy)

    def program(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 1000, lambda _, y: jnp.sin(y) * 1.01, x)

    with fuselane.enabled():
        jax.jit(program).lower(jnp.ones(4096)).compile()
    assert seen == [False]
    assert gc.isenabled()


def test_it_goes_on_behind_a_failure() -> None:
    """An exception switches it on again."""
    with pytest.raises(ValueError), paused():
        raise ValueError
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    """Who has switched it off finds it so."""
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()


def test_it_waits_for_the_last_of_several_threads() -> None:
    """One that is done does not switch it on for another that is not."""
    entered, leave = threading.Event(), threading.Event()

    def compile_long() -> None:
        with paused():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=compile_long)
    thread.start()
    assert entered.wait(30)
    with paused():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
