"""XLA itself, as parser, printer and compiler of the modules the tests use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np
from jaxlib import _hlo, _jax, xla_client  # type: ignore[attr-defined]

from fuselane.fuzz.run import XLA_OPTIONS, quick_options
from fuselane.hlo import HloModule

Array = np.ndarray[Any, Any]

UNOPTIMISED: Final = XLA_OPTIONS
"""LLVM is told not to optimise XLA's kernels; HLO is optimised as ever, and alike."""


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
    executable: Any = jax.jit(function).lower(*arguments).compile(UNOPTIMISED)
    data: bytes = executable.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
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
    return load(module.to_bytes())(*inputs)


def load(data: bytes, options: Mapping[str, Any] | None = None) -> Callable[..., list[Array]]:
    """Compiles a module without fusions with XLA, as JAX would; returns what runs it."""
    text = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(data))
    device = jax.devices("cpu")[0]
    client: Any = device.client
    devices = xla_client.DeviceList((device,))
    compile_options = xla_client.CompileOptions()
    options = quick_options() if options is None else options
    compile_options.env_option_overrides = list(options.items())
    executable = client.compile_and_load(text, devices, compile_options)

    def run(*inputs: Array) -> list[Array]:
        arguments = [jax.device_put(value.copy(), device) for value in inputs]  # may be donated
        results = executable.execute_sharded(arguments)
        return [np.asarray(a[0]) for a in results.disassemble_into_single_device_arrays()]

    return run
