"""Runs kernels directly: a module with one loop in, machine code called through ctypes.

Memory is laid out as `lanes.replace` has XLA lay it out: the results of per-lane state and of
streams share the memory of their initial values, everything else has memory of its own, full of
rubbish. Every array lies between two zones that nobody may write to. Tiles are run one by one, the
last one first.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pytest

from fuselane.codegen.kernel import KernelCode, build
from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import LoadedObject, load_object
from fuselane.codegen.plan import Plan
from fuselane.config import Options
from fuselane.device import DeviceDescription
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape
from fuselane.lanes.carry import get_indices_used
from fuselane.lanes.form import form
from fuselane.lanes.program import ElementKind, LaneProgram
from tests.lanes.loops import loop_of
from tests.lanes.oracle import evaluate, finish, from_memory, to_memory

NumpyArray = npt.NDArray[Any]
Step = Callable[..., Sequence[Any]]
Settings = dict[str, Any]

DEVICE: Final = DeviceDescription(
    name="test",
    vector_bits=512,
    unit_bits=512,
    num_vector_registers=32,
    has_masked_memory=True,
    has_fast_gathers=True,
    l1_bytes=32 * 1024,
    l2_bytes=1024 * 1024,
    num_cores=2,
    features="",
)
"""One machine for all tests, so that they test the same layouts wherever they run."""

LAYOUTS: Final = [
    (2, {}),
    (5, {"vector_bits": 128}),
    (16, {"unroll": 1}),
    (33, {"tile_lanes": 32}),
    (64, {"vector_bits": 256, "unroll": 1, "tile_lanes": 16}),
    (100, {"unroll": 4}),
    (100, {"unroll": 2, "tile_lanes": 64}),
    (257, {"unroll": 1, "tile_lanes": 1000}),
]
"""Lanes and options that give every layout between them.

Fewer lanes than a vector holds, whole and partial vectors, tiles of one vector and of several,
whole and partial, and a tile larger than there are lanes.
"""

layouts = pytest.mark.parametrize(
    ("lanes", "options"), LAYOUTS, ids=lambda value: str(value).replace("'", "")
)

_walls: Final[list[mmap.mmap]] = []
_ZONE_BYTES: Final = 256
_RUBBISH: Final = 0xA5


def form_program(module: HloModule) -> LaneProgram:
    """Returns the lane program of a module's loop."""
    return form(module, loop_of(module))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLoop:
    """A loop as machine code.

    Attributes:
        program: What was compiled.
        code: Its kernel before LLVM has seen it.
    """

    program: LaneProgram
    code: KernelCode
    loaded: LoadedObject

    @property
    def plan(self) -> Plan:
        """How the kernel lays out its work."""
        return self.code.plan

    def run(self, *arguments: Any, tiles: Sequence[tuple[int, int]] | None = None) -> list[Any]:
        """Returns the loop's result for arguments of its module: each tuple element that is used.

        Args:
            arguments: As the module's entry computation has them.
            tiles: Ranges of tiles to run, in this order; by default one by one from the last.
        """
        inputs = [
            _Buffer(to_memory(evaluate(operand, arguments), operand.shape))
            for operand in self.program.operands
        ]
        outputs = [
            self._output_buffer(index, output, inputs, arguments)
            for index, output in zip(self.program.output_indices, self.program.outputs, strict=True)
        ]
        scratch = [_Buffer(np.full(n, _RUBBISH, np.uint8)) for n in [self.code.scratch_bytes] if n]
        if tiles is None:
            tiles = [(tile, tile + 1) for tile in reversed(range(self.code.num_tiles))]
        written = [*outputs, *scratch]
        for first, last in tiles:
            self.call([b.address for b in inputs], [b.address for b in written], first, last)
        for buffer in (*inputs, *written):
            buffer.check(may_change=buffer in written)
        used = get_indices_used(self.program.site)
        invariants = self.program.invariants.items()
        results = {index: evaluate(v, arguments) for index, v in invariants if index in used}
        for index, buffer in zip(self.program.output_indices, outputs, strict=True):
            if index >= 0:
                results[index] = from_memory(buffer.array, self._shape(index))
        rows = [b.array for b, i in zip(outputs, self.program.output_indices, strict=True) if i < 0]
        results |= finish(self.program, rows, arguments)
        return [results[index] for index in sorted(results)]

    def _shape(self, index: int) -> Shape:
        return self.program.site.shape.tuple_shapes[index]

    def _output_buffer(
        self,
        index: int,
        output: HloInstruction,
        inputs: Sequence[_Buffer],
        arguments: Sequence[Any],
    ) -> _Buffer:
        element = self.program.loop.elements[output.tuple_index]
        if index < 0:
            sizes = output.shape.dimensions
            tiles = (self.code.num_tiles, *sizes[1:]) if element.combiner else sizes
            return _Buffer(_rubbish(Shape.array(output.shape.element_type, tiles)))
        shape = self._shape(index)
        in_place = element.kind is ElementKind.STREAM or element.lane_dimension is not None
        if element.is_fully_overwritten or not in_place:
            return _Buffer(_rubbish(shape))
        value = self.program.loop.instruction.operands[0].operands[output.tuple_index]
        if value.opcode == "parameter":
            return inputs[value.parameter_number]
        initial = self.program.site.operands[0].operands[index]
        return _Buffer(to_memory(evaluate(initial, arguments), shape))

    def call(
        self, inputs: Sequence[int], outputs: Sequence[int], first_tile: int, last_tile: int
    ) -> None:
        """Calls the kernel with the addresses of its arrays."""
        signature = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        )
        function = signature(self.loaded.address(self.code.symbol))
        function(_pointers(inputs), _pointers(outputs), first_tile, last_tile)


def _pointers(addresses: Sequence[int]) -> Any:
    return (ctypes.c_void_p * len(addresses))(*addresses)


class _Buffer:
    """An array between two zones of rubbish."""

    def __init__(self, values: NumpyArray) -> None:
        self.before = values
        size = values.nbytes
        self.memory = np.full(size + 2 * _ZONE_BYTES, _RUBBISH, np.uint8)
        inside = self.memory[_ZONE_BYTES : _ZONE_BYTES + size]
        inside[:] = np.frombuffer(values.tobytes(), np.uint8)
        self.array = inside.view(values.dtype).reshape(values.shape)

    @property
    def address(self) -> int:
        return self.memory.ctypes.data + _ZONE_BYTES

    def check(self, *, may_change: bool) -> None:
        """Fails if something was written that must not be."""
        assert (self.memory[:_ZONE_BYTES] == _RUBBISH).all(), "wrote in front of an array"
        assert (self.memory[-_ZONE_BYTES:] == _RUBBISH).all(), "wrote behind an array"
        unchanged = self.array.tobytes() == self.before.tobytes()
        assert may_change or unchanged, "wrote to an input"


def _rubbish(shape: Shape) -> NumpyArray:
    dtype = shape.element_type.dtype
    data = np.full(shape.num_elements * dtype.itemsize, _RUBBISH, np.uint8)
    sizes = [shape.dimensions[d] for d in reversed(shape.minor_to_major)]
    return data.view(dtype).reshape(sizes)


def compile_loop(
    module: HloModule | LaneProgram,
    *,
    device: DeviceDescription = DEVICE,
    opt_level: int = 2,
    **options: Any,
) -> CompiledLoop:
    """Compiles the loop of a module.

    Args:
        module: A module whose entry computation has one loop; or a program made of one.
        device: Laid out for this, compiled for the machine the test runs on; with vectors of other
            widths for one without fast gathers.
        opt_level: See `compile_object`.
        options: Fields of `Options`.
    """
    program = form_program(module) if isinstance(module, HloModule) else module
    if "vector_bits" in options:
        device = replace(device, has_fast_gathers=False)
    code = build(program, Options(**options), device)
    loaded = load_object(compile_object(code.ir, opt_level=opt_level))
    return CompiledLoop(program=program, code=code, loaded=loaded)


def iterate(step: Step, trip_count: int, *elements: Any) -> list[Any]:
    """Returns what a loop over `i = 0, 1, ...` makes of its elements, counter first.

    Args:
        step: Of the counter and the elements; returns the elements' next values.
        trip_count: Iterations.
        elements: Initial values, which are left as they are.
    """
    current: Sequence[Any] = elements
    for counter in range(trip_count):
        current = step(counter, *current)
    return [np.int32(trip_count), *current]


def check(
    module: HloModule | LaneProgram,
    step: Step,
    trip_count: int,
    *arguments: Any,
    **settings: Any,
) -> CompiledLoop:
    """Compiles a loop, runs it and compares its results, bit for bit, with those of `step`."""
    compiled = compile_loop(module, **settings)
    assert_equal(compiled.run(*arguments), iterate(step, trip_count, *arguments))
    return compiled


def assert_equal(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Fails unless both are the same arrays."""
    assert len(actual) == len(expected)
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        wanted = np.asarray(right, dtype=left.dtype)
        np.testing.assert_array_equal(left, wanted, err_msg=f"tuple element {number}")


def some(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> NumpyArray:
    """Returns small whole numbers, on which floats are exact, or random bytes of a type."""
    generator = np.random.default_rng(seed)
    numbers = generator.integers(-8, 8, tuple(shape))
    return numbers > 0 if dtype is np.bool_ else numbers.astype(dtype)


def replace_row(array: NumpyArray, row: int, values: Any) -> NumpyArray:
    """Returns an array with one row changed."""
    result = array.copy()
    result[row] = values
    return result


def run_at_page_ends(compiled: CompiledLoop) -> None:
    """Runs all tiles in a child process on arrays that end where readable memory ends."""
    program = compiled.program
    process = os.fork()
    if process == 0:
        inputs = [_memory_before_a_wall(parameter.shape.byte_size) for parameter in program.inputs]
        outputs = [_memory_before_a_wall(output.shape.byte_size) for output in program.outputs]
        compiled.call(inputs, outputs, 0, compiled.code.num_tiles)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert status == 0, f"the kernel touched memory behind an array (signal {status & 127})"


def _memory_before_a_wall(size: int) -> int:
    """Returns the address of zeroed memory right in front of a page that cannot be accessed."""
    pages = -(-size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    wall = first + pages * mmap.PAGESIZE
    no_access = 0
    result = ctypes.CDLL(None).mprotect(
        ctypes.c_void_p(wall), ctypes.c_size_t(mmap.PAGESIZE), no_access
    )
    assert result == 0
    _walls.append(memory)
    return wall - size
