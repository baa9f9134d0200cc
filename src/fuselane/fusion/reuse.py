"""Which operands an instruction reads more than once per element.

Source: HloInstruction::ReusesOperandElements.
"""

from __future__ import annotations

from typing import Final

from fuselane.fusion.opcodes import ELEMENTWISE, is_elementwise
from fuselane.hlo.instruction import HloInstruction

_READS_ONCE: Final = frozenset(
    {"bitcast", "concatenate", "gather", "reshape", "reverse", "slice", "transpose"}
)


def reuses_operand(instruction: HloInstruction, index: int) -> bool:
    """Whether an instruction that is no fusion may read elements of an operand several times.

    A fusion's operands are looked up in its body, see `fusion_reuses`.
    """
    match instruction.opcode:
        case opcode if opcode in ELEMENTWISE or opcode in _READS_ONCE:
            return False
        case "pad":
            return index > 0
        case "reduce":
            return index >= len(instruction.operands) // 2
        case "dynamic-update-slice":
            return index > 1
        case "dot":
            return not _is_matrix_of_vector_dot(instruction, index)
        case _:
            return not is_elementwise(instruction)


def fusion_reuses(fusion: HloInstruction) -> dict[HloInstruction, bool]:
    """Returns, for each operand of a fusion that its root depends on, whether it is reused.

    It is if any path from the root to it leads through an instruction that reuses what it reads.
    """
    body = fusion.to_apply
    reused: dict[HloInstruction, bool] = {body.root: False}
    for instruction in reversed(body.post_order()):
        state = reused.get(instruction)
        if state is None:
            continue
        for index, operand in enumerate(instruction.operands):
            is_reused = state or reuses_operand(instruction, index)
            reused[operand] = reused.get(operand, False) or is_reused
    result: dict[HloInstruction, bool] = {}
    for operand, parameter in zip(fusion.operands, body.parameters, strict=True):
        if parameter in reused:
            result[operand] = result.get(operand, False) or reused[parameter]
    return result


def _is_matrix_of_vector_dot(dot: HloInstruction, index: int) -> bool:
    """Whether an operand is the matrix of a product of a matrix and a vector."""
    return dot.shape.rank <= 1 and dot.operands[1 - index].shape.rank <= 1
