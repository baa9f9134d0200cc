"""Elementwise kernels that read the same arrays, joined: which are, which just aren't, what for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.shared_work import SharedWork
from fuselane.hlo import HloInstruction, HloModule, verify
from tests.hlo.xla import module_of, parse, run_module, to_text

KERNELS = """
one { p = f32[256] parameter(0) q = f32[256] parameter(1) s = f32[256] sine(p)
  ROOT r = f32[256] add(s, q) }
two { p = f32[256] parameter(0) q = f32[256] parameter(1) s = f32[256] sine(p)
  ROOT r = f32[256] multiply(s, q) }
again { p = f32[256] parameter(0) q = f32[256] parameter(1) s = f32[256] sine(p)
  ROOT r = f32[256] add(s, q) }
half { p = f32[128] parameter(0) ROOT r = f32[128] sine(p) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
total { p = f32[256] parameter(0) z = f32[] constant(0)
  ROOT r = f32[] reduce(p, z), dimensions={0}, to_apply=sum }
"""
XYZ = "x = f32[256] parameter(0) y = f32[256] parameter(1) z = f32[256] parameter(2)"
TWO = "ROOT t = (f32[256], f32[256]) tuple(a, b)"


def text(entry: str) -> str:
    return f"HloModule m\n{KERNELS}\nENTRY main {{ {entry} }}"


def join(entry: str, **options: Any) -> tuple[HloModule, FusionLog]:
    """Runs the pass, checks that the results stay the same, and returns the module and the log."""
    module, log = module_of(text(entry)), FusionLog()
    SharedWork(**options).run(module, log)
    verify(module)
    to_text(module.to_bytes())
    sizes = [parameter.shape.dimensions for parameter in module.entry.parameters]
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=size).astype(np.float32) for size in sizes]
    expected = run_module(parse(text(entry)), *inputs)
    for left, right in zip(expected, run_module(module.to_bytes(), *inputs), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)
    return module, log


def kernels(module: HloModule) -> list[HloInstruction]:
    return [i for i in module.entry.instructions if i.opcode == "fusion"]


def reasons(log: FusionLog) -> set[BoundaryReason | None]:
    return {step.decision.reason for step in log}


def test_siblings_share_what_they_read_and_compute() -> None:
    """One sine for both, and what that saves in the log."""
    module, log = join(f"""{XYZ} a = f32[256] fusion(x, y), kind=kLoop, calls=one
        b = f32[256] fusion(x, z), kind=kLoop, calls=two {TWO}""")
    (kernel,) = kernels(module)
    opcodes = [i.opcode for i in kernel.to_apply.instructions]
    assert opcodes.count("sine") == 1 and kernel.to_apply.root.opcode == "tuple"
    (step,) = log
    assert step.decision.numbers["saved_bytes"] == 1024 and step.decision.numbers["arrays"] == 5


def test_a_kernel_that_reads_another_goes_on_in_registers() -> None:
    """Its operand is a result beside its own."""
    module, _ = join(f"""{XYZ} a = f32[256] fusion(x, y), kind=kLoop, calls=one
        b = f32[256] fusion(a, z), kind=kLoop, calls=two {TWO}""")
    assert len(kernels(module)) == 1


def test_three_become_one() -> None:
    """As the moments and the parameters of an optimizer."""
    module, _ = join(f"""{XYZ} a = f32[256] fusion(x, y), kind=kLoop, calls=one
        c = f32[256] fusion(x, z), kind=kLoop, calls=two
        b = f32[256] fusion(a, c), kind=kLoop, calls=again
        ROOT t = (f32[256], f32[256], f32[256]) tuple(a, b, c)""")
    assert len(kernels(module)) == 1


def test_a_chain_becomes_one() -> None:
    """The last reads elements of the kernel that the first two have become."""
    module, log = join(f"""{XYZ} a = f32[256] fusion(x, y), kind=kLoop, calls=one
        c = f32[256] fusion(a, z), kind=kLoop, calls=two
        b = f32[256] fusion(c, a), kind=kLoop, calls=again
        ROOT t = (f32[256], f32[256], f32[256]) tuple(a, b, c)""")
    (kernel,) = kernels(module)
    assert {operand.opcode for operand in kernel.operands} == {"parameter"}
    assert reasons(log) == {None}


def test_strangers_stay_apart() -> None:
    """They read nothing in common."""
    module, log = join(
        """x = f32[256] parameter(0) y = f32[256] parameter(1)
        v = f32[256] parameter(2) w = f32[256] parameter(3)
        a = f32[256] fusion(x, y), kind=kLoop, calls=one
        b = f32[256] fusion(v, w), kind=kLoop, calls=two """
        + TWO
    )
    assert len(kernels(module)) == 2 and len(log) == 0


def test_index_spaces_differ() -> None:
    """A loop over 128 elements is not one over 256."""
    module, _ = join("""x = f32[256] parameter(0) h = f32[128] slice(x), slice={[0:128]}
        a = f32[256] fusion(x, x), kind=kLoop, calls=one
        b = f32[128] fusion(h), kind=kLoop, calls=half
        ROOT t = (f32[256], f32[128]) tuple(a, b)""")
    assert len(kernels(module)) == 2


def test_reductions_stay_apart() -> None:
    """They are not elementwise."""
    module, log = join("""x = f32[256] parameter(0) a = f32[256] fusion(x, x), kind=kLoop, calls=one
        b = f32[] fusion(x), kind=kLoop, calls=total ROOT t = (f32[256], f32[]) tuple(a, b)""")
    assert len(kernels(module)) == 2 and len(log) == 0


def test_a_way_through_a_third_kernel_keeps_two_apart() -> None:
    """Joined they would wait for themselves."""
    module, log = join(
        """x = f32[256] parameter(0) a = f32[256] fusion(x, x), kind=kLoop, calls=one
        s = f32[] fusion(a), kind=kLoop, calls=total
        m = f32[256] broadcast(s), dimensions={}
        b = f32[256] fusion(x, m), kind=kLoop, calls=two """
        + TWO
    )
    assert len(kernels(module)) == 3 and reasons(log) == {BoundaryReason.MULTI_OUTPUT}


@pytest.mark.parametrize(("limit", "count"), [(5, 1), (4, 2)])
def test_arrays_are_limited(limit: int, count: int) -> None:
    """Three arrays are read and two written."""
    module, log = join(
        f"""{XYZ} a = f32[256] fusion(x, y), kind=kLoop, calls=one
        b = f32[256] fusion(x, z), kind=kLoop, calls=two {TWO}""",
        max_arrays=limit,
    )
    assert len(kernels(module)) == count
    assert reasons(log) == ({None} if count == 1 else {BoundaryReason.BUDGET})


@pytest.mark.parametrize(("least", "count"), [(1024, 1), (1025, 2)])
def test_small_arrays_are_no_reason(least: int, count: int) -> None:
    """Rather nothing is shared than a few bytes."""
    module, _ = join(
        f"""{XYZ} a = f32[256] fusion(x, y), kind=kLoop, calls=one
        b = f32[256] fusion(x, z), kind=kLoop, calls=two {TWO}""",
        min_shared_bytes=least,
    )
    assert len(kernels(module)) == count


def test_threads_of_both_have_to_be_as_many() -> None:
    """XLA has decided before how many parts a kernel is run in."""
    config = 'backend_config={"outer_dimension_partitions":["2"]}'
    module, log = join(f"""{XYZ} a = f32[256] fusion(x, y), kind=kLoop, calls=one, {config}
        b = f32[256] fusion(x, z), kind=kLoop, calls=two {TWO}""")
    assert len(kernels(module)) == 2 and reasons(log) == {BoundaryReason.LOOP_SHAPES}


@pytest.mark.parametrize(("limit", "tried"), [(3, 3), (64, 9)])
def test_a_kernel_refused_often_looks_no_further(limit: int, tried: int) -> None:
    """Of ten readers of two arrays, each may be compared with nine; time must not grow so."""
    names = [f"k{number}" for number in range(10)]
    made = " ".join(f"{name} = f32[256] fusion(x, y), kind=kLoop, calls=one" for name in names)
    root = f"ROOT t = ({', '.join(['f32[256]'] * 10)}) tuple({', '.join(names)})"
    _, log = join(f"{XYZ} {made} {root}", max_arrays=3, max_refusals=limit)
    assert reasons(log) == {BoundaryReason.BUDGET}
    assert sum(step.producer == "k0" for step in log) == tried
