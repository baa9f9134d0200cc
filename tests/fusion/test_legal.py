"""What XLA:CPU cannot compile as one kernel is taken apart."""

from __future__ import annotations

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.legal import make_legal
from fuselane.hlo.verifier import verify
from tests.hlo.xla import module_of, to_text

TEXT = """HloModule m
lt {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=LT }}
f {{ p = f32[8] parameter(0) s = f32[8] sine(p) {inner} ROOT t = (f32[8], {shape}) tuple(s, m) }}
ENTRY main {{ x = f32[8] parameter(0) f = (f32[8], {shape}) fusion(x), kind={kind}, calls=f
  a = f32[8] get-tuple-element(f), index=0 b = {shape} get-tuple-element(f), index=1
  ROOT r = (f32[8], {shape}) tuple(a, b) }}"""


@pytest.mark.parametrize(
    ("inner", "shape", "kind", "fusions", "reason"),
    [
        ("m = f32[8] multiply(s, s)", "f32[8]", "kLoop", 1, None),
        ("m = f32[8] multiply(s, s)", "f32[8]", "kInput", 1, None),
        (
            "m = f32[4] slice(s), slice={[0:4]}",
            "f32[4]",
            "kLoop",
            2,
            BoundaryReason.LOOP_SHAPES,
        ),
        (
            "m = f32[8] sort(s), dimensions={0}, to_apply=lt",
            "f32[8]",
            "kLoop",
            0,
            BoundaryReason.SORT,
        ),
        (
            'm = f32[8] custom-call(s), custom_call_target="c"',
            "f32[8]",
            "kLoop",
            0,
            BoundaryReason.CUSTOM_CALL,
        ),
    ],
)
def test_fusions(
    inner: str, shape: str, kind: str, fusions: int, reason: BoundaryReason | None
) -> None:
    """Legal ones become loops; several shapes a kernel each; what no kernel holds single ones."""
    module, log = module_of(TEXT.format(inner=inner, shape=shape, kind=kind)), FusionLog()
    make_legal(module, log)
    verify(module)
    to_text(module.to_bytes())
    found = [i for i in module.entry.instructions if i.opcode == "fusion"]
    assert [fusion.fusion_kind for fusion in found] == ["kLoop"] * fusions
    assert [step.decision.reason for step in log] == ([reason] if reason else [])
