"""Donated arguments of modules that we change.

Where an argument is donated, XLA has left out the copies that would keep it whole: a loop may
update it in place. But when a hook returns a changed module, XLA up to jaxlib 0.10.2 forgets which
arguments were donated, and the caller keeps them: they must then not be written to.

Before                                         After
    %p = f32[8] parameter(0)                       %p = f32[8] parameter(0)
    %t = tuple(%i, %p)                             %c = f32[8] copy(%p)
                                                   %t = tuple(%i, %c)

Since JAX 0.11 XLA remembers: there the copies are only superfluous, unless fusions were changed,
too (see `forget_donation`).
"""

from __future__ import annotations

from typing import Final

from fuselane.analysis.opcodes import UPDATING_OPCODES
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

# Their result lies in the buffer of an operand, whatever XLA finds out about who else reads it.
_SHARING_OPCODES: Final = frozenset(
    {
        "add-dependency",
        "async-start",
        "bitcast",
        "call",
        "conditional",
        "copy-start",
        "domain",
        "get-tuple-element",
        "opt-barrier",
        "tuple",
        "while",
    }
)

_WRITING_OPCODES: Final = UPDATING_OPCODES | {"set-dimension-size"}
"""Their result lies where their first operand does, or for scatters where each of the first ones
does, alone or in a fusion. Source: XLA's HloDataflowAnalysis::GetInPlaceInputOutputPairs."""

_MOVED_OPCODES: Final = frozenset({"bitcast", "convert", "copy", "reshape", "transpose"})

_FORGETTING_US: Final = 1.0
"""For an argument: a result needs memory of its own, and the argument's is given back. As measured
for Adam with 600 arrays of 4 KB donated: 0.9 to 1.2 microseconds."""


def count_donated_bytes(module: HloModule) -> int:
    """Returns the size of the arguments whose memory is given to results."""
    return sum(parameter.shape.byte_size for parameter in _donated(module))


def forgetting_us(module: HloModule) -> float:
    """Returns what each run takes longer, in microseconds, if XLA forgets what is donated."""
    return _FORGETTING_US * len(_donated(module))


def copy_donated_arguments(module: HloModule) -> None:
    """Gives everything that may write to a donated argument a copy of it instead."""
    instructions = module.entry.instructions
    for parameter in filter(_is_endangered, _donated(module)):
        name = f"copy.{parameter.name}"
        copy = HloInstruction.create("copy", parameter.shape, [parameter], name=name)
        following = instructions[instructions.index(parameter) + 1 :]
        module.entry.add(copy, before=following[0] if following else None)
        parameter.replace_all_uses_with(copy)


def forget_donation(module: HloModule) -> None:
    """Lets no result lie in an argument's memory, where XLA has not forgotten about that anyway.

    Since JAX 0.11 XLA remembers, for all that a hook returns. It had put copies where a result
    would be written while its argument is still read; other fusions read elsewhere, or have taken
    such a copy in.
    """
    module.proto.ClearField("input_output_alias")


def _donated(module: HloModule) -> list[HloInstruction]:
    numbers = {entry.parameter_number for entry in module.proto.input_output_alias.entries}
    return [module.entry.parameters[number] for number in sorted(numbers)]


def _is_endangered(parameter: HloInstruction) -> bool:
    """Whether a parameter may be written to, or returned, where it is."""
    return parameter.is_root or any(
        user.opcode in _SHARING_OPCODES
        or user.proto.output_operand_aliasing
        or _is_written(parameter, user)
        for user in parameter.users
    )


def _is_written(value: HloInstruction, user: HloInstruction) -> bool:
    """Whether a user's result may lie where a value does, some elements of it changed."""
    if user.opcode in _WRITING_OPCODES:
        return value in user.operands
    if user.opcode != "fusion":
        return False
    inside = user.called_computations[0]
    places = [k for k, operand in enumerate(user.operands) if operand is value]
    starts = {inside.parameters[k] for k in places}
    writers = (i for i in inside.instructions if i.opcode in _WRITING_OPCODES)
    return any(_origin(operand) in starts for writer in writers for operand in writer.operands)


def _origin(value: HloInstruction) -> HloInstruction:
    """Returns what an array of a fusion is but for its shape, layout or type."""
    while value.opcode in _MOVED_OPCODES:
        value = value.operands[0]
    return value
