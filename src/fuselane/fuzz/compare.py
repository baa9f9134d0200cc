"""Compares what plain XLA and Fuselane make of a random program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fuselane.fuzz.build import Judgement
from fuselane.fuzz.inputs import NumpyArray
from fuselane.fuzz.kinds import Kind, is_complex, is_floating


def find_difference(
    expected: Sequence[NumpyArray], actual: Sequence[NumpyArray], judgements: Sequence[Judgement]
) -> str:
    """Returns a sentence about the first result that differs by more than it may, or "".

    Bits of exact results are equal, but for the payloads of NaNs. Near results differ by no more
    than rounding errors can have added up to; those of one operation on special values by the units
    in the last place that the operation may be off. Denormals count as zeros: XLA:CPU runs with
    them switched off in the processor, and whether an instruction that only moves a value keeps
    them depends on LLVM's choice of instructions.
    """
    for i, (wanted, got, judgement) in enumerate(zip(expected, actual, judgements, strict=True)):
        if wanted.dtype != got.dtype or wanted.shape != got.shape:
            return f"result {i}: {wanted.dtype}{wanted.shape} became {got.dtype}{got.shape}"
        wrong = _find_wrong(wanted, got, judgement)
        if wrong.any():
            place = tuple(int(k) for k in np.argwhere(wrong)[0])
            return (
                f"result {i} ({judgement.kind.value}), {wanted.dtype}{list(wanted.shape)}: "
                f"{wrong.sum()} of {wrong.size} differ, first {list(place)}: "
                f"XLA has {wanted[place].item()!r}, Fuselane {got[place].item()!r}"
            )
    return ""


def _find_wrong(wanted: NumpyArray, got: NumpyArray, judgement: Judgement) -> NumpyArray:
    dtype = str(wanted.dtype)
    if is_complex(dtype):
        parts = [(wanted.real, got.real), (wanted.imag, got.imag)]
        wrong: NumpyArray = np.logical_or(*(_find_wrong(*part, judgement) for part in parts))
        return wrong
    if not is_floating(dtype):
        return wanted != got
    with np.errstate(all="ignore"):
        if judgement.kind is Kind.NEAR:
            distance = np.abs(wanted.astype(np.float64) - got.astype(np.float64))
            return ~(distance <= judgement.error)
        both_nan = np.isnan(wanted) & np.isnan(got)
        wanted, got = flush_denormals(wanted), flush_denormals(got)
        right = (wanted == got) & (np.signbit(wanted) == np.signbit(got))
        if judgement.error:
            is_number = ~(np.isnan(wanted) | np.isnan(got))
            right |= is_number & (ulp_distance(wanted, got) <= judgement.error)
    return ~(right | both_nan)


def flush_denormals(values: NumpyArray) -> NumpyArray:
    """Returns floats with zeros of their sign in the place of denormals."""
    is_denormal = np.abs(values) < ml_dtypes.finfo(values.dtype).tiny
    return np.where(is_denormal, np.copysign(values.dtype.type(0), values), values)


def ulp_distance(wanted: NumpyArray, got: NumpyArray) -> NumpyArray:
    """Counts the floats between two, as doubles; denormals stand at zero, infinity after the
    largest float."""
    distance: NumpyArray = np.abs(_ordinals(wanted) - _ordinals(got))
    return distance


def _ordinals(values: NumpyArray) -> NumpyArray:
    bits = 8 * values.dtype.itemsize
    unsigned: Any = np.dtype(f"uint{bits}")
    pattern = values.view(unsigned)
    smallest_normal = np.asarray(ml_dtypes.finfo(values.dtype).tiny).view(unsigned).item()
    magnitude = (pattern & np.array(2 ** (bits - 1) - 1, unsigned)).astype(np.int64)
    rank = np.maximum(magnitude - smallest_normal + 1, 0)
    return np.where(np.signbit(values), -rank, rank)
