"""Which of two programs is faster, with clocks that say what the test wants."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fuselane.tuning.timing import Comparison, compare, is_surely_faster


@dataclass
class Machine:
    """A clock, and programs that take time on it and are disturbed by others."""

    noise: float
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    now: float = 0.0
    runs: list[str] = field(default_factory=list)

    def program(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.runs.append(name)
            self.now += seconds * self.chance.lognormvariate(0, self.noise)

        return run

    def compare(self, new_s: float, old_s: float, **settings: float) -> Comparison:
        new, old = self.program("new", new_s), self.program("old", old_s)
        return compare(new, old, clock=lambda: self.now, max_s=1e9, **settings)  # type: ignore[arg-type]


def test_a_clear_gain() -> None:
    """A few pairs do."""
    found = Machine(noise=0.02).compare(0.5, 1.0)
    assert found.is_faster
    assert found.num_pairs == 7
    assert found.ratio == pytest.approx(0.5, rel=0.05)


def test_a_clear_loss() -> None:
    """Three pairs do."""
    found = Machine(noise=0.02).compare(1.5, 1.0)
    assert not found.is_faster
    assert found.num_pairs == 3


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
def test_equals_stay_equal(noise: float) -> None:
    """Chance hardly ever makes a newcomer the best."""
    wins = 0
    for seed in range(200):
        machine = Machine(noise=noise, chance=random.Random(seed))
        wins += machine.compare(1.0, 1.0).is_faster
    assert wins <= 6


def test_a_small_gain_in_noise() -> None:
    """A gain of 5% under disturbances of 5% is found in most cases."""
    machines = [Machine(noise=0.05, chance=random.Random(seed)) for seed in range(50)]
    assert sum(machine.compare(0.95, 1.0).is_faster for machine in machines) >= 30


def test_a_trifle_is_no_gain() -> None:
    """However sure it is."""
    assert not Machine(noise=0.0).compare(0.998, 1.0).is_faster
    assert not is_surely_faster([0.998] * 30)
    assert is_surely_faster([0.9] * 7)
    assert not is_surely_faster([0.9] * 6)


def test_they_take_turns() -> None:
    """Each comes first as often as second."""
    machine = Machine(noise=0.0)
    machine.compare(0.5, 1.0)
    pairs = [tuple(machine.runs[i : i + 2]) for i in range(1, len(machine.runs), 2)]
    assert pairs[:4] == [("new", "old"), ("old", "new")] * 2


def test_short_programs_run_in_rows() -> None:
    """A clock cannot tell microseconds apart."""
    machine = Machine(noise=0.0)
    found = machine.compare(5e-6, 10e-6)
    assert found.is_faster
    assert machine.runs.count("new") == 7 * 200


def test_time_ends_it() -> None:
    """After three pairs at the least."""
    machine = Machine(noise=0.0)
    new, old = machine.program("new", 0.99), machine.program("old", 1.0)
    found = compare(new, old, clock=lambda: machine.now, max_s=0.1)
    assert found.num_pairs == 3
    assert not found.is_faster
