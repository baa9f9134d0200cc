"""Piecewise work in two versions: kernels against NumPy, and against kernels with one version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.kernels import (
    NumpyArray,
    Settings,
    assert_equal,
    compile_loop,
    form_program,
    iterate,
    layouts,
    some,
)
from tests.lanes.loops import counting_loop

SHARES = (0.0, 0.1, 1.0)
"""How often a predicate holds: in no lane, in some, and in all."""


def roots(x: NumpyArray) -> NumpyArray:
    for _ in range(4):
        x = np.sqrt(x)
    return x


def two_pieces(shape: str, predicate: str, side: int) -> str:
    """Returns `y`: 2 x + 3 by three selects on one side, on the other two fourfold roots."""

    def select(name: str, usual: str, other: str) -> str:
        operands = f"{usual}, {other}" if side == 1 else f"{other}, {usual}"
        return f"{name} = {shape} select({predicate}, {operands})\n"

    work = "".join(f"r{k + 1} = {shape} sqrt(r{k})\n" for k in range(4))
    return (
        f"c2 = f32[] constant(2)\n c3 = f32[] constant(3)\n r0 = {shape} abs(e0)\n"
        f"b2 = {shape} broadcast(c2), dimensions={{}}\n"
        f"b3 = {shape} broadcast(c3), dimensions={{}}\n"
        + work
        + select("a", "e0", "r4")
        + select("b", "b2", "b3")
        + select("c", "e0", "r4")
        + f"ab = {shape} add(a, b)\n y = {shape} add(ab, c)\n"
    )


def do_two_pieces(x: NumpyArray, is_usual: NumpyArray) -> NumpyArray:
    """Does the same, to the bit."""
    root = roots(np.abs(x))
    return np.where(is_usual, (x + np.float32(2)) + x, (root + np.float32(3)) + root)


@layouts
@pytest.mark.parametrize("side", [1, 2])
def test_two_versions(lanes: int, options: Settings, side: int) -> None:
    row = f"f32[{lanes}]"
    body = two_pieces(row, "e1", side)
    module = counting_loop(body, ["y", "e1"], [row, f"pred[{lanes}]"], trip_count=2)

    def step(i: int, x: NumpyArray, p: NumpyArray) -> Sequence[NumpyArray]:
        return do_two_pieces(x, p == (side == 1)), p

    compiled = compile_loop(module, **options)
    (pieces,) = compiled.program.pieces.values()
    assert pieces[0].side == side
    for share in SHARES:
        predicate = np.random.default_rng(0).random(lanes) < share
        state = some([lanes])
        assert_equal(compiled.run(state, predicate), iterate(step, 2, state, predicate))


@layouts
@pytest.mark.parametrize("size", [2, 100])
def test_two_versions_of_arrays(lanes: int, options: Settings, size: int) -> None:
    """A vote for each element, in registers and in scratch memory that is also read elsewhere."""
    shape = f"f32[{lanes},{size}]"
    body = (
        f"less = pred[{lanes},{size}] compare(e0, e1), direction=LT\n"
        f"turned = {shape} reverse(e0), dimensions={{1}}\n"
        + two_pieces(shape, "less", 1).replace("select(less, e0,", "select(less, turned,")
    )
    module = counting_loop(body, ["y", "e1"], [shape, shape], trip_count=2)

    def step(i: int, x: NumpyArray, limit: NumpyArray) -> Sequence[NumpyArray]:
        root, turned = roots(np.abs(x)), x[:, ::-1]
        usual = (turned + np.float32(2)) + turned
        return np.where(x < limit, usual, (root + np.float32(3)) + root), limit

    compiled = compile_loop(module, **options)
    assert compiled.program.pieces or not compiled.program.has_lanes
    for limit in (-1e6, 0.0, 1e6):
        limits = np.full([lanes, size], limit, np.float32)
        state = some([lanes, size])
        assert_equal(compiled.run(state, limits), iterate(step, 2, state, limits))


def test_products_are_contracted_as_in_one_version() -> None:
    """Sums take in the products they would without a select in front, and no others."""
    row = "f32[256]"
    roots_of = "".join(f"r{k + 1} = {row} sqrt(r{k})\n" for k in range(4))
    body = f"""
      less = pred[256] compare(e0, e1), direction=LT
      r0 = {row} abs(e0)
      {roots_of}
      product = {row} multiply(e0, e1)
      in_front = {row} multiply(e1, e1)
      a = {row} select(less, product, r4)
      b = {row} add(a, e1)
      c = {row} add(b, in_front)
      d = {row} multiply(c, e1)
      f = {row} select(less, d, r3)
      behind = {row} multiply(f, e1)
      sum = {row} subtract(behind, e0)
      y = {row} sine(sum)"""
    program = form_program(counting_loop(body, ["y", "e1"], [row, row], trip_count=3))
    (pieces,) = program.pieces.values()
    assert {"in_front", "d"} <= {i.name for i in pieces[0].instructions}
    two, one = compile_loop(program), compile_loop(replace(program, pieces={}))
    generator = np.random.default_rng(0)
    for bound in (1.0, 100.0):
        state = generator.uniform(-1, 1, 256).astype(np.float32)
        limits = generator.uniform(0.9, 1, 256).astype(np.float32) * np.float32(bound)
        assert_equal(two.run(state, limits), one.run(state, limits))
