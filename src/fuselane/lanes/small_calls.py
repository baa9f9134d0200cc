"""Loops that XLA:CPU has put into a call of their own.

XLA compiles a loop over little data into one function: before it reaches us it has become

    %call = call(%tuple), to_apply=%loop, frontend_attributes={xla_cpu_small_call="true"}
    %loop: %p = parameter(0)   ROOT %w = while(%p), ...

A kernel's custom call cannot be compiled into such a function, and the loop's initial values are
outside. So the loop is taken out to have a try, and put back if it stays with XLA.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction

_ATTRIBUTE: Final = "xla_cpu_small_call"


def is_small_call(instruction: HloInstruction) -> bool:
    """Whether an instruction calls a computation that XLA compiles into one function."""
    return (
        instruction.opcode == "call"
        and instruction.frontend_attributes.get(_ATTRIBUTE, "").lower() == "true"
    )


def take_out_loop(call: HloInstruction) -> HloInstruction | None:
    """Puts the loop that a small call consists of in front of the call, which loses all its users.

    Returns:
        The new `while`, with the name of the one in the call; None, and nothing is changed, if the
        call is more than a loop.
    """
    loop = call.to_apply.root
    parameters = call.to_apply.parameters
    if call.computation is None or loop.opcode != "while" or loop.operands != parameters:
        return None
    outside = call.computation.add(loop.clone(call.operands), before=call)
    outside.name = loop.name
    call.move_control_edges_to(outside)
    call.replace_all_uses_with(outside)
    return outside


def put_back_loop(call: HloInstruction, loop: HloInstruction) -> None:
    """Undoes `take_out_loop`."""
    loop.move_control_edges_to(call)
    loop.replace_all_uses_with(call)
    if loop.computation is not None:
        loop.computation.remove(loop)
