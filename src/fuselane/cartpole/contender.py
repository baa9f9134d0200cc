"""What takes part in a comparison: something that runs CartPole and says how long it took."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, final

import jax
import numpy as np

import fuselane
from fuselane.cartpole.constants import STEPS_WITHOUT_RESET
from fuselane.cartpole.problem import Problem
from fuselane.cartpole.variants import Variant

KERNEL_MARK: Final = 'custom_call_target="fuselane'

Array = np.ndarray[Any, np.dtype[Any]]


class Contender(abc.ABC):
    """One program under one engine, ready to run.

    Attributes:
        engine: `xla`, `fuselane` or the name of a peer.
        compile_ms: What it took to compile, once, with nothing cached.
        is_fused: Whether there is a kernel of Fuselane in the compiled program.
        refusal: Why Fuselane left the loop to XLA, if it was to compile it, or "".
    """

    engine: str
    compile_ms: float
    is_fused: bool = False
    refusal: str = ""

    @abc.abstractmethod
    def run(self) -> float:
        """Runs all steps from the start and returns the milliseconds taken."""

    @abc.abstractmethod
    def final_states(self) -> Array:
        """Returns the states after the last run, f32[4, envs]."""

    @abc.abstractmethod
    def early_states(self) -> Array:
        """Returns the states after the steps in which nothing can be reset, f32[4, envs]."""

    def close(self) -> None:
        """Lets go of what the contender holds."""
        return


@final
class JaxContender(Contender):
    """A JAX variant, compiled by plain XLA or with Fuselane on."""

    def __init__(self, engine: str, variant: Variant, problem: Problem) -> None:
        self.engine = engine
        self._variant = variant
        self._early_steps = min(problem.num_steps, STEPS_WITHOUT_RESET)
        self._arguments = variant.get_arguments(problem)
        start = time.perf_counter()
        self._compiled = self._compile(problem.num_steps)
        self.compile_ms = (time.perf_counter() - start) * 1e3
        self.is_fused = KERNEL_MARK in (self._compiled.as_text() or "")
        if engine == "fuselane" and not self.is_fused:
            self.refusal = _last_refusal()
        self._final: Array = np.empty(0)

    def run(self) -> float:
        """Runs the compiled program and waits for its result."""
        start = time.perf_counter()
        result = self._compiled(*self._arguments).block_until_ready()
        elapsed_ms = (time.perf_counter() - start) * 1e3
        self._final = np.asarray(result)
        return elapsed_ms

    def final_states(self) -> Array:
        """Returns the states after the last run, f32[4, envs]."""
        return self._final

    def early_states(self) -> Array:
        """Returns the states after the steps in which nothing can be reset, f32[4, envs]."""
        return np.asarray(self._compile(self._early_steps)(*self._arguments))

    def _compile(self, num_steps: int) -> jax.stages.Compiled:
        with engine_context(self.engine):
            return jax.jit(self._variant.make_rollout(num_steps)).lower(*self._arguments).compile()


def run_in_turns(contenders: Sequence[Contender], num_repeats: int) -> dict[Contender, list[float]]:
    """Runs contenders one after the other, `num_repeats` times over; returns their ms.

    Whatever else keeps the machine busy then falls on all of them alike.
    """
    times_ms: dict[Contender, list[float]] = {contender: [] for contender in contenders}
    for _ in range(num_repeats):
        for contender, times in times_ms.items():
            times.append(contender.run())
    return times_ms


def _last_refusal() -> str:
    """Returns the sentence about the loop that was refused last."""
    for loop in reversed(fuselane.decisions().loops):
        if not loop.decision.fused:
            return loop.decision.sentence
    return "XLA made no loop of it."


def engine_context(engine: str) -> AbstractContextManager[object]:
    """Returns the context in which a compile goes through an engine.

    Fuselane's kernel cache on disk is off in it, so that compile times are those of a first run.
    """
    return fuselane.enabled(cache_mib=0) if engine == "fuselane" else nullcontext()
