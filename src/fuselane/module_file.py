"""What Fuselane would do with a module that XLA wrote to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fuselane import pipeline
from fuselane.config import options_from
from fuselane.decisions import DecisionLog
from fuselane.errors import InputError, VerificationError
from fuselane.explain.report import Report
from fuselane.hlo.container import module_in
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify

TARGETS: Final = ("cpu",)

MAX_FILE_BYTES: Final = 2**31
"""What a serialized protocol buffer can have at most."""


def explain_module_file(path: Path, target: str = "cpu") -> Report:
    """Returns what becomes of the loops of a module in a file.

    Args:
        path: A serialized HloModuleProto, or the HloProto around one that XLA's flags
            `--xla_dump_to` and `--xla_dump_hlo_as_proto` leave as `*.hlo.pb`. The module should be
            one after optimizations.
        target: One of TARGETS.
    Raises:
        InputError: for a file that cannot be read or holds no HLO module, and for an unknown
            target.
    """
    if target not in TARGETS:
        raise InputError(f"There is no target {target!r}; targets are {', '.join(TARGETS)}.")
    data = read_module_file(path)
    log = DecisionLog()
    try:
        pipeline.transform(data, options_from({}), log)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": .")
        raise InputError(f"The module in {str(path)!r} cannot be compiled: {reason}.") from error
    return Report.of(log)


def read_module_file(path: Path) -> bytes:
    """Returns the serialized HloModuleProto in a file.

    Raises:
        InputError: if the file cannot be read or holds none.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            limit = f"{MAX_FILE_BYTES / 2**30:g} GiB"
            raise InputError(f"{str(path)!r} is larger than {limit}, which no HLO module is.")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
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
    raise InputError(f"{str(path)!r} holds no serialized HLO module: {reason}")
