"""What one thread takes at least for a step of a loop."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fuselane.analysis.machine_costs import CACHED_BYTES, MachineCosts
from fuselane.codegen.least_time import estimate_least_us
from fuselane.codegen.plan import SHARED_BITS
from fuselane.codegen.scalar_time import WIDE
from fuselane.codegen.vector_timing import PRODUCT
from fuselane.lanes.normalise import normalise
from tests.codegen.test_kernel_time import COSTS, DEVICE, elementwise, step_us
from tests.lanes.loops import counting_loop, loop_of


@pytest.mark.parametrize("unit_bits", [256, 512])
@pytest.mark.parametrize("sizes", [("32,32", "32,32"), ("64,128", "128,64"), ("512,8", "8,512")])
def test_no_kernel_of_one_thread_takes_less_than_its_products(
    sizes: tuple[str, str], unit_bits: int
) -> None:
    left, right = (f"f32[{size}]" for size in sizes)
    rows = f"f32[{sizes[0].split(',')[0]},{sizes[1].split(',')[1]}]"
    body = f"""
      d = {rows} dot(e0, e1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
      s = f32[] constant(0.5)
      b = {rows} broadcast(s), dimensions={{}}
      t = {rows} multiply(d, b)
      total = {rows} add(e2, t)
      x = {left} sine(e0)"""
    module = counting_loop(body, ["x", "e1", "total"], [left, right, rows])
    device = dataclasses.replace(DEVICE, vector_bits=512, unit_bits=unit_bits)
    least_us = estimate_least_us(normalise(loop_of(module)).loop, COSTS, device)
    assert 0 < least_us < step_us(module, device)


def test_a_matrix_larger_than_the_caches_is_read_in_each_step() -> None:
    """By lanes that see each other; without lanes, what vectors take is more than that."""

    def least_us(size: int, costs: MachineCosts) -> float:
        shapes = [f"f32[{size}]", f"f32[{size},{size}]"]
        body = (
            f"y = {shapes[0]} dot(e1, e0), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        )
        loop = normalise(loop_of(counting_loop(body, ["y", "e1"], shapes))).loop
        return estimate_least_us(loop, costs, dataclasses.replace(DEVICE, unit_bits=512))

    fast = dataclasses.replace(COSTS, memory_bytes_per_us=math.inf)
    slow = dataclasses.replace(COSTS, memory_bytes_per_us=1.0)
    assert 4 * 500**2 < CACHED_BYTES < 4 * 600**2
    assert least_us(500, fast) == least_us(500, slow)
    products_us = 600**2 * 32 / SHARED_BITS * WIDE * COSTS.kernel_operation_us
    assert least_us(600, fast) < least_us(600, slow) == pytest.approx(products_us)


def test_of_what_may_not_run_no_least_time_is_known() -> None:
    assert estimate_least_us(normalise(loop_of(elementwise("sine", 64))).loop, COSTS, DEVICE) == 0
    more = """
    product {
      m = f32[64,64] parameter(0)
      ROOT d = f32[64,64] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }
    nothing { ROOT n = f32[64,64] parameter(0) }
    """
    body = """
    is_odd = pred[] compare(i, one), direction=EQ
    y = f32[64,64] conditional(is_odd, e0, e0), true_computation=product, false_computation=nothing
    """
    module = counting_loop(body, ["y"], ["f32[64,64]"], more=more)
    assert estimate_least_us(normalise(loop_of(module)).loop, COSTS, DEVICE) == 0


def test_of_a_stack_of_matrices_each_step_reads_a_part() -> None:
    def least_us(count: int, bytes_per_us: float) -> float:
        shapes = ["f32[64,256]", f"f32[{count},256,256]"]
        body = """
          part = f32[1,256,256] dynamic-slice(e1, i, zero, zero), dynamic_slice_sizes={1,256,256}
          w = f32[256,256] reshape(part)
          y = f32[64,256] dot(e0, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
        loop = normalise(loop_of(counting_loop(body, ["y", "e1"], shapes, trip_count=count))).loop
        costs = dataclasses.replace(COSTS, memory_bytes_per_us=bytes_per_us)
        return estimate_least_us(loop, costs, dataclasses.replace(DEVICE, unit_bits=512))

    quick, slow = 40_000.0, 20_000.0
    assert least_us(3, quick) == least_us(3, slow), "stays in the caches"
    more_us = least_us(8, slow) - least_us(8, quick)
    assert more_us == pytest.approx(4 * 256**2 * (1 / slow - 1 / quick))


@pytest.mark.parametrize(("size", "waits"), [(8, False), (9, True)])
def test_only_dots_of_many_products_wait_for_loads(size: int, waits: bool) -> None:
    """Of more than 64 for each lane: others are written out."""
    shape = f"f32[512,{size}]"
    body = f"y = {shape} dot(e0, e1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    module = counting_loop(body, ["y", "e1"], [shape, f"f32[{size},{size}]"])
    device = dataclasses.replace(DEVICE, unit_bits=512)
    least_us = estimate_least_us(normalise(loop_of(module)).loop, COSTS, device)
    peak_us = 512 * size**2 * 32 / 512 * PRODUCT.work * COSTS.kernel_cycle_us
    assert least_us >= peak_us * (1 - 1e-9)
    assert (least_us > 1.5 * peak_us) == waits
