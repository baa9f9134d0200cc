"""The comparison itself: what it must and must not let pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.differential.comparison import EXACT, Tolerance, assert_same_results

ONE = np.float32(1)
NEXT = np.nextafter(ONE, np.float32(2))


@pytest.mark.parametrize(
    ("expected", "actual", "tolerance"),
    [
        (np.float32(np.nan), -np.float32(np.nan), EXACT),
        (np.float32(-0.0), np.float32(0.0), Tolerance(signed_zero=False)),
        (np.float32(1e-40), np.float32(0.0), EXACT),
        (ONE, NEXT, Tolerance(ulp=1)),
        (np.finfo(np.float32).max, np.float32(np.inf), Tolerance(ulp=1)),
        (np.float32(-1.1754944e-38), np.float32(-0.0), Tolerance(ulp=1)),
        (np.float64(100), np.float64(101), Tolerance(relative=0.02)),
        (np.float32(0), np.float32(1e-3), Tolerance(absolute=1e-2)),
        (np.int32(7), np.int32(7), EXACT),
    ],
)
def test_passes(expected: Any, actual: Any, tolerance: Tolerance) -> None:
    assert_same_results({"x": expected}, {"x": actual}, tolerance)


@pytest.mark.parametrize(
    ("expected", "actual", "tolerance"),
    [
        (np.float32(np.nan), ONE, Tolerance(ulp=100, absolute=100)),
        (ONE, np.float32(np.nan), Tolerance(ulp=100, absolute=100)),
        (np.float32(np.inf), np.float32(-np.inf), Tolerance(ulp=100, absolute=100)),
        (np.float32(np.inf), ONE, Tolerance(ulp=100, relative=1)),
        (np.float32(0.0), np.float32(-0.0), EXACT),
        (np.float32(0.0), np.float32(-0.0), Tolerance(ulp=4)),
        (ONE, NEXT, EXACT),
        (ONE, np.float64(1), EXACT),
        (np.int32(7), np.int32(8), Tolerance(ulp=100, absolute=100)),
        (np.bool_(True), np.bool_(False), Tolerance(absolute=100)),
        (np.zeros(3, np.int8), np.zeros(4, np.int8), EXACT),
        ([ONE], (ONE,), EXACT),
    ],
)
def test_fails(expected: Any, actual: Any, tolerance: Tolerance) -> None:
    with pytest.raises(AssertionError):
        assert_same_results(expected, actual, tolerance)


def test_tolerance_by_name() -> None:
    tolerance = Tolerance(by_name={"loose": 1})
    assert_same_results({"loose": ONE, "exact": ONE}, {"loose": NEXT, "exact": ONE}, tolerance)
    with pytest.raises(AssertionError, match="exact"):
        assert_same_results({"loose": ONE, "exact": ONE}, {"loose": ONE, "exact": NEXT}, tolerance)
