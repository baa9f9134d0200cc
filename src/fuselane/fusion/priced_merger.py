"""Priced merger: a kernel of XLA:CPU's is computed again in all that read it, and vanishes.

    %p = f32[8] fusion(%x)                   %a = f32[8] fusion(%y, %x)
    %a = f32[8] fusion(%p, %y)        ->     %b = f32[8] fusion(%z, %x)
    %b = f32[8] fusion(%p, %z)

XLA:CPU computes a value again for each of its readers if its opcode is on a list of cheap ones, and
never otherwise. Here both ways have a price: computed once, the value is written and read again, by
kernels that each have to be started; computed in its readers, it costs its operations for each. So
a square root of large arrays, which come from memory, is merged, and a sine is not.

Merged are elementwise kernels, into elementwise kernels over the same index space only. Does not
handle: reductions, updates in place, bodies of loops, kernels with several results as producers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.xla_time import estimate_thunk_us
from fuselane.boundary import BoundaryReason
from fuselane.fusion.absorb import absorb, read_once
from fuselane.fusion.decision import FusionDecision, FusionLog, allow, refuse
from fuselane.fusion.dissolve import share
from fuselane.fusion.elementwise_kernels import index_space, is_elementwise_kernel, large_arrays
from fuselane.fusion.in_place import in_place_operands
from fuselane.fusion.rules import describe, reason_of
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.transfer import clone_computation
from fuselane.hlo.tuples import tuple_of

_NAMING: Final = frozenset({"bitcast", "get-tuple-element"})
"""Opcodes of other names for arrays."""
_MAKING: Final = frozenset({"convolution", "custom-call", "dot", "fft", "fusion", "reduce"})
"""Opcodes that have memory of their own for their results, or make new ones of what they take."""
_COSTS: Final = MachineCosts()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PricedMerger:
    """Merges elementwise kernels into all of their consumers where that takes less time.

    Attributes:
        max_consumers: How many kernels may compute the same.
        max_arrays: Large arrays that one kernel may read and write.
        max_instructions: How much one kernel may compute.
        min_gain: Factor by which all have to get faster.
        min_shared_bytes: What makes an array this large has to get faster than it is in one kernel
            with a consumer that returns the array to the others, as `shared-work` makes it.
        max_cached_bytes: Arrays of so many bytes together are priced as if they stayed in caches,
            some of which the cores share, so that little is gained by not reading them again.
    """

    name: ClassVar[str] = "priced-merger"
    max_consumers: int = 4
    max_arrays: int = 12
    max_instructions: int = 200
    min_gain: float = 1.1
    min_shared_bytes: int = 256
    max_cached_bytes: int = 32 << 20

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Merges what is worth it; returns whether anything was."""
        return _Walk(self, module, module.entry, log).run()


@final
class _Walk:
    """One computation on its way through the pass."""

    def __init__(
        self, options: PricedMerger, module: HloModule, computation: HloComputation, log: FusionLog
    ) -> None:
        self.options = options
        self.module = module
        self.computation = computation
        self.log = log

    def run(self) -> bool:
        changed = [
            self._merge(instruction)
            for instruction in self.computation.post_order()
            if instruction.users
            and instruction.shape.is_array
            and is_elementwise_kernel(instruction)
        ]
        if any(changed):
            self.computation.remove_dead_instructions()
            self.computation.sort()
            self.module.remove_unused_computations()
        return any(changed)

    def _merge(self, producer: HloInstruction) -> bool:
        """Merges a kernel into all that read it, or says why not; returns whether it did."""
        users = list(producer.users)
        user, refusal = self._check(producer, users)
        if refusal is not None:
            self.log.note(self.options.name, producer, user, refusal)
            return False
        merged = [_merged(producer, user) for user in users]
        decision = self._price(producer, users, merged)
        if not decision.can_fuse:
            self.log.note(self.options.name, producer, None, decision)
        for user, fusion in zip(users, merged, strict=True):
            if decision.can_fuse:
                self.log.note(self.options.name, producer, user, decision, user)
                user.call(self.module.add(fusion.to_apply))
                user.replace_operands(list(fusion.operands))
            fusion.replace_operands([])
        return decision.can_fuse

    def _check(
        self, producer: HloInstruction, users: Sequence[HloInstruction]
    ) -> tuple[HloInstruction | None, FusionDecision | None]:
        """Returns why a kernel cannot vanish, and for which of its users if it is one's fault."""
        if producer.is_root or any(u.opcode == "tuple" and u.is_root for u in users):
            detail = f"`{producer.name}` is a result of its computation."
            return None, refuse(BoundaryReason.EXIT, detail)
        limit = self.options.max_consumers
        if len(users) > limit:
            detail = f"`{producer.name}` would be computed {len(users)} times, more than {limit}."
            reason = BoundaryReason.DUPLICATION
            return None, refuse(reason, detail, users=len(users), limit=limit)
        for array in producer.operands:
            if not _stays(array):
                detail = f"What is in `{array.name}` may be overwritten before others read it."
                return None, refuse(BoundaryReason.IN_PLACE, detail)
        for user in users:
            refusal = self._check_user(producer, user)
            if refusal is not None:
                return user, refusal
        return None, None

    def _check_user(self, producer: HloInstruction, user: HloInstruction) -> FusionDecision | None:
        if not is_elementwise_kernel(user):
            detail = f"{describe(user)}, is no elementwise kernel."
            return refuse(reason_of(user), detail)
        if index_space(user) != index_space(producer):
            detail = f"`{producer.name}` and `{user.name}` go through different index spaces."
            return refuse(BoundaryReason.LOOP_SHAPES, detail)
        options = self.options
        arrays = len((large_arrays(producer) | large_arrays(user)) - {producer})
        size = len(producer.to_apply.instructions) + len(user.to_apply.instructions)
        if arrays > options.max_arrays or size > options.max_instructions:
            return refuse(
                BoundaryReason.BUDGET,
                f"`{user.name}` would go through {arrays} arrays in {size} instructions.",
                arrays=arrays,
                limit=options.max_arrays,
                instructions=size,
            )
        return None

    def _price(
        self,
        producer: HloInstruction,
        users: Sequence[HloInstruction],
        merged: Sequence[HloInstruction],
    ) -> FusionDecision:
        """Returns whether consumers that compute a kernel's value take less time than all apart."""
        kernels = [producer, *users]
        footprint = sum(a.shape.byte_size for a in {a for k in kernels for a in (k, *k.operands)})
        if footprint <= self.options.max_cached_bytes:
            footprint = 0

        def time_us(several: Sequence[HloInstruction]) -> float:
            return sum(estimate_thunk_us(k, _COSTS, footprint=footprint) for k in several)

        apart_us, merged_us = time_us(kernels), time_us(merged)
        for place, user in enumerate(users):
            if self._may_share(producer, user):
                joined = _merged(producer, user, is_returned=True)
                others = [*users[:place], *users[place + 1 :]]
                apart_us = min(apart_us, time_us([joined, *others]))
                joined.replace_operands([])
        numbers = {"unfused_us": apart_us, "fused_us": merged_us, "users": float(len(users))}
        detail = (
            f"`{producer.name}` and what reads it take {apart_us:.3g} us, and {merged_us:.3g} us"
            f" merged into {len(users)} users."
        )
        if apart_us < merged_us * self.options.min_gain:
            return refuse(BoundaryReason.SLOWER, detail)._replace(numbers=numbers)
        saved_us = (apart_us - merged_us) / len(users)  # for each, as each gets a step in the log
        return allow(detail, saved_us=saved_us, **numbers)

    def _may_share(self, producer: HloInstruction, user: HloInstruction) -> bool:
        """Whether `shared-work` may make one kernel of the two, with both results."""
        is_large = producer.shape.byte_size >= self.options.min_shared_bytes
        return is_large and producer.backend_config == user.backend_config


def _merged(
    producer: HloInstruction, consumer: HloInstruction, *, is_returned: bool = False
) -> HloInstruction:
    """Returns a consumer that computes a producer inside of it, and perhaps returns what it makes
    as well, as an instruction of its own."""
    body = clone_computation(consumer.to_apply)
    fusion = consumer.clone(consumer.operands, called_computations=[body])
    read_once(fusion)
    value = absorb(fusion, producer, is_last=False)
    if is_returned:
        results = body.root.operands if body.root.opcode == "tuple" else [body.root]
        body.root = body.add(tuple_of([*results, value]))
        fusion.shape = body.root.shape
    body.sort()
    share(body)
    body.remove_dead_instructions()
    return fusion


def _stays(array: HloInstruction) -> bool:
    """Whether nothing can overwrite an array, whenever it is read; arguments of the program are
    copied for that."""
    while array.opcode in _NAMING:
        array = array.operands[0]
    if array.opcode in ("constant", "parameter"):
        return True
    return array.opcode in _MAKING and _is_only_read(array)


def _is_only_read(array: HloInstruction) -> bool:
    for user in array.users:
        if user.opcode in _NAMING:
            is_reading = _is_only_read(user)
        elif user.opcode == "fusion":
            is_reading = all(user.operands[n] is not array for n in in_place_operands(user))
        elif user.opcode == "custom-call":
            is_reading = not user.proto.output_operand_aliasing
        else:
            is_reading = user.opcode in _MAKING or user.is_root
        if not is_reading:
            return False
    return True
