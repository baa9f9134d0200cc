"""What a kernel owes the user, as numbers: which results differ from XLA's by more than rounding.

Integers and booleans have to be equal, and so are floats nearly: a kernel does the same operations,
but may contract a product and a sum into one, add up in another order, and has elementary functions
of its own. What such differences in the last places grow to depends on the program. It is measured
where it can be: XLA runs the same computation on *varied* inputs too, some units in the last place
above and below. Where that moves a result, a kernel may move it about as far:

    |kernel - XLA| <= absolute + relative * |XLA| + spread * median |XLA|
                      + DRIFT_FACTOR * largest |varied - XLA|

or as far as half of its array is moved: what many elements hang on, such as the length of a step,
may move one of them and its own values move it back, by chance.

An integer or boolean may differ where it differs in a varied run: there a comparison of floats
hangs on their last places. Two opposite variations nearly always find such an element. The few
that remain are counted and allowed up to a limit; a loop without floats has none.

After one step this is judged value by value. After many, chance decides when and in which lanes the
runs drift apart. Then the largest drift of any lane, up to that step, counts for all lanes, and of
integers and booleans as many may differ as in the varied runs, times DRIFT_FACTOR.

NaN equals NaN of any payload, and 0 equals -0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import ml_dtypes
import numpy as np

NumpyArray = np.ndarray[Any, Any]

DRIFT_FACTOR: Final = 4.0
"""How much farther than the varied runs a kernel may go."""

VARIATION_ULP: Final = 32
"""By about how many units in the last place varied inputs of 32 and 64 bits differ; those of 16
bits differ by one."""


@final
@dataclass(frozen=True, slots=True)
class _Limit:
    """How many unexplained differences are let pass: a share of an array, growing per step."""

    share: float
    per_step: float
    in_run: float


_VARIED_LIMIT: Final = _Limit(1 / 1024, 1e-6, 0.0)
_UNVARIED_LIMIT: Final = _Limit(1 / 256, 1e-5, 0.01)
"""For loops that compute with floats but carry none, so that nothing can be varied."""


@final
@dataclass(frozen=True, slots=True)
class _Bounds:
    relative: float
    absolute: float
    spread: float


_BOUNDS: Final = {
    np.dtype(np.float64): _Bounds(1e-12, 1e-14, 1e-14),
    np.dtype(np.float32): _Bounds(1e-5, 1e-6, 1e-6),
    np.dtype(np.float16): _Bounds(8e-3, 4e-3, 4e-3),
    np.dtype(ml_dtypes.bfloat16): _Bounds(3e-2, 2e-2, 2e-2),
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Where one step's row lies in an array that a loop fills row by row.

    Row numbers count along one dimension: those of an element is `offset in memory // stride %
    count`. Step `t` writes at row `first + slope * t`.
    """

    stride: int
    count: int
    first: int
    slope: int

    def steps(self, offsets: NumpyArray) -> NumpyArray:
        """Returns the steps that wrote the elements at some offsets in memory."""
        rows = offsets // self.stride % self.count - self.first
        result: NumpyArray = rows // self.slope if self.slope > 0 else -(rows // -self.slope)
        return result


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedElement:
    """One array that a check compares.

    Attributes:
        name: How the user finds it, such as "element 2, f32[2048,4]{1,0}".
        source: The source line that computes it, or "".
        dimensions: Sizes.
        minor_to_major: Layout.
        lane_stride: Distance between lanes in memory, in elements; 0 where there are no lanes.
        num_lanes: How many lanes.
        rows: Which step wrote what, where that is known.
    """

    name: str
    source: str
    dimensions: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    lane_stride: int = 0
    num_lanes: int = 1
    rows: Rows | None = None

    def place(self, offset: int) -> str:
        """Returns where an offset in memory lies: indices, and the lane."""
        indices = [0] * len(self.dimensions)
        rest = offset
        for dimension in self.minor_to_major:
            rest, indices[dimension] = divmod(rest, self.dimensions[dimension])
        lane = ""
        if self.lane_stride:
            lane = f" (lane {offset // self.lane_stride % self.num_lanes})"
        return f"[{', '.join(map(str, indices))}]{lane}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison in a program: of what one step, or a whole loop, computed.

    Attributes:
        module: Name of the HLO module.
        loop: Name of the `while`.
        source: The user's source line of the loop, or "".
        is_step: Whether one step is compared, not the whole loop.
        is_exact: Whether the loop has no floats, so that nothing may differ.
        num_variations: Varied runs there are.
        elements: What is compared.
    """

    module: str
    loop: str
    source: str
    is_step: bool
    is_exact: bool
    num_variations: int
    elements: tuple[CheckedElement, ...]

    def to_text(self) -> str:
        """Returns the check as text that `from_text` reads back, without quotes of its own."""
        return json.dumps(asdict(self), separators=(",", ":")).encode().hex()

    @staticmethod
    def from_text(text: str) -> Check:
        """Returns the check that `to_text` wrote."""
        fields: dict[str, Any] = json.loads(bytes.fromhex(text))
        fields["elements"] = tuple(map(_element_from_json, fields["elements"]))
        return Check(**fields)

    def compare(
        self,
        reference: Sequence[NumpyArray],
        kernel: Sequence[NumpyArray],
        varied: Sequence[Sequence[NumpyArray]],
        step: int,
        num_wrong: int,
    ) -> Outcome:
        """Compares what a kernel computed to what XLA did.

        Args:
            reference: XLA's results, one flat array, in memory's order, per element.
            kernel: The kernel's.
            varied: XLA's on varied inputs, per variation.
            step: The number of this step counted from 0; of steps, for a whole run.
            num_wrong: What earlier steps left unexplained.
        """
        total = num_wrong
        worst: _Difference | None = None
        for i, element in enumerate(self.elements):
            runs = [run[i] for run in varied]
            wrong = find_wrong(reference[i], kernel[i], runs, None if self.is_step else element)
            if not wrong.size:
                continue
            total = max(total, num_wrong + wrong.size)
            if wrong.size + num_wrong > self._num_allowed(reference[i].size, step):
                found = _Difference(element, reference[i], kernel[i], wrong, step, self.is_step)
                if worst is None or found.step < worst.step:
                    worst = found
        return Outcome(num_wrong=total, message="" if worst is None else self._describe(worst))

    def _num_allowed(self, size: int, step: int) -> int:
        if self.is_exact:
            return 0
        limit = _VARIED_LIMIT if self.num_variations else _UNVARIED_LIMIT
        if self.is_step:
            return int(size * limit.share) + int(size * limit.per_step * (step + 1))
        return int(size * limit.in_run)

    def _describe(self, found: _Difference) -> str:
        place = f" at {self.source}" if self.source else ""
        computed = f", computed at {found.element.source}," if found.element.source else ""
        return (
            f"Fuselane's kernel and XLA disagree in loop {self.loop}{place} of {self.module}, "
            f"{found.when}: {found.element.name}{computed} is {found.kernel_value} by the kernel "
            f"and {found.reference_value} by XLA at {found.element.place(found.offset)}; "
            f"{found.offsets.size} of {found.reference.size} values differ. This is a bug in "
            "Fuselane or, rarely, in XLA: please report it with this message and the program. With "
            "FUSELANE=0 in the environment the program runs without Fuselane."
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a comparison found.

    Attributes:
        num_wrong: Unexplained differences so far, those of earlier steps included.
        message: What to tell the user, or "" if all is well.
    """

    num_wrong: int
    message: str


@final
class _Difference:
    """An element with more differences than allowed; the first one stands for all."""

    def __init__(
        self,
        element: CheckedElement,
        reference: NumpyArray,
        kernel: NumpyArray,
        offsets: NumpyArray,
        step: int,
        is_step: bool,
    ) -> None:
        self.element = element
        self.reference = reference
        self.offsets = offsets
        self.offset = int(offsets[0])
        self.step = step
        self.when = f"in step {step}" if is_step else f"after {step} steps"
        rows = element.rows
        if rows is not None and not is_step:
            steps = rows.steps(offsets)
            self.step = int(steps.min())
            self.offset = int(offsets[steps.argmin()])
            self.when = f"in step {self.step}"
        self.reference_value = repr(reference[self.offset].item())
        self.kernel_value = repr(kernel[self.offset].item())


def find_wrong(
    reference: NumpyArray,
    kernel: NumpyArray,
    varied: Sequence[NumpyArray],
    run: CheckedElement | None = None,
) -> NumpyArray:
    """Returns the indices at which two flat arrays of one type differ more than rounding explains.

    Args:
        reference: The right values.
        kernel: Those to judge.
        varied: The right values for inputs that are a little different.
        run: What is known about an array that many steps have made; None after a single step.
    """
    if np.array_equal(reference.view(np.uint8), kernel.view(np.uint8)):
        return np.zeros(0, np.int64)
    with np.errstate(all="ignore"):
        if reference.dtype in _BOUNDS or reference.dtype.kind == "c":
            wrong = _find_wrong_floats(reference, kernel, varied, run)
        else:
            wrong = _find_wrong_integers(reference, kernel, varied, run)
    return np.flatnonzero(wrong)


def _find_wrong_integers(
    reference: NumpyArray,
    kernel: NumpyArray,
    varied: Sequence[NumpyArray],
    run: CheckedElement | None,
) -> NumpyArray:
    wrong: NumpyArray = reference != kernel
    if not varied:
        return wrong
    moved = [values != reference for values in varied]
    if run is None:
        wrong &= ~np.logical_or.reduce(moved)
        return wrong
    most = np.maximum.reduce([_pool(values, run, np.sum, np.cumsum) for values in moved])
    allowed = DRIFT_FACTOR * most + run.num_lanes * _VARIED_LIMIT.share
    wrong &= _pool(wrong, run, np.sum, np.cumsum) > allowed
    return wrong


def _find_wrong_floats(
    reference: NumpyArray,
    kernel: NumpyArray,
    varied: Sequence[NumpyArray],
    run: CheckedElement | None,
) -> NumpyArray:
    bounds = _bounds_of(reference.dtype)
    # Nearly always enough, and cheap. Infinity is not less than infinity.
    distance = np.abs(kernel - reference)
    if (distance < bounds.absolute + bounds.relative * np.abs(reference)).all():
        return np.zeros(reference.size, np.bool_)
    right, got = _widen(reference), _widen(kernel)
    finite = np.isfinite(right)
    magnitude = np.where(finite, np.abs(right), 0.0)
    allowed = bounds.absolute + bounds.relative * magnitude + bounds.spread * np.median(magnitude)
    drift = np.zeros(right.size)
    for values in varied:
        moved = np.abs(_widen(values) - right)
        moved = np.where(np.isfinite(moved), moved, np.inf)
        drift = np.maximum(drift, np.where(_is_same(values, reference), 0.0, moved))
    if run is None:
        drift = np.maximum(drift, np.median(drift))
    else:
        drift = _pool(drift, run, np.max, np.maximum.accumulate)
    is_near = finite & (np.abs(got - right) <= allowed + DRIFT_FACTOR * drift)
    wrong: NumpyArray = ~(_is_same(reference, kernel) | is_near | np.isinf(drift))
    return wrong


def _pool(values: NumpyArray, run: CheckedElement, combine: Any, accumulate: Any) -> NumpyArray:
    """Combines values over all lanes and accumulates them over the steps so far."""
    shape = values.shape
    if run.lane_stride:
        values = values.reshape(-1, run.num_lanes, run.lane_stride)
        values = np.broadcast_to(combine(values, axis=1, keepdims=True), values.shape)
    if run.rows is not None:
        values = values.reshape(-1, run.rows.count, run.rows.stride)
        order = slice(None, None, 1 if run.rows.slope > 0 else -1)
        values = accumulate(values[:, order], axis=1)[:, order]
    return values.reshape(shape)


def _bounds_of(dtype: np.dtype[Any]) -> _Bounds:
    if dtype.kind == "c":
        dtype = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
    return _BOUNDS[dtype]


def _is_same(left: NumpyArray, right: NumpyArray) -> NumpyArray:
    """Compares floats; NaNs are the same. The parts of complex numbers are compared one by one."""
    if left.dtype.kind == "c":
        real = _is_same(left.real, right.real)
        return real & _is_same(left.imag, right.imag)
    same: NumpyArray = (left == right) | (np.isnan(left) & np.isnan(right))
    return same


def _widen(values: NumpyArray) -> NumpyArray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _element_from_json(fields: dict[str, Any]) -> CheckedElement:
    for name in ("dimensions", "minor_to_major"):
        fields[name] = tuple(fields[name])
    if fields["rows"] is not None:
        fields["rows"] = Rows(**fields["rows"])
    return CheckedElement(**fields)
