"""The custom call that compares a kernel's results to XLA's while a program runs.

All its call sites share the target `fuselane_verify` and carry one attribute, `check`, with the
text of a `contract.Check`. Operands are, for each element of the check, XLA's result; then the
kernel's; then those of each varied run; at last two scalars, s32: the step, and how many
differences earlier steps left unexplained. Results are both for the next step.

The handler is a Python function (`runtime.call_frame`). When it finds a difference, XLA fails the
whole program with the check's sentence.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from fuselane.codegen.ffi_calls import API_MAJOR, API_MINOR
from fuselane.contract import Check, NumpyArray
from fuselane.runtime.call_frame import HANDLER, CallFrame, address_of, keep
from fuselane.runtime.ffi import register_functions
from fuselane.runtime.once import once

CHECK_TARGET: Final = "fuselane_verify"
"""Custom call target of every comparison."""


def _handle(pointer: Any) -> int | None:
    """Answers XLA: None if all is well, or else the address of an error."""
    frame: CallFrame = pointer.contents
    if frame.asks_for_metadata:
        frame.answer(API_MAJOR, API_MINOR)
        return None
    try:
        text = frame.attributes.read_strings()["check"].decode()
        operands, results = frame.operands.arrays(), frame.results.arrays()
        message = run_check(_parse(text), operands, results)
    except BaseException as error:
        message = f"Fuselane failed to verify a loop: {error!r}"
    return frame.fail(message) if message else None


def run_check(check: Check, operands: Sequence[NumpyArray], results: Sequence[NumpyArray]) -> str:
    """Compares one call's operands and fills its results; returns what is wrong, or ""."""
    count = len(check.elements)
    runs = [operands[i * count : (i + 1) * count] for i in range(2 + check.num_variations)]
    step, num_wrong = (int(scalar[0]) for scalar in operands[-2:])
    outcome = check.compare(runs[0], runs[1], runs[2:], step, num_wrong)
    for result, value in zip(results, (step + 1, outcome.num_wrong), strict=True):
        result[0] = value
    return outcome.message


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> Check:
    return Check.from_text(text)


_handler: Final = HANDLER(_handle)


def check_attributes(check: Check) -> bytes:
    """Returns the text for a custom call's `backend_config`: a dictionary in MLIR's syntax."""
    return f'{{check = "{check.to_text()}"}}'.encode()


@once
def register() -> None:
    """Registers the handler with XLA's CPU backend; the first call does it, the others nothing.

    Raises:
        RuntimeFailure: if XLA refuses it.
    """
    keep(_handler)
    register_functions(CHECK_TARGET, {"execute": address_of(_handler)}, "cpu")
