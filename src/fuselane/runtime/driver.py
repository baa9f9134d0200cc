"""NVIDIA's driver, if there is one, by its C interface."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Final

_NAME: Final = "libcuda.so.1"


def open_driver() -> Any:
    """Returns the driver as ctypes has it; None if there is none."""
    with contextlib.suppress(OSError):
        return ctypes.CDLL(_NAME)
    return None


def driver_version() -> tuple[int, int] | None:
    """Returns the newest version of CUDA that the driver knows, or None if there is no driver.

    Source: CUDA Driver API, `cuDriverGetVersion`, which needs no initialisation and no GPU.
    """
    version = ctypes.c_int(0)
    driver = open_driver()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value // 1000, version.value % 1000 // 10
