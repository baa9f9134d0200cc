"""Normal form: what vanishes, and what becomes of layouts, tuples and calls."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.analysis.opcodes import LANE_OPCODES
from fuselane.hlo.computation import HloComputation, reachable_computations
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.known import known_elements
from fuselane.lanes.normal_loop import NormalLoop
from fuselane.lanes.normalise import normalise
from tests.hlo.xla import module_of, to_text
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module, run_module


def normal(body: str, results: list[str], carried: list[str], **more: str) -> NormalLoop:
    return normalise(loop_of(counting_loop(body, results, carried, **more)))


def body_of(loop: NormalLoop) -> HloComputation:
    return next(i for i in loop.region.instructions if i.opcode == "while").body


def opcodes(computation: HloComputation) -> list[str]:
    return [i.opcode for i in computation.instructions]


def find(computation: HloComputation, opcode: str) -> HloInstruction:
    return next(i for i in computation.instructions if i.opcode == opcode)


def check(loop: NormalLoop) -> None:
    """Checks that a region holds only what lane programs may and that XLA accepts it."""
    for computation in reachable_computations([loop.region]):
        assert set(opcodes(computation)) <= LANE_OPCODES
        for instruction in computation.instructions:
            assert instruction.computation is computation
            assert instruction.shape.is_tuple or instruction.shape.is_row_major
    assert "while" in to_text(as_module(loop.region).to_bytes())


def test_fusions_and_copies_vanish() -> None:
    fused = """fused {
        a0 = f32[8] parameter(0)
        b0 = f32[8] sine(a0)
        ROOT d0 = f32[8] copy(b0)
    }"""
    body = """c = f32[8] copy(e0)
        f = f32[8] fusion(c), kind=kLoop, calls=fused
        y = f32[8] copy(f)"""
    loop = normal(body, ["y"], ["f32[8]"], more=fused)
    assert sorted(opcodes(body_of(loop))) == sorted(
        ["parameter", *["get-tuple-element"] * 2, "constant", "add", "sine", "tuple"]
    )
    assert find(body_of(loop), "sine").name == "b0"
    check(loop)


def test_a_fusion_of_two_results() -> None:
    fused = """fused {
        a0 = f32[8] parameter(0)
        b0 = f32[8] sine(a0)
        c0 = f32[8] cosine(a0)
        ROOT d0 = (f32[8], f32[8]) tuple(b0, c0)
    }"""
    body = """f = (f32[8], f32[8]) fusion(e0), kind=kLoop, calls=fused
        s = f32[8] get-tuple-element(f), index=0
        c = f32[8] get-tuple-element(f), index=1
        y = f32[8] add(s, c)"""
    loop = normal(body, ["y"], ["f32[8]"], more=fused)
    assert {"sine", "cosine"} <= set(opcodes(body_of(loop)))
    check(loop)


def test_equal_instructions_are_shared() -> None:
    body = """a = f32[8] sine(e0)
        b = f32[8] sine(e0)
        c1 = f32[] constant(2)
        c2 = f32[] constant(2)
        d1 = f32[8] broadcast(c1), dimensions={}
        d2 = f32[8] broadcast(c2), dimensions={}
        f = f32[8] multiply(a, d1)
        g = f32[8] multiply(b, d2)
        y = f32[8] add(f, g)"""
    loop = normal(body, ["y"], ["f32[8]"])
    assert opcodes(body_of(loop)).count("sine") == 1
    assert opcodes(body_of(loop)).count("multiply") == 1


def test_zeros_of_both_signs_differ() -> None:
    body = """c1 = f32[] constant(0)
        c2 = f32[] constant(-0.0)
        d1 = f32[8] broadcast(c1), dimensions={}
        d2 = f32[8] broadcast(c2), dimensions={}
        f = f32[8] maximum(e0, d1)
        y = f32[8] minimum(f, d2)"""
    constants = body_of(normal(body, ["y"], ["f32[8]"])).instructions
    values = [i.literal for i in constants if i.opcode == "constant" and i.shape.rank == 0]
    floats = [value for value in values if value.dtype == np.float32]
    assert sorted(np.signbit(floats)) == [False, True]


@pytest.mark.parametrize(
    "trivial",
    [
        "y = f32[8] reshape(s)",
        "y = f32[8] slice(s), slice={[0:8]}",
        "y = f32[8] dynamic-slice(s, i), dynamic_slice_sizes={8}",
        "y = f32[8] dynamic-update-slice(e0, s, i)",
        "y = f32[8] transpose(s), dimensions={0}",
        "y = f32[8] concatenate(s), dimensions={0}",
        "y = f32[8] convert(s)",
        "y = f32[8] broadcast(s), dimensions={0}",
        "y = f32[8] reverse(s), dimensions={}",
        "z = f32[] constant(0)\ny = f32[8] pad(s, z), padding=0_0",
        "p0 = pred[8] compare(e0, e0), direction=LT\ny = f32[8] select(p0, s, s)",
        "r = f32[2,4] reshape(s)\ny = f32[8] reshape(r)",
        "r = f32[8,1] reshape(s)\nt = f32[1,8] transpose(r), dimensions={1,0}\n"
        "y = f32[8] reshape(t)",
        "y = f32[8] opt-barrier(s)",
        "b = f32[8] bitcast(s)\ny = f32[8] copy(b)",
    ],
)
def test_what_changes_nothing_vanishes(trivial: str) -> None:
    loop = normal("s = f32[8] sine(e0)\n" + trivial, ["y"], ["f32[8]"])
    root = body_of(loop).root
    assert root.operands[1].opcode in ("sine", "reshape")
    if root.operands[1].opcode == "reshape":
        assert "transpose" in opcodes(body_of(loop))
    check(loop)


def test_constants_carried_along_become_constants_of_the_body() -> None:
    module = module_of("""
HloModule test
body {
  p = (s32[], f32[8], f32[], s32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  k = f32[] get-tuple-element(p), index=2
  w = s32[4] get-tuple-element(p), index=3
  kb = f32[8] broadcast(k), dimensions={}
  one = s32[] constant(1)
  w0 = s32[1] dynamic-slice(w, one), dynamic_slice_sizes={1}
  w1 = s32[] reshape(w0)
  next = s32[] add(i, w1)
  y = f32[8] multiply(x, kb)
  ROOT root = (s32[], f32[8], f32[], s32[4]) tuple(next, y, k, w)
}
condition {
  p = (s32[], f32[8], f32[], s32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT go = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  c = f32[] constant(1.5)
  cc = f32[] copy(c)
  ws = s32[4] constant({1, 1, 1, 1})
  init = (s32[], f32[8], f32[], s32[4]) tuple(zero, x, cc, ws)
  loop = (s32[], f32[8], f32[], s32[4]) while(init), condition=condition, body=body
  ROOT out = f32[8] get-tuple-element(loop), index=1
}
""")
    loop = normalise(loop_of(module))
    assert len(loop.region.parameters) == 1
    assert [o.opcode for o in loop.operands] == ["parameter"]
    assert loop.element_indices == (0, 1)
    assert loop.output_indices == (1,)
    assert sorted(loop.invariants) == [2, 3]
    values = [i.literal.tolist() for i in body_of(loop).instructions if i.opcode == "constant"]
    assert [1, 1, 1, 1] in values
    assert 1.5 in values
    check(loop)


def test_unused_and_unchanging_elements_are_dropped() -> None:
    loop = normal("y = f32[8] sine(e0)", ["y", "e1", "e2"], ["f32[8]", "f32[5]", "f32[3]"])
    assert loop.element_indices == (0, 1)
    assert sorted(loop.invariants) == [2, 3]
    assert [o.name for o in loop.operands] == ["in0"]
    check(loop)


def test_zeros_in_front_of_the_loop_are_made_anew() -> None:
    module = module_of("""
HloModule test
fill { c0 = f32[] parameter(0)  ROOT z = f32[8] broadcast(c0), dimensions={} }
count { ROOT n0 = s32[8] iota(), iota_dimension=0 }
body {
  p = (s32[], f32[8], s32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  k = s32[8] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[8] cosine(x)
  k2 = s32[8] add(k, k)
  ROOT root = (s32[], f32[8], s32[8]) tuple(next, y, k2)
}
condition {
  p = (s32[], f32[8], s32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT go = pred[] compare(i, n), direction=LT
}
ENTRY main {
  zero = s32[] constant(0)
  c = f32[] constant(0)
  x = f32[8] fusion(c), kind=kLoop, calls=fill
  k = s32[8] fusion(), kind=kLoop, calls=count
  init = (s32[], f32[8], s32[8]) tuple(zero, x, k)
  ROOT loop = (s32[], f32[8], s32[8]) while(init), condition=condition, body=body
}
""")
    loop = normalise(loop_of(module))
    assert not loop.operands
    assert {"broadcast", "iota", "constant"} <= set(opcodes(loop.region))
    assert loop.output_indices == (0, 1, 2)
    check(loop)


@pytest.mark.parametrize(("size", "is_passed_in"), [(8, False), (1000, True)])
def test_tables_of_integers_are_made_anew_if_they_are_small(size: int, is_passed_in: bool) -> None:
    """Large ones, as the numbers of steps in rows of ten are, would be made anew in every step."""
    table = f"s32[{size}]"
    module = module_of(f"""
HloModule test
count {{
  n = {table} iota(), iota_dimension=0
  first = s32[] constant(1)
  firsts = {table} broadcast(first), dimensions={{}}
  ROOT sum = {table} add(n, firsts)
}}
body {{
  p = (s32[], {table}, {table}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = {table} get-tuple-element(p), index=1
  k = {table} get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = {table} multiply(x, k)
  ROOT root = (s32[], {table}, {table}) tuple(next, y, k)
}}
condition {{
  p = (s32[], {table}, {table}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT go = pred[] compare(i, n), direction=LT
}}
ENTRY main {{
  zero = s32[] constant(0)
  x = {table} parameter(0)
  k = {table} fusion(), kind=kLoop, calls=count
  init = (s32[], {table}, {table}) tuple(zero, x, k)
  ROOT loop = (s32[], {table}, {table}) while(init), condition=condition, body=body
}}
""")
    loop = normalise(loop_of(module))
    passed_in = ["parameter", "fusion"] if is_passed_in else ["parameter"]
    assert [operand.opcode for operand in loop.operands] == passed_in
    check(loop)


@pytest.mark.parametrize("is_constant", [True, False])
def test_numbers_of_index_vectors_are_worked_out_if_they_can_be(is_constant: bool) -> None:
    """Those of `x[:, [0, 3, -1]]`, each lane of which adds 5 to what is below zero."""
    table = "constant({0, 3, -1})" if is_constant else "parameter(1)"
    module = module_of(f"""
HloModule test
count {{
  lanes = s32[8,3,1] iota(), iota_dimension=0
  k = s32[3] parameter(0)
  rows = s32[8,3] broadcast(k), dimensions={{1}}
  zero = s32[] constant(0)
  zeros = s32[8,3] broadcast(zero), dimensions={{}}
  below = pred[8,3] compare(rows, zeros), direction=LT
  size = s32[] constant(5)
  sizes = s32[8,3] broadcast(size), dimensions={{}}
  around = s32[8,3] add(rows, sizes)
  at = s32[8,3] select(below, around, rows)
  column = s32[8,3,1] reshape(at)
  ROOT vectors = s32[8,3,2] concatenate(lanes, column), dimensions={{2}}
}}
body {{
  p = (s32[], s32[8,5], s32[8,3,2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = s32[8,5] get-tuple-element(p), index=1
  v = s32[8,3,2] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  g = s32[8,3] gather(x, v), offset_dims={{}}, collapsed_slice_dims={{0,1}},
    start_index_map={{0,1}}, index_vector_dim=2, slice_sizes={{1,1}}
  nothing = s32[] constant(0)
  wide = s32[8,5] pad(g, nothing), padding=0_0x1_1
  y = s32[8,5] add(x, wide)
  ROOT root = (s32[], s32[8,5], s32[8,3,2]) tuple(next, y, v)
}}
condition {{
  p = (s32[], s32[8,5], s32[8,3,2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT go = pred[] compare(i, n), direction=LT
}}
ENTRY main {{
  zero = s32[] constant(0)
  x = s32[8,5] parameter(0)
  k = s32[3] {table}
  v = s32[8,3,2] fusion(k), kind=kLoop, calls=count
  init = (s32[], s32[8,5], s32[8,3,2]) tuple(zero, x, v)
  ROOT loop = (s32[], s32[8,5], s32[8,3,2]) while(init), condition=condition, body=body
}}
""")
    loop = normalise(loop_of(module))
    assert len(loop.operands) == 1 + (not is_constant)
    selects = [*opcodes(loop.region), *opcodes(body_of(loop))].count("select")
    assert selects == (not is_constant)
    known = known_elements(find(body_of(loop), "gather").operands[1])
    if is_constant:
        assert known is not None and known.mask.all()
        assert np.array_equal(known.values.reshape(8, 3), [[0, 3, 4]] * 8)
    check(loop)


def test_the_users_module_stays_as_it_is() -> None:
    module = counting_loop("c = f32[8] copy(e0)\ny = f32[8] sine(c)", ["y"], ["f32[8]"])
    before = module.to_bytes()
    normalise(loop_of(module))
    assert module.to_bytes() == before
    assert HloModule.from_bytes(before).to_bytes() == before


def test_a_small_loop_in_a_call_of_its_own() -> None:
    module = module_of("""
HloModule test
body {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[8] sine(x)
  ROOT root = (s32[], f32[8]) tuple(next, y)
}
condition {
  p = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(10)
  ROOT go = pred[] compare(i, n), direction=LT
}
small {
  p = (s32[], f32[8]) parameter(0)
  ROOT loop = (s32[], f32[8]) while(p), condition=condition, body=body
}
ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, x)
  c = (s32[], f32[8]) call(init), to_apply=small, frontend_attributes={xla_cpu_small_call="true"}
  ROOT out = f32[8] get-tuple-element(c), index=1
}
""")
    small = next(c for c in module.computations if c.name == "small")
    loop = normalise(small.root)
    assert loop.site.name == "c"
    assert [o.opcode for o in loop.operands] == ["parameter"]
    assert loop.output_indices == (1,)
    check(loop)


def test_nested_loops_in_calls_are_inlined() -> None:
    small = """
small_body {
  q = (s32[], f32[8]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  x0 = f32[8] get-tuple-element(q), index=1
  k1 = s32[] constant(1)
  j1 = s32[] add(j, k1)
  x1 = f32[8] sine(x0)
  ROOT r0 = (s32[], f32[8]) tuple(j1, x1)
}
small_condition {
  q1 = (s32[], f32[8]) parameter(0)
  j2 = s32[] get-tuple-element(q1), index=0
  k5 = s32[] constant(5)
  ROOT go0 = pred[] compare(j2, k5), direction=LT
}
small {
  q2 = (s32[], f32[8]) parameter(0)
  ROOT inner = (s32[], f32[8]) while(q2), condition=small_condition, body=small_body,
      backend_config={"known_trip_count":{"n":"5"},"known_induction_variable":{"tuple_index":"0"}}
}"""
    body = """t = (s32[], f32[8]) tuple(zero, e0)
        c = (s32[], f32[8]) call(t), to_apply=small, frontend_attributes={xla_cpu_small_call="true"}
        y = f32[8] get-tuple-element(c), index=1"""
    loop = normal(body, ["y"], ["f32[8]"], more=small)
    nested = find(body_of(loop), "while")
    assert nested.name == "inner"
    assert nested.backend_config == b'{"known_trip_count": {"n": "5"}}'
    check(loop)


def test_a_nested_loop_that_carries_an_array() -> None:
    inner = """
inner_body { v = f32[] parameter(0)  ROOT w = f32[] multiply(v, v) }
inner_condition { u = f32[] parameter(0)  m = f32[] constant(100)
  ROOT go0 = pred[] compare(u, m), direction=LT }"""
    body = """s = f32[] while(e1), condition=inner_condition, body=inner_body
        b = f32[8] broadcast(s), dimensions={}
        y = f32[8] add(e0, b)"""
    check(normal(body, ["y", "s"], ["f32[8]", "f32[]"], more=inner))


def test_nested_tuples_are_flattened() -> None:
    inner = """
inner_body {
  q = (s32[], (f32[8], f32[8])) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  ab = (f32[8], f32[8]) get-tuple-element(q), index=1
  a = f32[8] get-tuple-element(ab), index=0
  b = f32[8] get-tuple-element(ab), index=1
  k1 = s32[] constant(1)
  j1 = s32[] add(j, k1)
  ba = (f32[8], f32[8]) tuple(b, a)
  ROOT r0 = (s32[], (f32[8], f32[8])) tuple(j1, ba)
}
inner_condition {
  q1 = (s32[], (f32[8], f32[8])) parameter(0)
  j2 = s32[] get-tuple-element(q1), index=0
  k5 = s32[] constant(5)
  ROOT go0 = pred[] compare(j2, k5), direction=LT
}"""
    body = """s = f32[8] sine(e0)
        pair = (f32[8], f32[8]) tuple(e0, s)
        t = (s32[], (f32[8], f32[8])) tuple(zero, pair)
        w = (s32[], (f32[8], f32[8])) while(t), condition=inner_condition, body=inner_body
        out = (f32[8], f32[8]) get-tuple-element(w), index=1
        y = f32[8] get-tuple-element(out), index=0"""
    loop = normal(body, ["y"], ["f32[8]"], more=inner)
    assert all(not s.is_tuple for s in find(body_of(loop), "while").shape.tuple_shapes)
    check(loop)


def test_metadata_survives() -> None:
    body = 'y = f32[8] sine(e0), metadata={op_name="f/sin" source_file="user.py" source_line=7}'
    sine = find(body_of(normal(body, ["y"], ["f32[8]"])), "sine")
    assert sine.metadata.source_line == 7
    assert sine.metadata.op_name == "f/sin"


@pytest.mark.parametrize("size", [90, 96, 64, 1000])
def test_windows_side_by_side_become_reduces(size: int) -> None:
    """XLA:CPU splits sums of more than 32 elements into windows; XLA gets the same from both."""
    count = -(-size // 32)
    body = f"""z = f32[] constant(0)
        w = f32[8,{count}] reduce-window(e0, z), to_apply=add_f32,
            window={{size=1x32 stride=1x32 pad=0_0x0_{count * 32 - size}}}
        r = f32[8] reduce(w, z), dimensions={{1}}, to_apply=add_f32
        b = f32[8,{size}] broadcast(r), dimensions={{0}}
        h = f32[] constant(0.001)
        hb = f32[8,{size}] broadcast(h), dimensions={{}}
        y = f32[8,{size}] multiply(b, hb)"""
    module = counting_loop(body, ["y"], [f"f32[8,{size}]"], trip_count=3)
    loop = normalise(loop_of(module))
    check(loop)
    assert "reduce-window" not in opcodes(body_of(loop))
    x = np.random.default_rng(0).standard_normal((8, size)).astype(np.float32)
    expected = run_module(module, [x])
    actual = run_module(as_module(loop.region), [x])
    # XLA takes the reduces apart in its own way, so only nearly the same.
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5, atol=1e-6)
