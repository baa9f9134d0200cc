"""The edits strategies make: several results of one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from fuselane.errors import VerificationError
from fuselane.fusion.fuse import LOOP, Fuser
from fuselane.fusion.traversal import Reachability, xla_post_order
from fuselane.hlo import HloInstruction, HloModule, verify
from tests.hlo.xla import module_of, parse, run_module, to_text

X: Final = "x = f32[8] parameter(0) y = f32[8] parameter(1)"
PAIR: Final = """pair { i = f32[] parameter(0) j = f32[] parameter(1) k = f32[] parameter(2)
  l = f32[] parameter(3) sum = f32[] add(i, k) max = f32[] maximum(j, l)
  ROOT both = (f32[], f32[]) tuple(sum, max) }"""

Edit = Callable[[Fuser, dict[str, HloInstruction]], HloInstruction]


def edit(body: str, change: Edit) -> tuple[HloModule, HloInstruction]:
    """Edits the entry computation, has XLA run both modules, and returns ours and the fusion."""
    text = f"HloModule m\n{PAIR}\nENTRY main {{ {body} }}"
    module = module_of(text)
    fuser = Fuser(module, module.entry)
    fusion = change(fuser, {i.name: i for i in module.entry.instructions})
    fuser.finish()
    verify(module)
    to_text(module.to_bytes())
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    expected = run_module(module_of(text).to_bytes(), x, x * x)
    for ours, its in zip(run_module(module.to_bytes(), x, x * x), expected, strict=True):
        np.testing.assert_array_equal(ours, its)
    return module, fusion


def opcodes(module: HloModule) -> list[str]:
    ignored = ("parameter", "constant")
    return [i.opcode for i in module.entry.instructions if i.opcode not in ignored]


def test_producer_is_computed_once_and_returned_to_all_others() -> None:
    """The consumer's result comes first, then the producer's."""
    module, fusion = edit(
        f"""{X} p = f32[8] sine(x) c = f32[8] add(p, y) q = f32[8] negate(p)
        ROOT t = (f32[8], f32[8], f32[8]) tuple(c, q, p)""",
        lambda fuser, at: fuser.fuse_multi_output(at["p"], at["c"], LOOP),
    )
    assert sorted(opcodes(module)) == [
        "fusion",
        "get-tuple-element",
        "get-tuple-element",
        "negate",
        "tuple",
    ]
    assert [i.opcode for i in fusion.to_apply.root.operands] == ["add", "sine"]
    assert [i.opcode for i in fusion.to_apply.instructions].count("sine") == 1
    assert {o.name for o in fusion.operands} == {"x", "y"}
    assert fusion.fusion_kind == "kLoop"


@pytest.mark.parametrize("how", ["fuse", "merge", "take_in"])
def test_producer_that_others_wait_for_stays(how: str) -> None:
    """With its operands, though nothing reads it any more."""

    def change(fuser: Fuser, at: dict[str, HloInstruction]) -> HloInstruction:
        made = getattr(fuser, how)(at["p"], at["c"], LOOP)
        return made if isinstance(made, HloInstruction) else made[0]

    module, fusion = edit(
        f"""{X} p = f32[8] sine(x) c = f32[8] add(p, y)
        w = f32[8] negate(y), control-predecessors={{p}} ROOT t = (f32[8], f32[8]) tuple(c, w)""",
        change,
    )
    (waiting,) = (i for i in module.entry.instructions if i.opcode == "negate")
    (kept,) = waiting.control_predecessors
    assert [operand.name for operand in kept.operands] == ["x"]
    assert {operand.name for operand in fusion.operands} == {"x", "y"}


def test_producer_that_is_the_root() -> None:
    """The computation's result is then an element of the fusion's tuple."""
    module, _ = edit(
        f"{X} p = f32[8] sine(x) c = f32[8] add(p, y) ROOT r = f32[8] negate(p)",
        lambda fuser, at: fuser.fuse_siblings(at["c"], at["r"], LOOP),
    )
    assert module.entry.root.opcode == "get-tuple-element"


def test_fusions_grow_by_further_results() -> None:
    """Elements others read keep their places; the body of a fusion with several is taken over."""

    def change(fuser: Fuser, at: dict[str, HloInstruction]) -> HloInstruction:
        first = fuser.fuse_siblings(at["a"], at["b"], LOOP)
        second = fuser.fuse_siblings(at["c"], at["d"], LOOP)
        return fuser.fuse_siblings(first, second, LOOP)

    module, fusion = edit(
        f"""{X} a = f32[8] sine(x) b = f32[8] abs(x) c = f32[8] floor(x) d = f32[8] add(x, y)
        ROOT t = (f32[8], f32[8], f32[8], f32[8], f32[8]) tuple(d, c, b, a, a)""",
        change,
    )
    results = [i.opcode for i in fusion.to_apply.root.operands]
    assert results == ["sine", "abs", "floor", "add"]
    assert opcodes(module).count("fusion") == 1
    assert [o.tuple_index for o in module.entry.root.operands] == [3, 2, 1, 0, 0]
    assert sum(i.opcode == "tuple" for i in fusion.to_apply.instructions) == 1


def test_fusion_with_several_results_takes_in_a_producer() -> None:
    """What was an operand becomes a result."""

    def change(fuser: Fuser, at: dict[str, HloInstruction]) -> HloInstruction:
        fusion = fuser.fuse_siblings(at["a"], at["b"], LOOP)
        return fuser.fuse_multi_output(at["p"], fusion, LOOP)

    _, fusion = edit(
        f"""{X} p = f32[8] add(x, y) a = f32[8] sine(p) b = f32[8] multiply(p, x)
        ROOT t = (f32[8], f32[8], f32[8]) tuple(p, a, b)""",
        change,
    )
    assert [i.opcode for i in fusion.to_apply.root.operands] == ["sine", "multiply", "add"]
    assert [o.name for o in fusion.operands] == ["x", "y"]


def test_producer_used_twice_by_its_consumer() -> None:
    """One value in the body serves both places."""
    _, fusion = edit(
        f"{X} p = f32[8] sine(x) c = f32[8] multiply(p, p) ROOT t = (f32[8], f32[8]) tuple(c, p)",
        lambda fuser, at: fuser.fuse_multi_output(at["p"], at["c"], LOOP),
    )
    product, sine = fusion.to_apply.root.operands
    assert product.operands == [sine, sine]


def test_tuples_read_as_a_whole() -> None:
    """A reduction of pairs makes one result, which is a tuple."""
    module, fusion = edit(
        f"""{X} zero = f32[] constant(0)
        r = (f32[], f32[]) reduce(x, y, zero, zero), dimensions={{0}}, to_apply=pair
        a = f32[8] sine(x) s = f32[] get-tuple-element(r), index=0
        o = (f32[], f32[]) opt-barrier(r) m = f32[] get-tuple-element(o), index=1
        ROOT t = (f32[8], f32[], f32[]) tuple(a, s, m)""",
        lambda fuser, at: fuser.fuse_siblings(at["a"], at["r"], LOOP),
    )
    assert [shape.is_tuple for shape in fusion.shape.tuple_shapes] == [False, True]
    assert opcodes(module).count("opt-barrier") == 1


def test_root_that_is_a_fusions_tuple() -> None:
    """It is made again of the elements."""
    text = f"""HloModule m
    two {{ i = f32[8] parameter(0) j = f32[8] parameter(1) k = f32[8] sine(i)
      l = f32[8] add(i, j) ROOT t = (f32[8], f32[8]) tuple(k, l) }}
    ENTRY main {{ {X} c = f32[8] abs(y)
      ROOT f = (f32[8], f32[8]) fusion(x, y), kind=kLoop, calls=two }}"""
    module = module_of(text)
    at = {i.name: i for i in module.entry.instructions}
    fuser = Fuser(module, module.entry)
    fuser.fuse_siblings(at["f"], at["c"], LOOP)
    fuser.finish()
    verify(module)
    to_text(module.to_bytes())
    assert module.entry.root.opcode == "tuple"
    assert str(module.entry.root.shape) == "(f32[8]{0}, f32[8]{0})"


def test_control_edges_are_kept() -> None:
    """Those between the two vanish; all others become the fusion's."""
    module = module_of(f"""HloModule m
    ENTRY main {{ {X} z = f32[8] abs(y) p = f32[8] sine(x), control-predecessors={{z}}
      c = f32[8] add(x, y), control-predecessors={{p}}
      q = f32[8] negate(x), control-predecessors={{p}}
      ROOT t = (f32[8], f32[8], f32[8], f32[8]) tuple(p, c, q, z) }}""")
    at = {i.name: i for i in module.entry.instructions}
    fuser = Fuser(module, module.entry)
    fusion = fuser.fuse_siblings(at["p"], at["c"], LOOP)
    fuser.finish()
    verify(module)
    assert fusion.control_predecessors == (at["z"],)
    assert fusion.control_successors == (at["q"],)


def test_last_user_of_a_fusion_takes_over_its_body() -> None:
    """Those before get copies; all of them compute the same, and nothing has the same name."""
    taken: dict[str, HloInstruction] = {}

    def change(fuser: Fuser, at: dict[str, HloInstruction]) -> HloInstruction:
        producer = at["p"]
        sine = fuser.wrap(producer, LOOP)
        fusion, _ = fuser.fuse(at["a"], sine, LOOP)
        (member,) = (i for i in fusion.to_apply.instructions if i.opcode == "sine")
        taken["before"] = member
        first, copy = fuser.fuse(fusion, at["c"], LOOP)
        assert copy is not member
        assert member in fusion.to_apply.instructions
        last, taken["after"] = fuser.fuse(fusion, at["d"], LOOP)
        assert not fusion.users
        assert not fusion.to_apply.instructions
        assert member in last.to_apply.instructions
        assert first.to_apply is not last.to_apply
        return last

    edit(
        f"""{X} a = f32[8] multiply(x, y) p = f32[8] sine(a) c = f32[8] add(p, y)
        d = f32[8] subtract(p, a) ROOT t = (f32[8], f32[8]) tuple(c, d)""",
        change,
    )
    assert taken["before"] is taken["after"]


def test_cycles_are_found_out() -> None:
    """A producer must not reach its consumer by another way, and siblings not each other."""
    module = module_of(f"""HloModule m
    ENTRY main {{ {X} p = f32[8] sine(x) s = f32[8] abs(p)
      c = f32[8] add(p, s) ROOT t = (f32[8], f32[8]) tuple(c, p) }}""")
    at = {i.name: i for i in module.entry.instructions}
    fuser = Fuser(module, module.entry)
    fuser.fuse_multi_output(at["p"], at["c"], LOOP)
    with pytest.raises(VerificationError, match="depends on itself"):
        fuser.finish()


def test_reachability_is_that_of_the_edited_computation() -> None:
    """After each of several random merges it is what a new walk over the computation finds."""
    for seed in range(5):
        generator = np.random.default_rng(seed)
        module = HloModule.from_bytes(random_module(generator))
        fuser = Fuser(module, module.entry)
        reachability = Reachability(xla_post_order(module.entry))
        for _ in range(6):
            pair = unconnected_pair(module, generator)
            assert not reachability.are_connected(*pair)
            fusion = fuser.fuse_siblings(*pair, LOOP)
            reachability.merge(*pair, fusion)
            check_reachability(module, reachability)


def random_module(generator: np.random.Generator) -> bytes:
    """A computation of 30 sums of two earlier values each, all of them results."""
    lines = ["v0 = f32[8] parameter(0)", "v1 = f32[8] parameter(1)"]
    for number in range(2, 32):
        left, right = generator.integers(max(0, number - 12), number, 2)
        lines.append(f"v{number} = f32[8] add(v{left}, v{right})")
    results = ", ".join(f"v{number}" for number in range(2, 32))
    shapes = ", ".join(["f32[8]"] * 30)
    return parse(
        f"HloModule m\nENTRY main {{ {' '.join(lines)} ROOT t = ({shapes}) tuple({results}) }}"
    )


def unconnected_pair(
    module: HloModule, generator: np.random.Generator
) -> tuple[HloInstruction, HloInstruction]:
    candidates = [i for i in module.entry.instructions if i.opcode in ("add", "fusion") and i.users]
    fresh = Reachability(module.entry.post_order())
    pairs = [(a, b) for a in candidates for b in candidates if not fresh.are_connected(a, b)]
    return pairs[generator.integers(len(pairs))]


def check_reachability(module: HloModule, reachability: Reachability) -> None:
    order = [i for i in module.entry.post_order() if i.is_root or i.users]
    fresh = Reachability(order)
    work = [i for i in order if i.opcode != "get-tuple-element"]
    for left in work:
        for right in work:
            expected = fresh.is_reachable(left, right)
            assert reachability.is_reachable(left, right) is expected
