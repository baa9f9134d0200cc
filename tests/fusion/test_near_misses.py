"""For each refusal a module that meets it, and one a line or two apart that just does not.

The cases are the text files in `near_misses`: what is refused, word by word, what is asked, and a
module, of which lines marked `-` belong to what meets the refusal and lines marked `+` to what does
not. What is asked is a pipeline, or

    ask PASS        whether the pass' rules fuse `p` into `c`
    legal           whether XLA:CPU can compile the fusions of the module as they are
    legal-on-gpu    whether XLA:GPU can
    plan            whether what becomes of the module marked `+` can be planned for the other
    plan in one     the same, all of it in one kernel
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

import fuselane.fusion
from fuselane.decisions import Decision, Reason
from fuselane.fusion import decision as decision_module
from fuselane.fusion.decision import FusionDecision, FusionLog
from fuselane.fusion.lane_kernels import LaneKernels
from fuselane.fusion.legal import make_legal
from fuselane.fusion.legal_on_gpu import make_legal_on_gpu
from fuselane.fusion.outline import Outlined
from fuselane.fusion.pipelines import parse_pipeline, run_pipeline
from fuselane.fusion.plan import PlannedKernel, PlannedModule, make_plan
from fuselane.fusion.plan_fusion import PlanFusion
from fuselane.fusion.rules import Edge
from fuselane.fusion.values import Values
from fuselane.hlo import HloModule
from tests.fusion.outline import module_with
from tests.hlo.xla import to_text

CASES: Final = Path(__file__).parent / "near_misses"
PACKAGE: Final = Path(fuselane.fusion.__file__).parent
PRELUDE: Final = (
    "sum { sum_i = f32[] parameter(0) sum_j = f32[] parameter(1)"
    " ROOT sum_k = f32[] add(sum_i, sum_j) }",
    "less { less_i = f32[] parameter(0) less_j = f32[] parameter(1)"
    " ROOT less_k = pred[] compare(less_i, less_j), direction=LT }",
)
Site = tuple[str, int]
"""Where in `fusion` something is refused: a file and a line."""
Refused = dict[str, tuple[Site, CodeType]]
"""Sentences of what is refused, where, and by which function."""


@dataclass(frozen=True)
class Module:
    """What is asked, and about what."""

    asked: str
    computations: tuple[str, ...]
    body: str

    @property
    def hlo(self) -> HloModule:
        """The module, which is made anew."""
        return module_with(self.body, *PRELUDE, *self.computations)


@dataclass(frozen=True)
class Case:
    """A refusal's sentence, what meets it, and what just does not."""

    sentence: str
    met: Module
    missed: Module


def read(path: Path) -> Iterator[Case]:
    for text in path.read_text().split("### ")[1:]:
        sentence, *lines = text.strip().split("\n")
        yield Case(sentence, *(_module(lines, other) for other in "+-"))


def _module(lines: list[str], other: str) -> Module:
    """Returns one of the two modules, that without the lines of the other mark."""
    kept = [line[line.startswith(("- ", "+ ")) * 2 :] for line in lines if line[0] != other]
    text = "\n".join(kept[1:])
    computations = re.findall(r"^\w+ \{.*? \}$", text, re.MULTILINE | re.DOTALL)
    for computation in computations:
        text = text.replace(computation, "")
    return Module(kept[0], tuple(computations), text)


def is_refusing(function: str) -> bool:
    """Whether a function makes refusals for others, by its name."""
    return function == "refuse" or function.startswith("_refuse")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Refused:
    """What is refused during a test."""
    found: Refused = {}
    refuse = decision_module.refuse

    def spy(*arguments: Any, **numbers: Any) -> FusionDecision:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_refusing(frame.f_code.co_name):
            frame = frame.f_back
        assert frame is not None
        code = frame.f_code
        site = str(Path(code.co_filename).relative_to(PACKAGE)), frame.f_lineno
        found[arguments[1]] = site, code
        return refuse(*arguments, **numbers)

    for info in pkgutil.walk_packages([str(PACKAGE)], "fuselane.fusion."):
        module = importlib.import_module(info.name)
        if hasattr(module, "refuse"):
            monkeypatch.setattr(module, "refuse", spy)
    return found


ALL: Final = [case for path in sorted(CASES.glob("*.txt")) for case in read(path)]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.sentence)
def test_case(case: Case, refused: Refused) -> None:
    """One module is refused in these words; of the other, the same rule is asked, and says no
    word."""
    ask(case.met, case.missed)
    site, code = refused[case.sentence]
    refused.clear()
    called: set[CodeType] = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code))
    try:
        ask(case.missed, case.missed)
    finally:
        sys.setprofile(None)
    assert code in called
    assert not [sentence for sentence, (other, _) in refused.items() if other == site]


def test_every_refusal_has_a_case(refused: Refused) -> None:
    """What is refused anywhere in `fusion` is refused in a case."""
    met: set[Site] = set()
    for case in ALL:
        refused.clear()
        ask(case.met, case.missed)
        met.add(refused[case.sentence][0])
    assert sorted(met) == sorted(refusals())


def refusals() -> Iterator[Site]:
    """Yields where functions of `fusion` refuse."""
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and not is_refusing(function.name):
                for call in ast.walk(function):
                    match call:
                        case ast.Call(func=ast.Name(id=name)) if is_refusing(name):
                            yield str(path.relative_to(PACKAGE)), call.lineno


# Asking.


def ask(module: Module, planned: Module) -> None:
    """Has the rules look at a module."""
    hlo, asked = module.hlo, module.asked
    to_text(hlo.to_bytes())
    if asked.startswith("ask "):
        (fusion_pass,) = parse_pipeline(asked.removeprefix("ask "))
        _ask_rules(fusion_pass, hlo)
    elif asked.startswith("plan"):
        _follow_plan(planned.hlo, hlo, in_one="in one" in asked)
    elif asked.startswith("lane-kernels"):
        (fusion_pass,) = parse_pipeline(asked)
        assert isinstance(fusion_pass, LaneKernels)
        LaneKernels(make_kernel=_answer, max_attempts=fusion_pass.max_attempts).run(
            hlo, FusionLog()
        )
    elif asked in LEGAL:
        LEGAL[asked](hlo, FusionLog())
    else:
        values = Values(hlo.entry, 0).outputs
        numbers = {instruction.name: str(value[0]) for instruction, value in values.items()}
        text = re.sub(r"(?<==)\w+", lambda m: numbers.get(m[0], m[0]), asked)
        run_pipeline(parse_pipeline(text), hlo)
    to_text(hlo.to_bytes())


LEGAL: Final[dict[str, Callable[[HloModule, FusionLog], None]]] = {
    "legal": make_legal,
    "legal-on-gpu": make_legal_on_gpu,
}


def _ask_rules(fusion_pass: Any, hlo: HloModule) -> None:
    by_name = {i.name: i for i in hlo.entry.instructions}
    edge = Edge.of(by_name["c"], by_name["c"].operands.index(by_name["p"]))
    fusion_pass.rules.should_fuse(edge, may_duplicate=fusion_pass.may_duplicate)


def _follow_plan(planned: HloModule, hlo: HloModule, *, in_one: bool) -> None:
    plan = make_plan(planned, parse_pipeline("xla-today-cpu"))
    if in_one:
        results = tuple(chain.from_iterable(kernel.results for kernel in plan.kernels))
        edges = tuple(chain.from_iterable(kernel.edges for kernel in plan.kernels))
        plan = PlannedModule(plan.name, plan.lines, (PlannedKernel(results, edges),))
    PlanFusion(modules=(plan,)).run(hlo, FusionLog())


def _answer(outlined: Outlined) -> Decision:
    """Kernels of sines alone are worth nothing."""
    body = outlined.loop.called_computations[0].instructions
    is_worth_it = all(i.opcode != "sine" for i in body)
    reason = Reason.FUSED if is_worth_it else Reason.NOT_PROFITABLE
    return reason.decide(instruction=outlined.loop.name)
