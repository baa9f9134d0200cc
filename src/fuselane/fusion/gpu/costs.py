"""What a kernel computes, reads and writes, by XLA:GPU's cost analysis.

A fused instruction is computed for as many elements as its users ask for: its *utilization* is that
number over the elements it has. Users that ask for the same element in the same place share it;
all that reads elementwise from one root does.

Source: xla/service/gpu/model/gpu_hlo_cost_analysis.cc and xla/service/hlo_cost_analysis.cc, by
`xla_fusion_facts.md` section 3.9.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from fuselane.fusion.gpu.profiles import flops_per_element
from fuselane.fusion.opcodes import is_elementwise, leaf_shapes
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import Shape

_CONCAT_FLOPS: Final = 6
_SLOW_CONCAT_FLOPS: Final = 400

Roots = frozenset[HloInstruction]


@final
@dataclass(frozen=True, slots=True)
class KernelCost:
    """What one launch of an instruction costs.

    Attributes:
        flops: Operations, each element of each member as often as it is computed.
        bytes_written: Size of the results, or of the update for a dynamic-update-slice.
        read: Bytes read of each operand, repeated reads included.
        utilization: How often each element of each operand is read, on average.
        code_size: Instructions whose code is emitted, repetitions included.
        emissions: For a fusion: how often the code of each operand would stand in it; else none.
        roots: For a fusion: the members from which each operand is read elementwise; else none.
        root_utilization: For a fusion: how often these are computed.
        result: For a fusion: what its result is read elementwise from, which is itself.
    """

    flops: float
    bytes_written: int
    read: Sequence[int]
    utilization: Sequence[float]
    code_size: int = 1
    emissions: Sequence[int] = ()
    roots: Sequence[Roots] = ()
    root_utilization: Mapping[HloInstruction, float] = field(default_factory=dict)
    result: Roots = frozenset()

    def common(self, left: Roots, right: Roots) -> float:
        """Returns the utilization that two sets of roots share."""
        return to_f32(sum(self.root_utilization[root] for root in left & right))


def compute_cost(instruction: HloInstruction) -> KernelCost:
    """Returns the cost of an instruction as a kernel of its own."""
    if instruction.opcode == "fusion" and instruction.fusion_kind != "kCustom":
        return _cost_of_fusion(instruction)
    indices = range(len(instruction.operands))
    return KernelCost(
        to_f32(_flops(instruction)),
        _bytes_written(instruction),
        [_operand_bytes(instruction, index) for index in indices],
        [operand_utilization(instruction, index) for index in indices],
    )


def _cost_of_fusion(fusion: HloInstruction) -> KernelCost:
    body = fusion.to_apply
    roots: dict[HloInstruction, set[HloInstruction]] = {body.root: {body.root}}
    root_utilization: dict[HloInstruction, float] = {body.root: 1.0}
    emissions: dict[HloInstruction, int] = {body.root: 1}
    used: dict[HloInstruction, float] = {}
    flops, code_size = 0.0, 0
    for member in reversed(body.post_order()):
        own_roots = roots.get(member, set())
        used[member] = to_f32(sum(root_utilization[root] for root in own_roots))
        times = sum(emissions[root] for root in own_roots)
        code_size += times
        flops = to_f32(flops + to_f32(used[member] * to_f32(_flops(member))))
        passes_on = is_elementwise(member) or member.opcode in _TRANSPARENT or _keeps_shape(member)
        for index, operand in enumerate(member.operands):
            if passes_on:
                roots.setdefault(operand, set()).update(own_roots)
                continue
            roots.setdefault(operand, set()).add(operand)
            asked = to_f32(used[member] * operand_utilization(member, index))
            count = operand.shape.num_elements
            share = to_f32(math.ceil(to_f32(asked * count)) / count) if count else 0.0
            root_utilization[operand] = to_f32(root_utilization.get(operand, 0.0) + share)
            emissions[operand] = emissions.get(operand, 0) + times
    shares = [used.get(parameter, 0.0) for parameter in body.parameters]
    return KernelCost(
        flops,
        _bytes_written(body.root),
        [
            round_half_up(to_f32(operand.shape.byte_size * share))
            for operand, share in zip(fusion.operands, shares, strict=True)
        ],
        shares,
        code_size,
        [sum(emissions[root] for root in roots.get(p, ())) for p in body.parameters],
        [frozenset(roots.get(parameter, ())) for parameter in body.parameters],
        root_utilization,
        frozenset(roots[body.root]),
    )


def to_f32(value: float) -> float:
    """Rounds to the type XLA counts in."""
    if -_EXACT_IN_F32 < value < _EXACT_IN_F32 and value == int(value):
        return value
    result: float = _F32.unpack(_F32.pack(value))[0]
    return result


def round_half_up(value: float) -> int:
    """Rounds to the nearest integer, halves up."""
    return math.floor(value + 0.5)


_F32: Final = struct.Struct("f")
_EXACT_IN_F32: Final = 1 << 24

_TRANSPARENT: Final = frozenset({"tuple", "get-tuple-element"})


def _keeps_shape(member: HloInstruction) -> bool:
    return (
        member.opcode == "bitcast"
        and member.shape.dimensions == member.operands[0].shape.dimensions
    )


def operand_utilization(instruction: HloInstruction, index: int) -> float:
    """Returns how often each element of an operand is read by an instruction that is no fusion."""
    return to_f32(_operand_utilization(instruction, index))


def _operand_utilization(instruction: HloInstruction, index: int) -> float:
    out, read = instruction.shape, instruction.operands[index].shape
    if not read.num_elements or read.is_tuple:
        return 1.0
    match instruction.opcode:
        case "broadcast" | "slice":
            return out.num_elements / read.num_elements
        case "dynamic-slice" | "gather" if index == 0:
            return out.num_elements / read.num_elements
        case "dynamic-update-slice" if index == 0:
            update = instruction.operands[1].shape.num_elements
            return (out.num_elements - update) / out.num_elements
        case "reduce" if index >= len(instruction.operands) // 2:
            return float(_first(out).num_elements)
        case "reduce-window" if index == 0:
            return out.num_elements * _window_size(instruction) / read.num_elements
        case _:
            return 1.0


def _operand_bytes(instruction: HloInstruction, index: int) -> int:
    operand = instruction.operands[index].shape
    match instruction.opcode:
        case "broadcast" | "slice":
            return instruction.shape.byte_size
        case "dynamic-slice" | "gather" if index == 0:
            return instruction.shape.byte_size
        case "dynamic-update-slice" if index == 0:
            return 0
        case "bitcast":
            return 0
        case "reduce" if index >= len(instruction.operands) // 2:
            return operand.byte_size * _first(instruction.shape).num_elements
        case "reduce-window" if index == 0:
            per_element = operand.element_type.byte_size
            return instruction.shape.num_elements * _window_size(instruction) * per_element
        case _:
            return operand.byte_size


def _bytes_written(instruction: HloInstruction) -> int:
    match instruction.opcode:
        case "dynamic-update-slice":
            return instruction.operands[1].shape.byte_size
        case "tuple":
            return sum(_bytes_written(operand) for operand in instruction.operands)
        case "bitcast":
            return 0
        case _:
            return instruction.shape.byte_size


def _flops(instruction: HloInstruction) -> float:
    """Returns the operations of computing all elements of an instruction that is no fusion once."""
    elements = _first(instruction.shape).num_elements
    match instruction.opcode:
        case "copy" | "constant":
            return 0
        case "reduce":
            count = instruction.operands[0].shape.num_elements - elements
            return count * _flops_of_applied(instruction)
        case "reduce-window":
            count = (_window_size(instruction) - 1) * elements
            return count * _flops_of_applied(instruction)
        case "concatenate":
            return elements * _concat_flops(instruction)
        case "scatter":
            return instruction.operands[-1].shape.num_elements * _flops_of_applied(instruction)
        case "sort":
            count = instruction.operands[0].shape.num_elements
            return count * math.ceil(math.log2(count)) if count > 1 else 0
        case _ if is_elementwise(instruction):
            return elements * flops_per_element(instruction)
        case _:
            return 0


def _concat_flops(concatenate: HloInstruction) -> int:
    """Returns XLA's penalty for a branch inside of warps: 400 instead of 6 per element."""
    (dimension,) = concatenate.dimensions
    extent = concatenate.operands[0].shape.dimensions[dimension]
    return _SLOW_CONCAT_FLOPS if dimension > 0 and extent % 32 else _CONCAT_FLOPS


def _flops_of_applied(instruction: HloInstruction) -> float:
    return sum(_flops(i) for i in instruction.to_apply.instructions)


def _window_size(instruction: HloInstruction) -> int:
    return math.prod(dimension.size for dimension in instruction.proto.window.dimensions)


def _first(shape: Shape) -> Shape:
    return leaf_shapes(shape)[0]
