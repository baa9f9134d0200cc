"""What stands outside of fusions behind kernels is fused; what XLA has fused stays as it is."""

from __future__ import annotations

import numpy as np

from fuselane.fusion.remainder import fuse_remainder
from fuselane.hlo import HloModule, verify
from tests.hlo.xla import module_of, parse, run_module, to_text

TEXT = """HloModule m
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
one { p = f32[16] parameter(0) ROOT r = f32[16] sine(p) }
two { p = f32[16] parameter(0) ROOT r = f32[16] cosine(p) }
at { p = f32[16] parameter(0) q = f32[16] parameter(1) z = s32[] constant(3)
  i = s32[16,1] broadcast(z), dimensions={}
  ROOT r = f32[16] scatter(p, i, q), to_apply=sum, update_window_dims={}, index_vector_dim=1,
    inserted_window_dims={0}, scatter_dims_to_operand_dims={0} }
ENTRY main { x = f32[8,16] parameter(0) y = f32[16] parameter(1) %s
}"""


def fused(entry: str) -> HloModule:
    """Returns the module after the pass, whose results stay the same."""
    module = module_of(TEXT % entry)
    fuse_remainder(module)
    module.remove_unused_computations()
    verify(module)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=size).astype(np.float32) for size in ((8, 16), (16,))]
    expected = run_module(parse(TEXT % entry), *inputs)
    for left, right in zip(expected, run_module(module.to_bytes(), *inputs), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)
    return module


def opcodes(module: HloModule) -> list[str]:
    return [i.opcode for i in module.entry.instructions if i.opcode != "parameter"]


def test_an_epilogue_becomes_one_kernel() -> None:
    """A sum, what is done with it, and the bitcast to what the user reads."""
    module = fused("""z = f32[] constant(0)
        s = f32[16] reduce(x, z), dimensions={0}, to_apply=sum
        q = f32[16] sqrt(s) n = f32[16] negate(q) ROOT b = f32[16] bitcast(n)""")
    assert opcodes(module) == ["constant", "fusion"]


def test_a_lone_instruction_gets_a_fusion() -> None:
    """As XLA's FusionWrapper does."""
    module = fused("ROOT n = f32[16] negate(y)")
    assert opcodes(module) == ["fusion"]


def test_pairs_of_floats_become_complex_outside_of_fusions() -> None:
    """In one XLA ends the process: its emitters take a bitcast's elements one for one."""
    module = module_of(TEXT % "n = f32[16] negate(y) c = c64[8] bitcast(n) ROOT a = f32[8] abs(c)")
    fuse_remainder(module)
    verify(module)
    assert opcodes(module) == ["fusion", "bitcast", "fusion"]


def test_fusions_of_xla_stay_apart() -> None:
    """Only what no fusion holds yet is a producer: XLA has decided about its own."""
    module = fused("""f = f32[16] fusion(y), kind=kLoop, calls=one
        g = f32[16] fusion(f), kind=kLoop, calls=two ROOT n = f32[16] negate(g)""")
    assert opcodes(module) == ["fusion", "fusion", "fusion"]


def test_nothing_is_computed_inside_of_a_scatter() -> None:
    """Its kernel changes what is in memory already."""
    module = fused("""z = f32[] constant(0)
        s = f32[16] reduce(x, z), dimensions={0}, to_apply=sum n = f32[16] add(s, y)
        ROOT r = f32[16] fusion(n, y), kind=kLoop, calls=at""")
    operand, _, updates = module.entry.root.to_apply.root.operands
    assert (operand.opcode, updates.opcode) == ("parameter", "parameter")


def test_copies_and_updates_keep_their_buffers() -> None:
    """XLA has placed them where they are."""
    module = fused("""i = s32[] constant(3) u = f32[4] slice(y), slice={[0:4]} c = f32[16] copy(y)
        ROOT d = f32[16] dynamic-update-slice(c, u, i)""")
    assert sorted(opcodes(module)) == ["constant", "copy", "dynamic-update-slice", "fusion"]


def test_a_module_without_anything_bare_is_left_alone() -> None:
    """Word by word."""
    text = TEXT % "ROOT f = f32[16] fusion(y), kind=kLoop, calls=one"
    module, before = module_of(text), to_text(module_of(text).to_bytes())
    fuse_remainder(module)
    assert to_text(module.to_bytes()) == before
