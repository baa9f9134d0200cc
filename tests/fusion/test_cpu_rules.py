"""XLA:CPU's rules: for each, an edge it refuses or accepts and one it just does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.cpu_rules import CpuRules
from fuselane.fusion.decision import FusionDecision
from fuselane.fusion.rules import Edge
from fuselane.hlo import HloModule
from tests.hlo.xla import module_of

SUM: Final = """
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
"""


@dataclass(frozen=True)
class Case:
    """A program, the edge from `p` to `c` in it, and the answer, None being yes."""

    name: str
    body: str
    reason: BoundaryReason | None
    computations: str = ""


def ask(module: HloModule, *, may_duplicate: bool = True) -> FusionDecision:
    """Returns XLA:CPU's answer for the edge from `p` to `c`."""
    by_name = {i.name: i for i in module.entry.instructions}
    edge = Edge.of(by_name["c"], by_name["c"].operands.index(by_name["p"]))
    return CpuRules().should_fuse(edge, may_duplicate=may_duplicate)


def parse(case: Case) -> HloModule:
    return module_of(f"HloModule m\n{SUM}{case.computations}\nENTRY main {{\n{case.body}\n}}")


def concatenation(num_operands: int) -> str:
    operands = ", ".join(["x"] * num_operands)
    return f"""
      x = f32[2] parameter(0)
      p = f32[{2 * num_operands}] concatenate({operands}), dimensions={{0}}
      ROOT c = f32[{2 * num_operands}] negate(p)
    """


def rows(extent: int) -> str:
    return f"""
      x = f32[4,{extent - 1}] parameter(0)
      y = f32[4,1] parameter(1)
      p = f32[4,{extent}] concatenate(x, y), dimensions={{1}}
      ROOT c = f32[4,{extent}] negate(p)
    """


def reductions(count: int) -> Case:
    """A fusion of some reductions that has another one as an operand."""
    sums = "\n".join(
        f"r{i} = f32[] reduce(x, z), dimensions={{0}}, to_apply=sum" for i in range(count)
    )
    total = "\n".join(f"t{i + 1} = f32[] add(t{i}, r{i})" for i in range(count))
    fused = f"""
    fused {{
      t0 = f32[] parameter(0)
      x = f32[8] parameter(1)
      z = f32[] constant(0)
      {sums}
      {total}
      ROOT out = f32[] negate(t{count})
    }}
    """
    body = """
      x = f32[8] parameter(0)
      z = f32[] constant(0)
      p = f32[] reduce(x, z), dimensions={0}, to_apply=sum
      ROOT c = f32[] fusion(p, x), kind=kLoop, calls=fused
    """
    reason = BoundaryReason.BUDGET if count > CpuRules().max_reduces else None
    return Case(f"{count} reductions", body, reason, fused)


def shifted(count: int) -> Case:
    """A fusion that asks for its first operand with `count` different indices."""
    slices = "\n".join(f"cut{i} = f32[4] slice(t), slice={{[{i}:{i + 4}]}}" for i in range(count))
    total = "\n".join(f"a{i} = f32[4] add(a{i - 1}, cut{i})" for i in range(1, count))
    fused = f"""
    fused {{
      t = f32[32] parameter(0)
      {slices}
      a0 = f32[4] negate(cut0)
      {total}
      ROOT out = f32[4] negate(a{count - 1})
    }}
    """
    body = """
      x = f32[32] parameter(0)
      p = f32[32] negate(x)
      ROOT c = f32[4] fusion(p), kind=kLoop, calls=fused
    """
    too_many = count > CpuRules().max_duplication
    return Case(
        f"{count} slices", body, BoundaryReason.CODE_DUPLICATION if too_many else None, fused
    )


def vector_dot(size: int) -> Case:
    body = f"""
      x = f32[16,{size}] parameter(0)
      v = f32[{size}] parameter(1)
      p = f32[16,{size}] negate(x)
      ROOT c = f32[16] dot(p, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    """
    is_small = size * 4 < CpuRules().max_vector_bytes
    return Case(f"vector of {size}", body, None if is_small else BoundaryReason.LIBRARY_CALL)


CASES: Final = (
    Case("plain", "x = f32[8] parameter(0) p = f32[8] negate(x) ROOT c = f32[8] abs(p)", None),
    Case(
        "parameter",
        "p = f32[8] parameter(0) ROOT c = f32[8] abs(p)",
        BoundaryReason.ENTRY,
    ),
    Case(
        "sort",
        """x = f32[8] parameter(0) p = f32[8] sort(x), dimensions={0}, to_apply=less
        ROOT c = f32[8] abs(p)""",
        BoundaryReason.SORT,
        "less { a = f32[] parameter(0) b = f32[] parameter(1)"
        " ROOT s = pred[] compare(a, b), direction=LT }",
    ),
    Case(
        "large constant",
        "p = f32[2] constant({1, 2}) ROOT c = f32[2] abs(p)",
        BoundaryReason.CONSTANT,
    ),
    Case(
        "scalar constant into no fusion",
        "p = f32[] constant(1) ROOT c = f32[2] broadcast(p), dimensions={}",
        BoundaryReason.CONSTANT,
    ),
    Case(
        "scalar constant into a fusion",
        "p = f32[] constant(1) ROOT c = f32[2] fusion(p), kind=kLoop, calls=fused",
        None,
        "fused { q = f32[] parameter(0) ROOT b = f32[2] broadcast(q), dimensions={} }",
    ),
    Case("8 operands", concatenation(8), None),
    Case("9 operands", concatenation(9), BoundaryReason.NOT_FUSIBLE),
    Case("rows of 127", rows(127), None),
    Case("rows of 128", rows(128), BoundaryReason.NOT_FUSIBLE),
    Case(
        "expensive and reused",
        """x = f32[8] parameter(0) p = f32[8] exponential(x)
        ROOT c = f32[8,8] broadcast(p), dimensions={0}""",
        BoundaryReason.OPERAND_REUSE,
    ),
    Case(
        "cheap and reused",
        """x = f32[8] parameter(0) p = f32[8] sine(x)
        ROOT c = f32[8,8] broadcast(p), dimensions={0}""",
        None,
    ),
    Case(
        "reduction and reused",
        """x = f32[8] parameter(0) z = f32[] constant(0)
        p = f32[] reduce(x, z), dimensions={0}, to_apply=sum
        ROOT c = f32[8] broadcast(p), dimensions={}""",
        BoundaryReason.REDUCTION_REUSE,
    ),
    Case(
        "expensive with two users",
        """x = f32[8] parameter(0) p = f32[8] exponential(x) c = f32[8] abs(p)
        d = f32[8] negate(p) ROOT t = (f32[8], f32[8]) tuple(c, d)""",
        BoundaryReason.EXPENSIVE_DUPLICATION,
    ),
    Case(
        "cheap with two users",
        """x = f32[8] parameter(0) p = f32[8] sine(x) c = f32[8] abs(p)
        d = f32[8] negate(p) ROOT t = (f32[8], f32[8]) tuple(c, d)""",
        None,
    ),
    Case(
        "the buffer is read otherwise",
        """x = f32[8] parameter(0) k = s32[] parameter(1) p = f32[8] negate(x)
        ROOT c = f32[8] dynamic-update-slice(p, p, k)""",
        BoundaryReason.IN_PLACE,
    ),
    Case(
        "slice of what is updated",
        """x = f32[8] parameter(0) k = s32[] constant(2) p = f32[4] slice(x), slice={[2:6]}
        ROOT c = f32[8] dynamic-update-slice(x, p, k)""",
        None,
    ),
    Case(
        "slice beside what is updated",
        """x = f32[8] parameter(0) k = s32[] constant(2) p = f32[4] slice(x), slice={[1:5]}
        ROOT c = f32[8] dynamic-update-slice(x, p, k)""",
        BoundaryReason.IN_PLACE,
    ),
    Case(
        "sum into a product with a vector",
        """a = f32[8,8] parameter(0) v = f32[8] parameter(1) w = f32[8] parameter(2)
        p = f32[8] dot(a, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT c = f32[8] add(p, w)""",
        None,
    ),
    Case(
        "sum that ends a product with a vector",
        """a = f32[8,8] parameter(0) v = f32[8] parameter(1) w = f32[8] parameter(2)
        d = f32[8] dot(a, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        p = f32[8] add(d, w) ROOT c = f32[8] negate(p)""",
        BoundaryReason.LIBRARY_CALL,
    ),
    Case(
        "sum of a product of matrices",
        """a = f32[8,8] parameter(0) w = f32[8,8] parameter(1)
        p = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT c = f32[8,8] add(p, w)""",
        BoundaryReason.LIBRARY_CALL,
    ),
    Case(
        "must run before another",
        """x = f32[8] parameter(0) p = f32[8] abs(x) c = f32[8] negate(p)
        d = f32[8] negate(x), control-predecessors={p} ROOT t = (f32[8], f32[8]) tuple(c, d)""",
        BoundaryReason.SIDE_EFFECT,
    ),
    Case(
        "another must run before its user",
        """x = f32[8] parameter(0) d = f32[8] negate(x) p = f32[8] abs(x)
        c = f32[8] negate(p), control-predecessors={d} ROOT t = (f32[8], f32[8]) tuple(c, d)""",
        None,
    ),
    reductions(5),
    reductions(6),
    shifted(15),
    shifted(16),
    vector_dot(4095),
    vector_dot(4096),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    """The answer has the expected reason, and a sentence of its own."""
    decision = ask(parse(case))
    assert decision.reason is case.reason, decision
    assert decision.can_fuse is (case.reason is None)
    assert decision.detail.endswith(".")
    assert "?" not in decision.detail


def test_numbers_are_given() -> None:
    """A limit and what was compared with it go along."""
    decision = ask(parse(shifted(16)))
    assert decision.numbers == {"emissions": 16, "limit": 15}
    assert decision.boundary().numbers == {"emissions": 16, "limit": 15}


def test_limits_are_fields() -> None:
    """Another value of a rule gives another answer."""
    by_name = {i.name: i for i in parse(reductions(6)).entry.instructions}
    edge = Edge.of(by_name["c"], 0)
    assert not CpuRules().should_fuse(edge).can_fuse
    assert CpuRules(max_reduces=6).should_fuse(edge).can_fuse


def test_without_duplication_one_user_is_enough() -> None:
    """A pass that repeats no work fuses only what has a single user."""
    case = next(case for case in CASES if case.name == "cheap with two users")
    decision = ask(parse(case), may_duplicate=False)
    assert decision.reason is BoundaryReason.DUPLICATION
    assert decision.numbers == {"users": 2}
