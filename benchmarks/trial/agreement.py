"""Whether two engines' results agree, under a program's own rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import jax
import numpy as np

from programs.program import Rule

Array = np.ndarray[Any, np.dtype[Any]]
# Below this a float32 is denormal, and XLA:CPU flushes it.
TINY: Final = 1.2e-38


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far results are apart.

    Attributes:
        holds: Whether the rule allows it.
        difference: The largest difference of a float, relative to its own magnitude plus its
            array's average; infinite where NaNs or infinities are in different places.
        share_apart: Largest share, over all arrays, of elements that are off by more than allowed.
        detail: What broke the rule, or "".
    """

    holds: bool
    difference: float
    share_apart: float
    detail: str = ""


def compare(expected: Any, actual: Any, rule: Rule) -> Agreement:
    """Compares two pytrees of arrays of equal structure."""
    paths = jax.tree_util.tree_leaves_with_path(expected)
    found = [
        _compare_leaf(jax.tree_util.keystr(path) or "result", value, other, rule)
        for (path, value), other in zip(paths, jax.tree.leaves(actual), strict=True)
    ]
    return Agreement(
        holds=all(agreement.holds for agreement in found),
        difference=max((agreement.difference for agreement in found), default=0.0),
        share_apart=max((agreement.share_apart for agreement in found), default=0.0),
        detail="; ".join(agreement.detail for agreement in found if agreement.detail),
    )


def _compare_leaf(path: str, expected: jax.Array, actual: jax.Array, rule: Rule) -> Agreement:
    """Compares one array; `detail` names it if the rule is broken."""
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        detail = f"{path} is {actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}"
        return Agreement(holds=False, difference=np.inf, share_apart=1.0, detail=detail)
    if jax.numpy.issubdtype(expected.dtype, jax.dtypes.prng_key):
        expected, actual = jax.random.key_data(expected), jax.random.key_data(actual)
    is_float = jax.numpy.issubdtype(expected.dtype, jax.numpy.inexact)
    off = _differences(expected, actual) if is_float else _mismatches(expected, actual)
    share = float((off > rule.relative).mean()) if off.size else 0.0
    difference = float(off.max(initial=0.0)) if is_float else 0.0
    if rule.spread is None or not is_float:
        detail = "" if share <= rule.share_apart else _describe(path, expected, actual, off, share)
    else:
        detail = _compare_spread(path, _widen(expected), _widen(actual), rule.spread)
    return Agreement(holds=not detail, difference=difference, share_apart=share, detail=detail)


def _widen(values: jax.Array) -> Array:
    """Returns floats as doubles, complex numbers as complex doubles."""
    is_complex = jax.numpy.issubdtype(values.dtype, jax.numpy.complexfloating)
    return np.asarray(values).astype(np.complex128 if is_complex else np.float64)


def _mismatches(expected: jax.Array, actual: jax.Array) -> Array:
    """Returns infinity where integers or booleans differ and zero elsewhere."""
    return np.where(np.asarray(expected) == np.asarray(actual), 0.0, np.inf)


def _differences(expected: jax.Array, actual: jax.Array) -> Array:
    """Returns each float's relative difference, as `Agreement.difference` has it."""
    a, b = _widen(expected), _widen(actual)
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(a)
        average = float(np.abs(a[is_finite]).mean()) if is_finite.any() else 0.0
        off = np.abs(a - b) / (np.abs(a) + average + TINY)
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(is_same, 0.0, np.where(np.isfinite(off), off, np.inf))


def _compare_spread(path: str, expected: Array, actual: Array, allowed: float) -> str:
    """Returns what is wrong with the means and standard deviations, or ""."""
    expected, actual = expected[np.isfinite(expected)], actual[np.isfinite(actual)]
    if expected.size != actual.size:
        return f"{path}: {actual.size} elements are finite, not {expected.size}"
    if not expected.size:
        return ""
    deviation = float(expected.std()) + TINY
    of_means = abs(actual.mean() - expected.mean()) / deviation
    of_deviations = abs(actual.std() - expected.std()) / deviation
    if of_means <= allowed and of_deviations <= allowed:
        return ""
    return (
        f"{path}: means are {of_means:.2g} and deviations {of_deviations:.2g} deviations apart, "
        f"{allowed:g} are allowed"
    )


def _describe(path: str, expected: jax.Array, actual: jax.Array, off: Array, share: float) -> str:
    worst = np.unravel_index(int(off.argmax()), off.shape)
    place = f"[{', '.join(str(int(i)) for i in worst)}]" if worst else ""
    values = f"{np.asarray(actual)[worst]} instead of {np.asarray(expected)[worst]}"
    return f"{path}: {share:.2%} of elements are off, {place} is {values}"
