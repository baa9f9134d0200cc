"""Tests that need XLA's GPU compiler, though no GPU: `pytest -k gpu_extra` runs them."""

from __future__ import annotations

import pytest

from fuselane.errors import CaptureError
from fuselane.xla.toolchain import find_toolchain

needs_gpu_extra = pytest.mark.gpu_extra


def is_installed() -> bool:
    """Whether the extra `gpu` is there, for the JAX that is."""
    try:
        find_toolchain()
    except CaptureError:
        return False
    return True
