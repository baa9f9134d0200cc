"""A loop that is verified: which of its elements are compared, and what stands beside it for that.

Loops, kernels and calls of checks are added to the computation the loop is in, or to the body of
its copy that stays; see `lanes.verification` and `lanes.step_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from fuselane.contract import Check
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.proto import OutputOperandAliasing
from fuselane.hlo.shape import Shape
from fuselane.hlo.transfer import clone_computation
from fuselane.hlo.tuples import tuple_of
from fuselane.lanes.carry import Carry, get_indices_used
from fuselane.lanes.checked_elements import describe_elements, stream_indices
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.replace import TYPED_FFI, Attributes, replace_loop
from fuselane.lanes.variation import S32, constant, element, is_float

_ATTRIBUTE: Final = "fuselane_verify"
_SIGNS: Final = (1.0, -1.0)

Values = list[HloInstruction]

StepCompiler = Callable[[HloInstruction], tuple[LaneProgram, Attributes] | None]
"""Returns the lane program of a `while` and the attributes of its kernel's call, or None."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCalls:
    """How kernels and checks are called.

    Attributes:
        kernel_target: Custom call target of kernels.
        check_target: Custom call target of checks.
        attributes_of: Returns a check's attributes as a dictionary in MLIR's syntax.
        compile_step: Makes the kernel of one step.
    """

    kernel_target: str
    check_target: str
    attributes_of: Callable[[Check], bytes]
    compile_step: StepCompiler


def is_reference(instruction: HloInstruction) -> bool:
    """Whether a `while` is there to be compared to, and so has to stay with XLA."""
    return _ATTRIBUTE in instruction.frontend_attributes


def mark(loop: HloInstruction, role: str) -> None:
    """Notes that a `while` is there to be compared to."""
    loop.proto.frontend_attributes.map.add(key=_ATTRIBUTE, value=role)


@final
class CheckedLoop:
    """A loop of the user's module and the kernel that it is compared to.

    module: The module.
    loop: The `while`, whose initial value is a tuple.
    computation: The one it is in.
    program: Its lane program.
    calls: How kernels and checks are called.
    initial: Its initial values.
    changed: Elements that it changes.
    compared: Those of them that are needed after it.
    states: Those of `changed` that are no streams.
    signs: Which ways inputs are varied; none without floats.
    """

    def __init__(
        self,
        module: HloModule,
        loop: HloInstruction,
        computation: HloComputation,
        program: LaneProgram,
        calls: CheckCalls,
    ) -> None:
        self.module = module
        self.loop = loop
        self.computation = computation
        self.program = program
        self.calls = calls
        self.initial = list(loop.operands[0].operands)
        invariant = Carry(loop).invariant
        self.changed = [i for i in range(len(self.initial)) if i not in invariant]
        self.compared = [i for i in get_indices_used(loop) if i not in invariant]
        streams = stream_indices(program)
        self.states = [i for i in self.changed if i not in streams]
        can_vary = any(is_float(loop.shape.tuple_shapes[i]) for i in self.states)
        self.signs = _SIGNS if can_vary else ()

    def hold(self, loop: HloInstruction, indices: Sequence[int]) -> HloInstruction:
        """Returns a tuple of elements of a loop, which keeps them in use while it is replaced."""
        assert loop.computation is not None, "the loop was just added"
        values = [element(loop.computation, loop, i) for i in indices]
        holder = loop.computation.add(tuple_of(values))
        loop.computation.sort()
        return holder

    def replace(
        self,
        loop: HloInstruction,
        holder: HloInstruction,
        program: LaneProgram,
        attributes: Attributes,
    ) -> tuple[Values, HloInstruction]:
        """Replaces a loop by its kernel; returns what `holder` then holds, and the call."""
        call = replace_loop(loop, program, self.calls.kernel_target, attributes)
        results = list(holder.operands)
        if holder.computation is not None:
            holder.computation.remove(holder)
        return results, call

    def check(self, program: LaneProgram, indices: Sequence[int], *, is_step: bool) -> Check:
        """Returns what a check compares: elements after the loop, or after one of its steps."""
        elements = describe_elements(self.module, self.loop, program, indices)
        line = self.module.source(self.loop)
        return Check(
            module=self.module.name,
            loop=self.loop.name,
            source="" if line is None else str(line),
            is_step=is_step,
            is_exact=not _has_floats(self.loop.body),
            num_variations=len(self.signs),
            elements=elements,
        )

    def add_check(
        self,
        computation: HloComputation,
        check: Check,
        runs: Sequence[Values],
        scalars: Values,
    ) -> HloInstruction:
        """Adds the call that compares; in a step it counts on in place."""
        operands = [value for run in runs for value in run] + scalars
        aliasing = [
            OutputOperandAliasing(output_shape_index=[i], operand_index=len(operands) - 2 + i)
            for i in range(2)
            if check.is_step
        ]
        return self.add(
            computation,
            "custom-call",
            Shape.tuple_of([S32, S32]),
            operands,
            custom_call_target=self.calls.check_target,
            custom_call_api_version=TYPED_FFI,
            custom_call_has_side_effect=True,
            backend_config=self.calls.attributes_of(check),
            output_operand_aliasing=aliasing,
        )

    def add(
        self,
        computation: HloComputation,
        opcode: str,
        shape: Shape,
        operands: Values,
        **fields: Any,
    ) -> HloInstruction:
        """Adds an instruction to a computation."""
        return computation.add(HloInstruction.create(opcode, shape, operands, **fields))

    def add_loop(
        self,
        computation: HloComputation,
        values: Values,
        body: HloComputation,
        condition: HloComputation,
    ) -> HloInstruction:
        """Adds a loop that stands for this one, on other values."""
        initial = computation.add(tuple_of(values))
        loop = HloInstruction.create(
            "while",
            initial.shape,
            [initial],
            name=self.loop.name,
            called_computations=[body, condition],
            metadata=self.loop.metadata,
        )
        return computation.add(loop)

    def zero(self, computation: HloComputation) -> HloInstruction:
        """Returns 0 in memory that a loop can count in."""
        return self.add(computation, "copy", S32, [constant(computation, S32, 0)])

    def clone(self, computation: HloComputation) -> HloComputation:
        """Returns a copy of a computation, in the module."""
        return self.module.add(clone_computation(computation))


def _has_floats(body: HloComputation) -> bool:
    return any(
        instruction.shape.is_array and is_float(instruction.shape)
        for computation in reachable_computations([body])
        for instruction in computation.instructions
    )
