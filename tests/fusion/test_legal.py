"""What XLA:CPU cannot compile as one kernel is taken apart."""

from __future__ import annotations

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.legal import make_legal
from fuselane.fusion.legal_on_gpu import make_legal_on_gpu
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


@pytest.mark.parametrize(("num", "fusions"), [(2, 1), (4, 0), (40, 0)])
def test_loops_that_repeat_each_other(num: int, fusions: int) -> None:
    """Two reductions, of which one reads the other in each step, are one kernel; four would take
    thousands of times their work, and forty more than f32 can count."""
    chain = " ".join(
        f"b{i} = f32[64,64] broadcast(r{i}), dimensions={{1}}"
        f" r{i + 1} = f32[64] reduce(b{i}, z), dimensions={{1}}, to_apply=sum"
        for i in range(num)
    )
    text = f"""HloModule m
    sum {{ d = f32[] parameter(0) e = f32[] parameter(1) ROOT g = f32[] add(d, e) }}
    f {{ r0 = f32[64] parameter(0) z = f32[] constant(0) {chain}
      ROOT s = f32[64] sine(r{num}) }}
    ENTRY main {{ x = f32[64] parameter(0) ROOT f = f32[64] fusion(x), kind=kLoop, calls=f }}"""
    module, log = module_of(text), FusionLog()
    make_legal(module, log)
    verify(module)
    assert sum(i.opcode == "fusion" for i in module.entry.instructions) == fusions
    assert sum(i.opcode == "reduce" for i in module.entry.instructions) == (not fusions) * num
    for step in log:
        assert step.decision.reason is BoundaryReason.DUPLICATION
        assert step.decision.numbers["ratio"] > step.decision.numbers["limit"]
    assert len(log) == (not fusions)


ON_GPU = """HloModule m
lt {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=LT }}
sum {{ d = f32[] parameter(0) e = f32[] parameter(1) ROOT g = f32[] add(d, e) }}
f {{ p = f32[8] parameter(0) k = s32[2,1] parameter(1) v = f32[2] parameter(2)
  s = f32[8] sine(p) {inner} }}
ENTRY main {{ x = f32[8] parameter(0) i = s32[2,1] parameter(1) u = f32[2] parameter(2)
  ROOT r = {shape} fusion(x, i, u), kind=kLoop, calls=f }}"""
SCATTER = """m = f32[8] scatter(s, k, v), update_window_dims={}, inserted_window_dims={0},
  scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum"""
BOTH = " ROOT t = (f32[8], f32[8]) tuple(s, m)"


@pytest.mark.parametrize(
    ("inner", "shape", "kinds", "reason"),
    [
        ("m = f32[8] abs(s)" + BOTH, "(f32[8], f32[8])", ["kLoop"], None),
        (
            "m = f32[8] sort(s), dimensions={0}, to_apply=lt" + BOTH,
            "(f32[8], f32[8])",
            [],
            BoundaryReason.SORT,
        ),
        ("ROOT " + SCATTER, "f32[8]", ["kInput"], None),
        (SCATTER + " ROOT n = f32[8] abs(m)", "f32[8]", [], BoundaryReason.NOT_FUSIBLE),
        (SCATTER + BOTH, "(f32[8], f32[8])", [], BoundaryReason.NOT_FUSIBLE),
        (
            "m = f32[4] slice(s), slice={[0:4]} ROOT t = (f32[8], f32[4]) tuple(s, m)",
            "(f32[8], f32[4])",
            ["kLoop"],
            BoundaryReason.LOOP_SHAPES,
        ),
        (
            "m = f32[2,4] reshape(s) ROOT t = (f32[8], f32[2,4]) tuple(s, m)",
            "(f32[8], f32[2,4])",
            ["kLoop"],
            None,
        ),
    ],
)
def test_fusions_on_gpus(
    inner: str, shape: str, kinds: list[str], reason: BoundaryReason | None
) -> None:
    """One loop for results of one size, none for all of other sizes, and no kernel at all for a
    sort or a scatter that is not the end."""
    module, log = module_of(ON_GPU.format(inner=inner, shape=shape)), FusionLog()
    make_legal_on_gpu(module, log)
    verify(module)
    to_text(module.to_bytes())
    found = [i for i in module.entry.instructions if i.opcode == "fusion"]
    assert [fusion.fusion_kind for fusion in found] == kinds
    assert [step.decision.reason for step in log] == ([reason] if reason else [])
