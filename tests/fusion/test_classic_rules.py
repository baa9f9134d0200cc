"""XLA:GPU's rules before priority fusion: for each, an edge it refuses and one it just does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision
from fuselane.fusion.gpu.classic import ClassicRules
from fuselane.fusion.rules import Edge
from tests.fusion.outline import fuse, module_with, outline

SUM: Final = "sum { i = f32[] parameter(0) j = f32[] parameter(1) ROOT k = f32[] add(i, j) }"


@dataclass(frozen=True)
class Case:
    """A program, the edge from `p` to `c` in it, and the answer, None being yes."""

    name: str
    body: str
    reason: BoundaryReason | None
    rules: ClassicRules = field(default_factory=ClassicRules)
    computations: str = ""
    may_duplicate: bool = True


def ask(case: Case) -> FusionDecision:
    module = module_with(case.body, SUM, case.computations)
    by_name = {i.name: i for i in module.entry.instructions}
    edge = Edge.of(by_name["c"], by_name["c"].operands.index(by_name["p"]))
    return case.rules.should_fuse(edge, may_duplicate=case.may_duplicate)


def spread(opcode: str, element_type: str = "f32") -> str:
    """A value that is read eight times."""
    return f"""x = {element_type}[8] parameter(0) p = {element_type}[8] {opcode}(x)
      ROOT c = {element_type}[8,8] broadcast(p), dimensions={{0}}"""


def reduction_into(consumer: str, extent: int) -> str:
    """Sums that single threads compute, since their number is no fraction of a warp."""
    return f"""x = f32[4,{extent}] parameter(0) z = f32[] constant(0)
      at = s32[8,1] parameter(1) p = f32[4] reduce(x, z), dimensions={{1}}, to_apply=sum
      ROOT c = {consumer}"""


def two_users(opcode: str) -> str:
    return f"""x = f32[8] parameter(0) p = f32[8] {opcode}(x) c = f32[8] abs(p)
      d = f32[8] negate(p) ROOT t = (f32[8], f32[8]) tuple(c, d)"""


def many_operands(count: int) -> str:
    """A concatenation of so many values, one of them a choice between two others."""
    others = [f"o{i} = f32[2] parameter({i + 3})" for i in range(count - 1)]
    operands = ", ".join(["p", *(f"o{i}" for i in range(count - 1))])
    return f"""w = pred[2] parameter(0) x = f32[2] parameter(1) y = f32[2] parameter(2)
      {" ".join(others)} p = f32[2] select(w, x, y)
      ROOT c = f32[{2 * count}] concatenate({operands}), dimensions={{0}}"""


FUSED: Final = "fused { i = f32[8] parameter(0) ROOT j = f32[8] abs(i) }"
SCALED: Final = """scaled { i = f32[8] parameter(0) j = f32[] parameter(1)
  k = f32[8] broadcast(j), dimensions={} ROOT l = f32[8] multiply(i, k) }"""
TWICE: Final = """twice { i = f32[8] parameter(0) a = f32[4] slice(i), slice={[0:4]}
  b = f32[4] slice(i), slice={[4:8]} ROOT s = f32[4] add(a, b) }"""
GATHER: Final = """f32[8] gather(p, at), offset_dims={}, collapsed_slice_dims={0},
  start_index_map={0}, index_vector_dim=1, slice_sizes={1}"""
TO_ROWS: Final = """x = f32[64,64]{1,0} parameter(0) z = f32[] constant(0)
  p = f32[64,64]{1,0} transpose(x), dimensions={1,0}
  ROOT c = f32[64] reduce(p, z), dimensions={1}, to_apply=sum"""
NESTED: Final = """x = f32[5,7,9] parameter(0) z = f32[] constant(0)
  p = f32[5,7] reduce(x, z), dimensions={2}, to_apply=sum
  ROOT c = f32[5] reduce(p, z), dimensions={1}, to_apply=sum"""
TWO_PLACES: Final = """x = f32[4] parameter(0) z = f32[] constant(0)
  p = f32[8] pad(x, z), padding=2_2 ROOT c = f32[4] fusion(p), kind=kLoop, calls=twice"""
SCALAR: Final = """x = f32[8] parameter(0) p = f32[] constant(2)
  ROOT c = f32[8] fusion(x, p), kind=kLoop, calls=scaled"""
ARRAY: Final = """p = f32[8] constant({1,2,3,4,5,6,7,8})
  ROOT c = f32[8] fusion(p), kind=kLoop, calls=fused"""
OLD: Final = ClassicRules(nested_loops=False)
LATE: Final = ClassicRules(epilogues=True)
LONE_BITCAST: Final = "x = f32[8] parameter(0) p = f32[8] sine(x) ROOT c = f32[8,1] bitcast(p)"
SCATTER: Final = """x = f32[8] parameter(0) at = s32[2,1] parameter(1) v = f32[2] parameter(2)
  p = f32[8] abs(x) ROOT c = f32[8] scatter(p, at, v), update_window_dims={},
  inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum"""

CASES: Final = [
    Case("chain", "x = f32[8] parameter(0) p = f32[8] tanh(x) ROOT c = f32[8] abs(p)", None),
    Case(
        "producer-is-fusion",
        """x = f32[8] parameter(0) p = f32[8] fusion(x), kind=kLoop, calls=fused
        ROOT c = f32[8] negate(p)""",
        BoundaryReason.NOT_FUSIBLE,
        computations=FUSED,
    ),
    Case("reused-logarithm", spread("log"), BoundaryReason.OPERAND_REUSE),
    Case("reused-exponential", spread("exponential"), None),
    Case(
        "reused-exponential-before-2021-09",
        spread("exponential"),
        BoundaryReason.OPERAND_REUSE,
        ClassicRules(cheap_exponentials=False),
    ),
    Case("reused-exponential-of-bf16", spread("exponential", "bf16"), BoundaryReason.OPERAND_REUSE),
    Case("reused-root", spread("sqrt"), None),
    Case(
        "reused-root-before-2022-10",
        spread("sqrt"),
        BoundaryReason.OPERAND_REUSE,
        ClassicRules(cheap_roots=False),
    ),
    Case("transposed-into-rows", TO_ROWS, BoundaryReason.LAYOUT),
    Case("transposed-on-cpu", TO_ROWS, None, ClassicRules(tiled_emitters=False)),
    Case("not-transposed", TO_ROWS.replace("transpose(x), dimensions={1,0}", "negate(x)"), None),
    Case("reduction-of-warps", reduction_into("f32[4] negate(p)", 64), BoundaryReason.NOT_FUSIBLE),
    Case("reduction-of-threads", reduction_into("f32[4] negate(p)", 9), None),
    Case(
        "reduction-on-cpu",
        reduction_into("f32[4] negate(p)", 64),
        None,
        ClassicRules(tiled_emitters=False),
    ),
    Case(
        "no-loop-ends-in-a-product",
        """x = f32[8,8] parameter(0) p = f32[8,8] abs(x)
        ROOT c = f32[8,8] dot(p, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
        BoundaryReason.LIBRARY_CALL,
    ),
    Case("a-bitcast-ends-a-kernel", LONE_BITCAST, None),
    Case(
        "no-bitcast-ends-a-kernel",
        LONE_BITCAST,
        BoundaryReason.NOT_FUSIBLE,
        ClassicRules(lone_bitcasts=False),
    ),
    Case("epilogue", reduction_into("f32[4] negate(p)", 64), None, LATE),
    Case(
        "epilogue-of-several-operands",
        reduction_into("f32[4] add(p, p)", 64),
        BoundaryReason.NOT_FUSIBLE,
        LATE,
    ),
    Case(
        "epilogue-of-a-reduction-by-many-blocks",
        """x = f32[65536,64] parameter(0) z = f32[] constant(0)
        p = f32[64] reduce(x, z), dimensions={0}, to_apply=sum ROOT c = f32[64] negate(p)""",
        BoundaryReason.REDUCTION_REUSE,
        LATE,
    ),
    Case(
        "epilogue-of-one-of-two-users",
        reduction_into("(f32[4], f32[4]) tuple(d, e)", 64).replace(
            "ROOT c", "c = f32[4] negate(p) d = f32[4] abs(c) e = f32[4] abs(p) ROOT t"
        ),
        BoundaryReason.DUPLICATION,
        LATE,
    ),
    Case("what-a-scatter-changes", SCATTER, None),
    Case("what-a-scatter-changes-since-2024", SCATTER, BoundaryReason.IN_PLACE, LATE),
    Case("scalar-constant", SCALAR, None, computations=SCALED),
    Case("array-constant", ARRAY, BoundaryReason.CONSTANT, computations=FUSED),
    Case(
        "constant-alone",
        "p = f32[] constant(2) ROOT c = f32[8] broadcast(p), dimensions={}",
        BoundaryReason.CONSTANT,
    ),
    Case("eleven-steps-gathered", reduction_into(GATHER, 11), BoundaryReason.REDUCTION_REUSE),
    Case("ten-steps-gathered", reduction_into(GATHER, 10), None),
    Case("nested-loops-before-2022-09", NESTED, BoundaryReason.REDUCTION_REUSE, OLD),
    Case("nested-loops", NESTED, None),
    Case("a-loop-that-is-not-nested", reduction_into("f32[4] negate(p)", 9), None, OLD),
    Case(
        "result",
        "x = f32[8] parameter(0) ROOT p = f32[8] abs(x) c = f32[8] negate(p)",
        BoundaryReason.EXIT,
    ),
    Case("twice", two_users("sine"), None),
    Case("never-twice", two_users("sine"), BoundaryReason.DUPLICATION, may_duplicate=False),
    Case("expensive-twice", two_users("tanh"), BoundaryReason.EXPENSIVE_DUPLICATION),
    Case("many-operands", many_operands(60), None),
    Case("too-many-operands", many_operands(61), BoundaryReason.BUDGET),
    Case("too-many-before-2024-04", many_operands(61), None, ClassicRules(max_operands=96)),
    Case("two-consumers", TWO_PLACES, BoundaryReason.CODE_DUPLICATION, computations=TWICE),
    Case("two-allowed", TWO_PLACES, None, ClassicRules(max_consumers=2), computations=TWICE),
    Case(
        "must-run-before",
        """x = f32[8] parameter(0) p = f32[8] abs(x) c = f32[8] negate(p)
        d = f32[8] negate(x), control-predecessors={p} ROOT t = (f32[8], f32[8]) tuple(c, d)""",
        BoundaryReason.SIDE_EFFECT,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule(case: Case) -> None:
    """The edge from `p` to `c` is fused, or refused for the reason given."""
    decision = ask(case)
    assert decision.reason is case.reason
    assert decision.detail.endswith(".")


def test_kernels_end_in_reductions() -> None:
    """Golden: a mean's division stays out of the reduction, what it reads does not."""
    body = """x = f32[64,64] parameter(0) z = f32[] constant(0) n = f32[] constant(64)
      a = f32[64,64] exponential(x) r = f32[64] reduce(a, z), dimensions={1}, to_apply=sum
      b = f32[64] broadcast(n), dimensions={} ROOT m = f32[64] divide(r, b)"""
    module = module_with(body, SUM)
    fuse(module, "gpu-instruction-fusion")
    assert outline(module) == [
        "kInput[constant exponential reduce] -> reduce of x",
        "kLoop[broadcast constant divide] -> divide of fusion",
    ]


def test_work_is_repeated_in_the_second_run_only() -> None:
    """Golden: first what nobody else needs is fused, then what is cheap enough to repeat."""
    body = """x = f32[8] parameter(0) a = f32[8] sine(x) b = f32[8] abs(a) c = f32[8] floor(b)
      d = f32[8] negate(a) ROOT t = (f32[8], f32[8]) tuple(c, d)"""
    module = module_with(body)
    fuse(module, "gpu-instruction-fusion{may-duplicate=false}")
    assert sorted(outline(module)) == [
        "kLoop[abs floor] -> floor of sine",
        "negate of sine",
        "sine of x",
    ]
    fuse(module, "gpu-instruction-fusion")
    assert sorted(outline(module)) == [
        "kLoop[abs floor sine] -> floor of x",
        "kLoop[negate sine] -> negate of x",
    ]
