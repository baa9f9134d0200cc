"""Regions of straight-line code: what belongs to them, where they are cut, what stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.decisions import Decision, Reason
from fuselane.fusion.decision import FusionLog, FusionStep, refuse
from fuselane.fusion.lane_kernels import (
    LaneKernels,
    cut,
    describe_refusals,
    find_regions,
    with_between,
)
from fuselane.fusion.outline import Outlined, outline
from fuselane.fusion.pipelines import parse_pipeline
from fuselane.fusion.running import apply
from fuselane.hlo import HloModule, verify
from tests.hlo.xla import module_of, to_text

SUM = "add { l = f32[] parameter(0) r = f32[] parameter(1) ROOT o = f32[] add(l, r) }\n"

CHAIN = """x = f32[4096] parameter(0) a = f32[4096] sine(x) b = f32[4096] exponential(x)
    c = f32[4096] add(a, b) ROOT t = (f32[4096], f32[4096]) tuple(a, c)"""

NORMALISED = """x = f32[4096] parameter(0) zero = f32[] constant(0)
    sum = f32[] reduce(x, zero), dimensions={0}, to_apply=add
    many = f32[4096] broadcast(sum), dimensions={} y = f32[4096] divide(x, many)
    ROOT e = f32[4096] exponential(y)"""


def module(entry: str) -> HloModule:
    return module_of(f"HloModule m\n{SUM}ENTRY main {{ {entry} }}")


def regions(entry: str) -> list[set[str]]:
    """Returns the names in each region."""
    return [{member.name for member in region} for region in find_regions(module(entry).entry)]


def answer(*answers: bool) -> Callable[[Outlined], Decision]:
    """Returns a maker of kernels that leaves the loops, and says yes or no in turn."""
    remaining = list(answers)

    def make(outlined: Outlined) -> Decision:
        yes = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        reason = Reason.FUSED if yes else Reason.NOT_PROFITABLE
        return reason.decide(instruction=outlined.loop.name, numbers={"xla_us": 7.0})

    return make


def run(entry: str, *answers: bool, **options: int) -> tuple[HloModule, FusionLog, bool]:
    """Runs the pass, checks the module, and returns it with the log and whether it changed."""
    changed, log = module(entry), FusionLog()
    has_changed = LaneKernels(make_kernel=answer(*answers), **options).run(changed, log)
    changed.remove_unused_computations()
    verify(changed)
    to_text(changed.to_bytes())
    return changed, log, has_changed


def test_what_shares_an_operand_is_one_region() -> None:
    """Siblings and what follows from them."""
    assert regions(CHAIN) == [{"a", "b", "c"}]


def test_what_shares_a_scalar_only_is_two_regions() -> None:
    """Nothing is gained by computing them together."""
    entry = """x = f32[4096] parameter(0) y = f32[4096] parameter(1) s = f32[] parameter(2)
        m = f32[4096] broadcast(s), dimensions={} a = f32[4096] multiply(x, m)
        n = f32[4096] broadcast(s), dimensions={} b = f32[4096] multiply(y, n)
        ROOT t = (f32[4096], f32[4096]) tuple(a, b)"""
    assert sorted(map(sorted, regions(entry))) == [["a", "m"], ["b", "n"]]


def test_a_library_call_comes_between_two_regions() -> None:
    """What follows from a large product of matrices cannot be computed with what leads to it."""
    entry = """x = f32[64,64] parameter(0) a = f32[64,64] sine(x)
        d = f32[64,64] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        b = f32[64,64] cosine(d) c = f32[64,64] add(b, x) ROOT e = f32[64,64] multiply(c, d)"""
    assert regions(entry) == [{"a"}, {"b", "c", "e"}]


@pytest.mark.parametrize(("columns", "is_inside"), [(16, True), (17, False)])
def test_small_products_belong_to_regions(columns: int, is_inside: bool) -> None:
    """A library gains little where one of a product's dimensions is small."""
    entry = f"""x = f32[64,64] parameter(0) w = f32[64,{columns}] parameter(1)
        d = f32[64,{columns}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        ROOT e = f32[64,{columns}] exponential(d)"""
    assert any("d" in region for region in regions(entry)) == is_inside


def test_control_edges_keep_an_instruction_out() -> None:
    """XLA wants it to run at its place."""
    entry = """x = f32[64] parameter(0) a = f32[64] sine(x)
        b = f32[64] cosine(x), control-predecessors={a} ROOT c = f32[64] add(b, x)"""
    assert all("b" not in region and "a" not in region for region in regions(entry))


def test_a_region_takes_in_what_comes_between() -> None:
    """The scalar that a mean goes through, which is linked to nothing itself."""
    entry = """x = f32[4096] parameter(0) zero = f32[] constant(0)
        sum = f32[] reduce(x, zero), dimensions={0}, to_apply=add s = f32[] sqrt(sum)
        m = f32[4096] broadcast(s), dimensions={} ROOT y = f32[4096] divide(x, m)"""
    found = find_regions(module(entry).entry)
    largest = max(found, key=len)
    assert "s" not in {member.name for member in largest}
    assert {"sum", "s", "m", "y"} <= {member.name for member in with_between(largest)}


def test_tuples_that_come_between_are_taken_in_whole() -> None:
    """With the elements that lead elsewhere: a loop's step stacks arrays, and no tuples."""
    made = module_of(
        """HloModule m
        two { p = f32[64] parameter(0) s = f32[64] sine(p) c = f32[64] cosine(p)
          ROOT t = (f32[64], f32[64]) tuple(s, c) }
        ENTRY main { x = f32[64] parameter(0) a = f32[64] exponential(x)
          f = (f32[64], f32[64]) fusion(a), kind=kLoop, calls=two
          g = f32[64] get-tuple-element(f), index=0 h = f32[64] get-tuple-element(f), index=1
          b = f32[64] add(a, g) ROOT t = (f32[64], f32[64]) tuple(b, h) }"""
    )
    ends = [i for i in made.entry.instructions if i.name in "ab"]
    assert {member.name for member in with_between(ends)} == set("abfgh")


def test_nothing_is_a_region_around_what_cannot_be_inside() -> None:
    """A kernel cannot run both before and after a library call."""
    entry = """x = f32[64,64] parameter(0) a = f32[64,64] sine(x)
        d = f32[64,64] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT b = f32[64,64] add(d, a)"""
    found = module(entry)
    members = [i for i in found.entry.instructions if i.name in "ab"]
    assert with_between(members) == []


def test_code_is_cut_behind_a_reduction_that_is_read_again() -> None:
    """What leads to it stays in front, all else is behind."""
    found = [i for i in module(NORMALISED).entry.instructions if i.opcode != "parameter"]
    parts = [{i.name for i in part if i.opcode != "constant"} for part in cut(found)]
    assert parts == [{"sum"}, {"many", "y", "e"}]


def test_elements_of_a_reduction_stay_with_it() -> None:
    """A part's results are arrays: nothing else can leave a kernel."""
    found = module_of(
        """HloModule m
        both { a = f32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2)
          d = s32[] parameter(3) e = f32[] maximum(a, c) f = s32[] maximum(b, d)
          ROOT t = (f32[], s32[]) tuple(e, f) }
        ENTRY main { x = f32[4096] parameter(0) n = s32[4096] iota(), iota_dimension=0
          low = f32[] constant(0) zero = s32[] constant(0)
          most = (f32[], s32[]) reduce(x, n, low, zero), dimensions={0}, to_apply=both
          at = s32[] get-tuple-element(most), index=1 value = f32[] get-tuple-element(most), index=0
          many = f32[4096] broadcast(value), dimensions={} y = f32[4096] divide(x, many)
          ROOT r = (f32[4096], s32[]) tuple(y, at) }"""
    )
    members = [i for i in found.entry.instructions if i.opcode not in ("parameter", "tuple")]
    parts = [{i.name for i in part} for part in cut(members)]
    assert parts == [{"n", "low", "zero", "most", "at", "value"}, {"many", "y"}]


def test_code_is_not_cut_behind_a_reduction_that_leaves() -> None:
    """Nobody else reads it."""
    entry = """x = f32[4096] parameter(0) zero = f32[] constant(0) y = f32[4096] sine(x)
        sum = f32[] reduce(y, zero), dimensions={0}, to_apply=add
        ROOT t = (f32[4096], f32[]) tuple(y, sum)"""
    found = [i for i in module(entry).entry.instructions if i.opcode in ("sine", "reduce")]
    assert cut(found) == []


def test_a_yes_replaces_the_region() -> None:
    """The loop stands for its instructions, which are gone."""
    changed, log, has_changed = run(CHAIN, True)
    opcodes = {instruction.opcode for instruction in changed.entry.instructions}
    assert has_changed and "while" in opcodes and "sine" not in opcodes
    (step,) = log
    assert step.fusion and step.decision.numbers == {"xla_kernels": 3.0, "xla_us": 7.0}


def test_several_results_can_be_the_programs_own() -> None:
    """A smallest element and its place, without a tuple around them."""
    changed = module_of(
        """HloModule m
        both { a = f32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2)
          d = s32[] parameter(3) e = f32[] maximum(a, c) f = s32[] maximum(b, d)
          ROOT t = (f32[], s32[]) tuple(e, f) }
        ENTRY main { x = f32[4096,8] parameter(0) y = f32[4096,8] sine(x)
          n = s32[4096,8] iota(), iota_dimension=1 low = f32[] constant(0) zero = s32[] constant(0)
          ROOT most = (f32[4096], s32[4096]) reduce(y, n, low, zero), dimensions={1},
            to_apply=both }"""
    )
    before, log = changed.entry.root.shape, FusionLog()
    assert LaneKernels(make_kernel=answer(True)).run(changed, log)
    changed.remove_unused_computations()
    verify(changed)
    to_text(changed.to_bytes())
    (step,) = log
    assert step.fusion and changed.entry.root.shape == before
    assert "while" in {i.opcode for i in changed.entry.instructions}


def test_a_no_puts_everything_back() -> None:
    """Nothing is left of the loop."""
    changed, log, has_changed = run(CHAIN, False)
    before = module(CHAIN)
    before.remove_unused_computations()
    assert not has_changed and to_text(changed.to_bytes()) == to_text(before.to_bytes())
    (step,) = log
    assert not step.fusion and step.decision.reason is BoundaryReason.SLOWER


def test_parts_are_tried_after_a_no() -> None:
    """The whole is refused, the sum too, what stands behind it is taken."""
    changed, log, has_changed = run(NORMALISED, False, False, True)
    assert has_changed and [bool(step.fusion) for step in log] == [False, False, True]
    fusions = [i for i in changed.entry.instructions if i.opcode == "fusion"]
    opcodes = [m.opcode for fusion in fusions for m in fusion.to_apply.instructions]
    assert "reduce" in opcodes and "divide" not in opcodes


SLICED = """x = f32[4096] parameter(0) i = s32[] parameter(1) a = f32[4096] sine(x)
    s = f32[2048] dynamic-slice(a, i), dynamic_slice_sizes={2048}
    ROOT b = f32[2048] cosine(s)"""


def test_slices_that_start_anywhere_belong_to_regions() -> None:
    """Steps of an unrolled loop take theirs of what they are given."""
    assert regions(SLICED) == [{"a", "s", "b"}]


def test_what_stands_between_such_slices_is_tried_after_a_no() -> None:
    """They may take lanes apart: then what is in front of them has some, and what is behind."""
    _, log, has_changed = run(SLICED, False, True)
    assert has_changed and [bool(step.fusion) for step in log] == [False, True, True]
    assert [(step.producer, step.consumer) for step in log] == [("a", "b"), ("a", ""), ("b", "")]


def test_few_kernels_are_left_alone() -> None:
    """A region has to have as many kernels as asked for."""
    assert len(run(CHAIN, True, min_kernels=3)[1]) == 1
    assert len(run(CHAIN, True, min_kernels=4)[1]) == 0


def test_attempts_are_limited() -> None:
    """The largest region comes first; the last is refused without being tried."""
    entry = """x = f32[4096] parameter(0) y = f32[8192] parameter(1)
        a = f32[4096] sine(x) b = f32[8192] cosine(y)
        ROOT t = (f32[4096], f32[8192]) tuple(a, b)"""
    _, log, _ = run(entry, True, max_attempts=1)
    assert [step.producer for step in log] == ["b", "a"]
    assert [step.decision.reason for step in log] == [None, BoundaryReason.BUDGET]


def test_twins_of_a_refused_region_are_not_tried() -> None:
    """Two hundred tensors of an optimizer are one question."""
    names = [f"x{number}" for number in range(40)]
    parameters = " ".join(f"{n} = f32[4096] parameter({i})" for i, n in enumerate(names))
    work = " ".join(f"a{n} = f32[4096] sine({n})" for n in names)
    shapes, roots = ", ".join(["f32[4096]"] * 40), ", ".join(f"a{n}" for n in names)
    entry = f"{parameters} {work} ROOT t = ({shapes}) tuple({roots})"
    _, log, _ = run(entry, False, max_attempts=1)
    assert {step.decision.reason for step in log} == {BoundaryReason.SLOWER} and len(log) == 40
    (sentence,) = describe_refusals(log)
    assert sentence.startswith("No kernel of Fuselane's for `ax0` and 39 regions like it: ")


def test_refusals_are_told_by_how_long_xla_takes() -> None:
    """The longest first; of many, the rest are counted."""
    log = FusionLog()
    for number in range(9):
        decision = refuse(BoundaryReason.SLOWER, f"Because {number}.", xla_us=float(number % 7))
        names = {"producer": f"p{number}", "consumer": f"c{number}"}
        log.append(FusionStep(pass_name="lane-kernels", decision=decision, **names))
    sentences = describe_refusals(log)
    assert sentences[0] == "No kernel of Fuselane's for `p6` to `c6`: Because 6."
    assert sentences[-1] == "Nor for 4 smaller regions, for other reasons."
    assert len(sentences) == 6


def test_without_anybody_to_make_kernels_nothing_changes() -> None:
    """As when a pipeline is only looked at."""
    unchanged, log = module(CHAIN), apply(module(CHAIN), parse_pipeline("lane-kernels"))
    assert len(log) == 0
    assert not LaneKernels().run(unchanged, FusionLog())


def test_layouts_of_results_are_kept() -> None:
    """A result is stacked in its own layout."""
    found = module("x = f32[8,4]{0,1} parameter(0) ROOT a = f32[8,4]{0,1} sine(x)")
    root = found.entry.root
    outlined = outline(found, [root])
    verify(found)
    assert outlined.loop.shape.tuple_shapes[1].minor_to_major == (1, 2, 0)
    assert found.entry.root.shape == root.shape
