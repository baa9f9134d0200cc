"""Instructions: attributes, edges, making and copying."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.errors import VerificationError
from fuselane.hlo import (
    HloComputation,
    HloInstruction,
    HloModule,
    PrimitiveType,
    Shape,
    verify,
    verify_computation,
)
from fuselane.hlo.attributes import Works, work_of
from tests.hlo import programs, xla

_F32 = Shape.array(PrimitiveType.F32, (4,))


def _named(module: HloModule) -> dict[str, HloInstruction]:
    return {i.name: i for computation in module.computations for i in computation.instructions}


def _of_opcode(name: str, opcode: str) -> HloInstruction:
    module = xla.module_of(programs.ALL[name])
    instructions = [i for computation in module.computations for i in computation.instructions]
    return next(i for i in instructions if i.opcode == opcode)


def _parameter(number: int = 0) -> HloInstruction:
    return HloInstruction.create("parameter", _F32, parameter_number=number, name=f"p{number}")


def _chain() -> tuple[HloComputation, HloInstruction, HloInstruction, HloInstruction]:
    """Returns a computation of p, a = negate(p) and the root b = add(a, p), and these three."""
    computation = HloComputation.create("chain")
    p = computation.add(_parameter())
    a = computation.add(HloInstruction.create("negate", _F32, [p], name="a"))
    b = computation.add(HloInstruction.create("add", _F32, [a, p], name="b"))
    computation.root = b
    return computation, p, a, b


def test_attributes() -> None:
    assert _of_opcode("elementwise", "reduce-precision").exponent_bits == 5
    assert _of_opcode("elementwise", "reduce-precision").mantissa_bits == 7
    assert _of_opcode("elementwise", "pad").padding == ((1, 2, 0), (-1, 2, 0))
    assert _of_opcode("elementwise", "dynamic-slice").dynamic_slice_sizes == (1, 2)
    assert _of_opcode("indexed", "transpose").dimensions == (1, 0)
    assert _of_opcode("calls", "fusion").fusion_kind == "kLoop"
    assert _of_opcode("calls", "fusion").backend_config == b'{"a":[1]}'
    assert _of_opcode("calls", "reduce").to_apply.root.opcode == "add"
    assert _of_opcode("custom_calls", "custom-call").custom_call_target == "kernel"
    assert _of_opcode("custom_calls", "get-tuple-element").tuple_index == 0


def test_slice_and_comparison() -> None:
    cut = _of_opcode("elementwise", "slice")
    assert (cut.slice_starts, cut.slice_limits, cut.slice_strides) == ((0, 1), (4, 3), (2, 1))
    assert cut.slice_ranges == ((0, 4, 2), (1, 3, 1))
    compare = _of_opcode("calls", "compare")
    assert (compare.comparison_direction, compare.comparison_type) == ("LT", "TOTALORDER")


def test_metadata_and_frontend_attributes() -> None:
    copy = _of_opcode("elementwise", "copy")
    assert (copy.metadata.op_name, copy.metadata.source_line) == ("jit(f)/copy", 3)
    parameters = xla.module_of(programs.ALL["elementwise"]).entry.parameters
    assert parameters[1].frontend_attributes == {"a": "1", "b": "two"}
    assert parameters[0].frontend_attributes == {}
    assert [parameter.parameter_number for parameter in parameters] == [0, 1]


def test_while() -> None:
    loop = _of_opcode("counting_loop", "while")
    assert loop.body.root.opcode == "tuple"
    assert loop.condition.root.opcode == "compare"
    assert not loop.has_side_effect


def test_side_effects() -> None:
    module = _named(xla.module_of(programs.ALL["custom_calls"]))
    assert module["a"].has_side_effect and not module["b"].has_side_effect
    assert module["i"].has_side_effect and module["q"].has_side_effect
    body = HloComputation.create("body")
    body.root = body.add(HloInstruction.create("rng", _F32))
    assert HloInstruction.create("call", _F32, called_computations=[body]).has_side_effect


def test_missing_pieces_are_errors() -> None:
    add = HloInstruction.create("add", _F32)
    with pytest.raises(VerificationError, match="literal"):
        _ = add.literal
    with pytest.raises(VerificationError, match="lacks"):
        _ = add.body


def test_users_are_listed_once_oldest_first() -> None:
    _, p, a, b = _chain()
    twice = HloInstruction.create("multiply", _F32, [p, p])
    assert p.users == [a, b, twice]
    assert a.users == [b] and b.is_root and not a.is_root


def test_replace_operand() -> None:
    computation, p, a, b = _chain()
    b.replace_operand(1, a)
    assert b.operands == [a, a]
    assert a.users == [b] and p.users == [a]
    b.replace_operand(0, p)
    b.replace_operand(0, p)
    assert b.operands == [p, a] and p.users == [a, b] and a.users == [b]
    verify_computation(computation)


def test_replace_all_uses() -> None:
    computation, p, a, b = _chain()
    a.replace_all_uses_with(p)
    assert b.operands == [p, p] and a.users == [] and p.users == [a, b]
    computation.remove(a)
    b.replace_all_uses_with(p)
    assert computation.root is p
    verify_computation(computation)


def test_many_operands_give_way_one_after_the_other() -> None:
    """Those of a long list, some of which it has more than once, with other edits in between."""
    generator = np.random.default_rng(0)
    computation = HloComputation.create("long")
    values = [computation.add(_parameter(number)) for number in range(80)]
    operands = [*values, *values[::3]]
    user = computation.add(HloInstruction.create("concatenate", _F32, operands, name="c"))
    computation.root = user
    for step in range(100):
        old, new = operands[generator.integers(len(operands))], values[generator.integers(80)]
        if step % 4 == 3:
            new = computation.add(HloInstruction.create("iota", _F32), before=user)
        if step % 7 == 6:
            place = int(generator.integers(len(operands)))
            user.replace_operand(place, new)
            operands[place] = new
        elif step % 11 == 10:
            operands = operands[1:] if new in operands else [*operands[1:], new]
            user.replace_operands(operands)
        elif step % 13 == 12:
            place = next(n for n, o in enumerate(operands) if operands.count(o) == 1)
            operands = [*operands[:place], *operands[place + 1 :]]
            user.exchange_operand(place, [])
        else:
            old.replace_all_uses_with(new)
            operands = [new if operand is old else operand for operand in operands]
        assert user.operands == operands
        verify_computation(computation)


def test_replacement_may_use_what_it_replaces() -> None:
    computation, p, a, b = _chain()
    copy = computation.add(HloInstruction.create("copy", _F32, [p]), before=a)
    p.replace_all_uses_with(copy)
    assert p.users == [copy] and copy.users == [a, b]
    verify_computation(computation)


def test_replacement_must_have_the_shape() -> None:
    _, p, a, _ = _chain()
    with pytest.raises(VerificationError, match="cannot take the place"):
        a.replace_all_uses_with(HloInstruction.create("iota", Shape.array(PrimitiveType.F32, (5,))))
    assert p.users


def test_control_edges() -> None:
    computation, p, a, b = _chain()
    c = computation.add(HloInstruction.create("copy", _F32, [p]), before=b)
    c.add_control_predecessor(a)
    c.add_control_predecessor(a)
    b.add_control_predecessor(c)
    assert (c.control_predecessors, a.control_successors) == ((a,), (c,))
    verify_computation(computation)
    d = computation.add(HloInstruction.create("copy", _F32, [p]), before=b)
    c.move_control_edges_to(d)
    assert not c.control_predecessors and not c.control_successors
    assert d.control_predecessors == (a,) and b.control_predecessors == (d,)
    verify_computation(computation)
    d.drop_control_edges()
    assert not a.control_successors and not b.control_predecessors


def test_control_edges_are_written() -> None:
    module = xla.module_of(programs.SCHEDULED)
    names = _named(module)
    names["b"].add_control_predecessor(names["a"])
    module.entry.sort()
    assert "control-predecessors={%a}" in xla.to_text(module.to_bytes())
    names["b"].drop_control_edges()
    assert "control-predecessors" not in xla.to_text(module.to_bytes())


def test_create_with_attributes() -> None:
    p = _parameter()
    metadata = _of_opcode("elementwise", "copy").metadata
    cut = HloInstruction.create(
        "slice",
        Shape.array(PrimitiveType.F32, (2,)),
        [p],
        slice_dimensions=[{"start": 1, "limit": 3, "stride": 1}],
        metadata=metadata,
    )
    assert cut.slice_limits == (3,) and cut.metadata == metadata and cut.name == "slice"
    assert cut.metadata is not metadata
    with pytest.raises(ValueError, match="no_such_field"):
        HloInstruction.create("add", _F32, no_such_field=1)


def test_ids_of_detached_instructions_differ() -> None:
    assert len({_parameter(number).id for number in range(100)}) == 100


def test_clone() -> None:
    pad = _of_opcode("elementwise", "pad")
    p, zero = _parameter(), HloInstruction.create("constant", _F32, literal=np.zeros(4, np.float32))
    copy = pad.clone([p, zero], name="padded")
    assert copy.padding == pad.padding and copy.opcode == "pad" and copy.name == "padded"
    assert copy.shape is pad.shape and copy.operands == [p, zero] and copy.computation is None
    copy.proto.padding_config.dimensions[0].edge_padding_low = 5
    assert pad.padding[0][0] == 1
    assert p.users == [copy]


def test_copies_change_apart() -> None:
    """A copy and its original are copies of each other until one of them is changed."""
    original = HloInstruction.create("get-tuple-element", _F32, [_parameter()], tuple_index=3)
    copy, other = original.clone([]), original.clone([])
    assert copy.is_copy_of(other)
    copy.proto.tuple_index = 5
    assert [i.tuple_index for i in (original, copy, other)] == [3, 5, 3]
    original.proto.tuple_index = 4
    assert [i.tuple_index for i in (original, copy, other)] == [4, 5, 3]
    assert not copy.is_copy_of(other)


def test_become() -> None:
    """Everything of the other but its place; the two change apart."""
    computation, p, a, b = _chain()
    b.add_control_predecessor(a)
    other = HloInstruction.create("slice", _F32, [_parameter()], name="new", dimensions=[3])
    number = a.id
    a.become(other)
    assert (a.name, a.opcode, a.dimensions) == ("new", "slice", (3,))
    assert (a.id, a.operands, a.users) == (number, [p], [b])
    assert a.computation is computation and b.control_predecessors == (a,)
    a.proto.dimensions[:] = [4]
    assert (a.dimensions, other.dimensions) == ((4,), (3,))


def test_dimensions_of_copies_change_apart() -> None:
    """Also where they have been read before."""
    operand = HloInstruction.create("iota", Shape.array(PrimitiveType.F32, [2, 3]))
    original = HloInstruction.create("transpose", operand.shape, [operand], dimensions=[1, 0])
    copy = original.clone([operand])
    assert [i.dimensions for i in (original, copy)] == [(1, 0), (1, 0)]
    copy.proto.dimensions[:] = [0, 1]
    assert [i.dimensions for i in (original, copy)] == [(1, 0), (0, 1)]
    copy.proto.dimensions[:] = [1, 0]
    original.proto.dimensions[:] = [0, 1]
    assert [i.dimensions for i in (original, copy)] == [(0, 1), (1, 0)]


def test_works_differ_in_what_copies_do_not_share() -> None:
    """Copies have their attributes in common, but not their shapes."""
    narrow, wide = (Shape.array(PrimitiveType.F32, [size]) for size in (2, 3))
    original = HloInstruction.create("iota", narrow, dimensions=[0])
    same, other = original.clone([]), original.clone([], shape=wide)
    works = Works()
    assert works.of(original) == works.of(same) == work_of(same)
    assert works.of(original) != works.of(other)


def test_parameters_that_share_their_message_change_apart() -> None:
    """What is asked for of one, and its number, are no other's; nor is either a copy."""
    first, second = (HloInstruction.parameter(number, _F32, f"p{number}") for number in (0, 1))
    assert not first.is_copy_of(second)
    first.proto.exponent_bits, first.parameter_number = 5, 7
    third = HloInstruction.parameter(2, _F32, "p2")
    assert [i.exponent_bits for i in (first, second, third)] == [5, 0, 0]
    assert [i.parameter_number for i in (first, second, third)] == [7, 1, 2]


def test_clone_of_a_loop_with_another_body() -> None:
    module = xla.module_of(programs.COUNTING_LOOP)
    loop = _named(module)["loop"]
    other = HloComputation.create("other")
    copy = loop.clone(loop.operands, called_computations=[other, loop.condition])
    assert (copy.body, copy.condition) == (other, loop.condition)
    assert loop.body is not other


def test_changed_shapes_are_written() -> None:
    module = xla.module_of(programs.SCHEDULED)
    names = _named(module)
    wide = Shape.array(PrimitiveType.F64, (8,))
    names["a"].shape = wide
    names["a"].opcode = "convert"
    back = module.entry.add(
        HloInstruction.create("convert", names["x"].shape, [names["a"]], name="back")
    )
    names["c"].replace_operand(1, back)
    module.entry.sort()
    verify(module)
    text = xla.to_text(module.to_bytes())
    assert "%a = f64[8]{0} convert(%x)" in text and "add(%b, %back)" in text


def test_text() -> None:
    _, _, _, b = _chain()
    assert repr(b) == "b = f32[4]{0} add(a, p0)"
