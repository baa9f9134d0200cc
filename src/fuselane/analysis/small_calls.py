"""Loops that XLA:CPU compiles into one function each, instead of running them thunk by thunk.

XLA marks them before it shows us a module. Until JAX 0.11 they are those over little data; JAX 0.12
takes nearly every loop for one, if it calls no library, sorts nothing and scatters nothing:

    %call = call(%tuple), to_apply=%loop, frontend_attributes={xla_cpu_small_call="true"}
    %loop: %p = parameter(0)   ROOT %w = while(%p), ...

Source: XLA service/cpu/small_while_loop_hoisting_pass.cc.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.proto import Message

SMALL_CALL: Final = "xla_cpu_small_call"
"""The front-end attribute of such a call; of a loop while it is outside (`lanes.small_calls`)."""


def is_small_call(instruction: HloInstruction) -> bool:
    """Whether an instruction calls a computation that XLA compiles into one function."""
    return instruction.opcode == "call" and is_marked(instruction.origin)


def is_small_loop(instruction: HloInstruction) -> bool:
    """Whether an instruction is a loop that was taken out of such a call."""
    return instruction.opcode == "while" and is_marked(instruction.origin)


def is_marked(message: Message) -> bool:
    """Whether the HloInstructionProto of a call or loop has XLA's mark of a small call."""
    attributes = message.frontend_attributes.map
    return any(a.key == SMALL_CALL and a.value.lower() == "true" for a in attributes)
