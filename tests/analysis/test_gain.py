"""What a kernel gains by estimate, and what is decided from it."""

from __future__ import annotations

import dataclasses

import pytest

from fuselane import pipeline, replacing
from fuselane.analysis.gain import MIN_XLA_TIME_US, Gain
from fuselane.backends import cpu
from fuselane.config import Options
from fuselane.decisions import DecisionLog, Reason
from fuselane.lanes import form
from tests.codegen.kernels import DEVICE
from tests.lanes.loops import counting_loop, loop_of


def gain_of(
    trip_count: int | None = 1000, xla: float = 0.3, kernel: float = 0.1, call: float = 50.0
) -> Gain:
    return Gain(trip_count=trip_count, xla_step_us=xla, kernel_step_us=kernel, kernel_call_us=call)


def test_times_of_the_whole_loop() -> None:
    gain = gain_of()
    assert gain.numbers() == pytest.approx({"xla_us": 300, "kernel_us": 150, "gain": 2})


def test_times_of_one_iteration_where_their_number_is_not_known() -> None:
    gain = gain_of(trip_count=None)
    assert gain.numbers() == pytest.approx({"xla_us": 0.3, "kernel_us": 0.1, "gain": 3})


@pytest.mark.parametrize(("min_gain", "is_worth"), [(0, True), (1.9, True), (2.1, False)])
def test_threshold(min_gain: float, is_worth: bool) -> None:
    assert gain_of().is_worth(min_gain) == is_worth


def test_calling_a_kernel_makes_short_loops_worthless() -> None:
    assert gain_of(trip_count=1000).is_worth(1.5)
    assert not gain_of(trip_count=100).is_worth(1.5)
    assert gain_of(trip_count=100).is_worth(0)


def test_loops_over_in_no_time_stay_whatever_the_gain() -> None:
    short = gain_of(trip_count=10, xla=MIN_XLA_TIME_US / 11, kernel=1e-6, call=0)
    assert short.ratio > 1000
    assert not short.is_worth(1)
    assert gain_of(trip_count=10, xla=MIN_XLA_TIME_US / 9, kernel=1e-6, call=0).is_worth(1)


def test_a_loop_of_unknown_length_is_never_over_in_no_time() -> None:
    assert gain_of(trip_count=None, xla=1e-3, kernel=1e-4).is_worth(1)


def test_refusal_tells_both_times() -> None:
    loop = loop_of(counting_loop("y = f32[8] sine(e0)", ["y"], ["f32[8]"]))
    decision = gain_of(xla=1.2345).refusal(loop, None).decision
    assert decision.reason is Reason.NOT_PROFITABLE
    assert (decision.instruction, decision.opcode) == ("loop", "while")
    assert "1,234 microseconds for all its 1,000 iterations" in decision.sentence
    assert "a kernel 150 microseconds" in decision.sentence
    assert decision.numbers == gain_of(xla=1.2345).numbers()


def test_refusal_of_what_is_over_soon_does_not_speak_of_kernels() -> None:
    loop = loop_of(counting_loop("y = f32[8] sine(e0)", ["y"], ["f32[8]"]))
    decision = gain_of(trip_count=2).refusal(loop, None).decision
    assert "0.6 microseconds for all its 2 iterations." in decision.sentence


def test_refusal_of_unknown_length_tells_of_one_iteration() -> None:
    loop = loop_of(counting_loop("y = f32[8] sine(e0)", ["y"], ["f32[8]"]))
    decision = gain_of(trip_count=None).refusal(loop, None).decision
    assert "0.3 microseconds an iteration" in decision.sentence


def test_what_stands_in_the_way_of_lanes_is_told_instead() -> None:
    loop = loop_of(counting_loop("y = f32[8] sine(e0)", ["y"], ["f32[8]"]))
    obstacle = Reason.CROSS_LANE.decide(instruction="y", opcode="sine", detail="`y` mixes")
    decision = gain_of().refusal(loop, obstacle).decision
    assert decision.reason is Reason.CROSS_LANE
    assert decision.sentence == obstacle.sentence
    assert decision.numbers == gain_of().numbers()


@pytest.mark.parametrize(("trip_count", "is_looked_at"), [(3, False), (100_000, True)])
def test_what_is_over_soon_is_not_brought_into_form(
    monkeypatch: pytest.MonkeyPatch, trip_count: int, is_looked_at: bool
) -> None:
    """Looking at a loop costs compile time; one of three steps over eight numbers is let go."""
    loops = []

    def note(*arguments: object, **_: object) -> None:
        loops.append(arguments)
        raise AssertionError

    monkeypatch.setattr(replacing, "form", note)
    monkeypatch.setattr(replacing, "warn_once", lambda message: None)
    module = counting_loop("y = f32[8] sine(e0)", ["y"], ["f32[8]"], trip_count=trip_count)
    log = DecisionLog()
    assert pipeline.transform(module.to_bytes(), Options(), log) is None
    (decision,) = log
    assert bool(loops) == is_looked_at
    assert (decision.reason is Reason.NOT_PROFITABLE) != is_looked_at


def test_products_that_one_thread_takes_too_long_for_leave_a_loop_to_xla(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """XLA's library divides them among cores; what is in the way of lanes is the reason."""
    square = "f32[256,256]"
    body = f"y = {square} dot(e0, e0), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    data = counting_loop(body, ["y"], [square]).to_bytes()
    device = dataclasses.replace(DEVICE, unit_bits=256)
    monkeypatch.setattr(cpu, "host_device", lambda: device)
    monkeypatch.setattr(form, "share_lanes", lambda _: pytest.fail("nobody asked for it"))
    log = DecisionLog()
    assert pipeline.transform(data, Options(), log) is None
    (entry,) = log
    assert entry.decision.reason is Reason.CROSS_LANE
    numbers = entry.decision.numbers
    assert 0 < numbers["xla_us"] < Options().min_gain * numbers["kernel_us"]
    assert numbers["gain"] == pytest.approx(numbers["xla_us"] / numbers["kernel_us"])
