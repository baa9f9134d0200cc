"""Tests that need XLA's GPU compiler, though no GPU."""

from __future__ import annotations

import pytest

from fuselane.errors import CaptureError
from fuselane.xla.toolchain import find_toolchain


def _is_installed() -> bool:
    try:
        find_toolchain()
    except CaptureError:
        return False
    return True


needs_gpu_extra = pytest.mark.skipif(not _is_installed(), reason="the gpu extra is not installed")
