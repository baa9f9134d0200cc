"""Object code in this process: loaded, looked up, unloaded.

ORC loads it, which reports unresolved symbols and malformed images as errors. These functions may
be called from any thread, as those of `codegen.llvm`.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import final

from llvmlite import binding

from fuselane.codegen.llvm import initialise_host
from fuselane.errors import CodegenError

_OBJECTS_PER_JIT = 32
"""ORC never frees a library's name and tables, 9 KiB, before the whole JIT goes, which has 120 KiB
of its own: so a JIT loads that many objects and goes with the last of them."""
_object_numbers = itertools.count()


@final
class LoadedObject:
    """Object code in this process's memory, executable until `close` (or garbage collection)."""

    def __init__(self, jit: binding.LLJIT, library: str, tracker: binding.ResourceTracker) -> None:
        self._jit = jit
        self._library = library
        # Each lookup returns a tracker too; LLVM unmaps the code once any of them is dropped.
        self._trackers = [tracker]

    def address(self, symbol: str) -> int:
        """Returns the address of a function or variable that the object defines.

        Raises:
            CodegenError: if there is no such symbol, one that it needs is found nowhere in this
                process, or the object is closed.
        """
        if not self._trackers:
            raise CodegenError(f"The object that defines {symbol} has been closed.")
        try:
            tracker = self._jit.lookup(self._library, symbol)
        except RuntimeError as error:
            raise CodegenError(f"LLVM could not load {symbol}: {str(error).strip()}") from error
        self._trackers.append(tracker)
        return int(tracker[symbol])

    def close(self) -> None:
        """Unmaps the code; addresses become invalid. Closing twice is allowed."""
        while self._trackers:
            self._trackers.pop().close()


@lru_cache(maxsize=1)
def _jit(_number: int) -> binding.LLJIT:
    initialise_host()
    # JITLink places code and constants in one block, so 32-bit offsets between them always reach.
    return binding.create_lljit_compiler(use_jit_link=True, suppress_errors=True)


def load_object(object_code: bytes) -> LoadedObject:
    """Loads object code made by `compile_object`.

    What it does not define resolves to this process's libraries. Symbols are linked when the first
    address is asked for.

    Raises:
        CodegenError: if the bytes are no object file for this machine.
    """
    number = next(_object_numbers)
    jit, library = _jit(number // _OBJECTS_PER_JIT), f"fuselane.{number}"
    builder = binding.JITLibraryBuilder().add_object_img(object_code).add_current_process()
    try:
        return LoadedObject(jit, library, builder.link(jit, library))
    except RuntimeError as error:
        raise CodegenError(f"LLVM could not load an object: {str(error).strip()}") from error
