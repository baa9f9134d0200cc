"""Combining opcodes and their identities."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.hlo.combiners import COMBINERS, identity, is_identity, match_combiner
from fuselane.hlo.shape import PrimitiveType
from tests.hlo.xla import module_of

FLOATS = (PrimitiveType.F16, PrimitiveType.BF16, PrimitiveType.F32, PrimitiveType.F64)
INTEGERS = (PrimitiveType.S8, PrimitiveType.U8, PrimitiveType.S32, PrimitiveType.U64)
NUMPY = {
    "add": np.add,
    "and": np.bitwise_and,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "or": np.bitwise_or,
}


@pytest.mark.parametrize("combiner", sorted(COMBINERS))
@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS, PrimitiveType.PRED])
def test_identity_changes_nothing(combiner: str, element: PrimitiveType) -> None:
    if combiner in ("and", "or") and element in FLOATS:
        pytest.skip("no bits of floats are combined")
    value = identity(combiner, element)
    assert value.dtype == element.dtype
    others = [0, 1] if element is PrimitiveType.PRED else [0, 1, 3, 100]
    for other in others:
        typed = np.asarray(other).astype(element.dtype)
        assert NUMPY[combiner](value, typed) == typed


def test_matched() -> None:
    module = module_of("""
HloModule test
plus { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(b, a) }
minus { d = f32[] parameter(0)  e = f32[] parameter(1)  ROOT f = f32[] subtract(d, e) }
twice { g = f32[] parameter(0)  h = f32[] parameter(1)  ROOT k = f32[] add(g, g) }
ENTRY main {
  x = f32[8] parameter(0)
  z = f32[] constant(0)
  zs = f32[8] broadcast(z), dimensions={}
  n = f32[] constant(-0.0)
  one = f32[] constant(1)
  r = f32[] reduce(x, z), dimensions={0}, to_apply=plus
  s = f32[] reduce(zs, n), dimensions={0}, to_apply=minus
  ROOT t = f32[] reduce(x, one), dimensions={0}, to_apply=twice
}""")
    by_name = {i.name: i for i in module.entry.instructions}
    found = {
        i.to_apply.root.name: match_combiner(i.to_apply)
        for i in module.entry.instructions
        if i.opcode == "reduce"
    }
    assert set(found.values()) <= {"add", None}
    assert is_identity(by_name["z"], "add") and not is_identity(by_name["one"], "add")
    assert is_identity(by_name["one"], "multiply") and not is_identity(by_name["x"], "add")
