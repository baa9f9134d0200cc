"""What a rule of advice is, and what it gets to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, final

from fuselane.explain.model import (
    AdviceModel,
    BoundaryModel,
    InstructionModel,
    KernelModel,
    LoopModel,
    ModuleModel,
)
from fuselane.explain.random_numbers import is_random_name
from fuselane.explain.recomputed import Recomputed
from fuselane.hlo.module import HloModule

MIN_GAIN: Final = 1.01
"""Advice that gains less by estimate is not worth reading."""
_ONLY_RANDOM: Final = 0.9
_NO_WORK: Final = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of advice.

    Attributes:
        name: Stable kebab-case identifier.
        summary: What is there and why it costs, in two or three sentences, for the documentation.
        before: An example that the rule finds.
        after: The same as it should be.
        find: Returns what the rule has to say about a module.
    """

    name: str
    summary: str
    before: str
    after: str
    find: Callable[[View], Iterable[AdviceModel]]


@final
@dataclass(kw_only=True)
class View:
    """A module as rules see it.

    Attributes:
        module: What is known so far, all but the advice.
        launch_us: What launching a kernel of its own takes, in microseconds.
        bytes_per_us: What memory moves.
        first: Returns the module as it came, or None if that is not known.
        recomputed: What kernels compute several times, by the kernel's name.
    """

    module: ModuleModel
    launch_us: float
    bytes_per_us: float
    first: Callable[[], HloModule] | None = field(default=None)
    recomputed: Mapping[str, Recomputed] = field(default_factory=dict)

    @cached_property
    def kernels(self) -> dict[str, KernelModel]:
        """By name."""
        return {kernel.name: kernel for kernel in self.module.kernels}

    @cached_property
    def loops(self) -> dict[str, LoopModel]:
        """By name."""
        return {loop.name: loop for loop in self.module.loops}

    @cached_property
    def instructions(self) -> dict[str, InstructionModel]:
        """By name."""
        return {instruction.name: instruction for instruction in self.module.instructions}

    @cached_property
    def members(self) -> dict[str, list[InstructionModel]]:
        """The instructions of each kernel, by its name."""
        found: dict[str, list[InstructionModel]] = {}
        for instruction in self.module.instructions:
            if instruction.kernel:
                found.setdefault(instruction.kernel, []).append(instruction)
        return found

    @cached_property
    def outgoing(self) -> dict[str, list[BoundaryModel]]:
        """Boundaries by their producer."""
        found: dict[str, list[BoundaryModel]] = {}
        for boundary in self.module.boundaries:
            found.setdefault(boundary.producer, []).append(boundary)
        return found

    @cached_property
    def total_us(self) -> float:
        """The time of one run; loops of unknown length count one iteration."""
        return sum(map(self.time_us, self.module.kernels))

    def time_us(self, kernel: KernelModel) -> float:
        """Returns the time of a kernel in one run."""
        return kernel.modelled_us * self.launches(kernel)

    def launches(self, kernel: KernelModel) -> int:
        """Returns the launches of a kernel in one run; 1 if unknown."""
        return 1 if kernel.launches is None else kernel.launches

    def dispatch_us(self, kernel: KernelModel) -> float:
        """Returns what each launch of a kernel takes: nothing for a part of a function."""
        return 0.0 if kernel.function else self.launch_us

    def gain(self, saved_us: float) -> float | None:
        """Returns the factor on the time of a run if so much is saved; None if hardly any."""
        left = max(self.total_us - saved_us, 1e-3 * self.total_us)
        gain = self.total_us / left if left else 1.0
        return gain if gain >= MIN_GAIN else None

    def outermost(self, loop: str) -> str:
        """Returns the outermost loop around a loop, or the loop itself."""
        while loop in self.loops and self.loops[loop].parent:
            loop = self.loops[loop].parent
        return loop

    def within(self, loop: str) -> Iterator[KernelModel]:
        """Yields the kernels that run in a loop or a loop inside it."""
        for kernel in self.module.kernels:
            inner = kernel.loop
            while inner and inner != loop and inner in self.loops:
                inner = self.loops[inner].parent
            if inner == loop:
                yield kernel

    def random_share(self, kernel: KernelModel) -> float:
        """Returns how much of what a kernel computes is the making of random numbers, 0 to 1."""
        members = [m for m in self.members.get(kernel.name, ()) if m.opcode not in _NO_WORK]
        random = sum(is_random_name(m.opcode, m.op_name, kernel.emitter) for m in members)
        return random / len(members) if members else 0.0

    def makes_random_numbers(self, kernel: KernelModel) -> bool:
        """Whether random numbers are all that a kernel is for."""
        return self.random_share(kernel) >= _ONLY_RANDOM
