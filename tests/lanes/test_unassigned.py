"""Modules as XLA:GPU shows them: before it has assigned layouts and fused."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jaxlib import _hlo  # type: ignore[attr-defined]

from fuselane import pipeline
from fuselane.analysis.gpu_time import LAUNCH_US
from fuselane.backends.gpu import GpuBackend
from fuselane.config import Options
from fuselane.decisions import DecisionLog, Reason
from fuselane.gpu import GPUS
from fuselane.hlo.module import HloModule

H200 = GPUS["h200"]

SCAN = """HloModule scan
add_row {
  p = (s32[], f32[300]{0}, f32[1000,300,2]{2,1,0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[300]{0} get-tuple-element(p), index=1
  rows = f32[1000,300,2]{2,1,0} get-tuple-element(p), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  row = f32[1,300,2]{2,1,0} dynamic-slice(rows, i, zero, zero), dynamic_slice_sizes={1,300,2}
  part = f32[1,300,1]{2,1,0} slice(row), slice={[0:1], [0:300], [1:2]}
  flat = f32[300]{0} reshape(part)
  sum = f32[300]{0} add(x, flat)
  sine = f32[300]{0} sine(sum)
  ROOT t = (s32[], f32[300]{0}, f32[1000,300,2]{2,1,0}) tuple(next, sine, rows)
}
condition {
  p = (s32[], f32[300]{0}, f32[1000,300,2]{2,1,0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  end = s32[] constant(1000)
  ROOT c = pred[] compare(i, end), direction=LT
}
ENTRY main {
  zero = s32[] constant(0)
  x = f32[300]{0} parameter(0)
  rows = f32[300,1000,2]{2,1,0} parameter(1)
  first = f32[1000,300,2]{2,0,1} transpose(rows), dimensions={1,0,2}
  t = (s32[], f32[300]{0}, f32[1000,300,2]{2,0,1}) tuple(zero, x, first)
  loop = (s32[], f32[300]{0}, f32[1000,300,2]{2,0,1}) while(t), condition=condition, body=add_row
  ROOT y = f32[300]{0} get-tuple-element(loop), index=1
}"""
"""The rows have one layout outside of the loop and another one inside."""


TWICE = """HloModule twice
step {
  p = (s32[], f32[300]{0}, f32[300]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[300]{0} get-tuple-element(p), index=1
  y = f32[300]{0} get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  sum = f32[300]{0} add(x, y)
  sine = f32[300]{0} sine(sum)
  ROOT t = (s32[], f32[300]{0}, f32[300]{0}) tuple(next, sine, x)
}
condition {
  p = (s32[], f32[300]{0}, f32[300]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  end = s32[] constant(1000)
  ROOT c = pred[] compare(i, end), direction=LT
}
ENTRY main {
  zero = s32[] constant(0)
  x = f32[300]{0} parameter(0)
  t = (s32[], f32[300]{0}, f32[300]{0}) tuple(zero, x, x)
  ROOT loop = (s32[], f32[300]{0}, f32[300]{0}) while(t), condition=condition, body=step
}"""


ZEROS: Final = """HloModule zeros
step {
  p = (s32[], f32[300]{0}, f32[300]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[300]{0} get-tuple-element(p), index=1
  y = f32[300]{0} get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  sum = f32[300]{0} add(x, y)
  sine = f32[300]{0} sine(x)
  ROOT t = (s32[], f32[300]{0}, f32[300]{0}) tuple(next, sine, sum)
}
condition {
  p = (s32[], f32[300]{0}, f32[300]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  end = s32[] constant(1000)
  ROOT c = pred[] compare(i, end), direction=LT
}
ENTRY main {
  first = s32[] constant(0)
  zero = f32[] constant(0)
  zeros = f32[300]{0} broadcast(zero), dimensions={}
  x = f32[300]{0} parameter(0)
  t = (s32[], f32[300]{0}, f32[300]{0}) tuple(first, x, zeros)
  loop = (s32[], f32[300]{0}, f32[300]{0}) while(t), condition=condition, body=step
  total = f32[300]{0} get-tuple-element(loop), index=2
  ROOT most = f32[300]{0} maximum(total, zeros)
}"""
"""What a loop starts from, and a kernel makes itself, is needed behind it too."""


def transformed(options: Options, log: DecisionLog, text: str = SCAN) -> HloModule | None:
    data = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    out = pipeline.transform(data, options, log, GpuBackend(options, H200))
    return None if out is None else HloModule.from_bytes(out)


def test_layouts_that_mean_nothing_are_not_believed() -> None:
    log = DecisionLog()
    module = transformed(Options(min_gain=0, cache_mib=0, verify_hlo=True), log)
    assert module is not None
    (call,) = (i for i in module.entry.instructions if i.opcode == "custom-call")
    assert call.proto.constrain_layout
    layouts = [list(shape.layout.minor_to_major) for shape in call.proto.operand_shapes_with_layout]
    assert layouts == [[0], [2, 1, 0]]
    assert [list(o.shape.minor_to_major) for o in call.operands] == layouts
    (decision,) = log
    assert decision.lanes == 300


def test_an_order_that_the_caller_asks_for_is_not_lost() -> None:
    """XLA:GPU takes the results of a module that a hook returns for row-major."""
    layout = "(f32[300]{0}, f32[300,1000,2]{0,1,2})->f32[300]{0}"
    given = f"HloModule scan, entry_computation_layout={{{layout}}}"
    log = DecisionLog()
    options = Options(min_gain=0, cache_mib=0)
    assert transformed(options, log, SCAN.replace("HloModule scan", given)) is None
    (decision,) = log
    assert decision.reason is Reason.UNSUPPORTED_STRUCTURE
    assert "in which order arguments and results lie in memory" in decision.decision.sentence
    assert transformed(options, DecisionLog()) is not None


def test_what_xla_will_fuse_is_no_launch_each() -> None:
    """Ten instructions a step, but two kernels at most, and what they compute and write."""
    log = DecisionLog()
    assert transformed(Options(cache_mib=0), log) is not None
    (decision,) = log
    launches_us = 1000 * 2 * LAUNCH_US
    assert launches_us < decision.decision.numbers["xla_us"] < 1.05 * launches_us


def test_two_states_may_start_from_one_array() -> None:
    """XLA has not placed the copy yet that keeps them apart."""
    module = transformed(Options(min_gain=0, cache_mib=0, verify_hlo=True), DecisionLog(), TWICE)
    assert module is not None
    (call,) = (i for i in module.entry.instructions if i.opcode == "custom-call")
    shared = [pair.operand_index for pair in call.proto.output_operand_aliasing]
    assert len(shared) == len({call.operands[number] for number in shared})
    assert {call.operands[number].opcode for number in shared} >= {"parameter", "copy"}


def test_no_order_is_made_that_fusions_would_break() -> None:
    """XLA gives up on the whole program where it would fuse away what another has to wait for."""
    module = transformed(Options(min_gain=0, cache_mib=0, verify_hlo=True), DecisionLog(), ZEROS)
    assert module is not None
    assert "custom-call" in {i.opcode for i in module.entry.instructions}
    assert not any(i.control_predecessors for i in module.entry.instructions)


def test_parts_of_complex_numbers_are_put_together_without_bitcasts() -> None:
    """XLA:GPU would give both sides of a bitcast one layout, and refuse the module."""

    def step(z: jax.Array, _: None) -> Any:
        return z * (0.9 + 0.3j), (z[2:3], z[5], z[:1].reshape(1, 1))

    start = jnp.ones(61, jnp.complex64)
    lowered: Any = jax.jit(lambda z: lax.scan(step, z, length=7)).lower(start)
    data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    options = Options(min_gain=0, cache_mib=0, verify_hlo=True)
    out = pipeline.transform(data, options, DecisionLog(), GpuBackend(options, H200))
    assert out is not None
    module = HloModule.from_bytes(out)
    opcodes = [i.opcode for c in module.computations for i in c.instructions]
    assert "custom-call" in opcodes and "bitcast" not in opcodes
    made = module.entry.root.operands[1:]
    assert [(value.opcode, value.shape.dimensions) for value in made] == [
        ("complex", (7, 1)),
        ("complex", (7,)),
        ("complex", (7, 1, 1)),
    ]
