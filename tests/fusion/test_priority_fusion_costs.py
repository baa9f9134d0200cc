"""What priority fusion knows of kernels, how it stays up to date, and what XLA:GPU launches."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from typing import Any, Final

import pytest

from fuselane.fusion.decision import FusionLog
from fuselane.fusion.fuse import Fuser
from fuselane.fusion.gpu import model as gpu_model
from fuselane.fusion.gpu.costs import compute_cost, fuse_cost
from fuselane.fusion.gpu.durations import LAUNCH, TICKS_PER_US
from fuselane.fusion.gpu.emitters import choose_emitter
from fuselane.fusion.gpu.kernel import Kernel
from fuselane.fusion.gpu.kernel_cost import KernelCost
from fuselane.fusion.gpu.launch import Launch, compute_launch
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.gpu.plans import Plan
from fuselane.fusion.gpu.region import Opcodes, Region
from fuselane.fusion.gpu.rules import Demands, demands_of, is_fusible_on_gpu
from fuselane.fusion.multi_output_fusion import MultiOutputFusion
from fuselane.fusion.priority_fusion import PriorityFusion
from fuselane.gpu import GPUS
from fuselane.hlo import HloInstruction, HloModule, verify
from tests.hlo.xla import module_of

HELPERS: Final = """
sum { left = f32[] parameter(0) right = f32[] parameter(1) ROOT both = f32[] add(left, right) }
most { v0 = f32[] parameter(0) i0 = s32[] parameter(1) v1 = f32[] parameter(2)
  i1 = s32[] parameter(3) is = pred[] compare(v0, v1), direction=GE
  v2 = f32[] select(is, v0, v1) i2 = s32[] select(is, i0, i1)
  ROOT v3 = (f32[], s32[]) tuple(v2, i2) }
"""
GPU: Final = dataclasses.replace(GPUS["h200"], l2_bytes=62914560)


def parse(body: str, helpers: str = "") -> HloModule:
    return module_of(f"HloModule m\n{HELPERS}{helpers}\nENTRY main {{ {body} }}")


def find(module: HloModule, name: str) -> HloInstruction:
    return next(i for i in module.entry.instructions if i.name == name)


def fused_ticks(model: PerformanceModel, producer: HloInstruction, user: HloInstruction) -> int:
    plan = model.plan(user, producer)
    return model.fused_ticks(model.kernel(producer), model.kernel(user), plan)


def test_update_in_place_reads_nothing_of_what_it_updates() -> None:
    """Where the update is not the result, the rest of the array is read."""
    parameters = "a = f32[600] parameter(0) v = f32[1] parameter(1) i = s32[] parameter(2)"
    update = "u = f32[600] dynamic-update-slice(a, v, i)"
    for body, read, written in (
        (f"ROOT {update}", 0, 4),
        (f"{update} ROOT r = f32[600] negate(u)", 2396, 2400),
    ):
        call = "ROOT c = f32[600] fusion(a, v, i), kind=kLoop, calls=f"
        module = parse(f"{parameters} {call}", f"f {{ {parameters} {body} }}")
        cost = compute_cost(find(module, "c"))
        assert cost.operands[0].bytes_read == read
        assert cost.bytes_written == written


def test_updates_of_what_the_kernel_computes_are_no_updates_in_place() -> None:
    """Then the whole array is written, by as many threads as that takes."""
    module = parse("""x = f32[4096] parameter(0) v = f32[128] parameter(1) i = s32[] parameter(2)
    p = f32[4096] negate(x) ROOT c = f32[4096] dynamic-update-slice(p, v, i)""")
    p, c = find(module, "p"), find(module, "c")
    for region, launch in ((Region(c), Launch(1, 128)), (Region(c, p), Launch(32, 128))):
        assert compute_launch(region, choose_emitter(region), GPU) == launch


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        ("p = f32[4096] negate(x) ROOT c = f32[4096] sine(p)", True),
        ("p = f32[4096] negate(x) ROOT c = f32[8192] concatenate(p, x), dimensions={0}", True),
        ("p = f32[8192] concatenate(x, x), dimensions={0} ROOT c = f32[8192] sine(p)", False),
        ("p = f32[4096] negate(x) ROOT c = f32[4096] dynamic-update-slice(p, v, i)", False),
        (
            "p = f32[4096] negate(x) ROOT c = f32[] reduce(p, z), dimensions={0}, to_apply=sum",
            False,
        ),
    ],
)
def test_plans_are_kept_only_where_a_producer_changes_nothing(body: str, is_kept: bool) -> None:
    """A kept plan of a consumer alone says what that of both would say."""
    module = parse(f"""x = f32[4096] parameter(0) v = f32[128] parameter(1) i = s32[] parameter(2)
    z = f32[] constant(0) {body}""")
    p, c = find(module, "p"), find(module, "c")
    model, afresh = PerformanceModel(GPU), Plan(Region(c, p))
    plan = model.plan(c, p)
    assert (plan is model.plan(c)) == is_kept
    assert plan.emission == afresh.emission
    assert plan.running(GPU) == afresh.running(GPU)


@pytest.mark.parametrize(
    ("body", "launch"),
    [
        ("ROOT c = f32[10000] reduce(x, z), dimensions={1}, to_apply=sum", Launch(157, 256)),
        (  # one warp per row where several values are reduced together
            """n = s32[] constant(0) i = s32[10000,8] iota(), iota_dimension=1
            ROOT c = (f32[10000], s32[10000]) reduce(x, i, z, n), dimensions={1}, to_apply=most""",
            Launch(1250, 256),
        ),
        (  # too few rows for one vector each: narrower vectors, more blocks
            """y = f32[4000,8] slice(x), slice={[0:4000], [0:8]}
            ROOT c = f32[4000] reduce(y, z), dimensions={1}, to_apply=sum""",
            Launch(125, 256),
        ),
        (  # two blocks of a thousand threads for each long row
            """y = f32[4,20000] bitcast(x)
            ROOT c = f32[4] reduce(y, z), dimensions={1}, to_apply=sum""",
            Launch(8, 1024),
        ),
        (  # columns that lie in a warp side by side
            """y = f32[5,2000,8] bitcast(x)
            ROOT c = f32[5,8] reduce(y, z), dimensions={1}, to_apply=sum""",
            Launch(5, 128),
        ),
    ],
)
def test_launches_of_reductions(body: str, launch: Launch) -> None:
    """Blocks and threads follow the shape and the types of all that is read and written."""
    module = parse(f"x = f32[10000,8] parameter(0) z = f32[] constant(0) {body}")
    region = Region(find(module, "c"))
    assert compute_launch(region, choose_emitter(region), GPU) == launch


def test_bitcasts_count_as_readers() -> None:
    """They stay outside, but XLA prices the producer in them as well, which lowers its gain."""
    module = parse("""x = f32[4096] parameter(0) p = f32[4096] sine(x) b = f32[64,64] bitcast(p)
    c = f32[4096] negate(p) ROOT t = (f32[64,64], f32[4096]) tuple(b, c)""")
    p, b, c = (find(module, name) for name in "pbc")
    model = PerformanceModel(GPU)
    gain = LAUNCH + model.time(p).total + model.time(c).total - fused_ticks(model, p, c)
    gain -= fused_ticks(model, p, b) - model.time(b).total
    log = FusionLog()
    PriorityFusion(gpu=GPU).run(module, log)
    (step,) = (s for s in log if s.producer == "p" and s.decision.can_fuse)
    assert step.decision.numbers["gain_us"] == gain / TICKS_PER_US


def test_bitcasts_that_change_the_width_are_not_fused() -> None:
    """One that keeps it is free."""
    module = parse("""x = f32[64] parameter(0) p = s32[64] bitcast(x)
    ROOT c = s16[64,2] bitcast(p)""")
    assert is_fusible_on_gpu(find(module, "p"))
    assert not is_fusible_on_gpu(find(module, "c"))


STATE: Final = """x = f32[4096] parameter(0) y = f32[4096] parameter(1) {p}
f = f32[4096] fusion({of}, y), kind=kLoop, calls=f a = f32[4096] {reader}
b = f32[4096] exponential(f) ROOT t = (f32[4096], f32[4096]) tuple(a, b)"""


def test_gains_are_running_sums() -> None:
    """A producer that grew with one of its users keeps what the other contributed before."""
    sine = "s = f32[4096] sine(u) ROOT m = f32[4096] multiply(s, v) }"
    before = parse(
        STATE.format(p="p = f32[4096] negate(x)", of="p", reader="add(p, f)"),
        "f { u = f32[4096] parameter(0) v = f32[4096] parameter(1) " + sine,
    )
    after = parse(
        STATE.format(p="", of="x", reader="fusion(f, x), kind=kLoop, calls=g"),
        f"""f {{ n = f32[4096] parameter(0) v = f32[4096] parameter(1)
        u = f32[4096] negate(n) {sine}
        g {{ of = f32[4096] parameter(0) into = f32[4096] parameter(1)
        less = f32[4096] negate(into) ROOT sum = f32[4096] add(less, of) }}""",
    )
    model = PerformanceModel(GPU)
    f, a, b = (find(after, name) for name in "fab")
    old = model.time(b).total - fused_ticks(model, find(before, "f"), find(before, "b"))
    new = model.time(b).total - fused_ticks(model, f, b)
    gain = LAUNCH + model.time(f).total + model.time(a).total - fused_ticks(model, f, a)
    log = FusionLog()
    PriorityFusion(gpu=GPU).run(before, log)
    steps = [step for step in log if step.decision.can_fuse]
    assert [step.producer for step in steps] == ["p", "p", "f", "f"]
    assert old != new
    assert steps[2].decision.numbers["gain_us"] == (gain + old) / TICKS_PER_US


@pytest.mark.parametrize(
    ("members", "consumer", "is_whole"),
    [
        ("n = f32[64,32] sine(a) ROOT s = f32[64,32] add(n, a)", "tanh(p)", True),
        (  # both read `y` in rows, and once element by element
            "w = f32[64,32] broadcast(b), dimensions={1} ROOT s = f32[64,32] multiply(w, a)",
            "add(p, e)",
            True,
        ),
        (  # each element 32 times
            "w = f32[64,32] broadcast(b), dimensions={1} ROOT s = f32[64,32] multiply(w, a)",
            "broadcast(q), dimensions={0}",
            True,
        ),
        (  # half of each element, on average
            "h = f32[32,32] slice(a), slice={[0:32], [0:32]}"
            " k = f32[] constant(0) ROOT s = f32[64,32] pad(h, k), padding=0_32x0_0",
            "tanh(p)",
            False,
        ),
        (  # what is updated is not read where the update is the result
            "r = f32[1,32] reshape(b) ROOT s = f32[64,32] dynamic-update-slice(a, r, i, i)",
            "tanh(p)",
            False,
        ),
    ],
)
def test_costs_of_producers_are_taken_whole_if_that_is_exact(
    members: str, consumer: str, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a producer's cost tells of its members in a consumer is what each of them says."""
    text = f"""f {{ a = f32[64,32] parameter(0) b = f32[32] parameter(1) i = s32[] parameter(2)
        {members} }}
    g {{ p = f32[64,32] parameter(0) y = f32[32] parameter(1)
        z = f32[] constant(0) q = f32[64] reduce(p, z), dimensions={{1}}, to_apply=sum
        e = f32[64,32] broadcast(y), dimensions={{1}} ROOT c = f32[64,32] {consumer} }}"""
    entry = """x = f32[64,32] parameter(0) y = f32[32] parameter(1) i = s32[] parameter(2)
    of = f32[64,32] fusion(x, y, i), kind=kLoop, calls=f
    ROOT into = f32[64,32] fusion(of, y), kind=kLoop, calls=g"""
    module, answers = parse(entry, text), list[bool]()
    of, into = find(module, "of"), find(module, "into")
    original = KernelCost.take

    def take(cost: KernelCost, *arguments: Any) -> bool:
        answers.append(original(cost, *arguments))
        return answers[-1]

    monkeypatch.setattr(KernelCost, "take", take)
    whole = _fused(of, into)
    assert any(answers) == is_whole
    monkeypatch.setattr(KernelCost, "take", lambda *_: False)
    assert whole == _fused(of, into)


def test_costs_are_left_to_later_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a body is edited; they are those of looking at all of it."""
    module = parse("""x = f32[4096] parameter(0) a = f32[4096] negate(x) b = f32[4096] sine(a)
    z = f32[] constant(0) s = f32[] reduce(b, z), dimensions={0}, to_apply=sum
    c = f32[4096] add(a, b) ROOT t = (f32[4096], f32[]) tuple(c, s)""")
    assert PriorityFusion(gpu=GPU).run(module, FusionLog())
    again = HloModule.from_bytes(module.to_bytes())
    fusions, expected = (
        [i for i in each.entry.instructions if i.opcode == "fusion"] for each in (module, again)
    )
    afresh = [compute_cost(fusion) for fusion in expected]
    monkeypatch.setattr("fuselane.fusion.gpu.costs._members", None)
    left = 0
    for fusion, cost in zip(fusions, afresh, strict=True):
        try:
            known = compute_cost(fusion)
        except TypeError:
            continue
        left += 1
        assert (known.flops, known.code_size) == (cost.flops, cost.code_size)
        assert known.bytes_written == cost.bytes_written
        for mine, its in zip(known.operands, cost.operands, strict=True):
            assert (mine.utilization, mine.bytes_read) == (its.utilization, its.bytes_read)
            assert mine.emissions == its.emissions
        body = fusion.to_apply
        body.note_edit()
        with pytest.raises(TypeError):
            compute_cost(fusion)
    assert left


def _fused(of: HloInstruction, into: HloInstruction) -> tuple[object, ...]:
    """Returns what two instructions cost in one kernel."""
    costs = compute_cost(of), copy.deepcopy(compute_cost(into))
    cost, places = fuse_cost(of, into, *costs)
    cost.settle(list(places.values()))
    reads = [(read.utilization, read.bytes_read, read.emissions) for read in cost.operands]
    return cost.flops, cost.code_size, cost.is_exact, reads


@pytest.mark.parametrize("seed", range(6))
def test_kernels_that_read_evenly_are_priced_as_any_others(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is summed up for all of their operands at once is the sum over each."""
    chance = random.Random(seed)
    size, lines = chance.choice([7, 300, 70_000, 4_000_000]), []
    for n in range(2, 40):
        left, right = (f"v{chance.randrange(max(0, n - 6), n)}" for _ in range(2))
        opcode = chance.choice(["add", "multiply", "power", "divide"])
        lines.append(f"v{n} = f32[{size}] {opcode}({left}, {right})")
    body = f"""v0 = f32[{size}] parameter(0) v1 = f32[{size}] parameter(1) {" ".join(lines)}
    ROOT t = (f32[{size}], f32[{size}]) tuple(v38, v39)"""
    logs, modules, counts = [], [], []
    reads_evenly = gpu_model._reads_evenly
    for is_quick in (True, False):
        asked: list[Kernel] = []

        def ask(
            kernel: Kernel, cost: KernelCost, asked: list[Kernel] = asked, quick: bool = is_quick
        ) -> bool:
            is_even = quick and reads_evenly(kernel, cost)
            asked.extend([kernel] * is_even)
            return is_even

        monkeypatch.setattr(gpu_model, "_reads_evenly", ask)
        module, log = parse(body), FusionLog()
        PriorityFusion(gpu=GPU).run(module, log)
        logs.append(log.steps)
        modules.append([repr(i) for c in module.computations for i in c.instructions])
        counts.append(len(asked))
    assert logs[0] == logs[1]
    assert modules[0] == modules[1]
    assert counts[0] > 0
    assert counts[1] == 0


def test_costs_that_grow_are_costs_computed_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a fusion after one more producer equals what looking at all of it says."""
    checked = 0

    def learn(
        model: PerformanceModel,
        fusion: HloInstruction,
        cost: KernelCost,
        opcodes: Opcodes,
        plan: Plan | None = None,
        demands: Demands | None = None,
    ) -> Kernel:
        nonlocal checked
        checked += 1
        fresh = compute_cost(fusion)
        assert math.isclose(cost.flops, fresh.flops, rel_tol=1e-6)
        assert (cost.code_size, cost.bytes_written) == (fresh.code_size, fresh.bytes_written)
        for index, (operand, expected) in enumerate(
            zip(cost.operands, fresh.operands, strict=True)
        ):
            assert operand.utilization == pytest.approx(expected.utilization)
            assert operand.bytes_read == expected.bytes_read
            assert cost.operands[index].emissions == fresh.operands[index].emissions
        assert opcodes >= {i.opcode for i in fusion.to_apply.instructions} - {"parameter"}
        if plan is not None:
            kept.append(plan)
            afresh = Plan(Region(fusion))
            assert plan.emission.emitter is afresh.emission.emitter
            assert plan.running(GPU) == afresh.running(GPU)
        if demands is not None:
            assert demands == demands_of(fusion, opcodes)
        return original(model, fusion, cost, opcodes, plan, demands)

    kept: list[Plan] = []
    original = PerformanceModel.learn
    monkeypatch.setattr(PerformanceModel, "learn", learn)
    module = parse("""x = f32[64,32] parameter(0) y = f32[32] parameter(1) i = s32[] parameter(2)
    z = f32[] constant(0) e = f32[64,32] broadcast(y), dimensions={1}
    m = f32[64,32] multiply(x, e) s = f32[64] reduce(m, z), dimensions={1}, to_apply=sum
    w = f32[64,32] broadcast(s), dimensions={0} d = f32[64,32] divide(m, w)
    h = f32[64,32] add(d, e) v = f32[16,32] slice(h), slice={[8:24], [0:32]}
    k = f32[1,32] dynamic-slice(h, i, i), dynamic_slice_sizes={1,32}
    q = f32[16,32] dynamic-update-slice(v, k, i, i) n = f32[16,32] multiply(q, v)
    r = f32[32,32] concatenate(n, v), dimensions={0} ROOT t = f32[32,32] sine(r)""")
    PriorityFusion(gpu=GPU).run(module, FusionLog())
    verify(module)
    assert checked > 5
    assert kept
    module = parse("""x = f32[64,32] parameter(0) y = f32[32] parameter(1)
    a = f32[64,32] sine(x) b = f32[64,32] cosine(x) c = f32[64,32] multiply(a, b)
    e = f32[64,32] broadcast(y), dimensions={1} d = f32[64,32] add(x, e)
    ROOT t = (f32[64,32], f32[64,32], f32[64,32], f32[64,32]) tuple(a, b, c, d)""")
    before = checked
    for fusion_pass in (PriorityFusion(gpu=GPU), MultiOutputFusion(gpu=GPU)):
        fusion_pass.run(module, FusionLog())
    verify(module)
    assert any(i.opcode == "get-tuple-element" for i in module.entry.instructions)
    assert checked > before + 1


def test_constants_are_taken_in_without_looking_at_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a kernel's are written down, and its body is made once more for all of them."""
    lines = [f"c{n} = f32[] constant({n}) b{n} = f32[64] broadcast(c{n})" for n in range(6)]
    lines += [f"v{n + 1} = f32[64] multiply(v{n}, b{n})" for n in range(6)]
    module = parse(f"v0 = f32[64] parameter(0) {' '.join(lines)} ROOT r = f32[64] negate(v6)")
    merged: list[str] = []
    monkeypatch.setattr(Fuser, "fuse", lambda *_: merged.append("looked at"))
    PriorityFusion(gpu=GPU).run(module, FusionLog())
    (fusion,) = [i for i in module.entry.instructions if i.opcode == "fusion"]
    assert sum(i.opcode == "constant" for i in fusion.to_apply.instructions) == 6
    assert not merged
