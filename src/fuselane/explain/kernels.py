"""The kernels of a module: what each computes, reads, writes and takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from fuselane.analysis.hlo_cost import HloCost, compute_cost
from fuselane.explain.emitters import get_emitter, get_kind
from fuselane.explain.launches import Launch, Launches
from fuselane.explain.model import ArrayModel, KernelModel
from fuselane.explain.provenance import Provenance
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.source_lines import SourceLine
from fuselane.xla.captured import CapturedModule

_HOLDERS: Final = frozenset({"call", "conditional", "fusion", "while"})
_UNCOUNTED: Final = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})

Clock = Callable[[Launch, HloCost], float]
"""Returns the modelled time of one launch of a kernel, in microseconds."""


def describe_kernels(
    launches: Launches, provenance: Provenance, clock: Clock, captured: CapturedModule
) -> tuple[KernelModel, ...]:
    """Returns the kernels of a module in the order of its schedule."""
    kernels = (_describe(launch, provenance, clock) for launch in launches.kernels.values())
    return tuple(_add_usage(kernel, captured) for kernel in kernels)


def _add_usage(kernel: KernelModel, captured: CapturedModule) -> KernelModel:
    """Returns a kernel with what it takes of a GPU, if that is known."""
    usage = captured.usage.get(kernel.name)
    if usage is None:
        return kernel
    occupancy = None
    if captured.gpu is not None and usage.block_threads:
        occupancy = captured.gpu.occupancy(usage.block_threads, usage.registers, usage.shared_bytes)
    return replace(
        kernel,
        registers=usage.registers,
        spill_bytes=usage.spill_bytes,
        shared_bytes=usage.shared_bytes,
        block_threads=usage.block_threads or None,
        occupancy=occupancy,
    )


def _describe(launch: Launch, provenance: Provenance, clock: Clock) -> KernelModel:
    instruction = launch.instruction
    kind, cost = get_kind(instruction), compute_cost(instruction)
    operands = tuple(map(_describe_array, dict.fromkeys(instruction.operands)))
    outputs = tuple(_describe_outputs(instruction))
    if kind == "fuselane":  # XLA knows nothing of what a call of ours moves.
        read, written = (sum(array.num_bytes for array in arrays) for arrays in (operands, outputs))
        cost = replace(cost, bytes_read=read, bytes_written=written)
    return KernelModel(
        name=instruction.name,
        kind=kind,
        emitter=get_emitter(instruction),
        opcodes=_count_opcodes(instruction),
        operands=operands,
        outputs=outputs,
        loop=launch.loop.name if launch.loop else "",
        function=launch.function.name if launch.function else "",
        launches=launch.total,
        launches_per_iteration=launch.total_per_iteration,
        flops=cost.flops + cost.transcendentals,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        modelled_us=clock(launch, cost),
        source=provenance.line(instruction),
        sources=_rank_lines(instruction, provenance),
    )


def members(instruction: HloInstruction) -> Iterator[HloInstruction]:
    """Yields what a kernel computes: the instructions inside it, or itself if it has none."""
    inside = [
        c for c in instruction.called_computations if instruction.opcode in ("fusion", "call")
    ]
    if not inside and instruction.opcode not in ("while", "conditional"):
        yield instruction
        return
    for computation in inside or instruction.called_computations:
        for member in computation.instructions:
            yield from members(member)


def _count_opcodes(instruction: HloInstruction) -> Mapping[str, int]:
    return Counter(m.opcode for m in members(instruction) if m.opcode not in _UNCOUNTED)


def _rank_lines(instruction: HloInstruction, provenance: Provenance) -> tuple[SourceLine, ...]:
    """Returns the lines of what a kernel computes, those of most instructions first."""
    counted = [m for m in members(instruction) if m.opcode not in _UNCOUNTED] or [instruction]
    lines: Counter[SourceLine] = Counter(filter(None, map(provenance.line, counted)))
    return tuple(line for line, _ in lines.most_common())


def _describe_array(instruction: HloInstruction) -> ArrayModel:
    shape = instruction.shape
    return ArrayModel(name=instruction.name, shape=str(shape), num_bytes=shape.byte_size)


def _describe_outputs(instruction: HloInstruction) -> Iterable[ArrayModel]:
    """Yields the arrays a kernel makes; those of a tuple by what takes them out, if anything."""
    shape = instruction.shape
    if not shape.is_tuple:
        yield _describe_array(instruction)
        return
    taken = {u.tuple_index: u.name for u in instruction.users if u.opcode == "get-tuple-element"}
    for number, element in enumerate(shape.tuple_shapes):
        name = taken.get(number, f"{instruction.name}{{{number}}}")
        yield ArrayModel(name=name, shape=str(element), num_bytes=element.byte_size)
