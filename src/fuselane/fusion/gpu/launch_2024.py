"""How many blocks of how many threads XLA:GPU launched for a kernel in June 2024, where that is
not what it launches today: reductions were made by an emitter since replaced.

Source: xla/service/gpu/fusions/reduction_base.cc of 2024-06.
Does not handle: larger loops with sines, cosines or powers, which were not unrolled.
"""

from __future__ import annotations

from typing import Final

from fuselane.fusion.gpu.emitters import Emitter
from fuselane.fusion.gpu.launch import Launch
from fuselane.fusion.gpu.plans import Plan, Running
from fuselane.fusion.gpu.shapes import ReductionForm, unnested_form
from fuselane.gpu import WARP_LANES, GpuDescription

_TARGET: Final = 256
_MAX_THREADS: Final = 1024
_ROW_TILE: Final = 16
_COLUMN_TILE: Final = 128
_BATCH_TILE: Final = 8


def running_2024(plan: Plan, gpu: GpuDescription) -> Running:
    """Returns what the time of a kernel depends on, by that year's launch."""
    running = plan.running(gpu)
    launch = _launch(plan)
    if launch is None:
        return running
    return Running.of(launch, gpu, is_coalesced=running.is_coalesced)


def _launch(plan: Plan) -> Launch | None:
    emission = plan.emission
    form = unnested_form(emission.hero) if emission.emitter is Emitter.REDUCTION else None
    if form is None:
        return None
    return _row_launch(form) if form.is_row else _column_launch(form)


def _row_launch(form: ReductionForm) -> Launch:
    major, kept, minor = form.sizes
    if minor < WARP_LANES and WARP_LANES % minor == 0:
        threads, tile = minor, 1
    else:
        threads = min(_MAX_THREADS, WARP_LANES * -(-minor // (_ROW_TILE * WARP_LANES)))
        tile = _ROW_TILE
    rows = min(kept, _TARGET // threads) if threads * 2 <= _TARGET else 1
    # Threads that read two elements at once have half as many of these pairs.
    blocks = -(-major // min(major, _BATCH_TILE)) * -(-kept // rows) * -(-minor // (tile * threads))
    return Launch(blocks, threads * rows)


def _column_launch(form: ReductionForm) -> Launch:
    major, reduced, minor = form.sizes
    blocks = major * -(-reduced // (_COLUMN_TILE * WARP_LANES)) * -(-minor // WARP_LANES)
    return Launch(blocks, WARP_LANES * WARP_LANES)
