"""Reductions over lanes taken out of loops: region and epilogue, run by XLA, against the loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.fuzz.run import quick_options
from fuselane.lanes.form import form
from fuselane.lanes.program import LaneProgram
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module, capture, finish, loops_of, region_inputs, run_module

STEPS = 5


def check(program: Any, *arguments: Any) -> LaneProgram:
    """Forms the only loop of a program and compares what its results become."""
    module = capture(program, *arguments)
    (loop,) = loops_of(module)
    formed = form(module, loop)
    outputs = run_module(as_module(formed.region, module), region_inputs(formed, arguments))
    rows = [o for o, index in zip(outputs, formed.output_indices, strict=True) if index < 0]
    results = finish(formed, rows, arguments)
    expected = jax.jit(program).lower(*arguments).compile(quick_options())(*arguments)
    for index, value in zip(sorted(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(results[index].reshape(np.shape(value)), value)
    return formed


def numbers(*sizes: int) -> Any:
    return np.arange(int(np.prod(sizes)), dtype=np.int32).reshape(sizes) % 11


def test_accumulators_are_carried_by_the_lanes() -> None:
    def program(start: Any, first: Any) -> Any:
        def step(carry: Any, _: None) -> Any:
            x, total = carry
            x = x * 3 + 1
            return (x, total + jnp.pad(x.sum()[None] * 2, (1, 0))), None

        return lax.scan(step, (start, first), None, length=STEPS)[0][1]

    formed = check(program, numbers(70), numbers(2))
    assert formed.epilogue is not None
    assert formed.epilogue.combiners == ("add",)
    assert list(formed.folds.values()) == ["add"]
    (element,) = [e for e in formed.loop.elements if e.combiner]
    assert element.shape.dimensions == (70, 2)
    assert element.lane_dimension == 0


def test_what_is_not_linear_is_done_for_all_steps() -> None:
    def program(start: Any, offset: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            x = x * 3 + 1
            return x, (jnp.abs(x.sum() - offset) * (i + 2), x.max() % 7)

        return lax.scan(step, start, jnp.arange(STEPS))[1]

    formed = check(program, numbers(70), np.int32(17))
    assert formed.epilogue is not None
    assert sorted(formed.epilogue.combiners) == ["", "add", "maximum"]
    opcodes = {i.opcode for i in formed.epilogue.computation.instructions}
    assert {"abs", "multiply"} <= opcodes


def test_values_of_each_step_are_written_down() -> None:
    """The factor is a state of its own that all lanes share."""

    def program(start: Any, factor: Any) -> Any:
        def step(carry: Any, _: None) -> Any:
            x, factor = carry
            x = x * 3 + 1
            return (x, factor * 5 + 2), jnp.abs(x.sum()) * factor

        return lax.scan(step, (start, factor), None, length=STEPS)[1]

    formed = check(program, numbers(70), np.int32(3))
    assert formed.epilogue is not None
    assert sorted(formed.epilogue.combiners) == ["", "add"]


def test_late_instructions_follow_from_folds() -> None:
    def program(start: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            x = x * 3 + 1
            return x, x.sum() * 2

        return lax.scan(step, start, None, length=STEPS)[1]

    formed = check(program, numbers(70))
    (fold,) = formed.folds
    assert fold not in formed.late
    assert all(user in formed.late for user in fold.users)
    body = formed.loop.instruction.body
    assert body.root not in formed.late
    assert fold.operands[0] not in formed.late


@pytest.mark.parametrize(
    "update",
    ["f32[] multiply(e1, s)\n  t = f32[] add(w, s)", "f32[] add(e1, s)\n t = f32[] sine(w)"],
)
def test_recurrences_stay(update: str) -> None:
    body = f"""z = f32[] constant(0)
      y = f32[64] sine(e0)
      s = f32[] reduce(y, z), dimensions={{0}}, to_apply=add_f32
      w = {update}"""
    module = counting_loop(body, ["y", "t"], ["f32[64]", "f32[]"])
    try:
        formed = form(module, loop_of(module))
    except UnsupportedError as error:
        assert error.decision.reason in (Reason.CROSS_LANE, Reason.NO_LANES)
    else:
        assert formed.epilogue is None
