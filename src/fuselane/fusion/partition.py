"""How many threads of XLA:CPU share a kernel's work: what its ParallelTaskAssigner decides.

    %f = f32[1024,1024] fusion(...), backend_config={"outer_dimension_partitions":["8"]}

The outer dimensions of the result are cut so that each thread has enough to do. XLA decides before
its hook is called, so fusions that are made there are given theirs here.

Source: xla/service/cpu/parallel_task_assignment.cc and shape_partition.cc.
"""

from __future__ import annotations

import json
import math
from typing import Final

from fuselane.analysis.hlo_cost import compute_cost
from fuselane.device import host_device
from fuselane.fusion.in_place import in_place_operands
from fuselane.fusion.opcodes import is_elementwise, opcodes
from fuselane.fusion.traversal import sequential_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.shape import Shape

_BYTES_PER_THREAD: Final = 256 * 1024
"""For kernels bound by memory: a second-level cache."""

_CYCLES_PER_THREAD: Final = 100_000
_CYCLES_PER_FUNCTION: Final = 2
_CYCLES_PER_BYTE: Final = 10

_SHARED: Final = opcodes(
    "broadcast concatenate dynamic-slice gather iota pad reduce reduce-window reshape reverse "
    "slice transpose"
)
_FIELD: Final = "outer_dimension_partitions"


def assign_threads(module: HloModule, max_threads: int | None = None) -> None:
    """Cuts the work of a module's kernels into parts.

    Args:
        module: It is changed.
        max_threads: Most parts; None is the cores of this machine.
    """
    threads = host_device().num_cores if max_threads is None else max_threads
    for computation in sequential_computations(module):
        for instruction in computation.instructions:
            if _is_shared(instruction):
                parts = partition(instruction.shape, count_threads(instruction, threads))
                _set_parts(instruction, parts)


def count_threads(instruction: HloInstruction, max_threads: int) -> int:
    """Returns how many threads an instruction is worth, at least one."""
    cost = compute_cost(instruction)
    num_bytes = max(cost.num_bytes, 1.0)
    if cost.flops <= num_bytes:
        limit = min(max_threads, math.ceil(math.sqrt(max_threads)))
        return int(min(limit, max(1, instruction.shape.byte_size // _BYTES_PER_THREAD)))
    cycles = cost.flops + _CYCLES_PER_FUNCTION * cost.transcendentals + _CYCLES_PER_BYTE * num_bytes
    return int(min(max_threads, max(1, cycles // _CYCLES_PER_THREAD)))


def partition(shape: Shape, num_parts: int) -> list[int]:
    """Returns into how many parts each of the outermost dimensions is cut; none for one part."""
    if num_parts <= 1:
        return []
    sizes: list[int] = []
    for dimension in reversed(shape.minor_to_major):
        sizes.append(shape.dimensions[dimension])
        if math.prod(sizes) >= num_parts:
            break
    wanted = min(num_parts, math.prod(sizes))
    if wanted <= 1:
        return []
    each = int(wanted ** (1.0 / len(sizes)))
    parts = [min(size, each) for size in sizes]
    for index, size in enumerate(sizes):
        others = math.prod(parts) // parts[index]
        parts[index] += max(0, min(size - parts[index], wanted // others - parts[index]))
    return parts


def _is_shared(instruction: HloInstruction) -> bool:
    if not instruction.shape.is_array or instruction.opcode in ("constant", "copy"):
        return False
    if instruction.opcode == "fusion":
        is_loop = instruction.fusion_kind == "kLoop"
        return is_loop and not in_place_operands(instruction)
    return instruction.opcode in _SHARED or is_elementwise(instruction)


def _set_parts(instruction: HloInstruction, parts: list[int]) -> None:
    config = json.loads(instruction.backend_config or b"{}")
    if parts:
        config[_FIELD] = [str(part) for part in parts]
    else:
        config.pop(_FIELD, None)
    instruction.proto.backend_config = (
        json.dumps(config, separators=(",", ":")).encode() if config else b""
    )
