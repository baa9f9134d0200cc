"""Runs a program under plain XLA and under Fuselane, compares the results and what Fuselane says it
did.

With `FUSELANE=0` in the environment the programs run under plain XLA only, which checks the
programs themselves. With `FUSELANE_VERIFY=1` kernels are also compared to XLA while the programs
run, which checks the verification; the results are then XLA's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane import api
from fuselane.decisions import LoopDecision
from fuselane.fuzz.run import quick_options
from tests.differential.comparison import EXACT, Tolerance, assert_same_results
from tests.differential.values import NumpyArray

Program = Callable[..., Any]

IS_OFF: Final = os.environ.get("FUSELANE") == "0"


def check(
    program: Program,
    *arguments: Any,
    fused: bool | None = True,
    refused: str | Sequence[str] = (),
    tolerance: Tolerance = EXACT,
    x64: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> fuselane.Report:
    """Checks that a program gives the same results with and without Fuselane, and what becomes of
    its loops; returns that.

    Args:
        program: A function of arrays that `jax.jit` can compile.
        arguments: Pytrees of NumPy or JAX arrays; NumPy arrays are handed over afresh for each run.
        fused: True when all loops must be fused, None when it does not matter.
        refused: Codes of reasons, one of which must be given for the first, outermost loop.
        tolerance: How far floats may be off.
        x64: Whether the program runs with 64-bit types.
        options: Fuselane's.
    """
    with jax.enable_x64(x64):
        lowered = jax.jit(program).lower(*arguments)  # once for all, which takes a while
        last = last_decision()
        with fused_by(**options):
            actual = compile_and_run(lowered, *arguments)
        report = find_report(last, program, *arguments)
        _assert_as_xla(lowered, arguments, actual, tolerance)
    codes = (refused,) if isinstance(refused, str) else tuple(refused)
    assert not any("internal-error" in loop.decision.reason.code for loop in report.loops), report
    if codes or fused:
        assert_decisions(report, codes)
    return report


def _assert_as_xla(
    lowered: jax.stages.Lowered, arguments: tuple[Any, ...], actual: Any, tolerance: Tolerance
) -> None:
    """Fails unless plain XLA gives the same results, if not without optimisation, then with it."""
    quickly = quick_options() if jax.default_backend() == "cpu" else {}
    unoptimised = compile_and_run(lowered, *arguments, compiler_options=quickly)
    try:
        assert_same_results(unoptimised, actual, tolerance)
    except AssertionError:
        assert_same_results(compile_and_run(lowered, *arguments), actual, tolerance)


def compile_and_run(
    lowered: jax.stages.Lowered,
    *arguments: Any,
    compiler_options: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Returns the results of a program that is compiled afresh."""
    executable = lowered.compile(compiler_options=dict(compiler_options))
    return jax.block_until_ready(executable(*arguments))


def run_fused(
    program: Program,
    *arguments: Any,
    options: Mapping[str, Any] = MappingProxyType({}),
    **jit_arguments: Any,
) -> Any:
    """Returns the program's results under Fuselane; a warning of Fuselane's fails the test."""
    with fused_by(**options):
        return jax.block_until_ready(jax.jit(program, **jit_arguments)(*arguments))


def run_and_explain(
    program: Program, *arguments: Any, options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Any, fuselane.Report]:
    """Returns the program's results under Fuselane and what became of its loops."""
    last = last_decision()
    results = run_fused(program, *arguments, options=options)
    return results, find_report(last, program, *arguments)


@contextlib.contextmanager
def fused_by(**options: Any) -> Iterator[None]:
    """Switches Fuselane on, with what it makes verified; a warning of it fails the test."""
    with fuselane.enabled(verify_hlo=True, **options), no_warnings():
        yield


def last_decision() -> LoopDecision | None:
    """Returns the newest decision of this process."""
    return next(reversed(list(api._log)), None)


def find_report(last: LoopDecision | None, program: Program, *arguments: Any) -> fuselane.Report:
    """Returns what became of a program's loops: those decided on behind `last`."""
    found = list(itertools.takewhile(lambda loop: loop is not last, reversed(list(api._log))))
    # Nothing new is logged where JAX had the program already.
    return fuselane.Report.of(reversed(found)) if found else explain(program, *arguments)


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Fails when Fuselane warns, whatever thread it warns on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    messages = [str(warning.message) for warning in caught]
    # A failure on one loop warns only once, but is seen in the decisions each time.
    told = [m for m in messages if "uselane" in m and "failed on a loop" not in m]
    assert not told, told


def explain(program: Program, *arguments: Any) -> fuselane.Report:
    """Returns what Fuselane says it does with the program's loops."""
    with no_warnings():
        return fuselane.explain(program, *arguments)


def assert_decisions(report: fuselane.Report, refused: Sequence[str] = ()) -> None:
    """Fails unless all loops were fused or, given codes of reasons, the first one has such a
    code."""
    if IS_OFF:
        return
    assert report.loops, "no loop reached Fuselane"
    codes = [loop.decision.reason.code for loop in report.loops]
    told = "\n".join(f"{loop.name}: {loop.decision.sentence}" for loop in report.loops)
    if refused:
        assert codes[0] in refused, told
    else:
        assert set(codes) == {"fused"}, told


def map_rows(operations: Mapping[str, Program]) -> Program:
    """Returns a program that applies each operation to the rows of its arguments, one row a step.

    A counter per lane is carried along, so that the loop has a state as well as streams.
    """

    def step(counter: jax.Array, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, Any]:
        return counter + 1, {name: operation(*rows) for name, operation in operations.items()}

    def program(*streams: jax.Array) -> Any:
        counter = jnp.zeros(streams[0].shape[1:], jnp.int32)
        return lax.scan(step, counter, streams)

    return program


def check_operations(
    operations: Mapping[str, Program], *streams: NumpyArray, **expectations: Any
) -> None:
    """Checks several operations in one loop; if that fails, one by one, and names those that fail.

    Args:
        operations: Functions of one row of each stream, by name.
        streams: Arrays [steps, ...] of equal shapes.
        expectations: As for `check`.
    """
    try:
        check(map_rows(operations), *streams, **expectations)
    except (AssertionError, jax.errors.JaxRuntimeError) as failure:
        if len(operations) == 1:
            raise
        pytest.fail(f"{failure}\n{_failures(operations, streams, expectations)}", pytrace=False)


def _failures(
    operations: Mapping[str, Program],
    streams: Sequence[NumpyArray],
    expectations: Mapping[str, Any],
) -> str:
    failures = []
    for name, operation in operations.items():
        try:
            check(map_rows({name: operation}), *streams, **expectations)
        except (AssertionError, jax.errors.JaxRuntimeError) as failure:
            failures.append(f"-- {name} alone: {failure}")
    return "\n".join(failures) or "-- each operation alone passes"


def place_lanes(residual: Sequence[int], lanes: int, axis: int) -> tuple[int, ...]:
    """Returns the shape with `lanes` inserted at `axis` of `residual`."""
    return (*residual[:axis], lanes, *residual[axis:])


def linear_values(shape: Sequence[int], dtype: str = "float32") -> NumpyArray:
    """Returns an array in which all values differ and are exact in `dtype` when it holds them."""
    count = int(np.prod(shape))
    return (np.arange(count) - count // 3).astype(dtype).reshape(tuple(shape))
