"""Random programs: drawn alike from a seed, traced whatever their steps are, made smaller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import jax
import numpy as np
import pytest

from fuselane.fuzz import generate
from fuselane.fuzz.build import Built
from fuselane.fuzz.builder import Builder
from fuselane.fuzz.complexes import FUNCTIONS, parts_of_function
from fuselane.fuzz.elementwise import RULES
from fuselane.fuzz.generate import DTYPES, KINKED, UNPARTITIONED, Choice, draw_program
from fuselane.fuzz.inputs import draw_inputs, lane_axes
from fuselane.fuzz.kinds import MAX_PIECES, Value, is_floating, resize
from fuselane.fuzz.operations import OPERATIONS
from fuselane.fuzz.program import FIRST_CARRY, FIRST_STEP, Program, Slot, Step, all_steps
from fuselane.fuzz.scenes import (
    SCENES,
    Sketch,
    change_grids,
    change_tables,
    fit_to_data,
    meet_in_stages,
    mix_without_lanes,
    reset_states,
    see_each_other,
)
from fuselane.fuzz.shrink import shrink, smaller

NEAR_RULES: Final = {name: rule for name, rule in RULES.items() if rule.near}


def test_a_seed_is_a_program() -> None:
    """The same each time, also written and read; another seed is another program."""
    programs = [draw_program(seed) for seed in range(20)]
    assert programs == [draw_program(seed) for seed in range(20)]
    assert programs == [Program.from_json(program.to_json()) for program in programs]
    assert len({program.to_json() for program in programs}) == len(programs)


def test_inputs_come_from_the_seed() -> None:
    first, second = (draw_inputs(draw_program(3)) for _ in range(2))
    for array, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(array, other)


def test_a_choice_is_kept() -> None:
    """Only what is asked for is drawn."""
    choice = Choice(("sort", "while"), ("int8", "float32"))
    for seed in range(20):
        program = draw_program(seed, choice)
        assert {step.operation for step in all_steps(program.body)} <= {"sort", "while"}
        assert {slot.dtype for slot in program.carries + program.streams} <= {"int8", "float32"}


def test_no_program_for_two_devices_is_refused_by_xla() -> None:
    """What XLA does not partition is not drawn for them, unless nothing else may be."""
    drawn = [draw_program(seed) for seed in range(0, 2400, 2)]
    spread = {s.operation for p in drawn if p.devices > 1 for s in all_steps(p.body)}
    assert len(spread) > 40 and not spread & UNPARTITIONED
    assert spread | UNPARTITIONED <= {s.operation for p in drawn for s in all_steps(p.body)}
    seed = next(program.seed for program in drawn if program.devices > 1)
    (only,) = {s.operation for s in all_steps(draw_program(seed, Choice(("mulhi",))).body)}
    assert only == "mulhi"


@pytest.mark.parametrize("size", [3, 7, 7 * MAX_PIECES, 7 * MAX_PIECES + 1, 9001])
def test_arrays_are_repeated_from_few_pieces(size: int) -> None:
    """However often: XLA takes minutes over thousands of pieces."""
    made = jax.make_jaxpr(lambda array: resize(array, (size,)))(np.arange(7))
    pieces = [len(e.invars) for e in made.eqns if e.primitive.name == "concatenate"]
    assert max(pieces, default=0) <= MAX_PIECES and len(made.eqns) <= 4
    got = resize(jax.numpy.arange(7), (size,))
    np.testing.assert_array_equal(got, np.resize(np.arange(7), size))


def program_of(operation: str, variant: int, dtype: str, kind: str) -> Program:
    """Returns a program of one operation on two carries of a type."""
    inner = (Step(FIRST_STEP + 4, "negate", (FIRST_STEP + 2, 0, 0), 0),)
    body = (Step(FIRST_STEP, operation, (FIRST_CARRY, FIRST_CARRY + 1, 0), variant, inner),)
    carries = (Slot(dtype, (5,), kind), Slot(dtype, (), kind, 1))
    return Program(
        seed=variant,
        lanes=(3,),
        outer="scan",
        steps=2,
        reverse=False,
        carries=carries,
        streams=(),
        body=body,
        updates=(FIRST_STEP, FIRST_STEP),
        results=(FIRST_STEP,),
        reductions=((FIRST_STEP, variant),),
        x64=True,
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_can_be_traced(operation: str) -> None:
    """In many forms, on all types, those of floats with a kind of values each; results are those
    that are judged."""
    generator = np.random.default_rng(len(operation))
    for dtype in DTYPES:
        kind = generator.choice(("exact", "near", "special")) if is_floating(dtype) else "exact"
        program = program_of(operation, int(generator.integers(1000)), dtype, str(kind))
        built = Built(program)
        with jax.enable_x64(True):
            results = jax.eval_shape(built, *draw_inputs(program))
        assert len(results) == len(built.judgements)


@pytest.mark.parametrize("name", NEAR_RULES)
def test_near_operations_do_not_let_differences_grow(name: str) -> None:
    """They take [-2, 2] into itself, and move their result no farther than their operands."""
    rule = NEAR_RULES[name]
    assert rule.near is not None
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        operands = [generator.uniform(-2, 2, 20_000) for _ in range(rule.arity)]
        results = rule.near(*operands)
        assert np.all(np.abs(results) <= 2)
        moves = [np.clip(x + generator.choice((-1e-3, 1e-3), x.size), -2, 2) for x in operands]
        farthest = np.max([np.abs(x - y) for x, y in zip(operands, moves, strict=True)], axis=0)
        assert np.all(np.abs(rule.near(*moves) - results) <= farthest * (1 + 1e-6) + 1e-12)


@pytest.mark.parametrize("name", sorted(NEAR_RULES.keys() - KINKED))
def test_rounding_does_not_decide_a_near_gradient(name: str) -> None:
    """Values that are all zero but for rounding have the same slope on both sides of it."""
    rule = NEAR_RULES[name]
    assert rule.near is not None
    with jax.enable_x64(True):
        slope = jax.grad(rule.near, tuple(range(rule.arity)))
        below, above = (slope(*[np.float64(x)] * rule.arity) for x in (-1e-12, 1e-12))
    np.testing.assert_allclose(below, above, atol=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_complex_numbers_do_not_let_differences_grow(name: str) -> None:
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, y = generator.uniform(-2, 2, (2, 20_000))
        moves = [np.clip(a + generator.choice((-1e-3, 1e-3), a.size), -2, 2) for a in (x, y)]
        farthest = np.maximum(np.abs(x - moves[0]), np.abs(y - moves[1]))
        before, after = parts_of_function(name, x, y), parts_of_function(name, *moves)
        for part, moved in zip(before, after, strict=True):
            assert np.all(np.abs(part) <= 2)
            assert np.all(np.abs(moved - part) <= farthest * (1 + 1e-6) + 1e-12)


def arrays_of(program: Program) -> tuple[list[jax.Array], list[jax.Array]]:
    carries, streams = draw_inputs(program)
    return [jax.numpy.asarray(a) for a in carries], [jax.numpy.asarray(a) for a in streams]


def test_a_program_starts_from_what_the_one_in_front_has_left() -> None:
    program = program_of("add", 3, "int32", "exact")
    inputs = arrays_of(program)
    left = [Value(jax.numpy.full((4,), 9, np.int32))]
    for chained in (False, True):
        built = Built(replace(program, chained=chained))
        alone, after = built(*inputs), built(*inputs, left)
        same = [bool(np.all(a == b)) for a, b in zip(alone, after, strict=True)]
        assert all(same) is not chained


def test_gradients_are_those_of_jax() -> None:
    """The last result is the gradient of the sum over near results, scaled."""
    program = replace(program_of("multiply", 3, "float32", "near"), outer="gradient")
    carries, streams = arrays_of(program)
    *results, first, second = Built(program)(carries, streams)
    scan = Built(replace(program, outer="scan"))
    assert len(scan(carries, streams)) == len(results)
    assert (first.shape, second.shape) == (carries[0].shape, carries[1].shape)
    assert 0 < np.abs(first).max() < 1


def test_smaller_programs_are_programs() -> None:
    """Each can be traced, is no larger, and there is always a smallest one."""
    program = next(
        p for p in map(draw_program, range(100)) if len(list(all_steps(p.body))) > 6 and p.streams
    )
    for (candidate,) in list(smaller((program,)))[::7]:
        with jax.enable_x64(candidate.x64):
            jax.eval_shape(Built(candidate), *draw_inputs(candidate))


def test_scenes_have_the_share_they_are_to_have() -> None:
    """States are reset as a whole, lanes meet, tables change, and loops without lanes fit and mix:
    each in its share of programs, give or take chance."""
    programs = [draw_program(seed) for seed in range(0, 6000, 3)]
    names = [[step.operation for step in program.body] for program in programs]
    alone = [
        p for p, found in zip(programs, names, strict=True) if not p.lanes and "meet" not in found
    ]
    shares: dict[Any, float] = {
        reset_states: sum(found.count("reset") > 1 for found in names),
        meet_in_stages: sum("meet" in found for found in names),
        change_tables: sum(program.table is not None for program in programs),
        fit_to_data: len(alone) / 4,
        mix_without_lanes: len(alone) / 4,
        see_each_other: len(alone) / 4,
        change_grids: len(alone) / 4,
    }
    assert {sketch.draw for sketch in SCENES} == set(shares)
    for sketch in SCENES:
        assert shares[sketch.draw] / len(programs) > 0.6 * sketch.share > 0.02


@pytest.mark.parametrize("sketch", SCENES, ids=lambda sketch: sketch.draw.__name__)
def test_scenes_can_be_traced(sketch: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is drawn in them, in every loop that they have."""
    monkeypatch.setattr(generate, "SCENES", (replace(sketch, share=1.0, is_spread=True),))
    seen = set()
    for seed in range(30):
        program = draw_program(seed)
        seen.add(program.outer)
        built = Built(program)
        with jax.enable_x64(program.x64):
            results = jax.eval_shape(built, *draw_inputs(program))
        assert len(results) == len(built.judgements)
    assert seen == set(sketch.outers)


def test_lanes_meet() -> None:
    """Each lane goes on with the sum over all of them."""
    program = program_of("meet", 4, "int32", "exact")
    carries, streams = arrays_of(replace(program, steps=1))
    first, *_ = Built(replace(program, steps=1))(carries, streams)
    axis = lane_axes(program.carries[0], program.lanes)[0]
    assert axis is not None
    total = carries[0].sum(axis, keepdims=True)
    np.testing.assert_array_equal(first, np.broadcast_to(total, carries[0].shape))


def test_a_table_changes_and_is_read() -> None:
    """What is at the step's place differs behind a step, and lanes find what is there."""
    table = Slot("int32", (20,), "exact", 0, False)
    program = replace(program_of("look-up", 0, "int32", "exact"), table=table, table_form=5)
    carries, streams = arrays_of(program)
    starts = [Built(replace(program, steps=n))(carries, streams)[3] for n in (1, 2)]
    assert starts[0].shape == (20,)
    assert (np.asarray(starts[0]) != np.asarray(starts[1])).sum() == 1


def test_shrinking_finds_the_step_that_fails() -> None:
    """Of a dozen programs what is left is the one step, in the smallest of programs."""
    programs = [draw_program(seed) for seed in range(120, 144)]
    names = [step.operation for program in programs for step in all_steps(program.body)]
    wanted = min(names, key=names.count)

    def fails(candidate: tuple[Program, ...]) -> bool:
        return any(s.operation == wanted for p in candidate for s in all_steps(p.body))

    (smallest,) = shrink(programs, fails)
    (step,) = smallest.body
    assert step.operation == wanted and not step.body
    assert (smallest.steps, smallest.lanes, smallest.streams, smallest.results) == (1, (1,), (), ())
    assert len(smallest.carries) == 1


@pytest.mark.parametrize(
    "step",
    [Step(3, "contract", (2, 1, 1), 0, ()), Step(3, "dot", (1, 3, 2), 2, ())],
    ids=lambda step: step.operation,
)
def test_a_dot_has_no_zero_with_a_sign(step: Step) -> None:
    """Of nothing but -0, XLA's loops make zeros of either sign."""

    def run(zeros: jax.Array, ones: jax.Array) -> jax.Array:
        builder = Builder(OPERATIONS, {1: Value(zeros), 2: Value(ones)})
        return OPERATIONS[step.operation](builder, step).array

    zeros, ones = np.full((6, 3), -0.0, np.float32), np.ones(6, np.float32)
    sums = jax.jit(jax.vmap(run, (-1, None), -1))(zeros, ones)
    assert not np.any(sums) and not np.any(np.signbit(sums))


def test_doubles_may_be_allowed_an_error_of_their_own() -> None:
    """XLA's `log1p` of `float64` gets more than of other types; what has one number keeps it."""
    log, sine = RULES["log-plus-one"], RULES["sine"]
    assert log.ulp_of("float32") == sine.ulp_of("float64") == 6
    assert log.ulp_of("float64") > 129
