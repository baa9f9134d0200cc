"""Pipelines of fusion passes: XLA's own by name, users' own as text.

xla-today-cpu
instruction-fusion{may-duplicate=false},instruction-fusion
xla-today-cpu,fusion-merger{max-consumers=3}
fixed-point(gpu-instruction-fusion,fusion-merger),multi-output-fusion
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Protocol, final

from fuselane.errors import OptionError
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.fusion_cse import FusionCse
from fuselane.fusion.fusion_merger import FusionMerger
from fuselane.fusion.gpu.classic import ClassicRules
from fuselane.fusion.gpu_instruction_fusion import GpuInstructionFusion
from fuselane.fusion.horizontal_input_fusion import HorizontalInputFusion
from fuselane.fusion.horizontal_loop_fusion import HorizontalLoopFusion
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.lane_kernels import LaneKernels
from fuselane.fusion.multi_output_fusion import MultiOutputFusion
from fuselane.fusion.priced_merger import PricedMerger
from fuselane.fusion.priority_fusion import PriorityFusion
from fuselane.fusion.shared_work import SharedWork
from fuselane.fusion.single_edges import FuseEdge, SplitKernel
from fuselane.fusion.traversal import separate_bodies
from fuselane.gpu import GpuDescription
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify


class FusionPass(Protocol):
    """A pass: a frozen value whose fields are its rules."""

    @property
    def name(self) -> str:
        """What pipelines and logs call it."""

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Changes a module, logs every decision and returns whether anything was fused."""


Pipeline = tuple[FusionPass, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """Runs passes again and again until none fuses anything more.

    Attributes:
        passes: In order.
        max_rounds: Most times they run; XLA's limit.
    """

    name: ClassVar[str] = "fixed-point"
    passes: Pipeline = ()
    max_rounds: int = 25

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Runs the passes; returns whether any fused anything."""
        for round_number in range(self.max_rounds):
            changed = [fusion_pass.run(module, log) for fusion_pass in self.passes]
            if not any(changed):
                return round_number > 0
        return True


_RULES_2021: Final = ClassicRules(cheap_roots=False, nested_loops=False)
_RULES_2023: Final = ClassicRules()
_RULES_2024: Final = ClassicRules(max_operands=96, lone_bitcasts=False, epilogues=True)

PIPELINES: Final[dict[str, Pipeline]] = {
    "none": (),
    "xla-today-cpu": (InstructionFusion(),),
    "xla-today-gpu": (PriorityFusion(), FusionCse(), MultiOutputFusion(), FusionCse()),
    "xla-2021": (
        FixedPoint(
            passes=(
                GpuInstructionFusion(may_duplicate=False, rules=_RULES_2021),
                GpuInstructionFusion(rules=_RULES_2021),
                FusionMerger(rules=_RULES_2021),
                MultiOutputFusion(
                    scalar_parents=True,
                    disjoint_slices=True,
                    priced=False,
                    rules=_RULES_2021.limits,
                ),
                FusionCse(),
            )
        ),
        FixedPoint(
            passes=(
                HorizontalLoopFusion(equal_shapes=False),
                HorizontalInputFusion(rules=_RULES_2021.limits),
                FusionCse(),
            )
        ),
    ),
    "xla-2023": (
        FixedPoint(
            passes=(
                GpuInstructionFusion(may_duplicate=False, rules=_RULES_2023),
                GpuInstructionFusion(rules=_RULES_2023),
                FusionMerger(priced=True, rules=_RULES_2023),
                MultiOutputFusion(scalar_parents=True, model_year=2023, rules=_RULES_2023.limits),
                FusionCse(),
            )
        ),
        FixedPoint(
            passes=(
                HorizontalLoopFusion(),
                HorizontalInputFusion(rules=_RULES_2023.limits),
                FusionCse(),
            )
        ),
    ),
    "xla-2024": (
        FixedPoint(
            passes=(
                GpuInstructionFusion(may_duplicate=False, rules=_RULES_2024),
                GpuInstructionFusion(rules=_RULES_2024),
                FusionMerger(priced=True, model_year=2024, rules=_RULES_2024),
                FusionCse(),
                MultiOutputFusion(model_year=2024, rules=_RULES_2024.limits),
                FusionCse(),
            )
        ),
        FixedPoint(
            passes=(
                HorizontalLoopFusion(),
                HorizontalInputFusion(rules=_RULES_2024.limits),
                FusionCse(),
            )
        ),
    ),
    "fuselane": (LaneKernels(), PricedMerger(), SharedWork()),
}
"""The named pipelines: what the paper "Operator Fusion in XLA" describes, and XLA after it."""


_REFINING: Final = frozenset(
    {FuseEdge.name, LaneKernels.name, PricedMerger.name, SharedWork.name, SplitKernel.name}
)
"""Passes that go on from XLA's fusions instead of doing without them."""


def passes_in(pipeline: Sequence[FusionPass]) -> Iterator[FusionPass]:
    """Yields the passes of a pipeline, and those of fixed points in the place of these."""
    for fusion_pass in pipeline:
        if isinstance(fusion_pass, FixedPoint):
            yield from passes_in(fusion_pass.passes)
        else:
            yield fusion_pass


def with_each(change: Callable[[FusionPass], FusionPass], pipeline: Pipeline) -> Pipeline:
    """Returns a pipeline with each pass changed, those of fixed points too."""
    changed: list[FusionPass] = []
    for fusion_pass in pipeline:
        if isinstance(fusion_pass, FixedPoint):
            passes = with_each(change, fusion_pass.passes)
            changed.append(replace(fusion_pass, passes=passes))
        else:
            changed.append(change(fusion_pass))
    return tuple(changed)


def refines(pipeline: Sequence[FusionPass]) -> bool:
    """Whether a pipeline goes on from XLA's fusions; else these are dissolved in front of it."""
    passes = list(passes_in(pipeline))
    return bool(passes) and all(each.name in _REFINING for each in passes)


def run_pipeline(pipeline: Sequence[FusionPass], module: HloModule) -> FusionLog:
    """Runs passes one after the other, verifies what comes out, and returns their log.

    Raises:
        VerificationError: if a pass broke a rule of HLO.
    """
    separate_bodies(module)
    log = FusionLog()
    changed = [fusion_pass.run(module, log) for fusion_pass in pipeline]
    if any(changed):
        verify(module)
    return log


def for_cpu(pipeline: Pipeline) -> Pipeline:
    """Returns a pipeline without the rules that only make sense on GPUs.

    CPUs have no emitters that share memory between threads, so that reductions and transposes are
    loops like all else.
    """
    return _without_tiled_emitters(pipeline, tuple(type(known) for known in PASSES.values()))


def for_gpu(pipeline: Pipeline, gpu: GpuDescription) -> Pipeline:
    """Returns a pipeline that prices kernels for a GPU, without those that XLA:GPU has no emitter
    for any more.

    Small loops that write slices of one array were taken out of XLA together with its horizontal
    passes; it crashes on them.
    """
    changed = _without_tiled_emitters(pipeline, (HorizontalLoopFusion,))
    return with_each(lambda fusion_pass: _priced_for(gpu, fusion_pass), changed)


def _priced_for(gpu: GpuDescription, fusion_pass: FusionPass) -> FusionPass:
    value: Any = fusion_pass
    is_priced = any(field.name == "gpu" for field in fields(value))
    priced: FusionPass = replace(value, gpu=gpu) if is_priced else fusion_pass
    return priced


def _without_tiled_emitters(pipeline: Pipeline, kinds: tuple[type, ...]) -> Pipeline:
    def change(fusion_pass: FusionPass) -> FusionPass:
        if isinstance(fusion_pass, kinds) and "tiled-emitters" in settings(fusion_pass):
            return with_setting(fusion_pass, "tiled-emitters", False)
        return fusion_pass

    return with_each(change, pipeline)


PASSES: Final[dict[str, FusionPass]] = {
    FixedPoint.name: FixedPoint(),
    FuseEdge.name: FuseEdge(),
    FusionCse.name: FusionCse(),
    FusionMerger.name: FusionMerger(),
    GpuInstructionFusion.name: GpuInstructionFusion(),
    HorizontalInputFusion.name: HorizontalInputFusion(),
    HorizontalLoopFusion.name: HorizontalLoopFusion(),
    InstructionFusion.name: InstructionFusion(),
    LaneKernels.name: LaneKernels(),
    MultiOutputFusion.name: MultiOutputFusion(),
    PricedMerger.name: PricedMerger(),
    PriorityFusion.name: PriorityFusion(),
    SharedWork.name: SharedWork(),
    SplitKernel.name: SplitKernel(),
}
"""The passes by name, with the values their fields have unless text sets them."""

_ITEM: Final = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\})?\s*")

_MAX_DEPTH: Final = 20
"""How deep fixed points stand in each other at most."""

_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?(e-?[0-9]+)?")


def parse_pipeline(text: str) -> Pipeline:
    """Returns the pipeline that a name or a list of passes and names stands for.

    Raises:
        OptionError: for an unknown name, field or value, and for text that is no list of passes.
    """
    if not text.strip():
        raise OptionError(f"A pipeline is one of {_list(PIPELINES)}, or passes: {_list(PASSES)}.")
    passes, position = _parse_passes(text, 0)
    if position < len(text):
        raise _no_list(text)
    return passes


def _parse_passes(text: str, position: int, depth: int = 0) -> tuple[Pipeline, int]:
    """Returns the passes that stand in a text, and where they end."""
    if depth > _MAX_DEPTH:
        raise OptionError(f"No more than {_MAX_DEPTH} `fixed-point` may stand in each other.")
    passes: list[FusionPass] = []
    while True:
        match = _ITEM.match(text, position)
        if match is None:
            raise _no_list(text)
        inner: Pipeline | None = None
        position = match.end()
        if text.startswith("()", position):
            inner, position = (), position + 1
        elif text.startswith("(", position):
            inner, position = _parse_passes(text, position + 1, depth + 1)
        if inner is not None:
            if not text.startswith(")", position):
                raise _no_list(text)
            position += 1
        passes += _parse_item(match[1], match[2], inner)
        while position < len(text) and text[position].isspace():
            position += 1
        if not text.startswith(",", position):
            return tuple(passes), position
        position += 1


def _parse_item(name: str, settings_text: str | None, inner: Pipeline | None) -> Pipeline:
    if name in PIPELINES and inner is None:
        if settings_text is not None:
            raise _no_fields(name)
        return PIPELINES[name]
    if name in PIPELINES:
        raise OptionError(_PARENTHESES)
    fusion_pass = _parse_pass(name, settings_text or "")
    if isinstance(fusion_pass, FixedPoint) != (inner is not None):
        raise OptionError(_PARENTHESES)
    if isinstance(fusion_pass, FixedPoint) and inner is not None:
        return (replace(fusion_pass, passes=inner),)
    return (fusion_pass,)


_PARENTHESES: Final = "Passes stand in parentheses after `fixed-point`, and only there."


def _no_fields(name: str) -> OptionError:
    passes = ",".join(map(_pass_text, PIPELINES[name]))
    instead = f"; write its passes and set theirs: {passes}" if passes else ""
    return OptionError(f"The pipeline {name} has no fields{instead}.")


def _no_list(text: str) -> OptionError:
    return OptionError(f"{text!r} is no list of passes such as `a{{b=1}},c`.")


def _parse_pass(name: str, settings_text: str) -> FusionPass:
    if name not in PASSES:
        raise OptionError(
            f"There is no fusion pass {name!r}; there are {_list(PASSES)},"
            f" and the pipelines {_list(PIPELINES)}."
        )
    value: Any = PASSES[name]
    for setting in filter(None, map(str.strip, settings_text.split(","))):
        key, equals, given = (part.strip() for part in setting.partition("="))
        if not equals:
            raise OptionError(f"{setting!r} of {name} is not of the form field=value.")
        value = _set(name, value, key, given)
    result: FusionPass = value
    return result


def _set(name: str, value: Any, key: str, given: str) -> Any:
    """Returns a pass with one field of it, or of its rules, changed."""
    known = settings(value)
    if key not in known:
        raise OptionError(f"{name} has no field {key!r}; it has {_list(sorted(known))}.")
    return with_setting(value, key, _parse_value(f"{name}{{{key}}}", given, known[key]))


Setting = bool | int | float


def settings(fusion_pass: FusionPass) -> dict[str, Setting]:
    """Returns what text can set of a pass and of its rules, in kebab-case, with its values."""
    rules = getattr(fusion_pass, "rules", None)
    return ({} if rules is None else _settable(rules)) | _settable(fusion_pass)


def with_setting(fusion_pass: FusionPass, key: str, value: Setting) -> FusionPass:
    """Returns a pass with one of its `settings` changed."""
    changed: Any = fusion_pass
    field = {key.replace("-", "_"): value}
    if key not in _settable(changed):
        field = {"rules": replace(changed.rules, **field)}
    result: FusionPass = replace(changed, **field)
    return result


def pipeline_text(pipeline: Pipeline) -> str:
    """Returns text that `parse_pipeline` reads back; a name if there is one for the pipeline."""
    for name, known in PIPELINES.items():
        if known == pipeline:
            return name
    return ",".join(map(_pass_text, pipeline))


def _pass_text(fusion_pass: FusionPass) -> str:
    usual = settings(PASSES[fusion_pass.name])
    changed = {k: v for k, v in settings(fusion_pass).items() if v != usual[k]}
    text = fusion_pass.name
    if changed:
        values = ",".join(f"{key}={str(value).lower()}" for key, value in changed.items())
        text += f"{{{values}}}"
    if isinstance(fusion_pass, FixedPoint):
        text += f"({','.join(map(_pass_text, fusion_pass.passes))})"
    return text


def _settable(value: Any) -> dict[str, Setting]:
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    return {k.replace("_", "-"): v for k, v in values.items() if isinstance(v, Setting)}


def _parse_value(what: str, given: str, present: Setting) -> Setting:
    if isinstance(present, bool):
        if given not in ("true", "false"):
            raise OptionError(f"{what} is true or false, not {given!r}.")
        return given == "true"
    if isinstance(present, float):
        if not _NUMBER.fullmatch(given):
            raise OptionError(f"{what} is a number, not {given!r}.")
        return float(given)
    if not given.isascii() or not given.isdigit():
        raise OptionError(f"{what} is a whole number, not {given!r}.")
    return int(given)


def _list(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(names)
