"""Elementwise kernels computed again in all that read them: which are, which just aren't, why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.pipelines import parse_pipeline, run_pipeline
from fuselane.fusion.priced_merger import PricedMerger
from fuselane.hlo import HloInstruction, HloModule, verify
from tests.hlo.xla import module_of, parse, run_module, to_text

SMALL, LARGE = 8, 1 << 18
TWO = "ROOT t = (f32[N], f32[N]) tuple(a, b)"
APART = "p = f32[N] fusion(x, y), kind=kLoop, calls=made"
READERS = """a = f32[N] fusion(p, x), kind=kLoop, calls=one
  b = f32[N] fusion(p, y), kind=kLoop, calls=two"""


def text(entry: str, made: str = "add(i, j)", size: int = SMALL) -> str:
    """Returns a module that reads three arrays, two of which a kernel `made` may read."""
    whole = f"""HloModule m
made {{ i = f32[N] parameter(0) j = f32[N] parameter(1) ROOT r = f32[N] {made} }}
one {{ i = f32[N] parameter(0) j = f32[N] parameter(1) ROOT r = f32[N] multiply(i, j) }}
two {{ i = f32[N] parameter(0) j = f32[N] parameter(1) ROOT r = f32[N] subtract(i, j) }}
sum {{ i = f32[] parameter(0) j = f32[] parameter(1) ROOT r = f32[] add(i, j) }}
total {{ i = f32[N] parameter(0) z = f32[] constant(0)
  ROOT r = f32[] reduce(i, z), dimensions={{0}}, to_apply=sum }}
ENTRY main {{ x = f32[N] parameter(0) y = f32[N] parameter(1) z = f32[N] parameter(2)
  {entry} }}"""
    return whole.replace("[N]", f"[{size}]")


def merge(
    entry: str, made: str = "add(i, j)", size: int = SMALL, **options: Any
) -> tuple[HloModule, FusionLog]:
    """Runs the pass, checks that the results stay the same, and returns the module and the log."""
    given = text(entry, made, size)
    module, log = module_of(given), FusionLog()
    has_changed = PricedMerger(**options).run(module, log)
    assert has_changed == any(step.fusion for step in log)
    verify(module)
    to_text(module.to_bytes())
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 1, size).astype(np.float32) for _ in range(3)]
    expected = run_module(parse(given), *inputs)
    for left, right in zip(expected, run_module(module.to_bytes(), *inputs), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)
    return module, log


def kernels(module: HloModule) -> dict[str, HloInstruction]:
    return {i.name: i for i in module.entry.instructions if i.opcode == "fusion"}


def reason_of(log: FusionLog) -> BoundaryReason | None:
    """Returns why `p` was left, None if it was merged."""
    (reason,) = {step.decision.reason for step in log if step.producer == "p"}
    return reason


def test_a_sum_of_small_arrays_is_computed_in_both_readers() -> None:
    """It takes less time than the start of a kernel; the readers keep their names."""
    module, log = merge(f"{APART} {READERS} {TWO}")
    assert kernels(module).keys() == {"a", "b"}
    for name in ("a", "b"):
        opcodes = [i.opcode for i in kernels(module)[name].to_apply.instructions]
        assert opcodes.count("add") == 1
    steps = [step for step in log if step.fusion]
    assert [(s.producer, s.consumer, s.fusion) for s in steps] == [("p", "a", "a"), ("p", "b", "b")]
    numbers = steps[0].decision.numbers
    assert numbers["users"] == 2 and numbers["fused_us"] < numbers["unfused_us"]
    saved_us = sum(step.decision.numbers["saved_us"] for step in steps)
    assert saved_us == pytest.approx(numbers["unfused_us"] - numbers["fused_us"])


def test_a_sine_is_computed_once() -> None:
    """Twice it takes longer, however few elements there are."""
    for size in (1, SMALL, LARGE):
        module, log = merge(f"{APART} {READERS} {TWO}", "sine(i)", size)
        assert len(kernels(module)) == 3 and reason_of(log) is BoundaryReason.SLOWER
        (numbers,) = (step.decision.numbers for step in log if step.producer == "p")
        assert numbers["unfused_us"] < 1.1 * numbers["fused_us"]


@pytest.mark.parametrize(("cached", "count"), [(0, 2), (32 << 20, 3)])
def test_roots_of_what_comes_from_memory_are_computed_again(cached: int, count: int) -> None:
    """They take less time than to write them and to read them twice, but not than from a cache."""
    entry = f"""{APART} a = f32[N] fusion(p, z), kind=kLoop, calls=one
      s = f32[] fusion(a), kind=kLoop, calls=total m = f32[N] broadcast(s), dimensions={{}}
      b = f32[N] fusion(p, m), kind=kLoop, calls=two {TWO}"""
    module, log = merge(entry, "sqrt(i)", LARGE, max_cached_bytes=cached)
    loops = [kernel for kernel in kernels(module).values() if kernel.shape.rank]
    assert len(loops) == count
    assert reason_of(log) is (None if count == 2 else BoundaryReason.SLOWER)


@pytest.mark.parametrize(("least", "count"), [(4 * SMALL, 3), (4 * SMALL + 1, 2)])
def test_what_another_pass_would_save_does_not_count(least: int, count: int) -> None:
    """One kernel for `p` and `a` saves as much."""
    module, log = merge(f"{APART} {READERS} {TWO}", min_shared_bytes=least)
    assert len(kernels(module)) == count
    assert reason_of(log) is (None if count == 2 else BoundaryReason.SLOWER)


def test_kernels_on_different_threads_are_not_compared_as_one() -> None:
    """No other pass can make one of them."""
    config = 'backend_config={"outer_dimension_partitions":["1"]}'
    module, _ = merge(f"{APART}, {config} {READERS} {TWO}", min_shared_bytes=0)
    assert len(kernels(module)) == 2


def test_the_gain_has_to_be_large_enough() -> None:
    """Just below what it is by estimate, and just above."""
    entry = f"{APART} {READERS} {TWO}"
    _, log = merge(entry)
    numbers = log.steps[0].decision.numbers
    gain = numbers["unfused_us"] / numbers["fused_us"]
    assert gain > 1.1
    assert reason_of(merge(entry, min_gain=gain - 0.001)[1]) is None
    assert reason_of(merge(entry, min_gain=gain + 0.001)[1]) is BoundaryReason.SLOWER


@pytest.mark.parametrize(("limit", "count"), [(2, 2), (1, 3)])
def test_consumers_are_limited(limit: int, count: int) -> None:
    """Both readers would compute it."""
    module, log = merge(f"{APART} {READERS} {TWO}", max_consumers=limit)
    assert len(kernels(module)) == count
    assert reason_of(log) is (None if count == 2 else BoundaryReason.DUPLICATION)
    if count == 3:
        assert log.steps[0].decision.numbers == {"users": 2, "limit": 1}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"max_arrays": 3}, 2),
        ({"max_arrays": 2}, 3),
        ({"max_instructions": 6}, 2),
        ({"max_instructions": 5}, 3),
    ],
)
def test_kernels_are_limited(options: dict[str, Any], count: int) -> None:
    """Each reader would read two arrays, write one, and hold two kernels' instructions."""
    module, log = merge(f"{APART} {READERS} {TWO}", **options)
    assert len(kernels(module)) == count
    assert reason_of(log) is (None if count == 2 else BoundaryReason.BUDGET)
    if count == 3:
        numbers = log.steps[0].decision.numbers
        assert numbers["arrays"] == 3 and numbers["instructions"] == 6


def test_a_chain_is_merged_step_by_step() -> None:
    """What was merged into is merged itself; both readers compute both."""
    module, _ = merge(f"""o = f32[N] fusion(x, y), kind=kLoop, calls=made
      p = f32[N] fusion(o, z), kind=kLoop, calls=made {READERS} {TWO}""")
    assert kernels(module).keys() == {"a", "b"}
    for kernel in kernels(module).values():
        assert [i.opcode for i in kernel.to_apply.instructions].count("add") == 2


def test_what_is_computed_for_both_operands_is_computed_once() -> None:
    """A reader that has it twice."""
    module, _ = merge(
        f"{APART} a = f32[N] fusion(p, p), kind=kLoop, calls=one ROOT t = (f32[N]) tuple(a)"
    )
    (kernel,) = kernels(module).values()
    assert [i.opcode for i in kernel.to_apply.instructions].count("add") == 1


def test_a_result_stays() -> None:
    """It has to be in memory anyway."""
    entry = f"{APART} {READERS} ROOT t = (f32[N], f32[N], f32[N]) tuple(a, b, p)"
    module, log = merge(entry)
    assert len(kernels(module)) == 3 and reason_of(log) is BoundaryReason.EXIT


def test_reductions_take_nothing_in() -> None:
    """One reader that is none keeps the value in memory for all."""
    module, log = merge(f"""{APART} {READERS} s = f32[] fusion(p), kind=kLoop, calls=total
      ROOT t = (f32[N], f32[N], f32[]) tuple(a, b, s)""")
    assert len(kernels(module)) == 4 and reason_of(log) is BoundaryReason.NOT_FUSIBLE


@pytest.mark.parametrize(
    ("update", "is_kept"),
    [
        ("u = f32[N] dynamic-update-slice(v, c, i)", True),
        ("w = f32[N] bitcast(v) u = f32[N] dynamic-update-slice(w, c, i)", True),
        ("u = f32[N] fusion(v, x), kind=kLoop, calls=one", False),
        ("u = f32[N] reverse(v), dimensions={0}", True),
    ],
)
def test_what_may_be_overwritten_is_read_where_it_was(update: str, is_kept: bool) -> None:
    """The readers may run later than the kernel did. An argument of the program is never
    overwritten."""
    changed = f"""v = f32[N] fusion(x, z), kind=kLoop, calls=two c = f32[1] constant({{7}})
      i = s32[] constant(0) p = f32[N] fusion(v, y), kind=kLoop, calls=made {READERS} {update}
      s = f32[] fusion(v), kind=kLoop, calls=total
      ROOT t = (f32[N], f32[N], f32[N], f32[]) tuple(a, b, u, s)"""
    _, log = merge(changed)
    assert reason_of(log) is (BoundaryReason.IN_PLACE if is_kept else None)
    argument = changed.replace("fusion(v, y)", "fusion(x, y)")
    assert reason_of(merge(argument)[1]) is None


def test_before_kernels_are_joined() -> None:
    """The readers still become one kernel, which computes the sum once and does not store it."""
    module = module_of(text(f"{APART} {READERS} {TWO}", size=128))
    run_pipeline(parse_pipeline("priced-merger{min-shared-bytes=1024},shared-work"), module)
    (kernel,) = kernels(module).values()
    assert [i.opcode for i in kernel.to_apply.instructions].count("add") == 1
    assert len(kernel.shape.tuple_shapes) == 2
