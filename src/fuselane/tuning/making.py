"""The module a candidate makes, and whether that is worth a run.

Fusing more never ends by itself: a kernel that holds everything keeps more values at once than
there are registers, and every value too many is stored and loaded again, as without fusing. So
modules with a fusion above a limit are refused, unless XLA's own has one as large. So are those of
many more kernels than XLA's own, which take minutes to compile where it has hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from fuselane.decisions import DecisionLog
from fuselane.errors import FuselaneError
from fuselane.explain.launches import find_launches
from fuselane.fusion.pipelines import Pipeline, parse_pipeline
from fuselane.fusion.registers import count_registers, most_registers
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import RefusedError
from fuselane.tuning.fingerprint import fingerprint

CPU_LIMIT: Final = 4
"""Live values per vector register: LLVM orders instructions better than the estimate does, and a
value that is stored and loaded again costs no more than one between two kernels."""

_MORE_KERNELS: Final = 64
"""Kernels that a module may have beyond twice those of XLA's own."""

GPU_LIMIT: Final = 255
"""Registers that a thread can have."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A module as it would run.

    Attributes:
        module: The module.
        own_us: Estimated microseconds of each kernel of Fuselane's in it, by the name of its call,
            which tells nothing about that by itself.
    """

    module: HloModule
    own_us: Mapping[str, float] = field(default_factory=dict)


def estimates(log: DecisionLog) -> dict[str, float]:
    """Returns what kernels of Fuselane's take by estimate, as `Made.own_us` has it."""
    fused = (entry for entry in log if entry.fused)
    return {entry.call: entry.decision.numbers["kernel_us"] for entry in fused}


@final
@dataclass(slots=True, kw_only=True)
class Maker:
    """Makes modules of one program.

    Attributes:
        xla: The serialized module as XLA fuses it.
        fuse: Returns the module as a pipeline fuses it; None stands for XLA's own fusions.
        max_registers: Most registers that a fusion may take.
        registers_of: Returns how many one takes.
    """

    xla: bytes
    fuse: Callable[[Pipeline | None], Made]
    max_registers: int
    registers_of: Callable[[HloInstruction], int] = lambda fusion: count_registers(fusion.to_apply)
    _xlas_most: int = field(default=-1)
    _xlas_kernels: int = field(default=-1)

    def make(self, candidate: Candidate) -> Made:
        """Returns the module a candidate makes.

        Raises:
            RefusedError: if it makes none, or one with too large a fusion.
        """
        if not candidate.fusion:
            return self.fuse(None)
        try:
            made = self.fuse(parse_pipeline(candidate.fusion))
        except FuselaneError as error:
            raise RefusedError(f"It makes no module: {error}") from error
        self._check_registers(made.module)
        self._check_kernels(made.module)
        return made

    def fingerprint(self, candidate: Candidate) -> str:
        """Returns what is equal for candidates that come to the same kernels."""
        module = self.make(candidate).module
        return " ".join([fingerprint(module), *map(str, candidate.compiler_options)])

    def _check_kernels(self, module: HloModule) -> None:
        if self._xlas_kernels < 0:
            self._xlas_kernels = len(find_launches(HloModule.from_bytes(self.xla)).kernels)
        count, limit = len(find_launches(module).kernels), 2 * self._xlas_kernels + _MORE_KERNELS
        if count > limit:
            raise RefusedError(
                f"It would make {count} kernels, where XLA makes {self._xlas_kernels}."
            )

    def _check_registers(self, module: HloModule) -> None:
        most, name = most_registers(module, self.registers_of)
        if most <= self.max_registers:
            return
        if self._xlas_most < 0:
            self._xlas_most = most_registers(HloModule.from_bytes(self.xla), self.registers_of)[0]
        if most > self._xlas_most:
            raise RefusedError(
                f"`{name}` would take {most} registers, more than {self.max_registers}."
            )
