"""Settings of all tests."""

import functools

import pytest
from hypothesis import HealthCheck, settings

from tests import gpu_extra

# Nothing that depends on how busy the machine is may fail a test.
settings.register_profile("fuselane", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fuselane")

_has_gpu_extra = functools.cache(gpu_extra.is_installed)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs something that is not there."""
    if item.get_closest_marker("gpu_extra") and not _has_gpu_extra():
        pytest.skip("the gpu extra is not installed")
