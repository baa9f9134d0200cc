"""Plans: which edges are fused, by names that outlive small changes of the program, as JSON.

    {"fuselane-plan": 1,
     "modules": {"jit_step": {
       "lines": {"step.py:3": "broadcast multiply", "step.py:4": "add sine"},
       "kernels": [{"results": ["step.py:4 add #0"],
                    "edges": ["step.py:4 sine #0 -> step.py:4 add #0"]}]}}}

A kernel computes its results and, for each of its edges, the producer where the consumer is. A
plan is saved by `fuselane fuse --save`, may be edited, and is followed by `fusion="plan.json"`.
What is on no edge is a kernel of its own. Edges that are not found any more are left out, and
results that depend on each other through other kernels get a kernel each; the log says so. A module
that the plan does not know is fused as XLA does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fuselane.errors import OptionError
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
ARROW: Final = " -> "
_TAG: Final = "fuselane_landmark"
Edge = tuple[Landmark, Landmark]


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
    """The kernels of a module that compute more than one instruction, and its lines."""

    name: str
    lines: tuple[tuple[str, str], ...]
    kernels: tuple[PlannedKernel, ...]


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
    return PlannedModule(module.name, tuple(landmarks.lines.items()), wanted)


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


def write_plan(path: Path, modules: list[PlannedModule]) -> None:
    """Writes a plan as JSON. Raises OSError if the file cannot be written."""
    content = {
        "fuselane-plan": VERSION,
        "modules": {
            module.name: {
                "lines": dict(module.lines),
                "kernels": [
                    {
                        "results": [str(result) for result in kernel.results],
                        "edges": [f"{a}{ARROW}{b}" for a, b in kernel.edges],
                    }
                    for kernel in module.kernels
                ],
            }
            for module in modules
        },
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_plan(path: Path) -> tuple[PlannedModule, ...]:
    """Returns what a plan says.

    Raises:
        OptionError: if the file cannot be read or holds no plan; the sentence says what is wrong.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"The plan {str(path)!r} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise OptionError(f"The plan {str(path)!r} is no JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("fuselane-plan") != VERSION:
        raise OptionError(f"{str(path)!r} is no plan of `fuselane fuse --save`.")
    try:
        modules = tuple(
            PlannedModule(
                name,
                tuple((str(line), str(made)) for line, made in module["lines"].items()),
                tuple(_read_planned(kernel) for kernel in module["kernels"]),
            )
            for name, module in content["modules"].items()
        )
    except (TypeError, AttributeError):
        what = "objects, lists and texts are not where `fuselane fuse --save` writes them"
        raise OptionError(f"The plan {str(path)!r} has another form: {what}.") from None
    except (KeyError, ValueError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else f"{error}"
        raise OptionError(f"The plan {str(path)!r} has another form: {what}.") from None
    return modules


def _read_planned(kernel: Mapping[str, Any]) -> PlannedKernel:
    edges = [edge.partition(ARROW) for edge in kernel["edges"]]
    return PlannedKernel(
        tuple(_read_landmark(result) for result in kernel["results"]),
        tuple((_read_landmark(a), _read_landmark(b)) for a, _, b in edges),
    )


def _read_landmark(text: str) -> Landmark:
    landmark = Landmark.parse(text)
    if landmark is None:
        raise ValueError(f"{text!r} is not of the form `file.py:12 add #0`")
    return landmark
