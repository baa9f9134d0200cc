"""XLA:GPU's rules of legality: for each, a pair it refuses and one it just does not."""

from __future__ import annotations

from typing import Final

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.gpu.rules import GpuRules, check_pair
from fuselane.hlo import HloInstruction, HloModule
from tests.fusion.outline import module_with

LESS: Final = """less { li = f32[] parameter(0) lj = f32[] parameter(1)
  ROOT lk = pred[] compare(li, lj), direction=LT }"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("p = f32[8] abs(x) ROOT c = f32[8] negate(p)", None),
        ("ROOT p = f32[8] abs(x) c = f32[8] negate(p)", BoundaryReason.EXIT),
        (
            "p = f32[8] sort(x), dimensions={0}, to_apply=less ROOT c = f32[8] negate(p)",
            BoundaryReason.SORT,
        ),
        (
            "p = f32[8] abs(x) ROOT c = f32[8] sort(p), dimensions={0}, to_apply=less",
            BoundaryReason.SORT,
        ),
        ("p = f32[8] abs(x) ROOT c = f32[8,1] bitcast(p)", BoundaryReason.NOT_FUSIBLE),
        ("p = f32[8] abs(x) ROOT c = f32[8,1] reshape(p)", None),
    ],
)
def test_pairs(body: str, reason: BoundaryReason | None) -> None:
    """Results of the program, sorts on either side, and bitcasts, which need no kernel."""
    refusal = check_pair(*ends(module_with("x = f32[8] parameter(0) " + body, LESS)))
    assert (refusal and refusal.reason) is reason


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (GpuRules(), None),
        (GpuRules(max_shared_bytes=8447), BoundaryReason.BUDGET),
        (GpuRules(max_shared_bytes=8448), None),
        (GpuRules(max_shared_bytes=8447, tiled_emitters=False), None),
    ],
)
def test_shared_memory(rules: GpuRules, reason: BoundaryReason | None) -> None:
    """Two transposes of 32 by 33 numbers of four bytes each; in loops, none is needed."""
    refusal = rules.check_heavy(
        module_with("""x = f32[64,64] parameter(0) p = f32[64,64] transpose(x), dimensions={1,0}
        ROOT c = f32[64,64] transpose(p), dimensions={1,0}""").entry.instructions
    )
    assert (refusal and refusal.reason) is reason
    assert refusal is None or refusal.numbers == {"shared_bytes": 8448, "limit": 8447}


def ends(module: HloModule) -> tuple[HloInstruction, HloInstruction]:
    by_name = {i.name: i for i in module.entry.instructions}
    return by_name["p"], by_name["c"]
