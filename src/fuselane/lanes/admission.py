"""What lane programs can hold of a loop, and how the rest of it is refused.

    f32[2048,4]{0,1}    ->  f32[4,2048], as its elements lie in memory
    c64[8]              ->  its parts as one array of f32
    token[]             ->  refused: the loop has a side effect
    f8e4m3fn[8]         ->  refused: no such element type

Source: element types are those of `fuselane.codegen.types`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.hlo.computation import reachable_computations
from fuselane.hlo.instruction import SIDE_EFFECT_OPCODES, HloInstruction
from fuselane.hlo.shape import PrimitiveType, Shape
from fuselane.lanes import layout
from fuselane.lanes.complex_parts import joined_shape

_CONDITION_REDUCTIONS: Final = frozenset({"reduce-window", "sort", "dot", "custom-call"})
_LANE_TYPES: Final = frozenset(
    {
        PrimitiveType.PRED,
        PrimitiveType.S8,
        PrimitiveType.S16,
        PrimitiveType.S32,
        PrimitiveType.S64,
        PrimitiveType.U8,
        PrimitiveType.U16,
        PrimitiveType.U32,
        PrimitiveType.U64,
        PrimitiveType.F16,
        PrimitiveType.BF16,
        PrimitiveType.F32,
        PrimitiveType.F64,
    }
)


@final
class Admission:
    """Checks the instructions of one loop, and words what is refused.

    Args:
        loop: The `while` whose instructions are checked.
    """

    def __init__(self, loop: HloInstruction) -> None:
        self._loop = loop
        self._row_major: dict[int, Shape] = {}
        self._conditions = 0

    @contextmanager
    def inside_condition(self) -> Iterator[None]:
        """While this lasts, what is refused belongs to a loop's condition."""
        self._conditions += 1
        yield
        self._conditions -= 1

    def check_shape(self, instruction: HloInstruction, shape: Shape) -> Shape:
        """Returns the row-major form of an array shape that lane programs can hold.

        Args:
            instruction: Where the shape stands, for the refusal.
            shape: Must stay alive as long as this object does, as it is known by its id.

        Raises:
            UnsupportedError: if its element type, layout or size is none of theirs.
        """
        known = self._row_major.get(id(shape))
        if known is not None:
            return known
        if shape.element_type is PrimitiveType.TOKEN:
            raise refuse(Reason.SIDE_EFFECT, _find_side_effect(self._loop) or instruction)
        real = joined_shape(shape) if shape.element_type.is_complex else shape
        if real.element_type not in _LANE_TYPES:
            raise refuse(Reason.UNSUPPORTED_TYPE, instruction, type=shape.element_type.lower)
        if not shape.is_plain:
            raise refuse(
                Reason.LAYOUT, instruction, detail=f"{shape} is tiled, packed or of dynamic size"
            )
        if 0 in shape.dimensions:
            raise refuse(
                Reason.UNSUPPORTED_STRUCTURE, instruction, detail=f"{shape} has no elements"
            )
        self._row_major[id(shape)] = result = layout.physical_shape(real)
        return result

    def check_shapes(self, instruction: HloInstruction) -> None:
        """Checks the shape of an instruction's array, or of each array of its tuple."""
        for shape in instruction.shape.tuple_shapes or (instruction.shape,):
            self.check_shape(instruction, shape)

    def refuse_opcode(self, instruction: HloInstruction) -> Exception:
        """Returns the refusal of an instruction that has no normal form."""
        opcode = instruction.opcode
        if opcode in SIDE_EFFECT_OPCODES or instruction.has_side_effect:
            return refuse(Reason.SIDE_EFFECT, instruction)
        if self._conditions and opcode in _CONDITION_REDUCTIONS:
            return refuse(
                Reason.DATA_DEPENDENT_TRIP_COUNT,
                instruction,
                which="a loop",
                detail=f"its condition combines many values by `{opcode}`",
            )
        target = instruction.custom_call_target
        return refuse(
            Reason.UNSUPPORTED_OPCODE, instruction, detail=f" (target {target})" if target else ""
        )


def _find_side_effect(loop: HloInstruction) -> HloInstruction | None:
    """Returns an instruction that makes a loop's order of execution matter, or None."""
    for computation in reachable_computations([loop.body]):
        for instruction in computation.instructions:
            if instruction.has_side_effect and not instruction.called_computations:
                return instruction
    return None
