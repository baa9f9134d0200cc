"""The whole compiler on one page: a serialized HLO module in, a changed one out.

    quick look    is there a `while` at all? most modules end here, after a search in their bytes,
                  unless they are to be fused anew
    parse         bytes to HLO objects
    take out      small loops leave the calls that XLA:CPU has put them into
    residuals     what one loop stacks for another that may as well compute it
    for each `while`, outermost first; the loops inside one that stays get their chance after it:
      glance      does XLA take long enough for it by estimate to look any further?
      form        normal form, lanes, streams, guards: a lane program, or a reason why not
      choose      how to lay it out on this machine, and whether that beats XLA by estimate
      emit        lane program to LLVM IR
      compile     LLVM IR to machine code, unless the kernel cache has it
      replace     the `while` becomes a custom call of the kernel; with `verify`, both stay
    put back      small loops that stay go back into such calls
    clean up      what follows behind kernels is fused as XLA would have, donated arguments are
                  protected, computations nobody calls any more go
    fuse          with the option `fusion`: another strategy than XLA's on all that is left
    write         HLO objects to bytes; a call that was to return at once still does

What happened to each loop goes into the decision log. A loop on which `form`, `emit` or `compile`
fails stays with XLA, with one warning per kind of failure; so does the whole module if anything
else fails (see `runtime.hook`). Where `fuse` fails, XLA's own fusions stay, and so do the kernels.
When `max_compile_s` is over (see `budget`), the loop at hand and those to come stay with XLA, and
what has been replaced stays replaced.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass, field, replace
from typing import Final, final

from fuselane import budget, collector
from fuselane.analysis.dispatch import is_asynchronous, remove_dispatch_mark
from fuselane.analysis.gain import FEW_TRIPS, Gain, check_duration
from fuselane.analysis.refusal import refuse
from fuselane.analysis.small_calls import is_small_call, is_small_loop
from fuselane.analysis.while_loops import compute_trip_count
from fuselane.backends.backend import Backend, pick
from fuselane.backends.cpu import CpuBackend
from fuselane.codegen.plan import Plan
from fuselane.config import Options
from fuselane.decisions import Decision, DecisionLog, LoopDecision, Reason
from fuselane.errors import OutOfTimeError, UnsupportedError
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.lane_kernels import LaneKernels
from fuselane.fusion.outline import Outlined
from fuselane.fusion.pipelines import Pipeline, refines
from fuselane.fusion.plan_fusion import complaint
from fuselane.fusion.remainder import fuse_remainder
from fuselane.fusion.running import apply
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify, verify_computation
from fuselane.lanes.dispatch import keep_asynchronous
from fuselane.lanes.donation import (
    copy_donated_arguments,
    count_donated_bytes,
    forget_donation,
    forgetting_us,
)
from fuselane.lanes.form import form
from fuselane.lanes.fused_decision import LEFT_OUT, describe
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.replace import Attributes, replace_loop
from fuselane.lanes.residuals import Residuals, find_residuals
from fuselane.lanes.small_calls import put_back_loops, take_out_loops
from fuselane.lanes.tupled import make_tupled, undo_tupled
from fuselane.lanes.unassigned import forget_layouts, has_layouts
from fuselane.lanes.verification import CheckCalls, is_reference, replace_and_check
from fuselane.runtime.ffi import TARGET
from fuselane.runtime.verify import CHECK_TARGET, check_attributes
from fuselane.runtime.warning import warn_once

_WHILE_FIELD: Final = b"\x12\x05while"
"""How the opcode of a `while` looks in a serialized HloInstructionProto: field 2, 5 bytes long."""

MAX_DONATED_BYTES: Final = 64 * 2**20
"""Donated arguments that may be copied for the sake of a kernel; see `lanes.donation`."""


def transform(
    data: bytes,
    options: Options,
    log: DecisionLog,
    backend: Backend | None = None,
    strategy: Pipeline | None = None,
) -> bytes | None:
    """Replaces the loops of a module that can run as kernels, and fuses the rest anew if asked to.

    Args:
        data: A serialized HloModuleProto, as XLA has it between fusion and scheduling.
        options: What the user set.
        log: Gets one decision per loop.
        backend: What the module is compiled for; by default this machine's CPU.
        strategy: The fusion passes that `options.fusion` stands for; None leaves XLA's fusions.
    Returns:
        The new module, or None if nothing was changed.
    Raises:
        VerificationError: if the bytes are no HLO module, or, with `options.verify_hlo`, if what
            was read or made breaks a rule of HLO.
        OutOfTimeError: if reading the module alone takes longer than `options.max_compile_s`.
    """
    has_loops = options.loops and _WHILE_FIELD in data
    if not has_loops and strategy is None:
        return None
    deadline_s = time.monotonic() + options.max_compile_s
    with collector.paused():
        with budget.until(deadline_s):
            module = HloModule.from_bytes(data)
        check(module, options)
        result: bytes | None = None
        loops = _Loops(module, options, log, backend or CpuBackend(options), deadline_s)
        if not (loops.backend.comes_after_layouts or has_layouts(module)):
            forget_layouts(module)
            loops.constrains_layouts = True
        if has_loops and loops.run():
            if loops.backend.comes_after_layouts:
                fuse_remainder(module)
            copy_donated_arguments(module)
            result = loops.write()
        return result if strategy is None else _fuse(loops, strategy) or result


def _fuse(loops: _Loops, strategy: Pipeline) -> bytes | None:
    """Fuses a module by another strategy than XLA's; None, and a warning, where that fails.

    None also if the strategy goes on from XLA's fusions and found nothing to do, or if XLA would
    forget that arguments are donated, and these are large, or many for what there is to be gained.
    """
    module = loops.module
    if leaves_donated(strategy, module):
        return None
    backend = loops.backend
    passes = strategy
    if isinstance(backend, CpuBackend):
        passes = _with_kernels(strategy, loops, backend)
    try:
        with budget.until(loops.deadline_s):
            steps = apply(module, passes)
            told = complaint(steps)
            if told:
                warn_once(told)
            if leaves_as_it_is(strategy, steps, module):
                return None
            copy_donated_arguments(module)
            forget_donation(module)
            return loops.write()
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".rstrip(": ")
        warn_once(f"Fuselane could not fuse {module.name} and left that to XLA: {detail}")
        return None


def leaves_donated(strategy: Pipeline, module: HloModule) -> bool:
    """Whether a strategy that goes on from XLA's fusions leaves a module for the sake of large
    arguments, of which XLA would forget that they are donated."""
    return refines(strategy) and count_donated_bytes(module) > MAX_DONATED_BYTES


def leaves_as_it_is(strategy: Pipeline, steps: FusionLog, module: HloModule) -> bool:
    """Whether a strategy that goes on from XLA's fusions did nothing to a module, or too little for
    XLA to forget that arguments are donated.

    What has no price pays: kernels of ours, for which that has been reckoned with, and single
    edges, which were measured.
    """
    made = [step.decision.numbers for step in steps if step.fusion]
    saved_us = sum(numbers.get("saved_us", math.inf) for numbers in made)
    return refines(strategy) and (not made or saved_us < forgetting_us(module))


def with_kernels(
    strategy: Pipeline, module: HloModule, options: Options, log: DecisionLog, backend: CpuBackend
) -> Pipeline:
    """Returns a strategy whose pass `lane-kernels` makes kernels of a module's code.

    Args:
        strategy: To be run on the module, within `options.max_compile_s` from now.
        module: Which module.
        options: What the user set.
        log: Gets a decision for each kernel.
        backend: Who makes them.
    """
    deadline_s = time.monotonic() + options.max_compile_s
    return _with_kernels(strategy, _Loops(module, options, log, backend, deadline_s), backend)


def _with_kernels(strategy: Pipeline, loops: _Loops, backend: CpuBackend) -> Pipeline:
    make_kernel = functools.partial(loops.replace_straight, backend)
    return tuple(
        replace(p, make_kernel=make_kernel) if isinstance(p, LaneKernels) else p for p in strategy
    )


def check(module: HloModule, options: Options) -> None:
    """Verifies a module if the user asked for it."""
    if options.verify_hlo or options.verify:
        verify(module)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where loops run.

    Attributes:
        is_compiled: Whether XLA makes them part of one function.
        around: The loops of that function around them, outermost first, that would be part of none
            any more, and run thunk by thunk, if there was a kernel in them.
    """

    is_compiled: bool = False
    around: tuple[HloInstruction, ...] = ()


@final
@dataclass(slots=True)
class _Loops:
    """The loops of one module on their way to kernels."""

    module: HloModule
    options: Options
    log: DecisionLog
    backend: Backend
    deadline_s: float
    residuals: dict[HloInstruction, Residuals] = field(default_factory=dict)
    left_out: dict[HloInstruction, int] = field(default_factory=dict)
    is_out_of_time: bool = False
    constrains_layouts: bool = False
    has_changed: bool = False
    was_asynchronous: bool | None = None
    kernel_us: float = 0.0

    def write(self) -> bytes:
        """Returns the module as bytes; one that XLA was to run in a thread of its own, so that the
        caller need not wait for it, with what makes it do so still."""
        module = self.module
        if self.was_asynchronous:
            keep_asynchronous(module, self.kernel_us)
        module.remove_unused_computations()
        check(module, self.options)
        data = module.to_bytes()
        remove_dispatch_mark(module)  # it may yet be fused anew
        return data

    def _add_time(self, kernel_us: float) -> None:
        """Takes note of a kernel that is to be added, and how the module runs without any."""
        if self.was_asynchronous is None:  # GPUs run all programs so
            is_cpu = self.backend.comes_after_layouts
            self.was_asynchronous = is_cpu and is_asynchronous(self.module)
        self.kernel_us += kernel_us

    def run(self) -> bool:
        """Visits the loops, outermost first; those inside a replaced one not at all.

        Returns whether any was replaced.
        """
        take_out_loops(self.module)
        seen: set[HloComputation] = set()
        stack = [(self.module.entry, _Place())]
        while stack and not self.is_out_of_time:
            computation, place = stack.pop()
            if computation not in seen:
                seen.add(computation)
                stack += self._visit_all(computation, place)
        put_back_loops(self.module)
        return self.has_changed

    def _visit_all(
        self, computation: HloComputation, place: _Place
    ) -> list[tuple[HloComputation, _Place]]:
        """Replaces the loops of a computation that can run as kernels.

        Args:
            computation: One whose instructions run one after the other.
            place: Where it runs.
        Returns:
            The computations that what stays calls, each with where it runs.
        """
        called = []
        for instruction in self._in_order(computation):
            if self.is_out_of_time:
                break
            if instruction.opcode not in _SEQUENTIAL_OPCODES or not instruction.computation:
                continue
            if is_reference(instruction) or is_small_call(instruction):
                continue
            own = replace(place, is_compiled=True) if is_small_loop(instruction) else place
            if instruction.opcode == "while" and self._replace_any(instruction, own):
                self.has_changed = True
                place = replace(place, around=())
            else:
                inside = own
                if instruction.opcode == "while" and own.is_compiled:
                    inside = replace(own, around=(*own.around, instruction))
                called += [(c, inside) for c in instruction.called_computations]
        return called

    def _opening_us(self, place: _Place) -> float:
        """Returns what each run of a loop takes longer if those around it are no function."""
        opening_us = 0.0
        for loop in place.around:
            whole_us, thunks_us = (
                self.backend.xla_step_us(loop, is_compiled=whole) for whole in (True, False)
            )
            opening_us /= compute_trip_count(loop) or 1
            opening_us += max(0.0, thunks_us - whole_us)
        return opening_us

    def _in_order(self, computation: HloComputation) -> list[HloInstruction]:
        """Returns a computation's instructions; loops first that may compute what others stack."""
        try:
            with budget.until(self.deadline_s):
                found = find_residuals(computation)
        except OutOfTimeError:  # the next loop says so
            found = {}
        self.residuals.update(found)
        return [*found, *(i for i in computation.instructions if i not in found)]

    def _replace_any(self, loop: HloInstruction, place: _Place) -> bool:
        """Replaces a loop of any structure."""
        tupled = make_tupled(loop)
        is_replaced = self._replace(tupled, place)
        if not is_replaced:
            undo_tupled(loop, tupled)
        elif loop.computation is not None:
            loop.computation.remove(loop)
        return is_replaced

    def _replace(self, loop: HloInstruction, place: _Place) -> bool:
        program: LaneProgram | None = None
        residuals = self.residuals.get(loop)
        try:
            with budget.until(self.deadline_s):
                self._check_duration(loop, place)
                program = form(self.module, loop, residuals)
                self._check_region(program)
                self._check_donation(loop)
                program, plan = pick(program, self.backend)
                gain = self._choose(loop, program, plan, place)
                call = self.backend.compile(program, plan)
                program = call.program
        except UnsupportedError as error:
            self._record(loop, program, error.decision)
            return False
        except OutOfTimeError as error:
            self.is_out_of_time = True
            self._record(loop, program, self._give_up(error))
            return False
        except Exception as error:
            self._record(loop, program, _failure(error))
            return False
        # Recorded before the loop is taken apart; a failure below leaves the whole module alone.
        numbers = {**gain.numbers(), **plan.numbers()}
        if loop in self.left_out:
            numbers[LEFT_OUT] = float(self.left_out[loop])
        if residuals is not None and program.num_recomputed:
            self.left_out[residuals.writer] = program.num_recomputed
        decision = describe(program, self._source(loop), numbers)
        self._record(loop, program, decision, call.key)
        is_counted = loop.computation is self.module.entry and program.trip_count is not None
        self._add_time(gain.kernel_us if is_counted else math.inf)
        if self.options.verify:
            checks = self._check_calls(plan)
            replace_and_check(self.module, loop, program, call.attributes, checks)
        else:
            replace_loop(
                loop,
                program,
                call.target,
                call.attributes,
                constrains_layouts=self.constrains_layouts,
            )
        return True

    def replace_straight(self, backend: CpuBackend, outlined: Outlined) -> Decision:
        """Replaces straight-line code, outlined as a loop of one step, if a kernel is worth it.

        Returns the decision, which names the call of the kernel. It is recorded only if there is
        one: XLA's kernels that stay are no loops.
        """
        loop = outlined.loop
        try:
            with budget.until(self.deadline_s):
                if self.options.verify:
                    raise refuse(Reason.UNSUPPORTED_STRUCTURE, loop, detail=_UNVERIFIED)
                self._check_donation(loop)
                xla_us = backend.xla_straight_us(outlined.members)
                if self.options.min_gain:
                    check_duration(loop, 1, xla_us)
                program = form(self.module, loop)
                self._check_region(program)
                plan = backend.plan(program)
                kernel_us = backend.straight_us(program, plan)
                gain = Gain(
                    trip_count=1,
                    xla_step_us=xla_us,
                    kernel_step_us=kernel_us,
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
        self._record(loop, call.program, decision, call.key)
        self._add_time(gain.kernel_us)
        made = replace_loop(loop, call.program, call.target, call.attributes)
        self.has_changed = True
        return replace(decision, instruction=made.name)

    def _check_calls(self, plan: Plan) -> CheckCalls:
        """Returns how to verify a loop, with kernels of single steps tiled as its own."""
        backend = CpuBackend(replace(self.options, tile_lanes=plan.tile_lanes))

        def compile_step(loop: HloInstruction) -> tuple[LaneProgram, Attributes] | None:
            try:
                call = backend.compile(*pick(form(self.module, loop), backend))
            except UnsupportedError:
                return None
            return call.program, call.attributes

        return CheckCalls(
            kernel_target=TARGET,
            check_target=CHECK_TARGET,
            attributes_of=check_attributes,
            compile_step=compile_step,
        )

    def _check_duration(self, loop: HloInstruction, place: _Place) -> None:
        """Refuses a loop that is over too soon, if XLA has counted its steps, before its form is
        looked for."""
        trip_count = compute_trip_count(loop)
        if trip_count is None or self.options.min_gain == 0:
            return
        step_us = self.backend.xla_step_us(loop, is_compiled=place.is_compiled)
        check_duration(loop, trip_count, step_us * trip_count)

    def _choose(
        self, loop: HloInstruction, program: LaneProgram, plan: Plan, place: _Place
    ) -> Gain:
        """Returns what a kernel gains by estimate; refuses a loop for which it is too little."""
        kernel_step_us, kernel_call_us = self.backend.kernel_us(program, plan)
        kernel_step_us /= program.iterations
        kernel_call_us += self._opening_us(place)
        if program.trip_count is None and place.around:
            kernel_step_us += kernel_call_us / FEW_TRIPS
        gain = Gain(
            trip_count=program.trip_count,
            xla_step_us=self.backend.xla_step_us(loop, is_compiled=place.is_compiled),
            kernel_step_us=kernel_step_us,
            kernel_call_us=kernel_call_us + self._forgetting_us(),
        )
        if not gain.is_worth(self.options.min_gain):
            raise gain.refusal(loop, program.obstacle)
        return gain

    def _forgetting_us(self) -> float:
        """Returns what it costs that XLA forgets what is donated: the first kernel's fault."""
        return 0.0 if self.has_changed else forgetting_us(self.module)

    def _check_region(self, program: LaneProgram) -> None:
        if self.options.verify_hlo or self.options.verify:
            for rival in filter(None, (program, program.rival)):
                for computation in reachable_computations([rival.region]):
                    verify_computation(computation)

    def _check_donation(self, loop: HloInstruction) -> None:
        """Refuses all loops of a module whose donated arguments are large."""
        size = count_donated_bytes(self.module)
        if size > MAX_DONATED_BYTES:
            detail = f"XLA would forget that {size / 2**20:,.0f} MiB of arguments are donated"
            raise refuse(Reason.UNSUPPORTED_STRUCTURE, loop, detail=detail)

    def _record(
        self,
        loop: HloInstruction,
        program: LaneProgram | None,
        decision: Decision,
        kernel: str = "",
    ) -> None:
        trip_count = program.trip_count if program else compute_trip_count(loop)
        entry = LoopDecision(
            module=self.module.name,
            name=loop.name,
            source=self._source(loop),
            trip_count=trip_count,
            lanes=program.num_lanes if program and program.has_lanes else None,
            decision=decision,
            kernel=kernel,
        )
        self.log.append(entry)

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


_UNVERIFIED: Final = "straight-line code is not verified while it runs"

_SEQUENTIAL_OPCODES: Final = frozenset({"while", "call", "conditional"})
"""Opcodes whose computations run as programs of their own, not element by element."""


def _failure(error: Exception) -> Decision:
    """Warns about a failure of ours and returns it as a decision."""
    detail = f"{type(error).__name__}: {error}".rstrip(": ")
    warn_once(f"Fuselane failed on a loop and left it to XLA: {detail}")
    return Reason.INTERNAL_ERROR.decide(detail=detail)
