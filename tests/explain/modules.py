"""Captured modules for the tests of `explain`, made of HLO text."""

from __future__ import annotations

from fuselane.explain.build import build_module
from fuselane.explain.model import ModuleModel
from fuselane.gpu import GPUS
from fuselane.xla.captured import CapturedModule, CapturedStage, XlaRefusal
from tests.hlo import xla


def capture_text(
    text: str,
    *stages: tuple[str, str],
    target: str = "cpu",
    refusals: tuple[XlaRefusal, ...] = (),
) -> CapturedModule:
    """Returns a module whose final form is HLO text.

    Args:
        text: The final module.
        stages: Names of passes and the module after each, as text.
        target: `cpu` or a GPU.
        refusals: What XLA said.
    """
    return CapturedModule(
        name=xla.module_of(text).name,
        target=target,
        stages=tuple(
            CapturedStage(pipeline="fusion", name=name, data=xla.parse(stage))
            for name, stage in stages
        ),
        final=xla.parse(text),
        refusals=refusals,
        gpu=GPUS.get(target),
    )


def model_of(text: str, target: str = "cpu", refusals: tuple[XlaRefusal, ...] = ()) -> ModuleModel:
    """Returns what `explain` knows of a module given as HLO text."""
    return build_module(capture_text(text, target=target, refusals=refusals))
