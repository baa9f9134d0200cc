"""Which reductions find the index of a largest or smallest element."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fuselane.codegen.arg_extremes import find_extreme
from fuselane.hlo.module import HloModule
from tests.hlo.xla import lowered, module_of


def _found(text: str) -> str | None:
    (reduce,) = [i for i in module_of(text).entry.instructions if i.opcode == "reduce"]
    return find_extreme(reduce)


def _lower(function: Any, *arguments: Any) -> str | None:
    module = HloModule.from_bytes(lowered(function, *arguments))
    for computation in module.computations:
        computation.remove_dead_instructions()
    reduces = [i for c in module.computations for i in c.instructions if i.opcode == "reduce"]
    (reduce,) = reduces
    return find_extreme(reduce)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "uint16", "int64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_those_of_jax(dtype: str, index: str) -> None:
    with jax.enable_x64(True):
        for axis in (0, 1):
            x = jnp.zeros((20, 30), dtype)
            assert _lower(lambda x, a=axis: lax.argmax(x, a, jnp.dtype(index)), x) == "maximum"
            assert _lower(lambda x, a=axis: lax.argmin(x, a, jnp.dtype(index)), x) == "minimum"


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float16"])
def test_others_are_left(dtype: str) -> None:
    assert _lower(jnp.argmax, jnp.zeros(100, dtype)) is None


_MODULE: Final = """
    choose {
      a = f32[] parameter(0)
      i = s32[] parameter(1)
      b = f32[] parameter(2)
      j = s32[] parameter(3)
      is_more = pred[] compare(a, b), direction=GT
      is_nan = pred[] compare(a, a), direction=NE
      is_equal = pred[] compare(a, b), direction=EQ
      is_first = pred[] compare(i, j), direction=LT
      is_left = pred[] or(is_more, is_nan)
      is_tie = pred[] and(is_equal, is_first)
      is_index = pred[] or(is_left, is_tie)
      x = f32[] select(is_left, a, b)
      k = s32[] select(is_index, i, j)
      ROOT t = (f32[], s32[]) tuple(x, k)
    }

    ENTRY main {
      x = f32[9,100] parameter(0)
      places = s32[9,100] iota(), iota_dimension=1
      least = f32[] constant(-inf)
      zero = s32[] constant(0)
      r = (f32[9], s32[9]) reduce(x, places, least, zero), dimensions={1}, to_apply=choose
      ROOT k = s32[9] get-tuple-element(r), index=1
    }
"""

# What makes it another reduction.
_CHANGES: Final[dict[str, tuple[str, str]]] = {
    "smallest, from the smallest": ("compare(a, b), direction=GT", "compare(a, b), direction=LT"),
    "no NaN": ("is_left = pred[] or(is_more, is_nan)", "is_left = pred[] or(is_more, is_more)"),
    "last": ("compare(i, j), direction=LT", "compare(i, j), direction=GT"),
    "index of the other": ("select(is_index, i, j)", "select(is_index, j, i)"),
    "arithmetic": ("k = s32[] select(is_index, i, j)", "k = s32[] add(i, j)"),
    "a total order": (
        "is_equal = pred[] compare(a, b), direction=EQ",
        "is_equal = pred[] compare(a, b), direction=EQ, type=TOTALORDER",
    ),
    "from another number": ("constant(-inf)", "constant(-1)"),
    "from another index": ("constant(0)", "constant(1)"),
    "other indices": ("iota_dimension=1", "iota_dimension=0"),
    "the element as well": ("get-tuple-element(r), index=1", "get-tuple-element(r), index=0"),
}


def test_by_what_it_does() -> None:
    assert _found(_MODULE) == "maximum"
    numbers = "n = s32[100] iota(), iota_dimension=0\n      places = s32[9,100] broadcast(n)"
    spread = _MODULE.replace("places = s32[9,100] iota()", numbers)
    assert _found(spread.replace("iota_dimension=1", "dimensions={1}")) == "maximum"
    shorter = _MODULE.replace("or(is_more, is_nan)", "xor(is_more, is_nan)")  # never both
    assert shorter != _MODULE
    assert _found(shorter) == "maximum"


@pytest.mark.parametrize("change", _CHANGES)
def test_what_does_something_else(change: str) -> None:
    old, new = _CHANGES[change]
    assert _MODULE.count(old) == 1
    text = _MODULE.replace(old, new)
    if change == "the element as well":
        text = text.replace("ROOT k = s32[9]", "ROOT k = f32[9]")
    assert _found(text) is None
