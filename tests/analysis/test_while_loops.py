"""Trip counts, counters and indices that depend on them."""

from __future__ import annotations

import pytest

from fuselane.analysis.while_loops import (
    Affine,
    compute_trip_count,
    get_induction_index,
    is_invariant,
    match_affine,
    match_counter,
)
from fuselane.errors import VerificationError
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.normalise import normalise
from tests.hlo.xla import module_of
from tests.lanes.loops import counting_loop, loop_of


def counter(
    start: str, step: str, limit: str, direction: str, kind: str = "s32", config: str = ""
) -> HloModule:
    """Returns a loop `i = start; while i <direction> limit: i <step>` that carries an array too."""
    opcode, amount = step.split()
    operands, comparison = direction.split()
    return module_of(f"""
HloModule test
body {{
  p = ({kind}[], f32[8]) parameter(0)
  i = {kind}[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  y = f32[8] sine(x)
  c = {kind}[] constant({amount})
  next = {kind}[] {opcode}
  ROOT root = ({kind}[], f32[8]) tuple(next, y)
}}
condition {{
  p = ({kind}[], f32[8]) parameter(0)
  i = {kind}[] get-tuple-element(p), index=0
  n = {kind}[] constant({limit})
  ROOT go = pred[] compare({operands}), direction={comparison}
}}
ENTRY main {{
  x = f32[8] parameter(0)
  start = {kind}[] constant({start})
  init = ({kind}[], f32[8]) tuple(start, x)
  ROOT loop = ({kind}[], f32[8]) while(init), condition=condition, body=body{config}
}}
""")


def normal_loop(module: HloModule) -> HloInstruction:
    region = normalise(loop_of(module)).region
    return next(i for i in region.instructions if i.opcode == "while")


@pytest.mark.parametrize(
    ("start", "step", "limit", "direction", "expected"),
    [
        ("0", "add(i,c) 1", "10", "i,n LT", 10),
        ("0", "add(c,i) 1", "10", "n,i GT", 10),
        ("3", "add(i,c) 2", "10", "i,n LT", 4),
        ("3", "add(i,c) 2", "11", "i,n LT", 4),
        ("0", "add(i,c) 3", "9", "i,n LE", 4),
        ("10", "subtract(i,c) 1", "0", "i,n GT", 10),
        ("10", "add(i,c) -3", "1", "i,n GE", 4),
        ("0", "add(i,c) 5", "20", "i,n NE", 4),
        ("0", "add(i,c) 5", "21", "i,n NE", None),
        ("5", "add(i,c) 1", "5", "i,n LT", 0),
        ("5", "add(i,c) 1", "5", "i,n NE", 0),
        ("5", "add(i,c) 1", "4", "i,n EQ", 0),
        ("5", "add(i,c) 1", "5", "i,n EQ", None),
        ("0", "add(i,c) -1", "10", "i,n LT", None),
        ("0", "multiply(i,c) 2", "10", "i,n LT", None),
        ("2147483640", "add(i,c) 5", "2147483647", "i,n LE", None),
    ],
)
def test_trip_count(
    start: str, step: str, limit: str, direction: str, expected: int | None
) -> None:
    assert compute_trip_count(normal_loop(counter(start, step, limit, direction))) == expected


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u32", "s64", "u64"])
def test_counters_of_other_types(kind: str) -> None:
    loop = normal_loop(counter("0", "add(i,c) 1", "100", "i,n LT", kind))
    assert compute_trip_count(loop) == 100
    assert get_induction_index(loop) == 0


def test_counter_that_would_wrap_around() -> None:
    assert (
        compute_trip_count(normal_loop(counter("0", "add(i,c) 50", "127", "i,n LT", "s8"))) is None
    )


@pytest.mark.parametrize(
    ("start", "step", "limit", "direction", "expected"),
    [
        ("10", "add(i,c) 255", "0", "i,n GT", 10),
        ("11", "add(i,c) 254", "3", "i,n GE", 5),
        ("10", "subtract(i,c) 255", "100", "i,n LT", 90),
        ("10", "add(i,c) 255", "0", "i,n GE", None),
        ("10", "add(i,c) 253", "0", "i,n GT", None),
    ],
)
def test_unsigned_counters_that_go_down(
    start: str, step: str, limit: str, direction: str, expected: int | None
) -> None:
    """XLA writes `i - 1` like that, and believes that it is a step up."""
    config = ', backend_config={"known_trip_count":{"n":"1"}}'
    loop = normal_loop(counter(start, step, limit, direction, "u8", config))
    assert compute_trip_count(loop) == expected


def test_what_xla_knows_is_believed() -> None:
    config = ', backend_config={"known_trip_count":{"n":"12"}}'
    module = counter("0", "multiply(i,c) 2", "10", "i,n LT", config=config)
    assert compute_trip_count(normal_loop(module)) == 12
    assert compute_trip_count(loop_of(module)) == 12


def test_other_backend_configs_are_ignored() -> None:
    module = counter("0", "add(i,c) 1", "10", "i,n LT", config=', backend_config={"a":1}')
    assert compute_trip_count(loop_of(module)) == 10


def test_only_loops_have_a_trip_count() -> None:
    module = counter("0", "add(i,c) 1", "10", "i,n LT")
    with pytest.raises(VerificationError, match="not a while"):
        compute_trip_count(module.entry.instructions[0])


TRACED_BOUND = """
HloModule test
body {
  p = (f32[8], s32[], s32[]) parameter(0)
  x = f32[8] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  i = s32[] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[8] sine(x)
  ROOT root = (f32[8], s32[], s32[]) tuple(y, n, next)
}
condition {
  p = (f32[8], s32[], s32[]) parameter(0)
  n = s32[] get-tuple-element(p), index=1
  i = s32[] get-tuple-element(p), index=2
  ROOT go = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  n = s32[] parameter(1)
  start = s32[] constant(0)
  init = (f32[8], s32[], s32[]) tuple(x, n, start)
  ROOT loop = (f32[8], s32[], s32[]) while(init), condition=condition, body=body
}
"""


def test_traced_bound() -> None:
    loop = normal_loop(module_of(TRACED_BOUND))
    assert compute_trip_count(loop) is None
    assert get_induction_index(loop) == 2
    assert is_invariant(loop, 1)
    assert not is_invariant(loop, 2)
    assert match_counter(loop, 2, 10) == Affine(1, 0)
    assert match_counter(loop, 2, 1 << 31) == Affine(1, 0)
    assert match_counter(loop, 2, (1 << 31) + 1) is None
    assert match_counter(loop, 1, 10) is None


def index_loop(index: str, trip_count: int = 10) -> tuple[HloInstruction, HloInstruction]:
    """Returns a loop and the index at which its body updates a stacked array."""
    module = counting_loop(
        f"""{index}
        row = f32[1,8] reshape(e0)
        up = f32[10,8] dynamic-update-slice(e1, row, at, zero)""",
        ["e0", "up"],
        ["f32[8]", "f32[10,8]"],
        trip_count=trip_count,
    )
    loop = normal_loop(module)
    update = next(i for i in loop.body.instructions if i.opcode == "dynamic-update-slice")
    return loop, update.operands[2]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("at = s32[] add(i, zero)", Affine(1, 0)),
        ("nine = s32[] constant(9)\nat = s32[] subtract(nine, i)", Affine(-1, 9)),
        ("two = s32[] constant(2)\nat = s32[] multiply(two, i)", Affine(2, 0)),
        ("at = s32[] multiply(i, i)", None),
        ("at = s32[] remainder(i, one)", None),
        (
            """ten = s32[] constant(10)
            negative = pred[] compare(i, zero), direction=LT
            wrapped = s32[] add(i, ten)
            at = s32[] select(negative, wrapped, i)""",
            Affine(1, 0),
        ),
        (
            """five = s32[] constant(5)
            early = pred[] compare(i, five), direction=LT
            at = s32[] select(early, zero, i)""",
            None,
        ),
        ("wide = s64[] convert(i)\nat = s32[] convert(wide)", Affine(1, 0)),
        ("narrow = s8[] convert(i)\nat = s32[] convert(narrow)", None),
        ("big = s32[] constant(2147483640)\nat = s32[] add(big, i)", None),
        ("nine = s32[] constant(9)\nat = s32[] clamp(zero, i, nine)", Affine(1, 0)),
        ("eight = s32[] constant(8)\nat = s32[] clamp(zero, i, eight)", None),
        ("nine = s32[] constant(9)\nat = s32[] clamp(one, i, nine)", None),
        ("one_d = s32[1] reshape(i)\nat = s32[] reshape(one_d)", Affine(1, 0)),
    ],
)
def test_affine_indices(index: str, expected: Affine | None) -> None:
    loop, value = index_loop(index)
    assert match_affine(value, loop, 10) == expected


def test_counters_beside_it_may_wrap_around() -> None:
    module = module_of("""
HloModule test
body {
  p = (s32[], u8[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  k = u8[] get-tuple-element(p), index=1
  x = f32[8] get-tuple-element(p), index=2
  y = f32[8] sine(x)
  one = s32[] constant(1)
  c = u8[] constant(1)
  next = s32[] add(i, one)
  after = u8[] add(k, c)
  ROOT root = (s32[], u8[], f32[8]) tuple(next, after, y)
}
condition {
  p = (s32[], u8[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(20)
  ROOT go = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  start = u8[] constant(250)
  init = (s32[], u8[], f32[8]) tuple(zero, start, x)
  ROOT loop = (s32[], u8[], f32[8]) while(init), condition=condition, body=body
}
""")
    loop = normal_loop(module)
    assert compute_trip_count(loop) == 20
    assert match_counter(loop, 1, 6) == Affine(1, 250)
    assert match_counter(loop, 1, 7) is None
