"""Takes loops out of the calls that XLA:CPU has put them into, and puts back what stays with XLA.

Before                                          Between the two
    %c = call(%t), to_apply=%loop,                  %w = while(%t), ...,
        frontend_attributes={                           frontend_attributes={
        xla_cpu_small_call="true"}                      xla_cpu_small_call="true"}
    %loop: ROOT %w = while(%p), ...

XLA compiles such a call into one function; see `analysis.small_calls`. In it a loop is out of
sight: what it starts from, and the loops before and after it, are outside. And a kernel cannot be
called in such a function, so a loop with a kernel in it stays outside.
"""

from __future__ import annotations

from fuselane.analysis.small_calls import SMALL_CALL, is_small_call, is_small_loop
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule


def take_out_loops(module: HloModule) -> None:
    """Puts each loop of a module that a small call consists of in the place of the call.

    The loop keeps its name, and has the attribute that the call had. Calls of more than a loop are
    left alone.
    """
    calls = [i for c in module.computations for i in c.instructions if is_small_call(i)]
    loops = [call for call in calls if _is_loop(call.to_apply)]
    for call in loops:
        call.become(call.to_apply.root)
        call.proto.frontend_attributes.map.add(key=SMALL_CALL, value="true")
    if loops:
        module.remove_unused_computations()


def _is_loop(callee: HloComputation) -> bool:
    return callee.root.opcode == "while" and callee.root.operands == callee.parameters


def put_back_loops(module: HloModule) -> None:
    """Puts the loops of a module that `take_out_loops` took out back, each into a call of its own;
    those that hold a kernel stay."""
    loops = [i for c in module.computations for i in c.instructions if is_small_loop(i)]
    for loop in loops:
        assert loop.computation is not None, "it is in the module"
        _remove_mark(loop)
        if not _holds_kernel(loop):
            _put_back(module, loop.computation, loop)


def _put_back(module: HloModule, computation: HloComputation, loop: HloInstruction) -> None:
    callee = HloComputation.create(f"{loop.name}.small")
    (operand,) = loop.operands
    parameter = callee.add(HloInstruction.parameter(0, operand.shape, operand.name))
    inside = callee.root = callee.add(loop.clone([parameter]))
    call = make_small_call(operand, module.add(callee), loop)
    _take_place(computation.add(call, before=loop), loop)
    inside.name = loop.name


def make_small_call(
    operand: HloInstruction, callee: HloComputation, origin: HloInstruction
) -> HloInstruction:
    """Returns a call, in no computation yet, that XLA compiles into one function.

    Args:
        operand: The only argument.
        callee: What is called.
        origin: The loop it is there for, of which it gets the place in the user's program.
    """
    call = HloInstruction.create(
        "call",
        callee.root.shape,
        [operand],
        called_computations=[callee],
        metadata=origin.metadata,
    )
    call.proto.frontend_attributes.map.add(key=SMALL_CALL, value="true")
    return call


def _take_place(new: HloInstruction, old: HloInstruction) -> None:
    """Gives `new` the users and control edges of `old`, which goes."""
    old.move_control_edges_to(new)
    old.replace_all_uses_with(new)
    if old.computation is not None:
        old.computation.remove(old)


def _holds_kernel(loop: HloInstruction) -> bool:
    """Whether there is a custom call in a loop; XLA puts none into a small call."""
    return any(
        instruction.opcode == "custom-call"
        for computation in reachable_computations(loop.called_computations)
        for instruction in computation.instructions
    )


def _remove_mark(loop: HloInstruction) -> None:
    marks = loop.proto.frontend_attributes.map
    del marks[next(n for n, mark in enumerate(marks) if mark.key == SMALL_CALL)]
