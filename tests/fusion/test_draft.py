"""Kernels that are written down while they grow: they are what fusing one by one makes."""

from __future__ import annotations

import random
import re

import pytest

from fuselane.fusion.decision import FusionLog
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.fusion_cse import FusionCse
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.pipelines import run_pipeline
from fuselane.hlo import HloInstruction, HloModule, verify
from tests.hlo.xla import module_of

SHAPE = "f32[8]"
OPCODES = ("add", "multiply", "maximum", "sine", "negate", "select")


def random_module(seed: int) -> HloModule:
    """Returns a program each of whose values reads some of the six before it."""
    generator = random.Random(seed)
    names = [f"p{n}" for n in range(4)]
    lines = [f"{name} = {SHAPE} parameter({n})" for n, name in enumerate(names)]
    lines.append("b = pred[8] parameter(4)")
    for number in range(generator.randrange(4, 24)):
        opcode = generator.choice(OPCODES)
        count = {"sine": 1, "negate": 1}.get(opcode, 2)
        read = ", ".join(generator.choice(names[-6:]) for _ in range(count))
        names.append(f"v{number}")
        read = f"b, {read}" if opcode == "select" else read
        lines.append(f"{names[-1]} = {SHAPE} {opcode}({read})")
    roots = ", ".join(names[-3:])
    lines.append(f"ROOT t = ({SHAPE}, {SHAPE}, {SHAPE}) tuple({roots})")
    return module_of("HloModule m\nENTRY main { " + "\n".join(lines) + " }")


def grow(module: HloModule, seed: int, *, merges: bool, looks: bool, shares: bool) -> list[object]:
    """Fuses some producers into all of their users; returns the operands of each fusion then."""
    generator = random.Random(seed)
    fuser, seen = Fuser(module, module.entry), list[object]()
    if generator.random() < 0.4:
        run_pipeline([InstructionFusion(may_duplicate=generator.random() < 0.5)], module)
    order = [i for i in module.entry.post_order() if i.opcode not in ("parameter", "tuple")]
    place = {i: n for n, i in enumerate(module.entry.post_order())}
    if generator.random() < 0.5:
        generator.shuffle(order)
    for producer in order:
        users = [user for user in producer.users if user.opcode != "tuple"]
        if not users or generator.random() < 0.3:
            continue
        at = order.index(producer)
        for user in users:
            if merges:
                fusion = fuser.merge(producer, user, LOOP)
            else:
                fusion, _ = fuser.fuse(producer, user, LOOP)
            if user in order:
                order[order.index(user)] = fusion
            place[fusion] = place[user]
            seen.append([place[operand] for operand in fusion.operands])
            if generator.random() < 0.1 and looks:
                assert len(fusion.to_apply.parameters) == len(fusion.operands)
        assert order[at] is producer
    if merges:
        fuser.make_bodies(always if shares else never)
    fuser.finish()
    verify(module)
    return seen


def always(fusion: HloInstruction) -> bool:
    return True


def never(fusion: HloInstruction) -> bool:
    return False


def text(module: HloModule) -> list[list[str]]:
    """Returns what kernels compute, names aside."""
    found: list[list[str]] = []
    for fusion in module.entry.post_order():
        if fusion.opcode != "fusion":
            continue
        order = [i for i in fusion.to_apply.post_order() if i.opcode != "parameter"]
        names = {p: f"p{p.parameter_number}" for p in fusion.to_apply.parameters}
        names.update((member, f"m{number}") for number, member in enumerate(order))
        found.append([f"{i.opcode} {[names[o] for o in i.operands]}" for i in order])
    return found


@pytest.mark.parametrize("seed", range(150))
def test_it_is_what_fusing_one_by_one_makes(seed: int) -> None:
    """Operands in their order, bodies with all they repeat, and what is left of it without."""
    one_by_one = random_module(seed)
    operands = grow(one_by_one, seed, merges=False, looks=False, shares=False)
    for looks, shares in ((False, False), (True, False), (False, True)):
        merged = random_module(seed)
        assert grow(merged, seed, merges=True, looks=looks, shares=shares) == operands
        if not shares:
            assert text(merged) == text(one_by_one)
    FusionCse().run(one_by_one, FusionLog())
    FusionCse().run(merged, FusionLog())
    assert text(merged) == text(one_by_one)


def test_what_parts_have_in_common_is_computed_once() -> None:
    """%s is computed in %q and in %r, and both in %c."""
    body = f"""x = {SHAPE} parameter(0) s = {SHAPE} sine(x) q = {SHAPE} negate(s)
    r = {SHAPE} add(s, x) ROOT c = {SHAPE} multiply(q, r)"""
    sizes = []
    for shares in (False, True):
        module = module_of(f"HloModule m\nENTRY main {{ {body} }}")
        at = {i.name: i for i in module.entry.instructions}
        fuser = Fuser(module, module.entry)
        q, r = (fuser.merge(at["s"], at[name], LOOP) for name in "qr")
        c = fuser.merge(r, fuser.merge(q, at["c"], LOOP), LOOP)
        fuser.make_bodies(always if shares else never)
        fuser.finish()
        verify(module)
        sizes.append(sorted(re.sub(r"\W.*", "", i.opcode) for i in c.to_apply.instructions))
    assert sizes[0] == ["add", "multiply", "negate", "parameter", "sine", "sine"]
    assert sizes[1] == ["add", "multiply", "negate", "parameter", "sine"]
