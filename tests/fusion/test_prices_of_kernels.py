"""Which straight-line code gets a kernel by estimate, on which machine, and by what numbers."""

from __future__ import annotations

import dataclasses
from typing import Final

import pytest

from fuselane.backends import cpu
from fuselane.backends.cpu import CpuBackend
from fuselane.config import Options
from fuselane.decisions import DecisionLog
from fuselane.device import DeviceDescription
from fuselane.fusion.decision import FusionDecision
from fuselane.fusion.gpu.launch_2024 import running_2024
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.pipelines import parse_pipeline, run_pipeline
from fuselane.gpu import GPUS
from fuselane.pipeline import with_kernels
from fuselane.runtime.costs import built_in_costs
from tests.codegen.kernels import DEVICE
from tests.fusion.outline import module_with
from tests.hlo.xla import module_of

AVX512: Final = DEVICE
AVX2: Final = dataclasses.replace(
    DEVICE, vector_bits=256, unit_bits=256, num_vector_registers=16, has_masked_memory=False
)

REGIONS: Final = """
add { l = f32[] parameter(0) r = f32[] parameter(1) ROOT o = f32[] add(l, r) }
max { l = f32[] parameter(0) r = f32[] parameter(1) ROOT o = f32[] maximum(l, r) }
"""


def decide(text: str, device: DeviceDescription, monkeypatch: pytest.MonkeyPatch) -> FusionDecision:
    """Returns the decision about the region that XLA takes longest for."""
    monkeypatch.setattr(cpu, "host_device", lambda: device)
    options = Options()
    backend = CpuBackend(options, is_dry=True, costs=built_in_costs(device))
    module = module_of(f"HloModule m\n{REGIONS}{text}")
    strategy = with_kernels(parse_pipeline("lane-kernels"), module, options, DecisionLog(), backend)
    steps = run_pipeline(strategy, module)
    decision: FusionDecision = max(
        (step.decision for step in steps), key=lambda d: d.numbers.get("xla_us", 0.0)
    )
    return decision


def normalised(along: int, name: str, result: str) -> tuple[str, str]:
    """Returns the computations and instructions of the logarithms of a softmax's sums along one
    dimension of `scores`, as XLA:CPU leaves them."""
    kept = 1 - along
    computations = f"""
    centre_{name} {{
      x = f32[512,512] parameter(0) low = f32[] parameter(1)
      m = f32[512] reduce(x, low), dimensions={{{along}}}, to_apply=max
      b = f32[512,512] broadcast(m), dimensions={{{kept}}}
      ROOT y = f32[512,512] subtract(x, b)
    }}
    sum_{name} {{
      zero = f32[] parameter(0) x = f32[512,512] parameter(1)
      e = f32[512,512] exponential(x)
      ROOT s = f32[512] reduce(e, zero), dimensions={{{along}}}, to_apply=add
    }}
    log_{name} {{ x = f32[512] parameter(0) ROOT y = f32[512] log(x) }}
    pick_{name} {{
      x = f32[512,512] parameter(0) l = f32[512] parameter(1) at = s32[512,2] parameter(2)
      b = f32[512,512] broadcast(l), dimensions={{{kept}}}
      y = f32[512,512] subtract(x, b)
      g = f32[512,1,1] gather(y, at), offset_dims={{1,2}}, collapsed_slice_dims={{}},
        start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{1,1}}
      ROOT r = f32[512] bitcast(g)
    }}"""
    instructions = f"""
      c_{name} = f32[512,512] fusion(scores, low), kind=kCustom, calls=centre_{name}
      s_{name} = f32[512] fusion(zero, c_{name}), kind=kCustom, calls=sum_{name}
      l_{name} = f32[512] fusion(s_{name}), kind=kLoop, calls=log_{name}
      {result} = f32[512] fusion(c_{name}, l_{name}, at), kind=kLoop, calls=pick_{name}"""
    return computations, instructions


def contrastive() -> str:
    """Cross-entropies of scores along rows and along columns, as of a contrastive loss."""
    by_row, rows = normalised(1, "r", "p")
    by_column, columns = normalised(0, "c", "q")
    return f"""
    {by_row}
    {by_column}
    scale {{
      x = f32[512,512] parameter(0) s = f32[] parameter(1)
      b = f32[512,512] broadcast(s), dimensions={{}}
      ROOT y = f32[512,512] multiply(x, b)
    }}
    places {{
      i = s32[512,1] iota(), iota_dimension=0
      ROOT at = s32[512,2] concatenate(i, i), dimensions={{1}}
    }}
    mean {{
      p = f32[512] parameter(0) q = f32[512] parameter(1)
      n = f32[512] add(p, q) zero = f32[] constant(0)
      ROOT m = f32[] reduce(n, zero), dimensions={{0}}, to_apply=add
    }}
    ENTRY main {{
      x = f32[512,512] parameter(0) s = f32[] parameter(1)
      low = f32[] constant(-inf) zero = f32[] constant(0)
      at = s32[512,2] fusion(), kind=kLoop, calls=places
      scores = f32[512,512] fusion(x, s), kind=kLoop, calls=scale,
        backend_config={{"outer_dimension_partitions":["2"]}}
      {rows}
      {columns}
      ROOT m = f32[] fusion(p, q), kind=kLoop, calls=mean
    }}"""


@pytest.mark.parametrize("device", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_a_contrastive_loss_is_left_to_xlas_library(
    device: DeviceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no lanes, as sums go along rows and along columns, so that a kernel runs on one
    thread, and has 2 MiB to keep until it knows them. The library's vectors are as wide as ours.

    With AVX2 a kernel was measured at 606 us, XLA at 722 of processor time.
    """
    numbers = decide(contrastive(), device, monkeypatch).numbers
    assert numbers["kernel_us"] > 1.3 * numbers["xla_us"]
    is_narrow = device is AVX2
    assert numbers["kernel_us"] == pytest.approx(600 if is_narrow else 415, rel=0.1)
    one_core = dataclasses.replace(device, num_cores=1)
    numbers = decide(contrastive(), one_core, monkeypatch).numbers
    assert numbers["xla_us"] == pytest.approx(685 if is_narrow else 425, rel=0.1)


def test_wide_vectors_are_the_librarys_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with AVX2 and with AVX-512 on a Zen 5: a softmax took 1.03 and 0.41 ns an
    element, processor time of both cores."""
    one_core = [dataclasses.replace(device, num_cores=1) for device in (AVX2, AVX512)]
    narrow, wide = (
        decide(contrastive(), device, monkeypatch).numbers["xla_us"] for device in one_core
    )
    assert 0.5 < wide / narrow < 0.7


CLIPPED = """
squares { x = f32[768] parameter(0) ROOT y = f32[768] multiply(x, x) }
parts {
  x = f32[768] parameter(0) zero = f32[] parameter(1)
  ROOT r = f32[24] reduce-window(x, zero), window={size=32 stride=32}, to_apply=add
}
sum {
  zero = f32[] parameter(0) x = f32[768,768] parameter(1)
  y = f32[768,768] multiply(x, x)
  ROOT s = f32[] reduce(y, zero), dimensions={0,1}, to_apply=add
}
factor {
  s = f32[] parameter(0) p = f32[24] parameter(1) zero = f32[] constant(0) one = f32[] constant(1)
  t = f32[] reduce(p, zero), dimensions={0}, to_apply=add
  u = f32[] add(s, t) n = f32[] sqrt(u)
  ROOT f = f32[] divide(one, n)
}
scale {
  x = f32[768,768] parameter(0) f = f32[] parameter(1) one = f32[] constant(1)
  m = f32[] minimum(f, one) b = f32[768,768] broadcast(m), dimensions={}
  ROOT y = f32[768,768] multiply(x, b)
}
ENTRY main {
  bias = f32[768] parameter(0) weights = f32[768,768] parameter(1) zero = f32[] constant(0)
  b = f32[768] fusion(bias), kind=kLoop, calls=squares
  p = f32[24] fusion(b, zero), kind=kLoop, calls=parts
  s = f32[] fusion(zero, weights), kind=kCustom, calls=sum
  f = f32[] fusion(s, p), kind=kLoop, calls=factor
  ROOT y = f32[768,768] fusion(weights, f), kind=kLoop, calls=scale,
    backend_config={"outer_dimension_partitions":["2"]}
}"""


def test_what_is_left_behind_a_kernel_has_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients clipped by their norm: the 24 partial sums of the bias can be lanes, and all that
    goes through the weights, a sum included that XLA's library does else, then follows behind the
    kernel as XLA's."""
    decision = decide(CLIPPED, AVX2, monkeypatch)
    assert not decision.can_fuse
    assert decision.numbers["kernel_us"] > 1.5 * decision.numbers["xla_us"]


@pytest.mark.parametrize(
    ("shape", "dimension", "blocks", "threads"),
    [
        ((256, 128), 0, 4, 1024),
        ((8192, 128), 0, 8, 1024),
        ((256, 128), 1, 32, 256),
        ((10000,), 0, 1, 640),
        ((20480,), 0, 2, 1024),
        ((64, 16), 1, 4, 256),
    ],
)
def test_launches_of_2024(
    shape: tuple[int, ...], dimension: int, blocks: int, threads: int
) -> None:
    """A block summed up 4,096 rows of 32 columns, or 16 numbers of a row for each thread."""
    sizes = ",".join(map(str, shape))
    kept = ",".join(str(s) for d, s in enumerate(shape) if d != dimension)
    module = module_with(
        f"""x = f32[{sizes}] parameter(0) z = f32[] constant(0)
        ROOT r = f32[{kept}] reduce(x, z), dimensions={{{dimension}}}, to_apply=sum""",
        "sum { i = f32[] parameter(0) j = f32[] parameter(1) ROOT k = f32[] add(i, j) }",
    )
    gpu = GPUS["h100"]
    running = running_2024(PerformanceModel(gpu).plan(module.entry.root), gpu)
    assert running.blocks == blocks
    assert running.units == min(blocks, gpu.num_multiprocessors) * min(threads, gpu.fp32_units)
