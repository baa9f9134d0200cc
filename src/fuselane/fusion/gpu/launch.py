"""How many blocks of how many threads XLA:GPU launches for a kernel.

Source: the emitters of xla/backends/gpu/codegen, by `xla_fusion_facts.md` section 3.11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from fuselane.fusion.gpu.emitters import Emission, Emitter
from fuselane.fusion.gpu.region import Region
from fuselane.fusion.gpu.shapes import ReductionForm, tiled_transpose, unnested_form
from fuselane.fusion.opcodes import leaf_shapes
from fuselane.gpu import WARP_LANES, GpuDescription
from fuselane.hlo.instruction import HloInstruction

_BLOCK: Final = 128
_HOSTILE: Final = frozenset({"sort", "dot", "concatenate", "reduce", "reduce-window"})
_HOSTILE_OPERANDS: Final = 10
_HOSTILE_WINDOW: Final = 8


@final
@dataclass(frozen=True, slots=True)
class Launch:
    """A grid of blocks.

    Attributes:
        blocks: Number of blocks.
        threads: Threads of a block.
    """

    blocks: int
    threads: int


def compute_launch(region: Region, emission: Emission, gpu: GpuDescription) -> Launch:
    """Returns the launch dimensions of a region's kernel."""
    match emission.emitter:
        case Emitter.REDUCTION:
            hero = emission.hero
            form = unnested_form(hero)
            assert form is not None
            return _row_launch(form, hero, gpu) if form.is_row else _column_launch(form, hero)
        case Emitter.TRANSPOSE:
            return _transpose_launch(emission.hero)
        case _:
            return _loop_launch(region, emission, gpu)


def _loop_launch(region: Region, emission: Emission, gpu: GpuDescription) -> Launch:
    elements = _loop_elements(emission)
    if elements <= 1:
        return Launch(1, 1)
    unroll = _unroll(region, emission, elements, gpu)
    work = -(-elements // unroll)
    threads = min(_BLOCK, work)
    return Launch(-(-work // threads), threads)


def _loop_elements(emission: Emission) -> int:
    root = emission.roots[0]
    if emission.emitter is Emitter.CONCATENATE:
        (dimension,) = emission.hero.dimensions
        widest = max(emission.hero.operands, key=lambda o: o.shape.dimensions[dimension])
        return widest.shape.num_elements
    if emission.emitter is Emitter.SCATTER:
        return root.operands[-1].shape.num_elements
    if all(r.opcode == "dynamic-update-slice" for r in emission.roots):
        return root.operands[1].shape.num_elements
    return leaf_shapes(root.shape)[0].num_elements


def _unroll(region: Region, emission: Emission, elements: int, gpu: GpuDescription) -> int:
    if elements < gpu.max_threads * gpu.num_multiprocessors or _is_hostile(region):
        unroll = 1
    else:
        unroll = math.gcd(elements, 4)
    bits = min(leaf.element_type.bits for r in emission.roots for leaf in leaf_shapes(r.shape))
    return max(unroll, -(-8 // bits)) if bits else unroll


def _is_hostile(region: Region) -> bool:
    """Whether a region has an instruction whose code must not be repeated."""
    return not region.opcodes.isdisjoint(_HOSTILE) and any(
        member.opcode in ("sort", "dot")
        or (member.opcode == "concatenate" and len(member.operands) > _HOSTILE_OPERANDS)
        or (member.opcode == "reduce" and member.shape.is_tuple)
        or (
            member.opcode == "reduce-window"
            and math.prod(d.size for d in member.proto.window.dimensions) > _HOSTILE_WINDOW
        )
        for member in region.members()
    )


def _row_launch(form: ReductionForm, hero: HloInstruction, gpu: GpuDescription) -> Launch:
    _, kept, size = form.sizes
    vector = _vector_size(hero, size)
    warps = math.ceil(math.ceil(size / 16) / WARP_LANES)
    threads = min(1024, warps * WARP_LANES)
    rows = 1
    if threads * 2 <= 256:
        rows = min(kept, 256 // threads)
    if size < WARP_LANES * vector and WARP_LANES * vector % size == 0:
        per_row = max(1, size // vector)
        rows_per_block = max(1, 256 // per_row)
        return Launch(max(1, -(-kept // rows_per_block)), 256)
    return Launch(-(-kept // rows), threads * rows)


def _vector_size(hero: HloInstruction, minor: int) -> int:
    bits = hero.operands[0].shape.element_type.bits
    if minor % 2 or bits > 32:
        return 1
    return 4 if bits <= 16 and minor % 4 == 0 else 2


def _column_launch(form: ReductionForm, hero: HloInstruction) -> Launch:
    major, _, minor = form.sizes
    if WARP_LANES % minor == 0:
        return Launch(major, _BLOCK)
    vector = _vector_size(hero, minor)
    return Launch(major * -(-minor // (WARP_LANES * vector)), 1024)


def _transpose_launch(hero: HloInstruction) -> Launch:
    form = tiled_transpose(hero)
    assert form is not None
    swapped = len(form.sizes) - 1, form.permutation[-1]
    blocks = math.prod(
        -(-size // WARP_LANES) if d in swapped else size for d, size in enumerate(form.sizes)
    )
    return Launch(blocks, _BLOCK)
