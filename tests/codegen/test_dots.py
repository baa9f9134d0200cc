"""Dots in kernels: every way to emit one, in all layouts, against NumPy on exact numbers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.codegen import dots
from fuselane.codegen.arrays import Array, View
from fuselane.codegen.dot_shape import split
from fuselane.codegen.emitter import Emitter
from fuselane.codegen.kernel_time import estimate_kernel_step_us
from fuselane.codegen.llvm import optimised_ir
from fuselane.codegen.plan import make_plan
from fuselane.config import Options
from tests.codegen.kernels import (
    DEVICE,
    LAYOUTS,
    NumpyArray,
    Settings,
    check,
    compile_loop,
    form_program,
    layouts,
)
from tests.lanes.loops import counting_loop

TRIPS = 300
"""So many that weights are packed."""

SMALL_DEVICE = replace(DEVICE, vector_bits=256, num_vector_registers=16)


def few(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> NumpyArray:
    """Returns -1, 0 and 1, of which sums of products stay exact for a few steps."""
    return np.random.default_rng(seed).integers(-1, 2, tuple(shape)).astype(dtype)


@layouts
@pytest.mark.parametrize("size", [3, 20, 37])
def test_uniform_weights(lanes: int, options: Settings, size: int) -> None:
    """Unrolled, and in blocks of outputs that don't divide their number."""
    body = """y = f32[L,S] dot(e0, e1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
    module = loop(body, ["f32[L,S]", "f32[S,S]"], L=lanes, S=size)
    check(
        module,
        lambda i, x, w: (x @ w, w),
        2,
        few([lanes, size]),
        few([size, size], seed=1),
        **options,
    )


@pytest.mark.parametrize("numbers", ["01", "11", "10", "00"])
@pytest.mark.parametrize("device", [DEVICE, SMALL_DEVICE], ids=["32", "16"])
def test_weights_on_either_side(numbers: str, device: Any) -> None:
    """Lanes minor or not, weights transposed or not, right or left."""
    lanes, size = 33, 21
    is_left = numbers[0] == "0"
    body = f"""y = f32[{"S,L" if is_left else "L,S"}] dot({"e1, e0" if is_left else "e0, e1"}),
        lhs_contracting_dims={{1}}, rhs_contracting_dims={{{0 if is_left else numbers[1]}}}"""
    shape = "f32[S,L]" if is_left else "f32[L,S]"
    module = loop(body, [shape, "f32[S,S]"], L=lanes, S=size)

    def step(i: int, x: NumpyArray, w: NumpyArray) -> Sequence[NumpyArray]:
        if is_left:
            return w @ x, w
        return x @ (w.T if numbers[1] == "1" else w), w

    x = few([size, lanes] if is_left else [lanes, size])
    check(module, step, 2, x, few([size, size], seed=1), device=device)


@layouts
@pytest.mark.parametrize("size", [2, 4, 9])
def test_dots_per_lane(lanes: int, options: Settings, size: int) -> None:
    """A matrix by a matrix and by a vector; unrolled, and in blocks of both."""
    body = """c = f32[L,S,S] dot(e0, e0), lhs_batch_dims={0}, rhs_batch_dims={0},
            lhs_contracting_dims={2}, rhs_contracting_dims={1}
        y = f32[L,S] dot(c, e1), lhs_batch_dims={0}, rhs_batch_dims={0},
            lhs_contracting_dims={1}, rhs_contracting_dims={1}"""
    module = loop(body, ["f32[L,S,S]", "f32[L,S]"], ["e0", "y"], L=lanes, S=size)

    def step(i: int, a: NumpyArray, x: NumpyArray) -> Sequence[NumpyArray]:
        return a, np.einsum("nij,ni->nj", a @ a, x)

    check(module, step, 2, few([lanes, size, size]), few([lanes, size], seed=1), **options)


@pytest.mark.parametrize("unroll", [1, 2])
def test_all_groups_of_dimensions_at_once(unroll: int) -> None:
    """Batch, free and contracting dimensions beside the lanes, two of each, out of order."""
    body = """start = f32[] constant(0)
        d = f32[2,3,37,4,5] dot(e0, e1), lhs_batch_dims={2,0}, rhs_batch_dims={0,4},
            lhs_contracting_dims={5,3}, rhs_contracting_dims={1,3}
        r = f32[2,3,37,4] reduce(d, start), dimensions={4}, to_apply=add_f32
        b = f32[2,3,37,4,6,7] broadcast(r), dimensions={0,1,2,3}
        y = f32[3,37,2,6,4,7] transpose(b), dimensions={1,2,0,4,3,5}"""
    module = loop(body, ["f32[3,37,2,6,4,7]", "f32[2,7,5,6,3]"], trip_count=1)

    def step(i: int, x: NumpyArray, w: NumpyArray) -> Sequence[NumpyArray]:
        d = np.einsum("bnakfc,acgkb->abnfg", x, w)
        wide = np.broadcast_to(d.sum(4)[..., None, None], (2, 3, 37, 4, 6, 7))
        return wide.transpose(1, 2, 0, 4, 3, 5), w

    check(module, step, 1, few([3, 37, 2, 6, 4, 7]), few([2, 7, 5, 6, 3], seed=1), unroll=unroll)


@pytest.mark.parametrize("size", [4, 30])
@pytest.mark.parametrize(
    ("operand", "result", "dtype", "result_dtype"),
    [
        ("s8", "s8", np.int8, np.int8),
        ("s8", "s32", np.int8, np.int32),
        ("u16", "u16", np.uint16, np.uint16),
        ("s64", "s64", np.int64, np.int64),
        ("f64", "f64", np.float64, np.float64),
        ("f16", "f16", np.float16, np.float16),
        ("bf16", "f32", ml_dtypes.bfloat16, np.float32),
        ("bf16", "bf16", ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ],
)
def test_types(operand: str, result: str, dtype: Any, result_dtype: Any, size: int) -> None:
    """Integers wrap; floats of 16 bits are summed in 32 and rounded once."""
    body = f"""d = {result}[L,S] dot(e0, e1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        y = {operand}[L,S] convert(d)"""
    shapes = [f"{operand}[L,S]", f"{operand}[S,S]"]
    module = loop(body, shapes, L=33, S=size, trip_count=3)
    generator = np.random.default_rng(0)
    is_integer = np.issubdtype(dtype, np.integer)
    low, high = (-100, 100) if is_integer else (-16, 17)
    x = generator.integers(low, high, (33, size)).astype(dtype)
    w = generator.integers(low, high, (size, size)).astype(dtype)
    if not is_integer:
        w = (w.astype(np.float64) / 64).astype(dtype)
    wide = np.int64 if is_integer else np.float64 if operand == "f64" else np.float32

    def step(i: int, x: NumpyArray, w: NumpyArray) -> Sequence[NumpyArray]:
        return (x.astype(wide) @ w.astype(wide)).astype(result_dtype).astype(dtype), w

    trips = 3 if is_integer else 1
    module = loop(body, shapes, L=33, S=size, trip_count=trips)
    check(module, step, trips, x, w)


@pytest.mark.parametrize("size", [4, 24])
def test_operands_of_every_kind(size: int) -> None:
    """Inputs, work in between, slices and transposes of weights, constants, shared work."""
    body = """a = f32[S,S] transpose(e1), dimensions={1,0}
        k = f32[S,S] iota(), iota_dimension=1
        m = f32[S,S] subtract(a, k)
        h = f32[L,S] dot(e0, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        n = f32[L,S] negate(h)
        s = f32[1,S,S] dynamic-slice(e2, i, zero, zero), dynamic_slice_sizes={1,S,S}
        t = f32[S,S] reshape(s)
        g = f32[L,S] dot(n, t), lhs_contracting_dims={1}, rhs_contracting_dims={1}
        v = f32[L,S] reverse(g), dimensions={1}
        o = f32[L,S] dot(v, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        f = f32[] constant(0.0078125)
        fs = f32[L,S] broadcast(f), dimensions={}
        y = f32[L,S] multiply(o, fs)"""
    module = loop(
        body, ["f32[L,S]", "f32[S,S]", "f32[3,S,S]"], ["y", "e1", "e2"], L=37, S=size, trip_count=1
    )

    def step(i: int, x: NumpyArray, w: NumpyArray, ws: NumpyArray) -> Sequence[NumpyArray]:
        v = (-(x @ (w.T - np.arange(size))) @ ws[i].T)[:, ::-1]
        return np.float32(0.0078125) * (v @ w.T), w, ws

    check(module, step, 1, few([37, size]), few([size, size], seed=1), few([3, size, size], seed=2))


def permutation(size: int, seed: int, dtype: Any = np.float32) -> NumpyArray:
    """Returns a matrix that permutes and changes signs, so that products stay exact for ever."""
    generator = np.random.default_rng(seed)
    rows = np.eye(size)[generator.permutation(size)]
    return (rows * generator.choice([-1, 1], size)).astype(dtype)


@pytest.mark.parametrize("options", [{}, {"tile_lanes": 32}], ids=["vectors", "tiles"])
def test_weights_that_never_change_are_packed(options: Settings) -> None:
    """Transposed, converted, sliced and constant ones, on the left and on the right."""
    size, trips = 19, 400
    fixed = permutation(size, 4)
    numbers = ",".join("{" + ",".join(f"{int(x)}" for x in row) + "}" for row in fixed)
    body = f"""t = f32[S,S] transpose(e1), dimensions={{1,0}}
        a = f32[L,S] dot(e0, t), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        c = f32[S,S] convert(e2)
        b = f32[S,L] dot(c, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
        s = f32[1,S,S] slice(e3), slice={{[1:2], [0:{size}], [0:{size}]}}
        r = f32[S,S] reshape(s)
        d = f32[L,S] dot(b, r), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
        k = f32[S,S] constant({{{numbers}}})
        y = f32[L,S] dot(d, k), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}"""
    shapes = ["f32[L,S]", "f32[S,S]", "bf16[S,S]", "f32[2,S,S]"]
    module = loop(body, shapes, ["y", "e1", "e2", "e3"], L=37, S=size, trip_count=trips)
    w1, w2 = permutation(size, 1), permutation(size, 2, ml_dtypes.bfloat16)
    w3 = np.stack([permutation(size, 3), permutation(size, 5)])

    def step(i: int, x: NumpyArray, *weights: NumpyArray) -> Sequence[NumpyArray]:
        c = w2.astype(np.float32)
        return (c @ (x @ w1.T).T).T @ w3[1] @ fixed.T, *weights

    compiled = check(module, step, trips, few([37, size]), w1, w2, w3, **options)
    assert compiled.code.ir.count("pack") >= 4


@pytest.mark.parametrize("count", [1, 4])
def test_weights_are_packed_once(count: int) -> None:
    """However many dots alike read them; one that sums over their other dimension has a copy of
    its own."""
    size, trips = 19, 400
    names = ["e0", *(f"y{n}" for n in range(count)), "z"]
    body = "\n".join(
        f"""{new} = f32[L,S] dot({old}, e1), lhs_contracting_dims={{1}},
            rhs_contracting_dims={{{int(new == "z")}}}"""
        for old, new in itertools.pairwise(names)
    )
    module = loop(body, ["f32[L,S]", "f32[S,S]"], ["z", "e1"], L=37, S=size, trip_count=trips)
    w = permutation(size, 1)

    def step(i: int, x: NumpyArray, w: NumpyArray) -> Sequence[NumpyArray]:
        for _ in range(count):
            x = x @ w
        return x @ w.T, w

    compiled = check(module, step, trips, few([37, size]), w)
    loops = re.findall(r"^\"?pack[.\d]*\"?:$", compiled.code.ir, re.MULTILINE)
    assert len(loops) == 4, "two loops, one in the other, for either copy"


def test_weights_that_change_are_not_packed() -> None:
    body = """y = f32[L,S] dot(e0, e1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        w = f32[S,S] negate(e1)"""
    module = loop(body, ["f32[L,S]", "f32[S,S]"], ["y", "w"], L=33, S=19, trip_count=400)
    step = lambda i, x, w: (x @ w, -w)  # noqa: E731
    compiled = check(module, step, 400, few([33, 19]), permutation(19, 1))
    assert "pack" not in compiled.code.ir


def test_large_weights_are_expected_to_be_slow() -> None:
    """What does not fit a core's caches is left to XLA's libraries by the estimated times."""

    def time_per_product(size: int, copies: int) -> float:
        names = ["e0", *(f"y{n}" for n in range(copies))]
        body = "\n".join(
            f"""{new} = f32[L,S] dot({old}, e{n + 1}), lhs_contracting_dims={{1}},
                rhs_contracting_dims={{0}}"""
            for n, (old, new) in enumerate(itertools.pairwise(names))
        )
        kept = [f"e{n + 1}" for n in range(copies)]
        shapes = ["f32[L,S]", *["f32[S,S]"] * copies]
        program = form_program(loop(body, shapes, [names[-1], *kept], L=256, S=size))
        plan = make_plan(program, Options(), DEVICE)
        time = estimate_kernel_step_us(program, plan, MachineCosts(), DEVICE)
        return time / (copies * size**2)

    small = time_per_product(256, 1)
    assert time_per_product(256, 2) < 1.1 * small
    assert time_per_product(512, 1) > 1.3 * small
    assert time_per_product(256, 4) > 1.3 * small
    assert time_per_product(512, 2) > 1.1 * time_per_product(512, 1)  # each thread loads them all


def alike(lanes: int, count: int) -> Any:
    """Returns a loop over a chain of products of matrices, by weights and by one per lane."""
    per_lane = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}"
    by_weights = "lhs_contracting_dims={2}, rhs_contracting_dims={0}"
    names = ["e0", *(f"d{n}" for n in range(2 * count))]
    lines = [
        f"{new} = f32[L,7,7] dot({old}, e1), {per_lane}, rhs_contracting_dims={{1}}"
        if number % 2
        else f"{new} = f32[L,7,7] dot({old}, e2), {by_weights}"
        for number, (old, new) in enumerate(itertools.pairwise(names))
    ]
    shapes = ["f32[L,7,7]", "f32[L,7,7]", "f32[7,7]"]
    return loop("\n".join(lines), shapes, [names[-1], "e1", "e2"], TRIPS, L=lanes)


@pytest.mark.parametrize(
    ("lanes", "options", "bounds_checks"),
    [*((*layout, False) for layout in LAYOUTS), *((*layout, True) for layout in LAYOUTS[1::3])],
)
def test_dots_alike_are_calls(lanes: int, options: Settings, bounds_checks: bool) -> None:
    """Signed permutations, so that long chains stay exact."""
    rng = np.random.default_rng(0)
    turns = np.stack([np.eye(7, dtype=np.float32)[rng.permutation(7)] for _ in range(lanes)])
    weights = -np.eye(7, dtype=np.float32)[rng.permutation(7)]

    def step(i: int, x: NumpyArray, turns: NumpyArray, weights: NumpyArray) -> Any:
        for _ in range(4):
            x = x @ weights @ turns
        return x, turns, weights

    check(
        alike(lanes, 4),
        step,
        TRIPS,
        few([lanes, 7, 7]),
        turns,
        weights,
        bounds_checks=bounds_checks,
        **options,
    )


@pytest.mark.parametrize(("count", "expected"), [(3, 0), (4, 4)])
def test_few_dots_alike_are_no_calls(count: int, expected: int) -> None:
    text = compile_loop(alike(64, count)).code.ir
    calls = re.findall(r'call void @"?(fuselane\.dot\.\w+)', text)
    assert sorted(Counter(calls).values()) == [expected] * (2 if expected else 0)


@pytest.mark.parametrize("trip_count", [2, 400])
def test_dots_with_few_outputs_are_calls_too(trip_count: int) -> None:
    """Nine sums fit registers. Weights are read where they are; for many steps they are packed."""
    body = "\n".join(
        f"x{n + 1} = f32[L,9] dot(x{n}, e1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        for n in range(4)
    ).replace("x0", "e0")
    module = loop(body, ["f32[L,9]", "f32[9,9]"], ["x4", "e1"], trip_count, L=40)
    calls = re.findall(r'call void @"?(fuselane\.dot\.\w+)', compile_loop(module).code.ir)
    assert [*Counter(calls).values()] == [4]
    turn = -np.eye(9, dtype=np.float32)[np.random.default_rng(0).permutation(9)]

    def step(i: int, x: NumpyArray, turn: NumpyArray) -> Any:
        return x @ turn @ turn @ turn @ turn, turn

    check(module, step, trip_count, few([40, 9]), turn)


@pytest.mark.parametrize(
    ("lanes", "options", "bounds_checks"),
    [*((*layout, False) for layout in LAYOUTS), *((*layout, True) for layout in LAYOUTS[1::3])],
)
def test_operands_are_copied_to_memory_once(
    lanes: int, options: Settings, bounds_checks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is part of another array, by four dots; work for some lanes copies it for itself."""
    per_lane = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}"
    body = f"""s = f32[L,1,7,7] slice(e0), slice={{[0:L], [1:2], [0:7], [0:7]}}
        t = f32[L,7,7] reshape(s)
        none = s32[] constant(0)
        zeros = s32[L] broadcast(none), dimensions={{}}
        asks = pred[L] compare(e2, zeros), direction=GT
        q = pred[L,7,7] broadcast(asks), dimensions={{0}}
        a = f32[L,7,7] dot(t, e1), {per_lane}, rhs_contracting_dims={{1}}
        b = f32[L,7,7] dot(a, t), {per_lane}, rhs_contracting_dims={{1}}
        r = f32[L,7,7] select(q, b, e1)
        c = f32[L,7,7] dot(r, t), {per_lane}, rhs_contracting_dims={{1}}
        d = f32[L,7,7] dot(t, c), {per_lane}, rhs_contracting_dims={{1}}
        y = f32[L,2,7,7] broadcast(d), dimensions={{0,2,3}}"""
    module = loop(body, ["f32[L,2,7,7]", "f32[L,7,7]", "s32[L]"], L=lanes)
    rng = np.random.default_rng(1)
    x, turns = (
        np.stack([permutation(7, int(seed)) for seed in rng.integers(1 << 30, size=lanes)])
        for _ in range(2)
    )
    needed = (rng.integers(4, size=lanes) == 0).astype(np.int32)

    def step(i: int, x: NumpyArray, turns: NumpyArray, needed: NumpyArray) -> Any:
        t = x[:, 1]
        r = np.where(needed[:, None, None] > 0, t @ turns @ t, turns)
        d = t @ (r @ t)
        return np.stack([d, d], axis=1), turns, needed

    copied: list[Array] = []

    def watch(emitter: Emitter, array: Array) -> Array:
        found = addressable(emitter, array)
        if found is not array and isinstance(array, View):
            copied.append(array)
        return found

    addressable = dots._addressable
    monkeypatch.setattr(dots, "_addressable", watch)
    pair = np.stack([x, x], axis=1)
    compiled = check(module, step, 2, pair, turns, needed, bounds_checks=bounds_checks, **options)
    assert any(compiled.program.guards.values())
    assert len(copied) <= 2


def test_shared_dots_are_computed_once_per_step() -> None:
    """What no lane has a part in stands outside the loop over lane blocks."""
    body = """m = f32[S,S] dot(e1, e1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        y = f32[L,S] dot(e0, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
    module = loop(body, ["f32[L,S]", "f32[S,S]"], L=70, S=18)
    step = lambda i, x, w: (x @ (w @ w), w)  # noqa: E731
    check(module, step, 2, few([70, 18]), few([18, 18], seed=1), tile_lanes=64)


def test_sums_start_from_zero() -> None:
    """A sum of nothing but negative zeros is positive, as XLA's is."""
    for size in (2, 40):
        body = "y = f32[L,S] dot(e0, e1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        compiled = compile_loop(loop(body, ["f32[L,S]", "f32[S,S]"], L=16, S=size, trip_count=1))
        x = np.full((16, size), -0.0, np.float32)
        _, y, _ = compiled.run(x, np.ones((size, size), np.float32))
        assert not np.signbit(y).any()


def test_sums_stay_in_registers() -> None:
    """The innermost loop stores nothing and loads each element of a lane once for six outputs."""
    body = "y = f32[L,S] dot(e0, e1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    program = form_program(loop(body, ["f32[L,S]", "f32[S,S]"], L=256, S=60, trip_count=1000))
    compiled = compile_loop(program, device=SMALL_DEVICE)
    assert compiled.plan.width == 16
    blocks = optimised_ir(compiled.code.ir).split("\n\n")
    (inner,) = [block for block in blocks if "fmuladd" in block and "phi <16 x float>" in block]
    assert "store" not in inner
    num_products, num_loads = inner.count("fmuladd"), inner.count("load <16 x float>")
    assert (inner.count("phi <16 x float>"), num_products) == (6, 6 * num_loads)


def test_one_sum_per_lane_waits_for_a_quarter_of_its_products() -> None:
    """No element is stored first: each is read once, where it is multiplied."""
    body = """
  d = f32[L] dot(e1, e2), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  y = f32[L] add(e0, d)
"""
    shapes = ["f32[L]", "f32[S,L]", "f32[S]"]
    compiled = compile_loop(loop(body, shapes, L=256, S=40), device=SMALL_DEVICE)
    products = re.findall(r"%\"(.*?)\" = call .*fmuladd.*, <\d+ x float> (.*)\)", compiled.code.ir)
    assert len(products) == 40
    waiting: dict[str, int] = {}
    for product, total in products:
        waiting[product] = waiting.get(total.strip('%"'), 0) + 1
    assert max(waiting.values()) == 10
    num_arrays = len(re.findall(r" alloca float", compiled.code.ir))
    assert num_arrays <= 1, "the carried numbers alone"


def test_weights_are_not_copied() -> None:
    """More than there are registers for, in products emitted one by one: read where they lie."""
    body = "y = f32[L,S] dot(e0, e1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    compiled = compile_loop(loop(body, ["f32[L,S]", "f32[S,S]"], L=64, S=8))
    assert compiled.code.ir.count("fmuladd") >= 64
    assert not re.search(r"alloca float, i32 64\b", compiled.code.ir)


def loop(
    body: str,
    shapes: Sequence[str],
    results: Sequence[str] | None = None,
    trip_count: int = 2,
    **sizes: int,
) -> Any:
    """Returns a counting loop with sizes put in for letters; its first element becomes `y`."""

    def fill(text: str) -> str:
        for letter, size in sizes.items():
            for before in "[,{:":
                for after in "],}":
                    text = text.replace(f"{before}{letter}{after}", f"{before}{size}{after}")
        return text

    kept = [f"e{k}" for k in range(len(shapes))]
    return counting_loop(
        fill(body),
        list(results or ["y", *kept[1:]]),
        [fill(shape) for shape in shapes],
        trip_count=trip_count,
    )


@pytest.mark.parametrize(
    ("total", "largest", "expected"),
    [
        (192, 14, [12] * 16),  # 14 and 13 would be two loops
        (96, 14, [12] * 8),
        (9, 14, [9]),
        (64, 14, [13] * 4 + [12]),  # 8 at a time would be too few
        (17, 6, [6, 6, 5]),
    ],
)
def test_blocks_cover_a_side(total: int, largest: int, expected: list[int]) -> None:
    runs = split(total, largest)
    assert [run.size for run in runs for _ in range(run.count)] == expected
    assert [run.start for run in runs[1:]] == [run.size * run.count for run in runs[:-1]]
