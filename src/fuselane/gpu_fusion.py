"""Fusion strategies on programs for GPUs: what XLA:GPU's hook after scheduling gets.

form      XLA's fusions are dissolved, and the passes of a pipeline fuse what is left
compare   the kernels XLA had made itself need no further work
finish    XLA's GPU compiler, in a process of its own and without a GPU, wraps what is left, places
          copies, chooses an order of execution, and compiles all of it
hand over the module that compiler has taken is what XLA goes on with

XLA:GPU does not refuse a kernel that it cannot compile, but ends the process. So no kernel gets to
it here that it has not compiled there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from fuselane import collector
from fuselane.config import Options
from fuselane.errors import CaptureError
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.dissolve import without_copies
from fuselane.fusion.edges import Values, find_edges
from fuselane.fusion.pipelines import Pipeline
from fuselane.fusion.plan_fusion import complaint
from fuselane.fusion.running import apply_on_gpu
from fuselane.gpu import GpuDescription
from fuselane.hlo.instruction import SIDE_EFFECT_OPCODES
from fuselane.hlo.module import HloModule
from fuselane.runtime.warning import warn_once
from fuselane.xla.captured import CapturedModule
from fuselane.xla.compilation import Source, capture_source
from fuselane.xla.targets import Target, target_of

_PROGRAMS: Final = ("jit_", "pmap_")
"""How JAX's modules are called. XLA compiles others of its own, to choose between algorithms."""

_OUTSIDE: Final = (SIDE_EFFECT_OPCODES - {"domain", "rng", "rng-get-and-update-state"}) | {
    "partition-id",
    "replica-id",
}
"""Opcodes that wait for, or ask for, what is outside of one GPU's program."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A module as a strategy fuses it.

    Attributes:
        data: A serialized HloModuleProto, which is not scheduled.
        log: What the passes decided.
        is_new: Whether its kernels are others than XLA's own.
    """

    data: bytes
    log: FusionLog
    is_new: bool


def fuse(data: bytes, options: Options, gpu: GpuDescription, pipeline: Pipeline) -> bytes | None:
    """Returns a module for a GPU as a strategy fuses it; None if XLA's own fusions stay.

    They stay, with a warning, where XLA does not take the others, does not come to an end, or
    where several GPUs work together.

    Args:
        data: A serialized HloModuleProto, as XLA:GPU has it after scheduling.
        options: What the user set.
        gpu: What the module is compiled for.
        pipeline: The passes to run.
    """
    module = HloModule.from_bytes(data)
    if not module.name.startswith(_PROGRAMS):
        return None
    try:
        with collector.paused():
            formed = form(module, gpu, pipeline)
        told = complaint(formed.log)
        if told:
            warn_once(told)
        if not formed.is_new:
            return None
        return finish(formed, target_of(gpu), options.max_compile_s).final
    except CaptureError as error:
        warn_once(f"XLA's own fusions stay in {module.name}: {error}")
        return None


def form(module: HloModule, gpu: GpuDescription, pipeline: Pipeline) -> Formed:
    """Returns what a strategy makes of a module, which is changed, as XLA:GPU has scheduled it.

    Raises:
        CaptureError: if it works together with other GPUs, or with the host.
    """
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in _OUTSIDE:
                what = f"`{instruction.name}`, a {instruction.opcode}"
                raise CaptureError(f"{what}, is not for one GPU alone.")
    own = HloModule.from_bytes(module.to_bytes())
    log = apply_on_gpu(module, pipeline, gpu)
    values = Values()
    is_new = find_edges(without_copies(own), values) != find_edges(module, values)
    return Formed(data=module.to_bytes(), log=log, is_new=is_new)


def finish(
    formed: Formed, target: Target, max_s: float, *, with_usage: bool = False
) -> CapturedModule:
    """Has XLA's GPU compiler compile what a strategy made, in a process of its own.

    Args:
        formed: What it made.
        target: What to compile for.
        max_s: Seconds that may take.
        with_usage: Whether to look up what kernels take of a multiprocessor.
    Raises:
        CaptureError: if XLA is not there, refuses the module, aborts, or takes too long.
    """
    source = Source(form="fused", data=formed.data)
    return capture_source(source, target, max_s=max_s, with_usage=with_usage)
