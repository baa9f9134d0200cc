"""Modules that are imported when something of theirs is first asked for.

What only some processes need (reports, strategies, GPUs, the compiler itself where no program has a
loop) would cost each of them its import. Such a module stands under `TYPE_CHECKING` for type
checkers and readers, who see who depends on whom, and is given by name to who runs:

    if TYPE_CHECKING:
        from fuselane import explaining
    else:
        explaining = Later("fuselane.explaining")
"""

from __future__ import annotations

import importlib
from typing import Any, final


@final
class Later:
    """A module that is yet to be imported, on whatever thread; has all that the module has."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Takes the module's full name."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
