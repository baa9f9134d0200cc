"""What a builder's methods emit: XLA takes it for what it says, of the shapes worked out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuselane.errors import VerificationError
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType
from fuselane.lanes.builder import ComputationBuilder, array_shape, combining_computation
from tests.lanes.oracle import Array, as_module, run_module

F32, S32 = PrimitiveType.F32, PrimitiveType.S32
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2

Emit = Callable[[ComputationBuilder, HloInstruction], HloInstruction]


def _builder() -> tuple[ComputationBuilder, HloInstruction]:
    builder = ComputationBuilder("test")
    return builder, builder.parameter(0, array_shape(F32, X.shape), None)


def _floats(values: list[Any]) -> Array:
    return np.array(values, np.float32)


def _zero(builder: ComputationBuilder, x: HloInstruction) -> HloInstruction:
    return builder.scalar(0, S32, x)


def _emit_dot(builder: ComputationBuilder, x: HloInstruction) -> HloInstruction:
    numbers = DotDimensions.create(
        left_rank=2,
        right_rank=2,
        left_batch=(),
        right_batch=(),
        left_contracting=(1,),
        right_contracting=(1,),
    )
    return builder.dot(x, x, numbers, F32)


def _emit_reduce(builder: ComputationBuilder, x: HloInstruction) -> HloInstruction:
    start = builder.scalar(10, F32, x)
    return builder.reduce((x, start), (0,), combining_computation("add", F32))


def _emit_update(builder: ComputationBuilder, x: HloInstruction) -> HloInstruction:
    update = builder.fill(7, array_shape(F32, (1, 2)), x)
    starts = (builder.scalar(1, S32, x), _zero(builder, x))
    return builder.dynamic_update_slice(x, update, starts)


EMITTED: dict[str, tuple[Emit, Array]] = {
    "scalar": (lambda b, x: b.scalar(3, S32, x), np.array(3, np.int32)),
    "constant": (
        lambda b, x: b.constant(array_shape(S32, (2,)), [4, 5], x),
        np.array([4, 5], np.int32),
    ),
    "fill": (lambda b, x: b.fill(0.5, x.shape, x), np.full_like(X, 0.5)),
    "iota": (lambda b, x: b.iota(x.shape, 1), np.broadcast_to(_floats([0, 1, 2]), (2, 3))),
    "convert": (lambda b, x: b.convert(x, S32), X.astype(np.int32)),
    "compare": (lambda b, x: b.compare("GT", x, b.fill(0, x.shape, x)), X > 0),
    "concatenate": (lambda b, x: b.concatenate((x, x, x), 1), np.concatenate((X, X, X), 1)),
    "slice": (lambda b, x: b.slice(x, ((1, 2, 1), (0, 3, 2))), X[1:2, 0:3:2]),
    "pad": (
        lambda b, x: b.pad(x, b.scalar(9, F32, x), ((0, 0, 1), (-1, 2, 0))),
        _floats([[-1, 0, 9, 9], [9, 9, 9, 9], [2, 3, 9, 9]]),
    ),
    "dynamic_slice": (lambda b, x: b.dynamic_slice(x, [_zero(b, x)] * 2, (1, 2)), X[:1, :2]),
    "dynamic_update_slice": (_emit_update, _floats([[-2, -1, 0], [7, 7, 3]])),
    "dot": (_emit_dot, X @ X.T),
    "reduce": (_emit_reduce, X.sum(0) + 10),
    "fold": (lambda b, x: b.fold("maximum", x, (0, 1), x), np.array(X.max())),
}


@pytest.mark.parametrize("name", EMITTED)
def test_emits_what_it_says(name: str) -> None:
    emit, expected = EMITTED[name]
    builder, x = _builder()
    value = emit(builder, x)
    assert value.shape is array_shape(value.shape.element_type, np.shape(expected))
    (actual,) = run_module(as_module(builder.finish(builder.make_tuple([value, x]))), [X])[:1]
    np.testing.assert_array_equal(actual, expected, strict=True)


NOTHING_TO_DO: dict[str, Emit] = {
    "convert": lambda b, x: b.convert(x, F32),
    "concatenate": lambda b, x: b.concatenate((x,), 0),
    "slice": lambda b, x: b.slice(x, ((0, 2, 1), (0, 3, 1))),
    "pad": lambda b, x: b.pad(x, x, ((0, 0, 0), (0, 0, 0))),
    "fold": lambda b, x: b.fold("add", x, (), x),
    "elements": lambda b, x: b.elements(x)[0],
}


@pytest.mark.parametrize("name", NOTHING_TO_DO)
def test_nothing_is_emitted_that_changes_nothing(name: str) -> None:
    builder, x = _builder()
    assert NOTHING_TO_DO[name](builder, x) is x
    assert builder.computation.instructions == [x]


def test_equal_instructions_are_one() -> None:
    builder, x = _builder()
    for emit, _ in EMITTED.values():
        value = emit(builder, x)
        if not value.called_computations:  # each reduction has its own
            assert emit(builder, x) is value


def test_a_slice_of_one_element_is_itself_whatever_its_stride() -> None:
    builder, x = _builder()
    column = builder.slice(x, ((0, 2, 1), (1, 2, 1)))
    assert builder.slice(column, ((0, 2, 1), (0, 1, 5))) is column


@pytest.mark.parametrize(
    ("element_type", "kind"),
    [(F32, "FLOAT"), (S32, "SIGNED"), (PrimitiveType.U8, "UNSIGNED")],
)
def test_comparisons_are_of_the_operands_type(element_type: PrimitiveType, kind: str) -> None:
    builder, x = _builder()
    number = builder.scalar(1, element_type, x)
    assert builder.compare("EQ", number, number).comparison_type == kind


def test_several_arrays_reduce_to_a_tuple() -> None:
    builder, x = _builder()
    numbers = builder.iota(array_shape(S32, X.shape), 0)
    inner = ComputationBuilder("first")
    types = (F32, S32, F32, S32)
    parameters = [inner.parameter(n, array_shape(t, ()), None) for n, t in enumerate(types)]
    to_apply = inner.finish(inner.make_tuple(parameters[:2]))
    starts = (builder.scalar(0, F32, x), _zero(builder, x))
    value = builder.reduce((x, numbers, *starts), (1,), to_apply)
    assert str(value.shape) == "(f32[2]{0}, s32[2]{0})"
    assert [element.shape for element in builder.elements(value)] == list(value.shape.tuple_shapes)


def test_numbers_of_other_sizes_are_no_constant() -> None:
    builder, x = _builder()
    with pytest.raises(VerificationError, match="cannot be a literal of shape"):
        builder.constant(array_shape(S32, (3,)), [4, 5], x)
    with pytest.raises(VerificationError, match="cannot be a literal of shape"):
        builder.scalar([4, 5], S32, x)


def test_edges_are_given_for_each_dimension() -> None:
    builder, x = _builder()
    with pytest.raises(ValueError, match="zip"):
        builder.pad(x, builder.scalar(0, F32, x), ((1, 0, 0),))
