"""Fuselane runs the loops of unmodified `jax.jit` programs as native kernels, from inside XLA.

    import fuselane
    fuselane.enable()                       # every compilation from here on
    print(fuselane.explain(step, *args))    # what became of the loops, and why

Public names are loaded when first used: JAX imports this package in every process, see
`fuselane.plugin`.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from fuselane.config import VERSION, Options
from fuselane.errors import FuselaneError, OptionError

if TYPE_CHECKING:
    from fuselane.api import decisions, disable, enable, enabled, explain, is_enabled, jit
    from fuselane.explain.report import Report
    from fuselane.runtime.warning import FuselaneWarning
    from fuselane.tuner import tune

__version__ = VERSION

__all__ = [
    "FuselaneError",
    "FuselaneWarning",
    "OptionError",
    "Options",
    "Report",
    "__version__",
    "decisions",
    "disable",
    "enable",
    "enabled",
    "explain",
    "is_enabled",
    "jit",
    "tune",
]

_HOMES: Final = {
    "FuselaneWarning": "fuselane.runtime.warning",
    "Report": "fuselane.explain.report",
    "decisions": "fuselane.api",
    "disable": "fuselane.api",
    "enable": "fuselane.api",
    "enabled": "fuselane.api",
    "explain": "fuselane.api",
    "is_enabled": "fuselane.api",
    "jit": "fuselane.api",
    "tune": "fuselane.tuner",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


class _Package(types.ModuleType):
    """The package; keeps `fuselane.explain` the function, not the room of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
# The imports above have put the room of that name here before the class could keep it out.
globals().pop("decisions", None)
