"""Single edges: fused, split, refused, and named by numbers that stay."""

from __future__ import annotations

import pytest

from fuselane.boundary import BoundaryReason
from fuselane.fusion.pipelines import parse_pipeline, pipeline_text, run_pipeline
from fuselane.fusion.single_edges import FuseEdge, SplitKernel, edges_around, splits_of
from fuselane.fusion.values import Values
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from tests.hlo.xla import module_of, to_text

MODULE = """HloModule m
  ENTRY main { x = f32[8] parameter(0) y = f32[8] parameter(1) p = f32[8] sine(x)
  c = f32[8] add(p, y) d = f32[8] multiply(p, x) ROOT t = (f32[8], f32[8]) tuple(c, d) }"""
CHAIN = """HloModule m
  ENTRY main { x = f32[8] parameter(0) p = f32[8] sine(x) q = f32[8] sort(p), dimensions={0},
  to_apply={ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = pred[] compare(a, b),
  direction=LT }
  ROOT c = f32[8] add(p, q) }"""


def number_of(module: HloModule, name: str) -> int:
    """Returns the number of the value of an instruction of the entry computation."""
    values = Values(module.entry, 0)
    return next(v[0] for i, v in values.outputs.items() if i.name == name)


def fusions(module: HloModule) -> dict[str, list[str]]:
    """Returns the opcodes in each fusion, checked by XLA's own verifier."""
    to_text(module.to_bytes())

    def members(fusion: HloInstruction) -> list[str]:
        opcodes = [member.opcode for member in fusion.to_apply.instructions]
        return sorted(opcode for opcode in opcodes if opcode != "parameter")

    return {i.name: members(i) for i in module.entry.instructions if i.opcode == "fusion"}


def test_an_edge_into_one_consumer() -> None:
    """The producer stays for the other one."""
    module = module_of(MODULE)
    edge = FuseEdge(producer=number_of(module, "p"), consumer=number_of(module, "c"))
    (step,) = run_pipeline((edge,), module)
    assert step.decision.can_fuse
    assert list(fusions(module).values()) == [["add", "sine"]]
    assert any(i.opcode == "sine" for i in module.entry.instructions)


def test_an_edge_that_returns_the_producer() -> None:
    """It is computed once."""
    module = module_of(MODULE)
    ends = number_of(module, "p"), number_of(module, "c")
    run_pipeline((FuseEdge(producer=ends[0], consumer=ends[1], returned=True),), module)
    assert list(fusions(module).values()) == [["add", "sine", "tuple"]]
    assert not any(i.opcode == "sine" for i in module.entry.instructions)


def test_edges_are_those_of_one_loop() -> None:
    """A value of another shape than its consumer's is not returned from there."""
    module = module_of("""HloModule m
      ENTRY main { x = f32[4] parameter(0) p = f32[4] sine(x) q = f32[4] negate(p)
      c = f32[8] concatenate(p, p), dimensions={0}
      ROOT t = (f32[8], f32[4]) tuple(c, q) }""")
    p, q, c = (number_of(module, name) for name in "pqc")
    returned = {(e.producer, e.consumer) for e in edges_around(module) if e.returned}
    assert returned == {(p, q)}
    assert FuseEdge(producer=p, consumer=c) in set(edges_around(module))


def test_siblings() -> None:
    """Both in one kernel."""
    module = module_of(MODULE)
    edge = FuseEdge(producer=number_of(module, "c"), consumer=number_of(module, "d"))
    run_pipeline((edge,), module)
    assert list(fusions(module).values()) == [["add", "multiply", "tuple"]]


def test_what_would_need_itself() -> None:
    """The sort needs the producer, and the consumer the sort."""
    module = module_of(CHAIN)
    ends = number_of(module, "p"), number_of(module, "c")
    (step,) = run_pipeline((FuseEdge(producer=ends[0], consumer=ends[1], returned=True),), module)
    assert not step.decision.can_fuse
    assert step.decision.detail == "The kernel of `p` and `c` would need itself."
    assert fusions(module) == {}
    run_pipeline((FuseEdge(producer=ends[0], consumer=ends[1]),), module)
    assert list(fusions(module).values()) == [["add", "sine"]]


def test_no_kernels() -> None:
    """A parameter or a sort is none."""
    module = module_of(CHAIN)
    for ends in (("x", "p"), ("p", "q"), ("q", "c")):
        numbers = [number_of(module, name) for name in ends]
        (step,) = run_pipeline((FuseEdge(producer=numbers[0], consumer=numbers[1]),), module)
        assert not step.decision.can_fuse
    assert list(run_pipeline((FuseEdge(producer=1, consumer=2),), module)) == []


def test_kernels_of_several_results() -> None:
    """They are computed in no kernel that reads them as a tuple; those of a single one are."""
    one = """HloModule m
      made { a = f32[8] parameter(0) ROOT b = f32[8] sine(a) }
      read { i = f32[8] parameter(0) ROOT k = f32[8] abs(i) }
      ENTRY main { x = f32[8] parameter(0) p = f32[8] fusion(x), kind=kLoop, calls=made
      ROOT c = f32[8] fusion(p), kind=kLoop, calls=read }"""
    two = """HloModule m
      made { a = f32[8] parameter(0) b = f32[8] sine(a) ROOT r = (f32[8], f32[8]) tuple(b, a) }
      read { i = (f32[8], f32[8]) parameter(0) j = f32[8] get-tuple-element(i), index=0
      ROOT k = f32[8] abs(j) }
      ENTRY main { x = f32[8] parameter(0)
      p = (f32[8], f32[8]) fusion(x), kind=kLoop, calls=made
      ROOT c = f32[8] fusion(p), kind=kLoop, calls=read }"""
    for text, reason in ((one, None), (two, BoundaryReason.MULTI_OUTPUT)):
        module = module_of(text)
        ends = number_of(module, "p"), number_of(module, "c")
        (step,) = run_pipeline((FuseEdge(producer=ends[0], consumer=ends[1]),), module)
        assert step.decision.reason is reason


def test_splitting() -> None:
    """What only the value needs goes with it; splitting and fusing again gives the same."""
    module = module_of(MODULE)
    p, c, d = (number_of(module, name) for name in "pcd")
    whole = (FuseEdge(producer=c, consumer=d), FuseEdge(producer=p, consumer=d))
    run_pipeline(whole, module)
    assert list(fusions(module).values()) == [["add", "multiply", "sine", "tuple"]]
    (split,) = set(splits_of(module))
    assert split == SplitKernel(kernel=d, value=p)
    run_pipeline((split,), module)
    assert sorted(fusions(module).values()) == [["add", "multiply", "tuple"], ["sine"]]
    run_pipeline((FuseEdge(producer=p, consumer=c),), module)
    assert list(fusions(module).values()) == [["add", "multiply", "sine", "tuple"]]


def test_all_edges_of_a_module() -> None:
    """Each consumer in both ways, and siblings; nothing twice."""
    module = module_of(MODULE)
    p, c, d = (number_of(module, name) for name in "pcd")
    assert set(edges_around(module)) == {
        FuseEdge(producer=p, consumer=c),
        FuseEdge(producer=p, consumer=c, returned=True),
        FuseEdge(producer=p, consumer=d),
        FuseEdge(producer=p, consumer=d, returned=True),
        FuseEdge(producer=c, consumer=d, returned=True),
    }
    for edge in edges_around(module_of(MODULE)):
        changed = module_of(MODULE)
        run_pipeline((edge,), changed)
        assert len(fusions(changed)) == 1


@pytest.mark.parametrize(
    ("old", "new", "stays"),
    [
        ("HloModule m", "HloModule n", True),
        ("p = f32[8] sine(x)", 'p = f32[8] sine(x), metadata={op_name="s"}', True),
        ("d = f32[8] multiply(p, x)", "d = f32[8] multiply(x, x)", True),
        ("sine(x)", "cosine(x)", False),
        ("sine(x)", "sine(y)", False),
    ],
)
def test_numbers_stay(old: str, new: str, stays: bool) -> None:
    """As long as the value is the same."""
    changed = module_of(MODULE.replace(old, new))
    assert (number_of(changed, "p") == number_of(module_of(MODULE), "p")) == stays


def test_as_text() -> None:
    """Numbers are settings as others are."""
    pipeline = (FuseEdge(producer=7, consumer=8, returned=True), SplitKernel(kernel=1, value=2))
    assert parse_pipeline(pipeline_text(pipeline)) == pipeline
