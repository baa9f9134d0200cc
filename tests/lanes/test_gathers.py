"""Gathers and scatters in normal form: batching dimensions found, conditional updates folded."""

from __future__ import annotations

import numpy as np
import pytest

from fuselane.hlo.computation import HloComputation
from fuselane.hlo.indexed import get_indices, indexed
from fuselane.hlo.instruction import HloInstruction
from fuselane.lanes.known import known_elements
from fuselane.lanes.normalise import normalise
from tests.hlo.xla import module_of, to_text
from tests.lanes.loops import counting_loop, loop_of
from tests.lanes.oracle import as_module

LANE_INDICES = """
  lanes = s32[8,1] iota(), iota_dimension=0
  column = s32[8,1] reshape(e1)
  vectors = s32[8,2] concatenate(lanes, column), dimensions={1}
"""


def body_of(body: str, results: list[str], carried: list[str]) -> HloComputation:
    """Returns the normal form of a loop's body, which XLA has accepted."""
    region = normalise(loop_of(counting_loop(body, results, carried))).region
    assert "while" in to_text(as_module(region).to_bytes())
    return next(i for i in region.instructions if i.opcode == "while").body


def find(computation: HloComputation, opcode: str) -> HloInstruction:
    (found,) = (i for i in computation.instructions if i.opcode == opcode)
    return found


def test_iota_is_a_batching_dimension() -> None:
    body = f"""{LANE_INDICES}
      g = f32[8,1,1] gather(e0, vectors), offset_dims={{1,2}}, collapsed_slice_dims={{}},
        start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{1,1}}
      r = f32[8] reshape(g)
      b = f32[8,9] broadcast(r), dimensions={{0}}"""
    gather = find(body_of(body, ["b", "e1"], ["f32[8,9]", "s32[8]"]), "gather")
    where = indexed(gather)
    assert (where.batching, where.starts, where.window) == ({0: 0}, (1,), ())
    assert gather.shape.dimensions == (8,)
    assert get_indices(gather).shape.dimensions == (8, 1)


@pytest.mark.parametrize(
    "lanes",
    [
        "c = s64[8,1] iota(), iota_dimension=0  lanes = s32[8,1] convert(c)",
        "lanes = s32[8,1] constant({{0},{1},{2},{3},{4},{5},{6},{7}})",
        """k = s32[8] iota(), iota_dimension=0  z = s32[8] broadcast(zero), dimensions={}
           eight = s32[] constant(8)  m = s32[8] broadcast(eight), dimensions={}
           low = pred[8] compare(k, z), direction=LT  q = s32[8] add(k, m)
           s = s32[8] select(low, q, k)  lanes = s32[8,1] reshape(s)""",
        """k = s32[16] iota(), iota_dimension=0
           s = s32[8] slice(k), slice={[0:8]}  lanes = s32[8,1] reshape(s)""",
    ],
    ids=["convert", "constant", "wrapped", "slice"],
)
def test_other_spellings_of_lanes(lanes: str) -> None:
    body = f"""{lanes}
      column = s32[8,1] reshape(e1)
      vectors = s32[8,2] concatenate(lanes, column), dimensions={{1}}
      g = f32[8,1,1] gather(e0, vectors), offset_dims={{1,2}}, collapsed_slice_dims={{}},
        start_index_map={{0,1}}, index_vector_dim=1, slice_sizes={{1,1}}
      r = f32[8] reshape(g)
      b = f32[8,9] broadcast(r), dimensions={{0}}"""
    gather = find(body_of(body, ["b", "e1"], ["f32[8,9]", "s32[8]"]), "gather")
    assert indexed(gather).batching == {0: 0}


def test_what_only_looks_like_lanes() -> None:
    """An iota that starts at one is an index like others."""
    body = """ones = s32[8,1] broadcast(one), dimensions={}
      k = s32[8,1] iota(), iota_dimension=0
      lanes = s32[8,1] add(k, ones)
      column = s32[8,1] reshape(e1)
      vectors = s32[8,2] concatenate(lanes, column), dimensions={1}
      g = f32[8,1,1] gather(e0, vectors), offset_dims={1,2}, collapsed_slice_dims={},
        start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}
      r = f32[8] reshape(g)
      b = f32[8,9] broadcast(r), dimensions={0}"""
    gather = find(body_of(body, ["b", "e1"], ["f32[8,9]", "s32[8]"]), "gather")
    assert (indexed(gather).batching, indexed(gather).starts) == ({}, (0, 1))


def test_merged_batch_dimensions() -> None:
    """XLA merges lanes and the indices of one lane; they are taken apart again."""
    body = """lanes = s32[8,3,1] iota(), iota_dimension=0
      column = s32[8,3,1] reshape(e1)
      both = s32[8,3,2] concatenate(lanes, column), dimensions={2}
      vectors = s32[24,2] reshape(both)
      g = f32[24,1,1] gather(e0, vectors), offset_dims={1,2}, collapsed_slice_dims={},
        start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}
      r = f32[8,3] reshape(g)
      ninety = f32[] constant(90)
      b = f32[8,9] pad(r, ninety), padding=0_0x0_6"""
    gather = find(body_of(body, ["b", "e1"], ["f32[8,9]", "s32[8,3]"]), "gather")
    assert gather.shape.dimensions == (8, 3)
    assert indexed(gather).batching == {0: 0}


def test_layouts() -> None:
    """The operand stays as it lies, whatever the result's layout."""
    body = f"""{LANE_INDICES}
      g = f32[8,1,2]{{0,1,2}} gather(e0, vectors), offset_dims={{1,2}}, collapsed_slice_dims={{2}},
        start_index_map={{0,2}}, index_vector_dim=1, slice_sizes={{1,2,1}}
      r = f32[8,1,2]{{2,1,0}} copy(g)
      row = f32[8,2] reshape(r)
      b = f32[8,2,9]{{0,1,2}} broadcast(row), dimensions={{0,1}}"""
    carried = ["f32[8,2,9]{0,1,2}", "s32[8]"]
    gather = find(body_of(body, ["b", "e1"], carried), "gather")
    assert gather.operands[0].shape.dimensions == (9, 2, 8)
    assert (indexed(gather).batching, indexed(gather).starts) == ({2: 0}, (0,))


def test_single_index_is_a_dynamic_slice() -> None:
    body = """v = s32[1] reshape(i)
      g = f32[8,1] gather(e0, v), offset_dims={0,1}, collapsed_slice_dims={},
        start_index_map={1}, index_vector_dim=0, slice_sizes={8,1}
      r = f32[8] reshape(g)
      b = f32[8,9] broadcast(r), dimensions={0}"""
    assert find(body_of(body, ["b"], ["f32[8,9]"]), "dynamic-slice")


def test_nothing_but_lanes() -> None:
    """`x[arange(n)]` has no index left; something is still indexed."""
    body = """lanes = s32[8,1] iota(), iota_dimension=0
      g = f32[8,9] gather(e0, lanes), offset_dims={1}, collapsed_slice_dims={0},
        start_index_map={0}, index_vector_dim=1, slice_sizes={1,9}
      b = f32[8,9] add(g, g)"""
    gather = find(body_of(body, ["b"], ["f32[8,9]"]), "gather")
    assert gather.operands[0].shape.dimensions == (1, 8, 9)
    assert (indexed(gather).batching, indexed(gather).window) == ({1: 0}, (2,))


SCATTER = f"""{LANE_INDICES}
  update = f32[8,1,1] reshape(e2)
  s = f32[8,9] scatter(e0, vectors, update), update_window_dims={{1,2}}, inserted_window_dims={{}},
    scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1, to_apply=add_f32
"""


def test_scatter() -> None:
    scatter = find(body_of(SCATTER, ["s", "e1", "e2"], ["f32[8,9]", "s32[8]", "f32[8]"]), "scatter")
    where = indexed(scatter)
    assert (where.batching, where.starts, where.window) == ({0: 0}, (1,), ())
    assert scatter.operands[2].shape.dimensions == (8,)


@pytest.mark.parametrize("operands", ["s, e0", "e0, s"])
def test_conditional_scatter(operands: str) -> None:
    body = f"""{SCATTER}
      chosen = pred[8,9] broadcast(e3), dimensions={{0}}
      r = f32[8,9] select(chosen, {operands})"""
    carried = ["f32[8,9]", "s32[8]", "f32[8]", "pred[8]"]
    computation = body_of(body, ["r", "e1", "e2", "e3"], carried)
    scatter = find(computation, "scatter")
    assert computation.root.operands[1] is scatter
    chosen = get_indices(scatter)
    assert (chosen.opcode, chosen.shape.dimensions) == ("select", (8, 1))


def test_condition_on_elements_stays() -> None:
    """A predicate of its own for each element selects elements, not updates."""
    body = f"""{SCATTER}
      r = f32[8,9] select(e3, s, e0)"""
    carried = ["f32[8,9]", "s32[8]", "f32[8]", "pred[8,9]"]
    computation = body_of(body, ["r", "e1", "e2", "e3"], carried)
    assert computation.root.operands[1].opcode == "select"


def test_conditional_update_slice() -> None:
    body = """row = f32[1,8] reshape(e1)
      u = f32[9,8] dynamic-update-slice(e0, row, i, zero)
      chosen = pred[9,8] broadcast(e2), dimensions={1}
      r = f32[9,8] select(chosen, u, e0)"""
    carried = ["f32[9,8]", "f32[8]", "pred[8]"]
    computation = body_of(body, ["r", "e1", "e2"], carried)
    update = find(computation, "dynamic-update-slice")
    assert computation.root.operands[1] is update
    assert update.operands[1].opcode == "select"
    assert find(computation, "dynamic-slice").operands[0] is update.operands[0]


def test_known_elements() -> None:
    """What is known of parts, and of nothing that a parameter has a part in."""
    text = """HloModule m
    ENTRY main {
      x = s32[4,1] parameter(0)
      i = s32[4,1] iota(), iota_dimension=0
      c = s32[4,2] concatenate(i, x), dimensions={1}
      k = s32[] constant(3)
      b = s32[4,2] broadcast(k), dimensions={}
      ROOT m = s32[4,2] minimum(c, b)
    }"""
    root = module_of(text).entry.root
    known = known_elements(root)
    assert known is not None
    np.testing.assert_array_equal(known.mask, [[True, False]] * 4)
    np.testing.assert_array_equal(known.values[:, 0], [0, 1, 2, 3])
    assert known_elements(root.operands[0].operands[1]) is None
