"""How long a step takes whose values all lanes share: alone in a kernel without lanes, or once for
every tile.

Such a step is bound by how much there is to compute, or by how long operations wait for those
before, in this step or the last, whichever takes longer: what waits for nothing of the last step
begins before that is over.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from fuselane.analysis.cost import OPCODE_COST, instruction_cost, is_known
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.codegen.arg_extremes import find_extreme
from fuselane.codegen.dot_shape import DotShape
from fuselane.codegen.dots import is_looped_dot
from fuselane.codegen.lookahead import Lookahead
from fuselane.codegen.plan import SHARED_BITS, Plan
from fuselane.codegen.schedule import inner_runs, needs_lanes
from fuselane.codegen.vector_timing import Timing, is_half, timing_of
from fuselane.codegen.views import Views
from fuselane.codegen.wide_dots import choose_side, count_wide_work
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.indexed import update_of
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

_SHORT_ROOT: Final = Timing(8.5, 25)
"""An inverse root of scalars, in kernels without lanes: a root and a quotient, which do not branch.
Two of them in a chain of a quaternion filter take 10 ns less of a step's 48."""

_SHORT_DIVISION: Final = Timing(1.2, 8)
"""A quotient or remainder of single integers by a constant, measured among up to eight others."""

_IN_MEMORY: Final = 1.5
"""Scalar operations that loads, stores and indices take of what is done to an element of an array
in memory, if it is stored: measured on random bits that all lanes share."""

_COPIED: Final = 0.1
"""The same of each element of what is copied first to be updated, as lanes still read it."""

_INDEXED_CYCLES: Final = {"gather": 0.9, "scatter": 2.6}
"""Cycles for each element that is read or changed at an index known only at run time: measured on
sums over 8,000 pairs of a graph, and on particles that 9 points each of a grid take in."""

_EXTREMUM_CYCLES: Final = 2.5
"""Cycles more of each if a scatter takes the least or greatest of two floats: measured on an edge
list of 3,000 edges."""

_MIN_BITS: Final = 16
"""Bytes take as long as elements of so many bits: masks of theirs are widened and narrowed."""

_ROW_END: Final = 24.0
"""Rows of so many elements take vectors twice as long, for what is left over at their ends."""

_PRODUCT: Final = 0.4
_SUM: Final = 0.35
"""Scalar operations that a product of a dot, and an element of a sum, take."""

_SOUGHT: Final = 5.0
"""Vector operations that an element takes of which the index is sought, if it is the largest."""

_LOOSE: Final = 1.5
"""The same of a product of a matrix without lanes, of which there are no vectors."""

WIDE: Final = 1.5
"""Vector operations that one product of vectors takes, with its loads: measured, 0.2 ns."""

_MADE_DENSE_CYCLES: Final = 3.0
"""Cycles in which an element that lanes have left for a dot of vectors is copied to where its row
is, which has no gaps: measured on rows of 8 lanes."""

_FEW_PRODUCTS: Final = 60.0
"""Vector operations that a dot of vectors takes beside its products."""

_LATENCY: Final = 4.0
"""Scalar operations until an element is taken in by what waits for the one before."""

_EXCHANGE: Final = 0.3
"""Scalar operations that one of a sort takes, none of which waits for the one before."""

_PUTTING_TOGETHER: Final = frozenset({"concatenate", "reshape", "transpose"})
_ALREADY_THERE: Final = frozenset({"constant", "get-tuple-element", "parameter"})
_STREAMS: Final = 2.0
"""How often what is stored passes: another array is read for it, and it is written."""

_NUM_STEPS: Final = 3


_WIDENED: Final = 6.0
"""How much longer an operation on floats of 16 bits takes than one on integers: registers hold half
as many, and they are converted there and back."""


def operation_us(instruction: HloInstruction, costs: MachineCosts) -> float:
    """Returns the time of one operation of an instruction on a vector register."""
    is_cheap = OPCODE_COST.get(instruction.opcode, 1.0) <= CHEAP
    return costs.kernel_operation_us if is_cheap else costs.kernel_function_us


def estimate_shared_us(
    program: LaneProgram, plan: Plan, computation: HloComputation, costs: MachineCosts
) -> float:
    """Returns the time of what all lanes share in one run of a computation, in microseconds."""
    shared = [i for i in computation.instructions if has_work(i) and not needs_lanes(i, program)]
    scalar = _find_scalar(shared)
    views = Views(program=program, max_unrolled=plan.max_unrolled)
    stored = {i for i in shared if _is_stored(i, plan, views)}
    work = sum(_work_us(i, program, plan, costs, scalar, stored) for i in shared)
    moving, waiting = _moving_us(shared, stored, costs), 0.0
    if not program.has_lanes:
        waiting = _waiting_cycles(computation, shared, program, plan) * costs.kernel_cycle_us
    nested = sum(
        times * estimate_shared_us(program, plan, inner, costs)
        for instruction in computation.instructions
        for inner, times in inner_runs(instruction, program)
    )
    copied = sum(_copied_bytes(i, program, plan) for i in computation.instructions)
    return max(work, waiting, moving) + nested + costs.moving_us(2 * copied, copied)


def estimate_waiting_us(
    program: LaneProgram, plan: Plan, computation: HloComputation, costs: MachineCosts
) -> float:
    """Returns the time of one run of a computation in which operations only wait for others, be
    they on lanes or on what all lanes share, in microseconds."""
    working = [i for i in computation.instructions if has_work(i)]
    return _waiting_cycles(computation, working, program, plan) * costs.kernel_cycle_us


def _copied_bytes(loop: HloInstruction, program: LaneProgram, plan: Plan) -> int:
    """Returns the bytes of large state that is copied into an inner loop and out of it, if it is
    one without lanes."""
    if loop.opcode != "while" or program.has_lanes:
        return 0
    shapes = [e.shape for e in program.loops[loop].elements if e.kind is ElementKind.STATE]
    return 2 * sum(s.byte_size for s in shapes if s.num_elements > plan.max_unrolled)


def _moving_us(
    instructions: Iterable[HloInstruction],
    stored: Collection[HloInstruction],
    costs: MachineCosts,
) -> float:
    """Returns the time to read and write what instructions store, or leave to the next step."""
    sizes = [
        update_of(i).shape.byte_size
        for i in instructions
        if i.opcode not in _ALREADY_THERE and (i in stored or any(user.is_root for user in i.users))
    ]
    return costs.moving_us(_STREAMS * sum(sizes), sum(sizes) + max(sizes, default=0))


def has_work(instruction: HloInstruction) -> bool:
    """Whether an instruction computes something itself, as loops and tuples do not."""
    return instruction.shape.is_array or instruction.opcode in ("reduce", "sort")


def _work_us(
    instruction: HloInstruction,
    program: LaneProgram,
    plan: Plan,
    costs: MachineCosts,
    scalar: Collection[HloInstruction],
    stored: Collection[HloInstruction],
) -> float:
    """Returns the time of an instruction beside others that do not wait for it; of `scalar` the
    elements are computed one by one, `stored` is what fills arrays in memory."""
    operations = instruction_cost(instruction, program.lane_dimensions.get, lambda _: None)
    match instruction.opcode:
        case "reduce":
            in_vectors = _count_in_vectors(instruction, program, plan, operations)
            if in_vectors is None:
                return operations * costs.kernel_scalar_us * _SUM
            share = _vector_share(instruction.operands[0], plan)
            return in_vectors * share * costs.kernel_operation_us
        case "reduce-window":
            return operations * costs.kernel_scalar_us * _LATENCY
        case "dot":
            wide = _count_wide(instruction, program, plan)
            if wide is not None:
                made_dense = sum(
                    o.shape.num_elements for o in instruction.operands if _is_met(o, program)
                )
                products_us = (WIDE * wide[0] + _FEW_PRODUCTS) * costs.kernel_operation_us
                return products_us + made_dense * _MADE_DENSE_CYCLES * costs.kernel_cycle_us
            is_scalar = not program.has_lanes and is_looped_dot(instruction, program)
            return operations * costs.kernel_scalar_us * (_LOOSE if is_scalar else _PRODUCT)
        case "sort":
            return operations * costs.kernel_scalar_us * _EXCHANGE
    shape = instruction.shape
    is_small = shape.num_elements < _INDEPENDENT
    cycles = _INDEXED_CYCLES.get(instruction.opcode, _timing(instruction, program).work)
    is_indexed = instruction.opcode in _INDEXED_CYCLES
    if instruction.opcode == "scatter" and _takes_extremum(instruction):
        cycles += _EXTREMUM_CYCLES
    is_unrolled = program.has_lanes and shape.num_elements <= plan.max_unrolled
    if is_small or is_indexed or is_unrolled or instruction in scalar:
        count = _count_elements(instruction, operations)
        in_memory = 0.0
        if instruction in stored and _is_copied(instruction, program):
            in_memory = _COPIED * shape.num_elements * costs.kernel_scalar_us
        elif instruction in stored and not is_indexed:
            in_memory = _IN_MEMORY * count * costs.kernel_scalar_us
        return count * cycles * costs.kernel_cycle_us + in_memory
    share = _vector_share(instruction, plan)
    is_cheap = OPCODE_COST.get(instruction.opcode, 1.0) <= CHEAP
    if is_cheap or not shape.element_type.is_floating:
        return operations * share * operation_us(instruction, costs)
    return _count_elements(instruction, operations) * share * cycles * costs.kernel_cycle_us / 2


def _is_copied(instruction: HloInstruction, program: LaneProgram) -> bool:
    """Whether what an instruction updates is copied first, as lanes or what comes later read it."""
    if update_of(instruction) is instruction or instruction in program.mutable:
        return False
    others = [user for user in instruction.operands[0].users if user is not instruction]
    if not program.has_lanes or not others or instruction.computation is None:
        return False
    order = instruction.computation.instructions
    last = max(order.index(user) for user in others)
    return last > order.index(instruction) or any(needs_lanes(user, program) for user in others)


def _is_met(value: HloInstruction, program: LaneProgram) -> bool:
    """Whether a value is one of each lane that all lanes see, or several of them put together."""
    if value.opcode in _PUTTING_TOGETHER:
        return any(_is_met(operand, program) for operand in value.operands)
    return value.opcode == "copy" and value in program.meetings


def _takes_extremum(scatter: HloInstruction) -> bool:
    root = scatter.to_apply.root
    is_floating = root.shape.is_array and root.shape.element_type.is_floating
    return is_floating and root.opcode in ("maximum", "minimum")


def _find_scalar(instructions: Collection[HloInstruction]) -> Collection[HloInstruction]:
    """Returns the instructions whose elements are computed one by one: of arrays of the size of one
    that branches, or functions of what is gathered."""
    branching = {i.shape.dimensions for i in instructions if i.opcode in _BRANCHING}
    gathered = {i.shape.dimensions for i in instructions if i.opcode == "gather"}
    return {
        i
        for i in instructions
        if i.shape.is_array
        and (
            i.shape.dimensions in branching
            or (i.shape.dimensions in gathered and OPCODE_COST.get(i.opcode, 1.0) > CHEAP)
        )
    }


def _vector_share(value: HloInstruction, plan: Plan) -> float:
    """Returns which part of a vector operation an operation on an element is, of an array that LLVM
    makes vectors of; half of that is what loads and stores take, beside cheap operations.

    Floats of 16 bits are widened for each operation, and its result is narrowed."""
    share = 2 * max(value.shape.element_type.bits, _MIN_BITS) / SHARED_BITS
    if is_half(value):
        share *= _WIDENED
    if value.shape.num_elements > plan.max_unrolled:
        share *= 1 + _ROW_END / next(size for size in value.shape.dimensions[::-1] if size > 1)
    return share


def _count_in_vectors(
    reduce: HloInstruction, program: LaneProgram, plan: Plan, operations: float
) -> float | None:
    """Returns the operations of a reduction of which LLVM makes vectors; None if it makes none.

    It does of neighbours in memory that one loop takes in, and of those each of which is reduced
    with few others: the loop over these is unrolled, that over results is not.
    """
    value, reduced = reduce.operands[0], reduce.dimensions
    sizes = value.shape.dimensions
    num_reduced = math.prod(sizes[d] for d in reduced)
    is_minor = sorted(reduced) == list(range(len(sizes) - len(reduced), len(sizes)))
    if num_reduced > plan.max_unrolled:
        if not is_minor or _has_gaps(value, program):
            return None
        if find_extreme(reduce) is not None:
            return _SOUGHT * value.shape.num_elements
        is_known = program.has_lanes and not reduce.shape.is_tuple
        return value.shape.num_elements if is_known else None
    is_long = math.prod(sizes) > num_reduced * plan.max_unrolled
    is_in_rows = is_long and len(sizes) - 1 not in reduced
    return operations if is_in_rows and not program.has_lanes else None


def _has_gaps(value: HloInstruction, program: LaneProgram) -> bool:
    """Whether rows of a value may have gaps between them, as lanes have left them."""
    if value.opcode in _PUTTING_TOGETHER:
        return any(_has_gaps(operand, program) for operand in value.operands)
    return value.shape.rank > 1 and _is_met(value, program)


def _is_stored(instruction: HloInstruction, plan: Plan, views: Views) -> bool:
    """Whether an instruction fills an array in memory."""
    if not instruction.shape.is_array or instruction.shape.num_elements <= plan.max_unrolled:
        return False
    return not views.is_view(instruction)


def _count_elements(instruction: HloInstruction, operations: float) -> float:
    """Returns how many elements an instruction computes or moves."""
    return operations / max(1.0, OPCODE_COST.get(instruction.opcode, 1.0))


def _waiting_cycles(
    computation: HloComputation,
    instructions: Iterable[HloInstruction],
    program: LaneProgram,
    plan: Plan,
) -> float:
    """Returns the time of a step in which operations only wait for others, of this step and the
    last, as far as a processor looks ahead."""
    working = {i: _latency_cycles(i, program, plan) for i in instructions}
    carried = _find_carried(computation)
    numbers = {instruction: n for n, instruction in enumerate(computation.instructions)}
    steps = [
        (n, [numbers[o] for o in i.operands if o in numbers], working.get(i))
        for i, n in numbers.items()
    ]
    done = [0.0] * len(steps)
    begin = list(done)
    ahead = Lookahead()
    finished = []
    for _ in range(_NUM_STEPS):
        for n, operands, work in steps:
            start = begin[n]
            for operand in operands:
                start = max(start, done[operand])
            if work is not None:
                latency, length = work
                start = max(start, ahead.opening()) + latency
                ahead.push(length, 0.0, start)
            done[n] = start
        for first, last in carried.items():
            begin[numbers[first]] = done[numbers[last]]
        finished.append(ahead.end)
    return (finished[-1] - finished[0]) / (_NUM_STEPS - 1)


def _find_carried(body: HloComputation) -> dict[HloInstruction, HloInstruction]:
    """Returns, by each value that a loop's body reads of the last step, what that is at the end.

    A branch of a conditional, which leaves something else than it takes, has none.
    """
    root = body.root
    if root.opcode != "tuple" or [p.shape for p in body.parameters] != [root.shape]:
        return {}
    readers = (user for parameter in body.parameters for user in parameter.users)
    return {
        user: root.operands[user.tuple_index]
        for user in readers
        if user.opcode == "get-tuple-element"
    }


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


def _latency_cycles(
    instruction: HloInstruction, program: LaneProgram, plan: Plan
) -> tuple[float, float]:
    """Returns in how many cycles what an instruction makes of its operands is there, and how many
    instructions of the processor's that is."""
    count = _count_elements(
        instruction, instruction_cost(instruction, program.lane_dimensions.get, lambda _: None)
    )
    if not count:
        return 0.0, 0.0
    timing = _timing(instruction, program)
    length = timing.instructions * count
    match instruction.opcode:
        case "reduce":
            size = instruction.operands[0].shape.num_elements
            is_short = size <= plan.max_unrolled
            return (_LATENCY * math.log2(size + 1) if is_short else 0.0), length
        case "dot":
            wide = _count_wide(instruction, program, plan)
            if wide is not None:
                return _LATENCY * wide[1], length
            size = DotDimensions.of(instruction).contracted_size(instruction)
            return _LATENCY * math.log2(size + 1), length
        case "sort" | "reduce-window":
            return 0.0, length
    return timing.latency, length


def _timing(instruction: HloInstruction, program: LaneProgram) -> Timing:
    """Returns the timing of one operation of an instruction, on scalars if it makes few."""
    opcode, shape = instruction.opcode, instruction.shape
    if opcode == "rsqrt" and not program.has_lanes:
        return _SHORT_ROOT
    is_division = opcode in ("divide", "remainder") and shape.element_type.is_integral
    is_single = is_division and shape.num_elements < _INDEPENDENT
    return (
        _SHORT_DIVISION
        if is_single and is_known(instruction.operands[1])
        else timing_of(instruction)
    )
