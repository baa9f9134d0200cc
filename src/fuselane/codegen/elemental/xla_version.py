"""Which XLA a kernel stands in for: what it computes differs, rarely, between versions."""

from __future__ import annotations

import importlib.metadata
from typing import Final

XLA_IS_0_12: Final = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) >= (0, 12)
"""Whether it is the XLA of JAX 0.12 or a later one."""
