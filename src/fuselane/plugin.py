"""What JAX loads, from the entry point group `jax_plugins`, when it starts its backends.

JAX does so in every process of an environment where Fuselane is installed. Unless the environment
says `FUSELANE=1`, nothing is imported here but the configuration.
"""

from __future__ import annotations

import importlib
import warnings

from fuselane import config


def initialize() -> None:
    """Switches Fuselane on if the environment says so; JAX calls this once.

    Warns if that fails, and leaves everything to JAX.
    """
    try:
        if config.switch():
            # Imported by name, as an import statement would cost every process that never asked.
            importlib.import_module("fuselane.api").enable_from_environment()
    except Exception as error:
        warnings.warn(f"Fuselane could not be switched on: {error}", stacklevel=2)
