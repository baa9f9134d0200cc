"""The report's JSON: a module's values, and the JSON Schema that describes them."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from fuselane.boundary import BoundaryReason
from fuselane.decisions import LoopDecision, Reason
from fuselane.explain import costs
from fuselane.explain.model import SCHEMA_VERSION, KernelModel, ModuleModel, to_json

_DERIVED: Final[dict[type, dict[str, str]]] = {
    ModuleModel: {
        "launches": "Kernels launched per run, or null if a trip count is unknown.",
        "fuselane_launches": "The same under Fuselane.",
        "modelled_us": "Modelled time of one run in microseconds; loops of unknown length count "
        "one iteration.",
        "bytes_moved": "Bytes kernels read and write in one run; the same holds for loops.",
    },
    KernelModel: {
        "time_us": "Modelled time of all launches of a run, in microseconds.",
        "share": "Of the module's modelled time, 0 to 1.",
        "bytes": "Read and written by all launches of a run.",
        "intensity": "Flops per byte; null for flops without traffic.",
    },
}
"""What the JSON adds to the fields of the models: all of it numbers."""

_SIMPLE: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


def module_values(module: ModuleModel) -> dict[str, Any]:
    """Returns a module as JSON values, with what the schema says is derived."""
    values: dict[str, Any] = to_json(module)
    values["launches"] = module.launches
    values["fuselane_launches"] = costs.fuselane_launches(module)
    values["modelled_us"] = costs.time_us(module)
    values["bytes_moved"] = costs.bytes_moved(module)
    for kernel, cost in zip(values["kernels"], costs.kernel_costs(module), strict=True):
        intensity = cost.kernel.intensity
        kernel["time_us"] = cost.time_us
        kernel["share"] = cost.share
        kernel["bytes"] = cost.bytes
        kernel["intensity"] = intensity if math.isfinite(intensity) else None
    return values


def finite(value: Any) -> Any:
    """Returns JSON values with null for every number that JSON cannot write."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of `Report.json()`, made from the models and their docstrings.

    `docs/report.schema.json` holds what it returns.
    """
    definitions: dict[str, Any] = {}
    modules = _of_type(tuple[ModuleModel, ...], definitions)
    loops = {"type": "array", "items": _of_flat_loops()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Fuselane report",
        "type": "object",
        "required": ["schema", "fuselane", "note", "loops", "modules"],
        "properties": {
            "schema": {"const": SCHEMA_VERSION},
            "fuselane": {"type": "string", "description": "Version of Fuselane."},
            "note": {"type": "string", "description": "A sentence about the whole, or empty."},
            "loops": loops,
            "modules": modules,
        },
        "$defs": dict(sorted(definitions.items())),
    }


def _of_flat_loops() -> dict[str, Any]:
    """Returns the schema of a loop's decision as it stands in `loops`."""
    described = _descriptions(LoopDecision)
    names = {
        "module": "string",
        "name": "string",
        "source": "string",
        "trip_count": ["integer", "null"],
        "lanes": ["integer", "null"],
        "fused": "boolean",
        "reason": "string",
        "sentence": "string",
        "instruction": "string",
        "opcode": "string",
        "instruction_source": "string",
        "numbers": "object",
        "kernel": "string",
    }
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in names.items()}
    for name, text in described.items():
        if name in properties:
            properties[name]["description"] = text
    return {"type": "object", "required": list(names), "properties": properties}


def _of_type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a type; dataclasses go into the definitions."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if origin is types.UnionType:
        options = [
            _of_type(option, definitions) for option in arguments if option is not type(None)
        ]
        return {"anyOf": [*options, {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _of_type(arguments[0], definitions)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        values = _of_type(arguments[1], definitions)
        values = {"type": ["number", "null"]} if arguments[1] is float else values
        return {"type": "object", "additionalProperties": values}
    if issubclass(kind, BoundaryReason | Reason):
        return {"enum": [member.code for member in kind]}
    if issubclass(kind, enum.Enum):
        return {"enum": [member.name for member in kind]}
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # a type may hold itself
        definitions[kind.__name__] = _of_dataclass(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _of_dataclass(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    described = _descriptions(kind)
    properties: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        schema = _of_type(hints[field.name], definitions)
        text = described.get(field.name)
        properties[field.name] = {**schema, "description": text} if text else schema
    for name, text in _DERIVED.get(kind, {}).items():
        properties[name] = {"type": ["number", "null"], "description": text}
    summary = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    return {
        "description": summary,
        "type": "object",
        "required": list(properties),
        "properties": properties,
    }


def _descriptions(kind: type) -> dict[str, str]:
    """Returns what a dataclass's docstring says of each attribute."""
    _, _, attributes = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    described: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 4 and ":" in line:
            name, _, text = line.strip().partition(": ")
            described[name] = text
        elif indent > 4 and name:
            described[name] += f" {line.strip()}"
    return described
