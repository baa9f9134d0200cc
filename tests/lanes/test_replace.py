"""Custom calls in the place of loops: buffers, order, users, what is removed."""

from __future__ import annotations

import pytest

from fuselane.analysis.small_calls import is_small_call, is_small_loop
from fuselane.errors import VerificationError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify
from fuselane.lanes.donation import copy_donated_arguments, count_donated_bytes
from fuselane.lanes.form import form
from fuselane.lanes.replace import replace_loop
from fuselane.lanes.small_calls import put_back_loops, take_out_loops
from tests.hlo.xla import module_of, to_text

ATTRIBUTES = b'{key = "k"}'

# A loop over: counter, state (1000 lanes), stacked output (100 rows), weights that do not change.
_LOOP = """
HloModule test{header}
body {{
  p = (s32[], f32[1000]{{0}}, f32[100,1000]{{1,0}}, f32[1000]{{0}}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1000]{{0}} get-tuple-element(p), index=1
  ys = f32[100,1000]{{1,0}} get-tuple-element(p), index=2
  w = f32[1000]{{0}} get-tuple-element(p), index=3
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  y = f32[1000]{{0}} multiply(x, w)
  z = f32[1000]{{0}} sine(y)
  row = f32[1,1000]{{1,0}} reshape(z)
  stacked = f32[100,1000]{{1,0}} dynamic-update-slice(ys, row, i, zero)
  ROOT r = (s32[], f32[1000]{{0}}, f32[100,1000]{{1,0}}, f32[1000]{{0}}) tuple(next, z, stacked, w)
}}
condition {{
  p = (s32[], f32[1000]{{0}}, f32[100,1000]{{1,0}}, f32[1000]{{0}}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({trips})
  ROOT less = pred[] compare(i, n), direction=LT
}}
ENTRY main {{
  state = f32[1000]{{0}} parameter(0)
  weights = f32[1000]{{0}} parameter(1)
  {entry}
}}
"""
_ENTRY = """
  zero = s32[] constant(0)
  start = s32[] copy(zero)
  fill = f32[] constant(0)
  filled = f32[100,1000]{1,0} broadcast(fill), dimensions={}
  own = f32[1000]{0} copy(state)
  init = (s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}) tuple(start, own, filled, weights)
  loop = (s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}) while(init), body=body,
      condition=condition, metadata={op_name="scan" source_file="user.py" source_line=7}
"""
_COUNTER = "count = s32[] get-tuple-element(loop), index=0\n"
_STATE = "last = f32[1000]{0} get-tuple-element(loop), index=1\n"
_STACKED = "rows = f32[100,1000]{1,0} get-tuple-element(loop), index=2\n"
_WEIGHTS = "same = f32[1000]{0} get-tuple-element(loop), index=3\n"


def parse(entry: str, trips: int = 100, header: str = "") -> HloModule:
    return module_of(_LOOP.format(entry=entry, trips=trips, header=header))


def find(module: HloModule, name: str) -> HloInstruction:
    return next(
        i for computation in module.computations for i in computation.instructions if i.name == name
    )


def replace(module: HloModule, name: str = "loop") -> HloInstruction:
    """Replaces a loop, checks the module with our verifier and XLA's parser; returns the call."""
    loop = find(module, name)
    call = replace_loop(loop, form(module, loop), "target", ATTRIBUTES)
    module.remove_unused_computations()
    verify(module)
    assert "while(" not in to_text(module.to_bytes())
    return call


def operand_names(call: HloInstruction) -> list[str]:
    return [operand.name for operand in call.operands]


def aliases(call: HloInstruction) -> dict[int, str]:
    """Returns for each result that shares a buffer the name of the operand it shares it with."""
    return {
        alias.output_shape_index[0]: call.operands[alias.operand_index].name
        for alias in call.proto.output_operand_aliasing
    }


def names(module: HloModule) -> set[str]:
    return {instruction.name for instruction in module.entry.instructions}


def test_state_shares_its_buffer() -> None:
    module = parse(_ENTRY + _STATE + "ROOT r = f32[1000]{0} negate(last)")
    call = replace(module)
    assert operand_names(call)[:2] == ["own", "weights"]
    assert aliases(call) == {0: "own"}
    assert [str(shape) for shape in call.shape.tuple_shapes] == ["f32[1000]{0}"]
    (element,) = call.users
    assert (element.opcode, element.tuple_index) == ("get-tuple-element", 0)
    assert element.users == [module.entry.root]


def test_the_call_itself() -> None:
    module = parse(_ENTRY + _STATE + "ROOT r = f32[1000]{0} negate(last)")
    call = replace(module)
    assert call.custom_call_target == "target"
    assert call.backend_config == ATTRIBUTES
    assert not call.has_side_effect
    assert str(module.source(call)) == "user.py:7"
    text = to_text(module.to_bytes())
    assert "api_version=API_VERSION_TYPED_FFI" in text
    assert "output_to_operand_aliasing={{0}: (0, {})}" in text


def test_whole_stream_gets_new_memory_and_its_filling_goes() -> None:
    module = parse(_ENTRY + _STACKED + "ROOT r = f32[100,1000]{1,0} negate(rows)")
    call = replace(module)
    assert aliases(call) == {}
    assert not {"filled", "fill", "init", "loop", "start"} & names(module)


def test_stream_written_in_part_keeps_its_memory() -> None:
    module = parse(_ENTRY + _STACKED + "ROOT r = f32[100,1000]{1,0} negate(rows)", trips=50)
    call = replace(module)
    assert aliases(call) == {0: "filled"}


def test_stream_copied_from_an_argument() -> None:
    """The copy of an array that is then overwritten is no work worth doing."""
    entry = "given = f32[100,1000]{1,0} parameter(2)\n" + _ENTRY.replace(
        "broadcast(fill), dimensions={}", "copy(given)"
    )
    module = parse(entry + _STACKED + "ROOT r = f32[100,1000]{1,0} negate(rows)")
    call = replace(module)
    assert aliases(call) == {}
    assert "filled" not in names(module) and "given" in names(module)
    assert "given" not in operand_names(call)


@pytest.mark.parametrize(
    ("value", "is_copied"), [("copy(zero)", False), ("get-tuple-element(pair), index=0", True)]
)
def test_uniform_state_gets_memory_of_its_own(value: str, is_copied: bool) -> None:
    """Several threads read its initial value while one writes the result."""
    entry = "n = s32[] parameter(2)\npair = (s32[], f32[1000]{0}) tuple(n, state)\n" + _ENTRY
    entry = entry.replace("copy(zero)", value)
    module = parse(entry + _COUNTER + "ROOT r = s32[] negate(count)")
    call = replace(module)
    assert 0 not in aliases(call)
    if is_copied:
        copy = next(operand for operand in call.operands if operand.shape.rank == 0)
        assert copy.opcode == "copy" and copy.operands[0].name == "start"


def test_forwarded_argument_shares_its_buffer() -> None:
    module = parse(_ENTRY + _WEIGHTS + _STATE + "ROOT r = f32[1000]{0} add(same, last)")
    call = replace(module)
    assert aliases(call) == {0: "own", 1: "weights"}
    root = module.entry.root
    assert [operand.tuple_index for operand in root.operands] == [1, 0]


def test_elements_that_stay_alike_begin_with_one_value_and_part() -> None:
    """XLA has no copy for them, as neither is ever another one than the other."""
    entry = _ENTRY.replace("(start, own, filled, weights)", "(start, weights, filled, weights)")
    text = _LOOP.replace("tuple(next, z, stacked, w)", "tuple(next, w, stacked, w)")
    entry += _WEIGHTS + _STATE + _STACKED + "ROOT r = (f32[1000]{0}, f32[1000]{0}, "
    entry += "f32[100,1000]{1,0}) tuple(last, same, rows)"
    call = replace(module_of(text.format(entry=entry, trips=100, header="")))
    (copy,) = (operand for operand in call.operands if operand.opcode == "copy")
    assert [operand.name for operand in copy.operands] == ["weights"]
    state, forwarded = aliases(call).values()
    assert (state, forwarded) == (copy.name, "weights"), "nothing is written to an argument"


def test_forwarded_constant_is_used_directly() -> None:
    entry = _ENTRY.replace("own, filled, weights)", "own, filled, ones)")
    entry = "ones = f32[1000]{0} constant({...})\n" + entry
    module = parse(entry + _WEIGHTS + _STATE + "ROOT r = f32[1000]{0} add(same, last)")
    call = replace(module)
    assert aliases(call) == {0: "own"}
    assert module.entry.root.operands[0].opcode == "constant"


def test_loop_that_is_the_root() -> None:
    module = parse(_ENTRY.replace("loop = (", "ROOT loop = ("))
    call = replace(module)
    root = module.entry.root
    assert root.opcode == "tuple" and len(root.operands) == 4
    assert all(operand.operands == [call] for operand in root.operands)
    assert sorted(aliases(call).values()) == ["own", "weights"]


def test_loop_used_as_a_whole_and_by_element() -> None:
    entry = _ENTRY + _STATE + "kept = (s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}) "
    entry += "copy(loop)\nROOT r = ((s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}), "
    entry += "f32[1000]{0}) tuple(kept, last)"
    module = parse(entry)
    call = replace(module)
    kept = find(module, "kept")
    assert kept.operands[0].opcode == "tuple"
    assert len(call.users) == 4


def test_unused_results_are_dropped() -> None:
    module = parse(_ENTRY + _COUNTER + _STATE + "ROOT r = f32[1000]{0} negate(last)")
    call = replace(module)
    assert len(call.shape.tuple_shapes) == 1
    assert "count" not in names(module)


def test_order_is_kept() -> None:
    """What ran before the loop because it fed a part that is dropped runs before the call."""
    entry = _ENTRY.replace(
        "broadcast(fill), dimensions={}",
        "dynamic-update-slice(large, given, zero, zero)",
    )
    extra = """
  given = f32[1,1000]{1,0} parameter(2)
  large = f32[100,1000]{1,0} parameter(3)
  before = f32[1000]{0} cosine(weights)
"""
    entry = extra + entry.replace(
        "own = ", "doubled = f32[100,1000]{1,0} add(filled, filled)\n  own = "
    )
    end = _STACKED + "ROOT r = (f32[100,1000]{1,0}, f32[100,1000]{1,0}) tuple(rows, doubled)"
    module = parse(entry + end)
    find(module, "loop").add_control_predecessor(find(module, "before"))
    call = replace(module)
    assert [other.name for other in call.control_predecessors] == ["before", "filled"]
    assert "before" in names(module)


def test_what_only_an_order_needs_is_removed() -> None:
    """What ran before it, and what it read, then run before what had to wait for it."""
    entry = _ENTRY.replace("broadcast(fill), dimensions={}", "negate(large)").replace(
        "fill = f32[] constant(0)", "large = f32[100,1000]{1,0} exponential(given)"
    )
    extra = """
  given = f32[100,1000]{1,0} parameter(2)
  before = f32[1000]{0} cosine(weights)
  other = f32[100,1000]{1,0} sine(given)
"""
    end = _STACKED + "ROOT r = (f32[100,1000]{1,0}, f32[100,1000]{1,0}) tuple(rows, other)"
    module = parse(extra + entry + end)
    find(module, "filled").add_control_predecessor(find(module, "before"))
    find(module, "other").add_control_predecessor(find(module, "filled"))
    replace(module)
    assert not {"filled", "large"} & names(module)
    (before,) = find(module, "other").control_predecessors
    assert before.name == "before"


def test_loop_inside_a_loop() -> None:
    """The inner loop becomes a call inside the body of the outer one, which stays."""
    text = """
HloModule nested
inner_body {
  p = (s32[], f32[1000]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1000]{0} get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[1000]{0} sine(x)
  ROOT r = (s32[], f32[1000]{0}) tuple(next, y)
}
inner_condition {
  p = (s32[], f32[1000]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(50)
  ROOT less = pred[] compare(i, n), direction=LT
}
outer_body {
  p = (s32[], f32[1000]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[1000]{0} get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  zero = s32[] constant(0)
  t = (s32[], f32[1000]{0}) tuple(zero, x)
  loop = (s32[], f32[1000]{0}) while(t), body=inner_body, condition=inner_condition
  y = f32[1000]{0} get-tuple-element(loop), index=1
  turned = f32[1000]{0} reverse(y), dimensions={0}
  ROOT r = (s32[], f32[1000]{0}) tuple(next, turned)
}
outer_condition {
  p = (s32[], f32[1000]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(50)
  ROOT less = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[1000]{0} parameter(0)
  own = f32[1000]{0} copy(x)
  zero = s32[] constant(0)
  start = s32[] copy(zero)
  t = (s32[], f32[1000]{0}) tuple(start, own)
  ROOT outer = (s32[], f32[1000]{0}) while(t), body=outer_body, condition=outer_condition
}
"""
    module = module_of(text)
    loop = find(module, "loop")
    call = replace_loop(loop, form(module, loop), "target", ATTRIBUTES)
    module.remove_unused_computations()
    verify(module)
    assert call.computation is not None and call.computation.name == "outer_body"
    assert aliases(call) == {0: call.operands[0].name}
    assert not any(c.name.startswith("inner") for c in module.computations)


def test_program_of_another_loop_is_refused() -> None:
    first = parse(_ENTRY + _STATE + "ROOT r = f32[1000]{0} negate(last)")
    second = parse(_ENTRY + _STATE + "ROOT r = f32[1000]{0} negate(last)")
    program = form(second, find(second, "loop"))
    with pytest.raises(VerificationError, match="do not fit together"):
        replace_loop(find(first, "loop"), program, "target", ATTRIBUTES)


# Small calls.

_SMALL = """
  zero = s32[] constant(0)
  start = s32[] copy(zero)
  fill = f32[] constant(0)
  filled = f32[100,1000]{1,0} broadcast(fill), dimensions={}
  own = f32[1000]{0} copy(state)
  init = (s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}) tuple(start, own, filled, weights)
  small = (s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}) call(init), to_apply=callee,
      frontend_attributes={xla_cpu_small_call="true"}
  last = f32[1000]{0} get-tuple-element(small), index=1
  ROOT r = f32[1000]{0} negate(last)
"""
_CALLEE = """
callee {
  p = (s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}) parameter(0)
  ROOT loop = (s32[], f32[1000]{0}, f32[100,1000]{1,0}, f32[1000]{0}) while(p), body=body,
      condition=condition
}
ENTRY main"""


def parse_small() -> HloModule:
    text = _LOOP.replace("ENTRY main", _CALLEE.replace("{", "{{").replace("}", "}}"))
    return module_of(text.format(entry=_SMALL, trips=100, header=""))


def test_loop_in_a_small_call() -> None:
    module = parse_small()
    assert is_small_call(find(module, "small"))
    take_out_loops(module)
    loop = find(module, "loop")
    assert is_small_loop(loop) and loop.computation is module.entry
    call = replace_loop(loop, form(module, loop), "target", ATTRIBUTES)
    put_back_loops(module)
    module.remove_unused_computations()
    verify(module)
    assert aliases(call) == {0: "own"}
    assert [computation.name for computation in module.computations] == ["main"]


def test_loop_put_back_into_its_small_call() -> None:
    module = parse_small()
    take_out_loops(module)
    find(module, "loop").add_control_predecessor(find(module, "state"))
    put_back_loops(module)
    module.remove_unused_computations()
    verify(module)
    last = find(module, "last")
    (call,) = last.operands
    assert is_small_call(call) and call.operands == [find(module, "init")]
    assert call.control_predecessors == (find(module, "state"),)
    loop = call.to_apply.root
    assert loop.name == "loop" and loop.operands == call.to_apply.parameters
    assert loop.body.name == "body" and not is_small_loop(loop)


def test_a_loop_that_was_in_no_small_call_is_put_into_none() -> None:
    module = parse(_ENTRY + _STATE + "ROOT r = f32[1000]{0} negate(last)")
    before = module.to_bytes()
    take_out_loops(module)
    put_back_loops(module)
    assert module.to_bytes() == before


# Donated arguments.


def test_donated_argument_is_copied() -> None:
    entry = _ENTRY.replace("tuple(start, own,", "tuple(start, state,")
    module = parse(
        entry + _STATE + "ROOT r = f32[1000]{0} negate(last)",
        header=", input_output_alias={ {}: (0, {}, may-alias) }",
    )
    assert count_donated_bytes(module) == 4000
    call = replace(module)
    assert aliases(call) == {0: "state"}
    copy_donated_arguments(module)
    verify(module)
    assert call.operands[0].opcode == "copy" and call.operands[0].operands[0].name == "state"


def test_donated_argument_that_is_only_read_is_not_copied() -> None:
    module = parse(
        _ENTRY + _STATE + "ROOT r = f32[1000]{0} negate(last)",
        header=", input_output_alias={ {}: (0, {}, may-alias) }",
    )
    replace(module)
    before = names(module)
    copy_donated_arguments(module)
    assert names(module) == before


def test_donated_argument_that_is_returned() -> None:
    text = """
HloModule returned, input_output_alias={ {0}: (0, {}, may-alias) }
ENTRY main {
  x = f32[8]{0} parameter(0)
  y = f32[8]{0} negate(x)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(x, y)
}
"""
    module = module_of(text)
    copy_donated_arguments(module)
    verify(module)
    assert module.entry.root.operands[0].opcode == "copy"


@pytest.mark.parametrize("is_fused", [False, True])
def test_donated_argument_of_which_elements_are_changed(is_fused: bool) -> None:
    """XLA has left out the copy in front, and once it forgets about donation, none is made."""
    update = "f32[8]{0} dynamic-update-slice(x, y, i)"
    operands = "x = f32[8]{0} parameter(0) y = f32[1]{0} parameter(1) i = s32[] parameter(2)"
    result = "f32[8]{0} fusion(x, y, i), kind=kLoop, calls=changed" if is_fused else update
    text = f"""
HloModule changed, input_output_alias={{ {{}}: (0, {{}}, may-alias) }}
changed {{
  {operands.replace("parameter(0)", "parameter(0) b = f32[8]{0} bitcast(x)", 1)}
  ROOT u = {update.replace("(x", "(b")}
}}
ENTRY main {{
  {operands}
  ROOT r = {result}
}}
""".replace(") ", ")\n  ")
    module = module_of(text)
    copy_donated_arguments(module)
    verify(module)
    first, *others = module.entry.root.operands
    assert first.opcode == "copy" and {other.opcode for other in others} == {"parameter"}
