"""Real modules as the hook sees them, and XLA as the oracle that runs regions.

A region in normal form is a computation like any other, so XLA can compile and run it: its results
must be those of the program it was taken from, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt
import pytest
from jax.extend import xla

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape
from fuselane.hlo.verifier import verify
from fuselane.lanes.program import LaneProgram
from fuselane.peek import has_loops
from tests.hlo.xla import UNOPTIMISED, load

Array = npt.NDArray[Any]

_SEEN: Final = "The module has been seen."
_captured: Final[list[bytes]] = []
_is_capturing: Final[list[bool]] = []


def _capture(data: bytes) -> None:
    """Keeps a module; at one with loops XLA need not go on."""
    if _is_capturing:
        _captured.append(data)
        if has_loops(data):
            raise RuntimeError(_SEEN)


def capture(function: Any, *arguments: Any) -> HloModule:
    """Returns the module that XLA:CPU hands to the hook when it compiles a function."""
    if not _is_capturing:
        xla.register_hlo_module_transformation(
            _capture,
            name="fuselane-tests",
            stage=xla.PipelineStage.PRE_SCHEDULER,
            platforms="cpu",
        )
    _captured.clear()
    _is_capturing.append(True)

    def fresh(*arguments: Any) -> Any:
        return function(*arguments)

    try:
        # A new function each time, since jit compiles the same one only once.
        with pytest.raises(jax.errors.JaxRuntimeError, match=_SEEN):
            jax.jit(fresh).lower(*arguments).compile(UNOPTIMISED)
    finally:
        _is_capturing.pop()
    modules = [HloModule.from_bytes(data) for data in _captured]
    return next(module for module in modules if any(loops_of(module)))


def loops_of(module: HloModule) -> list[HloInstruction]:
    """Returns all loops of a module, outer ones before those nested in them."""
    callers_first = reversed(module.computations)
    return [i for c in callers_first for i in c.instructions if i.opcode == "while"]


def as_module(region: HloComputation, source: HloModule | None = None) -> HloModule:
    """Returns a verified module whose entry computation is a region."""
    module = region.module or HloModule.create("region", region)
    module.proto.host_program_shape.CopyFrom(region.program_shape())
    if source is not None:
        module.proto.stack_frame_index.CopyFrom(source.proto.stack_frame_index)
    verify(module)
    return module


def region_inputs(program: LaneProgram, arguments: Sequence[Any]) -> list[Array]:
    """Returns what the region of a lane program gets when the program runs on these arguments."""
    return [
        to_memory(evaluate(operand, arguments), operand.shape).reshape(parameter.shape.dimensions)
        for operand, parameter in zip(program.operands, program.inputs, strict=True)
    ]


def users_results(program: LaneProgram, results: Sequence[Array]) -> list[Array]:
    """Returns a region's results in the user's dimensions."""
    shapes = program.site.shape.tuple_shapes
    return [
        from_memory(result, shapes[index])
        for result, index in zip(results, program.output_indices, strict=True)
    ]


def run_module(module: HloModule, inputs: Sequence[Array]) -> list[Array]:
    """Compiles a module with XLA and runs it; all arrays are row-major."""
    return compile_module(module)(inputs)


def compile_module(module: HloModule) -> Callable[[Sequence[Array]], list[Array]]:
    """Returns what runs a module, compiled by XLA; all arrays are row-major."""
    run = load(module.to_bytes())
    return lambda inputs: run(*inputs)


def evaluate(instruction: HloInstruction, arguments: Sequence[Any]) -> Array:
    """Returns the value of an instruction that only copies arguments around."""
    match instruction.opcode:
        case "parameter":
            return np.asarray(arguments[instruction.parameter_number])
        case "copy" | "opt-barrier":
            return evaluate(instruction.operands[0], arguments)
        case "bitcast":
            operand = instruction.operands[0]
            bytes_in_order = to_memory(evaluate(operand, arguments), operand.shape)
            return from_memory(bytes_in_order, instruction.shape)
        case "constant":
            return np.array(instruction.literal)
        case "broadcast" if not instruction.dimensions:
            value = evaluate(instruction.operands[0], arguments)
            return np.broadcast_to(value, instruction.shape.dimensions).copy()
        case "fusion":
            values = [evaluate(operand, arguments) for operand in instruction.operands]
            return evaluate(instruction.to_apply.root, values)
    raise NotImplementedError(instruction.opcode)


def to_memory(array: Array, shape: Shape) -> Array:
    """Returns an array's elements as they lie in memory, as a row-major array."""
    return np.ascontiguousarray(array.transpose(shape.minor_to_major[::-1]))


def from_memory(array: Array, shape: Shape) -> Array:
    """Returns the array of a shape whose elements lie in memory as those of a row-major one."""
    order = shape.minor_to_major[::-1]
    sizes = [shape.dimensions[d] for d in order]
    return array.reshape(sizes).transpose(np.argsort(np.array(order, dtype=int)))


def finish(
    program: LaneProgram, rows: Sequence[Array], arguments: Sequence[Any]
) -> dict[int, Array]:
    """Returns what a program's epilogue makes of the results that only it needs.

    Args:
        program: A lane program, which may have no epilogue.
        rows: These results: `[lanes or tiles, ...]` where there is something to combine.
        arguments: Of the user's program.
    Returns:
        Results by their index in the user's loop.
    """
    epilogue = program.epilogue
    if epilogue is None:
        return {}
    combined = [
        _NUMPY_COMBINERS[combiner].reduce(values, axis=0).astype(values.dtype)
        if combiner
        else values
        for values, combiner in zip(rows, epilogue.combiners, strict=True)
    ]
    inputs = [to_memory(evaluate(value, arguments), value.shape) for value in epilogue.inputs]
    results = run_module(as_module(epilogue.computation), [*combined, *inputs])
    shapes = program.site.shape.tuple_shapes
    return {
        index: from_memory(result, shapes[index])
        for index, result in zip(epilogue.output_indices, results, strict=True)
    }


_NUMPY_COMBINERS: Final[dict[str, np.ufunc]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "or": np.bitwise_or,
}
