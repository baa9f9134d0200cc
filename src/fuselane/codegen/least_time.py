"""What a step of a loop takes one thread at least, before there is a lane program.

Where that is more than XLA's time, no kernel is looked for that one thread would run: one without
lanes, or of lanes that see each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from fuselane.analysis.machine_costs import CACHED_BYTES, MachineCosts
from fuselane.codegen.plan import SHARED_BITS, count_passes
from fuselane.codegen.scalar_time import WIDE
from fuselane.codegen.vector_time import DOT_PRODUCT, SMALL_DOT
from fuselane.codegen.vector_timing import PRODUCT
from fuselane.device import DeviceDescription
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction, behind_reshapes
from fuselane.hlo.shape import WIDE_FLOATS


def estimate_least_us(
    loop: HloInstruction, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns less than any kernel takes, on one thread, for the products of one step.

    Without lanes it makes them of shorter vectors than with lanes that see each other. These read
    all matrices in each step, and there is no other tile for which they could stay near the core.

    Args:
        loop: A `while` in normal form; of dots in branches, which may not be taken, and in loops
            inside nothing is counted.
        costs: Those of the machine.
        device: Where the kernel would run.
    """
    dots = [i for i in loop.body.instructions if _is_float_dot(i)]
    alone_us = sum(_alone_us(dot, costs) for dot in dots)
    with_lanes_us = sum(
        min(_alone_us(dot, costs), _least_with_lanes_us(dot, costs, device)) for dot in dots
    )
    return min(alone_us, with_lanes_us + _matrices_us(loop, dots, costs))


def _is_float_dot(instruction: HloInstruction) -> bool:
    return instruction.opcode == "dot" and instruction.shape.element_type in WIDE_FLOATS


def _alone_us(dot: HloInstruction, costs: MachineCosts) -> float:
    """Returns the least time of a dot that all lanes share."""
    vectors = _count_products(dot) * dot.shape.element_type.bits / SHARED_BITS
    return vectors * WIDE * costs.kernel_operation_us


def _least_with_lanes_us(
    dot: HloInstruction, costs: MachineCosts, device: DeviceDescription
) -> float:
    """Returns the least time of a dot of lanes, whichever these are."""
    products, sizes = _count_products(dot), dot.shape.dimensions
    unit_bits = max(device.unit_bits, SHARED_BITS)
    is_looped = products > SMALL_DOT * max(sizes, default=1)
    passes = count_passes(unit_bits, unit_bits) * DOT_PRODUCT if is_looped else 1.0
    vectors = products * dot.shape.element_type.bits / unit_bits
    return vectors * passes * PRODUCT.work * costs.kernel_cycle_us


def _count_products(dot: HloInstruction) -> int:
    return dot.shape.num_elements * DotDimensions.of(dot).contracted_size(dot)


def _matrices_us(
    loop: HloInstruction, dots: Iterable[HloInstruction], costs: MachineCosts
) -> float:
    """Returns the time to read what dots take of arrays that never change, and that are more than a
    core's caches hold: whole ones, and of stacks a part in each step."""
    unchanged = set(loop.body.parameters[0].users).intersection(loop.body.root.operands)
    operands = {behind_reshapes(operand) for dot in dots for operand in dot.operands}
    parts = {i for i in operands if i.opcode == "dynamic-slice" and i.operands[0] in unchanged}
    whole_bytes, part_bytes, stack_bytes = (
        sum(array.shape.byte_size for array in arrays)
        for arrays in (operands & unchanged, parts, {part.operands[0] for part in parts})
    )
    time = costs.moving_us(whole_bytes, whole_bytes) if whole_bytes > CACHED_BYTES else 0.0
    return time + (costs.moving_us(part_bytes, stack_bytes) if stack_bytes > CACHED_BYTES else 0.0)
