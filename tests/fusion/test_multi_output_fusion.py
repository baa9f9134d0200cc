"""Multi-output fusion: its rules, each triggered and just not, and what becomes of a module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.gpu.rules import GpuRules
from fuselane.fusion.multi_output_fusion import MultiOutputFusion
from fuselane.fusion.pipelines import for_cpu
from fuselane.hlo import HloModule
from tests.fusion.outline import fuse, fused, module_with, outline

SUM: Final = "sum { si = f32[] parameter(0) sj = f32[] parameter(1) ROOT sk = f32[] add(si, sj) }"
CPU: Final = for_cpu((MultiOutputFusion(),))[0]


def loop(name: str, opcode: str, shape: str, result: str = "") -> str:
    """A fused computation of one instruction after another one."""
    return f"""{name} {{ {name}i = {shape} parameter(0) {name}j = {shape} sine({name}i)
      ROOT {name}k = {result or shape} {opcode} }}"""


@dataclass(frozen=True)
class Case:
    """A program and whether `a` and `b` become one kernel: None, or the reason why not."""

    name: str
    body: str
    reason: BoundaryReason | None
    computations: tuple[str, ...] = ()
    fusion: MultiOutputFusion = field(default_factory=MultiOutputFusion)


def ask(case: Case) -> BoundaryReason | None:
    module = module_with(case.body, SUM, *case.computations)
    before = outline(module)
    steps = [
        step for step in fuse(module, case.fusion) if {"a", "b"} & {step.producer, step.consumer}
    ]
    answers = [step for step in steps if step.consumer in ("a", "b", "")]
    if any(step.fusion for step in steps):
        return None
    assert outline(module) == before
    assert all(step.decision.detail.endswith(".") for step in steps)
    return answers[-1].decision.reason if answers else BoundaryReason.UNKNOWN


A: Final = loop("made", "abs(madej)", "f32[8,64]")
SLICES: Final = """x = f32[{n}] parameter(0) a = f32[{m}] fusion(x), kind=kLoop, calls=first
  b = f32[{m}] fusion(x), kind=kLoop, calls=second ROOT t = (f32[{m}], f32[{m}]) tuple(a, b)"""


def slices(size: int, start: int) -> tuple[str, tuple[str, str]]:
    """Two kernels that read halves of an array, the second one from somewhere on."""
    half = size // 2
    parts = []
    for name, begin in (("first", 0), ("second", start)):
        parts.append(
            f"""{name} {{ {name}i = f32[{size}] parameter(0)
            {name}j = f32[{half}] slice({name}i), slice={{[{begin}:{begin + half}]}}
            ROOT {name}k = f32[{half}] sine({name}j) }}"""
        )
    return SLICES.format(n=size, m=half), (parts[0], parts[1])


def with_operands(most: int) -> MultiOutputFusion:
    return MultiOutputFusion(rules=GpuRules(max_operands=most))


def pair_read(result: str, shape: str) -> str:
    """A kernel of two results, what both are made of, and which of them the program returns."""
    return f"""x = f32[8,64] parameter(0) b = f32[8,64] exponential(x)
      a = (f32[8,64], f32[8,64]) fusion(b), kind=kLoop, calls=pair
      q = f32[8,64] get-tuple-element(a), index=0
      w = f32[64,8] custom-call(b), custom_call_target="w"
      ROOT t = ({shape}, f32[64,8]) tuple({result}, w)"""


FAR, NEAR, SMALL = slices(512, 256), slices(512, 255), slices(16, 8)
LARGE: Final = "x = f32[8,64] parameter(0) z = f32[] constant(0) "
PAIR: Final = """pair { pairi = f32[8,64] parameter(0) pairj = f32[8,64] sine(pairi)
  pairk = f32[8,64] abs(pairi) ROOT pairt = (f32[8,64], f32[8,64]) tuple(pairj, pairk) }"""
SEVERAL: Final = """x = f32[8,64] parameter(0)
  b = (f32[8,64], f32[8,64]) fusion(x), kind=kLoop, calls=pair
  q = f32[8,64] get-tuple-element(b), index=0 r = f32[8,64] get-tuple-element(b), index=1
  a = f32[8,64] fusion(q), kind=kLoop, calls=made
  ROOT t = (f32[8,64], f32[8,64]) tuple(a, r)"""
SIBLINGS: Final = (
    LARGE
    + """a = f32[8,64] fusion(x), kind=kLoop, calls=made
  b = f32[8,64] negate(x) ROOT t = (f32[8,64], f32[8,64]) tuple(a, b)"""
)
OF_A_NUMBER: Final = """x = f32[] parameter(0) y = f32[8,64] parameter(1)
  a = f32[8,64] fusion(y, x), kind=kLoop, calls=scaled w = f32[] abs(x)
  b = f32[] negate(x) ROOT t = (f32[8,64], f32[], f32[]) tuple(a, b, w)"""
SHARED_NUMBER: Final = """x = f32[] parameter(0) y = f32[8] parameter(1) v = f32[8] parameter(2)
  a = f32[8] fusion(y, x), kind=kLoop, calls=scaled b = f32[8] fusion(v, x), kind=kLoop, calls=moved
  ROOT t = (f32[8], f32[8]) tuple(a, b)"""
SCALED: Final = tuple(
    f"""{name} {{ {name}i = f32[8] parameter(0) {name}j = f32[] parameter(1)
    {name}k = f32[8] broadcast({name}j), dimensions={{}}
    ROOT {name}l = f32[8] {opcode}({name}i, {name}k) }}"""
    for name, opcode in (("scaled", "multiply"), ("moved", "add"))
)
RESHAPED: Final = (
    LARGE
    + """a = f32[8,64] fusion(x), kind=kLoop, calls=made
  b = f32[512] fusion(x), kind=kLoop, calls=flat ROOT t = (f32[8,64], f32[512]) tuple(a, b)"""
)
FLAT: Final = """flat { flati = f32[8,64] parameter(0) flatj = f32[512] bitcast(flati)
  ROOT flatk = f32[512] sine(flatj) }"""
ROWS: Final = (
    LARGE
    + """a = f32[8,64] fusion(x), kind=kLoop, calls=made
  b = f32[8] reduce(x, z), dimensions={1}, to_apply=sum ROOT t = (f32[8,64], f32[8]) tuple(a, b)"""
)
UPDATE: Final = """x = f32[8,64] parameter(0) v = f32[1,64] parameter(1)
  a = f32[8,64] fusion(x), kind=kLoop, calls=made b = f32[8,64] fusion(x, v), kind=kLoop, calls=put
  ROOT t = (f32[8,64], f32[8,64]) tuple(a, b)"""
PUT: Final = """put { puti = f32[8,64] parameter(0) putj = f32[1,64] parameter(1)
  zero = s32[] constant(0) putk = f32[1,64] sine(putj)
  ROOT putl = f32[8,64] dynamic-update-slice(puti, putk, zero, zero) }"""
CHAIN: Final = (
    LARGE
    + """a = f32[8,64] fusion(x), kind=kLoop, calls=made
  q = f32[8,64] custom-call(a), custom_call_target="q"
  b = f32[8,64] add(x, q) ROOT t = (f32[8,64], f32[8,64]) tuple(b, a)"""
)
PRODUCER: Final = """x = f32[8,64] parameter(0) b = f32[8,64] exponential(x)
  a = f32[8,64] fusion(b), kind=kLoop, calls=made
  w = f32[64,8] custom-call(b), custom_call_target="w"
  ROOT t = (f32[8,64], f32[64,8]) tuple(a, w)"""
AROUND: Final = """x = f32[8,64] parameter(0) b = f32[8,64] exponential(x)
  w = f32[8,64] custom-call(b), custom_call_target="w"
  a = f32[8,64] fusion(w, b), kind=kLoop, calls=both ROOT t = (f32[8,64], f32[8,64]) tuple(a, w)"""
BOTH: Final = """both { bothi = f32[8,64] parameter(0) bothj = f32[8,64] parameter(1)
  ROOT bothk = f32[8,64] add(bothi, bothj) }"""

CASES: Final = [
    Case("siblings", SIBLINGS, None, (A,)),
    Case(
        "operands",
        SIBLINGS,
        BoundaryReason.BUDGET,
        (A,),
        MultiOutputFusion(rules=GpuRules(max_operands=2)),
    ),
    Case(
        "operands-just-allowed",
        SIBLINGS,
        None,
        (A,),
        MultiOutputFusion(rules=GpuRules(max_operands=3)),
    ),
    Case(
        "another-loop",
        LARGE
        + """a = f32[8,64] fusion(x), kind=kLoop, calls=made
      b = f32[4,64] fusion(x), kind=kLoop, calls=half
      ROOT t = (f32[8,64], f32[4,64]) tuple(a, b)""",
        BoundaryReason.LOOP_SHAPES,
        (
            A,
            """half { halfi = f32[8,64] parameter(0)
      ROOT halfj = f32[4,64] slice(halfi), slice={[2:6],[0:64]} }""",
        ),
    ),
    Case("reshaped", RESHAPED, None, (A, FLAT)),
    Case("rows", ROWS, None, (A,)),
    Case("slices-far-apart", FAR[0], BoundaryReason.LOOP_SHAPES, FAR[1]),
    Case("slices-before-2023-07", FAR[0], None, FAR[1], MultiOutputFusion(disjoint_slices=True)),
    Case("slices-that-overlap", NEAR[0], None, NEAR[1]),
    Case("slices-of-little", SMALL[0], None, SMALL[1]),
    Case("update-in-place", UPDATE, BoundaryReason.IN_PLACE, (A, PUT)),
    Case("connected", CHAIN, BoundaryReason.MULTI_OUTPUT, (A,)),
    Case("number", SHARED_NUMBER, BoundaryReason.UNKNOWN, SCALED),
    Case("number-until-2024", SHARED_NUMBER, None, SCALED, MultiOutputFusion(scalar_parents=True)),
    Case("producer", PRODUCER, None, (A,)),
    Case(
        "producer-that-transposes",
        PRODUCER.replace(
            "x = f32[8,64] parameter(0) b = f32[8,64] exponential(x)",
            "x = f32[64,8] parameter(0) b = f32[8,64] transpose(x), dimensions={1,0}",
        ),
        BoundaryReason.LAYOUT,
        (A,),
    ),
    Case(
        "producer-without-loop",
        PRODUCER.replace("exponential(x)", 'custom-call(x), custom_call_target="v"'),
        BoundaryReason.CUSTOM_CALL,
        (A,),
    ),
    Case("results-read-one-by-one", pair_read("q", "f32[8,64]"), None, (PAIR,)),
    Case(
        "results-read-as-a-tuple",
        pair_read("a", "(f32[8,64], f32[8,64])"),
        BoundaryReason.TUPLE,
        (PAIR,),
    ),
    Case("producer-of-two", SEVERAL, BoundaryReason.MULTI_OUTPUT, (A, PAIR)),
    Case("cycle", AROUND, BoundaryReason.MULTI_OUTPUT, (BOTH,)),
    Case("no-cycle", AROUND.replace("fusion(w, b)", "fusion(x, b)"), None, (BOTH,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    """`a` and `b` become one kernel, or stay two for the reason given."""
    assert ask(case) is case.reason


def test_cpus_have_neither_bitcast_loops_nor_rows() -> None:
    """One loop computes results of one shape."""
    module = module_with(RESHAPED, SUM, A, FLAT)
    (step,) = (step for step in fuse(module, CPU) if step.consumer == "b")
    assert step.decision.reason is BoundaryReason.LOOP_SHAPES
    assert not fused(fuse(module_with(ROWS, SUM, A), CPU))


def test_eight_reductions_make_a_kernel() -> None:
    """The ninth is not fused."""
    names = [f"r{n}" for n in range(9)]
    sums = " ".join(f"{n} = f32[8] reduce(x, z), dimensions={{1}}, to_apply=sum" for n in names)
    module = module_with(
        f"""{LARGE} {sums} a = f32[8] fusion(x, z), kind=kInput, calls=rows
        ROOT t = ({", ".join(["f32[8]"] * 10)}) tuple(a, {", ".join(names)})""",
        SUM,
        """rows { ri = f32[8,64] parameter(0) rj = f32[] parameter(1)
        ROOT rk = f32[8] reduce(ri, rj), dimensions={1}, to_apply=sum }""",
    )
    log = fuse(module, "multi-output-fusion")
    assert len(fused(log)) == 7
    refusals = [step.decision for step in log if step.decision.reason is BoundaryReason.BUDGET]
    assert refusals[0].numbers == {"reductions": 9, "limit": 8}


def test_price_of_a_producer() -> None:
    """A sum over all elements runs in one block, where powers of them would take too long."""
    powers = "".join(f" j{n} = f32[65536] power(j{n - 1}, j0)" for n in range(1, 40))
    made = f"made {{ j0 = f32[65536] parameter(0) {powers} ROOT k = f32[65536] abs(j39) }}"
    body = """x = f32[65536] parameter(0) z = f32[] constant(0)
      {producer} a = f32[] reduce(b, z), dimensions={{0}}, to_apply=sum
      w = f32[4] custom-call(b), custom_call_target="w" ROOT t = (f32[], f32[4]) tuple(a, w)"""
    dear = body.format(producer="b = f32[65536] fusion(x), kind=kLoop, calls=made")
    cheap = body.format(producer="b = f32[65536] negate(x)")
    for early in (False, True):
        fusion = MultiOutputFusion(model_year=2023 if early else 2026)
        assert ask(Case("cheap", cheap, None, fusion=fusion)) is None
    assert ask(Case("dear", dear, None, (made,))) is BoundaryReason.SLOWER
    assert ask(Case("free", dear, None, (made,), MultiOutputFusion(priced=False))) is None


def test_one_pass_over_a_program() -> None:
    """Golden: siblings first, then the producer they share, whose result others read."""
    module = module_with(
        """x = f32[8,64] parameter(0) z = f32[] constant(0) p = f32[8,64] exponential(x)
        a = f32[8,64] fusion(p), kind=kLoop, calls=made
        r = f32[8] reduce(p, z), dimensions={1}, to_apply=sum
        w = f32[8] custom-call(p), custom_call_target="w"
        ROOT t = (f32[8,64], f32[8], f32[8]) tuple(a, r, w)""",
        SUM,
        A,
    )
    log = fuse(module, "multi-output-fusion")
    assert outline(module) == [
        "kInput[abs exponential reduce sine] -> abs, reduce, exponential of z, x",
        "custom-call of fusion.2",
    ]
    assert [step.producer for step in log if step.fusion] == ["a", "p"]


def test_decisions_are_deterministic() -> None:
    """Two runs take the same decisions in the same order."""

    def steps(module: HloModule) -> object:
        return fuse(module, "xla-2021").steps

    assert steps(module_with(ROWS, SUM, A)) == steps(module_with(ROWS, SUM, A))
