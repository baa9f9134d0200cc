"""What a module computes where, in a few words: one line for each kernel."""

from __future__ import annotations

from typing import Final

from fuselane.fusion.decision import FusionDecision, FusionLog
from fuselane.fusion.pipelines import FusionPass, parse_pipeline, run_pipeline
from fuselane.hlo import HloInstruction, HloModule
from tests.hlo.xla import module_of, to_text

_NO_KERNELS: Final = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")


def module_with(body: str, *computations: str) -> HloModule:
    """Returns a module whose entry computation consists of some lines of HLO."""
    return module_of("HloModule m\n" + "\n".join(computations) + f"\nENTRY main {{\n{body}\n}}")


def fuse(module: HloModule, pipeline: str | FusionPass) -> FusionLog:
    """Runs a pipeline, has XLA check the module and returns the log."""
    passes = parse_pipeline(pipeline) if isinstance(pipeline, str) else (pipeline,)
    log = run_pipeline(passes, module)
    to_text(module.to_bytes())
    return log


def outline(module: HloModule) -> list[str]:
    """Returns, for each kernel of the entry, its kind, results, what it holds and reads."""
    lines = []
    for instruction in module.entry.post_order():
        if instruction.opcode not in _NO_KERNELS:
            lines.append(f"{_work(instruction)} of {', '.join(map(_origin, instruction.operands))}")
    return lines


def refusals(log: FusionLog) -> list[FusionDecision]:
    """Returns the answers that were no."""
    return [step.decision for step in log if not step.decision.can_fuse]


def fused(log: FusionLog) -> list[tuple[str, str]]:
    """Returns producer and consumer of each step that changed something."""
    return [(step.producer, step.consumer) for step in log if step.fusion]


def _work(instruction: HloInstruction) -> str:
    if instruction.opcode != "fusion":
        return instruction.opcode
    body = instruction.to_apply
    roots = body.root.operands if body.root.opcode == "tuple" else [body.root]
    members = [i.opcode for i in body.instructions if i.opcode not in ("parameter", "tuple")]
    results = ", ".join(root.opcode for root in roots)
    return f"{instruction.fusion_kind}[{' '.join(sorted(members))}] -> {results}"


def _origin(operand: HloInstruction) -> str:
    match operand.opcode:
        case "parameter" | "constant":
            return operand.name
        case "get-tuple-element":
            return f"{_origin(operand.operands[0])}.{operand.tuple_index}"
        case _:
            return operand.opcode
