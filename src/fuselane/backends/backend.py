"""What the compiler asks of a kind of processor, between a lane program and its custom call."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, final

from fuselane.codegen.plan import Plan
from fuselane.errors import UnsupportedError
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.replace import Attributes

_MIN_RIVAL_GAIN: Final = 1.2
"""How much faster a rival has to be by estimate. Where both were nearly alike it was slower: a
matrix that it read by columns, 256 to 512 floats each, took 1.2 to 1.5 times as long as one row
after the other, and of 64 in BF16, for 0.88 of the time by estimate, 1.75 times."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """A compiled kernel as the custom call that runs it.

    Attributes:
        program: The lane program, with what the call has to know of its kernel.
        target: Custom call target.
        attributes: The call's attributes.
        key: Content hash of the kernel.
    """

    program: LaneProgram
    target: str
    attributes: Attributes
    key: str


class Backend(Protocol):
    """One kind of processor, with the user's options.

    Attributes:
        comes_after_layouts: Whether modules always have their layouts when XLA shows them.
    """

    comes_after_layouts: ClassVar[bool]

    def xla_step_us(self, loop: HloInstruction, *, is_compiled: bool) -> float:
        """Returns XLA's estimated time for one iteration of a `while`, in microseconds.

        Args:
            loop: As XLA would run it.
            is_compiled: Whether XLA compiles the whole loop to one function.
        """
        ...

    def least_us(self, loop: HloInstruction) -> float:
        """Returns less than one iteration takes any kernel that runs on one thread; 0 if nobody
        knows."""
        ...

    def plan(self, program: LaneProgram) -> Plan:
        """Returns how a kernel lays out its work."""
        ...

    def kernel_us(self, program: LaneProgram, plan: Plan) -> tuple[float, float]:
        """Returns a kernel's estimated times: of one iteration, and of a call besides."""
        ...

    def compile(self, program: LaneProgram, plan: Plan) -> KernelCall:
        """Returns the kernel as machine code, ready to be called.

        Raises:
            UnsupportedError: if the processor can't run it.
            OutOfTimeError: if compiling would probably take longer than there is time.
        """
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A lane program and how a kernel lays it out.

    Attributes:
        program: The program.
        plan: The layout.
        step_us: How long one iteration takes by estimate.
        call_us: And a call besides.
    """

    program: LaneProgram
    plan: Plan
    step_us: float
    call_us: float


def pick(program: LaneProgram, backend: Backend) -> Planned:
    """Returns the program of a loop, or its rival if that takes clearly less time by estimate."""
    planned = _plan(program, backend)
    if program.rival is None:
        return planned
    with contextlib.suppress(UnsupportedError):
        rival = _plan(program.rival, backend)
        return rival if rival.step_us * _MIN_RIVAL_GAIN < planned.step_us else planned
    return planned


def _plan(program: LaneProgram, backend: Backend) -> Planned:
    plan = backend.plan(program)
    step_us, call_us = backend.kernel_us(program, plan)
    return Planned(program=program, plan=plan, step_us=step_us, call_us=call_us)
