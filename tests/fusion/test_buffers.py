"""Copies and control edges for what is overwritten: where they are needed, and where not."""

from __future__ import annotations

import pytest

from fuselane.errors import FuselaneError
from fuselane.fusion.buffers import insert_copies
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify
from tests.hlo.xla import module_of, to_text

LOOP = """HloModule m
cond {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(5)
    ROOT c = pred[] compare(i, n), direction=LT }}
body {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 one = s32[] constant(1)
    j = s32[] add(i, one) {body} }}
ENTRY main {{ z = s32[] constant(0) k = s32[] copy(z) {entry} }}"""


def loop(shape: str, body: str, entry: str) -> HloModule:
    return module_of(LOOP.format(shape=shape, body=body, entry=entry))


def run(module: HloModule) -> int:
    """Inserts copies, checks the module, and that it needs no more; returns how many."""
    count = insert_copies(module)
    verify(module)
    to_text(module.to_bytes())
    assert insert_copies(module) == 0
    return count


def named(module: HloModule, name: str) -> HloInstruction:
    (found,) = [i for c in module.computations for i in c.instructions if i.name == name]
    return found


def test_update_in_place() -> None:
    """What only the update reads needs no copy; an argument or a constant does."""
    update = "ROOT u = f32[8] dynamic-update-slice({0}, y, z)"
    text = """HloModule m ENTRY main {{ x = f32[8] parameter(0) y = f32[2] parameter(1)
        z = s32[] constant(1) s = f32[8] sine(x) c = f32[8] constant({{1,2,3,4,5,6,7,8}}) {0} }}"""
    assert run(module_of(text.format(update.format("s")))) == 0
    assert run(module_of(text.format(update.format("x")))) == 1
    assert run(module_of(text.format(update.format("c")))) == 1


def test_read_before_it_is_overwritten() -> None:
    """A reader that need not come later comes earlier, by a control edge."""
    module = module_of("""HloModule m ENTRY main { x = f32[8] parameter(0) y = f32[2] parameter(1)
        z = s32[] constant(1) s = f32[8] sine(x) u = f32[8] dynamic-update-slice(s, y, z)
        a = f32[8] abs(s) ROOT t = (f32[8], f32[8]) tuple(u, a) }""")
    assert run(module) == 0
    assert named(module, "u").control_predecessors == (named(module, "a"),)


def test_read_after_it_is_overwritten() -> None:
    """A reader that needs the update's result, too, makes it a copy."""
    module = module_of("""HloModule m ENTRY main { x = f32[8] parameter(0) y = f32[2] parameter(1)
        z = s32[] constant(1) s = f32[8] sine(x) u = f32[8] dynamic-update-slice(s, y, z)
        ROOT a = f32[8] add(s, u) }""")
    assert run(module) == 1
    assert named(module, "u").operands[0].opcode == "copy"


def test_fusion_that_reads_what_it_updates() -> None:
    """Where it updates it may read, elsewhere not: then it updates a copy and reads the rest."""
    text = """HloModule m
    f {{ p = f32[8] parameter(0) z = s32[] parameter(1) w = s32[] parameter(2)
        d = f32[2] dynamic-slice(p, {0}), dynamic_slice_sizes={{2}} s = f32[2] sine(d)
        ROOT u = f32[8] dynamic-update-slice(p, s, z) }}
    ENTRY main {{ x = f32[8] parameter(0) z = s32[] parameter(1) w = s32[] parameter(2)
        s = f32[8] sine(x) ROOT f = f32[8] fusion(s, z, w), kind=kLoop, calls=f }}"""
    assert run(module_of(text.format("z"))) == 0
    module = module_of(text.format("w"))
    assert run(module) == 1
    fusion = named(module, "f")
    assert [operand.opcode for operand in fusion.operands] == [
        "sine",
        "parameter",
        "parameter",
        "copy",
    ]
    assert fusion.to_apply.root.operands[0].parameter_number == 3


def test_loop_value_elementwise() -> None:
    """A new value made element by element from the old one takes its place, others do not."""
    shape = "(s32[], f32[8])"
    body = """x = f32[8] get-tuple-element(p), index=1 y = f32[8] {0}
        ROOT t = (s32[], f32[8]) tuple(j, y)"""
    entry = """x = f32[8] parameter(0) s = f32[8] sine(x) t = (s32[], f32[8]) tuple(k, s)
        w = (s32[], f32[8]) while(t), condition=cond, body=body
        ROOT r = f32[8] get-tuple-element(w), index=1"""
    assert run(loop(shape, body.format("sine(x)"), entry)) == 0
    assert run(loop(shape, body.format("reverse(x), dimensions={0}"), entry)) == 1


def test_loop_values_that_change_places() -> None:
    """Swapped values go through a third place."""
    shape = "(s32[], f32[8], f32[8])"
    body = """x = f32[8] get-tuple-element(p), index=1 y = f32[8] get-tuple-element(p), index=2
        ROOT t = (s32[], f32[8], f32[8]) tuple(j, y, x)"""
    entry = """x = f32[8] parameter(0) a = f32[8] sine(x) b = f32[8] abs(x)
        t = (s32[], f32[8], f32[8]) tuple(k, a, b)
        w = (s32[], f32[8], f32[8]) while(t), condition=cond, body=body
        ROOT r = f32[8] get-tuple-element(w), index=1"""
    assert run(loop(shape, body, entry)) == 3


def test_initial_values() -> None:
    """What a loop overwrites is its own: no argument, and nothing that is read later."""
    shape = "(s32[], f32[8], f32[8])"
    body = """x = f32[8] get-tuple-element(p), index=1 y = f32[8] get-tuple-element(p), index=2
        s = f32[8] sine(x) ROOT t = (s32[], f32[8], f32[8]) tuple(j, s, y)"""
    entry = """x = f32[8] parameter(0) a = f32[8] abs(x)
        t = (s32[], f32[8], f32[8]) tuple(k, {0}, x)
        w = (s32[], f32[8], f32[8]) while(t), condition=cond, body=body
        r = f32[8] get-tuple-element(w), index=1 ROOT q = f32[8] add(r, {1})"""
    assert run(loop(shape, body, entry.format("a", "x"))) == 0
    assert run(loop(shape, body, entry.format("a", "a"))) == 1
    assert run(loop(shape, body, entry.format("x", "r"))) == 1


def test_results_have_memory_of_their_own() -> None:
    """Arguments, constants and what is returned twice are copied."""
    module = module_of("""HloModule m ENTRY main { x = f32[8] parameter(0) s = f32[8] sine(x)
        b = f32[2,4] bitcast(s) c = f32[] constant(1)
        ROOT t = (f32[8], f32[8], f32[2,4], f32[]) tuple(x, s, b, c) }""")
    assert run(module) == 3


def test_branches() -> None:
    """A branch overwrites none of its arguments and returns none of them as they are."""
    module = module_of("""HloModule m
    a { x = f32[8] parameter(0) y = f32[2] constant({1, 2}) z = s32[] constant(1)
        ROOT u = f32[8] dynamic-update-slice(x, y, z) }
    b { ROOT x = f32[8] parameter(0) }
    ENTRY main { i = pred[] parameter(0) x = f32[8] parameter(1)
        ROOT c = f32[8] conditional(i, x, x), true_computation=a, false_computation=b }""")
    assert run(module) == 2


def test_what_is_not_known() -> None:
    """Asynchronous copies are not handled: the caller leaves the module to XLA."""
    module = module_of("""HloModule m ENTRY main { x = f32[8] parameter(0)
        s = (f32[8], f32[8], u32[]) copy-start(x) ROOT d = f32[8] copy-done(s) }""")
    with pytest.raises(FuselaneError, match="copy-start, is not handled"):
        insert_copies(module)
