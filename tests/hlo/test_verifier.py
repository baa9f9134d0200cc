"""Every rule of the verifier, broken once."""

from __future__ import annotations

from collections.abc import Callable

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
from tests.hlo import programs, xla

_Edit = Callable[[HloModule, dict[str, HloInstruction]], object]


def _entry(module: HloModule) -> dict[str, HloInstruction]:
    return {instruction.name: instruction for instruction in module.entry.instructions}


def _scalar() -> HloInstruction:
    return HloInstruction.create("iota", Shape.array(PrimitiveType.S32, ()))


def _move_to_front(module: HloModule, name: str) -> None:
    instruction = _entry(module)[name]
    module.entry.instructions.remove(instruction)
    module.entry.instructions.insert(0, instruction)


def _make_recursive(module: HloModule, loop: HloInstruction) -> None:
    recursion = HloInstruction.create("call", loop.shape, called_computations=[loop.body])
    loop.body.add(recursion)


_EDITS: dict[str, tuple[_Edit, str]] = {
    "order": (lambda m, i: _move_to_front(m, "init"), "in front of it"),
    "foreign operand": (lambda m, i: i["out"].operands.append(_scalar()), "in front of it"),
    "missing user": (lambda m, i: i["init"].users.clear(), "missing among the users"),
    "extra user": (lambda m, i: i["input"].users.append(i["loop"]), "listed as a user"),
    "double user": (lambda m, i: i["init"].users.append(i["loop"]), "twice"),
    "parent": (lambda m, i: setattr(i["input"], "computation", None), "belongs elsewhere"),
    "control order": (
        lambda m, i: i["init"].add_control_predecessor(i["loop"]),
        "Control predecessor",
    ),
    "control mirror": (
        lambda m, i: setattr(i["loop"], "control_predecessors", (i["input"],)),
        "successors",
    ),
    "extra successor": (
        lambda m, i: setattr(i["input"], "control_successors", (i["loop"],)),
        "listed as after",
    ),
    "same id": (lambda m, i: setattr(i["input"], "id", i["zero"].id), "not unique"),
    "same name": (lambda m, i: setattr(i["input"], "name", "zero"), "not unique"),
    "root": (lambda m, i: setattr(m.entry, "root", _scalar()), "root"),
    "parameter number": (
        lambda m, i: setattr(i["input"], "parameter_number", 3),
        "no parameter number 0",
    ),
    "parameter list": (lambda m, i: m.entry.parameters.clear(), "parameters listed"),
    "tuple shape": (
        lambda m, i: setattr(i["init"], "shape", Shape.tuple_of([i["input"].shape])),
        "its operands",
    ),
    "element shape": (
        lambda m, i: setattr(i["out"], "shape", i["zero"].shape),
        "the tuple's element",
    ),
    "element index": (lambda m, i: setattr(i["out"].proto, "tuple_index", 2), "element 2 of 2"),
    "loop shape": (lambda m, i: setattr(i["loop"], "shape", i["input"].shape), "its operand"),
    "swapped callees": (
        lambda m, i: i["loop"].call(i["loop"].condition, i["loop"].body),
        "root of condition",
    ),
    "foreign callee": (
        lambda m, i: m.computations.remove(i["loop"].body),
        "not in module",
    ),
    "foreign entry": (lambda m, i: setattr(m, "entry", HloComputation.create("e")), "entry"),
    "recursion": (lambda m, i: _make_recursive(m, i["loop"]), "depends on itself"),
}


def test_valid_modules_pass() -> None:
    for text in programs.ALL.values():
        verify(xla.module_of(text))


@pytest.mark.parametrize("name", list(_EDITS))
def test_broken_rules_are_named(name: str) -> None:
    edit, sentence = _EDITS[name]
    module = xla.module_of(programs.COUNTING_LOOP)
    edit(module, _entry(module))
    with pytest.raises(VerificationError, match=sentence):
        verify(module)


def test_condition_must_return_a_scalar_predicate() -> None:
    module = xla.module_of(programs.COUNTING_LOOP)
    loop = _entry(module)["loop"]
    loop.condition.root = loop.condition.instructions[0]
    with pytest.raises(VerificationError, match=r"pred\[\]"):
        verify(module)


def test_callee_must_take_the_operands() -> None:
    module = xla.module_of(programs.ALL["calls"])
    fusion = next(i for i in module.entry.instructions if i.opcode == "fusion")
    fusion.operands.append(fusion.operands[0])
    with pytest.raises(VerificationError, match="do not fit the operands"):
        verify(module)


def test_a_computation_without_a_module() -> None:
    computation = HloComputation.create("c")
    computation.root = computation.add(_scalar())
    verify_computation(computation)
