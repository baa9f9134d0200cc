"""Keeps a loop beside the kernel that replaces it, and compares the two.

Before                                     After
    %t = tuple(%x, %y)                         %k = custom-call(copy(%x), copy(%y))     the kernel
    %w = while(%t)                             %w = while(tuple(%x, %y, 0, 0))          XLA
    %r = get-tuple-element(%w), index=0        %a = while(.. varied upwards ..)         XLA, twice
    ROOT f(%r)                                 %b = while(.. varied downwards ..)
                                               %r = get-tuple-element(%w), index=0
                                               custom-call(%r, %k, %a, %b)              the check
                                               ROOT f(%r)

The program goes on with XLA's result. The kernel is the one that runs without verification: it gets
copies of what it updates in place. Two more runs of the loop, on inputs and with every step a few
units in the last place off, show what rounding grows to; see `contract`.

A chaotic loop soon leaves nothing to compare that way. So there is a second check, inside XLA's
loop: in each step, a kernel that runs the loop for one step, and the body on varied inputs, start
from the very state that XLA's step starts from.

Before                                     After
    %p = parameter(0)                          %p = parameter(0)
    ROOT tuple(f(%p))                          %k = custom-call(copy(%p))     one step of a kernel
                                               %a, %b = while(..), while(..)  one step, varied
                                               %f = f(%p)                     after the above
                                               %n = custom-call(%f, %k, %a, %b, step, ..)
                                               ROOT tuple(%f, %n)

Step and check are counted in the loop itself. Arrays that the loop fills row by row are compared
after the loop only. Where no kernel can be made of one step, there is no second check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from fuselane.analysis.small_calls import is_small_loop
from fuselane.contract import Check
from fuselane.errors import VerificationError
from fuselane.hlo.computation import (
    HloComputation,
    clone_computation,
    reachable_computations,
)
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.proto import OutputOperandAliasing
from fuselane.hlo.shape import Shape
from fuselane.lanes.carry import Carry, get_indices_used
from fuselane.lanes.checked_elements import describe_elements, stream_indices
from fuselane.lanes.program import LaneProgram
from fuselane.lanes.replace import TYPED_FFI, Attributes, replace_loop
from fuselane.lanes.small_calls import make_small_call
from fuselane.lanes.variation import (
    PRED,
    S32,
    constant,
    element,
    is_float,
    move_users,
    root_values,
    set_root_values,
    vary,
    vary_sums,
    widen,
)

_ATTRIBUTE: Final = "fuselane_verify"
_SIGNS: Final = (1.0, -1.0)
_LAZY_OPCODES: Final = frozenset({"parameter", "constant", "get-tuple-element", "tuple", "bitcast"})
"""Instructions that neither read nor write the memory of arrays."""

_SHARING_OPCODES: Final = frozenset({"tuple", "while", "call", "conditional"})

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


def replace_and_check(
    module: HloModule,
    loop: HloInstruction,
    program: LaneProgram,
    attributes: Attributes,
    calls: CheckCalls,
) -> None:
    """Puts a kernel, and checks of it, beside a `while`.

    Args:
        module: The module the loop is in.
        loop: The `while` that `program` was formed from; another one takes its place.
        program: The lane program.
        attributes: Attributes of the kernel's custom call.
        calls: How kernels and checks are called.
    Raises:
        VerificationError: if `program` does not belong to `loop`.
    """
    if loop.computation is None or loop.operands[0].opcode != "tuple":
        raise VerificationError(f"{loop.name} cannot be replaced by a kernel.")
    _Verification(module, loop, loop.computation, program, calls).run(attributes)


@final
class _Verification:
    """One run of `replace_and_check`."""

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
        self.count = len(self.initial)
        invariant = Carry(loop).invariant
        self.changed = [i for i in range(self.count) if i not in invariant]
        self.compared = [i for i in get_indices_used(loop) if i not in invariant]
        streams = stream_indices(program)
        self.states = [i for i in self.changed if i not in streams]
        can_vary = any(is_float(loop.shape.tuple_shapes[i]) for i in self.states)
        self.signs = _SIGNS if can_vary else ()

    def run(self, attributes: Attributes) -> None:
        """Does it."""
        if not self.compared:
            replace_loop(self.loop, self.program, self.calls.kernel_target, attributes)
            return
        kernel, call = self._add_kernel(attributes)
        starts = [self._varied_start(sign) for sign in self.signs]
        reference, moved = self._add_reference()
        reference.add_control_predecessor(call)
        for value in (value for start in starts for value in start):
            reference.add_control_predecessor(value)
        steps = element(self.computation, reference, self.count)
        varied = [
            self._add_varied_loop(start, sign, steps)
            for start, sign in zip(starts, self.signs, strict=True)
        ]
        results = [element(self.computation, reference, i) for i in self.compared]
        scalars = [steps, element(self.computation, reference, self.count + 1)]
        check = self._check(self.program, self.compared, is_step=False)
        checked = self._add_check(self.computation, check, [results, kernel, *varied], scalars)
        self._keep_order(reference, checked, moved)

    # The kernel of the whole loop.

    def _add_kernel(self, attributes: Attributes) -> tuple[Values, HloInstruction]:
        """Returns the kernel's results, in the order of `compared`, and its call."""
        copies: dict[HloInstruction, HloInstruction] = {}
        for i in self.changed:
            value = self.initial[i]
            if value not in copies:
                copies[value] = self._add(self.computation, "copy", value.shape, [value])
        values = [copies.get(value, value) for value in self.initial]
        program = replace(
            self.program,
            operands=tuple(copies.get(operand, operand) for operand in self.program.operands),
        )
        loop = self._add_loop(self.computation, values, self.loop.body, self.loop.condition)
        for predecessor in self.loop.control_predecessors:
            loop.add_control_predecessor(predecessor)
        return self._replace(loop, self._hold(loop, self.compared), program, attributes)

    def _hold(self, loop: HloInstruction, indices: Sequence[int]) -> HloInstruction:
        """Returns a tuple of elements of a loop, which keeps them in use while it is replaced."""
        assert loop.computation is not None, "the loop was just added"
        values = [element(loop.computation, loop, i) for i in indices]
        shape = Shape.tuple_of([value.shape for value in values])
        holder = self._add(loop.computation, "tuple", shape, values)
        loop.computation.sort()
        return holder

    def _replace(
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

    # The loop that stays.

    def _add_reference(self) -> tuple[HloInstruction, Values]:
        """Adds the loop that goes on, with two counters: steps, and unexplained differences.

        Returns:
            It, and what has become of the old loop's elements.
        """
        body = self._step_checked_body() or self._counting_body()
        condition = self._clone(self.loop.condition)
        widen(condition, [S32, S32])
        values = [*self.initial, self._zero(self.computation), self._zero(self.computation)]
        reference = self._add_loop(self.computation, values, body, condition)
        for name in ("backend_config", "frontend_attributes"):
            self._copy_field(reference, name)
        reference.proto.frontend_attributes.map.add(key=_ATTRIBUTE, value="reference")
        return reference, move_users(self.loop, reference)

    def _copy_field(self, reference: HloInstruction, name: str) -> None:
        value = getattr(self.loop.proto, name)
        if isinstance(value, bytes):
            setattr(reference.proto, name, value)
        else:
            getattr(reference.proto, name).CopyFrom(value)

    def _counting_body(self) -> HloComputation:
        """Returns the loop's body with the two counters."""
        body = self._clone(self.loop.body)
        step, num_wrong = widen(body, [S32, S32])
        following = self._add(body, "add", S32, [step, constant(body, S32, 1)])
        set_root_values(body, [*root_values(body), following, num_wrong])
        return body

    def _keep_order(
        self, reference: HloInstruction, checked: HloInstruction, moved: Sequence[HloInstruction]
    ) -> None:
        """Makes what comes after the loop come after the check, too, and removes the old loop."""
        for predecessor in self.loop.control_predecessors:
            reference.add_control_predecessor(predecessor)
        for successor in self.loop.control_successors:
            successor.add_control_predecessor(checked)
        for value in moved:
            for user in value.users:
                user.add_control_predecessor(checked)
        initial = self.loop.operands[0]
        self.loop.drop_control_edges()
        self.computation.sort()
        self.computation.remove(self.loop)
        if not (initial.users or initial.is_root or initial.control_successors):
            self.computation.remove(initial)

    # One step.

    def _step_checked_body(self) -> HloComputation | None:
        """Returns the loop's body with a check of each step; None if that cannot be had."""
        if not self.states:
            return None
        body = self._given_body()
        given = [i for i in body.instructions if i.opcode not in _LAZY_OPCODES]
        step, num_wrong = widen(body, [S32, S32])
        loop = self._add_step(body, self._step_start(body))
        holder = self._hold(loop, self.states)
        compiled = self.calls.compile_step(loop)
        if compiled is None:
            return None
        program, attributes = compiled
        kernel, call = self._replace(loop, holder, program, attributes)
        before = [call]
        varied = []
        for sign in self.signs:
            loop = self._add_step(body, self._varied_step_start(body, sign))
            vary_sums(loop.body, sign)
            varied.append([element(body, loop, i) for i in self.states])
            before.append(loop)
        for instruction in given:
            for predecessor in before:
                instruction.add_control_predecessor(predecessor)
        values = root_values(body)
        results = [values[i] for i in self.states]
        check = self._check(program, self.states, is_step=True)
        checked = self._add_check(body, check, [results, kernel, *varied], [step, num_wrong])
        set_root_values(body, [*values, element(body, checked, 0), element(body, checked, 1)])
        return body

    def _given_body(self) -> HloComputation:
        """Returns the loop's body; as one function, if XLA makes the loop one: in other code it
        would be rounded otherwise."""
        body = self._clone(self.loop.body)
        if not is_small_loop(self.loop):
            return body
        outside = HloComputation.create(body.name)
        parameter = outside.add(HloInstruction.parameter(0, body.root.shape, "state"))
        outside.root = outside.add(make_small_call(parameter, body, self.loop))
        return self.module.add(outside)

    def _add_step(self, body: HloComputation, values: Values) -> HloInstruction:
        """Adds a loop that runs one step; streams it leaves as they are."""
        inner = self._clone(self.loop.body)
        (counter,) = widen(inner, [S32])
        results = root_values(inner)
        for i in self.changed:
            if i not in self.states:
                results[i] = element(inner, inner.parameters[0], i)
        following = self._add(inner, "add", S32, [counter, constant(inner, S32, 1)])
        set_root_values(inner, [*results, following])
        condition = HloComputation.create(f"{self.loop.name}.once")
        parameter = HloInstruction.create("parameter", inner.root.shape, parameter_number=0)
        condition.add(parameter)
        operands = [element(condition, parameter, self.count), constant(condition, S32, 1)]
        condition.root = self._add(condition, "compare", PRED, operands, comparison_direction="LT")
        self.module.add(condition)
        loop = self._add_loop(body, [*values, self._zero(body)], inner, condition)
        loop.proto.frontend_attributes.map.add(key=_ATTRIBUTE, value="step")
        return loop

    def _step_start(self, body: HloComputation) -> Values:
        """Returns the state at the beginning of a step, in memory of its own."""
        values = [element(body, body.parameters[0], i) for i in range(self.count)]
        for i in self.states:
            values[i] = self._add(body, "copy", values[i].shape, [values[i]])
        return values

    def _varied_step_start(self, body: HloComputation, sign: float) -> Values:
        """Returns the same, varied, and streams in memory of their own where XLA needs that."""
        values = [element(body, body.parameters[0], i) for i in range(self.count)]
        for i in self.changed:
            if i in self.states:
                values[i] = vary(body, values[i], sign, i)
            elif self._is_shared(i):
                values[i] = self._add(body, "copy", values[i].shape, [values[i]])
        return values

    def _is_shared(self, index: int) -> bool:
        """Whether the body hands an element on to a computation that may update it in place."""
        return is_small_loop(self.loop) or any(
            user.opcode in _SHARING_OPCODES
            for value in self.loop.body.parameters[0].users
            if value.opcode == "get-tuple-element" and value.tuple_index == index
            for user in value.users
            if user is not self.loop.body.root
        )

    # Whole loops on varied inputs.

    def _varied_start(self, sign: float) -> Values:
        """Returns initial values of what changes, in memory of their own."""
        return [
            vary(self.computation, self.initial[i], sign, i)
            if i in self.states
            else self._add(self.computation, "copy", self.initial[i].shape, [self.initial[i]])
            for i in self.changed
        ]

    def _add_varied_loop(self, start: Values, sign: float, steps: HloInstruction) -> Values:
        """Adds the loop with every step varied; runs it for as many steps as XLA's at most.

        Returns:
            Its results, in the order of `compared`.
        """
        body = self._clone(self.loop.body)
        counter, limit = widen(body, [S32, S32])
        vary_sums(body, sign)
        results = root_values(body)
        for i in self.states:
            if is_float(results[i].shape):
                results[i] = vary(body, results[i], sign, i)
        following = self._add(body, "add", S32, [counter, constant(body, S32, 1)])
        set_root_values(body, [*results, following, limit])
        condition = self._clone(self.loop.condition)
        is_left = self._add(
            condition, "compare", PRED, widen(condition, [S32, S32]), comparison_direction="LT"
        )
        condition.root = self._add(condition, "and", PRED, [condition.root, is_left])
        condition.sort()
        values = list(self.initial)
        for i, value in zip(self.changed, start, strict=True):
            values[i] = value
        limit = self._add(self.computation, "copy", S32, [steps])
        values += [self._zero(self.computation), limit]
        loop = self._add_loop(self.computation, values, body, condition)
        loop.proto.frontend_attributes.map.add(key=_ATTRIBUTE, value="varied")
        return [element(self.computation, loop, i) for i in self.compared]

    # Checks.

    def _check(self, program: LaneProgram, indices: Sequence[int], *, is_step: bool) -> Check:
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

    def _add_check(
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
        return self._add(
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

    # Small parts.

    def _add(
        self,
        computation: HloComputation,
        opcode: str,
        shape: Shape,
        operands: Values,
        **fields: Any,
    ) -> HloInstruction:
        return computation.add(HloInstruction.create(opcode, shape, operands, **fields))

    def _add_loop(
        self,
        computation: HloComputation,
        values: Values,
        body: HloComputation,
        condition: HloComputation,
    ) -> HloInstruction:
        shape = Shape.tuple_of([value.shape for value in values])
        initial = self._add(computation, "tuple", shape, values)
        loop = HloInstruction.create(
            "while",
            shape,
            [initial],
            name=self.loop.name,
            called_computations=[body, condition],
            metadata=self.loop.metadata,
        )
        return computation.add(loop)

    def _zero(self, computation: HloComputation) -> HloInstruction:
        """Returns 0 in memory that a loop can count in."""
        return self._add(computation, "copy", S32, [constant(computation, S32, 0)])

    def _clone(self, computation: HloComputation) -> HloComputation:
        return self.module.add(clone_computation(computation))


def _has_floats(body: HloComputation) -> bool:
    return any(
        instruction.shape.is_array and is_float(instruction.shape)
        for computation in reachable_computations([body])
        for instruction in computation.instructions
    )
