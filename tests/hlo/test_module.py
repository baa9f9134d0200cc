"""Modules: edits that XLA accepts, ids, names, schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuselane.errors import VerificationError
from fuselane.hlo import HloComputation, HloInstruction, HloModule, PrimitiveType, Shape, verify
from fuselane.hlo.proto import HloModuleProto
from tests.hlo import programs, xla

_F32 = Shape.array(PrimitiveType.F32, (8,))


def _find(module: HloModule, name: str) -> HloInstruction:
    return next(i for i in module.entry.instructions if i.name == name)


def _replace_loop(module: HloModule) -> HloInstruction:
    """Puts a custom call in the place of the while named `loop` and returns it."""
    loop = _find(module, "loop")
    call = HloInstruction.create(
        "custom-call",
        loop.shape,
        loop.operands,
        name="loop",
        custom_call_target="kernel",
        custom_call_api_version=4,
        backend_config=b"{n = 1 : i64}",
    )
    module.entry.add(call, before=loop)
    loop.replace_all_uses_with(call)
    module.entry.remove(loop)
    module.remove_unused_computations()
    return call


def _square(name: str = "square") -> HloComputation:
    computation = HloComputation.create(name)
    p = computation.add(HloInstruction.create("parameter", _F32, name="p"))
    computation.root = computation.add(HloInstruction.create("multiply", _F32, [p, p]))
    return computation


def test_a_loop_becomes_a_custom_call() -> None:
    module = xla.module_of(programs.COUNTING_LOOP)
    call = _replace_loop(module)
    verify(module)
    assert module.computations == [module.entry]
    text = xla.to_text(module.to_bytes())
    assert f"%{call.name} = (s32[], f32[4,8]{{1,0}}) custom-call(%init)" in text
    assert "api_version=API_VERSION_TYPED_FFI" in text and "{n = 1 : i64}" in text
    assert "while(" not in text and "%body" not in text


def test_a_compiled_loop_becomes_a_custom_call() -> None:
    source = xla.to_text(xla.parse(programs.COUNTING_LOOP)).replace(
        "HloModule counting", "HloModule counting, is_scheduled=true"
    )
    module = xla.module_of(source)
    assert len(module.proto.schedule.sequences) == 3
    call = _replace_loop(module)
    data = module.to_bytes()
    sequences = HloModuleProto.FromString(data).schedule.sequences
    assert [entry.key for entry in sequences] == [module.entry.id]
    assert call.id in sequences[0].value.instruction_ids
    assert "is_scheduled=true" in xla.to_text(data)


def test_a_schedule_that_still_holds_is_kept() -> None:
    module = xla.module_of(programs.SCHEDULED)
    (entry,) = module.proto.schedule.sequences
    entry.value.instruction_ids[:] = [_find(module, name).id for name in "xbac"]
    written = HloModuleProto.FromString(module.to_bytes())
    assert written.schedule == module.proto.schedule
    _find(module, "b").replace_operand(0, _find(module, "a"))
    module.entry.sort()
    (entry,) = HloModuleProto.FromString(module.to_bytes()).schedule.sequences
    assert list(entry.value.instruction_ids) == [i.id for i in module.entry.instructions]


def test_new_computations() -> None:
    module = xla.module_of(programs.SCHEDULED)
    a = _find(module, "a")
    square = module.add(_square())
    call = module.entry.add(HloInstruction.create("call", _F32, [a], called_computations=[square]))
    a.users[0].replace_operand(1, call)
    module.entry.sort()
    verify(module)
    text = xla.to_text(module.to_bytes())
    assert "to_apply=%square" in text
    assert text.index("%square (") < text.index("ENTRY")


def test_names_and_ids_stay_unique() -> None:
    module = xla.module_of(programs.COUNTING_LOOP)
    for _ in range(3):
        module.add(_square("body"))
        module.entry.add(HloInstruction.create("iota", _F32, dimensions=[0], name="loop"))
    verify(module)
    names = [computation.name for computation in module.computations]
    assert len(set(names)) == len(names) == 6
    xla.to_text(module.to_bytes())


def test_free_names_are_kept() -> None:
    module = xla.module_of(programs.SCHEDULED)
    call = HloInstruction.create("sine", _F32, [_find(module, "x")], name="new")
    assert module.entry.add(call).name == "new"
    square = module.add(_square())
    assert (square.name, square.root.name) == ("square", "multiply")


@pytest.mark.parametrize("shift", [0, 32])
def test_ids_follow_what_the_module_does(shift: int) -> None:
    message = HloModuleProto.FromString(xla.parse(programs.SCHEDULED))
    computation = message.computations[0]
    computation.id = message.entry_computation_id = 5
    del message.schedule.sequences[:]
    for instruction in computation.instructions:
        instruction.id += 5 << shift
        instruction.operand_ids[:] = [number + (5 << shift) for number in instruction.operand_ids]
    computation.root_id += 5 << shift
    module = HloModule.from_bytes(message.SerializeToString())
    new = module.entry.add(HloInstruction.create("iota", _F32, dimensions=[0]))
    square = module.add(_square())
    verify(module)
    assert square.id == 6
    assert new.id == (5 << 32) + 4 if shift else 9
    assert [i.id >> 32 for i in square.instructions] == ([6, 6] if shift else [0, 0])
    xla.to_text(module.to_bytes())


def test_create() -> None:
    module = HloModule.create("made", _square("main"))
    verify(module)
    data = module.to_bytes()
    text = xla.to_text(data)
    assert "HloModule made, entry_computation_layout={(f32[8]{0})->f32[8]{0}}" in text
    assert xla.to_text(HloModule.from_bytes(data).to_bytes()) == text


def test_changed_signatures_are_written() -> None:
    module = xla.module_of(programs.SCHEDULED)
    pair = Shape.tuple_of([_F32, _F32])
    both = [_find(module, "a"), _find(module, "b")]
    module.entry.root = module.entry.add(HloInstruction.create("tuple", pair, both))
    module.entry.remove_dead_instructions()
    verify(module)
    text = xla.to_text(module.to_bytes())
    assert "entry_computation_layout={(f32[8]{0})->(f32[8]{0}, f32[8]{0})}" in text


def test_layouts_agreed_with_the_caller_stay() -> None:
    """XLA assigns layouts to instructions on its way to those of the entry computation."""
    text = """HloModule m, entry_computation_layout={(f32[2,3]{0,1})->f32[2,3]{0,1}}
    ENTRY main {
      x = f32[2,3]{0,1} parameter(0)
      ROOT y = f32[2,3]{0,1} negate(x)
    }"""
    module = xla.module_of(text)
    for instruction in module.entry.instructions:
        instruction.shape = Shape.array(PrimitiveType.F32, (2, 3))
    assert "entry_computation_layout={(f32[2,3]{0,1})->f32[2,3]{0,1}}" in xla.to_text(
        module.to_bytes()
    )


def test_constants_of_any_size() -> None:
    array = np.arange(100_000, dtype=np.int64)
    main = HloComputation.create("main")
    shape = Shape.array(PrimitiveType.S64, array.shape)
    main.root = main.add(HloInstruction.create("constant", shape, literal=array))
    again = HloModule.from_bytes(HloModule.create("m", main).to_bytes())
    np.testing.assert_array_equal(again.entry.root.literal, array)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(VerificationError, match="not an HloModuleProto"):
        HloModule.from_bytes(b"\x0f\xff\xff")
    with pytest.raises(VerificationError, match="entry"):
        HloModule.from_bytes(b"")


def _broken(edit: str) -> bytes:
    message = HloModuleProto.FromString(xla.parse(programs.COUNTING_LOOP))
    entry = message.computations[-1]
    match edit:
        case "operand":
            entry.instructions[-1].operand_ids[0] = 12345
        case "order":
            first = type(entry.instructions[0])()
            first.CopyFrom(entry.instructions[0])
            del entry.instructions[0]
            entry.instructions.append(first)
        case "root":
            entry.root_id = 12345
        case "callee":
            loop = next(i for i in entry.instructions if i.opcode == "while")
            loop.called_computation_ids[0] = 12345
        case "same ids":
            entry.instructions[1].id = entry.instructions[0].id
        case "same computation ids":
            entry.id = message.computations[0].id
    data: bytes = message.SerializeToString()
    return data


_EDITS = ["operand", "order", "root", "callee", "same ids", "same computation ids"]


@pytest.mark.parametrize("edit", _EDITS)
def test_broken_modules_are_refused(edit: str) -> None:
    with pytest.raises(VerificationError):
        HloModule.from_bytes(_broken(edit))


_GOOD = xla.parse(programs.ALL["calls"])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(_GOOD) - 1), st.integers(0, 255)), max_size=4))
def test_damaged_bytes_are_refused_or_read(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(_GOOD)
    for position, value in changes:
        damaged[position] = value
    try:
        module = HloModule.from_bytes(bytes(damaged))
        verify(module)
        module.to_bytes()
    except VerificationError as error:
        assert str(error)
