"""From a `while` as XLA leaves it to a region in normal form.

Before                                            After
    %t = tuple(%zero, %copy.1, %n)                    p0: f32[8]  p1: s32[]  (parameters)
    %w = while(%t), body=%b, condition=%c             z = constant(0)
    b: %p = parameter(0)                              t = tuple(z, p0, p1)
       %x = get-tuple-element(%p), index=1            w = while(t), body=b, condition=c
       %f = fusion(%copy(%x)), calls=%fused           r = get-tuple-element(w), index=1
       ROOT tuple(.., %f, ..)                         ROOT tuple(r)
                                                      b: what was fused, inlined

Fusions and calls are inlined, whole loops inside calls too; copies, nested tuples and optimization
barriers vanish; layouts become row-major (see `fuselane.lanes.layout`); equal instructions are
shared. Loop elements that never change and are constants become constants of the body. The user's
module is left as it is.

Does not handle: loops whose initial tuple is not made by a `tuple` instruction of arrays.
Numerics: bitwise-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import reduce
from typing import Final

from fuselane.analysis.opcodes import COMPLEX_OPCODES, ELEMENTWISE_OPCODES
from fuselane.analysis.refusal import refuse
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes import layout
from fuselane.lanes.admission import Admission
from fuselane.lanes.applied import identify, lower_map, normal_applied
from fuselane.lanes.builder import ComputationBuilder, array_shape, elementwise_attributes
from fuselane.lanes.carry import Carry, get_indices_used, get_site
from fuselane.lanes.complex import is_complex, lower_complex
from fuselane.lanes.conditionals import lower_conditional
from fuselane.lanes.constants import is_cheap
from fuselane.lanes.conversions import convert_back, read_unconverted
from fuselane.lanes.convolutions import is_small_convolution, lower_convolution
from fuselane.lanes.dots import lower_dot
from fuselane.lanes.factorisations import is_small_factorisation, lower_factorisation
from fuselane.lanes.gathers import lower_gather, lower_scatter
from fuselane.lanes.guarded_updates import select_updates
from fuselane.lanes.hoisted import make_again, may_repeat_conditions
from fuselane.lanes.index_vectors import is_folded_vector, is_index_vector, take_apart, work_out
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.reduction_trees import lower_reduction
from fuselane.lanes.rows import emit_layer, get_layer, make_start, picks_rows
from fuselane.lanes.sorting import TOP_K_TARGET, lower_sort, lower_top_k
from fuselane.lanes.values import Value, array_of, arrays_of, elements_of
from fuselane.lanes.whiles import NormalWhile, lower_while
from fuselane.lanes.windows import is_plain_window, lower_reduce_window

_Lowering = Callable[[ComputationBuilder, HloInstruction, Sequence[HloInstruction]], HloInstruction]

_LOWERINGS: Final[dict[str, _Lowering]] = {
    "broadcast": layout.lower_broadcast,
    "concatenate": layout.lower_concatenate,
    "constant": layout.lower_constant,
    "dot": lower_dot,
    "dynamic-slice": layout.lower_dynamic_slice,
    "dynamic-update-slice": layout.lower_dynamic_update_slice,
    "gather": lower_gather,
    "iota": layout.lower_iota,
    "pad": layout.lower_pad,
    "reshape": layout.lower_reshape,
    "reverse": layout.lower_reverse,
    "slice": layout.lower_slice,
    "transpose": layout.lower_transpose,
}

_ApplyingLowering = Callable[
    [ComputationBuilder, HloInstruction, Sequence[HloInstruction], HloComputation],
    HloInstruction | tuple[HloInstruction, ...],
]

_APPLYING_LOWERINGS: Final[dict[str, _ApplyingLowering]] = {
    "custom-call": lower_top_k,
    "map": lower_map,
    "reduce": lower_reduction,
    "reduce-window": lower_reduce_window,
    "scatter": lower_scatter,
    "sort": lower_sort,
}

_PASSING_OPCODES: Final = frozenset(
    {
        "call",
        "conditional",
        "fusion",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "tuple",
        "while",
    }
)
"""Opcodes that pass values on, whatever their types."""


def normalise(loop: HloInstruction) -> NormalLoop:
    """Returns the normal form of a `while`.

    Args:
        loop: A `while` of any computation of a module; nothing of the module is changed.

    Raises:
        UnsupportedError: if it holds an opcode, element type, layout or structure that lane
            programs lack.
    """
    return _Normaliser(loop).run()


class _Normaliser:
    """One run of `normalise`."""

    def __init__(self, loop: HloInstruction) -> None:
        self._loop = loop
        self._region = ComputationBuilder(loop.name)
        self._operands: list[HloInstruction] = []
        self._applied: dict[HloComputation, HloComputation] = {}
        self._alike: dict[Hashable, HloComputation] = {}
        self._twins: list[HloInstruction] = []  # kept alive for the admission's sake
        self._admission = Admission(loop)

    def run(self) -> NormalLoop:
        loop, site = self._loop, get_site(self._loop)
        initial = site.operands[0]
        if not loop.shape.is_tuple:
            raise refuse(
                Reason.DATA_DEPENDENT_TRIP_COUNT,
                loop,
                which="the loop",
                detail="its condition reads the only array it carries",
            )
        if initial.opcode != "tuple" or any(o.shape.is_tuple for o in initial.operands):
            raise refuse(
                Reason.UNSUPPORTED_STRUCTURE,
                loop,
                detail=f"its initial value is made by `{initial.opcode}`, not as a tuple of arrays",
            )
        carry = Carry(loop)
        initial_values: list[Value] = [
            self._initial_value(operand, index in carry.invariant)
            if index in carry.needed
            else None
            for index, operand in enumerate(initial.operands)
        ]
        if may_repeat_conditions(loop):
            self._learn_meanings(initial.operands, initial_values, carry.invariant)
        normal = self._lower_while(loop, initial_values, self._region)
        indices = get_indices_used(site)
        changing = [i for i in indices if i not in normal.invariant]
        if not changing:
            detail = "nothing that it changes is needed"
            raise refuse(Reason.UNSUPPORTED_STRUCTURE, loop, detail=detail)
        root = self._region.make_tuple([array_of(normal.values[i]) for i in changing])
        region = self._region.finish(root)
        operands = self._drop_unused_parameters(region)
        return NormalLoop(
            region=region,
            site=site,
            operands=operands,
            element_indices=normal.element_indices,
            output_indices=tuple(changing),
            invariants={i: initial.operands[i] for i in sorted(normal.invariant)},
        )

    def _drop_unused_parameters(self, region: HloComputation) -> tuple[HloInstruction, ...]:
        """Removes parameters nobody uses, renumbers the rest and returns what supplies them."""
        used = [p for p in region.parameters if p.users]
        if len(used) < len(region.parameters):
            operands = [self._operands[p.parameter_number] for p in used]
            for parameter in [p for p in region.parameters if not p.users]:
                region.remove(parameter)
            for number, parameter in enumerate(used):
                parameter.parameter_number = number
            self._operands = operands
        return tuple(self._operands)

    # In front of the loop.

    def _initial_value(self, operand: HloInstruction, is_invariant: bool) -> HloInstruction:
        """Returns the region's value for an initial value: made anew if cheap, else a parameter."""
        if is_cheap(operand):
            return array_of(self._recompute(operand))
        if is_invariant and is_folded_vector(operand):
            vector = take_apart(operand, self._region)
            if vector is not None:
                return vector
        if is_invariant and is_index_vector(operand):
            sources = [self._initial_value(source, is_invariant) for source in operand.operands]
            vector = array_of(self._visit(operand, sources, self._region))
            return work_out(vector, self._region)
        if is_invariant and picks_rows(operand):
            source = self._parameter(operand.operands[0])
            layer = get_layer(operand)
            return self._layer(layer, source) if layer else self._view(operand, source)
        return self._parameter(operand)

    def _layer(self, steps: Sequence[HloInstruction], source: HloInstruction) -> HloInstruction:
        first, *views = steps
        start = self._parameter(make_start(first))
        value = emit_layer(self._region, first, source, start)
        return reduce(lambda value, view: self._view(view, value), views, value)

    def _view(self, instruction: HloInstruction, source: HloInstruction) -> HloInstruction:
        return array_of(self._visit(instruction, [source], self._region))

    def _parameter(self, operand: HloInstruction) -> HloInstruction:
        """Returns a new parameter of the region for a value of the user's module."""
        shape = self._admission.check_shape(operand, operand.shape)
        self._operands.append(operand)
        return self._region.parameter(len(self._operands) - 1, shape, operand)

    def _learn_meanings(
        self,
        operands: Sequence[HloInstruction],
        values: Sequence[Value],
        invariant: Collection[int],
    ) -> None:
        """Finds out what the parameters for elements that no step changes are made of."""
        known = {
            operand: value
            for index, (operand, value) in enumerate(zip(operands, values, strict=True))
            if index in invariant and isinstance(value, HloInstruction)
        }

        def make(source: HloInstruction, given: Sequence[HloInstruction]) -> HloInstruction | None:
            try:
                value = self._visit(source, given, self._region)
            except UnsupportedError:
                return None
            return value if isinstance(value, HloInstruction) else None

        for operand, value in known.items():
            meaning = make_again(operand, known, make) if value.opcode == "parameter" else None
            if meaning is not None:
                self._region.learn(value, meaning)

    def _recompute(self, instruction: HloInstruction) -> Value:
        operands = [self._recompute(operand) for operand in instruction.operands]
        return self._visit(instruction, operands, self._region)

    # Instructions.

    def _inline(
        self, computation: HloComputation, arguments: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        """Emits all of a computation and returns the value of its root."""
        values: dict[HloInstruction, Value] = {}
        root = computation.root
        for instruction in computation.instructions:
            if instruction.opcode == "parameter":
                values[instruction] = arguments[instruction.parameter_number]
            elif instruction.users or instruction is root or instruction.has_side_effect:
                operands = [values[operand] for operand in instruction.operands]
                values[instruction] = self._visit(instruction, operands, builder)
        return values[root]

    def _inline_condition(
        self, computation: HloComputation, arguments: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        """Emits all of a loop's condition and returns the value of its root."""
        with self._admission.inside_condition():
            return self._inline(computation, arguments, builder)

    def _visit(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        """Emits one instruction, given what its operands became."""
        if instruction.opcode not in _PASSING_OPCODES and is_complex(instruction):
            return self._visit_complex(instruction, operands, builder)
        if instruction.opcode in ELEMENTWISE_OPCODES:
            return self._visit_elementwise(instruction, operands, builder)
        visit = _VISITS.get(instruction.opcode)
        if visit is not None:
            return visit(self, instruction, operands, builder)
        lower = _LOWERINGS.get(instruction.opcode)
        if lower is None:
            raise self._admission.refuse_opcode(instruction)
        self._admission.check_shape(instruction, instruction.shape)
        value = lower(builder, instruction, [array_of(operand) for operand in operands])
        return read_unconverted(builder, value)

    def _visit_tuple(
        self, _instruction: HloInstruction, operands: Sequence[Value], _builder: ComputationBuilder
    ) -> Value:
        return tuple(operands)

    def _visit_element(
        self, instruction: HloInstruction, operands: Sequence[Value], _builder: ComputationBuilder
    ) -> Value:
        return elements_of(operands[0])[instruction.tuple_index]

    def _visit_barrier(
        self, _instruction: HloInstruction, operands: Sequence[Value], _builder: ComputationBuilder
    ) -> Value:
        return operands[0]

    def _visit_call(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        return self._inline(instruction.to_apply, operands, builder)

    def _visit_conditional(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        return lower_conditional(builder, instruction, operands, self._inline)

    def _visit_loop(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        if instruction.shape.is_tuple:
            return self._lower_while(instruction, elements_of(operands[0]), builder).values
        return self._lower_while(instruction, operands, builder).values[0]

    def _lower_while(
        self, loop: HloInstruction, initial: Sequence[Value], builder: ComputationBuilder
    ) -> NormalWhile:
        return lower_while(builder, loop, initial, self._inline, self._inline_condition)

    def _visit_copy(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        if not isinstance(operands[0], HloInstruction):
            return operands[0]
        self._admission.check_shape(instruction, instruction.shape)
        return layout.lower_copy(builder, instruction, [operands[0]])

    def _visit_elementwise(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> HloInstruction:
        opcode = instruction.opcode
        shape = self._admission.check_shape(instruction, instruction.shape)
        if opcode == "bitcast-convert" and _bits(array_of(operands[0])) != shape.element_type.bits:
            raise refuse(
                Reason.UNSUPPORTED_OPCODE, instruction, detail=" between types of different width"
            )
        values = layout.lower_elementwise(builder, instruction, arrays_of(operands))
        if opcode == "select" and values[1] is values[2]:
            return values[1]
        if opcode == "select":
            updated = select_updates(builder, values[0], values[1], values[2])
            if updated is not None:
                return updated
        if opcode == "convert" and values[0].shape.element_type is shape.element_type:
            return values[0]
        if opcode == "convert":
            back = convert_back(builder, values[0], shape.element_type)
            if back is not None:
                return back
        attributes = elementwise_attributes(instruction)
        return builder.elementwise(opcode, shape, values, attributes, origin=instruction)

    def _visit_complex(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        if instruction.opcode == "copy" and instruction.shape.is_tuple:
            return operands[0]
        self._admission.check_shapes(instruction)

        def visit(twin: HloInstruction, values: Sequence[Value]) -> Value:
            self._twins.append(twin)
            return self._visit(twin, values, builder)

        return lower_complex(builder, instruction, operands, visit, self._inline)

    def _visit_bitcast(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        shape = self._admission.check_shape(instruction, instruction.shape)
        value = array_of(operands[0])
        if value.shape.element_type is not shape.element_type:
            types = {value.shape.element_type, shape.element_type}
            if _bits(value) != shape.element_type.bits or PrimitiveType.PRED in types:
                raise refuse(
                    Reason.UNSUPPORTED_OPCODE, instruction, detail=" between these element types"
                )
            converted = array_shape(shape.element_type, value.shape.dimensions)
            value = builder.emit("bitcast-convert", converted, (value,), origin=instruction)
        return layout.lower_bitcast(builder, instruction, [value])

    def _visit_applying(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        """Emits an instruction that applies a computation of scalars, such as a reduce."""
        self._admission.check_shapes(instruction)
        arrays = [array_of(operand) for operand in operands]
        lower = _APPLYING_LOWERINGS[instruction.opcode]
        return lower(builder, instruction, arrays, self._applied_by(instruction))

    def _visit_reduce_window(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        if not is_plain_window(instruction):
            raise self._admission.refuse_opcode(instruction)
        return self._visit_applying(instruction, operands, builder)

    def _visit_convolution(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        if not is_small_convolution(instruction):
            raise self._admission.refuse_opcode(instruction)
        self._admission.check_shapes(instruction)
        return lower_convolution(builder, instruction, arrays_of(operands))

    def _visit_custom_call(
        self, instruction: HloInstruction, operands: Sequence[Value], builder: ComputationBuilder
    ) -> Value:
        if instruction.custom_call_target == TOP_K_TARGET:
            return self._visit_applying(instruction, operands, builder)
        if not is_small_factorisation(instruction):
            raise self._admission.refuse_opcode(instruction)
        self._admission.check_shapes(instruction)
        return lower_factorisation(builder, instruction, arrays_of(operands))

    def _applied_by(self, instruction: HloInstruction) -> HloComputation:
        (original,) = instruction.called_computations
        known = self._applied.get(original)
        if known is None:
            known = normal_applied(instruction, self._admission, self._inline)
            known = self._alike.setdefault(identify(known), known)
            self._applied[original] = known
        return known


_Visit = Callable[
    [_Normaliser, HloInstruction, Sequence[Value], ComputationBuilder],
    Value,
]

_VISITS: Final[dict[str, _Visit]] = {
    "bitcast": _Normaliser._visit_bitcast,
    "call": _Normaliser._visit_call,
    "conditional": _Normaliser._visit_conditional,
    "convolution": _Normaliser._visit_convolution,
    "copy": _Normaliser._visit_copy,
    "custom-call": _Normaliser._visit_custom_call,
    "fusion": _Normaliser._visit_call,
    "get-tuple-element": _Normaliser._visit_element,
    "map": _Normaliser._visit_applying,
    "opt-barrier": _Normaliser._visit_barrier,
    "reduce": _Normaliser._visit_applying,
    "reduce-window": _Normaliser._visit_reduce_window,
    "scatter": _Normaliser._visit_applying,
    "sort": _Normaliser._visit_applying,
    "tuple": _Normaliser._visit_tuple,
    "while": _Normaliser._visit_loop,
}


HANDLED_OPCODES: Final = ELEMENTWISE_OPCODES | COMPLEX_OPCODES | _VISITS.keys() | _LOWERINGS.keys()
"""Opcodes that have a normal form, perhaps under conditions."""


def _bits(value: HloInstruction) -> int:
    return value.shape.element_type.bits
