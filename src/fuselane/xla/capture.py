"""Compiling a program with the real XLA and keeping what it did."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jax._src import config as jax_config

from fuselane import config
from fuselane.errors import InputError
from fuselane.xla.captured import CapturedModule
from fuselane.xla.dump import read_dump

CPU: Final = "cpu"

_OUR_PASS: Final = "apply-xla-transforms"
"""The pass through which XLA calls Fuselane; without it a module is compiled by XLA alone."""


def capture(lowered: Any, target: str = CPU) -> tuple[CapturedModule, ...]:
    """Compiles a program with XLA alone, whether Fuselane is on or not, and returns what XLA did.

    JAX's caches of compiled programs are neither asked nor filled.

    Args:
        lowered: What `jax.jit(...).lower(...)` returned.
        target: What to compile for.
    Raises:
        InputError: for an unknown target.
    """
    if target != CPU:
        raise InputError(f"There is no target {target!r}; targets are {CPU}.")
    with tempfile.TemporaryDirectory(prefix="fuselane-xla-") as folder, not_persistent():
        start = time.perf_counter()
        lowered.compile(compiler_options=_dump_options(folder))
        compile_s = time.perf_counter() - start
        return read_dump(Path(folder), target, compile_s)


@contextlib.contextmanager
def not_persistent() -> Iterator[None]:
    """Keeps what this thread compiles out of JAX's persistent cache."""
    with jax_config.persistent_cache_min_compile_time_secs(float("inf")):
        yield


def _dump_options(folder: str) -> dict[str, Any]:
    """Returns options for one compilation of XLA's, beside those of the environment."""
    disabled = [*config.disabled_hlo_passes(), _OUR_PASS]
    return {
        "xla_dump_to": folder,
        "xla_dump_hlo_pass_re": ".*",
        "xla_dump_hlo_as_proto": True,
        "xla_disable_hlo_passes": ",".join(disabled),
    }
