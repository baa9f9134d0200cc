"""The kernels that take the place of a module's loops, each made stage by stage.

    glance      does XLA take long enough for the loop by estimate to look any further?
    residuals   what another loop stacks for it that it may as well compute
    form        normal form, lanes, streams, guards: a lane program, or a reason why not; of those
                that one thread would run none, if its products alone take too long
    choose      how to lay it out on this machine, and whether that beats XLA by estimate
    emit        lane program to LLVM IR
    compile     LLVM IR to machine code, unless the kernel cache has it
    replace     the `while` becomes a custom call of the kernel; with `verify`, both stay

Straight-line code, outlined as a loop of one step, goes the same way. What became of each loop goes
into the decision log; where a stage fails it stays with XLA, with one warning per kind of failure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar, final

from fuselane import budget
from fuselane.analysis.dispatch import is_asynchronous
from fuselane.analysis.gain import FEW_TRIPS, Gain, check_duration
from fuselane.analysis.refusal import refuse
from fuselane.analysis.while_loops import compute_trip_count
from fuselane.backends.backend import Backend, Planned, pick
from fuselane.backends.cpu import CpuBackend
from fuselane.codegen.plan import Plan
from fuselane.config import Options
from fuselane.decisions import Decision, DecisionLog, LoopDecision, Reason
from fuselane.errors import OutOfTimeError, UnsupportedError, VerificationError
from fuselane.hlo.computation import reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify_computation
from fuselane.lanes.ahead import Ahead, find_ahead
from fuselane.lanes.checked_loop import CheckCalls
from fuselane.lanes.donation import count_donated_bytes, forgetting_us
from fuselane.lanes.form import form
from fuselane.lanes.fused_decision import LEFT_OUT, describe
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.replace import Attributes, replace_loop
from fuselane.lanes.residuals import Residuals, find_residuals
from fuselane.lanes.unassigned import has_given_layouts
from fuselane.lanes.verification import replace_and_check
from fuselane.runtime.verify import CHECK_TARGET, check_attributes
from fuselane.runtime.warning import warn_once

if TYPE_CHECKING:
    from fuselane.fusion.outline import Outlined

MAX_DONATED_BYTES: Final = 64 * 2**20
"""Donated arguments that may be copied for the sake of a kernel; see `lanes.donation`."""

_Found = TypeVar("_Found")

StepTime = Callable[[], float]
"""Estimates XLA's time for one iteration of a loop, in microseconds, the first time it is asked."""

_UNVERIFIED: Final = "straight-line code is not verified while it runs"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where loops run.

    Attributes:
        is_compiled: Whether XLA makes them part of one function.
        around: The loops of that function around them, outermost first, that would be part of none
            any more, and run thunk by thunk, if there was a kernel in them.
        ahead: If they run ahead of the steps of another: of which.
    """

    is_compiled: bool = False
    ahead: Ahead | None = None
    around: tuple[HloInstruction, ...] = ()


@final
@dataclass(slots=True)
class Kernels:
    """Makes the kernels of one module, and keeps account of them.

    Attributes:
        module: The module, in which they take the place of loops.
        options: What the user set.
        log: Gets one decision per loop.
        backend: What the module is compiled for.
        deadline: When the time to compile is over.
        constrains_layouts: Whether calls fix the layouts of what they take and make.
        has_any: Whether there is a kernel.
        is_out_of_time: Whether the time was over before a loop was done.
        was_asynchronous: Whether XLA was to run the module in a thread of its own; None before the
            first kernel.
        total_us: How long the kernels run by estimate; infinite where that is not known.
    """

    module: HloModule
    options: Options
    log: DecisionLog
    backend: Backend
    deadline: budget.Deadline
    constrains_layouts: bool = False
    has_any: bool = False
    is_out_of_time: bool = False
    was_asynchronous: bool | None = None
    total_us: float = 0.0
    _left_out: dict[HloInstruction, int] = field(default_factory=dict)
    _normal_forms: dict[HloInstruction, NormalLoop] = field(default_factory=dict)

    def replace(self, loop: HloInstruction, place: Place) -> LoopDecision | None:
        """Replaces a `while` of arrays by a kernel, if one can be made and is worth it.

        Args:
            loop: One that carries a tuple.
            place: Where it runs.
        Returns:
            None if it did; else why not, which is not recorded yet.
        """
        program: LaneProgram | None = None

        @functools.cache
        def xla_step_us() -> float:
            return self.backend.xla_step_us(loop, is_compiled=place.is_compiled)

        try:
            with budget.until(self.deadline):
                self._glance(loop, xla_step_us)
                residuals = self._search(lambda: find_residuals(loop, self._normal_forms))
                program = self._form(loop, residuals, xla_step_us)
                self._check_donation(loop)
                self._check_layouts(loop)
                planned = pick(program, self.backend)
                program = planned.program
                gain = self._check_gain(loop, planned, place, xla_step_us)
                call = self.backend.compile(program, planned.plan)
                program = call.program
        except UnsupportedError as error:
            return self._entry(loop, program, error.decision)
        except OutOfTimeError as error:
            self.is_out_of_time = True
            return self._entry(loop, program, self._give_up(error))
        except Exception as error:
            return self._entry(loop, program, _failure(error))
        # Recorded before the loop is taken apart; a failure below leaves all of them to XLA.
        numbers = {**gain.numbers(), **planned.plan.numbers()}
        if loop in self._left_out:
            numbers[LEFT_OUT] = float(self._left_out[loop])
        if residuals is not None and program.num_recomputed:
            self._left_out[residuals.writer] = program.num_recomputed
        decision = describe(program, self._source(loop), numbers, ahead=place.ahead)
        self.log.append(self._entry(loop, program, decision, call.key))
        is_counted = loop.computation is self.module.entry and program.trip_count is not None
        self._add(gain.kernel_us if is_counted else math.inf)
        if self.options.verify:
            checks = self._check_calls(planned.plan, call.target)
            replace_and_check(self.module, loop, program, call.attributes, checks)
        else:
            replace_loop(
                loop,
                program,
                call.target,
                call.attributes,
                constrains_layouts=self.constrains_layouts,
            )
        return None

    def replace_straight(self, backend: CpuBackend, outlined: Outlined) -> Decision:
        """Replaces straight-line code, outlined as a loop of one step, if a kernel is worth it.

        Returns the decision, which names the call of the kernel. It is recorded only if there is
        one: XLA's kernels that stay are no loops.
        """
        loop = outlined.loop
        try:
            with budget.until(self.deadline):
                if self.options.verify:
                    raise refuse(Reason.UNSUPPORTED_STRUCTURE, loop, detail=_UNVERIFIED)
                self._check_donation(loop)
                self._check_layouts(loop)
                xla_us = backend.xla_straight_us(outlined.members)
                if self.options.min_gain:
                    check_duration(loop, 1, xla_us)
                program = self._form(loop)
                plan = backend.plan(program)
                gain = Gain(
                    trip_count=1,
                    xla_step_us=xla_us,
                    kernel_step_us=backend.straight_us(program, plan),
                    kernel_call_us=self._forgetting_us(),
                )
                if not gain.is_worth(self.options.min_gain):
                    raise gain.refusal(loop, None)
                call = backend.compile(program, plan)
        except UnsupportedError as error:
            return error.decision
        except OutOfTimeError as error:
            return self._give_up(error)
        except Exception as error:
            return _failure(error)
        decision = describe(call.program, self._source(loop), gain.numbers())
        count = sum(member.opcode == "fusion" for member in outlined.members)
        sentence = f"Straight-line code, {count} fusions of XLA's, runs as one native kernel."
        decision = replace(decision, sentence=sentence)
        self.log.append(self._entry(loop, call.program, decision, call.key))
        self._add(gain.kernel_us)
        made = replace_loop(loop, call.program, call.target, call.attributes)
        return replace(decision, instruction=made.name)

    def find_ahead(self, loop: HloInstruction, *, rare: bool = False) -> Ahead | None:
        """Returns how a loop can run ahead of what of it stays with XLA; see `lanes.ahead`.

        None also where XLA has yet to place copies, and where its loops have to stay beside
        kernels.
        """
        if not self.backend.comes_after_layouts or self.options.verify:
            return None
        return self._search(lambda: find_ahead(loop, rare=rare))

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Keeps the decisions of a `with` block back until it is done; if it fails, what it was to
        replace stays with XLA, and the log says so."""
        log, self.log = self.log, DecisionLog()
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            taken, self.log = self.log, log
            for entry in taken:
                log.append(entry if failure is None else _undone(entry, failure))

    # Stages.

    def _glance(self, loop: HloInstruction, xla_step_us: StepTime) -> None:
        """Refuses a loop that is over too soon, if XLA has counted its steps, before its form is
        looked for."""
        trip_count = compute_trip_count(loop)
        if trip_count is not None and self.options.min_gain:
            check_duration(loop, trip_count, xla_step_us() * trip_count)

    def _form(
        self,
        loop: HloInstruction,
        residuals: Residuals | None = None,
        xla_step_us: StepTime | None = None,
    ) -> LaneProgram:
        """Returns the lane program of a loop, verified if the user asked for it.

        None is looked for that one thread would run, where its products alone take too long beside
        XLA's time.
        """
        too_little: Gain | None = None

        def is_for_one_thread(normal: NormalLoop) -> bool:
            nonlocal too_little
            too_little = self._bound_gain(loop, normal, xla_step_us)
            return too_little is None

        try:
            program = form(
                self.module,
                loop,
                residuals,
                is_for_one_thread=is_for_one_thread,
                normal=self._normal_forms.pop(loop, None),
            )
        except UnsupportedError as error:
            if too_little is None:
                raise
            raise UnsupportedError(replace(error.decision, numbers=too_little.numbers())) from None
        if self.options.verify_hlo or self.options.verify:
            for rival in filter(None, (program, program.rival)):
                for computation in reachable_computations([rival.region]):
                    verify_computation(computation)
        return program

    def _bound_gain(
        self, loop: HloInstruction, normal: NormalLoop, xla_step_us: StepTime | None
    ) -> Gain | None:
        """Returns more than a kernel of one thread can gain if that is too little, else None."""
        least_us = self.backend.least_us(normal.loop)
        if least_us == 0 or xla_step_us is None or self.options.min_gain == 0:
            return None
        highest = Gain(
            trip_count=compute_trip_count(loop),
            xla_step_us=xla_step_us(),
            kernel_step_us=least_us,
            kernel_call_us=0.0,
        )
        return highest if highest.ratio < self.options.min_gain else None

    def _check_donation(self, loop: HloInstruction) -> None:
        """Refuses all loops of a module whose donated arguments are large."""
        size = count_donated_bytes(self.module)
        if size > MAX_DONATED_BYTES:
            detail = f"XLA would forget that {size / 2**20:,.0f} MiB of arguments are donated"
            raise refuse(Reason.UNSUPPORTED_STRUCTURE, loop, detail=detail)

    def _check_layouts(self, loop: HloInstruction) -> None:
        """Refuses all loops of a module that asks for an order in memory before XLA has assigned
        any: of a module that a hook returns, XLA:GPU takes all orders for row-major (seen with JAX
        0.11.2 on an H100)."""
        if not self.backend.comes_after_layouts and has_given_layouts(self.module):
            detail = "XLA would forget in which order arguments and results lie in memory"
            raise refuse(Reason.UNSUPPORTED_STRUCTURE, loop, detail=detail)

    def _check_gain(
        self, loop: HloInstruction, planned: Planned, place: Place, xla_step_us: StepTime
    ) -> Gain:
        """Returns what a kernel gains by estimate; refuses a loop for which it is too little."""
        program = planned.program
        step_us = planned.step_us / program.iterations
        call_us = planned.call_us + self._opening_us(place)
        if program.trip_count is None and (place.around or place.ahead):
            step_us += call_us / (place.ahead.quiet_steps if place.ahead else FEW_TRIPS)
        gain = Gain(
            trip_count=program.trip_count,
            xla_step_us=xla_step_us(),
            kernel_step_us=step_us,
            kernel_call_us=call_us + self._forgetting_us(),
            spilled=planned.plan.gpu.spilled if planned.plan.gpu else 0.0,
        )
        if not gain.is_worth(self.options.min_gain):
            raise gain.refusal(loop, program.obstacle)
        return gain

    def _opening_us(self, place: Place) -> float:
        """Returns what each run of a loop takes longer if those around it are no function."""
        opening_us = 0.0
        for loop in place.around:
            whole_us, thunks_us = (
                self.backend.xla_step_us(loop, is_compiled=whole) for whole in (True, False)
            )
            opening_us /= compute_trip_count(loop) or 1
            opening_us += max(0.0, thunks_us - whole_us)
        return opening_us

    def _forgetting_us(self) -> float:
        """Returns what it costs that XLA forgets what is donated: the first kernel's fault."""
        return 0.0 if self.has_any else forgetting_us(self.module)

    def _check_calls(self, plan: Plan, kernel_target: str) -> CheckCalls:
        """Returns how to verify a loop, with kernels of single steps tiled as its own."""
        backend = CpuBackend(replace(self.options, tile_lanes=plan.tile_lanes))

        def compile_step(loop: HloInstruction) -> tuple[LaneProgram, Attributes] | None:
            try:
                planned = pick(form(self.module, loop), backend)
                call = backend.compile(planned.program, planned.plan)
            except UnsupportedError:
                return None
            return call.program, call.attributes

        return CheckCalls(
            kernel_target=kernel_target,
            check_target=CHECK_TARGET,
            attributes_of=check_attributes,
            compile_step=compile_step,
        )

    def _search(self, search: Callable[[], _Found]) -> _Found | None:
        """Returns what a search finds that changes nothing.

        None where it fails, where time is over and where a loop can't be looked at; of the last two
        it is said when the loop is replaced.
        """
        try:
            with budget.until(self.deadline):
                return search()
        except (OutOfTimeError, VerificationError):
            return None
        except Exception as error:
            _failure(error)
            return None

    # The account.

    def _add(self, kernel_us: float) -> None:
        """Counts a kernel that is to be added, and notes how the module runs without any."""
        if self.was_asynchronous is None:  # GPUs run all programs so
            is_cpu = self.backend.comes_after_layouts
            self.was_asynchronous = is_cpu and is_asynchronous(self.module)
        self.total_us += kernel_us
        self.has_any = True
        self._normal_forms.clear()  # loops change with what is around them

    def _entry(
        self,
        loop: HloInstruction,
        program: LaneProgram | None,
        decision: Decision,
        kernel: str = "",
    ) -> LoopDecision:
        """Returns what the log is to say of a loop."""
        trip_count = program.trip_count if program else None
        if program is None and decision.reason is not Reason.INTERNAL_ERROR:
            trip_count = compute_trip_count(loop)  # else it may be what failed
        return LoopDecision(
            module=self.module.name,
            name=loop.name,
            source=self._source(loop),
            trip_count=trip_count,
            lanes=program.num_lanes if program and program.has_lanes else None,
            decision=decision,
            kernel=kernel,
        )

    def _give_up(self, error: OutOfTimeError) -> Decision:
        """Warns that the time is over and returns it as a decision."""
        seconds, detail = f"{self.options.max_compile_s:g}", str(error).rstrip(".")
        warn_once(
            f"Fuselane gave up on {self.module.name} after {seconds} s and left what remains of"
            " it to XLA; the option max_compile_s allows more."
        )
        return Reason.OUT_OF_TIME.decide(seconds=seconds, detail=detail)

    def _source(self, loop: HloInstruction) -> str:
        line = self.module.source(loop)
        return "" if line is None else str(line)


def _failure(error: Exception) -> Decision:
    """Warns about a failure of ours and returns it as a decision."""
    detail = _describe(error)
    warn_once(f"Fuselane failed on a loop and left to XLA what it could not do: {detail}")
    return Reason.INTERNAL_ERROR.decide(detail=detail)


def _undone(entry: LoopDecision, error: BaseException) -> LoopDecision:
    """Returns what the log is to say of a loop when all that was replaced stays with XLA."""
    if not entry.fused:
        return entry
    decision = Reason.INTERNAL_ERROR.decide(detail=_describe(error))
    return replace(entry, decision=decision, kernel="")


def _describe(error: BaseException) -> str:
    """Returns an exception's type and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": ^")
