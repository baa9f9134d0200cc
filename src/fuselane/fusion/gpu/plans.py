"""How a GPU would run a kernel: by which of XLA's code generators, in which launch.

Source: xla/service/gpu/model/gpu_performance_model.cc of 2026.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from fuselane.fusion.gpu.emitters import HEROIC, Emission, Emitter, choose_emitter
from fuselane.fusion.gpu.kernel_cost import to_f32
from fuselane.fusion.gpu.launch import HOSTILE, Launch, compute_launch, smallest_bits
from fuselane.fusion.gpu.region import Opcodes, Region
from fuselane.fusion.opcodes import is_elementwise
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import HloInstruction

_MOVES: Final = frozenset({"copy", "transpose"})
_WATCHING: Final = _MOVES | {"dynamic-update-slice"}
"""Opcodes for which it matters where their operand comes from."""

SHAPING: Final = HEROIC | HOSTILE | _WATCHING
"""Opcodes that may decide how the kernel that holds them is made."""

_STEADY: Final = frozenset({Emitter.LOOP, Emitter.CONCATENATE, Emitter.SCATTER})
"""Emitters that ask nothing about what a kernel reads."""


@final
class Plan:
    """How a region becomes a kernel.

    Attributes:
        region: What is computed.
        emission: By which code generator.
        is_steady: Whether it stays as it is if a producer is computed in the region as well, unless
            that has any of the opcodes that decide.
        is_kept: Whether it stays as it is then but for its launch.
        known: What `running` returned.
    """

    __slots__ = ("_feeding", "_sides", "emission", "is_kept", "is_steady", "known", "region")

    def __init__(
        self,
        region: Region,
        sides: tuple[Plan, Plan] | None = None,
        emission: Emission | None = None,
    ) -> None:
        """Plans a kernel.

        Args:
            region: What is computed.
            sides: The plans of the producer and of the consumer alone, if known.
            emission: How it is made, if known.
        """
        self.region = region
        if emission is None and sides is not None:
            emission = _kept_emission(*sides)
        self.emission = emission or choose_emitter(region)
        emitter = self.emission.emitter
        self.is_steady = emitter in _STEADY and region.opcodes.isdisjoint(_WATCHING)
        self.is_kept = emitter is Emitter.REDUCTION and region.opcodes.isdisjoint(_MOVES)
        self._sides = sides
        self._feeding: dict[int | None, Plan] = {}
        self.known: Running | None = None

    def feeding(self, consumer: HloInstruction, producer: HloInstruction, of: Plan) -> Plan:
        """Returns the plan of a kernel that `is_kept`, with a producer computed in it that has none
        of the opcodes that decide.

        Its launch depends on such a producer only by the narrowest array that is read, by which
        these plans are remembered; nothing else may be asked about their regions.

        Args:
            consumer: The instruction that this is the plan of.
            producer: An operand of it.
            of: The producer's plan.
        """
        others = [operand for operand in consumer.operands if operand is not producer]
        narrowest = smallest_bits(others + producer.operands)
        plan = self._feeding.get(narrowest)
        if plan is None:
            region = Region(consumer, producer, self.region.opcodes)
            plan = self._feeding[narrowest] = Plan(region, (of, self))
        return plan

    def of_fusion(self, fusion: HloInstruction, opcodes: Opcodes) -> Plan:
        """Returns the plan of a consumer that is a fusion after a producer was computed in it.

        Args:
            fusion: The consumer, whose plan `is_kept`; this is what that was `feeding`.
            opcodes: Of what it computes now.
        """
        plan = Plan(Region(fusion, None, opcodes), emission=self.emission)
        plan.known = self.known
        return plan

    def running(self, gpu: GpuDescription) -> Running:
        """Returns what its time depends on, for the GPU it is always asked about."""
        if self.known is None:
            launch = compute_launch(self.region, self.emission, gpu)
            self.known = Running.of(launch, gpu, is_coalesced=self._is_coalesced())
        return self.known

    def _is_coalesced(self) -> bool:
        """Whether neighbouring threads read neighbouring elements, by XLA's rule of thumb."""
        region, emitter = self.region, self.emission.emitter
        if emitter is not Emitter.TRANSPOSE and not region.opcodes.isdisjoint(_MOVES):
            for member in region.members():
                if _transposes_minor(member) and not _starts_at_broadcast(region, member):
                    return False
        if emitter is Emitter.REDUCTION and region.producer is not None:
            sides = self._sides or (Plan(Region(region.producer)), Plan(Region(region.consumer)))
            return any(side.emission.emitter is not Emitter.REDUCTION for side in sides)
        return True


def _kept_emission(of: Plan, into: Plan) -> Emission | None:
    """Returns that of a reduction if it surely stays with a producer in it: what the producer
    computes comes before the heroes, and neither hides one of them nor is another."""
    if into.emission.emitter is not Emitter.REDUCTION or "transpose" in into.region.opcodes:
        return None
    return into.emission if of.region.opcodes.isdisjoint(SHAPING) else None


@final
class Running(NamedTuple):
    """What the time of a kernel depends on, besides operations and bytes.

    Attributes:
        blocks: Of threads.
        units: That multiply and add at once.
        flops_per_ns: Of all threads at work.
        is_coalesced: Whether neighbouring threads read neighbouring elements.
        reading: Both that reading depends on, blocks and coalescing, as one number.
    """

    blocks: int
    units: int
    flops_per_ns: int
    is_coalesced: bool
    reading: int

    @classmethod
    def of(cls, launch: Launch, gpu: GpuDescription, *, is_coalesced: bool) -> Running:
        """Returns it for a launch on a GPU."""
        cores = min(launch.blocks, gpu.num_multiprocessors)
        units = cores * min(launch.threads, gpu.fp32_units)
        flops_per_ns = int(to_f32(gpu.clock_ghz) * 2 * units)
        reading = 2 * launch.blocks + is_coalesced
        return cls(launch.blocks, units, flops_per_ns, is_coalesced, reading)


def _transposes_minor(member: HloInstruction) -> bool:
    """Whether a member changes the dimension that varies fastest, but for those of size one."""
    if member.opcode not in _MOVES:
        return False
    operand, result = member.operands[0].shape, member.shape
    if member.opcode == "copy":
        return _minor(operand.minor_to_major, operand.dimensions) != _minor(
            result.minor_to_major, result.dimensions
        )
    source = [member.dimensions[d] for d in result.minor_to_major]
    return _minor(operand.minor_to_major, operand.dimensions) != _minor(source, operand.dimensions)


def _minor(order: list[int] | tuple[int, ...], sizes: tuple[int, ...]) -> int | None:
    return next((d for d in order if sizes[d] != 1), None)


def _starts_at_broadcast(region: Region, member: HloInstruction) -> bool:
    """Whether a chain of unary members leads from a broadcast or iota to a member."""
    while True:
        (member, *others) = region.operands(member) or [member]
        if member.opcode in ("broadcast", "iota"):
            return True
        is_unary = len(member.operands) == 1 and (
            is_elementwise(member) or member.opcode == "bitcast"
        )
        if others or not is_unary or member not in region:
            return False
