"""Priority fusion: its model of time, its rules of legality, and whole modules."""

from __future__ import annotations

import dataclasses
from typing import Final

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog
from fuselane.fusion.gpu.durations import TICKS_PER_US
from fuselane.fusion.gpu.emitters import Emitter, choose_emitter
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.gpu.region import Region
from fuselane.fusion.gpu.rules import GpuRules
from fuselane.fusion.gpu.shapes import tiled_transpose, unnested_form
from fuselane.fusion.priority_fusion import PriorityFusion
from fuselane.gpu import GPUS
from fuselane.hlo import HloInstruction, HloModule, verify
from tests.hlo.xla import module_of, to_text

SUM: Final = "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"

GPU: Final = dataclasses.replace(GPUS["h200"], l2_bytes=62914560)
"""As XLA was told when the times below were taken."""


def parse(body: str) -> HloModule:
    return module_of(f"HloModule m\n{SUM}\nENTRY main {{ {body} }}")


def find(module: HloModule, name: str) -> HloInstruction:
    return next(i for i in module.entry.instructions if i.name == name)


def run(module: HloModule, **options: GpuRules) -> FusionLog:
    """Runs the pass, checks the module and returns the log."""
    log = FusionLog()
    PriorityFusion(gpu=GPU, **options).run(module, log)
    verify(module)
    to_text(module.to_bytes())
    return log


def refusal(log: FusionLog, producer: str) -> FusionDecision:
    return next(s.decision for s in log if s.producer == producer and not s.decision.can_fuse)


@pytest.mark.parametrize(
    ("body", "us"),
    [
        ("ROOT c = pred[16777216] is-finite(x)", 17.51375),
        ("ROOT c = pred[16777216] compare(x, y), direction=EQ", 31.49475),
        ("ROOT c = f16[16777216] convert(x)", 21.009),
    ],
)
def test_time_is_what_xla_writes_into_its_kernels(body: str, us: float) -> None:
    """The numbers are XLA's own for the H200, from `reification_cost` of jaxlib 0.10.2."""
    module = parse(f"x = f32[16777216] parameter(0) y = f32[16777216] parameter(1) {body}")
    time = PerformanceModel(GPU).time(find(module, "c"))
    assert time.total / TICKS_PER_US == us


@pytest.mark.parametrize(
    ("shape", "dimension", "is_taken"),
    [
        ("f32[64,32]", 1, True),
        ("f32[64,16]", 1, True),
        ("f32[64,24]", 1, False),
        ("f32[128,8]", 0, True),
        ("f32[127,7]", 0, False),
        ("f32[31,512]", 0, False),
        ("f32[32,512]", 0, True),
    ],
)
def test_reduction_emitter(shape: str, dimension: int, is_taken: bool) -> None:
    """Rows and columns that are long enough are reduced by all threads of a block."""
    kept = shape[4:-1].split(",")[1 - dimension]
    module = parse(f"""x = {shape} parameter(0) z = f32[] constant(0)
    ROOT c = f32[{kept}] reduce(x, z), dimensions={{{dimension}}}, to_apply=sum""")
    reduce = find(module, "c")
    assert (unnested_form(reduce) is not None) is is_taken
    expected = Emitter.REDUCTION if is_taken else Emitter.LOOP
    assert choose_emitter(Region(reduce)).emitter is expected


@pytest.mark.parametrize(
    ("sizes", "is_tiled"),
    [((16, 16), True), ((15, 64), False), ((8, 1024), True), ((8, 1023), False)],
)
def test_transposes_through_shared_memory(sizes: tuple[int, int], is_tiled: bool) -> None:
    """Both swapped dimensions have to be long enough."""
    a, b = sizes
    module = parse(
        f"x = f32[{a},{b}] parameter(0) ROOT c = f32[{b},{a}] transpose(x), dimensions={{1,0}}"
    )
    assert (tiled_transpose(find(module, "c")) is not None) is is_tiled


def test_chain_becomes_one_kernel() -> None:
    """What saves most goes first; constants come last and everywhere."""
    module = parse("""x = f32[4096] parameter(0) one = f32[] constant(1)
    ones = f32[4096] broadcast(one), dimensions={} a = f32[4096] add(x, ones)
    b = f32[4096] sine(a) ROOT c = f32[4096] negate(b)""")
    log = run(module)
    (fusion,) = (i for i in module.entry.instructions if i.opcode == "fusion")
    assert fusion.is_root
    assert fusion.operands == module.entry.parameters
    gains = [s.decision.numbers["gain_us"] for s in log if "gain_us" in s.decision.numbers]
    assert all(gain > 0 for gain in gains)


def test_results_that_hold_nothing() -> None:
    """An empty tuple, which has no first array, costs nothing and is asked nothing."""
    module = parse("""x = f32[1024] parameter(0) y = f32[1024] sine(x) z = f32[1024] negate(y)
    e = () tuple() ROOT t = (f32[1024], ()) tuple(z, e)""")
    run(module)
    (fusion,) = (i for i in module.entry.instructions if i.opcode == "fusion")
    assert len(fusion.to_apply.instructions) == 3


def test_expensive_work_is_not_repeated() -> None:
    """A long computation read by two kernels is done once; a short one twice."""
    for opcode, count, num_kernels in (("add", 1, 2), ("power", 30, 3)):
        chain = " ".join(f"p{i + 1} = f32[65536] {opcode}(p{i}, x)" for i in range(count))
        module = parse(f"""x = f32[65536] parameter(0) p0 = f32[65536] negate(x) {chain}
        e = f32[65536,2] broadcast(p{count}), dimensions={{0}} z = f32[] constant(0)
        s = f32[] reduce(p{count}, z), dimensions={{0}}, to_apply=sum
        ROOT t = (f32[65536,2], f32[]) tuple(e, s)""")
        log = run(module)
        others = ("parameter", "constant", "tuple")
        kernels = [i for i in module.entry.instructions if i.opcode not in others]
        assert len(kernels) == num_kernels
        if num_kernels == 3:
            slower = [s for s in log if s.decision.reason is BoundaryReason.SLOWER]
            assert slower
            assert all(s.decision.numbers["gain_us"] < 0 for s in slower)


def test_reductions_are_not_fused_into_each_other() -> None:
    """A reduction of 16 elements to one is one, a reduction of 15 is not."""
    for size, is_refused in ((16, True), (15, False)):
        module = parse(f"""x = f32[64,{size},64] parameter(0) z = f32[] constant(0)
        p = f32[64,64] reduce(x, z), dimensions={{1}}, to_apply=sum
        ROOT c = f32[64] reduce(p, z), dimensions={{1}}, to_apply=sum""")
        log = run(module)
        reasons = {s.decision.reason for s in log if s.producer == "p"}
        assert (BoundaryReason.REDUCTION_INTO_REDUCTION in reasons) is is_refused


def test_scatter_ends_a_kernel() -> None:
    """Nothing is fused behind a scatter, nor into the array it updates."""
    module = parse("""x = f32[64] parameter(0) i = s32[8,1] parameter(1) u = f32[8] parameter(2)
    p = f32[64] negate(x) v = f32[8] negate(u)
    q = f32[64] scatter(p, i, v), update_window_dims={}, inserted_window_dims={0},
      scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
    ROOT c = f32[64] negate(q)""")
    log = run(module)
    assert refusal(log, "p").reason is BoundaryReason.IN_PLACE
    assert any(s.producer == "v" and s.decision.can_fuse for s in log)
    assert any(s.decision.reason is BoundaryReason.IN_PLACE and s.consumer == "c" for s in log)


@pytest.mark.parametrize("opcode", ["dot", "sort"])
def test_what_has_no_fused_form(opcode: str) -> None:
    """Library calls and sorts stay kernels of their own."""
    made = (
        "p = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        if opcode == "dot"
        else "p = f32[64,64] sort(x), dimensions={0}, to_apply=less"
    )
    module = module_of(f"""HloModule m
    less {{ a = f32[] parameter(0) b = f32[] parameter(1)
      ROOT s = pred[] compare(a, b), direction=LT }}
    ENTRY main {{ x = f32[64,64] parameter(0) {made} ROOT c = f32[64,64] negate(p) }}""")
    reason = refusal(run(module), "p").reason
    assert reason in (BoundaryReason.LIBRARY_CALL, BoundaryReason.SORT)


def test_operands_are_limited() -> None:
    """A limit is a field; one operand fewer and the kernel is made."""
    for limit, num_kernels in ((5, 1), (4, 2)):
        module = parse("""x = f32[1024] parameter(0) y = f32[1024] parameter(1)
        w = f32[1024] parameter(2) p = f32[1024] add(x, y) ROOT c = f32[1024] add(p, w)""")
        log = run(module, rules=GpuRules(max_operands=limit))
        kernels = [i for i in module.entry.instructions if i.opcode in ("fusion", "add")]
        assert len(kernels) == num_kernels
        if num_kernels == 2:
            assert refusal(log, "p").reason is BoundaryReason.BUDGET
            assert refusal(log, "p").numbers == {"operands": 5, "limit": 4}


def test_code_is_limited() -> None:
    """A limit is a field; one instruction fewer and the kernel is made."""
    for limit, num_kernels in ((2, 1), (1, 2)):
        module = parse("""x = f32[1024] parameter(0) y = f32[1024] parameter(1)
        p = f32[1024] add(x, y) ROOT c = f32[1024] negate(p)""")
        log = run(module, rules=GpuRules(max_code_size=limit))
        kernels = [i for i in module.entry.instructions if i.opcode != "parameter"]
        assert len(kernels) == num_kernels
        if num_kernels == 2:
            assert refusal(log, "p").reason is BoundaryReason.CODE_DUPLICATION
            assert refusal(log, "p").numbers == {"instructions": 2, "limit": 1}


def test_nothing_is_fused_into_a_lone_bitcast() -> None:
    """A bitcast needs no kernel; what only bitcasts read stays alone."""
    log = run(
        parse("""x = f32[1024] parameter(0) p = f32[1024] negate(x)
        ROOT b = f32[32,32] bitcast(p)""")
    )
    assert refusal(log, "p").reason is BoundaryReason.NOT_FUSIBLE
    assert "only read through bitcasts" in refusal(log, "p").detail


def test_decisions_are_deterministic() -> None:
    """Two runs take the same decisions in the same order."""
    body = """x = f32[128,64] parameter(0) z = f32[] constant(0) a = f32[128,64] exponential(x)
    s = f32[128] reduce(a, z), dimensions={1}, to_apply=sum
    b = f32[128,64] broadcast(s), dimensions={0} ROOT d = f32[128,64] divide(a, b)"""
    first, second = (run(parse(body)) for _ in range(2))
    assert first.steps == second.steps
