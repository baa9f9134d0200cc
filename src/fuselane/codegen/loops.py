"""Loops in LLVM IR: counted, carried, conditional; each is one call with the body as callback."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, final

from llvmlite import ir

from fuselane.codegen.indexing import I64, Index, add, bounded, i64, unflatten

Values = list[ir.Value]

MAX_UNROLLED_TAIL: Final = 4
"""Indices of the innermost dimension that are not worth a loop."""

_STEPS_AT_ONCE: Final = 4
_MAX_SHORT_BODY: Final = 48
_MAX_STRAIGHT: Final = 512
"""Instructions that ptxas may have in a row, which takes it about 50 milliseconds."""


def emit_counted_loop(
    builder: ir.IRBuilder,
    trip_count: Index,
    carried: Sequence[ir.Value],
    body: Callable[[ir.Value, Values], Values],
    *,
    name: str = "loop",
) -> Values:
    """Emits `for i in range(trip_count)` with loop-carried values and returns their last values.

    Args:
        builder: Positioned where the loop starts; left behind the loop.
        trip_count: Iterations; zero or less runs none and returns `carried`.
        carried: Values at entry.
        body: Called once with the `i64` induction variable and the carried values of this
            iteration; returns those of the next. It may add blocks.
        name: Of the blocks, for the reader of the IR.
    """
    if isinstance(trip_count, int) and trip_count <= 0:
        return list(carried)
    entry = builder.block
    header = builder.append_basic_block(name)
    exit_block = builder.append_basic_block(f"{name}.exit")
    skippable = not isinstance(trip_count, int)
    if skippable:
        runs = builder.icmp_signed(">", i64(trip_count), ir.Constant(I64, 0))
        builder.cbranch(runs, header, exit_block)
    else:
        builder.branch(header)

    builder.position_at_end(header)
    counter, *phis = _begin(builder, entry, [ir.Constant(I64, 0), *carried])
    following = body(counter, phis)
    increment = builder.add(counter, ir.Constant(I64, 1), flags=("nsw", "nuw"))
    latch = builder.block
    _close(latch, [counter, *phis], [increment, *following])
    again = builder.icmp_signed("<", increment, i64(trip_count))
    _unroll_for_gpus(builder, builder.cbranch(again, header, exit_block), trip_count)

    builder.position_at_end(exit_block)
    if not skippable:
        return following
    return [
        _merge(builder, [(start, entry), (end, latch)])
        for start, end in zip(carried, following, strict=True)
    ]


def emit_while_loop(
    builder: ir.IRBuilder,
    carried: Sequence[ir.Value],
    condition: Callable[[Values], ir.Value],
    body: Callable[[Values], Values],
    *,
    name: str = "while",
) -> Values:
    """Emits `while condition(carried): carried = body(carried)` and returns the last values."""
    entry = builder.block
    header = builder.append_basic_block(name)
    body_block = builder.append_basic_block(f"{name}.body")
    exit_block = builder.append_basic_block(f"{name}.exit")
    builder.branch(header)

    builder.position_at_end(header)
    values = _begin(builder, entry, list(carried))
    builder.cbranch(condition(values), body_block, exit_block)

    builder.position_at_end(body_block)
    following = body(values)
    _close(builder.block, values, following)
    builder.branch(header)

    builder.position_at_end(exit_block)
    return values


@contextmanager
def counted_loop(
    builder: ir.IRBuilder, start: Index, stop: Index, *, name: str = "loop"
) -> Iterator[ir.Value]:
    """Emits `for i in range(start, stop)` around the block of a `with` statement, giving `i`."""
    entry = builder.block
    header = builder.append_basic_block(name)
    exit_block = builder.append_basic_block(f"{name}.exit")
    if isinstance(start, int) and isinstance(stop, int) and start < stop:
        builder.branch(header)
    else:
        builder.cbranch(builder.icmp_signed("<", i64(start), i64(stop)), header, exit_block)
    builder.position_at_end(header)
    counter = builder.phi(I64)
    counter.add_incoming(i64(start), entry)
    if isinstance(start, int) and isinstance(stop, int):
        bounded(counter, start, stop - 1)
    yield counter
    increment = builder.add(counter, ir.Constant(I64, 1), flags=("nsw",))
    counter.add_incoming(increment, builder.block)
    branch = builder.cbranch(builder.icmp_signed("<", increment, i64(stop)), header, exit_block)
    if isinstance(start, int) and isinstance(stop, int):
        _unroll_for_gpus(builder, branch, stop - start)
    builder.position_at_end(exit_block)


def emit_for_each(
    builder: ir.IRBuilder,
    dimensions: Sequence[int],
    body: Callable[[tuple[Index, ...]], None],
    *,
    max_unrolled: int = 1,
    max_tail: int = MAX_UNROLLED_TAIL,
    cuts: Sequence[Sequence[int]] = (),
) -> None:
    """Runs `body` for every index of an array; see `emit_fold`, with nothing carried."""

    def run(index: tuple[Index, ...], _: Values) -> Values:
        body(index)
        return []

    emit_fold(builder, dimensions, [], run, max_unrolled=max_unrolled, max_tail=max_tail, cuts=cuts)


def emit_fold(
    builder: ir.IRBuilder,
    dimensions: Sequence[int],
    carried: Sequence[ir.Value],
    body: Callable[[tuple[Index, ...], Values], Values],
    *,
    max_unrolled: int = 1,
    max_tail: int = MAX_UNROLLED_TAIL,
    cuts: Sequence[Sequence[int]] = (),
) -> Values:
    """Runs `body` for every index of an array, in row-major order, and returns the last values.

    Args:
        builder: Positioned where the loops start; left behind them.
        dimensions: Sizes of the array.
        carried: Values at the start.
        body: Gets an index and the values so far, returns those of the next; called once for each
            loop nest.
        max_unrolled: The most indices for which there is no loop.
        max_tail: The most of the innermost dimension, or of what cuts leave of it, that are not
            worth a loop inside of the others; 1 where the body is long.
        cuts: For each dimension where its loop is cut in several, so that the body of each knows
            on which side of the cut it is; none by default.
    """
    values = list(carried)
    if math.prod(dimensions) <= max_unrolled:
        for position in range(math.prod(dimensions)):
            values = body(unflatten(builder, position, dimensions), values)
        return values
    stops = [
        sorted({cut for cut in places if 0 < cut < size} | {size})
        for size, places in zip(dimensions, cuts or [()] * len(dimensions), strict=True)
    ]
    return _emit_nest(builder, stops, (), values, body, max_tail)


def _emit_nest(
    builder: ir.IRBuilder,
    stops: Sequence[Sequence[int]],
    outer: tuple[Index, ...],
    values: Values,
    body: Callable[[tuple[Index, ...], Values], Values],
    max_tail: int,
) -> Values:
    """Emits the loops over the dimensions that remain, each cut where it says."""
    if not stops:
        return body(outer, values)
    inner = stops[1:]
    is_innermost = all(last[-1] == 1 for last in inner)
    start = 0
    for stop in stops[0]:
        if stop - start <= (max_tail if is_innermost else 1):
            for position in range(start, stop):
                values = _emit_nest(builder, inner, (*outer, position), values, body, max_tail)
        else:
            values = _emit_range(
                builder,
                (start, stop),
                values,
                lambda at, carried: _emit_nest(
                    builder, inner, (*outer, at), carried, body, max_tail
                ),
            )
        start = stop
    return values


def _emit_range(
    builder: ir.IRBuilder,
    limits: tuple[int, int],
    carried: Values,
    body: Callable[[Index, Values], Values],
) -> Values:
    start, stop = limits

    def step(counter: ir.Value, values: Values) -> Values:
        return body(add(builder, bounded(counter, 0, stop - start - 1), start), values)

    return emit_counted_loop(builder, stop - start, carried, step, name="each")


def emit_choice(
    builder: ir.IRBuilder,
    condition: ir.Value,
    then: Callable[[], Values],
    otherwise: Values,
) -> Values:
    """Emits `then() if condition else otherwise` as a branch; both sides as many values."""
    entry = builder.block
    then_block = builder.append_basic_block("needed")
    merge = builder.append_basic_block("merge")
    builder.cbranch(condition, then_block, merge)
    builder.position_at_end(then_block)
    values = then()
    end = builder.block
    builder.branch(merge)
    builder.position_at_end(merge)
    return [
        _merge(builder, [(value, end), (other, entry)])
        for value, other in zip(values, otherwise, strict=True)
    ]


def emit_switch(
    builder: ir.IRBuilder,
    choice: ir.Value,
    cases: Sequence[int],
    sides: Sequence[Callable[[], Values]],
    weights: Sequence[int] = (),
) -> Values:
    """Emits `sides[k]()` where `choice` is `cases[k]` and the last side anywhere else.

    Args:
        builder: Positioned where the branches start; left behind them.
        choice: An integer.
        cases: One fewer than sides.
        sides: Each returns as many values of the same types.
        weights: How often each side is believed to run, the last one first; equal by default.
    """
    blocks = [builder.append_basic_block("side") for _ in sides]
    merge = builder.append_basic_block("merge")
    switch = builder.switch(choice, blocks[-1])
    for case, block in zip(cases, blocks, strict=False):
        switch.add_case(ir.Constant(choice.type, case), block)
    if weights:
        switch.set_weights(weights)
    incoming = []
    for block, side in zip(blocks, sides, strict=True):
        builder.position_at_end(block)
        values = side()
        incoming.append((values, builder.block))
        builder.branch(merge)
    builder.position_at_end(merge)
    return [
        _merge(builder, [(values[number], block) for values, block in incoming])
        for number in range(len(incoming[0][0]))
    ]


def _unroll_for_gpus(builder: ir.IRBuilder, branch: ir.Instruction, trip_count: Index) -> None:
    """Has LLVM run some steps of a short loop at once where the code is for a GPU.

    As many as ptxas does for long loops. Loops of up to about ten thousand instructions it would
    write out: 200 steps of 17 instructions take it 0.4 s, 600 take it 5 s (CUDA 13.0). It leaves
    alone what LLVM has unrolled.
    """
    block = builder.block
    is_single = branch.operands[1] is block
    if builder.function.calling_convention != "ptx_kernel" or not is_single:
        return
    size = len(block.instructions)
    is_long = isinstance(trip_count, int) and trip_count * size > _MAX_STRAIGHT
    if is_long and size <= _MAX_SHORT_BODY:
        count = ir.Constant(ir.IntType(32), _STEPS_AT_ONCE)
        properties = builder.module.add_metadata(["llvm.loop.unroll.count", count])
        branch.set_metadata("llvm.loop", LoopId(builder.module, properties))


@final
class LoopId(ir.MDValue):  # type: ignore[misc]
    """What tells a loop from others, with its properties: a node that begins with itself."""

    def __init__(self, module: ir.Module, properties: ir.MDValue) -> None:
        super().__init__(module, [properties], name=str(len(module.metadata)))

    def descr(self, buffer: list[str]) -> None:
        """Writes the node as LLVM reads it."""
        own, properties = self.get_reference(), self.operands[0].get_reference()
        buffer.append(f"distinct !{{ {own}, {properties} }}\n")


def _begin(builder: ir.IRBuilder, entry: ir.Block, carried: Values) -> Values:
    phis = [builder.phi(value.type) for value in carried]
    for phi, value in zip(phis, carried, strict=True):
        phi.add_incoming(value, entry)
    return phis


def _close(latch: ir.Block, phis: Values, following: Values) -> None:
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, latch)


def _merge(builder: ir.IRBuilder, incoming: list[tuple[ir.Value, ir.Block]]) -> ir.Value:
    phi = builder.phi(incoming[0][0].type)
    for value, block in incoming:
        phi.add_incoming(value, block)
    return phi
