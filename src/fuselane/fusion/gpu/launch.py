"""How many blocks of how many threads XLA:GPU launches for a kernel.

Source: the emitters of xla/backends/gpu/codegen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple, final

from fuselane.fusion.gpu.emitters import Emission, Emitter
from fuselane.fusion.gpu.region import Region
from fuselane.fusion.gpu.shapes import ReductionForm, tiled_transpose, unnested_form
from fuselane.fusion.opcodes import is_complex, leaf_shapes
from fuselane.gpu import WARP_LANES, GpuDescription
from fuselane.hlo.instruction import HloInstruction

_BLOCK: Final = 128
_TARGET: Final = 256
"""Threads that blocks of row reductions have if rows are short."""

_MAX_THREADS: Final = 1024
_PER_THREAD: Final = 16
_TILE: Final = 32
HOSTILE: Final = frozenset({"sort", "dot", "concatenate", "reduce", "reduce-window"})
"""Opcodes whose code may not be worth repeating."""
_HOSTILE_OPERANDS: Final = 10
_HOSTILE_WINDOW: Final = 8


@final
class Launch(NamedTuple):
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
            return _reduction_launch(region, emission, gpu)
        case Emitter.TRANSPOSE:
            return _transpose_launch(emission.hero)
        case _:
            return _loop_launch(region, emission, gpu)


def _loop_launch(region: Region, emission: Emission, gpu: GpuDescription) -> Launch:
    elements = _loop_elements(region, emission)
    if elements <= 1:
        return Launch(1, 1)
    unroll = _unroll(region, emission, elements, gpu)
    work = -(-elements // unroll)
    threads = min(_BLOCK, work)
    return Launch(-(-work // threads), threads)


def _loop_elements(region: Region, emission: Emission) -> int:
    root = emission.roots[0]
    if emission.emitter is Emitter.CONCATENATE:
        (dimension,) = emission.hero.dimensions
        widest = max(emission.hero.operands, key=lambda o: o.shape.dimensions[dimension])
        return widest.shape.num_elements
    if emission.emitter is Emitter.SCATTER:
        return root.operands[-1].shape.num_elements
    if all(_is_in_place(region, r) for r in emission.roots):
        return root.operands[1].shape.num_elements
    return leaf_shapes(root.shape)[0].num_elements


def _is_in_place(region: Region, root: HloInstruction) -> bool:
    """Whether a root updates an array that comes from outside, which need not be copied then."""
    if root.opcode != "dynamic-update-slice":
        return False
    updated = region.operands(root)[0]
    if updated.opcode == "bitcast" and updated in region:
        updated = region.operands(updated)[0]
    return updated not in region


def _unroll(region: Region, emission: Emission, elements: int, gpu: GpuDescription) -> int:
    if elements < gpu.max_threads * gpu.num_multiprocessors or _is_hostile(region):
        unroll = 1
    else:
        unroll = math.gcd(elements, 4)
    bits = smallest_bits(emission.roots)
    return max(unroll, -(-8 // bits)) if bits else unroll


def _is_hostile(region: Region) -> bool:
    """Whether a region has an instruction whose code must not be repeated."""
    return not region.opcodes.isdisjoint(HOSTILE) and any(
        member.opcode in ("sort", "dot")
        or (member.opcode == "concatenate" and len(member.operands) > _HOSTILE_OPERANDS)
        or (member.opcode == "reduce" and member.shape.is_tuple)
        or (
            member.opcode == "reduce-window"
            and math.prod(d.size for d in member.proto.window.dimensions) > _HOSTILE_WINDOW
        )
        for member in region.members()
    )


def _reduction_launch(region: Region, emission: Emission, gpu: GpuDescription) -> Launch:
    form = unnested_form(emission.hero)
    assert form is not None
    if form.is_row:
        return _rows_launch(region, emission, form, gpu) or _row_launch(region, emission, form)
    if _TILE % form.sizes[2] == 0:
        return _narrow_column_launch(region, emission, form)
    major, _, minor = form.sizes
    vector = _vector_size(region, emission, minor, _TILE)
    return Launch(major * -(-minor // (_TILE * vector)), _TILE * _TILE)


def _row_launch(region: Region, emission: Emission, form: ReductionForm) -> Launch:
    _, kept, size = form.sizes
    threads = min(_MAX_THREADS, WARP_LANES * -(-size // (_PER_THREAD * WARP_LANES)))
    rows = min(kept, _TARGET // threads) if threads * 2 <= _TARGET else 1
    vector = _vector_size(region, emission, size, threads)
    vectors = size // vector
    tile = threads * min(_PER_THREAD // vector, -(-vectors // threads))
    return Launch(-(-kept // rows) * -(-vectors // tile), threads * rows)


def _rows_launch(
    region: Region, emission: Emission, form: ReductionForm, gpu: GpuDescription
) -> Launch | None:
    """Returns the launch for short rows, of which each warp reduces several; None for others."""
    _, kept, size = form.sizes
    if size & (size - 1):
        return None
    written = smallest_bits(emission.roots)
    read = smallest_bits(region.inputs()) or written
    if not read or not written:  # tuples count as types of no size
        return None
    vector = min(size, 64 // min(read, written))
    if max(read, written) >= 32:
        vector = min(vector, 128 // max(read, written))

    def launch() -> Launch:
        per_row = size // vector
        rows = kept if kept * per_row <= _TARGET else _TARGET // per_row
        return Launch(-(-kept // rows), per_row * rows)

    if size > WARP_LANES * vector:
        return None
    while vector > 1 and launch().blocks < gpu.num_multiprocessors:
        vector //= 2
    return launch() if size <= WARP_LANES * vector else None


def _narrow_column_launch(region: Region, emission: Emission, form: ReductionForm) -> Launch:
    major, reduced, minor = form.sizes
    threads = _BLOCK
    vector = _vector_size(region, emission, reduced * minor, _TILE)
    rows = vector * threads // minor
    while rows > _TILE and vector > 1:
        vector, rows = vector // 2, rows // 2
    if rows > _TILE:
        threads //= rows // _TILE
    return Launch(major, threads)


def _vector_size(region: Region, emission: Emission, minor: int, threads: int) -> int:
    """Returns how many neighbours a thread of a reduction loads at once."""
    if minor % 2 or threads * 2 > minor:
        return 1
    if any(
        operand.shape.is_array and is_complex(operand.shape)
        for hero in emission.heroes
        for operand in hero.operands
    ):
        return 1
    bits = smallest_bits(region.inputs())
    if bits is None or bits >= 64:
        return 1
    if bits >= 32 or threads * 4 > minor or minor % 4:
        return 2
    return 4


def smallest_bits(values: Iterable[HloInstruction]) -> int | None:
    """Returns the least width of the elements of arrays; None if there is no array."""
    shapes = [value.shape for value in values]
    return min([shape.element_type.bits for shape in shapes if shape.is_array], default=None)


def _transpose_launch(hero: HloInstruction) -> Launch:
    form = tiled_transpose(hero)
    assert form is not None
    swapped = len(form.sizes) - 1, form.permutation[-1]
    blocks = math.prod(
        -(-size // WARP_LANES) if d in swapped else size for d, size in enumerate(form.sizes)
    )
    return Launch(blocks, _BLOCK)
