"""What a process pays for before its first loop is compiled: what is imported when."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

ENABLE: Final = "import fuselane; fuselane.enable()"
COMPILE: Final = """
import jax, jax.numpy as jnp
jax.jit(lambda x: x + 1)(jnp.ones(8))
"""
COMPILE_LOOP: Final = """
import jax, jax.numpy as jnp
step = lambda i, x: jnp.sin(x) * i
jax.jit(lambda x: jax.lax.fori_loop(0, 10_000, step, x))(jnp.ones(512))
"""
TELL: Final = "import json, sys; print(json.dumps(sorted(sys.modules)))"

COMPILER: Final = frozenset({"analysis", "backends", "fusion", "lanes", "pipeline", "replacing"})
"""What is imported for the first module that has a loop."""
SELDOM: Final = frozenset(
    {
        "backends.gpu",
        "codegen.nvptx",
        "comparing",
        "explain",
        "explaining",
        "fusion.gpu",
        "fusion.lane_kernels",
        "fusion.pipelines",
        "fusion.running",
        "fusion.strategies",
        "gpu_fusion",
        "runtime.launch",
        "tuner",
        "tuning.tuned",
        "xla.capture",
        "xla.compilation",
    }
)
"""What no compilation for a CPU needs unless options ask for it."""


def loaded(program: str) -> set[str]:
    """Returns the names of all modules that a process of its own has imported at its end."""
    finished = subprocess.run(
        [sys.executable, "-c", f"{program}\n{TELL}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "uselane" not in finished.stderr, finished.stderr
    return set(json.loads(finished.stdout))


def found(names: frozenset[str], modules: set[str]) -> set[str]:
    """Returns which of our rooms and files there are among modules."""
    return {name for name in names if f"fuselane.{name}" in modules}


def test_no_compiler_before_the_first_loop() -> None:
    modules = loaded(f"{ENABLE}\n{COMPILE}")
    assert not found(COMPILER | SELDOM, modules)
    assert "rich" not in modules


def test_a_loop_needs_no_reports_and_no_strategies() -> None:
    modules = loaded(f"{ENABLE}\n{COMPILE_LOOP}")
    assert found(COMPILER, modules) == COMPILER
    assert not found(SELDOM, modules)
    assert "rich" not in modules


def test_strategies_when_asked_for() -> None:
    """What the tests above look for is found where it is loaded."""
    program = "import fuselane; fuselane.enable(fusion='xla-2021'); fuselane.decisions()"
    modules = loaded(program)
    assert {"explain", "fusion.gpu", "fusion.pipelines"} <= found(SELDOM, modules)
    assert "rich" in modules
