"""Reasons for boundaries: a module for each, with the answer beside it."""

from __future__ import annotations

import re
from typing import Final

import pytest

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.build import build_module
from fuselane.explain.reasons_page import EXAMPLES, reasons_page
from fuselane.fusion.cpu_rules import CpuRules
from fuselane.fusion.rules import Edge
from fuselane.xla.captured import XlaRefusal
from tests.explain.modules import capture_text
from tests.hlo import xla
from tests.test_docs import ROOT

_EXPECTED: Final = re.compile(r"// REASON (\S+) -> (\S+): (\S+)")
_ADD: Final = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT plus = f32[] add(a, b) }"
_SIN: Final = "sin { a = f32[8] parameter(0)  ROOT sined = f32[8] sine(a) }"
_SUM: Final = f"""{_ADD}
sum {{
  a = f32[8,4] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[8] reduce(a, z), dimensions={{1}}, to_apply=add
}}"""

CPU: Final = {
    "edges of the program": f"""
// REASON x -> f: entry
// REASON f -> main: exit
{_SIN}
ENTRY main {{
  x = f32[8] parameter(0)
  ROOT f = f32[8] fusion(x), kind=kLoop, calls=sin
}}""",
    "a library, a sort and a call": f"""
// REASON f -> d: library-call
// REASON d -> s: library-call
// REASON s -> c: sort
// REASON c -> g: custom-call
{_SIN}
less {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT lt = pred[] compare(a, b), direction=LT
}}
ENTRY main {{
  x = f32[8] parameter(0)
  m = f32[8,8] parameter(1)
  f = f32[8] fusion(x), kind=kLoop, calls=sin
  d = f32[8] dot(f, m), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  s = f32[8] sort(d), dimensions={{0}}, to_apply=less
  c = f32[8] custom-call(s), custom_call_target="mine"
  ROOT g = f32[8] fusion(c), kind=kLoop, calls=sin
}}""",
    "one of several results": f"""
// REASON both -> g: multi-output
// REASON most -> h: multi-output
{_SIN}
two {{
  a = f32[8,4] parameter(0)
  b = f32[8,4] cosine(a)
  c = f32[8,4] sine(a)
  ROOT t = (f32[8,4], f32[8,4]) tuple(b, c)
}}
larger {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  e = f32[] maximum(a, c)
  f = f32[] maximum(b, d)
  ROOT t = (f32[], f32[]) tuple(e, f)
}}
negate {{ a = f32[8,4] parameter(0)  ROOT n = f32[8,4] negate(a) }}
ENTRY main {{
  x = f32[8,4] parameter(0)
  z = f32[] constant(0)
  both = (f32[8,4], f32[8,4]) fusion(x), kind=kLoop, calls=two
  left = f32[8,4] get-tuple-element(both), index=0
  g = f32[8,4] fusion(left), kind=kLoop, calls=negate
  most = (f32[8], f32[8]) reduce(x, x, z, z), dimensions={{1}}, to_apply=larger
  right = f32[8] get-tuple-element(most), index=1
  h = f32[8] fusion(right), kind=kLoop, calls=sin
  ROOT r = (f32[8,4], f32[8]) tuple(g, h)
}}""",
    "a sort between fusions": f"""
// REASON f -> s: sort
// REASON s -> g: sort
{_SIN}
less {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT lt = pred[] compare(a, b), direction=LT
}}
ENTRY main {{
  x = f32[8] parameter(0)
  f = f32[8] fusion(x), kind=kLoop, calls=sin
  s = f32[8] sort(f), dimensions={{0}}, to_apply=less
  ROOT g = f32[8] fusion(s), kind=kLoop, calls=sin
}}""",
    "a kernel of Fuselane's, a copy, another layout": f"""
// REASON f -> k: fuselane-kernel
// REASON k -> c: copy
// REASON t -> main: exit
// REASON m -> t: layout
{_SIN}
ENTRY main {{
  x = f32[8] parameter(0)
  m = f32[8,4]{{1,0}} parameter(1)
  f = f32[8] fusion(x), kind=kLoop, calls=sin
  k = f32[8] custom-call(f), custom_call_target="fuselane_kernel"
  c = f32[8] copy(k)
  t = f32[8,4]{{0,1}} copy(m)
  ROOT r = (f32[8], f32[8,4]{{0,1}}) tuple(c, t)
}}""",
    "devices": f"""
// REASON f -> all: collective
{_SIN}
{_ADD}
ENTRY main {{
  x = f32[8] parameter(0)
  f = f32[8] fusion(x), kind=kLoop, calls=sin
  ROOT all = f32[8] all-reduce(f), replica_groups={{}}, to_apply=add
}}""",
    "random numbers": """
// REASON bits -> f: random-numbers
use { a = u32[8] parameter(0)  ROOT cv = f32[8] convert(a) }
ENTRY main {
  state = u64[2] parameter(0)
  made = (u64[2], u32[8]) rng-bit-generator(state), algorithm=rng_three_fry
  bits = u32[8] get-tuple-element(made), index=1
  ROOT f = f32[8] fusion(bits), kind=kLoop, calls=use
}""".replace("bits -> f", "made -> f"),
    "a loop": """
// REASON x -> w: loop-control
// REASON up -> up: loop-control
// REASON sin -> sin: loop-control
// REASON test -> w: loop-control
// REASON w -> end: loop-control
body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  up = s32[] add(i, one)
  v = f32[8] get-tuple-element(p), index=1
  sin = f32[8] sine(v)
  ROOT r = (s32[], f32[8]) tuple(up, sin)
}
condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT test = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, x)
  w = (s32[], f32[8]) while(init), condition=condition, body=body
  y = f32[8] get-tuple-element(w), index=1
  ROOT end = f32[8] cosine(y)
}""",
    "a branch": """
// REASON f -> n: conditional
// REASON n -> c: conditional
// REASON c -> end: conditional
yes { a = f32[8] parameter(0)  ROOT n = f32[8] negate(a) }
no { a = f32[8] parameter(0)  ROOT b = f32[8] abs(a) }
ENTRY main {
  p = pred[] parameter(0)
  x = f32[8] parameter(1)
  f = f32[8] sine(x)
  c = f32[8] conditional(p, f, f), true_computation=yes, false_computation=no
  ROOT end = f32[8] cosine(c)
}""",
    "a division used twice": """
// REASON d -> f: expensive-duplication
// REASON d -> g: expensive-duplication
div { a = f32[8] parameter(0)  b = f32[8] parameter(1)  ROOT q = f32[8] divide(a, b) }
mul { a = f32[8] parameter(0)  b = f32[8] parameter(1)  ROOT q = f32[8] multiply(a, b) }
ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  d = f32[8] fusion(x, y), kind=kLoop, calls=div
  f = f32[8] fusion(d, x), kind=kLoop, calls=mul
  g = f32[8] fusion(d, y), kind=kLoop, calls=mul
  ROOT r = (f32[8], f32[8]) tuple(f, g)
}""",
    "each sum read many times": f"""
// REASON s -> f: reduction-reuse
{_SUM}
minus {{
  a = f32[8,4] parameter(0)
  m = f32[8] parameter(1)
  b = f32[8,4] broadcast(m), dimensions={{0}}
  ROOT dd = f32[8,4] subtract(a, b)
}}
ENTRY main {{
  x = f32[8,4] parameter(0)
  s = f32[8] fusion(x), kind=kLoop, calls=sum
  ROOT f = f32[8,4] fusion(x, s), kind=kLoop, calls=minus
}}""",
    "each exponential read many times": """
// REASON e -> f: operand-reuse
exp { a = f32[8] parameter(0)  ROOT ex = f32[8] exponential(a) }
spread {
  a = f32[8,4] parameter(0)
  m = f32[8] parameter(1)
  b = f32[8,4] broadcast(m), dimensions={0}
  ROOT dd = f32[8,4] multiply(a, b)
}
ENTRY main {
  x = f32[8,4] parameter(0)
  y = f32[8] parameter(1)
  e = f32[8] fusion(y), kind=kLoop, calls=exp
  ROOT f = f32[8,4] fusion(x, e), kind=kLoop, calls=spread
}""",
    "a stack read at two places": """
// REASON s -> f: code-duplication
stack {
  a = f32[1] parameter(0)
  b = f32[1] parameter(1)
  ROOT c = f32[2] concatenate(a, b), dimensions={0}
}
rows {
  a = f32[2] parameter(0)
  l = f32[1] slice(a), slice={[0:1]}
  r = f32[1] slice(a), slice={[1:2]}
  ROOT d = f32[1] add(l, r)
}
ENTRY main {
  x = f32[1] parameter(0)
  y = f32[1] parameter(1)
  s = f32[2] fusion(x, y), kind=kLoop, calls=stack
  ROOT f = f32[1] fusion(s), kind=kLoop, calls=rows
}""",
    "a window": f"""
// REASON w -> f: not-fusible
{_ADD}
sin {{ a = f32[7] parameter(0)  ROOT sined = f32[7] sine(a) }}
ENTRY main {{
  x = f32[8] parameter(0)
  z = f32[] constant(0)
  w = f32[7] reduce-window(x, z), window={{size=2}}, to_apply=add
  ROOT f = f32[7] fusion(w), kind=kLoop, calls=sin
}}""",
    "a sixth reduction": f"""
// REASON s -> f: budget
{_ADD}
sum {{
  a = f32[8,4] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[4] reduce(a, z), dimensions={{0}}, to_apply=add
}}
six {{
  y = f32[8,4] parameter(0)
  t = f32[4] parameter(1)
  o = f32[] constant(0)
  one = f32[4] reduce(y, o), dimensions={{0}}, to_apply=add
  two = f32[4] reduce(y, o), dimensions={{0}}, to_apply=add
  three = f32[4] reduce(y, o), dimensions={{0}}, to_apply=add
  four = f32[4] reduce(y, o), dimensions={{0}}, to_apply=add
  five = f32[4] reduce(y, o), dimensions={{0}}, to_apply=add
  six = f32[4] reduce(y, o), dimensions={{0}}, to_apply=add
  b = f32[4] add(one, two)
  c = f32[4] add(three, four)
  d = f32[4] add(five, six)
  e = f32[4] add(b, c)
  g = f32[4] add(d, e)
  ROOT h = f32[4] add(g, t)
}}
ENTRY main {{
  x = f32[8,4] parameter(0)
  s = f32[4] fusion(x), kind=kLoop, calls=sum
  ROOT f = f32[4] fusion(x, s), kind=kLoop, calls=six
}}""",
    "a slice of what is updated": """
// REASON row -> f: in-place
take {
  a = f32[8] parameter(0)
  ROOT s = f32[2] slice(a), slice={[4:6]}
}
put {
  a = f32[8] parameter(0)
  b = f32[2] parameter(1)
  at = s32[] parameter(2)
  n = f32[2] negate(b)
  ROOT u = f32[8] dynamic-update-slice(a, n, at)
}
ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  i = s32[] parameter(2)
  row = f32[2] fusion(x), kind=kLoop, calls=take
  ROOT f = f32[8] fusion(x, row, i), kind=kLoop, calls=put
}""",
    "an infeed": f"""
// REASON fed -> f: side-effect
{_SIN}
ENTRY main {{
  t = token[] after-all()
  fed = ((f32[8]), token[]) infeed(t)
  both = (f32[8]) get-tuple-element(fed), index=0
  x = f32[8] get-tuple-element(both), index=0
  ROOT f = f32[8] fusion(x), kind=kLoop, calls=sin
}}""",
    "a table": """
// REASON table -> f: constant
mul { a = f32[3] parameter(0)  b = f32[3] parameter(1)  ROOT q = f32[3] multiply(a, b) }
ENTRY main {
  x = f32[3] parameter(0)
  table = f32[3] constant({1, 2, 3})
  ROOT f = f32[3] fusion(x, table), kind=kLoop, calls=mul
}""",
}


_SHARED: Final = """
// REASON s -> f: duplication
// REASON s -> q: sort
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT lt = pred[] compare(a, b), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  s = f32[8] add(x, y)
  q = f32[8] sort(s), dimensions={0}, to_apply=less
  f = f32[8] multiply(s, q)
  ROOT r = (f32[8], f32[8]) tuple(f, q)
}"""


def expected(text: str) -> dict[tuple[str, str], str]:
    return {(producer, consumer): code for producer, consumer, code in _EXPECTED.findall(text)}


def decide(
    text: str, target: str, refusals: tuple[XlaRefusal, ...] = (), *, is_unfused: bool = False
) -> dict[tuple[str, str], BoundaryDecision]:
    """Returns the decision on each edge of a module.

    Args:
        text: The module.
        target: What it was compiled for.
        refusals: What XLA said.
        is_unfused: Whether the module looked the same before XLA fused.
    """
    source = "HloModule m, is_scheduled=true\n" + _EXPECTED.sub("", text)
    stages = [("before", source), ("fusion", source.replace("m,", "n,"))] if is_unfused else []
    captured = capture_text(source, *stages, target=target, refusals=refusals)
    return {(b.producer, b.consumer): b.decision for b in build_module(captured).boundaries}


def check(
    text: str, target: str, refusals: tuple[XlaRefusal, ...] = (), *, is_unfused: bool = False
) -> None:
    found = decide(text, target, refusals, is_unfused=is_unfused)
    assert expected(text)
    for pair, code in expected(text).items():
        assert pair in found, f"{pair} is not among {sorted(found)}"
        assert found[pair].reason.code == code, found[pair].detail
        assert found[pair].detail.endswith(".")
    assert BoundaryReason.UNKNOWN not in {decision.reason for decision in found.values()}


@pytest.mark.parametrize("name", CPU)
def test_reasons_on_a_cpu(name: str) -> None:
    check(CPU[name], "cpu")


def test_what_another_kernel_needs_anyway_is_not_computed_twice() -> None:
    check(_SHARED, "cpu", is_unfused=True)
    cheap = _SHARED.replace("add(x, y)", "sine(x)")  # reads no more than it makes
    decision = decide(cheap, "cpu", is_unfused=True)["s", "f"]
    assert decision.reason is not BoundaryReason.DUPLICATION


_PAIR: Final = f"""
// REASON f -> g: CODE
{_SIN}
ENTRY main {{
  x = f32[8] parameter(0)
  f = f32[8] fusion(x), kind=kLoop, calls=sin
  ROOT g = f32[8] fusion(f), kind=kLoop, calls=sin
}}"""

GPU: Final = {
    "slower": XlaRefusal(producer="f", consumer="g", us_fused=3.5, us_unfused=2.0),
    "reduction-into-reduction": XlaRefusal(
        producer="f", reason="both the producer and the consumer contain a reduce"
    ),
    "budget": XlaRefusal(producer="f", reason="shared memory usage would be over the budget"),
    "code-duplication": XlaRefusal(
        producer="f", reason="the fusion would result in an overly large code duplication"
    ),
    "loop-shapes": XlaRefusal(producer="f", reason="different loop shapes"),
}


@pytest.mark.parametrize("code", GPU)
def test_reasons_on_a_gpu_are_those_of_xla(code: str) -> None:
    check(_PAIR.replace("CODE", code), "h100", (GPU[code],))


def test_a_value_that_is_a_result_too_is_fused_into_nothing_on_a_gpu() -> None:
    text = _PAIR.replace("CODE", "multi-output").replace("ROOT g", "g")
    text = text.replace("calls=sin\n}", "calls=sin\n  ROOT r = (f32[8], f32[8]) tuple(f, g)\n}")
    said = (XlaRefusal(producer="f", reason="the consumer is not fusible"),)
    check(text, "h100", said)
    alone = text.replace("tuple(f, g)", "tuple(g, g)")
    assert decide(alone, "h100", said)["f", "g"].reason is BoundaryReason.NOT_FUSIBLE


def test_products_and_kernels_of_several_results_on_a_gpu() -> None:
    check(
        """
// REASON both -> product: library-call
// REASON both -> f: multi-output
two {
  a = f32[8] parameter(0)
  sined = f32[8] sine(a)
  cosined = f32[8] cosine(a)
  ROOT pair = (f32[8], f32[8]) tuple(sined, cosined)
}
neg { a = f32[8] parameter(0)  ROOT negated = f32[8] negate(a) }
gemm {
  a = f32[8] parameter(0)
  b = f32[8,8] parameter(1)
  ROOT d = f32[8] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
}
ENTRY main {
  x = f32[8] parameter(0)
  m = f32[8,8] parameter(1)
  both = (f32[8], f32[8]) fusion(x), kind=kLoop, calls=two
  first = f32[8] get-tuple-element(both), index=0
  second = f32[8] get-tuple-element(both), index=1
  product = f32[8] fusion(first, m), kind=kCustom, calls=gemm,
      backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  f = f32[8] fusion(second), kind=kLoop, calls=neg
  ROOT r = (f32[8], f32[8]) tuple(product, f)
}""",
        "h100",
    )


def test_a_stack_with_several_users_on_a_gpu() -> None:
    text = """
// REASON s -> f: concatenate-users
// REASON s -> g: concatenate-users
stack {
  a = f32[1] parameter(0)
  b = f32[1] parameter(1)
  ROOT c = f32[2] concatenate(a, b), dimensions={0}
}
sin { a = f32[2] parameter(0)  ROOT sined = f32[2] sine(a) }
ENTRY main {
  x = f32[1] parameter(0)
  y = f32[1] parameter(1)
  s = f32[2] fusion(x, y), kind=kInput, calls=stack
  f = f32[2] fusion(s), kind=kLoop, calls=sin
  g = f32[2] fusion(s), kind=kLoop, calls=sin
  ROOT r = (f32[2], f32[2]) tuple(f, g)
}"""
    priced = tuple(
        XlaRefusal(producer="s", consumer=name, us_fused=3.0, us_unfused=2.0) for name in "fg"
    )
    check(text, "rtx2080ti", priced)
    alone = text.replace("g = f32[2] fusion(s)", "g = f32[2] fusion(f)")
    assert decide(alone, "rtx2080ti", priced)["s", "f"].reason is BoundaryReason.SLOWER


_CONDITIONAL: Final = "conditional(p, f, f), true_computation=yes, false_computation=no"

JUST_NOT: Final = {
    "entry": (
        CPU["edges of the program"],
        "x = f32[8] parameter(0)",
        "x = f32[8] iota(), iota_dimension=0",
    ),
    "exit": (
        CPU["edges of the program"],
        "ROOT f = f32[8] fusion(x), kind=kLoop, calls=sin",
        "f = f32[8] fusion(x), kind=kLoop, calls=sin\n  ROOT g = f32[8] negate(f)",
    ),
    "loop-control": (
        CPU["a loop"],
        "while(init), condition=condition, body=body",
        "call(init), to_apply=body",
    ),
    "conditional": (CPU["a branch"], _CONDITIONAL, "call(f), to_apply=yes"),
    "library-call": (
        CPU["a library, a sort and a call"],
        "dot(f, m), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        "add(f, f)",
    ),
    "custom-call": (CPU["a library, a sort and a call"], '"mine"', '"lapack_mine"'),
    "random-numbers": (
        CPU["random numbers"],
        "rng-bit-generator(state), algorithm=rng_three_fry",
        'custom-call(state), custom_call_target="three_trees"',
    ),
    "collective": (
        CPU["devices"],
        "all-reduce(f), replica_groups={}, to_apply=add",
        'custom-call(f), custom_call_target="all-reduce"',
    ),
    "side-effect": (CPU["an infeed"], "infeed(t)", 'custom-call(t), custom_call_target="infeed"'),
    "sort": (CPU["a sort between fusions"], "sort(f), dimensions={0}, to_apply=less", "sine(f)"),
    "expensive-duplication": (
        CPU["a division used twice"],
        "g = f32[8] fusion(d, y)",
        "g = f32[8] fusion(x, y)",
    ),
    "code-duplication": (
        CPU["a stack read at two places"],
        "r = f32[1] slice(a), slice={[1:2]}",
        "r = f32[1] negate(l)",
    ),
    "reduction-reuse": (
        CPU["each sum read many times"],
        "f32[8] reduce(a, z), dimensions={1}, to_apply=add",
        "f32[8] iota(), iota_dimension=0",
    ),
    "operand-reuse": (CPU["each exponential read many times"], "exponential(a)", "negate(a)"),
    "layout": (
        CPU["a kernel of Fuselane's, a copy, another layout"],
        "t = f32[8,4]{0,1} copy",
        "t = f32[8,4]{1,0} copy",
    ),
    "copy": (CPU["a kernel of Fuselane's, a copy, another layout"], "copy(k)", "negate(k)"),
    "fuselane-kernel": (
        CPU["a kernel of Fuselane's, a copy, another layout"],
        "fuselane_kernel",
        "fuselane_kernels",
    ),
    "in-place": (CPU["a slice of what is updated"], "fusion(x), kind", "fusion(y), kind"),
    "budget": (
        CPU["a sixth reduction"],
        "reduce(y, o), dimensions={0}, to_apply=add\n  b",
        "negate(five)\n  b",
    ),
    "not-fusible": (
        CPU["a window"],
        "reduce-window(x, z), window={size=2}, to_apply=add",
        "slice(x), slice={[0:7]}",
    ),
    "constant": (CPU["a table"], "constant({1, 2, 3})", "iota(), iota_dimension=0"),
}
"""For each reason a fixture above, and a change after which it is not the reason any more."""


def test_no_reason_is_made_up() -> None:
    """Two kernels that XLA would have fused are a defect, and called one."""
    text = _PAIR.replace("CODE", "unknown")
    assert decide(text, "cpu")["f", "g"].reason is BoundaryReason.UNKNOWN
    assert decide(text, "h100")["f", "g"].reason is BoundaryReason.UNKNOWN
    cheaper = XlaRefusal(producer="f", consumer="g", us_fused=2.0, us_unfused=3.5)
    assert decide(text, "h100", (cheaper,))["f", "g"].reason is BoundaryReason.UNKNOWN


def test_tuples_are_no_part_of_fusions() -> None:
    """Edges are looked for through tuples, so only strategies' logs hold this reason."""
    module = xla.module_of(
        """HloModule m
ENTRY main {
  x = f32[8] parameter(0)
  f = f32[8] sine(x)
  g = f32[8] negate(f)
  ROOT r = (f32[8], f32[8]) tuple(f, g)
}"""
    )
    by_name = {i.name: i for i in module.entry.instructions}
    asked = {name: CpuRules().should_fuse(Edge.of(by_name[name], 0)) for name in "rg"}
    assert asked["r"].reason is BoundaryReason.TUPLE
    assert asked["g"].reason is None


@pytest.mark.parametrize("code", JUST_NOT)
def test_reasons_end_where_they_should(code: str) -> None:
    text, old, new = JUST_NOT[code]
    assert old in text
    wanted = [pair for pair, reason in expected(text).items() if reason == code]
    before, after = decide(text, "cpu"), decide(text.replace(old, new), "cpu")
    assert wanted
    for pair in wanted:
        assert before[pair].reason.code == code
        assert pair not in after or after[pair].reason.code != code, after[pair].detail


def test_the_page_of_reasons_is_up_to_date() -> None:
    assert set(EXAMPLES) == set(BoundaryReason)
    assert (ROOT / "docs" / "reasons.md").read_text(encoding="utf-8") == reasons_page()
