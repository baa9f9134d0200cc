"""XLA's estimated time: thunks, what fusions compute again and again, nested loops."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Final

import pytest

from fuselane.analysis.fusion_runs import count_runs
from fuselane.analysis.machine_costs import CACHED_BYTES, MachineCosts
from fuselane.analysis.xla_time import estimate_step_us
from fuselane.hlo.module import HloModule
from tests.hlo.xla import module_of
from tests.lanes.loops import counting_loop, loop_of

COSTS: Final = MachineCosts()
NO_WORK: Final = dataclasses.replace(
    COSTS,
    xla_operation_us=1e-12,
    xla_scalar_us=1e-12,
    xla_function_us=1e-12,
    xla_call_us=1e-12,
    library_operation_us=1e-12,
    library_function_us=1e-12,
    cached_bytes_per_us=1e12,
    memory_bytes_per_us=1e12,
)

NO_MOVING: Final = dataclasses.replace(COSTS, cached_bytes_per_us=1e12, memory_bytes_per_us=1e12)


def step_us(module: HloModule, costs: MachineCosts = COSTS, *, is_compiled: bool = False) -> float:
    return estimate_step_us(loop_of(module), costs, is_compiled=is_compiled)


def simple(body: str, shape: str = "f32[4096]", **more: str) -> HloModule:
    return counting_loop(body, ["y"], [shape], **more)


def test_every_thunk_counts() -> None:
    """The condition's comparison, the counter's addition, `y`, and the step itself."""
    module = simple("y = f32[4096] add(e0, e0)")
    assert step_us(module, NO_WORK) == pytest.approx(4 * COSTS.thunk_us, rel=1e-3)
    module = simple("c = f32[4096] copy(e0)\ny = f32[4096] add(c, c)")
    assert step_us(module, NO_WORK) == pytest.approx(5 * COSTS.thunk_us, rel=1e-3)


def test_what_xla_compiles_into_one_function_has_no_thunks() -> None:
    module = simple("c = f32[4096] copy(e0)\ny = f32[4096] add(c, c)")
    assert step_us(module, NO_WORK, is_compiled=True) == pytest.approx(0, abs=1e-6)


def test_libraries_cost_more() -> None:
    dot = """y = f32[64,64] dot(e0, e0), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
    add = "y = f32[64,64] add(e0, e0)"
    difference = step_us(simple(dot, "f32[64,64]"), NO_WORK) - step_us(
        simple(add, "f32[64,64]"), NO_WORK
    )
    assert difference == pytest.approx(COSTS.library_us, rel=1e-3)


@pytest.mark.parametrize(("element", "least", "most"), [("s8", 0.4, 0.6), ("u8", 0.9, 1.1)])
def test_products_of_signed_bytes_take_half_as_long_on_one_core(
    element: str, least: float, most: float
) -> None:
    """As long on four: nothing is divided."""

    def times(kind: str, cores: int) -> float:
        body = f"""c = {kind}[512,512] convert(e0)
          d = s32[512,512] dot(c, c), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
          y = f32[512,512] convert(d)"""
        loop = loop_of(simple(body, "f32[512,512]"))
        return estimate_step_us(loop, COSTS, is_compiled=False, num_cores=cores)

    assert least < times(element, 1) / times("s32", 1) < most
    is_divided = times(element, 4) < 0.5 * times(element, 1)
    assert is_divided == (element != "s8")


@pytest.mark.parametrize("kind", ["kCustom", "kLoop"])
def test_libraries_divide_long_work_among_cores(kind: str) -> None:
    """XLA's own loops only where XLA has split them, libraries once it takes 100 microseconds."""

    def times_faster(size: int) -> float:
        body = f"y = f32[{size}] fusion(e0), kind={kind}, calls=f"
        more = f"f {{ q = f32[{size}] parameter(0)  ROOT r = f32[{size}] exponential(q) }}"
        loop = loop_of(simple(body, f"f32[{size}]", more=more))
        one, four = (
            estimate_step_us(loop, COSTS, is_compiled=False, num_cores=cores) for cores in (1, 4)
        )
        return one / four

    assert times_faster(262_144) == pytest.approx(4.0 if kind == "kCustom" else 1.0, rel=0.05)
    assert times_faster(65_536) == pytest.approx(1.0)


def test_a_librarys_sine_costs_what_its_exponential_does() -> None:
    """XLA's own, in the loops it makes itself, calls a function for each element."""

    def fused(kind: str, opcode: str) -> float:
        body = f"y = f32[4096] fusion(e0), kind={kind}, calls=f"
        more = f"f {{ q = f32[4096] parameter(0)  ROOT r = f32[4096] {opcode}(q) }}"
        return step_us(simple(body, more=more))

    assert fused("kCustom", "sine") == pytest.approx(fused("kCustom", "exponential"))
    assert fused("kLoop", "sine") > 3 * fused("kCustom", "sine")


LARGER: Final = """
larger {
  a = f32[] parameter(0)
  j = s32[] parameter(1)
  b = f32[] parameter(2)
  k = s32[] parameter(3)
  first = pred[] compare(a, b), direction=GE
  value = f32[] select(first, a, b)
  index = s32[] select(first, j, k)
  ROOT both = (f32[], s32[]) tuple(value, index)
}
"""
ARG_MAXIMUM: Final = (
    LARGER
    + """
f {
  q = f32[%(length)d,64] parameter(0)
  y = f32[%(length)d,64] %(opcode)s(q)
  n = s32[%(length)d,64] iota(), iota_dimension=0
  low = f32[] constant(-inf)
  first = s32[] constant(0)
  best = (f32[64], s32[64]) reduce(y, n, low, first), dimensions={0}, to_apply=larger
  ROOT r = s32[64] get-tuple-element(best), index=1
}
"""
)


@pytest.mark.parametrize(("length", "is_long"), [(16, False), (17, True)])
def test_what_a_long_arg_maximum_takes_in_is_scalar_code(length: int, is_long: bool) -> None:
    def fused(opcode: str) -> float:
        more = ARG_MAXIMUM % {"length": length, "opcode": opcode}
        shape = f"f32[{length},64]"
        body = "y = s32[64] fusion(e0), kind=kLoop, calls=f"
        module = counting_loop(body, ["e0", "y"], [shape, "s32[64]"], more=more)
        return step_us(module) / length

    alone = step_us(simple(f"y = f32[{length},64] exponential(e0)", f"f32[{length},64]")) / length
    exponentials = fused("exponential") - fused("negate")
    assert (exponentials > 3 * alone) == is_long


def test_work_grows_with_size_and_opcode() -> None:
    small, large = (step_us(simple(f"y = f32[{n}] sine(e0)", f"f32[{n}]")) for n in (4096, 40960))
    assert large == pytest.approx(10 * small, rel=0.05)
    cheap = step_us(simple("y = f32[4096] add(e0, e0)"))
    assert cheap < small / 10
    double = step_us(simple("y = f64[4096] sine(e0)", "f64[4096]"))
    assert double > 2 * small


def test_short_floats_are_converted() -> None:
    """BF16 by instructions of its own, F16 in every operation but functions, which are of F32."""

    def body_us(body: str, shape: str = "f32[4096]") -> float:
        return step_us(simple(body, shape))

    single = body_us("y = f32[4096] floor(e0)")
    assert body_us("y = f16[4096] floor(e0)", "f16[4096]") > single, "of half the size"
    narrowed = "n = bf16[4096] convert(e0)\ny = f32[4096] convert(n)"
    assert body_us(narrowed) > 3 * single
    function = body_us("y = f32[4096] exponential(e0)")
    assert body_us("y = f16[4096] exponential(e0)", "f16[4096]") < 1.5 * function


def test_large_arrays_come_from_memory() -> None:
    count = CACHED_BYTES // 4
    inside, outside = (
        step_us(simple(f"y = f32[{n}] add(e0, e0)", f"f32[{n}]")) / n
        for n in (count // 2, 2 * count)
    )
    assert outside > 2 * inside


def test_of_rows_for_each_step_a_row_is_read() -> None:
    """What reads and writes a row in each step takes as long as what has no other rows, where that
    fits into the caches; a row of more than they hold comes from memory."""
    body = """d = f32[1,4096] fusion(e0, i, zero), kind=kLoop, calls=row
      s = f32[4096] bitcast(d)
      y = f32[4096] add(e1, s)"""
    row = """row {
      p = f32[%(n)d,4096] parameter(0)
      j = s32[] parameter(1)
      o = s32[] parameter(2)
      ROOT d = f32[1,4096] dynamic-slice(p, j, o), dynamic_slice_sizes={1,4096}
    }"""

    def of(count: int, costs: MachineCosts) -> float:
        shapes = [f"f32[{count},4096]", "f32[4096]"]
        return step_us(counting_loop(body, ["e0", "y"], shapes, more=row % {"n": count}), costs)

    few = CACHED_BYTES // 4096 // 4
    assert of(few, COSTS) == pytest.approx(of(2, COSTS), rel=0.01)
    slower = dataclasses.replace(COSTS, memory_bytes_per_us=COSTS.cached_bytes_per_us / 4)
    added = of(4 * few, slower) - of(2, slower)
    assert 0 < added <= 4 * 4096 * 3 / slower.cached_bytes_per_us * 1.01


@pytest.mark.parametrize("size", [1, 1000])
def test_a_row_is_loaded_where_it_is_used(size: int) -> None:
    """A fusion that takes a row out of many loads vectors of it, and no element by itself."""
    opcodes = {"slice": "slice={[0:1], [0:4096]}", "dynamic-slice": "dynamic_slice_sizes={1,4096}"}

    def of(opcode: str) -> float:
        starts = ", j, o" if opcode == "dynamic-slice" else ""
        more = f"""row {{
          p = f32[{size},4096] parameter(0)
          j = s32[] parameter(1)
          o = s32[] parameter(2)
          d = f32[1,4096] {opcode}(p{starts}), {opcodes[opcode]}
          ROOT n = f32[1,4096] negate(d)
        }}"""
        body = "d = f32[1,4096] fusion(e0, i, zero), kind=kLoop, calls=row"
        shapes = [f"f32[{size},4096]", "f32[1,4096]"]
        return step_us(counting_loop(body, ["e0", "d"], shapes, more=more))

    assert of("dynamic-slice") == pytest.approx(of("slice"), rel=0.01)


def test_the_best_of_long_rows_take_longer() -> None:
    """As measured: a nanosecond for each element of a row, and some more for those kept."""

    def of(size: int, kept: int) -> float:
        both = f"(f32[16,{kept}], s32[16,{kept}])"
        body = f"""t = {both} custom-call(e0), custom_call_target="TopK"
          v = f32[16,{kept}] get-tuple-element(t), index=0
          y = f32[16,{size}] negate(e0)"""
        shapes = [f"f32[16,{size}]", f"f32[16,{kept}]"]
        return step_us(counting_loop(body, ["y", "v"], shapes))

    assert of(1024, 4) == pytest.approx(20, rel=0.3)
    assert of(128, 16) == pytest.approx(9, rel=0.3)
    assert of(128, 4) < of(128, 16) / 2


def nested(trip_count: str) -> str:
    return f"""
    w0 = (s32[], f32[4096]) tuple(zero, e0)
    w = (s32[], f32[4096]) while(w0), condition=inner_condition, body=inner_body{trip_count}
    y = f32[4096] get-tuple-element(w), index=1
    """


INNER: Final = """
inner_body {
  q = (s32[], f32[4096]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  x = f32[4096] get-tuple-element(q), index=1
  u = s32[] constant(1)
  j1 = s32[] add(j, u)
  x1 = f32[4096] sine(x)
  ROOT r = (s32[], f32[4096]) tuple(j1, x1)
}
inner_condition {
  q = (s32[], f32[4096]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  m = s32[] constant(50)
  ROOT go = pred[] compare(j, m), direction=LT
}
"""


def test_nested_loops_count_all_their_steps() -> None:
    known = ', backend_config={"known_trip_count":{"n":"50"}}'
    once = step_us(simple("y = f32[4096] sine(e0)"))
    assert step_us(simple(nested(known), more=INNER)) == pytest.approx(50 * once, rel=0.02)


def test_conditionals_cost_what_their_branches_cost_on_average() -> None:
    branches = """
    cheap { q = f32[4096] parameter(0)  ROOT r = f32[4096] add(q, q) }
    dear { q = f32[4096] parameter(0)  ROOT r = f32[4096] sine(q) }
    """
    body = """go = pred[] compare(i, one), direction=LT
    y = f32[4096] conditional(go, e0, e0), true_computation=cheap, false_computation=dear"""
    dear = step_us(simple("y = f32[4096] sine(e0)"))
    assert step_us(simple(body, more=branches)) == pytest.approx(dear / 2, rel=0.1)


def test_threads_share_what_xla_has_split() -> None:
    def fused(config: str) -> HloModule:
        return simple(
            f"y = f32[4096] fusion(e0), kind=kLoop, calls=f{config}",
            more="f { q = f32[4096] parameter(0)  ROOT r = f32[4096] sine(q) }",
        )

    alone = step_us(fused(""))
    split = step_us(fused(', backend_config={"outer_dimension_partitions":["4"]}'))
    assert split == pytest.approx(alone / 4 + COSTS.task_us, rel=0.1)


def test_one_thread_scatters_what_xla_has_split() -> None:
    def scattered(config: str) -> HloModule:
        numbers = """update_window_dims={}, inserted_window_dims={0},
            scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_f32"""
        body = f"""
          w = s32[4096,1] constant(0)
          y = f32[64] fusion(e0, w, e1), kind=kLoop, calls=f{config}"""
        more = f"""f {{ q = f32[64] parameter(0)  w = s32[4096,1] parameter(1)
          u = f32[4096] parameter(2)  ROOT r = f32[64] scatter(q, w, u), {numbers} }}"""
        return counting_loop(body, ["y", "e1"], ["f32[64]", "f32[4096]"], more=more)

    split = scattered(', backend_config={"outer_dimension_partitions":["4"]}')
    assert step_us(split) == step_us(scattered(""))


# Fusions: body, and how many elements of `x` are computed.
RUNS: Final = {
    "elementwise": ("x = f32[8,4] sine(p)  ROOT r = f32[8,4] add(x, x)", 32),
    "shared_at_one_place": (
        "x = f32[8,4] sine(p)  a = f32[8,4] add(x, x)  ROOT r = f32[8,4] multiply(x, a)",
        32,
    ),
    "needed_elsewhere": (
        """x = f32[8,4] sine(p)  s = f32[8,3] slice(x), slice={[0:8], [1:4]}
        t = f32[8,3] slice(x), slice={[0:8], [0:3]}  ROOT r = f32[8,3] add(s, t)""",
        48,
    ),
    "broadcast_inwards": (
        """s = f32[8,1] slice(p), slice={[0:8], [0:1]}  v = f32[8] reshape(s)  x = f32[8] sine(v)
        ROOT r = f32[8,4] broadcast(x), dimensions={0}""",
        8,
    ),
    "broadcast_outwards": (
        """s = f32[1,4] slice(p), slice={[0:1], [0:4]}  v = f32[4] reshape(s)  x = f32[4] sine(v)
        ROOT r = f32[8,4] broadcast(x), dimensions={1}""",
        32,
    ),
    "reduced": (
        """z = f32[] constant(0)  x = f32[8,4] sine(p)
        ROOT r = f32[8] reduce(x, z), dimensions={1}, to_apply=add_f32""",
        32,
    ),
    "reduced_for_every_element": (
        """z = f32[] constant(0)  x = f32[8,4] sine(p)
        s = f32[4] reduce(x, z), dimensions={0}, to_apply=add_f32
        b = f32[8,4] broadcast(s), dimensions={1}  ROOT r = f32[8,4] multiply(b, p)""",
        256,
    ),
    "updated_in_place": (
        """z = s32[] constant(0)  s = f32[1,4] slice(p), slice={[0:1], [0:4]}  x = f32[1,4] sine(s)
        ROOT r = f32[8,4] dynamic-update-slice(p, x, z, z)""",
        4,
    ),
    "one_of_two_parts": (
        """s = f32[2,4] slice(p), slice={[0:2], [0:4]}  x = f32[2,4] sine(s)
        ROOT r = f32[10,4] concatenate(p, x), dimensions={0}""",
        8,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_a_fusion(name: str) -> None:
    body, expected = RUNS[name]
    module = module_of(
        f"""HloModule test
        add_f32 {{ l = f32[] parameter(0)  r = f32[] parameter(1)  ROOT o = f32[] add(l, r) }}
        ENTRY main {{ p = f32[8,4] parameter(0)  {body} }}"""
    )
    runs = {i.name: count for i, count in count_runs(module.entry).items()}
    assert runs["x"] == expected


def _largest(size: int) -> HloModule:
    """A loop that finds the largest of each row and where it is."""
    body = f"""
      k = s32[64,{size}] iota(), iota_dimension=1
      least = f32[] constant(-inf)
      r = (f32[64], s32[64]) reduce(e0, k, least, zero), dimensions={{1}}, to_apply=larger
      v = f32[64] get-tuple-element(r), index=0
      v_all = f32[64,{size}] broadcast(v), dimensions={{0}}
      y = f32[64,{size}] subtract(e0, v_all)"""
    return counting_loop(body, ["y"], [f"f32[64,{size}]"], more=LARGER)


def test_short_reductions_of_pairs_are_vectors() -> None:
    """LLVM unrolls up to 16 elements, and goes through more with a branch for each."""
    assert step_us(_largest(17)) > 2.2 * step_us(_largest(16))


def _row_sums(rows: str, size: int) -> HloModule:
    """A loop that sums up rows which a fusion computes."""
    body = "y = s32[4096] fusion(e0, e1), kind=kLoop, calls=f"
    more = f"""
      total {{ l = s32[] parameter(0)  r = s32[] parameter(1)  ROOT s = s32[] add(l, r) }}
      f {{ p = s32[4096] parameter(0)  q = s32[4096,{size}] parameter(1)
        z = s32[] constant(0)
        b = s32[4096,{size}] broadcast(p), dimensions={{0}}
        n = s32[4096,{size}] iota(), iota_dimension=1
        {rows.format(size=size, most=size - 1)}
        ROOT r = s32[4096] reduce(x, z), dimensions={{1}}, to_apply=total }}"""
    return counting_loop(body, ["y", "e1"], ["s32[4096]", f"s32[4096,{size}]"], more=more)


TURNED: Final = """v = s32[4096,{size}] xor(b, n)
        first = s32[4096,1] slice(v), slice={{[0:4096],[0:1]}}
        others = s32[4096,{most}] slice(v), slice={{[0:4096],[1:{size}]}}
        x = s32[4096,{size}] concatenate(others, first), dimensions={{1}}"""


@pytest.mark.parametrize("rows", ["x = s32[4096,{size}] xor(b, n)", TURNED])
def test_short_rows_that_are_computed_are_summed_in_vectors(rows: str) -> None:
    """What has to be loaded element by element is not, nor are long rows."""
    loaded = "x = s32[4096,{size}] xor(b, q)"
    assert step_us(_row_sums(rows, 32)) < 0.25 * step_us(_row_sums(loaded, 32))
    assert step_us(_row_sums(rows, 33)) > 0.8 * step_us(_row_sums(loaded, 33))


def test_windows_of_gathers_are_moved_as_runs() -> None:
    """Where a window begins is worked out once for all of it."""

    def gather_us(starts: int, window: int) -> float:
        shape = f"f32[{starts},{window}]"
        body = f"""
          w = s32[{starts},1] remainder(e1, e1)
          y = {shape} gather(e2, w), offset_dims={{1}}, collapsed_slice_dims={{}},
            start_index_map={{0}}, index_vector_dim=1, slice_sizes={{{window}}}"""
        carried = [shape, f"s32[{starts},1]", "f32[1000]"]
        return step_us(counting_loop(body, ["y", "e1", "e2"], carried))

    assert gather_us(6400, 1) > 5 * gather_us(64, 100)


def test_a_picked_number_takes_half_a_nanosecond() -> None:
    """Measured: 8,000 numbers picked from 2,000 take 3.5 to 3.8 us."""
    body = """
      y = f32[8000] gather(e1, e2), offset_dims={}, collapsed_slice_dims={0},
        start_index_map={0}, index_vector_dim=1, slice_sizes={1}"""
    module = counting_loop(body, ["y", "e1", "e2"], ["f32[8000]", "f32[2000]", "s32[8000,1]"])
    assert 3.0 < step_us(module) < 4.4


def test_a_scattered_number_takes_a_nanosecond() -> None:
    """Measured: 2,000 numbers added to 500 take 1.5 us."""
    body = """
      y = f32[500] scatter(e0, e1, e2), update_window_dims={}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_f32"""
    carried = ["f32[500]", "s32[2000,1]", "f32[2000]"]
    assert 1.0 < step_us(counting_loop(body, ["y", "e1", "e2"], carried)) < 3.0


def test_index_vectors_are_not_put_together() -> None:
    """A gather takes each component from where it is made."""
    body = """
      w = s32[4096,2] concatenate(e1, e1), dimensions={1}
      y = f32[4096] gather(e2, w), offset_dims={}, collapsed_slice_dims={0,1},
        start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}"""
    carried = ["f32[4096]", "s32[4096,1]", "f32[8,8]"]
    module = counting_loop(body, ["y", "e1", "e2"], carried)
    assert step_us(module, NO_MOVING) < 4096 * 4 * COSTS.xla_scalar_us


def many_thunks(size: int, count: int) -> HloModule:
    """A loop whose body has so many thunks, the counter's among them."""
    names = ["e0", *(f"y{k}" for k in range(count - 1))]
    copies = "\n".join(
        f"{name} = f32[{size}] copy({operand})" for operand, name in itertools.pairwise(names)
    )
    return counting_loop(copies, [names[-1]], [f"f32[{size}]"])


@pytest.mark.parametrize(
    ("size", "count", "is_queued"), [(129, 8, False), (128, 9, False), (129, 9, True)]
)
def test_many_thunks_on_larger_arrays_go_through_a_queue(
    size: int, count: int, is_queued: bool
) -> None:
    """The condition's comparison and the step itself never do."""
    one = COSTS.queued_thunk_us if is_queued else COSTS.thunk_us
    expected = count * one + 2 * COSTS.thunk_us
    assert step_us(many_thunks(size, count), NO_WORK) == pytest.approx(expected, rel=1e-3)


def scaled(rows: int, columns: int) -> float:
    """Returns the time of a fusion of a product and a sum."""
    shape = f"f32[{rows},{columns}]"
    fused = f"""f {{ q = {shape} parameter(0)
      a = {shape} multiply(q, q)  ROOT r = {shape} add(a, q) }}"""
    return step_us(simple(f"y = {shape} fusion(e0), kind=kLoop, calls=f", shape, more=fused))


def test_short_rows_are_unrolled_and_not_made_vectors() -> None:
    """Measured: 4 us for 8192 elements in rows of 12 to 48, 0.6 us in rows of 64 and more."""
    assert scaled(128, 64) == pytest.approx(scaled(32, 256))
    assert scaled(256, 32) > 4 * scaled(128, 64)
    assert scaled(2048, 4) == pytest.approx(scaled(128, 64))


def test_a_fusion_that_branches_is_no_vectors() -> None:
    """One of a logarithm and many sums, of which one part comes from elsewhere."""
    shape = "f32[4096]"
    parts = """u = f32[1] slice(q), slice={[4095:4096]}
      v = f32[4095] slice(q), slice={[0:4095]}
      a0 = f32[4096] concatenate(u, v), dimensions={0}"""

    def fused(first: str, count: int) -> float:
        sums = "\n".join(f"a{k + 1} = {shape} add(a{k}, l)" for k in range(count))
        more = f"""f {{ q = {shape} parameter(0)  l = {shape} log(q)  {first}  {sums}
          ROOT r = {shape} add(a{count}, q) }}"""
        return step_us(simple(f"y = {shape} fusion(e0), kind=kLoop, calls=f", shape, more=more))

    assert fused(parts, 14) > 3 * fused(f"a0 = {shape} negate(q)", 14)
    assert fused(parts, 3) < 1.5 * fused(f"a0 = {shape} negate(q)", 3)


def test_rows_made_of_values_used_twice_are_looked_at_once() -> None:
    """As those of hashes are: there are 2^60 ways from the sums to what they are made of."""
    squares = "\n".join(f"v{k + 1} = s32[4096,8] multiply(v{k}, v{k})" for k in range(60))
    rows = f"v0 = s32[4096,8] xor(b, n)\n{squares}\nx = s32[4096,8] negate(v60)"
    assert step_us(_row_sums(rows, 8)) > 0.0


def _stacked(count: int) -> HloModule:
    """A loop that makes four numbers of one, each by so many operations, side by side."""
    parts = []
    for part in range(4):
        names = [f"w{part}_{k}" for k in range(count)]
        for before, name in zip(["q", *names], names, strict=False):
            parts.append(f"{name} = s32[1024,1] {('xor', 'add')[part % 2]}({before}, c{part})")
        parts.insert(0, f"c{part} = s32[1024,1] iota(), iota_dimension=0")
    last = ", ".join(f"w{part}_{count - 1}" for part in range(4))
    more = f"""f {{ q = s32[1024,1] parameter(0)
      {" ".join(parts)}
      ROOT r = s32[1024,4] concatenate({last}), dimensions={{1}} }}"""
    body = "y = s32[1024,4] fusion(e1), kind=kLoop, calls=f"
    return counting_loop(body, ["y", "e1"], ["s32[1024,4]", "s32[1024,1]"], more=more)


def test_long_parts_that_are_put_together_are_no_vectors() -> None:
    """Without functions, too: measured, 0.3 ns an operation, as those of Philox take."""
    short, long, longer = (step_us(_stacked(count), NO_MOVING) for count in (7, 20, 40))
    assert long - short > 3 * 13 * 4096 / 8 * COSTS.xla_operation_us
    assert longer - long > 3 * 20 * 4096 / 8 * COSTS.xla_operation_us


def test_what_a_fusion_updates_is_computed_unless_it_is_there_before() -> None:
    shape = "f32[4096]"

    def updated(operand: str) -> float:
        more = f"""f {{ q = {shape} parameter(0)  x = {shape} sine(q)  z = s32[] constant(0)
          u = f32[1] constant({{0}})
          ROOT r = {shape} dynamic-update-slice({operand}, u, z) }}"""
        return step_us(simple(f"y = {shape} fusion(e0), kind=kLoop, calls=f", shape, more=more))

    assert updated("x") > step_us(simple(f"y = {shape} sine(e0)", shape))
    assert updated("q") < updated("x") / 50


def test_a_compiled_loop_takes_as_long_as_its_steps_wait() -> None:
    """What needs nothing of the last step does not."""

    def compiled(body: str) -> float:
        module = counting_loop(body, ["y", "z"], ["f32[]", "f32[]"])
        return step_us(module, is_compiled=True)

    chain = compiled("a = f32[] sqrt(e0)\ny = f32[] sqrt(a)\nz = f32[] negate(e1)")
    both = compiled("y = f32[] sqrt(e0)\nz = f32[] sqrt(e1)")
    last = compiled("c = f32[] convert(i)\na = f32[] sqrt(c)\ny = f32[] sqrt(a)\nz = f32[] copy(y)")
    assert chain > 1.5 * both
    assert last < both


@pytest.mark.parametrize(
    ("shape", "reduced", "is_slow"),
    [
        ("f32[16,1000]", 0, False),
        ("f32[1000,16]", 1, True),
        ("f32[16,1024]", 0, True),
        ("f32[8,1024]", 0, False),
    ],
)
def test_a_library_sums_columns_in_vectors(shape: str, reduced: int, is_slow: bool) -> None:
    """Rows of 16 have a beginning and an end each; the elements of columns may lie whole pages
    apart, more than one set of a cache holds."""
    result = "f32[1024]" if "1024" in shape else "f32[1000]"
    more = f"""
    sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
    f {{
      q = {shape} parameter(0)
      zero = f32[] constant(0)
      ROOT r = {result} reduce(q, zero), dimensions={{{reduced}}}, to_apply=sum
    }}"""
    body = f"y = {result} fusion(e0), kind=kCustom, calls=f"
    time = step_us(counting_loop(body, ["e0", "y"], [shape, result], more=more), NO_MOVING)
    assert (time > 6) == is_slow


def test_each_group_of_columns_takes_a_library_time_of_its_own() -> None:
    def sums(num_groups: int, size: int) -> float:
        shape, result = f"f32[{num_groups},8,{size}]", f"f32[{num_groups},{size}]"
        more = f"""
        sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
        f {{
          q = {shape} parameter(0)
          zero = f32[] constant(0)
          ROOT r = {result} reduce(q, zero), dimensions={{1}}, to_apply=sum
        }}"""
        body = f"y = {result} fusion(e0), kind=kCustom, calls=f"
        return step_us(counting_loop(body, ["e0", "y"], [shape, result], more=more), NO_MOVING)

    assert sums(64, 8) > 3 * sums(1, 512)
    assert sums(2, 4096) < 1.1 * sums(1, 8192)


def test_arg_maxima_of_few_neighbours_are_hardly_vectors() -> None:
    def largest(num_rows: int, size: int) -> float:
        shape, results = f"f32[{num_rows},8,{size}]", f"{num_rows},{size}"
        more = f"""
        pick {{ a = f32[] parameter(0)  i = s32[] parameter(1)
          b = f32[] parameter(2)  j = s32[] parameter(3)
          more = pred[] compare(a, b), direction=GT
          v = f32[] select(more, a, b)
          n = s32[] select(more, i, j)
          ROOT t = (f32[], s32[]) tuple(v, n) }}
        f {{
          p = f32[{results}] parameter(0)
          b = {shape} broadcast(p), dimensions={{0,2}}
          x = {shape} multiply(b, b)
          n = s32[{num_rows},8,{size}] iota(), iota_dimension=1
          zero = f32[] constant(0)
          none = s32[] constant(0)
          r = (f32[{results}], s32[{results}]) reduce(x, n, zero, none), dimensions={{1}},
            to_apply=pick
          ROOT y = f32[{results}] get-tuple-element(r), index=0
        }}"""
        body = f"y = f32[{results}] fusion(e0), kind=kLoop, calls=f"
        return step_us(simple(body, f"f32[{results}]", more=more), NO_MOVING)

    assert largest(64, 16) > 1.5 * largest(16, 64)


def test_windows_updated_in_place_are_vectors() -> None:
    """The inside of a grid takes what as many elements of a whole array do, but for its loads."""

    def fused(size: int, first: int) -> float:
        shape, window = f"f32[{size},{size}]", f"f32[{size - first},{size - first}]"
        bounds = f"[{first}:{size}], [{first}:{size}]"
        more = f"""
        f {{
          q = {shape} parameter(0)
          inside = {window} slice(q), slice={{{bounds}}}
          r = {window} multiply(inside, inside)
          at = s32[] constant({first})
          ROOT u = {shape} dynamic-update-slice(q, r, at, at)
        }}"""
        body = f"y = {shape} fusion(e0), kind=kLoop, calls=f"
        return step_us(simple(body, shape, more=more), NO_MOVING)

    whole = step_us(simple("y = f32[64,64] multiply(e0, e0)", "f32[64,64]"), NO_MOVING)
    assert whole < fused(65, 1) < 8 * whole
    assert fused(10, 1) / 9**2 > 3 * fused(65, 1) / 64**2


def made_of(fused: str, shape: str, source: str) -> float:
    """Returns the time of a fusion of `q`, an array of another shape or layout."""
    more = f"f {{ q = {source} parameter(0)  {fused} }}"
    body = f"y = {shape} fusion(e0), kind=kLoop, calls=f"
    return step_us(counting_loop(body, ["e0", "y"], [source, shape], more=more), NO_MOVING)


@pytest.mark.parametrize(
    ("size", "padding", "is_slow"),
    [
        (64, "1_1x1_1", True),
        (64, "1_0x1_1", True),
        (64, "1_1x0_1", False),
        (64, "0_0x1_1", False),
        (64, "1_1x0_0", False),
        (48, "1_1x1_1", False),
    ],
)
def test_borders_at_both_ends_of_long_rows_are_no_vectors(
    size: int, padding: str, is_slow: bool
) -> None:
    """Measured, 0.7 ns instead of 0.15 for each element."""
    rows, columns = (size + sum(map(int, p.split("_"))) for p in padding.split("x"))
    shape = f"f32[{rows},{columns}]"
    pad = f"ROOT r = {shape} pad(q, z), padding={padding}"
    time = made_of(f"z = f32[] constant(0)  {pad}", shape, f"f32[{size},{size}]")
    assert (time / (rows * columns) > 0.5e-3) == is_slow
    square = f"f32[{size},{size}]"
    computed = f"p = {square} multiply(q, q)  {pad.replace('pad(q', 'pad(p')}"
    computed_time = made_of(f"z = f32[] constant(0)  {computed}", shape, square)
    assert computed_time / (rows * columns) < 0.5e-3
    inside = pad.replace("ROOT r", "p") + f"  ROOT r = {shape} add(p, p)"
    assert made_of(f"z = f32[] constant(0)  {inside}", shape, f"f32[{size},{size}]") < 0.5 * max(
        time, 3.0
    )


@pytest.mark.parametrize(
    ("rows", "columns", "least_ns"), [(100, 100, 0.2), (20, 2048, 0.6), (2048, 20, 0.6)]
)
def test_neighbours_that_are_none_afterwards_are_loaded_one_by_one(
    rows: int, columns: int, least_ns: float
) -> None:
    """Measured, 0.25 ns each, and 0.7 to 1.1 where they come from farther than the first cache."""
    shape = f"f32[{columns},{rows}]"
    source = f"f32[{rows},{columns}]"
    turned = made_of(f"ROOT r = {shape} transpose(q), dimensions={{1,0}}", shape, source)
    copied = made_of(f"ROOT r = {source}{{0,1}} copy(q)", f"{source}{{0,1}}", source)
    kept = made_of(f"ROOT r = {source} copy(q)", source, source)
    ns = 1e3 / (rows * columns)
    assert (turned - kept) * ns == pytest.approx((copied - kept) * ns, abs=0.01)
    assert least_ns < (turned - kept) * ns < least_ns + 0.2
