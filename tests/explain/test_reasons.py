"""Reasons for boundaries: a module for each, with the answer beside it."""

from __future__ import annotations

import re
from typing import Final

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.explain.reasons_page import EXAMPLES, reasons_page
from fuselane.xla.captured import XlaRefusal
from tests.explain.modules import model_of
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
    "a table": """
// REASON table -> f: constant
mul { a = f32[3] parameter(0)  b = f32[3] parameter(1)  ROOT q = f32[3] multiply(a, b) }
ENTRY main {
  x = f32[3] parameter(0)
  table = f32[3] constant({1, 2, 3})
  ROOT f = f32[3] fusion(x, table), kind=kLoop, calls=mul
}""",
}


def expected(text: str) -> dict[tuple[str, str], str]:
    return {(producer, consumer): code for producer, consumer, code in _EXPECTED.findall(text)}


def check(text: str, target: str, refusals: tuple[XlaRefusal, ...] = ()) -> None:
    source = "HloModule m, is_scheduled=true\n" + _EXPECTED.sub("", text)
    boundaries = model_of(source, target, refusals).boundaries
    found = {(b.producer, b.consumer): b.decision for b in boundaries}
    assert expected(text)
    for pair, code in expected(text).items():
        assert pair in found, f"{pair} is not among {sorted(found)}"
        assert found[pair].reason.code == code, found[pair].detail
        assert found[pair].detail.endswith(".")
    assert BoundaryReason.UNKNOWN not in {decision.reason for decision in found.values()}


@pytest.mark.parametrize("name", CPU)
def test_reasons_on_a_cpu(name: str) -> None:
    check(CPU[name], "cpu")


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
    check(text, "h100", (XlaRefusal(producer="f", reason="the consumer is not fusible"),))


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


def test_the_page_of_reasons_is_up_to_date() -> None:
    assert set(EXAMPLES) == set(BoundaryReason)
    assert (ROOT / "docs" / "reasons.md").read_text(encoding="utf-8") == reasons_page()
