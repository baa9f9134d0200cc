"""Horizontal fusions: their rules, each triggered and just not, and what becomes of a module."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.gpu.rules import GpuRules
from fuselane.fusion.horizontal_input_fusion import HorizontalInputFusion
from fuselane.fusion.horizontal_loop_fusion import HorizontalLoopFusion
from fuselane.fusion.pipelines import for_cpu
from fuselane.hlo import HloModule
from tests.fusion.outline import fuse, fused, module_with, outline, refusals
from tests.hlo.xla import run_module

SUM: Final = "sum { si = f32[] parameter(0) sj = f32[] parameter(1) ROOT sk = f32[] add(si, sj) }"


def kernels(*sizes: int) -> HloModule:
    """A fusion of each size, all of which are results."""
    computations, lines, names = [], [], []
    for number, size in enumerate(sizes):
        shape = f"f32[{size}]"
        computations.append(
            f"""made{number} {{ i{number} = {shape} parameter(0) j{number} = {shape} abs(i{number})
            ROOT k{number} = {shape} sine(j{number}) }}"""
        )
        names.append(f"a{number}")
        lines.append(
            f"""x{number} = {shape} parameter({number})
            a{number} = {shape} fusion(x{number}), kind=kLoop, calls=made{number}"""
        )
    shapes = ", ".join(f"f32[{size}]" for size in sizes)
    lines.append(f"ROOT t = ({shapes}) tuple({', '.join(names)})")
    return module_with(" ".join(lines), *computations)


def test_equal_kernels_become_one_loop() -> None:
    """Golden: results of one shape, one launch."""
    module = kernels(8, 8, 8)
    log = fuse(module, "horizontal-loop-fusion")
    assert outline(module) == [
        "kLoop[abs abs abs sine sine sine] -> sine, sine, sine of x0, x1, x2"
    ]
    assert fused(log) == [("a0", "a1"), ("a0", "a2")]
    assert log.steps[0].decision.numbers == {"kernels": 3}


def test_kernels_of_any_size_write_one_array() -> None:
    """Golden: one after the other, and XLA computes the same from them."""
    module = kernels(8, 3, 5)
    inputs = [np.linspace(0, n, n, dtype=np.float32) for n in (8, 3, 5)]
    expected = run_module(module.to_bytes(), *inputs)
    log = fuse(module, "horizontal-loop-fusion")
    assert outline(module) == [
        "kInput[abs abs abs concatenate sine sine sine slice slice slice]"
        " -> slice, slice, slice of x0, x1, x2"
    ]
    assert [decision.reason for decision in refusals(log)] == [BoundaryReason.LOOP_SHAPES] * 3
    (fusion,) = (i for i in module.entry.instructions if i.opcode == "fusion")
    concatenation = next(i for i in fusion.to_apply.instructions if i.opcode == "concatenate")
    assert concatenation.shape.dimensions == (16,)
    assert [shape.dimensions for shape in fusion.shape.tuple_shapes] == [(8,), (3,), (5,)]
    for result, wanted in zip(run_module(module.to_bytes(), *inputs), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_cpus_have_no_emitter_of_slices() -> None:
    """Only equal kernels are fused there."""
    (cpu,) = for_cpu((HorizontalLoopFusion(),))
    module = kernels(8, 3, 8)
    fuse(module, cpu)
    assert outline(module) == [
        "kLoop[abs abs sine sine] -> sine, sine of x0, x2",
        "kLoop[abs sine] -> sine of x1",
    ]


@pytest.mark.parametrize(
    ("fusion", "num_kernels"),
    [
        (HorizontalLoopFusion(), 1),
        (HorizontalLoopFusion(equal_shapes=False, max_kernels=2), 2),
        (HorizontalLoopFusion(equal_shapes=False, max_elements=7), 4),
        (HorizontalLoopFusion(equal_shapes=False, max_elements=8), 1),
        (HorizontalLoopFusion(equal_shapes=False, max_instructions=2), 4),
        (HorizontalLoopFusion(equal_shapes=False, max_instructions=3), 1),
        (HorizontalLoopFusion(max_equal_fusions=2, tiled_emitters=False), 2),
        (HorizontalLoopFusion(max_equal_elements=7, tiled_emitters=False), 4),
        (HorizontalLoopFusion(max_equal_instructions=2, tiled_emitters=False), 4),
        (HorizontalLoopFusion(max_argument_bytes=65, tiled_emitters=False), 1),
        (HorizontalLoopFusion(max_argument_bytes=64, tiled_emitters=False), 2),
    ],
)
def test_limits(fusion: HorizontalLoopFusion, num_kernels: int) -> None:
    """Four kernels of eight elements, two instructions and a parameter, with two pointers each."""
    module = kernels(8, 8, 8, 8)
    fuse(module, fusion)
    assert len(outline(module)) == num_kernels


def test_single_instructions() -> None:
    """They are no fusions, and up to 64 become one."""
    body = """x = f32[8] parameter(0) y = f32[8] parameter(1) a = f32[8] sine(x) b = f32[8] abs(y)
      ROOT t = (f32[8], f32[8]) tuple(a, b)"""
    module = module_with(body)
    fuse(module, "horizontal-loop-fusion")
    assert outline(module) == ["kLoop[abs sine] -> sine, abs of x, y"]
    module = module_with(body)
    fuse(module, "horizontal-loop-fusion{max-equal-operations=1,tiled-emitters=false}")
    assert outline(module) == ["sine of x", "abs of y"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            """a = f32[8] sine(x) b = f32[8] abs(x)
            c = f32[8] custom-call(a), custom_call_target="c"
            ROOT t = (f32[8], f32[8], f32[8]) tuple(a, b, c)""",
            BoundaryReason.MULTI_OUTPUT,
        ),
        (
            """a = f32[8] sort(x), dimensions={0}, to_apply=less b = f32[8] abs(x)
            ROOT t = (f32[8], f32[8]) tuple(a, b)""",
            BoundaryReason.SORT,
        ),
        (
            """a = f32[8] sine(x) b = f32[8] abs(x), control-predecessors={a}
            ROOT t = (f32[8], f32[8]) tuple(a, b)""",
            BoundaryReason.SIDE_EFFECT,
        ),
        (
            """a = f32[8] sine(x) b = f32[4] slice(x), slice={[0:4]}
            ROOT t = (f32[8], f32[4]) tuple(a, b)""",
            BoundaryReason.NOT_FUSIBLE,
        ),
        (
            """v = f32[4] parameter(1) a = f32[8] sine(x)
            b = f32[8] fusion(x, v), kind=kLoop, calls=put ROOT t = (f32[8], f32[8]) tuple(a, b)""",
            BoundaryReason.IN_PLACE,
        ),
        (
            """y = f32[8,8]{0,1} parameter(1) a = f32[8,8]{0,1} sine(y) b = f32[8,8]{0,1} abs(y)
            ROOT t = (f32[8,8]{0,1}, f32[8,8]{0,1}) tuple(a, b)""",
            BoundaryReason.LAYOUT,
        ),
        (
            """a = f32[8] sine(x) b = (f32[8], s32[8]) fusion(x), kind=kLoop, calls=mixed
            ROOT t = (f32[8], (f32[8], s32[8])) tuple(a, b)""",
            BoundaryReason.LOOP_SHAPES,
        ),
    ],
)
def test_kernels_that_stay_alone(body: str, reason: BoundaryReason) -> None:
    """What others need, what has no loop and what must keep its place."""
    module = module_with(
        "x = f32[8] parameter(0) " + body,
        """less { i = f32[] parameter(0) j = f32[] parameter(1)
        ROOT k = pred[] compare(i, j), direction=LT }""",
        """put { puti = f32[8] parameter(0) putj = f32[4] parameter(1) zero = s32[] constant(0)
        ROOT putk = f32[8] dynamic-update-slice(puti, putj, zero) }""",
        """mixed { mi = f32[8] parameter(0) mj = f32[8] abs(mi) mk = s32[8] convert(mi)
        ROOT mt = (f32[8], s32[8]) tuple(mj, mk) }""",
    )
    log = fuse(module, "horizontal-loop-fusion")
    assert not fused(log)
    assert reason in [decision.reason for decision in refusals(log)]


def test_kernels_that_share_an_argument() -> None:
    """They are left to multi-output fusion, all of them; others become one."""
    module = module_with(
        """x = f32[8] parameter(0) y = f32[8] parameter(1) z = f32[8] parameter(2)
        a = f32[8] sine(x) b = f32[8] abs(x) c = f32[8] sine(y) d = f32[8] abs(z)
        ROOT t = (f32[8], f32[8], f32[8], f32[8]) tuple(a, b, c, d)"""
    )
    log = fuse(module, "horizontal-loop-fusion")
    assert fused(log) == [("c", "d")]
    shared = [s.producer for s in log if "as another of the kernels does" in s.decision.detail]
    assert set(shared) == {"a", "b"}


ROWS: Final = """x = f32[8,64] parameter(0) y = f32[8,64] parameter(1) z = f32[] constant(0)
  a = f32[8] reduce(x, z), dimensions={1}, to_apply=sum
  b = f32[8] fusion(y, z), kind=kInput, calls=rows ROOT c = f32[8] add(a, b)"""
MADE: Final = """rows { ri = f32[8,64] parameter(0) rj = f32[] parameter(1) rl = f32[8,64] sine(ri)
  ROOT rk = f32[8] reduce(rl, rj), dimensions={1}, to_apply=sum }"""

FEWER: Final = """fewer { qi = f32[8,32] parameter(0) qj = f32[] parameter(1)
  ROOT qk = f32[8] reduce(qi, qj), dimensions={1}, to_apply=sum }"""


def test_reductions_that_feed_one_instruction() -> None:
    """Golden: one kernel makes both sums."""
    module = module_with(ROWS, SUM, MADE)
    fuse(module, "horizontal-input-fusion")
    assert outline(module) == [
        "kInput[reduce reduce sine] -> reduce, reduce of x, z, y",
        "add of fusion.0, fusion.1",
    ]


@pytest.mark.parametrize(
    ("body", "fusion", "reason"),
    [
        (
            ROWS.replace("y = f32[8,64]", "y = f32[8,32]").replace("rows", "fewer"),
            HorizontalInputFusion(),
            BoundaryReason.LOOP_SHAPES,
        ),
        (ROWS, HorizontalInputFusion(rules=GpuRules(max_operands=4)), BoundaryReason.BUDGET),
        (ROWS, HorizontalInputFusion(rules=GpuRules(max_operands=5)), None),
        (
            ROWS.replace("ROOT c", "d = f32[8] abs(a) e = f32[8] add(d, b) c").replace(
                "add(a, b)", "add(a, b) ROOT t = (f32[8], f32[8]) tuple(c, e)"
            ),
            HorizontalInputFusion(),
            BoundaryReason.MULTI_OUTPUT,
        ),
    ],
)
def test_reductions_that_stay_apart(
    body: str, fusion: HorizontalInputFusion, reason: BoundaryReason | None
) -> None:
    """Those of other rows, too many operands, and those that others need, too."""
    made = MADE if "calls=rows" in body else FEWER
    log = fuse(module_with(body, SUM, made), fusion)
    assert bool(fused(log)) == (reason is None)
    assert reason is None or reason in [decision.reason for decision in refusals(log)]


def test_reductions_are_loops_on_cpus() -> None:
    """So there is nothing for this pass to do."""
    (cpu,) = for_cpu((HorizontalInputFusion(),))
    assert not fuse(module_with(ROWS, SUM, MADE), cpu).steps
