"""Fusions that take in instructions one after the other: what they compute, and when."""

from __future__ import annotations

import re
from typing import Final

import pytest

from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.pipelines import parse_pipeline, run_pipeline
from fuselane.hlo import HloInstruction, HloModule, verify
from tests.fusion.test_fuse import X, edit
from tests.hlo.xla import module_of

BODY: Final = f"""{X} p = f32[8] sine(x) q = f32[8] add(p, y) c = f32[8] multiply(q, p)
ROOT t = (f32[8], f32[8]) tuple(c, p)"""
"""%p is read by %c, and by %q that %c reads as well; it stays for the root."""

TAKEN: Final = ("p", "q", "p")


@pytest.mark.parametrize("looked_at", range(4))
def test_what_is_taken_in_is_computed(looked_at: int) -> None:
    """Also if the body is looked at on the way, and if something is taken in again."""

    def change(fuser: Fuser, at: dict[str, HloInstruction]) -> HloInstruction:
        fusion = at["c"]
        for count, name in enumerate(TAKEN):
            fusion, value = fuser.take_in(at[name], fusion, LOOP)
            assert value.opcode == at[name].opcode
            if count == looked_at:
                assert len(fusion.to_apply.parameters) == len(fusion.operands)
        return fusion

    _, fusion = edit(BODY, change)
    assert [operand.name for operand in fusion.operands] == ["x", "y"]
    expected = ["add", "multiply", "parameter", "parameter", "sine", "sine"]
    assert sorted(member.opcode for member in fusion.to_apply.instructions) == expected


def test_it_is_what_taking_in_one_by_one_makes() -> None:
    modules = []
    for way in (Fuser.fuse, Fuser.take_in):
        module = module_of(f"HloModule m\nENTRY main {{ {BODY} }}")
        at = {i.name: i for i in module.entry.instructions}
        fuser, fusion = Fuser(module, module.entry), at["c"]
        for name in TAKEN:
            fusion, _ = way(fuser, at[name], fusion, LOOP)
        fuser.finish()
        verify(module)
        modules.append([repr(i) for i in fusion.to_apply.instructions])
    one_by_one, at_once = ([re.sub(r"[.\d]+ = |[.\d]+(?=[,)])", "", i) for i in m] for m in modules)
    assert at_once == one_by_one


def test_an_operand_that_becomes_another() -> None:
    """%q, which %c reads, becomes a fusion while %c has yet to get its body."""

    def change(fuser: Fuser, at: dict[str, HloInstruction]) -> HloInstruction:
        fusion, _ = fuser.take_in(at["p"], at["c"], LOOP)
        fuser.take_in(at["p"], at["q"], LOOP)
        return fusion

    _, fusion = edit(BODY, change)
    assert [operand.opcode for operand in fusion.operands] == ["fusion", "parameter"]


def test_names_do_not_pile_up_numbers() -> None:
    """However often an instruction was copied and moved, its name has one."""
    lines = [f"v{n} = f32[8] add(v{n - 1}, v{max(0, n - 3)})" for n in range(2, 30)]
    text = " ".join(lines).replace("v0", "x").replace("v1,", "y,").replace("v1)", "y)")
    module: HloModule = module_of(
        f"HloModule m\nENTRY main {{ {X} {text} ROOT t = (f32[8], f32[8]) tuple(v29, v20) }}"
    )
    run_pipeline(parse_pipeline("xla-2023"), module)
    names = [i.name for c in module.computations for i in c.instructions]
    assert max(name.count(".") for name in names) == 1
