"""Votes: whether a predicate holds in some lane."""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import ir

from fuselane.codegen.indexing import i64
from fuselane.codegen.llvm import HostTarget, assembly
from fuselane.codegen.types import any_lane, vector_of
from tests.codegen.functions import Function, put, run

TYPES = {"float": ir.FloatType(), "double": ir.DoubleType(), "i16": ir.IntType(16)}
DTYPES = {"float": np.float32, "double": np.float64, "i16": np.int16}
Vote = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]


def compare(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    zero = ir.Constant(numbers.type, None)
    if isinstance(numbers.type.element, ir.IntType):
        return builder.icmp_signed(">", numbers, zero)
    return builder.fcmp_ordered(">", numbers, zero)


VOTES: dict[str, Vote] = {
    "one": lambda builder, a, _: any_lane(builder, compare(builder, a)),
    "opposite": lambda builder, a, _: any_lane(builder, builder.not_(compare(builder, a))),
    "both": lambda builder, a, b: any_lane(
        builder, builder.and_(compare(builder, a), compare(builder, b))
    ),
    "among": lambda builder, a, b: any_lane(builder, compare(builder, a), compare(builder, b)),
}


def vote(kind: str, name: str, left: np.ndarray, right: np.ndarray) -> bool:
    type_ = vector_of(TYPES[name], len(left))
    result = np.full(1, -1, np.int64)

    def emit(function: Function, *addresses: ir.Value) -> None:
        builder = function.builder
        vectors = [builder.load(pointer, typ=type_, align=1) for pointer in addresses[:2]]
        put(function, addresses[2], 0, VOTES[kind](builder, *vectors))

    run(emit, left, right, result)
    return bool(result[0])


@pytest.mark.parametrize("kind", VOTES)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("width", [2, 3, 8, 32])
def test_votes_see_every_lane(kind: str, name: str, width: int) -> None:
    for lane in (None, 0, width // 2, width - 1):
        left, right = -np.ones((2, width), DTYPES[name])
        if kind == "opposite":
            left = -left
        if lane is not None:
            left[lane] = -left[lane]
            assert vote(kind, name, left, right) == (kind in ("one", "opposite"))
            right[lane] = 1
        assert vote(kind, name, left, right) == (lane is not None)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about instructions of x86")
@pytest.mark.parametrize("name", ["float", "double"])
def test_registers_are_not_narrowed_for_a_vote(name: str) -> None:
    function = Function([ir.PointerType(), ir.PointerType()])
    numbers = function.builder.load(function.arguments[0], typ=vector_of(TYPES[name], 32))
    some = any_lane(function.builder, compare(function.builder, numbers))
    with function.builder.if_then(some):
        function.builder.store(i64(1), function.arguments[1])
    target = HostTarget(triple=HostTarget.host().triple, cpu="haswell", features="")
    text = assembly(function.finish(), target)
    assert "pack" not in text
    assert "vor" in text
