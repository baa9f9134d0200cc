"""What the kernels of a module cost in one run, derived from what they cost in one launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from fuselane.boundary import BoundaryReason
from fuselane.explain.model import BoundaryModel, KernelModel, ModuleModel

EDGES_OF_THE_PROGRAM: Final = frozenset(
    {
        BoundaryReason.ENTRY,
        BoundaryReason.EXIT,
        BoundaryReason.CONSTANT,
        BoundaryReason.TUPLE,
    }
)
"""Reasons of boundaries that no fusion could remove; faces count them and list them last."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """One kernel in one run of the program.

    Attributes:
        kernel: The kernel.
        time_us: Modelled time of all its launches; of one if their number is unknown.
        bytes: Bytes read and written by all its launches; by one if their number is unknown.
        share: Of the modelled time of the module, 0 to 1.
    """

    kernel: KernelModel
    time_us: float
    bytes: float
    share: float


def kernel_costs(module: ModuleModel) -> list[KernelCost]:
    """Returns the costs of all kernels, in the model's order."""
    total = sum(map(_time_us, module.kernels))
    return [
        KernelCost(
            kernel=kernel,
            time_us=_time_us(kernel),
            bytes=_launches(kernel) * (kernel.bytes_read + kernel.bytes_written),
            share=_time_us(kernel) / total if total else 0.0,
        )
        for kernel in module.kernels
    ]


def worst_first(costs: Iterable[KernelCost]) -> list[KernelCost]:
    """Returns costs by modelled time, then bytes; equal ones stay in order."""
    return sorted(costs, key=lambda cost: (-cost.time_us, -cost.bytes))


def time_us(module: ModuleModel) -> float:
    """Returns the modelled time of one run; loops of unknown length count one iteration."""
    return sum(map(_time_us, module.kernels))


def bytes_moved(module: ModuleModel) -> float:
    """Returns what kernels read and write in one run; unknown loops count one iteration."""
    return sum(cost.bytes for cost in kernel_costs(module))


def fuselane_launches(module: ModuleModel) -> int | None:
    """Returns the kernels launched per run under Fuselane, or None if that is unknown."""
    launches = module.launches
    outer = [loop for loop in module.loops if not loop.parent]
    if launches is None or any(None in (x.launches, x.fuselane_launches) for x in outer):
        return None
    return launches - sum((x.launches or 0) - (x.fuselane_launches or 0) for x in outer)


def crossing_bytes(boundary: BoundaryModel) -> int:
    """Returns what crosses a boundary in one run; in one launch if their number is unknown."""
    known = boundary.bytes_per_run
    return boundary.num_bytes if known is None else known


def by_reason(
    boundaries: Iterable[BoundaryModel],
) -> list[tuple[BoundaryReason, list[BoundaryModel]]]:
    """Returns boundaries grouped by reason: most bytes first, the program's own edges last."""
    groups: dict[BoundaryReason, list[BoundaryModel]] = {}
    for boundary in boundaries:
        groups.setdefault(boundary.decision.reason, []).append(boundary)
    for group in groups.values():
        group.sort(key=crossing_bytes, reverse=True)

    def rank(item: tuple[BoundaryReason, list[BoundaryModel]]) -> tuple[bool, int]:
        reason, group = item
        return reason in EDGES_OF_THE_PROGRAM, -sum(map(crossing_bytes, group))

    return sorted(groups.items(), key=rank)


def _launches(kernel: KernelModel) -> int:
    return 1 if kernel.launches is None else kernel.launches


def _time_us(kernel: KernelModel) -> float:
    return _launches(kernel) * kernel.modelled_us
