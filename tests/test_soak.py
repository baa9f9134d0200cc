"""What the soak run compares: the time after kernels were unloaded for the first time."""

from __future__ import annotations

from soak import Holding, find_first_and_last, has_grown


def readings(*memory_and_kernels: tuple[float, int]) -> list[Holding]:
    return [Holding(memory, 6, 19, kernels) for memory, kernels in memory_and_kernels]


def test_a_table_that_fills_is_no_growth() -> None:
    """Memory rises with the first kernels, then both go up and down."""
    filling = [(300.0 + k, k) for k in range(0, 250, 10)]
    waves = [(550.0 - n % 5, 250 - 50 * (n % 5)) for n in range(100)]
    found = find_first_and_last(readings(*filling, *waves), is_settled=False)
    assert found is not None
    assert not has_grown(*found)
    everything = find_first_and_last(readings(*filling, *waves), is_settled=True)
    assert everything is not None
    assert has_grown(*everything)


def test_what_grows_with_each_wave_is_growth() -> None:
    leaking = [(500.0 + n, 250 - 50 * (n % 5)) for n in range(100)]
    found = find_first_and_last(readings(*leaking), is_settled=False)
    assert found is not None
    assert has_grown(*found)


def test_too_short_to_tell() -> None:
    filling = [(300.0 + k, k) for k in range(200)]
    assert find_first_and_last(readings(*filling), is_settled=False) is None
    assert find_first_and_last(readings(*filling, (450, 0)), is_settled=False) is None
