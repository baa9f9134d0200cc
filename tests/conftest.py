"""Settings of all tests."""

import functools
import gc
import os
import signal
import tempfile
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from fuselane import api
from tests import gpu_extra

# Nothing that depends on how busy the machine is may fail a test.
settings.register_profile("fuselane", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fuselane")

_has_gpu_extra = functools.cache(gpu_extra.is_installed)


_OBJECTS: Final = 20_000
"""That are made before cyclic garbage is looked for; Python looks after 700."""


def pytest_configure(config: pytest.Config) -> None:
    """Keeps tests out of the user's cache, where costs of this machine may lie, has Ctrl-C raise
    KeyboardInterrupt, and lets Python keep what it compiles, which containers often forbid: the
    processes that tests start would each compile all of Fuselane anew."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells' background jobs ignore
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "FUSELANE_CACHE_DIR" not in os.environ:
        directory = tempfile.TemporaryDirectory(prefix="fuselane-tests-")
        os.environ["FUSELANE_CACHE_DIR"] = directory.name
        config.add_cleanup(directory.cleanup)


def pytest_collection_finish() -> None:
    """Takes modules and thousands of tests, which stay, out of what is looked through for garbage,
    and looks less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs something that is not there, and forgets decisions about loops, of which the
    last 2,000 are kept: whoever counts those of a test would find none once there are so many."""
    if item.get_closest_marker("gpu_extra") and not _has_gpu_extra():
        pytest.skip("the gpu extra is not installed")
    api._log.clear()
