"""Costs measured, kept, read again; nothing of it ever fails a program."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import fuselane
from fuselane import calibration, cli, doctor
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.calibration import PROBES, Probe, calibrate
from fuselane.device import host_device
from fuselane.errors import CacheError, InputError
from fuselane.runtime import costs as kept
from fuselane.runtime.costs import (
    built_in_costs,
    costs_path,
    load_costs,
    read_costs,
    write_costs,
)
from tests.differential.harness import find_report, last_decision


def test_every_probe_scales_costs_there_are() -> None:
    fields = {field.name for field in dataclasses.fields(MachineCosts)}
    names = [name for probe in PROBES for name in probe.names]
    assert len(names) == len(set(names))
    assert set(names) <= fields
    assert fields - set(names) == {"task_us", "wake_us", "kernel_call_us"}


def test_times_scale_costs_and_bandwidths_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which all takes twice as long."""
    times = {id(probe): 2 * probe.usual_us * probe.steps for probe in PROBES}
    monkeypatch.setattr(calibration, "_measure", lambda probe: times[id(probe)] + 7)
    monkeypatch.setattr(calibration, "_measure_call", lambda: 7.0)
    usual, costs = MachineCosts(), calibrate()
    assert costs.thunk_us == pytest.approx(2 * usual.thunk_us)
    assert costs.kernel_function_us == pytest.approx(2 * usual.kernel_function_us)
    assert costs.memory_bytes_per_us == pytest.approx(usual.memory_bytes_per_us / 2)
    assert costs.wake_us == usual.wake_us


def test_each_probe_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Probe] = []

    def measure(probe: Probe) -> float:
        seen.append(probe)
        return 1.0

    monkeypatch.setattr(calibration, "_measure", measure)
    monkeypatch.setattr(calibration, "_measure_call", lambda: 0.0)
    calibrate()
    assert seen == list(PROBES)


@pytest.mark.parametrize(("measured", "scale"), [(-5.0, 0.1), (1e12, 10.0)])
def test_wild_measurements_are_bounded(
    measured: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_measure", lambda _: measured)
    monkeypatch.setattr(calibration, "_measure_call", lambda: 0.0)
    assert calibrate().thunk_us == pytest.approx(scale * MachineCosts().thunk_us)


def test_measuring_gives_costs_that_can_be_kept(own_cache: Path) -> None:
    start = time.perf_counter()
    costs = calibrate()
    assert time.perf_counter() - start < 60  # 1 on an idle machine
    path = costs_path(own_cache)
    write_costs(path, costs)
    assert read_costs(path) == costs
    assert load_costs(own_cache) == costs


@pytest.mark.parametrize("probe", [p for p in PROBES if p.is_kernel], ids=lambda p: p.names[0])
def test_kernels_that_are_measured_take_all_their_steps(probe: Probe) -> None:
    """They would end where their state comes back, as that of every probe does in time."""
    state = (probe.state(), jnp.zeros(()))
    last = last_decision()
    with fuselane.enabled(min_gain=0):
        jax.jit(lambda state: calibration._run_counting(probe, state)).lower(state).compile()
    (loop,) = find_report(last, calibration._run_counting, probe, state).loops
    assert loop.decision.fused
    assert "compared_after" not in loop.decision.numbers
    with fuselane.enabled(min_gain=0):
        jax.jit(lambda state: calibration._run(probe, state)).lower(state[0]).compile()
    (loop,) = find_report(last, calibration._run, probe, state).loops[1:]
    assert "compared_after" in loop.decision.numbers


def test_no_kernels_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE", "0")
    with pytest.raises(InputError, match="FUSELANE=0"):
        calibrate()


def test_without_a_file_the_costs_built_in_hold(own_cache: Path) -> None:
    assert load_costs(own_cache) == built_in_costs(host_device())


GOOD = dataclasses.asdict(MachineCosts())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({**GOOD, "thunk_us": -1}),
        json.dumps({**GOOD, "thunk_us": float("nan")}),
        json.dumps({**GOOD, "thunk_us": "fast"}),
        json.dumps({**GOOD, "more": 1}),
    ],
)
def test_damaged_files_are_no_files(text: str, own_cache: Path) -> None:
    path = costs_path(own_cache)
    write_costs(path, MachineCosts(thunk_us=7.0))
    assert load_costs(own_cache).thunk_us == 7.0
    path.write_text(text)
    load_costs.cache_clear()
    assert load_costs(own_cache) == built_in_costs(host_device())


@pytest.mark.parametrize(
    ("vector_bits", "unit_bits", "scale"), [(256, 256, 1.0), (512, 256, 0.75), (512, 512, 0.5)]
)
def test_libraries_take_less_time_on_wide_vectors(
    vector_bits: int, unit_bits: int, scale: float
) -> None:
    """XLA's own loops do not: their vectors have 256 bits on all of these."""
    device = dataclasses.replace(host_device(), vector_bits=vector_bits, unit_bits=unit_bits)
    costs, usual = built_in_costs(device), MachineCosts()
    assert costs.library_function_us == pytest.approx(scale * usual.library_function_us)
    assert costs.library_operation_us == pytest.approx(scale * usual.library_operation_us)
    assert costs.xla_function_us == usual.xla_function_us


def test_files_of_others_are_not_trusted(own_cache: Path) -> None:
    write_costs(costs_path(own_cache), MachineCosts(thunk_us=7.0))
    own_cache.chmod(0o777)
    assert load_costs(own_cache) == built_in_costs(host_device())


def test_other_machines_have_files_of_their_own(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = costs_path(own_cache)
    other = dataclasses.replace(host_device(), num_cores=1234)
    monkeypatch.setattr(kept, "host_device", lambda: other)
    assert costs_path(own_cache) != here


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be kept"):
        write_costs(tmp_path / "file" / "costs.json", MachineCosts())


def test_command(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.small, "calibrate", lambda: MachineCosts(thunk_us=0.5))
    assert dict(doctor.diagnose().lines)["costs"].startswith("built in")
    assert cli.main(["calibrate"]) == cli.OK
    captured = capsys.readouterr()
    assert "thunk_us                0.5" in captured.out
    assert str(costs_path(own_cache)) in captured.err
    assert dict(doctor.diagnose().lines)["costs"].startswith("measured")
