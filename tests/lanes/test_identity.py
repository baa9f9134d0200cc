"""Which lane programs are one kernel."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuselane
from fuselane.backends import cpu
from fuselane.codegen.kernel import build_planned
from fuselane.lanes.identity import identity_of
from fuselane.lanes.program import LaneProgram
from tests.codegen.kernels import form_program
from tests.lanes.loops import counting_loop

ROW: Final = "f32[100]"
BODY: Final = """
  half = f32[] constant(0.5)
  halves = f32[100] broadcast(half), dimensions={}
  d = f32[100] subtract(e0, e1)
  y = f32[100] multiply(d, halves)"""


def program_of(body: str = BODY, shapes: tuple[str, ...] = (ROW, ROW), **more: Any) -> LaneProgram:
    return form_program(counting_loop(body, ["y", "e1"], shapes, **more))


PROGRAM: Final = program_of()


def test_names_and_sources_make_no_difference() -> None:
    named = BODY.replace("halves", "other").replace(
        "d = f32[100] subtract(e0, e1)",
        'd = f32[100] subtract(e0, e1), metadata={op_name="sub" source_file="a.py" source_line=3}',
    )
    assert identity_of(program_of(named)) == identity_of(PROGRAM)
    assert identity_of(replace(PROGRAM, name="another")) == identity_of(PROGRAM)


@pytest.mark.parametrize(
    "changed",
    [
        program_of(BODY.replace("0.5", "0.25")),
        program_of(BODY.replace("subtract(e0, e1)", "subtract(e1, e0)")),
        program_of(BODY.replace("subtract", "add")),
        program_of(BODY.replace("subtract(e0, e1)", "subtract(e0, e0)")),
        program_of(BODY.replace("[100]", "[101]"), ("f32[101]", "f32[101]")),
        program_of(BODY.replace("f32", "f64"), ("f64[100]", "f64[100]")),
        program_of(trip_count=11),
    ],
)
def test_another_computation_is_another_kernel(changed: LaneProgram) -> None:
    assert identity_of(changed) != identity_of(PROGRAM)


def test_attributes_count() -> None:
    shape = "f32[100,4,4]"
    turned = [
        program_of(f"y = {shape} {work}", (shape, shape))
        for work in (
            "transpose(e0), dimensions={0,2,1}",
            "reverse(e0), dimensions={1}",
            "reverse(e0), dimensions={2}",
        )
    ]
    assert len({identity_of(program) for program in turned}) == len(turned)


UNUSED: Final = {"cost", "invariants", "name", "obstacle", "operands", "rival", "site"}
GRAPHS: Final = {"region", "epilogue"}


@pytest.mark.parametrize(
    "field", sorted({f.name for f in dataclasses.fields(LaneProgram)} - GRAPHS)
)
def test_whatever_code_goes_by_counts(field: str) -> None:
    """Each field does but for those that say where a program stands."""
    changed: Any = {field: ("another",)}
    is_same = identity_of(replace(PROGRAM, **changed)) == identity_of(PROGRAM)
    assert is_same == (field in UNUSED)


@pytest.mark.parametrize(
    "field", ["trip_count", "induction_index", "compared_after", "counted", "elements"]
)
def test_what_is_known_of_loops_counts(field: str) -> None:
    changed: Any = {field: ("another",)}
    loops = {key: replace(loop, **changed) for key, loop in PROGRAM.loops.items()}
    assert identity_of(replace(PROGRAM, loops=loops)) != identity_of(PROGRAM)


def test_other_processes_say_the_same() -> None:
    """Whatever the seed of hashes, which is what orders Python's sets of texts."""
    script = (
        "from tests.lanes.test_identity import PROGRAM\n"
        "from fuselane.lanes.identity import identity_of\n"
        "print(identity_of(PROGRAM))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split()[-1] == identity_of(PROGRAM)


@pytest.mark.parametrize("stack", [list, jnp.stack])
@pytest.mark.parametrize("verify", [False, True])
def test_layers_of_one_form_are_written_once(
    monkeypatch: pytest.MonkeyPatch, stack: Callable[[Any], Any], verify: bool
) -> None:
    """Each with an array of its own, and all with parts of one."""
    made: list[Any] = []

    def watched(*arguments: Any, **keywords: Any) -> Any:
        made.append(arguments)
        return build_planned(*arguments, **keywords)

    def layer(weights: jax.Array, xs: jax.Array) -> jax.Array:
        def step(state: jax.Array, x: jax.Array) -> Any:
            state = jnp.tanh(state * weights + x)
            return state, state

        return jax.lax.scan(step, jnp.zeros(1000), xs)[1]

    def model(weights: Any, xs: jax.Array) -> jax.Array:
        for i in range(3):
            xs = layer(weights[i], xs)
        return xs

    weights = stack([jnp.linspace(0.0, 1.0, 1000) * i for i in range(3)])
    xs = jnp.ones((20, 1000))
    expected = np.asarray(jax.jit(model)(weights, xs))
    monkeypatch.setattr(cpu, "build_planned", watched)
    with fuselane.enabled(min_gain=0, verify=verify):
        before = len(fuselane.decisions().loops)
        found = np.asarray(jax.jit(functools.partial(model))(weights, xs))
        loops = fuselane.decisions().loops[before:]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(loops) == 3
    assert len({loop.kernel for loop in loops if loop.decision.fused}) == 1
    assert len(made) == 1 or verify  # which makes kernels of single steps
