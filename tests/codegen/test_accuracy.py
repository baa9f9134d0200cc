"""Accuracy over whole types: what `benchmarks/accuracy/ulp.py` measures, where that is quick."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from accuracy import ulp

WIDTH: Final = 16
UNARY: Final = sorted(ulp.OPCODES - set(ulp.BINARY))
# Computed in float32 with at most 2 units there, of which a float16 has 1 / 8192.
MAX_SMALL_ULP: Final = 0.5 + 2 / 8192


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("opcode", UNARY)
def test_small_floats_are_rounded_right(opcode: str, dtype: str) -> None:
    """For every argument, NaN and infinities included, nearly half a unit is the largest error."""
    with np.errstate(all="ignore"):
        measured = ulp.measure_float(opcode, dtype, WIDTH, exhaustive=True)
    assert measured.num_inputs == 2**16
    assert measured.max_ulp <= MAX_SMALL_ULP, measured


@pytest.mark.parametrize("opcode", sorted(ulp.OPCODES))
def test_special_values_are_as_in_c(opcode: str) -> None:
    """NaN, infinities, zeros and denormal numbers, and all pairs of them, in all four types."""
    with np.errstate(all="ignore"):
        for dtype in ulp.FORMATS:
            operands, actual, expected = ulp.list_specials(opcode, dtype, WIDTH)
            wrong = np.flatnonzero(ulp.differs(actual, expected))
            assert not wrong.size, (dtype, operands[:, wrong], actual[wrong], expected[wrong])
