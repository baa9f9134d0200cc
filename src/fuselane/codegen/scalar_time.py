"""How long a step takes whose values all lanes share: alone in a kernel without lanes, or once for
every tile.

Such a step is bound by how much there is to compute, or by how long each operation waits for the
one before, whichever takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from fuselane.analysis.cost import OPCODE_COST, instruction_cost
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.codegen.dot_shape import DotShape
from fuselane.codegen.dots import is_looped_dot
from fuselane.codegen.plan import SHARED_BITS, Plan
from fuselane.codegen.schedule import inner_runs, needs_lanes
from fuselane.codegen.wide_dots import choose_side, count_wide_work
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import ElementKind, LaneProgram

CHEAP: Final = 4.0
"""Opcodes of at most this cost are a few independent instructions, others long chains of them."""

_INDEPENDENT: Final = 4
"""Elements of an array from which on LLVM makes vectors of them, in kernels without lanes."""

_BRANCHING: Final = frozenset(
    {
        *("atan2", "cbrt", "cosine", "erf-inv", "log", "log-plus-one"),
        *("power", "remainder", "rsqrt", "sine", "tan"),
    }
)
"""Opcodes whose code branches to rare cases, of which LLVM makes no vectors: nor of what else is
computed for each element of such an array."""

_IN_MEMORY: Final = 4.0
"""Scalar operations that loads, stores and indices take of what is done to an element of an array
in memory: measured on the shared work of a backward solve of diffrax's."""

_ROW_END: Final = 24.0
"""Rows of so many elements take vectors twice as long, for what is left over at their ends."""

_PRODUCT: Final = 0.4
_SUM: Final = 0.35
"""Scalar operations that a product of a dot, and an element of a long sum, take."""

_LOOSE: Final = 1.5
"""The same of a product of a matrix without lanes, of which there are no vectors."""

_WIDE: Final = 1.5
"""Vector operations that one product of vectors takes, with its loads: measured, 0.2 ns."""

_FEW_PRODUCTS: Final = 60.0
"""Vector operations that a dot of vectors takes beside its products."""

_LATENCY: Final = 4.0
_FUNCTION_LATENCY: Final = 2.5
"""How much longer it takes until an operation is done than until the next can begin."""

_DIVIDER_LATENCY: Final[Mapping[str, float]] = {"divide": 15.0, "rsqrt": 30.0, "sqrt": 15.0}
"""Scalar operations until what the divider makes is done."""


def operation_us(instruction: HloInstruction, costs: MachineCosts) -> float:
    """Returns the time of one operation of an instruction on a vector register."""
    is_cheap = OPCODE_COST.get(instruction.opcode, 1.0) <= CHEAP
    return costs.kernel_operation_us if is_cheap else costs.kernel_function_us


def estimate_shared_us(
    program: LaneProgram, plan: Plan, computation: HloComputation, costs: MachineCosts
) -> float:
    """Returns the time of what all lanes share in one run of a computation, in microseconds."""
    shared = [i for i in computation.instructions if has_work(i) and not needs_lanes(i, program)]
    branching = {i.shape.dimensions for i in shared if i.opcode in _BRANCHING}
    work = sum(_work_us(i, program, plan, costs, branching) for i in shared)
    waiting = 0.0 if program.has_lanes else _waiting_us(shared, program, plan, costs)
    nested = sum(
        times * estimate_shared_us(program, plan, inner, costs)
        for instruction in computation.instructions
        for inner, times in inner_runs(instruction, program)
    )
    copied = sum(_copied_bytes(i, program, plan) for i in computation.instructions)
    return max(work, waiting) + nested + costs.moving_us(2 * copied, copied)


def _copied_bytes(loop: HloInstruction, program: LaneProgram, plan: Plan) -> int:
    """Returns the bytes of large state that is copied into an inner loop and out of it, if it is
    one without lanes."""
    if loop.opcode != "while" or program.has_lanes:
        return 0
    shapes = [e.shape for e in program.loops[loop].elements if e.kind is ElementKind.STATE]
    return 2 * sum(s.byte_size for s in shapes if s.num_elements > plan.max_unrolled)


def has_work(instruction: HloInstruction) -> bool:
    """Whether an instruction computes something itself, as loops and tuples do not."""
    return instruction.shape.is_array or instruction.opcode in ("reduce", "sort")


def _work_us(
    instruction: HloInstruction,
    program: LaneProgram,
    plan: Plan,
    costs: MachineCosts,
    branching: Collection[tuple[int, ...]],
) -> float:
    """Returns the time of an instruction beside others that do not wait for it; `branching` are
    the sizes of arrays whose elements are computed one by one."""
    operations = instruction_cost(instruction, program.lane_dimensions.get, lambda _: None)
    match instruction.opcode:
        case "reduce":
            is_long = instruction.operands[0].shape.num_elements > plan.max_unrolled
            return operations * costs.kernel_scalar_us * (_SUM if is_long else 1.0)
        case "dot":
            wide = _count_wide(instruction, program, plan)
            if wide is not None:
                return (_WIDE * wide[0] + _FEW_PRODUCTS) * costs.kernel_operation_us
            is_scalar = not program.has_lanes and is_looped_dot(instruction, program)
            return operations * costs.kernel_scalar_us * (_LOOSE if is_scalar else _PRODUCT)
        case "sort":
            return operations * costs.kernel_scalar_us
    shape = instruction.shape
    if shape.num_elements < _INDEPENDENT or program.has_lanes:
        if operations and shape.num_elements > plan.max_unrolled:
            operations += _IN_MEMORY * shape.num_elements
        return operations * max(costs.kernel_scalar_us, operation_us(instruction, costs))
    if shape.dimensions in branching:
        return operations * max(costs.kernel_scalar_us, operation_us(instruction, costs))
    share = 2 * shape.element_type.bits / SHARED_BITS
    if shape.num_elements > plan.max_unrolled:
        share *= 1 + _ROW_END / shape.dimensions[-1]
    return operations * share * operation_us(instruction, costs)


def _waiting_us(
    instructions: Iterable[HloInstruction], program: LaneProgram, plan: Plan, costs: MachineCosts
) -> float:
    """Returns the longest chain of operations that wait for each other."""
    done: dict[HloInstruction, float] = {}
    for instruction in instructions:
        start = max((done.get(operand, 0.0) for operand in instruction.operands), default=0.0)
        done[instruction] = start + _latency_us(instruction, program, plan, costs)
    return max(done.values(), default=0.0)


def _count_wide(
    dot: HloInstruction, program: LaneProgram, plan: Plan
) -> tuple[float, float] | None:
    """Returns what `count_wide_work` says of a dot of vectors, None if it is none."""
    if not plan.shared_bits or not is_looped_dot(dot, program):
        return None
    shape = DotShape.of(dot, program)
    side = choose_side(dot, shape)
    width = plan.shared_bits // dot.shape.element_type.bits
    return None if side is None else count_wide_work(shape, side, width)


def _latency_us(
    instruction: HloInstruction, program: LaneProgram, plan: Plan, costs: MachineCosts
) -> float:
    one = _LATENCY * costs.kernel_scalar_us
    match instruction.opcode:
        case "reduce":
            size = instruction.operands[0].shape.num_elements
            return one * math.log2(size + 1) if size <= plan.max_unrolled else 0.0
        case "dot":
            wide = _count_wide(instruction, program, plan)
            if wide is not None:
                return one * wide[1]
            size = DotDimensions.of(instruction).contracted_size(instruction)
            return one * math.log2(size + 1)
        case "sort":
            return 0.0
    if instruction.opcode in _DIVIDER_LATENCY:
        return _DIVIDER_LATENCY[instruction.opcode] * costs.kernel_scalar_us
    cost = OPCODE_COST.get(instruction.opcode, 1.0)
    if cost > CHEAP:
        return cost * _FUNCTION_LATENCY * costs.kernel_function_us
    return one if cost > 0 else 0.0
