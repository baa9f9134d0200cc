"""What a file or folder holds that XLA can compile or has compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import jax
from jax import export

from fuselane.errors import CaptureError, InputError, VerificationError
from fuselane.hlo.container import is_optimized, module_in
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify
from fuselane.xla.capture import capture, lower
from fuselane.xla.captured import CapturedModule
from fuselane.xla.compilation import Source, as_it_is, capture_source, one_line
from fuselane.xla.dump import find_dump_target, read_dump
from fuselane.xla.targets import CPU, find_target
from fuselane.xla.toolchain import find_toolchain

MAX_FILE_BYTES: Final = 2**31
"""What a serialized protocol buffer can have at most."""

_BYTECODE: Final = b"ML\xefR"
_HLO_TEXT: Final = re.compile(r"(?:\s|//[^\n]*\n|/\*.*?\*/)*HloModule\b", re.DOTALL)
_MLIR_TEXT: Final = re.compile(r"\bstablehlo\.|\bfunc\.func\b|^\s*module\b", re.MULTILINE)


def capture_path(
    path: Path, target: str | None = None, *, max_s: float
) -> tuple[CapturedModule, ...]:
    """Returns the modules a file or folder holds, and what XLA did or does to them.

    - a folder that XLA's flag `--xla_dump_to` filled: read as it is;
    - HLO as text, or a serialized HloModuleProto or HloProto: compiled by XLA, but for a module
      that XLA has optimized before, which is read as it is;
    - StableHLO as text, bytecode or portable artifact, and what `jax.export` serialized: compiled.

    What a file is, its content tells, not its name.

    Args:
        path: The file or folder.
        target: As for `capture`; None is what a folder was compiled for, or else the CPU.
        max_s: Seconds XLA may take.
    Raises:
        InputError: for something else, for an unknown target, and for what was compiled for another
            one.
        CaptureError: if XLA refuses the module, fails or takes too long.
    """
    if path.is_dir():
        return _read_folder(path, target)
    found = find_target(target or CPU)
    data = _read_file(path)
    source = _text_source(path, data) or _binary_source(path, data)
    if isinstance(source, Source):
        try:
            if source.form == "pb" and is_optimized(source.data):
                return (as_it_is(source.data, found),)
            return (capture_source(source, found, max_s=max_s),)
        except CaptureError as error:
            raise InputError(f"{str(path)!r}: {error}") from None
    lowered = _lower_exported(path, source, target or CPU)
    return capture(lowered, target or CPU, max_s=max_s)


def _read_folder(folder: Path, target: str | None) -> tuple[CapturedModule, ...]:
    """Returns the modules of a folder that XLA filled."""
    wanted = None if target is None else find_target(target)
    found = find_dump_target(folder, wanted)
    ptxas = None
    if found.gpu is not None:
        try:
            ptxas = find_toolchain().ptxas
        except CaptureError:
            ptxas = None
    return read_dump(folder, found, ptxas=ptxas)


def _read_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            limit = f"{MAX_FILE_BYTES / 2**30:g} GiB"
            raise InputError(f"{str(path)!r} is larger than {limit}, which no HLO module is.")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    if not data:
        raise InputError(f"{str(path)!r} is empty.")
    return data


def _text_source(path: Path, data: bytes) -> Source | None:
    """Returns the module in a file of text or MLIR bytecode, or None for another kind of file."""
    if data.startswith(_BYTECODE):
        return Source(form="mlir", data=data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if _HLO_TEXT.match(text):
        return Source(form="hlo", data=data)
    if text.isprintable() or all(c.isprintable() or c.isspace() for c in text):
        if not _MLIR_TEXT.search(text):
            raise InputError(f"{str(path)!r} is text, but neither HLO nor StableHLO.")
        return Source(form="mlir", data=data)
    return None


def _binary_source(path: Path, data: bytes) -> Source | Any:
    """Returns the HLO module or the program of `jax.export` in a file."""
    try:
        return Source(form="pb", data=module_proto(data))
    except VerificationError as error:
        reason = str(error)
    try:
        return export.deserialize(bytearray(data))
    except ImportError:
        if b"StableHLO_v" in data:
            raise InputError(
                f"To read {str(path)!r}, which jax.export wrote: `pip install flatbuffers`."
            ) from None
    except Exception:  # whatever flatbuffers make of bytes that are none
        pass
    raise InputError(f"{str(path)!r} holds no serialized HLO module: {reason}")


def module_proto(data: bytes) -> bytes:
    """Returns the HloModuleProto in the bytes of one, or of an HloProto; both are serialized.

    Raises:
        VerificationError: if there is none that is valid.
    """
    reason = ""
    for candidate in (data, module_in(data)):
        try:
            verify(HloModule.from_bytes(candidate))
        except VerificationError as error:
            reason = reason or str(error)
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}"
        else:
            return candidate
    raise VerificationError(reason)


def _lower_exported(path: Path, exported: Any, target: str) -> Any:
    """Returns a program of `jax.export`, lowered."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return exported.call(*arguments, **keywords)

    call.__name__ = exported.fun_name
    arguments, keywords = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    try:
        return lower(jax.jit(call), target, *arguments, **keywords)
    except ValueError as error:
        raise InputError(f"{str(path)!r}: {one_line(str(error))}.") from None
