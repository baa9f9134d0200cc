"""The model of a processor: waiting, the window, registers, code that is too long, guards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import pytest

from fuselane.analysis.cost import OPCODE_COST
from fuselane.codegen.scalar_time import CHEAP
from fuselane.codegen.vector_time import VectorBlock, VectorUnit
from fuselane.codegen.vector_timing import timing_of
from tests.codegen.kernels import form_program
from tests.lanes.loops import counting_loop

ROW: Final = "f32[4096]"
UNIT: Final = VectorUnit(lanes=8, bits=32, registers=16, max_unrolled=32)


def block(
    body: str, results: Sequence[str] = ("y",), *, is_tiled: bool = False, row: str = ROW
) -> VectorBlock:
    module = counting_loop(body, [*results], [row] * len(results), trip_count=1000)
    program = form_program(module)
    return VectorBlock(program, program.loop.instruction.body, UNIT, is_tiled=is_tiled)


def chain(opcode: str, length: int) -> str:
    names = ["e0", *(f"x{k}" for k in range(length - 1)), "y"]
    return "\n".join(f"{y} = {ROW} {opcode}({x})" for x, y in itertools.pairwise(names))


def several(count: int, opcode: str = "sine") -> tuple[str, list[str]]:
    """Returns a body of independent values and their names."""
    names = [f"y{k}" for k in range(count)]
    return "\n".join(f"{y} = {ROW} {opcode}(e{k})" for k, y in enumerate(names)), names


def test_a_chain_takes_as_long_for_two_vectors_as_for_one() -> None:
    waiting = block(chain("sine", 4))
    assert waiting.cycles(2) < 1.2 * waiting.cycles(1)
    assert waiting.cycles(8) > 2 * waiting.cycles(1)


def test_time_grows_with_the_length_of_a_chain() -> None:
    assert block(chain("sine", 8)).cycles(1) == pytest.approx(
        2 * block(chain("sine", 4)).cycles(1), rel=0.1
    )


def test_what_waits_for_nothing_takes_twice_as_long_for_two_vectors() -> None:
    body, names = several(6)
    assert block(body, names).cycles(2) == pytest.approx(2 * block(body, names).cycles(1), rel=0.15)


def test_blocks_of_a_tile_do_not_wait_for_each_other() -> None:
    """As far as the window reaches."""
    short, long = chain("sine", 1), chain("sine", 12)
    assert block(short, is_tiled=True).cycles(1) < 0.7 * block(short).cycles(1)
    tiled = block(long, is_tiled=True)
    assert tiled.waiting(1) > 1.5 * tiled.throughput(1)
    assert tiled.cycles(2) < 1.5 * tiled.cycles(1)


def test_products_summed_over_lanes_take_about_as_long_as_those_of_a_dot() -> None:
    rows, matrix = "f32[4096,64]", "f32[64,64]"
    dot = "y = {shape} dot(e0, {other}), lhs_contracting_dims={{{d}}}, rhs_contracting_dims={{0}}"
    forward = dot.format(shape=rows, other="e1", d=1)
    summed = f"""
      {dot.format(shape=matrix, other="e2", d=0)}
      total = {matrix} add(e1, y)
      back = {rows} negate(e0)"""
    ways = [
        counting_loop(forward, ["y", "e1"], [rows, matrix], trip_count=100),
        counting_loop(summed, ["back", "total", "e2"], [rows, matrix, rows], trip_count=100),
    ]
    programs = [form_program(module) for module in ways]
    one, other = (
        VectorBlock(p, p.loop.instruction.body, UNIT, is_tiled=True).cycles(4) for p in programs
    )
    assert one < other < 1.4 * one


def test_values_that_do_not_fit_are_stored_and_loaded() -> None:
    body, names = several(14, "negate")
    crowded = block(body, names)
    assert crowded.cycles(2) > 2.5 * crowded.cycles(1)
    few, names = several(3, "negate")
    assert block(few, names).cycles(2) < 2.2 * block(few, names).cycles(1)


def test_code_that_is_not_kept_decoded_is_slow() -> None:
    long = block(chain("sine", 120))
    assert long.code_size() > 2500
    assert long.throughput(2) > 2.2 * long.throughput(1)
    short = block(chain("sine", 4))
    assert short.throughput(2) < 2.1 * short.throughput(1)


def test_doubles_beside_floats_take_two_registers() -> None:
    wide = block(chain("sine", 2).replace("f32", "f64"), row=ROW.replace("f32", "f64"))
    assert wide.throughput(2) > 2 * block(chain("sine", 2)).throughput(2)


def test_a_product_is_part_of_a_sum() -> None:
    both = block(f"z = {ROW} multiply(e0, e1)\ny = {ROW} add(z, e1)", ["y", "e1"])
    sum_ = block(f"y = {ROW} add(e0, e1)", ["y", "e1"])
    assert both.throughput(1) == pytest.approx(sum_.throughput(1))


@pytest.mark.parametrize("opcode", sorted(o for o, cost in OPCODE_COST.items() if cost > CHEAP))
def test_sequences_of_instructions_are_not_taken_for_one(opcode: str) -> None:
    operands = "e0, e0" if opcode in ("atan2", "divide", "power", "remainder") else "e0"
    if opcode in ("gather", "scatter"):
        pytest.skip("needs indices")
    more = ", exponent_bits=5, mantissa_bits=10" if opcode == "reduce-precision" else ""
    program = form_program(
        counting_loop(f"y = {ROW} {opcode}({operands}){more}", ["y"], [ROW], trip_count=1000)
    )
    one = next(i for i in program.loop.instruction.body.instructions if i.opcode == opcode)
    assert timing_of(one).work > 2
    assert timing_of(one).latency > 5


def test_what_lanes_begin_anew_by_is_not_needed_in_every_step() -> None:
    """Long work for few lanes: where it goes on from the state, it may well be the main work."""

    def cycles(source: str) -> float:
        work = "".join(
            f"w{k} = {ROW} sine({source if k == 0 else f'w{k - 1}'})\n" for k in range(40)
        )
        body = (
            f"{work}is_over = pred[4096] compare(e0, e1), direction=LT\n"
            f"moved = {ROW} add(e0, e0)\ny = {ROW} select(is_over, w39, moved)"
        )
        return block(body, ["y", "e1"]).cycles(1)

    assert cycles("e0") > 3 * cycles("e1") > 0


def test_a_question_about_many_elements_is_answered_by_yes() -> None:
    """Work for some elements of some lanes is needed in nearly every step."""

    def cycles(size: int) -> float:
        shape = f"f32[4096,{size}]"
        work = "".join(
            f"w{k} = {shape} sine({'e1' if k == 0 else f'w{k - 1}'})\n" for k in range(8)
        )
        body = (
            f"{work}is_over = pred[4096,{size}] compare(e0, e1), direction=LT\n"
            f"square_root = {shape} sqrt(e0)\nmoved = {shape} divide(square_root, e1)\n"
            f"turned = {shape} reverse(moved), dimensions={{1}}\n"
            f"y = {shape} select(is_over, w7, turned)"
        )
        return block(body, ["y", "e1"], row=shape).cycles(1) / size

    assert cycles(100) > 1.4 * cycles(1)


def test_each_part_of_what_is_put_together_is_gathered() -> None:
    def cycles(parts: int) -> float:
        row, table = "f32[4096,20]", f"f32[4096,{20 * parts}]"
        body = f"""
          many = {table} concatenate({", ".join(["e0"] * parts)}), dimensions={{1}}
          y = {row} gather(many, e1), offset_dims={{}}, collapsed_slice_dims={{1}},
            operand_batching_dims={{0}}, start_indices_batching_dims={{0}}, start_index_map={{1}},
            index_vector_dim=2, slice_sizes={{1,1}}"""
        program = form_program(
            counting_loop(body, ["y", "e1"], [row, "s32[4096,20,1]"], trip_count=1000)
        )
        unit = VectorUnit(lanes=8, bits=32, registers=16, max_unrolled=32)
        return VectorBlock(program, program.loop.instruction.body, unit).cycles(1)

    assert cycles(3) > cycles(2) + 100


def test_what_no_step_changes_is_not_stored_again() -> None:
    """Many more than there are registers: each step loads them, as it would from anywhere."""
    count = 40
    body = f"sum0 = {ROW} add(e0, e1)\n"
    body += "\n".join(f"sum{k} = {ROW} add(sum{k - 1}, e{k + 1})" for k in range(1, count))
    kept = [f"e{k}" for k in range(1, count + 1)]
    assert block(body, [f"sum{count - 1}", *kept]).count_spills(8) == 0
    body += "\n" + "\n".join(f"new{k} = {ROW} negate({name})" for k, name in enumerate(kept))
    changed = [f"new{k}" for k in range(count)]
    assert block(body, [f"sum{count - 1}", *changed]).count_spills(8) > count / 2


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_updated_by_an_index_is_in_memory(is_known: bool) -> None:
    """Few enough for registers, but which of them is known only when the kernel runs."""
    rows, row = "f32[20,4096]", "f32[1,4096]"
    body = f"""
      first = s32[] constant(0)
      three = s32[] constant(3)
      there = s32[] remainder(e1, three)
      old = {row} dynamic-slice(e0, {"three" if is_known else "there"}, first),
        dynamic_slice_sizes={{1,4096}}
      new = {row} add(old, old)
      y = {rows} dynamic-update-slice(e0, new, {"three" if is_known else "there"}, first)
      after = s32[] add(e1, three)"""
    program = form_program(counting_loop(body, ["y", "after"], [rows, "s32[]"], trip_count=1000))
    spilled = VectorBlock(program, program.loop.instruction.body, UNIT).count_spills(8)
    assert (spilled > 0) == is_known


def test_what_a_loop_goes_on_for_is_needed_in_every_step() -> None:
    """It ends when no lane changes its state any more, so most do; of a loop that is counted or
    makes something else of its lanes nobody knows."""

    def cycles(other: str, *, is_counted: bool) -> float:
        work = "".join(
            f"{to}{k} = {ROW} sine({source if k == 0 else f'{to}{k - 1}'})\n"
            for to, source in (("w", "e0"), ("z", "e1"))
            for k in range(8)
        )
        body = f"""{work}
          is_on = pred[4096] compare(e0, e1), direction=LT
          y = {ROW} select(is_on, w7, {other})
          after = s32[] shift-right-logical(e2, one)"""
        condition = f"ROOT go = pred[] compare({'i' if is_counted else 'e2'}, n), direction=NE"
        program = form_program(
            counting_loop(
                body,
                ["y", "z7", "after"],
                [ROW, ROW, "s32[]"],
                trip_count=1000,
                condition=condition.replace("NE", "LT") if is_counted else condition,
            )
        )
        return VectorBlock(program, program.loop.instruction.body, UNIT).throughput(1)

    frozen = cycles("e0", is_counted=False)
    assert frozen > 1.5 * cycles("e0", is_counted=True)
    assert frozen > 1.5 * cycles("z7", is_counted=False)


@pytest.mark.parametrize(("exponent", "is_short"), [("1.5", True), ("-0.5", True), ("1.3", False)])
def test_powers_by_a_half_are_short(exponent: str, is_short: bool) -> None:
    known = f"c = f32[] constant({exponent})\nk = {ROW} broadcast(c), dimensions={{}}\n"
    power = block(f"{known}y = {ROW} power(e0, k)").cycles(8)
    unknown = block(f"y = {ROW} power(e0, e0)").cycles(8)
    assert (power < 0.5 * unknown) is is_short


def test_a_reduction_takes_what_it_applies() -> None:
    """Logic is less than sums, and a maximum knows about NaN."""

    def work(applied: str, element: str = "f32") -> float:
        more = f"""
        combine {{ a = {element}[] parameter(0)  b = {element}[] parameter(1)
          ROOT c = {element}[] {applied}(a, b) }}"""
        body = f"""none = {element}[] constant(0)
        y = {element}[4096] reduce(e1, none), dimensions={{1}}, to_apply=combine"""
        shapes = [f"{element}[4096]", f"{element}[4096,6]"]
        program = form_program(counting_loop(body, ["y", "e1"], shapes, more=more))
        (reduce,) = (i for i in program.loop.instruction.body.instructions if i.opcode == "reduce")
        return timing_of(reduce).work * OPCODE_COST[applied]

    assert work("or", "s32") < work("add") < work("maximum")
