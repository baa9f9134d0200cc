"""Running random programs: differences, crashes and hangs are seen, and files show them."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import runpy
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuselane
import fuselane.runtime.kernel
from fuselane.backends import cpu
from fuselane.codegen.llvm import Bitcode, HostTarget, Vectors, compile_bitcode
from fuselane.fuzz import campaign, run, workers
from fuselane.fuzz.build import Judgement
from fuselane.fuzz.campaign import Settings, run_campaign
from fuselane.fuzz.compare import find_difference
from fuselane.fuzz.generate import draw_program
from fuselane.fuzz.inputs import sharded_axes
from fuselane.fuzz.kinds import Kind
from fuselane.fuzz.program import (
    COHORT,
    COHORTS_PER_USUAL,
    FIRST_CARRY,
    FIRST_STEP,
    Program,
    Slot,
    Step,
)
from fuselane.fuzz.reproducer import replay, write_reproducer
from fuselane.fuzz.run import Failure, Module, run_programs

SMALL = Program(
    seed=5,
    lanes=(9,),
    outer="scan",
    steps=3,
    reverse=False,
    carries=(Slot("int32", (), "exact"), Slot("bfloat16", (2,), "special")),
    streams=(Slot("float32", (), "near"),),
    body=(Step(FIRST_STEP, "add", (FIRST_CARRY, FIRST_CARRY, 0), 1),),
    updates=(FIRST_STEP, FIRST_CARRY + 1),
    results=(FIRST_STEP,),
    reductions=(),
)


def test_a_good_program_is_fused_and_counted() -> None:
    outcome = run_programs([SMALL])
    assert not outcome.failures
    assert dict(outcome.reasons) == dict(run_programs([SMALL]).reasons) == {"fused": 1}
    assert outcome.opcodes["add s32"] > 0 and outcome.opcodes["while tuple"] == 0


def test_what_lanes_share_has_no_rows() -> None:
    """A gradient whose stack was taken for rows, lane by lane, where lanes had written columns: the
    kernel wrote beyond its memory."""
    found = Program.from_json(
        """{"seed":1355000235,"lanes":[3,4],"outer":"gradient","steps":8,"reverse":false,
        "carries":[{"dtype":"float32","shape":[2,3],"kind":"near","place":0,"has_lanes":true}],
        "streams":[],"body":[{"number":20,"operation":"multiply","operands":[5,9,19],
        "variant":15330,"body":[]}],"updates":[20],"results":[20],"reductions":[],"table":null,
        "table_form":2,"unroll":2,"remat":false,"aside":0,"chained":false,"donated":false,
        "devices":1,"x64":false,"options":{"bounds_checks":true,"vector_bits":512}}"""
    )
    assert not run_programs([found]).failures


@pytest.mark.parametrize(("optimise", "level"), [(True, 1), (False, 0)])
def test_kernels_are_optimised_where_asked(
    optimise: bool, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[tuple[int, Vectors, bool]] = []

    def watch(bitcode: Bitcode, target: HostTarget) -> bytes:
        levels.append((bitcode.opt_level, bitcode.vectorise, bitcode.in_order))
        return compile_bitcode(bitcode, target)

    monkeypatch.setattr(fuselane.runtime.kernel, "compile_bitcode", watch)
    options = {"optimise": optimise, "max_compile_s": 3601.0}  # which no other test has
    monkeypatch.setattr(run, "OPTIONS", {**run.OPTIONS, **options})
    for lanes in ((9,), ()):
        assert not run_programs([replace(SMALL, lanes=lanes)]).failures
    assert [found[0] for found in levels] == [level, level]
    assert optimise or not any(vectorise or in_order for _, vectorise, in_order in levels)


def test_a_few_modules_are_compiled_as_users_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA hands one in eight over as it usually does, and LLVM optimises the kernels of two; those
    of one in three run several times."""
    seeds = range(0, 2 * COHORTS_PER_USUAL * COHORT, COHORT)
    programs = [draw_program(seed) for seed in seeds]
    optimised = [program.options.get("optimise", True) for program in programs]
    assert optimised == [True, False, False, False] * 4
    repeated = [program.options.get("repeat", False) for program in programs]
    assert repeated == [number % 3 == 0 for number in range(16)]
    asked: list[bool] = []
    quick = run.quick_options()

    def watch() -> dict[str, Any]:
        asked.append(True)
        return quick

    monkeypatch.setattr(run, "quick_options", watch)
    for program, num_quick in zip(programs, [1, 2], strict=False):
        asked.clear()
        assert not run_programs([replace(SMALL, seed=program.seed)]).failures
        assert len(asked) == num_quick


@pytest.mark.parametrize("aside", [2, 3])
def test_a_program_that_calls_back(aside: int, tmp_path: Path) -> None:
    """And the file that would show its failure, in which nobody listens."""
    program = replace(SMALL, aside=aside, steps=9)
    outcome = run_programs([program])
    assert not outcome.failures
    assert outcome.reasons["fused"] == 1
    path = write_reproducer(tmp_path, [program], Failure(form="differs", detail="not at all"))
    assert "_python_cpu_callback" in path.read_text(encoding="utf-8")
    names = runpy.run_path(str(path))
    assert (
        replay(names["MODULE"], names["INPUTS"], names["JUDGEMENTS"], options={}, x64=False) is None
    )


@pytest.mark.parametrize(
    ("wrong", "forms"),
    [
        ({1: [0], 4: [0]}, {1: "differs"}),
        ({1: [0]}, {1: "differs-fused"}),
        ({0: [0], 2: [0]}, {1: "xla-differs"}),
        ({0: [0], 2: [0], 3: [1]}, {1: "xla-differs"}),
        ({0: [0]}, {}),
    ],
)
def test_a_difference_is_seen(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[int, list[int]], forms: dict[int, str]
) -> None:
    """One element in some runs: who is right is told, result by result, by XLA as users
    have it, XLA without fusion, and kernels beside that."""
    real, runs = run._call, iter(range(9))

    def call(*arguments: Any) -> Any:
        results = [[np.array(array) for array in part] for part in real(*arguments)]
        for number in wrong.get(next(runs), []):
            results[1][number].flat[3] = 77
        return results

    monkeypatch.setattr(run, "_call", call)
    failures = run_programs([SMALL, SMALL]).failures
    assert {i: failure.form for i, failure in failures.items()} == forms
    assert all("1 of 9 differ, first [3]" in failure.detail for failure in failures.values())


def test_what_judges_xla_counts_down_right() -> None:
    """Loops that XLA as users have it may end after the first step; see `run.UNASSUMING`."""

    def count_down(x: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            counter, value = state
            return counter - jnp.uint8(1), jnp.roll(value, 1, 1)

        return jax.lax.while_loop(lambda state: state[0] > 0, step, (jnp.uint8(5), x))[1]

    values = np.arange(63, dtype=np.float32).reshape(9, 7)
    options = {**run.XLA_OPTIONS, **run.UNASSUMING}
    compiled = jax.jit(count_down).lower(values).compile(compiler_options=options)
    np.testing.assert_array_equal(compiled(values), np.roll(values, 5, 1))


def test_an_argument_that_changes_is_seen() -> None:
    """Compiled code that writes into what the caller still holds."""

    def write(arguments: list[tuple[list[jax.Array], list[jax.Array]]]) -> list[list[jax.Array]]:
        ((carries, streams),) = arguments
        ctypes.memset(carries[0].unsafe_buffer_pointer(), 0xAB, 4)
        return [streams]

    with pytest.raises(AssertionError, match=r"an argument, int32\[9\], was changed"):
        run._call(write, Module.of([SMALL]))


def test_programs_on_two_devices() -> None:
    """Their loops are fused on each, and what they take is spread over both."""
    spread = replace(SMALL, lanes=(18,), devices=2)
    carries, streams = sharded_axes(spread)
    assert (carries, streams) == ([0, 0], [1])
    pool = workers.Workers(1)
    try:
        outcome = pool.run_one([spread, replace(spread, lanes=(9,))])
    finally:
        pool.stop()
    assert not outcome.failures
    assert set(outcome.reasons) == {"fused"}


def test_rounded_numbers_decide_nothing() -> None:
    """What is carried here is zero but for rounding after a step: its sign is anything."""
    program = Program(
        seed=1153005261,
        lanes=(3, 2),
        outer="while",
        steps=2,
        reverse=False,
        carries=(Slot("float32", (65,), "near"),),
        streams=(),
        body=(Step(FIRST_STEP, "dot", (FIRST_CARRY, 17, 16), 14991),),
        updates=(FIRST_STEP,),
        results=(),
        reductions=(),
    )
    assert not run_programs([program]).failures


def test_no_extreme_of_nan_is_asked_for() -> None:
    """XLA:CPU says that the largest of nothing but NaN is minus infinity."""
    remainder = Step(FIRST_STEP, "remainder", (FIRST_CARRY, FIRST_CARRY, FIRST_CARRY), 0)
    extreme = Step(FIRST_STEP + 1, "reduce", (FIRST_STEP, 2, FIRST_STEP), 22206)
    program = replace(
        SMALL,
        lanes=(64,),
        steps=2,
        carries=(Slot("float32", (5, 13), "exact"),),
        streams=(),
        body=(remainder, extreme),
        updates=(FIRST_STEP + 1,),
        results=(),
        reductions=(),
    )
    assert not run_programs([program]).failures


@pytest.mark.parametrize("donated", [False, True])
def test_programs_in_a_chain(donated: bool) -> None:
    """One that starts from what another has left, and the gradient of a scan."""
    link = replace(SMALL, chained=True, donated=donated, outer="gradient", unroll=2, remat=donated)
    outcome = run_programs([replace(SMALL, donated=donated), link, replace(link, outer="while")])
    assert not outcome.failures
    assert set(outcome.reasons) == {"fused"}


def test_what_xla_refuses_is_no_failure_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "XLA_OPTIONS", {"xla_no_such_option": True})
    monkeypatch.setattr(run, "quick_options", lambda: run.XLA_OPTIONS)  # which keeps what it found
    (failure,) = run_programs([SMALL]).failures.values()
    assert failure.form == "xla-refuses" and failure.is_xlas


def test_what_fails_is_first_examined_under_plain_xla_as_users_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """XLA's older emitters got through seed 1170004225, on which its usual ones end the process."""
    monkeypatch.setattr(run, "XLA_OPTIONS", {"xla_no_such_option": True})
    monkeypatch.setattr(run, "quick_options", lambda: {})
    for is_examined in (False, True):
        told: list[str] = []
        program = replace(SMALL, seed=COHORT * COHORTS_PER_USUAL)  # handed over as users have it
        tell = functools.partial(told.append, "past XLA")
        failures = run_programs([program], tell, is_examined=is_examined).failures
        assert failures[0].form == "xla-refuses"
        assert told == ([] if is_examined else ["past XLA"])


def test_what_fails_inside_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of ours while a loop is compiled, which leaves the loop to XLA."""

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(cpu, "make_plan", fail)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failures = run_programs([SMALL]).failures
    assert failures[0].form == "complains" and "on purpose" in failures[0].detail


@pytest.mark.parametrize(
    ("kind", "error", "wanted", "got", "is_same"),
    [
        (Kind.EXACT, 0.0, [1.0, np.nan], [1.0, -np.nan], True),
        (Kind.EXACT, 0.0, [0.0], [-0.0], False),
        (Kind.EXACT, 0.0, [1.0], [np.nextafter(np.float32(1), np.float32(2))], False),
        (Kind.NEAR, 1e-3, [1.0], [1.0009], True),
        (Kind.NEAR, 1e-3, [1.0], [1.002], False),
        (Kind.NEAR, 1e-3, [1.0], [np.nan], False),
        (Kind.DONE, 2.0, [1e30, np.inf], [np.float32(1e30) * (1 + 2**-23), np.inf], True),
        (Kind.DONE, 2.0, [1.0], [1.0 + 3 * 2**-23], False),
        (Kind.DONE, 2.0, [1e-40, -1e-40], [0.0, -1e-41], True),
        (Kind.DONE, 2.0, [np.nan], [1.0], False),
    ],
)
def test_values_are_compared_by_their_kind(
    kind: Kind, error: float, wanted: list[float], got: list[float], is_same: bool
) -> None:
    arrays = [np.array(wanted, np.float32)], [np.array(got, np.float32)]
    assert (find_difference(*arrays, [Judgement(kind, error)]) == "") == is_same


def test_a_reproducer_runs_alone(tmp_path: Path) -> None:
    """The file holds all that is needed, arrays of bfloat16 too."""
    path = write_reproducer(tmp_path, [SMALL], Failure("differs", r'a "quoted\" sentence'))
    names: dict[str, Any] = {"__name__": "reproducer"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    arguments = names["MODULE"], names["INPUTS"], names["JUDGEMENTS"]
    num_before = len(fuselane.decisions().loops)
    assert replay(*arguments, options={"threads": 1}, x64=False) is None
    assert [loop.decision.fused for loop in fuselane.decisions().loops[num_before:]] == [True]


def test_crashes_and_hangs_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies or takes too long is replaced; while plain XLA runs, that is XLA's."""
    for messages, form in (([], "xla-crash"), ([workers._PAST_XLA], "crash")):
        worker = workers.Worker()
        worker.start([SMALL])
        assert worker._process.pid is not None
        os.kill(worker._process.pid, signal.SIGSEGV)
        worker._process.join()
        worker._connection, sender = multiprocessing.Pipe()
        for message in messages:
            sender.send(message)
        sender.close()
        outcome = worker.poll()
        assert outcome is not None and outcome.failures[0].form == form and worker.is_worn
    pool = workers.Workers(1)
    try:
        for limit, seconds in (("TIMEOUT_S", 0.0), ("MAX_CPU_S", -1.0)):
            with monkeypatch.context() as patched:
                patched.setattr(workers, limit, seconds)
                failure = pool.run_one([SMALL]).failures[0]
            assert failure.form in ("hang", "xla-hang")
        assert "processor time" in failure.detail
        assert not pool.run_one([SMALL]).failures
    finally:
        pool.stop()


def test_who_comes_second_gets_the_time_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module over which plain XLA takes four minutes takes Fuselane no less: no fault of ours."""
    granted: list[float] = []
    monkeypatch.setattr(workers, "_limit_cpu_time", granted.append)
    receiver, sender = multiprocessing.Pipe()
    workers._go_on(sender, 300.0, time.process_time() - 240.0)
    assert receiver.recv() == workers._PAST_XLA
    assert 540.0 <= granted[0] < 600.0


def test_what_xla_refuses_hides_no_other_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The programs of a module that XLA refuses run alone, also when no more are shrunk."""
    forms = {12: "xla-refuses", 14: "differs"}
    ran: list[int] = []

    def run_one(_: workers.Workers, batch: Sequence[Program]) -> run.Outcome:
        (program,) = batch
        ran.append(program.seed)
        form = forms.get(program.seed)
        return run.Outcome(num_programs=1, failures={0: Failure(form, "alone")} if form else {})

    def shrink(_: Any, batch: Sequence[Program], *__: Any) -> campaign.Finding:
        seed = batch[0].seed
        return campaign.Finding(seed, Failure(forms[seed], "shrunk"), None)

    monkeypatch.setattr(workers.Workers, "run_one", run_one)
    monkeypatch.setattr(campaign, "_shrink", shrink)
    monkeypatch.setattr(campaign, "MAX_SHRUNK", 0)
    programs = [replace(SMALL, seed=seed) for seed in range(12, 16)]
    refused = dict.fromkeys(range(4), Failure("xla-refuses", "together"))
    outcome = run.Outcome(num_programs=4, failures=refused)
    results = campaign.Results(12)
    campaign._examine(programs, outcome, results, tmp_path, lambda _: None)
    assert ran == [12, 13, 14, 15]
    assert [finding.seed for finding in results.xla_findings] == [12]
    assert [finding.seed for finding in results.findings] == [14]


def test_a_run_counts_and_reports(tmp_path: Path) -> None:
    """Programs are those of the seeds; the report holds all numbers."""
    told: list[str] = []
    settings = Settings(seed=11, minutes=None, num_programs=3, jobs=1, folder=tmp_path)
    results = run_campaign(settings, told.append)
    assert results.is_good and results.outcome.num_programs == 3
    assert list(tmp_path.iterdir()) == [] == results.to_json()["failures"]
    assert next(results.lines()).startswith("3 programs from seed 11 on")
    assert results.outcome.reasons == sum_of_reasons(range(11, 14))


def sum_of_reasons(seeds: range) -> Any:
    outcome = run.Outcome()
    for seed in seeds:
        outcome.add(run_programs([draw_program(seed)]))
    return outcome.reasons
