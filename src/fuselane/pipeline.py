"""The whole compiler on one page: a serialized HLO module in, a changed one out.

    quick look    is there a `while` at all? most modules end here, after a search in their bytes,
                  unless they are to be fused anew
    brief loops   are all over before a kernel could pay, as those of random keys are? so, too, end
                  many modules, of which nothing but the message is read
    parse         message to HLO objects
    take out      small loops leave the calls that XLA:CPU has put them into
    for each `while`, outermost first, and before those that stack something for it; the loops
    inside one that stays get their chance after it (see `replacing`):
      run ahead   one that calls back or calls a library in some steps stays, and gets a loop
                  inside that does not
      glance      does XLA take long enough for it by estimate to look any further?
      residuals   what another loop stacks for it that it may as well compute
      form        normal form, lanes, streams, guards: a lane program, or a reason why not; of
                  those that one thread would run none, if its products alone take too long
      choose      how to lay it out on this machine, and whether that beats XLA by estimate
      compile     lane program to LLVM IR and that, in a thread of its own while the rest goes on,
                  to machine code, unless the kernel cache has it
      replace     the `while` becomes a custom call of the kernel; with `verify`, both stay
    put back      small loops that stay go back into such calls, if anything is written
    clean up      what follows behind kernels is fused as XLA would have, donated arguments are
                  protected, computations nobody calls any more go
    fuse          with the option `fusion`: another strategy than XLA's on all that is left
    write         HLO objects to bytes; a call that was to return at once still does

What happened to each loop goes into the decision log. A loop on which `form` or `compile` fails
stays with XLA, with one warning per kind of failure; so does the whole module if anything else
fails (see `runtime.hook`). Where `fuse` fails, XLA's own fusions stay, and so do the kernels.
When `max_compile_s` is over (see `budget`), the loop at hand and those to come stay with XLA, and
what has been replaced stays replaced.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fuselane import budget, collector, peek
from fuselane.analysis.brief_loops import find_brief_loops
from fuselane.analysis.dispatch import remove_dispatch_mark
from fuselane.analysis.gain import is_over_soon
from fuselane.analysis.small_calls import is_small_call, is_small_loop
from fuselane.backends.backend import Backend
from fuselane.backends.cpu import CpuBackend
from fuselane.config import Options
from fuselane.decisions import DecisionLog, LoopDecision
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.remainder import fuse_remainder
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule, read_message
from fuselane.hlo.proto import Message
from fuselane.hlo.verifier import verify
from fuselane.lanes.ahead import Ahead, forget_trip_count, insert_ahead, undo_ahead
from fuselane.lanes.checked_loop import is_reference
from fuselane.lanes.dispatch import keep_asynchronous
from fuselane.lanes.donation import (
    copy_donated_arguments,
    count_donated_bytes,
    forget_donation,
    forgetting_us,
)
from fuselane.lanes.residuals import reads_stacks
from fuselane.lanes.small_calls import put_back_loops, take_out_loops
from fuselane.lanes.tupled import make_tupled, undo_tupled
from fuselane.lanes.unassigned import forget_layouts, has_layouts
from fuselane.later import Later
from fuselane.replacing import MAX_DONATED_BYTES, Kernels, Place
from fuselane.runtime.warning import warn_once

if TYPE_CHECKING:
    from fuselane.fusion import lane_kernels, pipelines, plan_fusion, running
    from fuselane.fusion.pipelines import FusionPass, Pipeline
else:
    lane_kernels = Later("fuselane.fusion.lane_kernels")
    pipelines = Later("fuselane.fusion.pipelines")
    plan_fusion = Later("fuselane.fusion.plan_fusion")
    running = Later("fuselane.fusion.running")

_SEQUENTIAL_OPCODES: Final = frozenset({"while", "call", "conditional"})
"""Opcodes whose computations run as programs of their own, not element by element."""


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
    has_loops = options.loops and peek.has_loops(data)
    if not has_loops and strategy is None:
        return None
    with collector.paused():  # until after what is made in here is garbage
        return _transform(data, options, log, backend or CpuBackend(options), strategy, has_loops)


def _transform(
    data: bytes,
    options: Options,
    log: DecisionLog,
    backend: Backend,
    strategy: Pipeline | None,
    has_loops: bool,
) -> bytes | None:
    deadline = budget.Deadline.after(options.max_compile_s)
    message = read_message(data)
    if strategy is None and _leaves_brief_loops(message, options, log, backend):
        return None
    with budget.until(deadline):
        module = HloModule.from_proto(message)
    check(module, options)
    kernels = Kernels(module, options, log, backend, deadline)
    if not (backend.comes_after_layouts or has_layouts(module)):
        forget_layouts(module)
        kernels.constrains_layouts = True
    with kernels.all_or_none():
        result = _replace_all(kernels, goes_on=strategy is not None) if has_loops else None
    return result if strategy is None else _fuse(kernels, strategy) or result


def _leaves_brief_loops(
    message: Message, options: Options, log: DecisionLog, backend: Backend
) -> bool:
    """Leaves a module to XLA, and records why, if all its loops are over before a kernel could pay;
    returns whether it did."""
    looks_closer = options.verify or options.verify_hlo or options.min_gain == 0
    if looks_closer or not isinstance(backend, CpuBackend):
        return False
    brief = find_brief_loops(message, backend.costs)
    for decision in brief or ():
        log.append(decision)
    return brief is not None


def _replace_all(kernels: Kernels, *, goes_on: bool) -> bytes | None:
    """Replaces what loops of a module can run as kernels; None if there are none, and the module is
    then only fit for use if it `goes_on`."""
    module = kernels.module
    take_out_loops(module)
    _replace_loops(kernels)
    if kernels.has_any or goes_on:
        put_back_loops(module)
    if not kernels.has_any:
        return None
    if kernels.backend.comes_after_layouts:
        fuse_remainder(module)
    copy_donated_arguments(module)
    return _write(kernels)


def _replace_loops(kernels: Kernels) -> None:
    """Visits the loops of a module, outermost first; those inside a replaced one not at all."""
    seen: set[HloComputation] = set()
    stack = [(kernels.module.entry, Place())]
    while stack and not kernels.is_out_of_time:
        computation, place = stack.pop()
        if computation not in seen:
            seen.add(computation)
            stack += _visit(computation, place, kernels)


def _visit(
    computation: HloComputation, place: Place, kernels: Kernels
) -> list[tuple[HloComputation, Place]]:
    """Replaces the loops of a computation that can run as kernels.

    Args:
        computation: One whose instructions run one after the other.
        place: Where it runs.
        kernels: Makes them.
    Returns:
        The computations that what stays calls, each with where it runs.
    """
    called = []
    sequential = [i for i in computation.instructions if i.opcode in _SEQUENTIAL_OPCODES]
    sequential.sort(key=reads_stacks, reverse=True)  # they may compute what others stack
    for instruction in sequential:
        if kernels.is_out_of_time:
            break
        if not instruction.computation:
            continue
        if is_reference(instruction) or is_small_call(instruction):
            continue
        own = replace(place, is_compiled=True) if is_small_loop(instruction) else place
        if instruction.opcode == "while" and _replace_any(instruction, own, kernels):
            place = replace(place, around=())
        else:
            inside = own
            if instruction.opcode == "while" and own.is_compiled:
                inside = replace(own, around=(*own.around, instruction))
            called += [(c, inside) for c in instruction.called_computations]
    return called


def _replace_any(loop: HloInstruction, place: Place, kernels: Kernels) -> bool:
    """Replaces a loop of any structure; one with branches for XLA stays, and the loop that is put
    into it, to run ahead of them, is replaced."""
    ahead = kernels.find_ahead(loop)
    if ahead is not None:
        refusal = _replace_ahead(loop, ahead, place, kernels)
        if refusal is not None:
            kernels.log.append(refusal)
        return False
    tupled = make_tupled(loop)
    refusal = kernels.replace(tupled, place)
    if refusal is None:
        if loop.computation is not None:
            loop.computation.remove(loop)
        return True
    undo_tupled(loop, tupled)
    is_settled = kernels.is_out_of_time or is_over_soon(refusal)
    rare = None if is_settled else kernels.find_ahead(loop, rare=True)
    if rare is None or _replace_ahead(loop, rare, place, kernels) is not None:
        kernels.log.append(refusal)
    return False


def _replace_ahead(
    loop: HloInstruction, ahead: Ahead, place: Place, kernels: Kernels
) -> LoopDecision | None:
    """Puts a loop that runs ahead into another and replaces it; takes it out and says why, if it is
    not replaced."""
    inside = insert_ahead(loop, ahead)
    refusal = kernels.replace(inside, replace(place, ahead=ahead))
    if refusal is None:
        forget_trip_count(loop)
    else:
        undo_ahead(inside)
    return refusal


def _write(kernels: Kernels) -> bytes:
    """Returns a module as bytes; one that XLA was to run in a thread of its own, so that the caller
    need not wait for it, with what makes it do so still."""
    module = kernels.module
    if kernels.was_asynchronous:
        keep_asynchronous(module, kernels.total_us)
    module.remove_unused_computations()
    check(module, kernels.options)
    data = module.to_bytes()
    remove_dispatch_mark(module)  # it may yet be fused anew
    return data


def _fuse(kernels: Kernels, strategy: Pipeline) -> bytes | None:
    """Fuses a module by another strategy than XLA's; None, and a warning, where that fails.

    None also if the strategy goes on from XLA's fusions and found nothing to do, or if XLA would
    forget that arguments are donated, and these are large, or many for what there is to be gained.
    """
    module, backend = kernels.module, kernels.backend
    try:
        with kernels.all_or_none(), budget.until(kernels.deadline):
            if leaves_donated(strategy, module):
                return None
            passes = strategy
            if isinstance(backend, CpuBackend):
                passes = _with_kernels(strategy, kernels, backend)
            steps = running.apply(module, passes)
            told = plan_fusion.complaint(steps)
            if told:
                warn_once(told)
            if leaves_as_it_is(strategy, steps, module):
                return None
            copy_donated_arguments(module)
            forget_donation(module)
            return _write(kernels)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}".rstrip(": ")
        warn_once(f"Fuselane could not fuse {module.name} and left that to XLA: {detail}")
        return None


def leaves_donated(strategy: Pipeline, module: HloModule) -> bool:
    """Whether a strategy that goes on from XLA's fusions leaves a module for the sake of large
    arguments, of which XLA would forget that they are donated."""
    return pipelines.refines(strategy) and count_donated_bytes(module) > MAX_DONATED_BYTES


def leaves_as_it_is(strategy: Pipeline, steps: FusionLog, module: HloModule) -> bool:
    """Whether a strategy that goes on from XLA's fusions did nothing to a module, or too little for
    XLA to forget that arguments are donated.

    What has no price pays: kernels of ours, for which that has been reckoned with, and single
    edges, which were measured.
    """
    made = [step.decision.numbers for step in steps if step.fusion]
    saved_us = sum(numbers.get("saved_us", math.inf) for numbers in made)
    return pipelines.refines(strategy) and (not made or saved_us < forgetting_us(module))


def with_kernels(
    strategy: Pipeline,
    module: HloModule,
    options: Options,
    log: DecisionLog,
    backend: CpuBackend,
) -> Pipeline:
    """Returns a strategy whose pass `lane-kernels` makes kernels of a module's code.

    Args:
        strategy: To be run on the module, within `options.max_compile_s` from now.
        module: Which module.
        options: What the user set.
        log: Gets a decision for each kernel.
        backend: Who makes them.
    """
    deadline = budget.Deadline.after(options.max_compile_s)
    return _with_kernels(strategy, Kernels(module, options, log, backend, deadline), backend)


def _with_kernels(strategy: Pipeline, kernels: Kernels, backend: CpuBackend) -> Pipeline:
    make_kernel = functools.partial(kernels.replace_straight, backend)

    def change(fusion_pass: FusionPass) -> FusionPass:
        if isinstance(fusion_pass, lane_kernels.LaneKernels):
            return replace(fusion_pass, make_kernel=make_kernel)
        return fusion_pass

    return pipelines.with_each(change, strategy)


def check(module: HloModule, options: Options) -> None:
    """Verifies a module if the user asked for it."""
    if options.verify_hlo or options.verify:
        verify(module)
