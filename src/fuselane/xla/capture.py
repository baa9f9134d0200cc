"""Compiling a program with the real XLA and keeping what it did."""

from __future__ import annotations

import contextlib
import io
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jax
from jax._src import config as jax_config
from jax._src.interpreters import mlir

from fuselane.xla.alone import compiled_alone
from fuselane.xla.captured import CapturedModule
from fuselane.xla.compilation import Source, capture_source
from fuselane.xla.dump import read_dump
from fuselane.xla.dump_options import dump_options
from fuselane.xla.targets import CPU, find_target

MAX_SECONDS: Final = 600.0
"""How long XLA may take in a child process, unless a caller says otherwise."""

_numbers: Final = itertools.count()
_lowering: Final[Any] = jax.make_user_context(None)  # type: ignore[no-untyped-call]
"""Part of the key under which JAX looks up what it has traced: the number of a lowering."""

CUDA: Final = "cuda"
"""JAX's name of the platform that programs are lowered for if the target is a GPU."""


def lower(jitted: Any, target: str, *arguments: Any, **keywords: Any) -> Any:
    """Returns a program lowered for a target; nothing of CUDA need be installed.

    All of it is traced anew: what JAX has kept of a function of its own, such as the one by which
    `lax.scan` stacks rows, has the lines of the program that called it first.

    Args:
        jitted: What `jax.jit` returned.
        target: As for `capture`.
        arguments: What it would be called with; `jax.ShapeDtypeStruct`s do.
        keywords: The same by name.
    Raises:
        InputError: for an unknown target.
    """
    platform = CPU if find_target(target).gpu is None else CUDA
    with any_backend(), _lowering(next(_numbers)):
        return jitted.trace(*arguments, **keywords).lower(lowering_platforms=(platform,))


def capture(
    lowered: Any, target: str = CPU, *, max_s: float = MAX_SECONDS
) -> tuple[CapturedModule, ...]:
    """Compiles a program with XLA alone, whether Fuselane is on or not, and returns what XLA did.

    JAX's caches of compiled programs are neither asked nor filled. For a CPU that happens in this
    process, for a GPU in a child.

    Args:
        lowered: What `lower` returned.
        target: `cpu`, a GPU model such as `h100`, or the path of a GpuTargetConfigProto as text.
        max_s: Seconds XLA may take for a GPU.
    Raises:
        InputError: for an unknown target.
        CaptureError: if the GPU compiler is not there, fails or takes too long.
    """
    found = find_target(target)
    if found.gpu is not None:
        source = Source(form="mlir", data=bytecode(lowered.compiler_ir()))
        return (capture_source(source, found, max_s=max_s),)
    with tempfile.TemporaryDirectory(prefix="fuselane-xla-") as folder, not_persistent():
        start = time.perf_counter()
        with compiled_alone(_name(lowered)):
            lowered.compile(compiler_options=dump_options(Path(folder)))
        compile_s = time.perf_counter() - start
        return read_dump(Path(folder), found, compile_s=compile_s)


def _name(lowered: Any) -> str:
    """Returns what XLA will call a lowered program."""
    attributes = lowered.compiler_ir().operation.attributes
    return str(attributes["sym_name"].value)


def bytecode(module: Any) -> bytes:
    """Returns an MLIR module as bytes, with the source lines it knows."""
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()


@contextlib.contextmanager
def any_backend() -> Iterator[None]:
    """Lets JAX lower callbacks into Python, such as `jax.debug.print`, for a GPU that is not there.

    It asks for the backend they will be called from, and goes on with any.
    """
    _CONTEXT.get_backend = _get_any_backend
    try:
        yield
    finally:
        _CONTEXT.get_backend = _GET_BACKEND


_CONTEXT: Final[Any] = mlir.ModuleContext
_GET_BACKEND: Final = _CONTEXT.get_backend


def _get_any_backend(context: Any, optional: bool = False) -> Any:
    try:
        return _GET_BACKEND(context, optional)
    except (RuntimeError, ValueError):
        return context.backend


@contextlib.contextmanager
def not_persistent() -> Iterator[None]:
    """Keeps what this thread compiles out of JAX's persistent cache."""
    with jax_config.persistent_cache_min_compile_time_secs(float("inf")):
        yield
