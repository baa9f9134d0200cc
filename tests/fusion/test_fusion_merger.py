"""Fusion merger: both forms' rules, each triggered and just not, and what becomes of a module."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.fusion_merger import FusionMerger
from fuselane.fusion.gpu.classic import ClassicRules
from fuselane.hlo import HloModule
from tests.fusion.outline import fuse, fused, module_with, outline

SUM: Final = "sum { si = f32[] parameter(0) sj = f32[] parameter(1) ROOT sk = f32[] add(si, sj) }"


def shared(opcode: str, num_users: int, num_operands: int = 1, size: int = 1024) -> HloModule:
    """A fusion of so many operands, the first of which goes through `opcode`, and its users."""
    shape = f"f32[{size}]"
    inner = "".join(f" i{n} = {shape} parameter({n})" for n in range(num_operands))
    sums = "".join(f" a{n} = {shape} add(a{n - 1}, i{n})" for n in range(1, num_operands))
    made = f"""made {{ {inner} a0 = {shape} {opcode}(i0) {sums}
      ROOT out = {shape} abs(a{num_operands - 1}) }}"""
    outer = "".join(f" x{n} = {shape} parameter({n})" for n in range(num_operands))
    operands = ", ".join(f"x{n}" for n in range(num_operands))
    users = "".join(f" use{n} = {shape} negate(p)" for n in range(num_users))
    results = ", ".join(f"use{n}" for n in range(num_users))
    body = f"""{outer} p = {shape} fusion({operands}), kind=kLoop, calls=made {users}
      ROOT t = ({", ".join([shape] * num_users)}) tuple({results})"""
    return module_with(body, made)


def ask(module: HloModule, merger: FusionMerger) -> BoundaryReason | None:
    """Returns why the fusion `p` was merged into no user, None if it was."""
    steps = [step for step in fuse(module, merger) if step.producer == "p"]
    if any(step.fusion for step in steps):
        assert all(step.decision.can_fuse for step in steps)
        return None
    (refusal,) = [step.decision for step in steps]
    assert refusal.detail.endswith(".")
    assert refusal.numbers or refusal.reason is not BoundaryReason.SLOWER
    return refusal.reason


@pytest.mark.parametrize(
    ("num_operands", "num_users", "reason"),
    [
        (1, 5, None),
        (2, 3, None),
        (2, 4, BoundaryReason.SLOWER),
        (3, 2, None),
        (3, 3, BoundaryReason.SLOWER),
    ],
)
def test_bytes(num_operands: int, num_users: int, reason: BoundaryReason | None) -> None:
    """What users would read instead of the result must not be much more than that."""
    assert ask(shared("sine", num_users, num_operands), FusionMerger()) is reason


def test_the_limit_of_bytes_is_a_field() -> None:
    """8 reads instead of 7 reads and writes are 1.14 times as many."""
    assert ask(shared("sine", 4, 2), FusionMerger(max_bytes_ratio=1.15)) is None


@pytest.mark.parametrize(
    ("num_users", "max_consumers", "reason"),
    [
        (1, 1, None),
        (2, 1, BoundaryReason.EXPENSIVE_DUPLICATION),
        (3, 3, None),
        (4, 3, BoundaryReason.EXPENSIVE_DUPLICATION),
    ],
)
def test_expensive_work(num_users: int, max_consumers: int, reason: BoundaryReason | None) -> None:
    """XLA repeats it for one user only; the paper's authors tried three."""
    merger = FusionMerger(rules=ClassicRules(max_consumers=max_consumers))
    assert ask(shared("tanh", num_users), merger) is reason


@pytest.mark.parametrize(
    ("size", "reason"), [(64, BoundaryReason.EXPENSIVE_DUPLICATION), (128, None)]
)
def test_expensive_work_that_saves_much(size: int, reason: BoundaryReason | None) -> None:
    """It is repeated if that leaves less than 0.3 of more than 1024 bytes."""
    made = f"""made {{ i = f32[4] parameter(0) j = f32[4] tanh(i)
      ROOT k = f32[4,{size // 4}] broadcast(j), dimensions={{0}} }}"""
    shape = f"f32[4,{size // 4}]"
    body = f"""x = f32[4] parameter(0) p = {shape} fusion(x), kind=kLoop, calls=made
      a = {shape} abs(p) b = {shape} negate(p) ROOT t = ({shape}, {shape}) tuple(a, b)"""
    assert ask(module_with(body, made), FusionMerger()) is reason


@pytest.mark.parametrize(
    ("opcode", "reason"), [("tanh", BoundaryReason.OPERAND_REUSE), ("sine", None)]
)
def test_expensive_work_that_is_read_again_and_again(
    opcode: str, reason: BoundaryReason | None
) -> None:
    """Not even one user may compute it for each of its reads."""
    made = f"made {{ i = f32[8] parameter(0) ROOT j = f32[8] {opcode}(i) }}"
    body = """x = f32[8] parameter(0) p = f32[8] fusion(x), kind=kLoop, calls=made
      ROOT a = f32[8,8] broadcast(p), dimensions={0}"""
    assert ask(module_with(body, made), FusionMerger()) is reason


STACKED: Final = """stacked { i = f32[4] parameter(0) j = f32[4] parameter(1)
  k = f32[8] concatenate(i, j), dimensions={0} ROOT l = f32[8] abs(k) }"""
THRICE: Final = """thrice { si = f32[8] parameter(0) a = f32[4] slice(si), slice={[0:4]}
  b = f32[4] slice(si), slice={[2:6]} c = f32[4] slice(si), slice={[4:8]} d = f32[4] add(a, b)
  ROOT e = f32[4] add(d, c) }"""
STATE: Final = """x = f32[4] parameter(0) y = f32[4] parameter(1)
  p = f32[8] fusion(x, y), kind=kLoop, calls=stacked
  ROOT u = f32[4] fusion(p), kind=kLoop, calls=thrice"""


@pytest.mark.parametrize(
    ("max_consumers", "reason"), [(1, BoundaryReason.CONCATENATE_USERS), (3, None)]
)
def test_the_papers_experiment(max_consumers: int, reason: BoundaryReason | None) -> None:
    """A stacked state with three consumers is merged if three are allowed."""
    merger = FusionMerger(rules=ClassicRules(max_consumers=max_consumers))
    assert ask(module_with(STATE, STACKED, THRICE), merger) is reason
    text = f"fusion-merger{{max-consumers={max_consumers}}}"
    assert bool(fused(fuse(module_with(STATE, STACKED, THRICE), text))) == (reason is None)


def test_code_that_would_stand_too_often() -> None:
    """Fifteen times is allowed, sixteen times is not."""
    reads = "".join(f" a{n} = f32[1] slice(si), slice={{[{n}:{n + 1}]}}" for n in range(16))
    sums = "".join(f" b{n} = f32[1] add(b{n - 1}, a{n})" for n in range(1, 16))
    user = f"user {{ si = f32[16] parameter(0) {reads} b0 = f32[1] abs(a0) {sums} }}"
    user = user.replace("b15 = ", "ROOT b15 = ")
    made = "made { i = f32[16] parameter(0) ROOT j = f32[16] sine(i) }"
    body = """x = f32[16] parameter(0) p = f32[16] fusion(x), kind=kLoop, calls=made
      ROOT u = f32[1] fusion(p), kind=kLoop, calls=user"""
    module = module_with(body, made, user)
    assert ask(module, FusionMerger()) is BoundaryReason.CODE_DUPLICATION
    assert ask(module, FusionMerger(rules=ClassicRules(max_duplication=16))) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("ROOT p = f32[8] fusion(x), kind=kLoop, calls=made", BoundaryReason.EXIT),
        (
            """p = f32[8] fusion(x), kind=kLoop, calls=made
            ROOT u = f32[8,1] bitcast(p)""",
            BoundaryReason.NOT_FUSIBLE,
        ),
        (
            """p = f32[8] fusion(x), kind=kLoop, calls=made u = f32[8] abs(p)
            ROOT s = (f32[8], f32[8]) tuple(u, p)""",
            BoundaryReason.TUPLE,
        ),
        (
            """p = f32[8] fusion(x), kind=kLoop, calls=made u = f32[8] abs(p)
            d = f32[8,8] broadcast(x), dimensions={0}
            v = f32[8] dot(d, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
            ROOT s = f32[8] add(u, v)""",
            BoundaryReason.LIBRARY_CALL,
        ),
        (
            "p = f32[8] fusion(x), kind=kLoop, calls=made ROOT u = f32[8] abs(x)",
            BoundaryReason.EXIT,
        ),
        (
            """p = (f32[8], f32[8]) fusion(x), kind=kLoop, calls=two
            ROOT u = f32[8] fusion(p), kind=kLoop, calls=second""",
            BoundaryReason.MULTI_OUTPUT,
        ),
    ],
)
def test_all_users_or_none(body: str, reason: BoundaryReason) -> None:
    """One user that cannot take the fusion in keeps it from all, and so do none."""
    made = "made { i = f32[8] parameter(0) ROOT j = f32[8] sine(i) }"
    two = """two { ti = f32[8] parameter(0) tj = f32[8] sine(ti)
      ROOT tk = (f32[8], f32[8]) tuple(ti, tj) }"""
    second = """second { wi = (f32[8], f32[8]) parameter(0)
      wj = f32[8] get-tuple-element(wi), index=1 ROOT wk = f32[8] abs(wj) }"""
    module = module_with("x = f32[8] parameter(0) " + body, made, two, second)
    before = outline(module)
    assert ask(module, FusionMerger()) is reason
    assert outline(module) == before


def test_reductions_are_no_producers() -> None:
    """Only loops are merged; on CPUs, reductions are such."""
    made = """made { i = f32[8,64] parameter(0) z = f32[] constant(0)
      ROOT j = f32[8] reduce(i, z), dimensions={1}, to_apply=sum }"""
    body = """x = f32[8,64] parameter(0) p = f32[8] fusion(x), kind=KIND, calls=made
      ROOT u = f32[8] abs(p)"""
    for kind, reason in (("kInput", BoundaryReason.NOT_FUSIBLE), ("kLoop", None)):
        module = module_with(body.replace("KIND", kind), SUM, made)
        assert ask(module, FusionMerger()) is reason


@pytest.mark.parametrize(
    ("num_powers", "num_users", "reason"),
    [(30, 1, None), (30, 4, BoundaryReason.SLOWER), (1, 4, None)],
)
def test_price(num_powers: int, num_users: int, reason: BoundaryReason | None) -> None:
    """Thirty powers take longer than a launch, so are computed once only."""
    assert ask(shared_powers(num_powers, num_users), FusionMerger(priced=True)) is reason


def shared_powers(num_powers: int, num_users: int, size: int = 1024) -> HloModule:
    powers = "".join(f" a{n} = f32[{size}] power(a{n - 1}, i)" for n in range(1, num_powers + 1))
    made = f"""made {{ i = f32[{size}] parameter(0) a0 = f32[{size}] abs(i) {powers}
      ROOT out = f32[{size}] abs(a{num_powers}) }}"""
    users = "".join(f" use{n} = f32[{size}] negate(p)" for n in range(num_users))
    shapes = ", ".join([f"f32[{size}]"] * num_users)
    results = ", ".join(f"use{n}" for n in range(num_users))
    body = f"""x = f32[{size}] parameter(0) p = f32[{size}] fusion(x), kind=kLoop, calls=made
      {users} ROOT t = ({shapes}) tuple({results})"""
    return module_with(body, made)


def test_size_of_code() -> None:
    """The merged kernel has the fusion's 31 instructions, its parameter and one of its own."""
    module = shared_powers(29, 1)
    assert ask(module, FusionMerger(priced=True, rules=ClassicRules(max_code_size=32))) is (
        BoundaryReason.CODE_DUPLICATION
    )
    assert ask(module, FusionMerger(priced=True, rules=ClassicRules(max_code_size=33))) is None


@pytest.mark.parametrize(
    ("num_pads", "max_code_size", "reason"),
    [
        (10, 1 << 20, None),
        (11, 1 << 20, BoundaryReason.CODE_DUPLICATION),
        (3, 8 * 10, None),
        (3, 8 * 10 - 1, BoundaryReason.CODE_DUPLICATION),
    ],
)
def test_branches(num_pads: int, max_code_size: int, reason: BoundaryReason | None) -> None:
    """Each pad is one, and doubles the code: of three pads, what they are filled with, a sine, an
    absolute value, the parameter and the user."""
    pads, size = "", 8
    for n in range(num_pads):
        size += 1
        pads += f" z{n} = f32[] constant({n}) a{n + 1} = f32[{size}] pad(a{n}, z{n}), padding=0_1"
    made = f"""made {{ i = f32[8] parameter(0) a0 = f32[8] sine(i) {pads}
      ROOT out = f32[{size}] abs(a{num_pads}) }}"""
    body = f"""x = f32[8] parameter(0) p = f32[{size}] fusion(x), kind=kLoop, calls=made
      ROOT c = f32[{size}] negate(p)"""
    rules = ClassicRules(max_code_size=max_code_size)
    assert ask(module_with(body, made), FusionMerger(priced=True, rules=rules)) is reason


def test_only_instruction_fusion_asks_for_heavy_work() -> None:
    """Since 2022-09; before, loops in each other were never merged either."""
    made = """made { i = f32[4,11] parameter(0) z = f32[] constant(0)
      ROOT j = f32[4] reduce(i, z), dimensions={1}, to_apply=sum }"""
    body = """x = f32[4,11] parameter(0) at = s32[8,1] parameter(1)
      p = f32[4] fusion(x), kind=kLoop, calls=made
      ROOT c = f32[8] gather(p, at), offset_dims={}, collapsed_slice_dims={0},
      start_index_map={0}, index_vector_dim=1, slice_sizes={1}"""
    assert ask(module_with(body, SUM, made), FusionMerger(priced=True)) is None
    nested = body.replace("x = ", "w = f32[] constant(0) x = ").replace(
        body[body.index("ROOT") :],
        "ROOT c = f32[] reduce(p, w), dimensions={0}, to_apply=sum",
    )
    old = FusionMerger(rules=ClassicRules(nested_loops=False, tiled_emitters=False))
    assert ask(module_with(nested, SUM, made), old) is BoundaryReason.REDUCTION_REUSE


@pytest.mark.parametrize("year", [2023, 2024])
def test_models(year: int) -> None:
    """An element of few makes either slow: 2024's knows that a kernel has whole blocks of threads,
    and that a unit does a whole number of operations."""
    merger = FusionMerger(priced=True, model_year=year)
    (step,) = (s for s in fuse(shared("sine", 1, size=64), merger) if s.producer == "p")
    numbers = step.decision.numbers
    per_element = (958 + 3) / (2 * 1.98 if year == 2023 else 3) * 1e-3
    blocks = 64 * 4 / (32 * 1.98) * 1e-3
    read = 64 * 4 / (3352.32 * 2.5 * 8) * 1e-3 if year == 2023 else blocks
    assert numbers["unfused_us"] == pytest.approx(2 + per_element + read, abs=1e-3)
    assert numbers["fused_us"] == pytest.approx(1 + per_element, abs=1e-3)


@pytest.mark.parametrize(("limit", "reason"), [(0.5, BoundaryReason.LAYOUT), (1.1, None)])
def test_transposes_into_reductions(limit: float, reason: BoundaryReason | None) -> None:
    """What a reduction reads in rows must not be mostly transposed."""
    made = """made { i = f32[64,64] parameter(0) k = f32[64,64] transpose(i), dimensions={1,0}
      ROOT j = f32[64,64] sine(k) }"""
    user = """user { ui = f32[64,64] parameter(0) z = f32[] constant(0)
      ROOT uj = f32[64] reduce(ui, z), dimensions={1}, to_apply=sum }"""
    body = """x = f32[64,64] parameter(0) p = f32[64,64] fusion(x), kind=kLoop, calls=made
      ROOT u = f32[64] fusion(p), kind=kInput, calls=user"""
    merger = FusionMerger(priced=True, max_uncoalesced=limit)
    assert ask(module_with(body, SUM, made, user), merger) is reason


def test_merged_into_all_users() -> None:
    """Golden: instructions become fusions, the fusion goes, and what was repeated is shared."""
    module = module_with(
        """x = f32[8] parameter(0) y = f32[8] parameter(1)
        p = f32[8] fusion(x), kind=kLoop, calls=made u = f32[8] add(p, y)
        v = f32[8] fusion(p, x), kind=kLoop, calls=user ROOT t = (f32[8], f32[8]) tuple(u, v)""",
        "made { i = f32[8] parameter(0) ROOT j = f32[8] sine(i) }",
        """user { ui = f32[8] parameter(0) uj = f32[8] parameter(1) uk = f32[8] sine(uj)
        ROOT ul = f32[8] subtract(ui, uk) }""",
    )
    fuse(module, "fusion-merger")
    assert outline(module) == [
        "kLoop[sine sine subtract] -> subtract of x",
        "kLoop[add sine] -> add of y, x",
    ]
    fuse(module, "fusion-cse")
    assert outline(module)[0] == "kLoop[sine subtract] -> subtract of x"


def test_prices_of_what_reads_a_new_fusion() -> None:
    """A user that becomes a fusion is another operand for those that read it."""
    made = "made { i = f32[8] parameter(0) ROOT j = f32[8] sine(i) }"
    other = """other { oi = f32[8] parameter(0) oj = f32[8] parameter(1)
      ROOT ok = f32[8] subtract(oi, oj) }"""
    last = """last { li = f32[8] parameter(0) lj = f32[8] parameter(1)
      ROOT lk = f32[8] multiply(li, lj) }"""
    body = """x = f32[8] parameter(0) p = f32[8] fusion(x), kind=kLoop, calls=made
      a = f32[8] abs(p) b = f32[8] fusion(a, p), kind=kLoop, calls=other
      c = f32[8] fusion(a, b), kind=kLoop, calls=last ROOT t = (f32[8], f32[8]) tuple(c, a)"""
    module = module_with(body, made, other, last)
    assert ask(module, FusionMerger(priced=True)) is None
