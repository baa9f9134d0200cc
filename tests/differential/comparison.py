"""Compares the results of two runs: bit by bit, or floats within a stated tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from fuselane.fuzz.compare import flush_denormals, ulp_distance
from tests.differential.values import NumpyArray, is_floating


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a float may be off; integers and booleans must always be equal.

    A float passes when it is within `ulp` units in the last place, or within `absolute` plus
    `relative` times the expected value. Infinities and NaNs must be in the same places, zeros must
    have the same sign. Denormals count as zeros: XLA:CPU runs with denormals switched off in the
    processor, and whether an instruction that only moves or chooses a value keeps them depends on
    LLVM's choice of instructions.

    Attributes:
        ulp: Units in the last place; 0 asks for the same bits (any NaN equals any NaN).
        relative: Allowed relative difference.
        absolute: Allowed absolute difference. Above 0 the signs of zeros are not compared.
        signed_zero: Whether the signs of zeros are compared.
        by_name: Values of `ulp` for the outputs below a dictionary key of that name.
    """

    ulp: int = 0
    relative: float = 0.0
    absolute: float = 0.0
    signed_zero: bool = True
    by_name: Mapping[str, int] = field(default_factory=dict)

    def ulp_of(self, path: str) -> int:
        """Returns the units in the last place allowed for the output at `path`."""
        return next((ulp for name, ulp in self.by_name.items() if f"'{name}'" in path), self.ulp)


EXACT = Tolerance()
# For programs whose products and sums may be contracted, after a few dozen operations.
CLOSE = Tolerance(ulp=8, relative=2e-5, absolute=2e-5)
CLOSE_DOUBLE = Tolerance(ulp=8, relative=1e-12, absolute=1e-12)
CLOSE_HALF = Tolerance(ulp=4, relative=2e-2, absolute=2e-2)


def assert_same_results(expected: Any, actual: Any, tolerance: Tolerance = EXACT) -> None:
    """Fails with a description of the differences unless `actual` equals `expected` within
    `tolerance`.

    Args:
        expected: A pytree of arrays.
        actual: A pytree that must have the same structure, dtypes and shapes.
        tolerance: How far floats may be off.
    """
    wanted_structure, structure = map(tree_util.tree_structure, (expected, actual))
    assert str(wanted_structure) == str(structure)
    leaves = tree_util.tree_leaves_with_path(expected)
    pairs = zip(leaves, tree_util.tree_leaves(actual), strict=True)
    messages = [
        message
        for (path, wanted), got in pairs
        if (message := describe_difference(tree_util.keystr(path), wanted, got, tolerance))
    ]
    assert not messages, "\n".join(messages)


def describe_difference(path: str, expected: Any, actual: Any, tolerance: Tolerance) -> str:
    """Returns "" when two arrays are equal within `tolerance`, else a sentence with the first
    differences."""
    wanted, got = to_numpy(expected), to_numpy(actual)
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return f"{path}: expected {wanted.dtype}{wanted.shape}, got {got.dtype}{got.shape}"
    if is_floating(wanted.dtype):
        flushed = flush_denormals(wanted), flush_denormals(got)
        wrong = _wrong_floats(*flushed, tolerance, tolerance.ulp_of(path))
    else:
        wrong = wanted != got
    if not wrong.any():
        return ""
    places = [tuple(int(i) for i in place) for place in np.argwhere(wrong)[:6]]
    shown = "; ".join(f"{place}: {wanted[place]!r} got {got[place]!r}" for place in places)
    worst = f", worst {_worst_ulp(wanted, got)} ulp" if is_floating(wanted.dtype) else ""
    return (
        f"{path} {wanted.dtype}{wanted.shape}: {wrong.sum()} of {wrong.size} differ{worst}: {shown}"
    )


def to_numpy(value: Any) -> NumpyArray:
    """Returns an array's values; those of PRNG keys are their words."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _wrong_floats(
    wanted: NumpyArray, got: NumpyArray, tolerance: Tolerance, ulp: int
) -> NumpyArray:
    both_nan = np.isnan(wanted) & np.isnan(got)
    equal = wanted == got
    if tolerance.signed_zero and tolerance.absolute == 0:
        equal &= np.signbit(wanted) == np.signbit(got)
    right = both_nan | equal
    comparable = ~(np.isnan(wanted) | np.isnan(got))
    if ulp > 0:
        right |= comparable & (ulp_distance(wanted, got) <= ulp) & ((wanted != 0) | (got != 0))
    if tolerance.relative > 0 or tolerance.absolute > 0:
        right |= _is_near(wanted, got, tolerance)
    return ~right


def _is_near(wanted: NumpyArray, got: NumpyArray, tolerance: Tolerance) -> NumpyArray:
    wide_wanted, wide_got = wanted.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wide_wanted) & np.isfinite(wide_got)
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = tolerance.absolute + tolerance.relative * np.abs(wide_wanted)
        near: NumpyArray = finite & (np.abs(wide_wanted - wide_got) <= allowed)
    return near


def _worst_ulp(wanted: NumpyArray, got: NumpyArray) -> int:
    comparable = ~(np.isnan(wanted) | np.isnan(got))
    distance = ulp_distance(wanted, got)[comparable]
    return int(distance.max()) if distance.size else 0
