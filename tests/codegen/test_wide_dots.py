"""Dots that all lanes share: along which side vectors lie, at sizes that they don't divide."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from fuselane.analysis.machine_costs import MachineCosts
from fuselane.codegen.dot_shape import DotShape
from fuselane.codegen.kernel_time import estimate_kernel_step_us
from fuselane.codegen.plan import make_plan
from fuselane.codegen.wide_dots import Along, choose_side, count_wide_work
from fuselane.config import Options
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.lanes.program import LaneProgram
from tests.codegen.kernels import DEVICE, NumpyArray, check, compile_loop, form_program
from tests.lanes.loops import counting_loop

CONTRACTED: Final = {"ik,kj": (1, 0), "ik,jk": (1, 1), "ki,kj": (0, 0), "ki,jk": (0, 1)}
"""Which dimension of two matrices is summed over."""


def mixing_loop(
    shapes: tuple[str, str, str],
    numbers: str,
    *,
    trip_count: int = 2,
    element: str = "f32",
    right: str | None = None,
) -> HloModule:
    """Returns a loop that writes down a dot of its first two elements, one number of which it adds
    to the first, and one of the first itself: so that nothing is lanes. `right` says what is made
    of the second first."""
    left, other, result = (f"{element}[{shape}]" for shape in shapes)
    rank = shapes[2].count(",") + 1
    ends, own_ends = (_second_of(shapes[n]) for n in (2, 0))
    ones = ",".join("1" * (shapes[0].count(",") + 1))
    body = f"""r = {right or f"{other} copy(e1)"}
      d = {result} dot(e0, r), {numbers}
      s = {element}[{",".join("1" * rank)}] slice(d), slice={{{ends}}}
      own = {element}[{ones}] slice(e0), slice={{{own_ends}}}
      u = {element}[] reshape(own)
      v = {element}[] reshape(s)
      t = {element}[] add(u, v)
      b = {left} broadcast(t), dimensions={{}}
      x = {left} add(e0, b)"""
    return counting_loop(body, ["x", "e1", "d"], [left, other, result], trip_count=trip_count)


def _second_of(shape: str) -> str:
    """Returns a slice of the second element along every dimension, the first where there is one."""
    return ", ".join("[0:1]" if size == "1" else "[1:2]" for size in shape.split(","))


def matrices(equation: str, rows: int, columns: int, total: int, **options: str | int) -> HloModule:
    """Returns a loop over a product of two matrices, written as for `einsum`."""
    sizes = {"i": rows, "j": columns, "k": total}
    left, right = ((",".join(str(sizes[d]) for d in part)) for part in equation.split(","))
    first, second = CONTRACTED[equation]
    numbers = f"lhs_contracting_dims={{{first}}}, rhs_contracting_dims={{{second}}}"
    return mixing_loop((left, right, f"{rows},{columns}"), numbers, **options)  # type: ignore[arg-type]


def dot_of(program: LaneProgram) -> HloInstruction:
    """Returns the dot of a program's step."""
    body = program.loop.instruction.body
    return next(i for i in body.instructions if i.opcode == "dot")


def few(shape: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> NumpyArray:
    """Returns -1, 0 and 1, of which sums of products stay exact for a few steps."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "columns", "total"),
    [(7, 9, 11), (16, 16, 16), (3, 37, 2), (30, 5, 33), (9, 70, 4), (2, 4, 64), (37, 2, 19)],
)
@pytest.mark.parametrize("equation", CONTRACTED)
def test_matrices(equation: str, rows: int, columns: int, total: int, dtype: str) -> None:
    element = "f32" if dtype == "float32" else "f64"
    module = matrices(equation, rows, columns, total, element=element)
    sizes = {"i": rows, "j": columns, "k": total}
    left, right = (tuple(sizes[d] for d in part) for part in equation.split(","))

    def step(i: int, x: NumpyArray, w: NumpyArray, _: NumpyArray) -> list[NumpyArray]:
        d = np.einsum(f"{equation}->ij", x, w)
        return [x + (d[1, 1] + x[1, 1]), w, d]

    assert not form_program(module).has_lanes
    arguments = few(left, 0, dtype), few(right, 1, dtype), few((rows, columns), 2, dtype)
    check(module, step, 2, *arguments)


@pytest.mark.parametrize("size", [5, 8, 13, 100])
@pytest.mark.parametrize("dimension", [0, 1])
def test_a_matrix_and_a_vector(size: int, dimension: int) -> None:
    """Whose elements are multiplied with the matrix's rows, or which is multiplied with each."""
    matrix = f"{size},40" if dimension == 0 else f"40,{size}"
    numbers = f"lhs_contracting_dims={{{dimension}}}, rhs_contracting_dims={{0}}"
    module = mixing_loop((matrix, str(size), "40"), numbers)

    def step(i: int, x: NumpyArray, w: NumpyArray, _: NumpyArray) -> list[NumpyArray]:
        d = w @ x if dimension == 0 else x @ w
        return [x + (d[1] + x[1, 1]), w, d]

    left = (size, 40) if dimension == 0 else (40, size)
    check(module, step, 2, few(left), few((size,), 1), few((40,), 2))
    dot = dot_of(program := form_program(module))
    side = choose_side(dot, DotShape.of(dot, program))
    assert side is (Along.LEFT if dimension == 0 else Along.SUM)


@pytest.mark.parametrize("rows", [3, 8, 9, 100])
@pytest.mark.parametrize("size", [5, 16])
def test_a_vector_and_the_rows_of_a_matrix(size: int, rows: int) -> None:
    """So many sums of products with one vector that a register is left for nothing else."""
    numbers = "lhs_contracting_dims={0}, rhs_contracting_dims={1}"
    module = mixing_loop((str(size), f"{rows},{size}", str(rows)), numbers)

    def step(i: int, x: NumpyArray, w: NumpyArray, _: NumpyArray) -> list[NumpyArray]:
        d = w @ x
        return [x + (d[1] + x[1]), w, d]

    check(module, step, 2, few((size,)), few((rows, size), 1), few((rows,), 2))
    dot = dot_of(program := form_program(module))
    assert choose_side(dot, DotShape.of(dot, program)) is Along.SUM


@pytest.mark.parametrize(
    ("own", "turned", "order", "result", "numbers", "equation"),
    [
        ("2,3,16,1", "2,3,16,20", "0,2,3,1", "2,3,1,20", (2, 2), "bhdi,bhdt->bhit"),
        ("2,3,20", "2,3,20,16", "0,2,1,3", "2,3,16", (2, 2), "bht,bhtd->bhd"),
    ],
    ids=["scores", "values"],
)
def test_a_transposed_operand_is_read_where_it_lies(
    own: str, turned: str, order: str, result: str, numbers: tuple[int, int], equation: str
) -> None:
    """A cache of keys, or of values, as attention reads it."""
    first, second = numbers
    dimensions = f"""lhs_batch_dims={{0,1}}, rhs_batch_dims={{0,1}},
        lhs_contracting_dims={{{first}}}, rhs_contracting_dims={{{second}}}"""
    module = mixing_loop(
        (own, "2,20,3,16", result),
        dimensions,
        right=f"f32[{turned}] transpose(e1), dimensions={{{order}}}",
    )

    def step(i: int, x: NumpyArray, w: NumpyArray, _: NumpyArray) -> list[NumpyArray]:
        d = np.einsum(equation, x, w.transpose([int(n) for n in order.split(",")]))
        corner = d[tuple(min(1, n - 1) for n in d.shape)]
        return [x + (corner + x[tuple(min(1, n - 1) for n in x.shape)]), w, d]

    left, sums = (tuple(map(int, sizes.split(","))) for sizes in (own, result))
    check(module, step, 2, few(left), few((2, 20, 3, 16), 1), few(sums, 2))
    dot = dot_of(program := form_program(module))
    assert dot.operands[1].opcode != "transpose"
    assert choose_side(dot, DotShape.of(dot, program)) is not None


def test_a_transposed_operand_is_moved_where_only_that_makes_vectors() -> None:
    """What lies innermost is a batch dimension, along which nothing is summed or kept."""
    numbers = """lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1},
        rhs_contracting_dims={1}"""
    turned = "f32[16,9,20] transpose(e1), dimensions={2,0,1}"
    dot = dot_of(form_program(mixing_loop(("16,9", "9,20,16", "16,20"), numbers, right=turned)))
    assert dot.operands[1].opcode == "transpose"


def test_several_dimensions_in_every_group() -> None:
    shapes = "2,3,2,3,5", "2,3,5,3,4", "2,2,3,3,4"
    numbers = """lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1,4},
        rhs_contracting_dims={1,2}"""
    module = mixing_loop(shapes, numbers)

    def step(i: int, x: NumpyArray, w: NumpyArray, _: NumpyArray) -> list[NumpyArray]:
        d = np.einsum("bpijk,bpkmn->bijmn", x, w)
        return [x + (d[1, 1, 1, 1, 1] + x[1, 1, 1, 1, 1]), w, d]

    arguments = few((2, 3, 2, 3, 5)), few((2, 3, 5, 3, 4), 1), few((2, 2, 3, 3, 4), 2)
    check(module, step, 2, *arguments)
    dot = dot_of(program := form_program(module))
    assert choose_side(dot, DotShape.of(dot, program)) is Along.RIGHT


@pytest.mark.parametrize("is_left", [True, False])
def test_what_is_masked_is_not_multiplied(is_left: bool) -> None:
    """The vector behind the last whole one starts before its end, at what has been multiplied."""
    x, w = np.ones((4, 11), np.float32), np.ones((5, 11), np.float32)
    (x if is_left else w)[3, 7] = np.inf
    loaded = compile_loop(matrices("ik,jk", 4, 5, 11, trip_count=1))
    *_, d = loaded.run(x, w, np.zeros((4, 5), np.float32))
    np.testing.assert_array_equal(d, x @ w.T)


@pytest.mark.parametrize(
    ("equation", "sizes", "expected"),
    [
        ("ik,kj", (9, 9, 9), Along.RIGHT),
        ("ik,jk", (9, 9, 9), Along.SUM),
        ("ki,kj", (9, 9, 9), Along.RIGHT),
        ("ki,jk", (9, 9, 9), None),
        ("ki,kj", (9, 3, 9), None),
        ("ik,jk", (9, 9, 3), None),
    ],
)
def test_side(equation: str, sizes: tuple[int, int, int], expected: Along | None) -> None:
    dot = dot_of(program := form_program(matrices(equation, *sizes)))
    assert choose_side(dot, DotShape.of(dot, program)) is expected


def test_halves_have_no_vectors() -> None:
    dot = dot_of(program := form_program(matrices("ik,kj", 9, 9, 9, element="bf16")))
    assert choose_side(dot, DotShape.of(dot, program)) is None


def test_work_counts_vectors() -> None:
    dot = dot_of(program := form_program(matrices("ik,kj", 6, 12, 20)))
    shape = DotShape.of(dot, program)
    assert count_wide_work(shape, Along.RIGHT, 8) == (6 * 2 * 20, 20)
    vector = dot_of(program := form_program(matrices("ik,jk", 6, 12, 20)))
    work, waiting = count_wide_work(DotShape.of(vector, program), Along.SUM, 8)
    assert work == 6 * 12 * (3 + 1)
    assert waiting < 20


def test_vectors_are_cheaper() -> None:
    def step_us(equation: str) -> float:
        program = form_program(matrices(equation, 24, 24, 24))
        plan = make_plan(program, Options(), DEVICE)
        return estimate_kernel_step_us(program, plan, MachineCosts(), DEVICE)

    assert step_us("ki,jk") > 4 * step_us("ik,kj")
