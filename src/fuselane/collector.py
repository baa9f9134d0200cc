"""Python's collector of cyclic garbage, which visits all objects again while many are made.

A report makes hundreds of thousands, and a process that runs JAX has as many already: visiting
them took as long as making the report.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collects no cyclic garbage inside a `with` block, on any thread, if it was collected before.

    What is left of it goes with the next collection after the block.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
