"""XLA itself, as parser, printer and compiler of the modules the tests use."""

from __future__ import annotations

from typing import Any

import jax
from jaxlib import _hlo  # type: ignore[attr-defined]

from fuselane.hlo import HloModule


def parse(text: str) -> bytes:
    """Returns the serialized module that XLA's parser makes of HLO text."""
    data: bytes = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return data


def to_text(data: bytes) -> str:
    """Returns what XLA prints for a serialized module; fails if XLA does not accept it."""
    text: str = _hlo.HloModule.from_serialized_hlo_module_proto(data).to_string()
    return text


def module_of(text: str) -> HloModule:
    """Returns fuselane's module of HLO text."""
    return HloModule.from_bytes(parse(text))


def lowered(function: Any, *arguments: Any) -> bytes:
    """Returns the module of a function before any pass of XLA's."""
    hlo: Any = jax.jit(function).lower(*arguments).compiler_ir("hlo")
    data: bytes = hlo.as_serialized_hlo_module_proto()
    return data


def compiled(function: Any, *arguments: Any) -> bytes:
    """Returns the module of a function after all of XLA's passes, scheduled."""
    executable: Any = jax.jit(function).lower(*arguments).compile().runtime_executable()
    data: bytes = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    return data
