"""Candidates priced by model: the kernels a run of the module launches, each by the target's model.

Kernels of Fuselane's count what they were taken for, by the estimate they were made by. Nothing is
run, so the GPU need not be there. Loops of unknown length count one iteration.

Source: XLA's performance model where XLA:GPU has one (`fusion.gpu.model`), what `explain` shows for
all other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, final

from fuselane.analysis.hlo_cost import compute_cost
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.xla_time import estimate_thunk_us
from fuselane.explain.gpu_time import estimate_kernel_us
from fuselane.explain.launches import Launch, find_launches
from fuselane.fusion.gpu.durations import LAUNCH, TICKS_PER_US
from fuselane.fusion.gpu.model import PerformanceModel
from fuselane.fusion.gpu.rules import is_fusible_on_gpu
from fuselane.gpu import GpuDescription
from fuselane.hlo.module import HloModule
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import XLAS_OWN
from fuselane.tuning.making import Maker
from fuselane.tuning.store import Answer

Clock = Callable[[Launch], float]
"""Returns the modelled microseconds of one launch."""

_NO_KERNELS: Final[Mapping[str, float]] = {}


def modelled_us(
    module: HloModule, clock: Clock, own_us: Mapping[str, float] = _NO_KERNELS
) -> float:
    """Returns the modelled time of one run of a module, in microseconds.

    Args:
        module: Scheduled, or in the order in which it would be.
        clock: The model of the target.
        own_us: The times of Fuselane's kernels by the names of their calls; see `making.Made`.
    """
    total = 0.0
    for launch in find_launches(module).kernels.values():
        time_us = own_us.get(launch.instruction.name)
        count = 1 if launch.count is None else launch.count
        total += count * (clock(launch) if time_us is None else time_us)
    return total


def clock_of_gpu(gpu: GpuDescription) -> Clock:
    """Returns XLA's model of a GPU."""
    model = PerformanceModel(gpu)

    def time_us(launch: Launch) -> float:
        kernel = launch.instruction
        if is_fusible_on_gpu(kernel):
            return (LAUNCH + model.time(kernel).total) / TICKS_PER_US
        return estimate_kernel_us(kernel, gpu, None)

    return time_us


def clock_of_cpu(costs: MachineCosts, num_cores: int) -> Clock:
    """Returns the model of XLA:CPU on a machine."""

    def time_us(launch: Launch) -> float:
        if launch.loop is not None:
            footprint = launch.loop.shape.byte_size
        else:
            footprint = int(compute_cost(launch.instruction).num_bytes)
        return estimate_thunk_us(
            launch.instruction,
            costs,
            footprint=footprint,
            num_cores=num_cores,
            is_compiled=launch.function is not None,
        )

    return time_us


@final
class Modelled:
    """A metric; see `evaluation.Metric`."""

    def __init__(self, maker: Maker, clock: Clock) -> None:
        self._maker = maker
        self._clock = clock

    def make(self, candidate: Candidate) -> str:
        """Returns the fingerprint of the module a candidate makes."""
        return self._maker.fingerprint(candidate)

    def compare(self, candidate: Candidate, incumbent: Candidate, cost_us: float) -> Answer:
        """Prices a candidate; the incumbent does not matter but for its cost."""
        del incumbent
        price = self._price(candidate)
        is_best = price < cost_us and not math.isclose(price, cost_us, rel_tol=1e-9)
        return Answer(result="", cost_us=price, is_best=is_best)

    def confirm(self, candidate: Candidate) -> float:
        """Prices a candidate and XLA's own once more, which changes nothing."""
        return self._price(candidate) / self._price(XLAS_OWN)

    def _price(self, candidate: Candidate) -> float:
        made = self._maker.make(candidate)
        return modelled_us(made.module, self._clock, made.own_us)
