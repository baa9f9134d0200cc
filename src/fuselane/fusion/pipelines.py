"""Pipelines of fusion passes: XLA's own by name, users' own as text.

xla-today-cpu
instruction-fusion{may-duplicate=false},instruction-fusion
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final, Protocol

from fuselane.errors import OptionError
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.priority_fusion import PriorityFusion
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

PIPELINES: Final[dict[str, Pipeline]] = {
    "none": (),
    "xla-today-cpu": (InstructionFusion(),),
    "xla-today-gpu": (PriorityFusion(),),
}
"""The named pipelines. `xla-today-gpu` lacks XLA's multi-output fusion so far."""


def run_pipeline(pipeline: Sequence[FusionPass], module: HloModule) -> FusionLog:
    """Runs passes one after the other, verifies the module after each, and returns their log.

    Raises:
        VerificationError: if a pass broke a rule of HLO.
    """
    log = FusionLog()
    for fusion_pass in pipeline:
        if fusion_pass.run(module, log):
            verify(module)
    return log


PASSES: Final[dict[str, FusionPass]] = {
    InstructionFusion.name: InstructionFusion(),
    PriorityFusion.name: PriorityFusion(),
}
"""The passes by name, with the values their fields have unless text sets them."""

_ITEM: Final = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str) -> Pipeline:
    """Returns the pipeline that a name or a list of passes stands for.

    Raises:
        OptionError: for an unknown name, field or value, and for text that is no list of passes.
    """
    if text.strip() in PIPELINES:
        return PIPELINES[text.strip()]
    passes: list[FusionPass] = []
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise OptionError(f"{text[position:]!r} is no list of passes such as `a{{b=1}},c`.")
        passes.append(_parse_pass(match[1], match[2] or ""))
        position = match.end()
    if not passes:
        raise OptionError(f"A pipeline is one of {_list(PIPELINES)}, or passes: {_list(PASSES)}.")
    return tuple(passes)


def _parse_pass(name: str, settings: str) -> FusionPass:
    if name not in PASSES:
        raise OptionError(f"There is no fusion pass {name!r}; there are {_list(PASSES)}.")
    value: Any = PASSES[name]
    for setting in filter(None, map(str.strip, settings.split(","))):
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


def settings(fusion_pass: FusionPass) -> dict[str, bool | int]:
    """Returns what text can set of a pass and of its rules, in kebab-case, with its values."""
    rules = getattr(fusion_pass, "rules", None)
    return ({} if rules is None else _settable(rules)) | _settable(fusion_pass)


def with_setting(fusion_pass: FusionPass, key: str, value: bool | int) -> FusionPass:
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
    if not changed:
        return fusion_pass.name
    values = ",".join(f"{key}={str(value).lower()}" for key, value in changed.items())
    return f"{fusion_pass.name}{{{values}}}"


def _settable(value: Any) -> dict[str, bool | int]:
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    return {k.replace("_", "-"): v for k, v in values.items() if isinstance(v, bool | int)}


def _parse_value(what: str, given: str, present: bool | int) -> bool | int:
    if isinstance(present, bool):
        if given not in ("true", "false"):
            raise OptionError(f"{what} is true or false, not {given!r}.")
        return given == "true"
    if not given.isascii() or not given.isdigit():
        raise OptionError(f"{what} is a whole number, not {given!r}.")
    return int(given)


def _list(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(names)
