"""What XLA did to one module, as it left it in its dumps: plain values, no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from fuselane.gpu import GpuDescription
from fuselane.hlo.module import HloModule
from fuselane.hlo.proto import HloModuleProto


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedStage:
    """A module after one pass that changed it.

    Attributes:
        pipeline: XLA's pass pipeline, such as `fusion`.
        name: The pass that ran last, or "" for the module as it came.
        data: A serialized HloModuleProto.
    """

    pipeline: str
    name: str
    data: bytes

    def module(self) -> HloModule:
        """Returns the module, parsed afresh."""
        return HloModule.from_bytes(self.data)

    @property
    def is_scheduled(self) -> bool:
        """Whether the pass came after scheduling."""
        return bool(HloModuleProto.FromString(self.data).schedule.sequences)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUsage:
    """What ptxas and XLA say about one GPU kernel.

    Attributes:
        registers: Per thread.
        spill_bytes: Spill stores and loads per thread.
        shared_bytes: Shared memory per block, static and dynamic.
        block_threads: Threads per block, or 0 if unknown.
        num_blocks: Blocks per launch, or 0 if unknown.
        name: What XLA calls the kernel; instructions may share one.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    block_threads: int = 0
    num_blocks: int = 0
    name: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class XlaRefusal:
    """One pair of instructions XLA refused to fuse, or priced, in its own words.

    Attributes:
        producer: Name of the producer at that time.
        consumer: Name of the consumer, or "" if it was refused for all of them.
        reason: XLA's own text, or "" for a price alone.
        us_fused: XLA's modelled time of the fused kernel in microseconds, or None.
        us_unfused: The same of the two, or None.
    """

    producer: str
    consumer: str = ""
    reason: str = ""
    us_fused: float | None = None
    us_unfused: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedModule:
    """One module's way through XLA.

    Attributes:
        name: Such as `jit_step`.
        target: `cpu`, or a GPU model such as `h100`.
        stages: The module as it came and after each pass that changed it, oldest first.
        final: The module after all passes, scheduled: a serialized HloModuleProto.
        thunks: XLA's thunk sequence as text, or "" where XLA wrote none.
        ptx: The PTX of each kernel, by XLA's name of the kernel; empty on a CPU.
        usage: What each kernel takes, by the name of the instruction of the final module that
            launches it; empty on a CPU or without ptxas.
        parts: Launches of each instruction of the final module, each time it runs, where XLA wrote
            them down; a sort on a GPU takes several.
        refusals: What XLA said about fusions it did not do; empty on a CPU.
        gpu: The GPU it was compiled for; None on a CPU.
        compile_s: Seconds XLA took, or 0 if unknown.
        notes: Sentences about what could not be captured, and why.
    """

    name: str
    target: str
    stages: tuple[CapturedStage, ...]
    final: bytes
    thunks: str = ""
    ptx: Mapping[str, str] = field(default_factory=dict)
    usage: Mapping[str, KernelUsage] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    refusals: tuple[XlaRefusal, ...] = ()
    gpu: GpuDescription | None = None
    compile_s: float = 0
    notes: tuple[str, ...] = ()

    def module(self) -> HloModule:
        """Returns the final module, parsed afresh."""
        return HloModule.from_bytes(self.final)

    def unscheduled(self) -> bytes:
        """Returns the module as XLA's hook shows it on a CPU, behind all passes but scheduling.

        Where that stage was not written down, it is the final module without its order.
        """
        is_scheduling_shown = False
        for stage in reversed(self.stages):
            if stage.is_scheduled:
                is_scheduling_shown = True
            elif is_scheduling_shown:
                return stage.data
            else:
                break
        module = HloModuleProto.FromString(self.final)
        module.ClearField("schedule")
        return bytes(module.SerializeToString())
