"""Large arrays that all lanes share, beside what is each lane's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from fuselane.codegen.kernel import build
from fuselane.codegen.llvm import Vectors, optimised_ir
from fuselane.config import Options
from fuselane.hlo.module import HloModule
from tests.codegen.kernels import DEVICE, NumpyArray, check, compile_loop, form_program, some
from tests.lanes.loops import counting_loop

SIZE: Final = 400
TABLE: Final = f"f32[{SIZE}]"
LANES: Final = "f32[64]"
STEPS: Final = 10

_READ: Final = """
      at = s32[] add(i, one)
      old = f32[1] dynamic-slice(e0, at), dynamic_slice_sizes={1}
      new = f32[1] negate(old)"""
_UPDATE: Final = f"u = {TABLE} dynamic-update-slice(e0, new, i)"
_TO_LANES: Final = f"""
      x = f32[] reshape(old)
      wide = {LANES} broadcast(x), dimensions={{}}
      y = {LANES} add(e1, wide)"""
_EACH_LANES_OWN: Final = f"""
      ends = s32[64] constant({{{", ".join(str(7 * n % SIZE) for n in range(64))}}})
      counts = s32[64] broadcast(i), dimensions={{}}
      places = s32[64] add(ends, counts)
      own = {LANES} gather(e0, places), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1}}
      y = {LANES} add(e1, own)"""  # noqa: E501

Step = Callable[[int, NumpyArray, NumpyArray], tuple[NumpyArray, NumpyArray]]


def _updated(i: int, table: NumpyArray, lanes: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    new = table.copy()
    new[i] = -table[i + 1]
    return new, lanes + table[i + 1]


def _read_by_lanes(i: int, table: NumpyArray, lanes: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    new, _ = _updated(i, table, lanes)
    places = np.minimum(7 * np.arange(64) % SIZE + i, SIZE - 1)
    return new, lanes + table[places]


def _moved_up(i: int, table: NumpyArray, lanes: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    return np.append(table[1:], -table[i + 1]), lanes + table[i + 1]


# For each: the body, what it does, and how many stores of what all lanes share the code has, two of
# them at the ends of the loop.
CASES: Final[dict[str, tuple[str, Step, int]]] = {
    "updated": (f"{_READ}\n      {_UPDATE}{_TO_LANES}", _updated, 3),
    "read_by_lanes_behind": (f"{_READ}\n      {_UPDATE}{_EACH_LANES_OWN}", _read_by_lanes, 4),
    "moved_up": (
        f"""{_READ}
      rest = f32[{SIZE - 1}] slice(e0), slice={{[1:{SIZE}]}}
      u = {TABLE} concatenate(rest, new), dimensions={{0}}{_TO_LANES}""",
        _moved_up,
        4,
    ),
}


def _loop(body: str) -> HloModule:
    return counting_loop(body, ["u", "y"], [TABLE, LANES], trip_count=STEPS)


@pytest.mark.parametrize("name", CASES)
def test_arrays_stay_where_they_are(name: str) -> None:
    body, step, num_stores = CASES[name]
    arguments = some([SIZE]), some([64], seed=1)
    for options in ({}, {"tile_lanes": 16}, {"unroll": 1, "tile_lanes": 64}):
        check(_loop(body), step, STEPS, *arguments, bounds_checks=True, **options)
    code = compile_loop(_loop(body)).code
    assert code.plan.width > 1
    assert code.ir.count("store float ") == num_stores


def test_vectors_are_looked_for_where_lanes_share_arrays() -> None:
    alone = counting_loop("y = f32[64] add(e0, e0)", ["y"], [LANES])
    shared = _loop(CASES["moved_up"][0])
    codes = [build(form_program(module), Options(), DEVICE) for module in (alone, shared)]
    assert all(code.plan.width > 1 for code in codes)
    assert [code.vectors for code in codes] == [Vectors.NOWHERE, Vectors.IN_LOOPS]


def test_arrays_that_move_up_are_moved_in_vectors() -> None:
    """LLVM is done at once, too: it would look for minutes at copies it takes apart."""
    code = compile_loop(_loop(CASES["moved_up"][0])).code
    text: Any = optimised_ir(code.ir, vectorise=Vectors.IN_LOOPS)
    assert "llvm.memcpy" not in text
    vectors = re.findall(r"store <(4|8|16) x float>", text)
    assert len(vectors) >= 3  # on the way in, in each step, and on the way out


@pytest.mark.parametrize("kind", ["sum", "maximum"])
def test_what_lanes_share_is_reduced_in_vectors(kind: str) -> None:
    opcode = {"sum": "add", "maximum": "maximum"}[kind]
    body = f"""
      start = f32[] constant(0)
      all = f32[] reduce(e0, start), dimensions={{0}}, to_apply={opcode}
      wide = {LANES} broadcast(all), dimensions={{}}
      y = {LANES} add(e1, wide)
      some = {TABLE} broadcast(all), dimensions={{}}
      u = {TABLE} subtract(e0, some)"""
    more = f"""
    {opcode} {{
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = f32[] {opcode}(a, b)
    }}
"""
    module = counting_loop(body, ["u", "y"], [TABLE, LANES], trip_count=2, more=more)

    def step(_: int, table: NumpyArray, lanes: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        part = table.sum() if kind == "sum" else table.max(initial=0)
        return table - part, lanes + part

    loop = check(module, step, 2, some([SIZE]), some([64], seed=1))
    text: Any = optimised_ir(loop.code.ir, vectorise=Vectors.IN_LOOPS)
    assert "llvm.vector.reduce" in text
