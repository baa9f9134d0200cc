"""Computations: adding, removing, order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuselane.errors import VerificationError
from fuselane.hlo import (
    HloComputation,
    HloInstruction,
    PrimitiveType,
    Shape,
    reachable_computations,
    verify_computation,
)
from tests.hlo import programs, xla

_S32 = Shape.array(PrimitiveType.S32, ())


def _parameter(number: int) -> HloInstruction:
    return HloInstruction.create("parameter", _S32, parameter_number=number)


def _add(left: HloInstruction, right: HloInstruction) -> HloInstruction:
    return HloInstruction.create("add", _S32, [left, right])


def test_read() -> None:
    module = xla.module_of(programs.ALL["calls"])
    fused = next(computation for computation in module.computations if computation.is_fusion)
    assert fused.name == "fused" and fused.module is module
    assert fused.root.opcode == "multiply" and fused.root.computation is fused
    assert [parameter.name for parameter in module.entry.parameters] == ["x", "y"]
    assert not module.entry.is_fusion


def test_parameters_are_sorted_by_number() -> None:
    computation = HloComputation.create("c")
    parameters = [computation.add(_parameter(number)) for number in (2, 0, 1)]
    assert computation.parameters == [parameters[1], parameters[2], parameters[0]]
    computation.remove(parameters[2])
    assert computation.parameters == [parameters[1], parameters[0]]


def test_root_before_it_is_set() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    assert not p.is_root
    with pytest.raises(VerificationError, match="no root"):
        _ = computation.root


def test_add_in_front_of_another() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    last = computation.add(_add(p, p))
    middle = computation.add(_add(p, p), before=last)
    assert computation.instructions == [p, middle, last]
    with pytest.raises(VerificationError, match="already in"):
        computation.add(middle)


def test_remove() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    a, b = computation.add(_add(p, p)), computation.add(_add(p, p))
    computation.root = b
    computation.remove(a)
    assert computation.instructions == [p, b] and p.users == [b]
    assert a.computation is None and a.operands == []
    for needed in (p, b, a):
        with pytest.raises(VerificationError):
            computation.remove(needed)


def test_a_control_predecessor_is_needed() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    a, b = computation.add(_add(p, p)), computation.add(_add(p, p))
    computation.root = b
    b.add_control_predecessor(a)
    with pytest.raises(VerificationError, match="needed"):
        computation.remove(a)
    assert computation.remove_dead_instructions() == 0


def test_dead_instructions() -> None:
    computation = HloComputation.create("c")
    p, q = computation.add(_parameter(0)), computation.add(_parameter(1))
    dead = computation.add(_add(p, q))
    computation.add(_add(dead, dead))
    effect = computation.add(HloInstruction.create("rng", _S32, [q]))
    computation.root = computation.add(_add(p, p))
    assert computation.remove_dead_instructions() == 2
    assert computation.instructions == [p, q, effect, computation.root]
    assert p.users == [computation.root] and q.users == [effect]
    verify_computation(computation)


def test_dropped_parameters() -> None:
    """They are gone from both lists, and those behind them have moved up."""
    computation = HloComputation.create("c")
    p, q, r = (computation.add(_parameter(number)) for number in range(3))
    computation.root = computation.add(_add(p, r))
    computation.drop_parameter(q)
    assert computation.parameters == [p, r] and r.parameter_number == 1
    assert computation.instructions == [p, r, computation.root] and q.computation is None
    verify_computation(computation)


def test_repetitions_give_way_to_others() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    a, b = computation.add(_add(p, p)), computation.add(_add(p, p))
    c, d = computation.add(_add(a, b)), computation.add(_add(b, a))
    computation.root = computation.add(_add(c, d))
    computation.replace_all({b: a, d: c})
    assert computation.instructions == [p, a, c, computation.root]
    assert c.operands == [a, a] and computation.root.operands == [c, c]
    assert p.users == [a] and a.users == [c] and b.computation is None
    verify_computation(computation)


@pytest.mark.parametrize("look", ["instructions", "parameters", "root", "post_order"])
def test_postponed_edits_are_made_when_somebody_looks(look: str) -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    computation.root = computation.add(_add(p, p))
    made = []
    computation.postpone(lambda: made.append(len(computation.instructions)))
    assert computation.ends_in({"add"}) and not made
    getattr(computation, look)
    assert made == [2] or look == "post_order"
    computation.post_order()
    assert made == [2]


@st.composite
def _shuffled(draw: st.DrawFn) -> HloComputation:
    """A computation of additions whose list of instructions is in any order."""
    computation = HloComputation.create("shuffled")
    computation.add(_parameter(0))
    for _ in range(draw(st.integers(1, 12))):
        operand = st.sampled_from(computation.instructions)
        computation.add(_add(draw(operand), draw(operand)))
    computation.root = computation.instructions[-1]
    computation.instructions[:] = draw(st.permutations(computation.instructions))
    return computation


@given(_shuffled())
def test_post_order(computation: HloComputation) -> None:
    order = computation.post_order()
    assert set(order) == set(computation.instructions)
    for number, instruction in enumerate(order):
        assert set(instruction.operands) <= set(order[:number])
    computation.sort()
    verify_computation(computation)
    assert computation.post_order() == order


def test_post_order_follows_edits() -> None:
    """It is kept, but not beyond an edit."""
    computation = HloComputation.create("c")
    x = computation.add(_parameter(0))
    a = computation.add(_add(x, x))
    b = computation.add(_add(x, x))
    computation.root = computation.add(_add(a, b))
    assert computation.post_order() == [x, a, b, computation.root]
    a.replace_operand(0, b)
    assert computation.post_order() == [x, b, a, computation.root]
    c = computation.add(_add(x, x))
    b.replace_operands([x, c])
    assert computation.post_order() == [x, c, b, a, computation.root]
    c.replace_all_uses_with(x)
    assert computation.post_order() == [x, b, a, computation.root, c]
    computation.remove(c)
    assert computation.post_order() == [x, b, a, computation.root]


def test_post_order_of_a_cycle() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    a = computation.add(_add(p, p))
    b = computation.add(_add(a, a))
    a.replace_operand(0, b)
    with pytest.raises(VerificationError, match="depends on itself"):
        computation.post_order()


def test_post_order_is_not_recursive() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    for _ in range(5000):
        p = computation.add(_add(p, p))
    computation.instructions.reverse()
    assert computation.post_order()[-1] is p


def test_post_order_minds_control_edges() -> None:
    computation = HloComputation.create("c")
    p = computation.add(_parameter(0))
    a, b = computation.add(_add(p, p)), computation.add(_add(p, p))
    a.add_control_predecessor(b)
    assert computation.post_order() == [p, b, a]


def test_reachable_computations() -> None:
    module = xla.module_of(programs.ALL["calls"])
    order = reachable_computations([module.entry])
    assert order[-1] is module.entry and set(order) == set(module.computations)


def test_reachable_computations_follow_what_is_called() -> None:
    module = xla.module_of(programs.ALL["calls"])
    fusion = next(i for i in module.entry.instructions if i.opcode == "fusion")
    before, other = fusion.to_apply, HloComputation.create("other")
    other.root = other.add(_parameter(0))
    assert before in reachable_computations([module.entry])
    fusion.call(other)
    assert fusion.to_apply is other
    after = reachable_computations([module.entry])
    assert other in after and before not in after
