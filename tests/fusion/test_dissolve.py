"""Undoing XLA's fusions, on modules as its CPU hook shows them."""

from __future__ import annotations

from fuselane.fusion.dissolve import dissolve
from fuselane.hlo.module import HloModule
from fuselane.hlo.verifier import verify
from tests.hlo.xla import module_of, to_text


def opcodes(module: HloModule) -> list[str]:
    return sorted(i.opcode for i in module.entry.instructions)


def test_shared_work_is_done_once() -> None:
    """What two fusions both compute is one instruction afterwards, its constant too."""
    module = module_of("""HloModule m
    f { p = f32[8] parameter(0) k = f32[] constant(2) b = f32[8] broadcast(k), dimensions={}
        m = f32[8] multiply(p, b) ROOT s = f32[8] sine(m) }
    g { p = f32[8] parameter(0) k = f32[] constant(2) b = f32[8] broadcast(k), dimensions={}
        m = f32[8] multiply(p, b) ROOT c = f32[8] cosine(m) }
    ENTRY main { x = f32[8] parameter(0) a = f32[8] fusion(x), kind=kLoop, calls=f
        b = f32[8] fusion(x), kind=kLoop, calls=g ROOT t = (f32[8], f32[8]) tuple(a, b) }""")
    assert dissolve(module) == 2
    verify(module)
    expected = ["broadcast", "constant", "cosine", "multiply", "parameter", "sine", "tuple"]
    assert opcodes(module) == expected
    assert len(module.computations) == 1
    to_text(module.to_bytes())


def test_results_of_several() -> None:
    """Elements of a fusion's tuple become what computes them."""
    module = module_of("""HloModule m
    f { p = f32[8] parameter(0) s = f32[8] sine(p) c = f32[8] cosine(p)
        ROOT t = (f32[8], f32[8]) tuple(s, c) }
    ENTRY main { x = f32[8] parameter(0) f = (f32[8], f32[8]) fusion(x), kind=kLoop, calls=f
        a = f32[8] get-tuple-element(f), index=0 b = f32[8] get-tuple-element(f), index=1
        ROOT r = f32[8] add(a, b) }""")
    assert dissolve(module) == 1
    verify(module)
    assert opcodes(module) == ["add", "cosine", "parameter", "sine"]


def test_what_stays() -> None:
    """Custom fusions and copies into other layouts stay; what runs as one function is no other
    code."""
    module = module_of("""HloModule m
    f { p = f32[8,8] parameter(0) ROOT s = f32[8,8] sine(p) }
    l { p = f32[8,8] parameter(0) ROOT s = f32[8,8] fusion(p), kind=kLoop, calls=f }
    g { p = f32[8,8] parameter(0) ROOT s = f32[8,8] cosine(p) }
    ENTRY main { x = f32[8,8]{1,0} parameter(0) c = f32[8,8]{0,1} copy(x) d = f32[8,8]{1,0} copy(x)
        a = f32[8,8] call(d), to_apply=l, frontend_attributes={xla_cpu_small_call="true"}
        b = f32[8,8] fusion(d), kind=kCustom, calls=g
        ROOT t = (f32[8,8]{0,1}, f32[8,8], f32[8,8]) tuple(c, a, b) }""")
    assert dissolve(module) == 1
    verify(module)
    assert opcodes(module) == ["call", "copy", "fusion", "parameter", "tuple"]
    (call,) = (i for i in module.entry.instructions if i.opcode == "call")
    assert call.to_apply.root.opcode == "sine"


def test_control_edges() -> None:
    """What had to run before a fusion runs before all that was in it."""
    module = module_of("""HloModule m
    f { p = f32[8] parameter(0) s = f32[8] sine(p) ROOT c = f32[8] abs(s) }
    ENTRY main { x = f32[8] parameter(0) n = f32[8] negate(x)
        a = f32[8] fusion(x), kind=kLoop, calls=f, control-predecessors={n}
        ROOT t = (f32[8], f32[8]) tuple(a, n) }""")
    dissolve(module)
    verify(module)
    by_opcode = {i.opcode: i for i in module.entry.instructions}
    for opcode in ("sine", "abs"):
        assert by_opcode["negate"] in by_opcode[opcode].control_predecessors
