"""Shared work: kernels of XLA:CPU's that read the same arrays become one with several results.

    %m = f32[8] fusion(%g, %m0)            %f = (f32[8], f32[8]) fusion(%g, %m0, %v0), kind=kLoop
    %v = f32[8] fusion(%g, %v0)       ->   %m = get-tuple-element(%f), index=0
                                           %v = get-tuple-element(%f), index=1

XLA:CPU makes no such kernels: what two results need is read twice, and computed twice where it was
fused into both. Joined are elementwise kernels over one index space, one of which may read the
other. What they have in common is computed once then.

Each pair is priced: what is saved is the start of a kernel and the arrays read again. A kernel that
walks through too many arrays at once is not made, since prefetchers would not follow. Does not
handle: reductions, updates in place, kernels over different index spaces, bodies of loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.boundary import BoundaryReason
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.dissolve import share
from fuselane.fusion.elementwise_kernels import (
    index_space,
    is_elementwise_kernel,
    large_arrays,
)
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.traversal import Reachability
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_COSTS: Final = MachineCosts()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """Joins elementwise kernels that read the same arrays.

    Attributes:
        max_arrays: Large arrays that one kernel may read and write.
        max_instructions: How much one kernel may compute.
        min_shared_bytes: Arrays smaller than this are no reason to join.
        max_refusals: A kernel that may not be joined with so many looks for no others.
    """

    name: ClassVar[str] = "shared-work"
    max_arrays: int = 12
    max_instructions: int = 200
    min_shared_bytes: int = 256
    max_refusals: int = 64

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Joins what the rules allow; returns whether there was anything."""
        return _Walk(self, module, module.entry, log).run()


@final
class _Walk:
    """One computation on its way through the pass."""

    def __init__(
        self, options: SharedWork, module: HloModule, computation: HloComputation, log: FusionLog
    ) -> None:
        self.options = options
        self.computation = computation
        self.log = log
        self.fuser = Fuser(module, computation)
        self.has_changed = False

    def run(self) -> bool:
        kernels = [i for i in self.computation.post_order() if is_elementwise_kernel(i)]
        if len(kernels) < 2:
            return False
        self.reach = Reachability(self.computation.post_order())
        self.spaces = {kernel: index_space(kernel) for kernel in kernels}
        for kernel in kernels:
            self._grow(kernel)
        if self.has_changed:
            self.fuser.finish()
        return self.has_changed

    def _grow(self, kernel: HloInstruction) -> None:
        """Joins a kernel with all others that it shares arrays with."""
        refused: set[HloInstruction] = set()
        grown: HloInstruction | None = kernel
        while grown is not None and grown.operands:
            grown = self._grow_by_one(grown, refused)

    def _grow_by_one(
        self, kernel: HloInstruction, refused: set[HloInstruction]
    ) -> HloInstruction | None:
        """Returns what a kernel and the first other that may join it become, None if none may."""
        for other in self._partners(kernel):
            if other in refused:
                continue
            if len(refused) >= self.options.max_refusals:
                return None
            decision = self._decide(kernel, other)
            joined = self._join(kernel, other) if decision.can_fuse else None
            self.log.note(self.options.name, kernel, other, decision, joined)
            if joined is not None:
                return joined
            refused.add(other)
        return None

    def _partners(self, kernel: HloInstruction) -> Iterator[HloInstruction]:
        """Yields the kernels over the same index space that read what it reads or makes."""
        arrays = [kernel, *kernel.operands, *(u for u in kernel.users if u.shape.is_array)]
        space = index_space(kernel)
        for array in dict.fromkeys(arrays):
            if array.shape.is_array and array.shape.byte_size < self.options.min_shared_bytes:
                continue
            for user in array.users:
                if user is not kernel and self.spaces.get(user) == space:
                    yield user

    def _decide(self, kernel: HloInstruction, other: HloInstruction) -> FusionDecision:
        options = self.options
        if not self._is_free(kernel, other):
            detail = f"What `{other.name}` needs depends on `{kernel.name}` through other kernels."
            return refuse(BoundaryReason.MULTI_OUTPUT, detail)
        if kernel.backend_config != other.backend_config:
            detail = f"XLA runs `{kernel.name}` and `{other.name}` on different numbers of threads."
            return refuse(BoundaryReason.LOOP_SHAPES, detail)
        arrays = large_arrays(kernel) | large_arrays(other)
        size = len(kernel.to_apply.instructions) + len(other.to_apply.instructions)
        if len(arrays) > options.max_arrays or size > options.max_instructions:
            detail = f"The kernel would go through {len(arrays)} arrays in {size} instructions."
            return refuse(
                BoundaryReason.BUDGET,
                detail,
                arrays=len(arrays),
                limit=options.max_arrays,
                instructions=size,
            )
        shared = large_arrays(kernel) & large_arrays(other)
        saved = sum(array.shape.byte_size for array in shared)
        footprint = sum(array.shape.byte_size for array in arrays)
        saved_us = _COSTS.thunk_us + _COSTS.moving_us(saved, footprint)
        detail = f"Both go through {len(shared)} of {len(arrays)} arrays."
        return allow(detail, saved_bytes=saved, saved_us=saved_us, arrays=len(arrays))

    def _is_free(self, kernel: HloInstruction, other: HloInstruction) -> bool:
        """Whether no way leads from one to the other through a third."""
        for first, second in ((kernel, other), (other, kernel)):
            elements = {first, *(u for u in first.users if u.opcode == "get-tuple-element")}
            between = [o for o in second.operands if o not in elements]
            if any(self.reach.is_reachable(first, operand) for operand in between):
                return False
        return True

    def _join(self, kernel: HloInstruction, other: HloInstruction) -> HloInstruction:
        """Returns what two kernels become: the one that reads the other, if one does."""
        is_read = self.reach.is_reachable(kernel, other)
        producer, consumer = (kernel, other) if is_read else (other, kernel)
        self.reach.merge(producer, consumer, consumer)
        count = len(self.computation.instructions)
        joined = self.fuser.fuse_multi_output(producer, consumer, LOOP)
        for element in self.computation.instructions[count:]:
            self.reach.add(element)
        body = joined.to_apply
        body.sort()
        share(body)
        body.remove_dead_instructions()
        self.has_changed = True
        del self.spaces[kernel], self.spaces[other]
        if is_elementwise_kernel(joined):
            self.spaces[joined] = index_space(joined)
        return joined
