"""The custom call that runs a kernel several times, and fails unless nothing but its inputs counts.

What a kernel makes must not depend on what the memory of its results or its stack held before, on
which thread runs which tile, nor on the order of the tiles; and it must leave its inputs alone, but
for those whose memory its results share. So each call of the target `fuselane_repeat` runs it in
the ways below, from the same inputs, and compares all results bit by bit.

The handler is a Python function (`runtime.call_frame`), which starts the native one; both take the
kernel from the same two attributes. Two more say what the kernel is called, and how many results
count: scratch memory does not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from fuselane.codegen.ffi_calls import INSTANTIATE_SYMBOL
from fuselane.codegen.ffi_handler import EXECUTE_SYMBOL, FILLED_SYMBOL
from fuselane.contract import NumpyArray
from fuselane.runtime.call_frame import HANDLER, CallFrame, address_of, keep
from fuselane.runtime.ffi import native_handler, register_functions
from fuselane.runtime.kernel import Kernel
from fuselane.runtime.once import once
from fuselane.runtime.table import table

REPEAT_TARGET: Final = "fuselane_repeat"
"""Custom call target of kernels that run several times."""

_ZEROS: Final = 0x00
_ONES: Final = 0xFF
"""NaN, -1, and a boolean that is neither."""
_MIXED: Final = 0x5B

_FILLED: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 2, ctypes.c_int8
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a kernel.

    Attributes:
        operands, results: Its arrays, flat, where XLA put them.
        own: Bytes of the results that share no operand's memory.
        run: Runs it as without repetition.
        run_tiles: Runs some tiles in this thread, on a stack full of some byte.
        num_tiles: How many it has.
        num_compared: How many results count.
    """

    operands: Sequence[NumpyArray]
    results: Sequence[NumpyArray]
    own: Sequence[NumpyArray]
    run: Callable[[], int | None]
    run_tiles: Callable[[int, int, int], None]
    num_tiles: int
    num_compared: int


def _run_as_usual(call: Call) -> int | None:
    return call.run()


def _run_in_one(call: Call) -> None:
    call.run_tiles(0, call.num_tiles, _ONES)


def _run_backwards(call: Call) -> None:
    for tile in reversed(range(call.num_tiles)):
        call.run_tiles(tile, tile + 1, _MIXED)


_WAYS: Final[Sequence[tuple[str, int, Callable[[Call], int | None]]]] = (
    ("", _ZEROS, _run_as_usual),
    ("when it runs again", _MIXED, _run_as_usual),
    ("in memory full of ones, in one thread", _ONES, _run_in_one),
    ("in other memory, from the last tile to the first", _MIXED, _run_backwards),
)
"""How a kernel runs: in words, with what in its results' memory, and by what."""


def find_difference(call: Call) -> str | int | None:
    """Runs a kernel in all ways.

    Returns:
        What depends on more than the inputs; the address of an error of XLA's; None if all is well.
    """
    before = [operand.copy() for operand in call.operands]
    made = call.results[: call.num_compared]
    shared = [_shares(operand, made) for operand in call.operands]
    first: list[NumpyArray] = []
    for words, byte, run in _WAYS:
        if first:
            for operand, value, is_shared in zip(call.operands, before, shared, strict=True):
                if is_shared:
                    operand[:] = value
        for memory in call.own:
            memory[:] = byte
        error = run(call)
        if error:
            return error
        for number, (operand, value) in enumerate(zip(call.operands, before, strict=True)):
            if not shared[number] and _differ(operand, value).size:
                return f"changes what it is only to read, operand {number}"
        found = [result.copy() for result in made]
        for number, (one, other) in enumerate(zip(first, found, strict=bool(first))):
            places = _differ(one, other)
            if places.size:
                place = int(places[0])
                return (
                    f"makes something else {words}: {places.size} of {one.size} elements of result"
                    f" {number} differ, the first at {place}: {one[place]!r} and {other[place]!r}"
                )
        first = first or found
    return None


def _shares(operand: NumpyArray, results: Sequence[NumpyArray]) -> bool:
    return any(np.shares_memory(operand, result) for result in results)


def _differ(one: NumpyArray, other: NumpyArray) -> NumpyArray:
    """Returns the places at which two arrays differ in some bit."""
    width = one.dtype.itemsize
    bytes_ = (array.view(np.uint8).reshape(-1, width) for array in (one, other))
    left, right = bytes_
    return np.flatnonzero((left != right).any(axis=1))


def _handle(pointer: Any) -> int | None:
    """Answers XLA: None if all is well, or else the address of an error."""
    frame: CallFrame = pointer.contents
    native = HANDLER(native_handler().address(EXECUTE_SYMBOL))
    if frame.asks_for_metadata:
        answer: int | None = native(pointer)
        return answer
    try:
        strings = frame.attributes.read_strings()
        found = find_difference(_make_call(frame, strings, lambda: native(pointer)))
        if not isinstance(found, str):
            return found
        message = f"Fuselane's kernel of {strings['loop'].decode()} {found}. This is a bug."
    except BaseException as error:
        message = f"Fuselane failed to repeat a kernel: {error!r}"
    return frame.fail(message)


def _make_call(frame: CallFrame, strings: dict[str, bytes], run: Callable[[], int | None]) -> Call:
    """Returns the call that XLA makes."""
    record = table.made(table.address(strings["key"].decode()))
    filled = _FILLED(native_handler().address(FILLED_SYMBOL))
    inputs, outputs = (
        (ctypes.c_void_p * len(found))(*found)
        for found in (frame.operands.addresses(), frame.results.addresses())
    )

    def run_tiles(first: int, last: int, byte: int) -> None:
        filled(record.function, inputs, outputs, first, last, byte)

    operands, results = frame.operands.arrays(), frame.results.arrays()
    own = [result.view(np.uint8) for result in results if not _shares(result, operands)]
    return Call(
        operands=operands,
        results=results,
        own=own,
        run=run,
        run_tiles=run_tiles,
        num_tiles=record.num_tiles,
        num_compared=int(strings["compared"]),
    )


_handler: Final = HANDLER(_handle)


def repeat_attributes(kernel: Kernel, loop: str, num_compared: int) -> bytes:
    """Returns the text for a custom call's `backend_config`: a dictionary in MLIR's syntax."""
    names = f'compared = "{num_compared}", loop = "{loop}"'
    return f'{{{names}, image = "{kernel.to_text()}", key = "{kernel.key}"}}'.encode()


@once
def register() -> None:
    """Registers the handler with XLA's CPU backend; the first call does it, the others nothing.

    Raises:
        RuntimeFailure: if XLA refuses it.
    """
    keep(_handler)
    instantiate = native_handler().address(INSTANTIATE_SYMBOL)
    stages = {"instantiate": instantiate, "execute": address_of(_handler)}
    register_functions(REPEAT_TARGET, stages, "cpu")
