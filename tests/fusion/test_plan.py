"""Plans: saved, edited, followed, and followed in another version of the program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuselane
from fuselane.errors import OptionError
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.dissolve import dissolve
from fuselane.fusion.landmarks import Landmark, Landmarks, likeness
from fuselane.fusion.pipelines import parse_pipeline
from fuselane.fusion.plan import PlannedKernel, PlannedModule, make_plan, read_plan, write_plan
from fuselane.fusion.plan_fusion import PlanFusion, complaint
from fuselane.fusion.strategies import find_strategy
from fuselane.hlo.module import HloModule
from fuselane.runtime.warning import FuselaneWarning, forget_warnings
from fuselane.xla.capture import capture, lower

SOURCE = """
import jax.numpy as jnp
def {name}(x, y):
    s = jnp.sin(x) * y
    t = jnp.exp(s[::-1])
    return s.sum() + t, t * s
"""
X = np.linspace(0.0, 1.0, 32, dtype=np.float32)


def function(source: str, name: str = "step") -> Any:
    """Returns the function of some source text, whose lines JAX finds in "step.py"."""
    names: dict[str, Any] = {}
    exec(compile(source.format(name=name), "step.py", "exec"), names)
    return names[name]


def module_of(source: str, name: str = "step") -> HloModule:
    """Returns the module of a function as XLA's hook shows it."""
    (captured,) = capture(lower(jax.jit(function(source, name)), "cpu", X, X))
    return HloModule.from_bytes([s for s in captured.stages if not s.is_scheduled][-1].data)


@pytest.fixture(scope="module")
def planned() -> PlannedModule:
    return make_plan(module_of(SOURCE), parse_pipeline("xla-2021"))


def kernels(module: HloModule) -> list[tuple[str, ...]]:
    """Returns the opcodes of a module's fusions."""
    return sorted(
        tuple(sorted(i.opcode for i in fusion.to_apply.instructions if i.opcode != "parameter"))
        for fusion in module.entry.instructions
        if fusion.opcode == "fusion"
    )


def follow(
    planned: PlannedModule, source: str, name: str = "step"
) -> tuple[list[tuple[str, ...]], str]:
    """Returns the kernels that a plan makes of a program, and what is said about it."""
    module, log = module_of(source, name), FusionLog()
    dissolve(module)
    PlanFusion(modules=(planned,)).run(module, log)
    return kernels(module), complaint(log)


def test_read_back(planned: PlannedModule, tmp_path: Path) -> None:
    """A plan on disk says what it said before; kernels and lines are readable."""
    path = tmp_path / "plan.json"
    write_plan(path, [planned])
    assert read_plan(path) == (planned,)
    content = json.loads(path.read_text())["modules"]["jit_step"]
    assert "step.py:4" in content["lines"]
    edges = [edge for kernel in content["kernels"] for edge in kernel["edges"]]
    assert "step.py:4 sine #0 -> step.py:4 multiply #0" in edges


def test_same_kernels(planned: PlannedModule) -> None:
    """Followed in the program it was made of, a plan makes what the pipeline made."""
    module = module_of(SOURCE)
    make_plan(module, parse_pipeline("xla-2021"))
    assert follow(planned, SOURCE) == (kernels(module), "")
    assert len(kernels(module)) >= 1


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("\n\n# A comment.\n" + SOURCE, "step"),
        (SOURCE, "renamed"),
        ("\n\n" + SOURCE.replace("    t =", "\n    # Between.\n    t ="), "renamed"),
    ],
    ids=["shifted", "renamed", "both"],
)
def test_small_changes(planned: PlannedModule, source: str, name: str) -> None:
    """Shifted lines and another name of the function change nothing."""
    assert follow(planned, source, name) == follow(planned, SOURCE)


def test_what_is_gone(planned: PlannedModule) -> None:
    """Edges of operations that are not there any more are told; the others are followed."""
    found, told = follow(planned, SOURCE.replace("jnp.sin(x)", "jnp.tan(x)"))
    assert found
    assert told.startswith("A plan could not be followed in ")
    assert "There is no `step.py:4 sine #0` any more." in told


def test_edge_taken_out(planned: PlannedModule, tmp_path: Path) -> None:
    """Without an edge, what is in front of it becomes a kernel of its own."""
    path = tmp_path / "plan.json"
    write_plan(path, [planned])
    content = json.loads(path.read_text())
    for kernel in content["modules"]["jit_step"]["kernels"]:
        kernel["edges"] = [e for e in kernel["edges"] if " -> step.py:5 exponential" not in e]
    path.write_text(json.dumps(content))
    (changed,) = read_plan(path)
    before, _ = follow(planned, SOURCE)
    after, told = follow(changed, SOURCE)
    assert not told
    assert any({"exponential", "reverse"} <= set(kernel) for kernel in before)
    assert not any({"exponential", "reverse"} <= set(kernel) for kernel in after)


OTHER = """
import jax.numpy as jnp
def {name}(x, y):
    return jnp.cos(x) + y, jnp.exp(x[::-1]) * y
"""


def test_modules_of_one_name(planned: PlannedModule, tmp_path: Path) -> None:
    """As two lambdas have: both are kept, those that are the same once, and each is found."""
    path = tmp_path / "plan.json"
    other = make_plan(module_of(OTHER), parse_pipeline("xla-2021"))
    write_plan(path, [other, planned, other])
    plan = read_plan(path)
    assert plan == (other, planned)
    for source, own in ((SOURCE, planned), (OTHER, other)):
        module, log = module_of(source), FusionLog()
        dissolve(module)
        PlanFusion(modules=plan).run(module, log)
        assert (kernels(module), complaint(log)) == follow(own, source)


def test_modules_of_one_function(planned: PlannedModule) -> None:
    """Of two that are as like, the one of the same shapes is followed."""
    elsewhere = replace(planned, parameters="f32[7]{0}")
    bare = replace(planned, kernels=())
    for modules, is_fused in (
        ((elsewhere, bare), False),
        ((replace(elsewhere, kernels=()), planned), True),
    ):
        module = module_of(SOURCE)
        dissolve(module)
        PlanFusion(modules=modules).run(module, FusionLog())
        assert bool(kernels(module)) == is_fused


def test_small_modules_are_not_taken_for_others(planned: PlannedModule) -> None:
    """A module of one instruction is not like another that happens to have its line, too."""
    assert likeness({"": "fusion"}, {"": "fusion", "a.py:1": "add sine"}) == 0.5
    assert likeness({"": "fusion"}, dict(planned.lines)) == 0.0
    tiny = PlannedModule("jit_tiny", (("", dict(planned.lines)["step.py:6"]),), ())
    module, log = module_of(SOURCE, "renamed"), FusionLog()
    dissolve(module)
    PlanFusion(modules=(tiny, planned)).run(module, log)
    assert kernels(module) == follow(planned, SOURCE)[0]


def test_results_that_are_gone_are_told(planned: PlannedModule) -> None:
    """A kernel without an edge that is found is told all the same."""
    gone = Landmark("step.py:4", "tan", 0)
    changed = replace(planned, kernels=(PlannedKernel((gone,), ()),))
    told = "A plan could not be followed at step.py:4 tan #0: There is no `step.py:4 tan #0` any"
    assert follow(changed, SOURCE)[1].startswith(told)


def test_impossible_kernels_are_told(tmp_path: Path) -> None:
    """What XLA cannot compile is taken apart, by the name that the plan has for it."""
    forget_warnings()
    path = tmp_path / "plan.json"
    source = "def {name}(x, y):\n    return ((x * 2) @ x.T) @ y[:, None], y * 2\n"
    arguments = np.ones((200, 200), np.float32), X[:1].repeat(200)
    program = function(source)
    (captured,) = capture(lower(jax.jit(program), "cpu", *arguments))
    module = HloModule.from_bytes([s for s in captured.stages if not s.is_scheduled][-1].data)
    dissolve(module)
    landmarks = Landmarks(module)
    dot = next(i for i in landmarks.of if i.opcode in ("dot", "fusion") and i.shape.rank == 2)
    producer = next(operand for operand in dot.operands if operand in landmarks.of)
    edge = (landmarks.of[producer], landmarks.of[dot])
    lines = tuple(landmarks.lines.items())
    write_plan(path, [PlannedModule("jit_step", lines, (PlannedKernel(edge[1:], (edge,)),))])
    expected = jax.jit(program)(*arguments)
    with (
        pytest.warns(FuselaneWarning, match=f"at {edge[1]}: XLA:CPU has no kernel that holds"),
        fuselane.enabled(fusion=str(path), loops=False),
    ):
        actual = jax.jit(program)(*arguments)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)


def test_cyclic_results(planned: PlannedModule) -> None:
    """Results that need each other through another kernel get a kernel each."""
    module = module_of(SOURCE)
    single = make_plan(module_of(SOURCE), parse_pipeline("xla-today-cpu"))
    merged = [kernel for kernel in single.kernels if kernel.edges]
    results = tuple(result for kernel in merged for result in kernel.results)
    edges = tuple(edge for kernel in merged for edge in kernel.edges)
    whole = type(merged[0])(results, edges)
    log = FusionLog()
    dissolve(module)
    PlanFusion(modules=(PlannedModule("jit_step", single.lines, (whole,)),)).run(module, log)
    assert HloModule.from_bytes(module.to_bytes()).entry.post_order()


def test_other_modules_are_fused_as_by_xla(planned: PlannedModule) -> None:
    """A plan that knows nothing of a program leaves it to XLA's strategy."""
    source = "def {name}(x, y):\n    return abs(x) - y * 2\n"
    assert follow(planned, source, "other") == (
        [("abs", "broadcast", "constant", "multiply", "subtract")],
        "",
    )


def test_running(planned: PlannedModule, tmp_path: Path) -> None:
    """The option takes a plan's path, and its contents are part of the key of what is compiled."""
    path = tmp_path / "plan.json"
    write_plan(path, [planned])
    program = function(SOURCE)
    expected = jax.jit(program)(X, X)
    for _ in range(2):
        with fuselane.enabled(fusion=str(path), loops=False):
            actual = jax.jit(program)(X, X)
        for one, other in zip(expected, actual, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        content = json.loads(path.read_text())
        content["modules"]["jit_step"]["kernels"] = []
        path.write_text(json.dumps(content))


def test_warning(planned: PlannedModule, tmp_path: Path) -> None:
    """What can't be followed is one warning."""
    forget_warnings()
    path = tmp_path / "plan.json"
    write_plan(path, [planned])
    program = function(SOURCE.replace("jnp.sin(x)", "jnp.tan(x)"))
    with (
        pytest.warns(FuselaneWarning, match="could not be followed in"),
        fuselane.enabled(fusion=str(path), loops=False),
    ):
        jax.jit(program)(jnp.asarray(X), jnp.asarray(X))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ("[]", "is no plan of"),
        ('{"modules": {}}', "is no plan of"),
        ('{"fuselane-plan": 2}', "is of version 2; this version of Fuselane reads version 1."),
        ('{"fuselane-plan": 1, "modules": {}, "module": 1}', "there is no 'module', only 'fuse"),
        (
            '{"fuselane-plan": 1, "modules": {"m": {"lines": {}, "kernels": [], "line": 1}}}',
            "another form: there is no 'line', only 'parameters', 'lines', 'kernels'.",
        ),
        (
            '{"fuselane-plan": 1, "modules": {"m": {"lines": {}, "kernels": [{"results": [], '
            '"edges": [], "edge": []}]}}}',
            "another form: there is no 'edge', only 'results', 'edges'.",
        ),
        ('{"fuselane-plan": 1}', "has another form: it lacks 'modules'."),
        ('{"fuselane-plan": 1, "modules": 7}', "has another form: objects, lists and texts are"),
        ('{"fuselane-plan": 1, "modules": {"m": []}}', "another form: objects, lists and texts"),
        (
            '{"fuselane-plan": 1, "modules": {"m": {"lines": {}, "kernels": [{"results": ["x"], '
            '"edges": []}]}}}',
            "'x' is not of the form `file.py:12 add #0`.",
        ),
        (
            '{"fuselane-plan": 1, "modules": {"m": {"lines": {}, "kernels": [{"results": "x", '
            '"edges": []}]}}}',
            "objects, lists and texts are not where",
        ),
        (
            '{"fuselane-plan": 1, "modules": {"m": {"lines": {}, "kernels": [{"results": [], '
            '"edges": ["a.py:1 add #0 => a.py:1 sine #0"]}]}}}',
            "'a.py:1 add #0 => a.py:1 sine #0' is not of the form `file.py:12 sine #0 -> ",
        ),
    ],
)
def test_bad_plans(tmp_path: Path, text: str | None, sentence: str) -> None:
    """One sentence says what is wrong with a file, when Fuselane is switched on."""
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError) as caught, fuselane.enabled(fusion=str(path)):
        pass
    assert sentence in str(caught.value)
    with pytest.raises(OptionError):
        find_strategy(str(path))
