"""Each stage of the compiler fails in turn, in every way: the program runs, with one warning.

Stages are read from the compiler's own pages: all functions of other modules that they call.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane import budget, pipeline, replacing
from fuselane.backends import cpu
from fuselane.codegen import llvm
from fuselane.config import Options
from fuselane.decisions import DecisionLog, LoopDecision
from fuselane.hlo.module import HloModule
from fuselane.lanes import composition, form
from fuselane.later import Later
from fuselane.runtime import hook
from fuselane.runtime.ffi import TARGET
from fuselane.runtime.repeat import REPEAT_TARGET
from tests.hlo.xla import UNOPTIMISED

PAGES: Final = (pipeline, replacing, cpu, form)

WITHIN: Final = (
    (pipeline, "transform"),
    (pipeline, "check"),
    (composition, "find_streams"),
    (cpu, "make_kernel"),
    (llvm, "_parse"),
    (HloModule, "remove_unused_computations"),
    (HloModule, "to_bytes"),
)
"""What is inside of stages, or called through an object."""

BEFORE_LAYOUTS: Final = {
    "has_layouts": pipeline,
    "forget_layouts": pipeline,
    "has_given_layouts": replacing,
}
"""Stages of programs for GPUs alone, by name, and the page that calls each."""


def list_stages() -> dict[str, tuple[Any, str]]:
    """Returns by name what the pages call, each as an attribute of something."""
    stages = {}
    for page in PAGES:
        for call in ast.walk(ast.parse(inspect.getsource(page))):
            match call:
                case ast.Call(func=ast.Name(id=name)):
                    owner: Any = page
                case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name)):
                    owner = vars(page).get(of)
                case _:
                    continue
            function = getattr(owner, name, None)
            home = getattr(function, "__module__", None) or ""
            is_stage = home.startswith("fuselane.") and home != page.__name__
            if is_stage and not isinstance(function, type) and name != "warn_once":
                owner = sys.modules[home] if isinstance(owner, Later) else owner
                stages[f"{page.__name__}.{name}"] = (owner, name)
    return stages | {f"{owner.__name__}.{name}": (owner, name) for owner, name in WITHIN}


STAGES: Final = {
    stage: place for stage, place in list_stages().items() if place[1] not in BEFORE_LAYOUTS
}


class Case(NamedTuple):
    """A program, what it is given, the options it is compiled with, and if it gets a kernel."""

    program: Callable[..., Any]
    argument: np.ndarray[Any, Any]
    options: Mapping[str, Any]
    has_kernel: bool = True


INTEGERS: Final = np.arange(1000, dtype=np.int32)
FLOATS: Final = np.linspace(-1, 1, 60 * 64, dtype=np.float32).reshape(60, 64)
REFUSED: Final = {"min_gain": 1e6}
FUSED: Final = {"fusion": "fuselane"}


def plain(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 300, lambda i, x: (x * 3 + i) ^ (x >> 2), x)


def ahead(x: jax.Array) -> jax.Array:
    """Calls back in some steps."""

    def step(i: Any, x: jax.Array) -> jax.Array:
        lax.cond(i % 50 == 49, lambda: jax.debug.callback(lambda x: None, x[0]), lambda: None)
        return x * 3 + i

    return lax.fori_loop(0, 300, step, x)


def residuals(x: jax.Array) -> jax.Array:
    """A gradient, one loop of which computes again what another would have to stack."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.sin(h + x)
        h = y * (1.5 - y) / 4
        return h, h

    return jax.grad(lambda x: lax.scan(step, jnp.zeros(x.shape[1:]), x)[1].sum())(x)


def see(x: jax.Array) -> jax.Array:
    """Few lanes that see each other."""
    return lax.fori_loop(0, 300, lambda i, x: (x * 3)[jnp.argsort(x)] + i, x[:12])


def leave(x: jax.Array) -> Any:
    """Sums over lanes leave the loop."""
    return lax.fori_loop(0, 300, lambda i, s: (s[0] * 3 + i, s[1] + s[0].sum()), (x, x[0]))


def stop(x: jax.Array) -> Any:
    """Lanes stop one by one, and sums over them would leave the loop."""

    def step(state: Any) -> Any:
        x, total = state
        return jnp.where(x > 9, x // 2, x), total + x.sum()

    return lax.while_loop(lambda state: jnp.any(state[0] > 9), step, (x, x[0]))


def grid(x: jax.Array) -> jax.Array:
    """Lanes in two dimensions."""
    return lax.fori_loop(0, 300, lambda i, x: x * 3 + i, x.reshape(20, 50).T)


def straight(x: jax.Array) -> jax.Array:
    """No loop at all."""
    return jnp.sin(x) * jnp.exp(x) + jnp.sqrt(jnp.abs(x)).sum()


def summed(x: jax.Array) -> jax.Array:
    """No loop, and a sum that is left to be finished behind a kernel."""
    return jnp.sqrt(jnp.cos(x).sum())


CASES: Final = {
    "plain": Case(plain, INTEGERS, {}),
    "ahead": Case(ahead, INTEGERS, {}),
    "residuals": Case(residuals, FLOATS, {}),
    "see": Case(see, INTEGERS, {}),
    "leave": Case(leave, INTEGERS, {}),
    "stop": Case(stop, INTEGERS, {}),
    "grid": Case(grid, INTEGERS, {}),
    "verified": Case(plain, INTEGERS, {"verify": True}),
    "repeated": Case(plain, INTEGERS, {"repeat": True}),
    "worth it": Case(plain, INTEGERS, {"min_gain": 1.0}),
    "refused": Case(plain, INTEGERS, REFUSED, has_kernel=False),
    "refused ahead": Case(ahead, INTEGERS, REFUSED, has_kernel=False),
    "straight": Case(straight, np.tile(FLOATS, 30), {"fusion": "fuselane"}),
    "summed": Case(summed, np.tile(FLOATS, 30), {"fusion": "fuselane"}),
    "straight, refused": Case(
        straight, FLOATS, {"fusion": "fuselane", "verify": True}, has_kernel=False
    ),
}


numbers: Final = itertools.count()


def compile_case(name: str) -> tuple[Any, list[LoopDecision]]:
    """Compiles a program afresh; returns it and the decisions about its loops."""
    case = CASES[name]

    def program(x: jax.Array) -> Any:
        return case.program(x)

    program.__name__ = f"case_{next(numbers)}"
    compiled = jax.jit(program).lower(case.argument).compile(UNOPTIMISED)
    loops = fuselane.decisions().loops
    return compiled, [loop for loop in loops if loop.module == f"jit_{program.__name__}"]


@functools.cache
def plain_results(name: str) -> list[np.ndarray[Any, Any]]:
    """Returns what a program makes without Fuselane."""
    compiled, _ = compile_case(name)
    return list(map(np.asarray, jax.tree.leaves(compiled(CASES[name].argument))))


@contextlib.contextmanager
def replaced(stage: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Has another function in the place of a stage inside a `with` block."""
    owner, name = STAGES[stage]
    other = change(getattr(owner, name))
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    with mock.patch.object(owner, name, staticmethod(other) if is_static else other):
        yield


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns by stage the first of the programs that gets there."""
    found: dict[str, str] = {}

    def note(stage: str, case: str) -> Callable[[Any], Any]:
        def change(original: Any) -> Any:
            def noting(*arguments: Any, **named: Any) -> Any:
                found.setdefault(stage, case)
                return original(*arguments, **named)

            return noting

        return change

    for case in CASES:
        with contextlib.ExitStack() as stack:
            setting = stack.enter_context(pytest.MonkeyPatch.context())
            setting.setenv("FUSELANE_CACHE_DIR", str(tmp_path_factory.mktemp(case)))
            for stage in STAGES:
                stack.enter_context(replaced(stage, note(stage, case)))
            with fuselane.enabled(**{"min_gain": 0.0, **CASES[case].options}):
                compile_case(case)
    return found


class Clock:
    """The time as the compiler sees it, which can be made to pass."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def thread_time(self) -> float:
        return time.thread_time() + self._ahead_s

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def skip(self) -> None:
        """Makes more time pass than the compiler has for a module."""
        self._ahead_s += 2 * Options().max_compile_s


def raising(failure: BaseException) -> Callable[[Any], Any]:
    """Returns what makes a stage fail."""

    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    return lambda original: fail


def delaying(clock: Clock) -> Callable[[Any], Any]:
    """Returns what makes a stage take longer than there is time."""

    def change(original: Any) -> Any:
        def late(*arguments: Any, **named: Any) -> Any:
            clock.skip()
            return original(*arguments, **named)

        return late

    return change


def run_with(stage: str, change: Callable[[Any], Any], name: str) -> tuple[list[str], bool]:
    """Runs a program with something in a stage's place: its results are those of plain XLA.

    What the log says of it is what was made. Returns the warnings, and whether there is a kernel.
    """
    expected, case = plain_results(name), CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fuselane.enabled(**{"min_gain": 0.0, **case.options}), replaced(stage, change):
            compiled, loops = compile_case(name)
        results = jax.tree.leaves(compiled(case.argument))
    for wanted, got in zip(expected, results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    has_kernel = any(f'"{target}"' in compiled.as_text() for target in (TARGET, REPEAT_TARGET))
    assert any(loop.fused for loop in loops) == has_kernel
    ours = [str(w.message) for w in caught if issubclass(w.category, fuselane.FuselaneWarning)]
    return ours, has_kernel


def test_every_program_is_right_without_failures() -> None:
    for name, case in CASES.items():
        messages, has_kernel = run_with("fuselane.pipeline.transform", lambda same: same, name)
        assert (messages, has_kernel) == ([], case.has_kernel), name


@pytest.mark.parametrize(
    ("stage", "failure"),
    [*zip(STAGES, itertools.cycle((RuntimeError("injected"), MemoryError("injected"))))],
    ids=repr,
)
def test_a_stage_fails(stage: str, failure: Exception, reached: Mapping[str, str]) -> None:
    (message,), _ = run_with(stage, raising(failure), reached[stage])
    assert message.startswith("Fuselane ") and "injected" in message


@pytest.mark.parametrize("stage", STAGES)
def test_time_is_over_in_a_stage(
    stage: str, reached: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been replaced by then stays replaced."""
    clock = Clock()
    monkeypatch.setattr(budget, "time", clock)
    messages, has_kernel = run_with(stage, delaying(clock), reached[stage])
    assert all("gave up" in message or "OutOfTimeError" in message for message in messages)
    is_left = CASES[reached[stage]].has_kernel and not has_kernel
    assert is_left <= len(messages) <= 1


@pytest.mark.parametrize("name", BEFORE_LAYOUTS)
def test_failures_before_layouts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs' modules may come without layouts: such a module is left as it is, too."""
    with fuselane.enabled(), hook.observed() as modules:
        compile_case("plain")
    monkeypatch.setattr(cpu.CpuBackend, "comes_after_layouts", False)
    monkeypatch.setattr(pipeline, "has_layouts", lambda _: False)
    monkeypatch.setattr(BEFORE_LAYOUTS[name], name, raising(RuntimeError("injected"))(None))
    with pytest.warns(fuselane.FuselaneWarning, match="RuntimeError: injected"):
        changed = hook.guard(
            lambda data: pipeline.transform(data, Options(), DecisionLog()), modules[0]
        )
    assert changed is None
