"""XLA itself, as parser, printer and compiler of the modules the tests use."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxlib import _hlo, _jax, xla_client  # type: ignore[attr-defined]

from fuselane.hlo import HloModule

Array = np.ndarray[Any, Any]


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


def run_module(data: bytes, *inputs: Array) -> list[Array]:
    """Compiles a module with XLA, its fusions as calls, and runs it; arrays are row-major."""
    module = HloModule.from_bytes(data)
    for computation in module.computations:
        computation.proto.is_fusion_computation = False
        for instruction in computation.instructions:
            if instruction.opcode == "fusion":
                instruction.opcode = "call"
                instruction.proto.ClearField("fusion_kind")
    text = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(module.to_bytes()))
    device = jax.devices("cpu")[0]
    client: Any = device.client
    devices = xla_client.DeviceList((device,))
    executable = client.compile_and_load(text, devices, xla_client.CompileOptions())
    results = executable.execute_sharded([jax.device_put(value, device) for value in inputs])
    return [np.asarray(a[0]) for a in results.disassemble_into_single_device_arrays()]
