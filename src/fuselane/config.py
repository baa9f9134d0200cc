"""Options, and everything Fuselane reads from the environment. No other file reads environment
variables.

- `FUSELANE`: `0` switches Fuselane off whatever the program says, `1` switches it on without a line
  of code.
- `FUSELANE_CACHE_DIR`: where kernels are kept; by default `fuselane` below `$XDG_CACHE_HOME` or
  `~/.cache`.
- `FUSELANE_<OPTION>`, such as `FUSELANE_VECTOR_BITS=256`: the default of an option; arguments of
  `enable` beat it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from fuselane.errors import OptionError

VERSION: Final = "0.1.0"
_PACKAGE: Final = Path(__file__).parent

_LAUNCHERS: Final = ("auto", "xla", "fuselane")
_SWITCH: Final = "FUSELANE"
_CACHE_DIR: Final = "FUSELANE_CACHE_DIR"
_PREFIX: Final = "FUSELANE_"
_OFF: Final = frozenset({"0", "false", "off", "no"})
_ON: Final = frozenset({"1", "true", "on", "yes"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user may set; every field is part of each cache key.

    Attributes:
        vector_bits: Width of vector registers to use: 128, 256 or 512; None is what the CPU has, or
            less where that holds all lanes.
        unroll: Vectors of lanes a kernel works on at once: 1, 2, 4, 8 or 16, as LLVM takes minutes
            over other numbers; on a GPU, lanes that a thread works on at once. None lets a model of
            the processor choose.
        tile_lanes: Lanes of one unit of work handed to a thread; None lets the cost model choose.
        threads: Most threads a kernel may use; None is all of XLA's.
        min_gain: How many times faster than XLA a kernel has to be by estimate for a loop to be
            taken; 0 takes every loop that can be.
        max_compile_s: Seconds of processor time that may be spent on one module, LLVM included; the
            loops not done by then are left to XLA. LLVM itself can't be stopped, so a kernel that
            it would need longer for than is left isn't begun.
        cache_mib: Size of the kernel cache on disk above which the kernels unused longest are
            deleted, in MiB; 0 keeps no kernels on disk.
        verify: Also run every replaced loop as XLA does, compare the results and fail with an error
            where they differ by more than rounding. For finding bugs: programs get much slower.
        verify_hlo: Check the HLO after every stage, at some cost in compile time; `verify` does so
            too.
        gpu: Also replace loops that XLA compiles for NVIDIA GPUs. Off by default, as long as it has
            been checked by compilers only and not been measured on a GPU; `verify` leaves such
            loops to XLA.
        gpu_launch: Who launches kernels on NVIDIA GPUs: `xla`, by its own custom call for PTX,
            `fuselane`, by a handler that has to be registered wherever the program runs, or `auto`:
            XLA if it can.
        fast_math: Let kernels for GPUs use the hardware's approximate instructions for elementary
            functions, quotients and roots of f32, and round products and sums once; docs/gpu.md
            has their bounds.
        loops: Replace loops by kernels; without, `fusion` alone changes programs.
        fusion: A fusion strategy to run in the place of XLA's own: the name of a pipeline, one
            as text, or the path of a plan; empty leaves XLA's fusions alone.
        tuned: Fuse programs for the CPU that `fuselane tune` has looked at as it found best, and
            the others as `fusion` says.
        bounds_checks: Guard every load and store of kernels; one that leaves its memory aborts the
            process with a sentence that names the kernel. For finding bugs: kernels get slower.
        repeat: Run each kernel four times at each call, in memory that held something else, with
            its tiles in other orders and on other threads, and fail with an error where that makes
            a difference. For finding bugs: kernels get several times slower.
        optimise: Have LLVM optimise kernels for the CPU. Without, it takes an eighth of the time,
            and they get several times slower, which estimates do not know. For finding bugs.
    """

    vector_bits: int | None = None
    unroll: int | None = None
    tile_lanes: int | None = None
    threads: int | None = None
    min_gain: float = 1.15
    max_compile_s: float = 60.0
    cache_mib: int = 256
    verify: bool = False
    verify_hlo: bool = False
    gpu: bool = False
    gpu_launch: str = "auto"
    fast_math: bool = False
    loops: bool = True
    fusion: str = ""
    tuned: bool = False
    bounds_checks: bool = False
    repeat: bool = False
    optimise: bool = True

    def __post_init__(self) -> None:
        """Raises OptionError for a value of the wrong type or outside what the option allows."""
        for field in dataclasses.fields(self):
            _check_type(field.name, str(field.type), getattr(self, field.name))
        _require(self.vector_bits in (None, 128, 256, 512), "vector_bits", "128, 256 or 512")
        _require(self.unroll in (None, 1, 2, 4, 8, 16), "unroll", "1, 2, 4, 8 or 16")
        _require(self.tile_lanes is None or self.tile_lanes >= 1, "tile_lanes", "a positive number")
        _require(self.threads is None or self.threads >= 1, "threads", "a positive number")
        _require(0 <= self.min_gain < math.inf, "min_gain", "zero or more")
        _require(0 < self.max_compile_s < math.inf, "max_compile_s", "more than zero")
        _require(self.cache_mib >= 0, "cache_mib", "zero or more")
        _require(self.gpu_launch in _LAUNCHERS, "gpu_launch", "auto, xla or fuselane")

    def fingerprint(self) -> str:
        """Returns 16 hex digits that stand for these options and this build of Fuselane.

        Two processes with equal fingerprints make equal kernels for equal programs on equal
        machines.
        """
        values = repr(tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self)))
        return hashlib.sha256(f"{source_digest()} {values}".encode()).hexdigest()[:16]


def options_from(settings: Mapping[str, Any]) -> Options:
    """Returns the options given by name, with defaults from the environment.

    Raises:
        OptionError: for an unknown name or a value that is not allowed; the sentence names both.
    """
    known = {field.name for field in dataclasses.fields(Options)}
    for name in settings:
        if name not in known:
            raise OptionError(
                f"There is no option {name!r}; options are {', '.join(sorted(known))}."
            )
    return dataclasses.replace(from_environment(), **settings)


def from_environment() -> Options:
    """Returns the options set by `FUSELANE_<OPTION>` variables, defaults for the others.

    Raises:
        OptionError: if a variable does not hold a value its option allows.
    """
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        text = os.environ.get(_PREFIX + field.name.upper(), "").strip()
        if text:
            settings[field.name] = _parse(field.name, str(field.type), text)
    return Options(**settings)


def switch() -> bool | None:
    """Returns what the variable `FUSELANE` says: True for on, False for off, None if it is not set.

    Raises:
        OptionError: if it holds anything but a word for on or off.
    """
    text = os.environ.get(_SWITCH, "").strip().lower()
    if not text:
        return None
    if text not in _ON | _OFF:
        raise OptionError(f"The variable {_SWITCH} has to be 0 or 1, not {text!r}.")
    return text in _ON


def cache_dir() -> Path:
    """Returns the directory for kernels, which need not exist yet."""
    chosen = os.environ.get(_CACHE_DIR, "").strip()
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    # By the XDG base directory specification a relative path is invalid and has to be ignored.
    if os.path.isabs(base):
        return Path(base) / "fuselane"
    try:
        return Path.home() / ".cache" / "fuselane"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"fuselane-{os.getuid()}"


def is_own_file(name: str) -> bool:
    """Whether a file that code comes from, as Python names it, is Fuselane's."""
    return name.startswith(os.path.join(_PACKAGE, ""))


@functools.lru_cache(maxsize=1)
def source_digest() -> str:
    """Returns the version and a hash of Fuselane's own source, so that an edited checkout never
    uses what another one made."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return f"{VERSION}-{digest.hexdigest()[:12]}"


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the environment for a child process: ours with changes, None taking a variable out.

    What this process would import, the child imports too.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **changes}
    return {name: value for name, value in environment.items() if value is not None}


def xla_flags() -> str:
    """Returns what `XLA_FLAGS` holds."""
    return os.environ.get("XLA_FLAGS", "")


def disabled_hlo_passes() -> tuple[str, ...]:
    """Returns the passes that `XLA_FLAGS` tells XLA to leave out, in order."""
    prefix = "--xla_disable_hlo_passes="
    flags = [flag for flag in xla_flags().split() if flag.startswith(prefix)]
    return tuple(flags[-1].removeprefix(prefix).split(",")) if flags else ()


def _require(is_allowed: bool, name: str, allowed: str) -> None:
    if not is_allowed:
        raise OptionError(f"The option {name} has to be {allowed}.")


def _check_type(name: str, annotation: str, value: object) -> None:
    """Raises OptionError unless a value is of the type its field is annotated with."""
    kind = annotation.removesuffix(" | None")
    if value is None and kind != annotation:
        return
    if kind == "bool":
        _require(isinstance(value, bool), name, "True or False")
    elif kind == "str":
        _require(isinstance(value, str), name, "text")
    elif kind == "float":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        _require(is_number, name, "a number")
    else:
        _require(isinstance(value, int) and not isinstance(value, bool), name, "a whole number")


def _parse(name: str, annotation: str, text: str) -> Any:
    """Returns the value a variable's text stands for."""
    kind = annotation.removesuffix(" | None")
    if kind == "bool":
        _require(text.lower() in _ON | _OFF, name, "0 or 1")
        return text.lower() in _ON
    if kind == "str":
        return text
    number, wanted = (float, "a number") if kind == "float" else (int, "a whole number")
    try:
        return number(text)
    except ValueError:
        raise OptionError(f"The option {name} has to be {wanted}, not {text!r}.") from None
