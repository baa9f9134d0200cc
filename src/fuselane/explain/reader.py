"""A report read back from its JSON, so that one that was kept can be compared with a new one."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from fuselane.boundary import BoundaryReason
from fuselane.decisions import Decision, LoopDecision, Reason
from fuselane.errors import InputError
from fuselane.explain.model import SCHEMA_VERSION, ModuleModel


def read_modules(text: str) -> tuple[tuple[LoopDecision, ...], tuple[ModuleModel, ...], str]:
    """Returns the loops, modules and note that `Report.json` wrote; what is derived is left out.

    Raises:
        InputError: if the text is no such report, or one of another schema.
    """
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or "schema" not in values:
            raise InputError("This JSON is not a report of `fuselane explain`.")
        if values["schema"] != SCHEMA_VERSION:
            raise InputError(
                f"The report has schema {values['schema']}; this version of Fuselane reads "
                f"schema {SCHEMA_VERSION}."
            )
        loops = tuple(map(_flat_loop, values["loops"]))
        modules = tuple(_read(ModuleModel, module) for module in values["modules"])
        return loops, modules, str(values["note"])
    except RecursionError:
        raise InputError("The report is nested too deeply.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": .")
        raise InputError(f"The report cannot be read: {reason}.") from None


def _read(kind: Any, value: Any) -> Any:
    """Returns a JSON value as the type that wrote it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        (inner,) = (option for option in arguments if option is not types.NoneType)
        return None if value is None else _read(inner, value)
    if origin is tuple:
        return tuple(_read(arguments[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {str(key): _read(arguments[1], item) for key, item in value.items()}
    if kind is float:
        return float("inf") if value is None else _checked(value, int | float)
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        known = (
            (name, hint) for name, hint in _fields(make) if name in value
        )  # newer ones have defaults
        return make(**{name: _read(hint, value[name]) for name, hint in known})
    if issubclass(kind, enum.Enum):
        return _member(kind, value)
    return _checked(value, kind)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Returns names and types of a dataclass's fields."""
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def _member(kind: type[enum.Enum], value: Any) -> enum.Enum:
    if kind in (BoundaryReason, Reason):
        by_code = {member.code: member for member in kind}
        return typing.cast(enum.Enum, by_code[value])
    return kind[value]


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{str(value)[:40]!r} stands where {kind} should")
    return value


def _flat_loop(values: dict[str, Any]) -> LoopDecision:
    """Returns a loop's decision from its fields in `loops`."""
    decision = Decision(
        reason=typing.cast(Reason, _member(Reason, values["reason"])),
        sentence=values["sentence"],
        instruction=values["instruction"],
        opcode=values["opcode"],
        source=values["instruction_source"],
        numbers=_read(Mapping[str, float], values["numbers"]),
    )
    return LoopDecision(
        module=values["module"],
        name=values["name"],
        source=values["source"],
        trip_count=values["trip_count"],
        lanes=values["lanes"],
        decision=decision,
        kernel=values["kernel"],
    )
