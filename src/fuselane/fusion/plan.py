"""Plans: which edges are fused, by names that outlive small changes of the program, as JSON.

    {"fuselane-plan": 1,
     "modules": {"jit_step": {
       "parameters": "f32[8]{0}",
       "lines": {"step.py:3": "broadcast multiply", "step.py:4": "add sine"},
       "kernels": [{"results": ["step.py:4 add #0"],
                    "edges": ["step.py:4 sine #0 -> step.py:4 add #0"]}]}}}

Of modules with the same name, as those of one function for several shapes or of several lambdas,
the second is called `jit_step #1`, and so on.

A kernel computes its results and, for each of its edges, the producer where the consumer is. A
plan is saved by `fuselane fuse --save`, may be edited, and is followed by `fusion="plan.json"`.
What is on no edge is a kernel of its own. Edges that are not found any more are left out, and
results that depend on each other through other kernels get a kernel each; the log says so. A module
that the plan does not know is fused as XLA does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, final

from fuselane.errors import OptionError
from fuselane.files import write_whole
from fuselane.fusion.dissolve import dissolve, is_dissolvable, unfuse_on_gpu
from fuselane.fusion.landmarks import Landmark, Landmarks
from fuselane.fusion.legal import make_legal
from fuselane.fusion.legal_on_gpu import make_legal_on_gpu
from fuselane.fusion.pipelines import Pipeline, for_cpu, for_gpu, run_pipeline
from fuselane.fusion.traversal import sequential_computations
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

VERSION: Final = 1
_VERSION: Final = "fuselane-plan"
"""The field that holds it."""
ARROW: Final = " -> "
_NUMBER: Final = " #"
"""Before the number of a module whose name others have, too."""

_TAG: Final = "fuselane_landmark"
Edge = tuple[Landmark, Landmark]
_Part = TypeVar("_Part")


@final
@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """A kernel.

    Attributes:
        results: What it writes to memory.
        edges: Producers it computes, each with an instruction in it that needs them.
    """

    results: tuple[Landmark, ...]
    edges: tuple[Edge, ...]


@final
@dataclass(frozen=True, slots=True)
class PlannedModule:
    """The kernels of a module that compute more than one instruction.

    Attributes:
        name: The module's; others may have the same.
        lines: What each of its lines makes, as `Landmarks` has it.
        kernels: Those kernels.
        parameters: Shapes of what the module is called with; "" if the plan does not tell.
    """

    name: str
    lines: tuple[tuple[str, str], ...]
    kernels: tuple[PlannedKernel, ...]
    parameters: str = ""


# Making plans.


def make_plan(
    module: HloModule, pipeline: Pipeline, gpu: GpuDescription | None = None
) -> PlannedModule:
    """Returns what a pipeline fuses in a module, which is changed.

    Args:
        module: As XLA's hook shows it to strategies.
        pipeline: The passes to run.
        gpu: What it is compiled for; None is a CPU.
    """
    if gpu is None:
        dissolve(module)
    else:
        unfuse_on_gpu(module)
    landmarks = Landmarks(module)
    numbers = {str(n): landmark for n, landmark in enumerate(landmarks.find)}
    for number, instruction in zip(numbers, landmarks.find.values(), strict=True):
        instruction.proto.frontend_attributes.map.add(key=_TAG, value=number)
    if gpu is None:
        make_legal(module, run_pipeline(for_cpu(pipeline), module))
    else:
        make_legal_on_gpu(module, run_pipeline(for_gpu(pipeline, gpu), module))
    kernels = [
        _read_kernel(fusion, numbers)
        for computation in sequential_computations(module)
        for fusion in computation.instructions
        if is_dissolvable(fusion)
    ]
    wanted = tuple(kernel for kernel in kernels if kernel.edges and kernel.results)
    lines = tuple(landmarks.lines.items())
    return PlannedModule(module.name, lines, wanted, parameters_of(module))


def parameters_of(module: HloModule) -> str:
    """Returns the shapes of what a module is called with, as plans have them."""
    return ", ".join(str(parameter.shape) for parameter in module.entry.parameters)


def _read_kernel(fusion: HloInstruction, numbers: Mapping[str, Landmark]) -> PlannedKernel:
    body = fusion.to_apply
    of = {
        member: numbers[member.frontend_attributes[_TAG]]
        for member in body.instructions
        if _TAG in member.frontend_attributes
    }
    roots = body.root.operands if body.root.opcode == "tuple" else [body.root]
    edges = dict.fromkeys(
        (of[operand], of[member])
        for member in body.post_order()
        for operand in member.operands
        if member in of and operand in of
    )
    return PlannedKernel(tuple(of[root] for root in roots if root in of), tuple(edges))


# Reading and writing.


def write_plan(path: Path, modules: Sequence[PlannedModule]) -> None:
    """Writes a plan as JSON, modules that are alike once.

    Raises:
        OSError: if the file cannot be written.
    """
    seen: Counter[str] = Counter()
    written: dict[str, Any] = {}
    for module in dict.fromkeys(modules):
        number = seen[module.name]
        seen[module.name] += 1
        written[f"{module.name}{_NUMBER}{number}" if number else module.name] = {
            "parameters": module.parameters,
            "lines": dict(module.lines),
            "kernels": [
                {
                    "results": [str(result) for result in kernel.results],
                    "edges": [f"{a}{ARROW}{b}" for a, b in kernel.edges],
                }
                for kernel in module.kernels
            ],
        }
    content = {_VERSION: VERSION, "modules": written}
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_plan(path: Path) -> tuple[PlannedModule, ...]:
    """Returns what a plan says.

    Raises:
        OptionError: if the file cannot be read or holds no plan; the sentence says what is wrong.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"The plan {str(path)!r} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise OptionError(f"The plan {str(path)!r} is nested too deeply.") from None
    except ValueError as error:
        raise OptionError(f"The plan {str(path)!r} is no JSON: {error}.") from None
    if not isinstance(content, dict) or _VERSION not in content:
        raise OptionError(f"{str(path)!r} is no plan of `fuselane fuse --save`.")
    if content[_VERSION] != VERSION:
        raise OptionError(
            f"The plan {str(path)!r} is of version {content[_VERSION]!r}; this version of Fuselane"
            f" reads version {VERSION}."
        )
    try:
        _expect_fields(content, _VERSION, "modules")
        return tuple(_read_module(*item) for item in _read(content["modules"], dict).items())
    except KeyError as error:
        what = f"it lacks {error}"
    except ValueError as error:
        what = f"{error}"
    raise OptionError(f"The plan {str(path)!r} has another form: {what}.") from None


def _read_module(key: str, content: Any) -> PlannedModule:
    module = _read(content, dict)
    _expect_fields(module, "parameters", "lines", "kernels")
    lines = _read(module["lines"], dict)
    kernels = _read(module["kernels"], list)
    return PlannedModule(
        name=key.partition(_NUMBER)[0],
        lines=tuple((line, _read(made, str)) for line, made in lines.items()),
        kernels=tuple(map(_read_planned, kernels)),
        parameters=_read(module.get("parameters", ""), str),
    )


def _read_planned(content: Any) -> PlannedKernel:
    kernel = _read(content, dict)
    _expect_fields(kernel, "results", "edges")
    return PlannedKernel(
        tuple(map(_read_landmark, _read(kernel["results"], list))),
        tuple(map(_read_edge, _read(kernel["edges"], list))),
    )


def _read_edge(content: Any) -> Edge:
    producer, arrow, consumer = _read(content, str).partition(ARROW)
    if not arrow:
        raise ValueError(f"{content!r} is not of the form `file.py:12 sine #0{ARROW}...`")
    return _read_landmark(producer), _read_landmark(consumer)


def _read_landmark(content: Any) -> Landmark:
    landmark = Landmark.parse(_read(content, str))
    if landmark is None:
        raise ValueError(f"{content!r} is not of the form `file.py:12 add #0`")
    return landmark


def _expect_fields(content: Mapping[str, Any], *known: str) -> None:
    """Raises ValueError for a field that is none of a plan's, such as one with a typing error."""
    for name in content:
        if name not in known:
            raise ValueError(f"there is no {name!r}, only {', '.join(map(repr, known))}")


def _read(content: Any, kind: type[_Part]) -> _Part:
    """Returns a part of a plan. Raises ValueError if it is of another kind."""
    if not isinstance(content, kind):
        raise ValueError(
            "objects, lists and texts are not where `fuselane fuse --save` writes them"
        )
    return content
