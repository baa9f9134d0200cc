"""What XLA is told so that it shows what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuselane import config


def dump_options(folder: Path) -> dict[str, Any]:
    """Returns options for a compilation that is dumped into a folder.

    They come on top of what the environment says.
    """
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_pass_re": ".*",
        "xla_dump_hlo_as_proto": True,
    }


def dump_flags(folder: Path) -> str:
    """Returns the same as a value of `XLA_FLAGS`, with what that holds now."""
    flags = (f"--{name}={_written(value)}" for name, value in dump_options(folder).items())
    return " ".join((config.xla_flags(), *flags)).strip()


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
