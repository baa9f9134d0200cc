"""Loops in LLVM IR: how often they run, what they carry, where they leave the builder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen.indexing import I64, Index, i64
from fuselane.codegen.loops import (
    counted_loop,
    emit_choice,
    emit_counted_loop,
    emit_for_each,
    emit_while_loop,
)
from tests.codegen.functions import Function, put, run

I1 = ir.IntType(1)


def fibonacci(builder: ir.IRBuilder, values: Sequence[ir.Value]) -> list[ir.Value]:
    return [values[1], builder.add(values[0], values[1])]


def first_fibonacci(count: int) -> tuple[int, int]:
    left, right = 0, 1
    for _ in range(count):
        left, right = right, left + right
    return left, right


@pytest.mark.parametrize("trips", [-3, 0, 1, 2, 10])
@pytest.mark.parametrize("is_known", [True, False])
def test_counted_loop_carries_values(trips: int, is_known: bool) -> None:
    results = np.zeros(3, np.int64)

    def emit(function: Function, array: ir.Value, count: ir.Value) -> None:
        builder = function.builder
        start = [i64(0), i64(1), i64(0)]

        def body(counter: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            return [*fibonacci(builder, values), builder.add(values[2], counter)]

        ends = emit_counted_loop(builder, trips if is_known else count, start, body)
        for position, value in enumerate(ends):
            put(function, array, position, value)

    run(emit, results, trips)
    assert results.tolist() == [*first_fibonacci(trips), sum(range(trips))]


@pytest.mark.parametrize("limit", [0, 1, 2, 90, 10_000])
def test_while_loop_stops_before_its_body(limit: int) -> None:
    results = np.zeros(2, np.int64)

    def emit(function: Function, array: ir.Value, most: ir.Value) -> None:
        builder = function.builder
        ends = emit_while_loop(
            builder,
            [i64(0), i64(1)],
            lambda values: builder.icmp_signed("<", values[0], most),
            lambda values: fibonacci(builder, values),
        )
        for position, value in enumerate(ends):
            put(function, array, position, value)

    run(emit, results, limit)
    count = next(n for n in range(100) if first_fibonacci(n)[0] >= limit)
    assert results.tolist() == [*first_fibonacci(count)]


def test_loops_in_loops_with_branches() -> None:
    """Bodies may add blocks: what is carried comes from where they end."""
    results = np.zeros(1, np.int64)

    def emit(function: Function, array: ir.Value, many: ir.Value) -> None:
        builder = function.builder

        def inner(counter: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
            is_odd = builder.trunc(counter, I1)
            doubled = [builder.add(values[0], values[0])]
            return emit_choice(builder, is_odd, lambda: doubled, [builder.add(values[0], counter)])

        (end,) = emit_counted_loop(
            builder,
            many,
            [i64(1)],
            lambda counter, values: emit_counted_loop(builder, counter, values, inner),
        )
        put(function, array, 0, end)

    run(emit, results, 6)
    expected = 1
    for outer in range(6):
        for counter in range(outer):
            expected = expected * 2 if counter % 2 else expected + counter
    assert results.tolist() == [expected]


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (2, 3), (3, 3), (4, 2), (-2, 2)])
def test_loop_around_a_with_statement(start: int, stop: int) -> None:
    results = np.zeros(16, np.int64)

    def emit(function: Function, array: ir.Value, first: ir.Value, last: ir.Value) -> None:
        builder = function.builder
        with counted_loop(builder, first, last) as counter:
            place = builder.gep(array, [builder.add(counter, i64(4))], source_etype=I64)
            builder.store(builder.add(builder.load(place, typ=I64), i64(1)), place)

    run(emit, results, start, stop)
    assert np.flatnonzero(results).tolist() == [n + 4 for n in range(start, stop)]
    assert results.max() <= 1


@pytest.mark.parametrize("dimensions", [(), (5,), (2, 3), (2, 0, 3), (3, 1, 2)])
@pytest.mark.parametrize("max_unrolled", [1, 6])
def test_every_index_once_and_in_order(dimensions: tuple[int, ...], max_unrolled: int) -> None:
    results = np.full((8, 4), -1, np.int64)
    visits: list[tuple[Index, ...]] = []

    def emit(function: Function, array: ir.Value) -> None:
        builder = function.builder
        next_row = function.allocate(I64, 1)
        builder.store(i64(0), next_row)

        def body(index: tuple[Index, ...]) -> None:
            visits.append(index)
            row = builder.load(next_row, typ=I64)
            builder.store(builder.add(row, i64(1)), next_row)
            for axis, at in enumerate(index):
                place = builder.add(builder.mul(row, i64(4)), i64(axis))
                builder.store(i64(at), builder.gep(array, [place], source_etype=I64))

        emit_for_each(builder, dimensions, body, max_unrolled=max_unrolled)

    run(emit, results)
    indices = list(np.ndindex(*dimensions))
    rank = len(dimensions)
    assert results[: len(indices), :rank].tolist() == [list(index) for index in indices]
    assert (results[len(indices) :] == -1).all()
    if len(indices) <= max_unrolled:
        assert visits == indices


@pytest.mark.parametrize("condition", [0, 1])
def test_branches(condition: int) -> None:
    results = np.zeros(1, np.int64)

    def emit(function: Function, array: ir.Value, number: ir.Value) -> None:
        builder = function.builder
        is_true = builder.trunc(number, I1)
        (value,) = emit_choice(builder, is_true, lambda: [i64(3)], [i64(5)])
        put(function, array, 0, value)

    run(emit, results, condition)
    assert results.tolist() == ([3] if condition else [5])
