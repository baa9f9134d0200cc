"""What XLA is told so that it shows what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fuselane import config

OUR_PASS: Final = "apply-xla-transforms"
"""The pass through which XLA calls Fuselane, by its name up to JAX 0.10 (since then see `alone`).

Leaving it out also tells these compilations from others in JAX's persistent cache, for which dumps
make no difference."""


def dump_options(folder: Path) -> dict[str, Any]:
    """Returns options for a compilation by XLA alone that is dumped into a folder.

    They come on top of what the environment says.
    """
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_pass_re": ".*",
        "xla_dump_hlo_as_proto": True,
        "xla_dump_emitter_re": "^ptx$",  # since JAX 0.11 the only way to see it
        "xla_disable_hlo_passes": ",".join((*config.disabled_hlo_passes(), OUR_PASS)),
    }


def dump_flags(folder: Path) -> str:
    """Returns the same as a value of `XLA_FLAGS`, with what that holds now."""
    flags = (f"--{name}={_written(value)}" for name, value in dump_options(folder).items())
    return " ".join((config.xla_flags(), *flags)).strip()


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
