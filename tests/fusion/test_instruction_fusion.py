"""Instruction fusion over whole modules: the order, what is kept whole, what XLA:CPU does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.edges import Values, find_edges
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.hlo import HloInstruction, HloModule, verify
from fuselane.hlo.container import module_in
from tests.hlo.xla import module_of, to_text


def fuse(module: HloModule, **options: Any) -> FusionLog:
    """Runs the pass, checks the module and returns the log."""
    log = FusionLog()
    InstructionFusion(**options).run(module, log)
    verify(module)
    to_text(module.to_bytes())
    return log


def fusions(module: HloModule) -> list[HloInstruction]:
    return [i for i in module.entry.instructions if i.opcode == "fusion"]


def test_chain_becomes_one_kernel() -> None:
    """Everything up to the parameters is computed in the last kernel."""
    module = module_of("""HloModule m
    ENTRY main { x = f32[8] parameter(0) a = f32[8] sine(x) b = f32[8] add(a, x)
      ROOT c = f32[8] negate(b) }""")
    log = fuse(module)
    (fusion,) = fusions(module)
    assert fusion.is_root
    assert fusion.fusion_kind == "kLoop"
    assert fusion.operands == module.entry.parameters
    assert [step.producer for step in log if step.decision.can_fuse] == ["b", "a"]
    assert all(step.fusion == fusion.name for step in log if step.decision.can_fuse)


def test_cheap_producer_is_computed_twice_and_an_expensive_one_once() -> None:
    """XLA:CPU computes a shared sine once for each kernel, a shared exponential in its own."""
    for opcode, num_kernels in (("sine", 2), ("exponential", 3)):
        module = module_of(f"""HloModule m
        ENTRY main {{ x = f32[8] parameter(0) a = f32[8] {opcode}(x) b = f32[8] negate(a)
          c = f32[8] abs(a) d = f32[8] floor(b) e = f32[8] ceil(c)
          ROOT t = (f32[8], f32[8]) tuple(d, e) }}""")
        fuse(module)
        kernels = [i for i in module.entry.instructions if i.opcode not in ("parameter", "tuple")]
        assert len(kernels) == num_kernels


def test_what_reads_more_than_it_makes_is_kept_whole() -> None:
    """A sum that a sort needs in memory is read there by the product, too."""
    module = module_of("""HloModule m
    less { a = f32[] parameter(0) b = f32[] parameter(1)
      ROOT s = pred[] compare(a, b), direction=LT }
    ENTRY main { x = f32[8] parameter(0) y = f32[8] parameter(1) p = f32[8] add(x, y)
      q = f32[8] sort(p), dimensions={0}, to_apply=less ROOT c = f32[8] multiply(p, q) }""")
    log = fuse(module)
    assert not fusions(module)
    refusal = log.refusals()["p", "c"]
    assert refusal.reason is BoundaryReason.DUPLICATION
    assert "all paths" in refusal.detail


def test_bodies_of_loops_are_fused_and_reducers_are_not() -> None:
    """Control flow is entered; what is applied element by element stays as it is."""
    module = module_of("""HloModule m
    combine { a = f32[] parameter(0) b = f32[] parameter(1) n = f32[] negate(b)
      ROOT s = f32[] add(a, n) }
    body { p = (s32[], f32[8]) parameter(0) i = s32[] get-tuple-element(p), index=0
      x = f32[8] get-tuple-element(p), index=1 k = s32[] constant(1) j = s32[] add(i, k)
      y = f32[8] sine(x) z = f32[8] abs(y) ROOT r = (s32[], f32[8]) tuple(j, z) }
    condition { p = (s32[], f32[8]) parameter(0) i = s32[] get-tuple-element(p), index=0
      n = s32[] constant(9) ROOT l = pred[] compare(i, n), direction=LT }
    ENTRY main { x = f32[8] parameter(0) zero = s32[] constant(0) z = f32[] constant(0)
      init = (s32[], f32[8]) tuple(zero, x)
      loop = (s32[], f32[8]) while(init), condition=condition, body=body
      v = f32[8] get-tuple-element(loop), index=1
      ROOT s = f32[] reduce(v, z), dimensions={0}, to_apply=combine }""")
    fuse(module)
    by_name = {c.name: c for c in module.computations}
    assert any(i.opcode == "fusion" for i in by_name["body"].instructions)
    assert not any(i.opcode == "fusion" for i in by_name["combine"].instructions)


def test_decisions_are_deterministic() -> None:
    """Two runs take the same decisions in the same order."""
    first, second = (fuse(module_of(STEP)) for _ in range(2))
    assert first.steps == second.steps


STEP = """HloModule m
ENTRY main { x = f32[4,64] parameter(0) y = f32[64] parameter(1)
  a = f32[4,64] broadcast(y), dimensions={1} b = f32[4,64] multiply(x, a)
  c = f32[4,64] exponential(b) d = f32[4,64] add(c, b) e = f32[4,64] subtract(c, x)
  ROOT t = (f32[4,64], f32[4,64]) tuple(d, e) }"""


def attention(x: jax.Array, mask: jax.Array) -> jax.Array:
    scores = jnp.where(mask, x @ x.T / 8.0, -1e9)
    return jax.nn.softmax(scores) @ jax.nn.gelu(x)


def statistics(x: jax.Array, mask: jax.Array) -> Any:
    y = jnp.sin(x) * jnp.exp(-x) + jnp.concatenate([x[1:], x[:1]])
    return y.mean(0), y.std(1), jnp.where(mask.sum() > 3, y, jnp.flip(y)), jnp.cumsum(y, 0)


def rollout(x: jax.Array, mask: jax.Array) -> Any:
    def step(x: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.tanh(x) + jnp.cos(x * t) / (1 + x**2)
        return x.at[t].set(0.0), x[t] * 2

    return jax.lax.scan(step, x, jnp.arange(32))


@pytest.mark.parametrize("function", [attention, statistics, rollout])
def test_agrees_with_xla_on_cpu(function: Any, tmp_path: Path) -> None:
    """XLA:CPU's own fusion pass computes the same values in the same kernels."""
    x, mask = np.ones((32, 16), np.float32), np.ones((32, 32), bool)
    jax.jit(function).lower(x, mask).compile(
        compiler_options={
            "xla_dump_to": str(tmp_path),
            "xla_dump_hlo_pass_re": ".*",
            "xla_dump_hlo_as_proto": True,
        }
    )
    (after,) = tmp_path.glob("*after_fusion.before*.hlo.pb")
    stem, number = after.name.split(".")[0:2], int(after.name.split(".")[2])
    (before,) = tmp_path.glob(f"{'.'.join(stem)}.{number - 1:04d}.*.hlo.pb")
    ours = HloModule.from_bytes(module_in(before.read_bytes()))
    fuse(ours)
    values = Values()
    expected = find_edges(HloModule.from_bytes(module_in(after.read_bytes())), values)
    assert find_edges(ours, values) == expected
    assert any(edge.is_fused for edge in expected[0])
