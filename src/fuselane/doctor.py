"""A check of the installation: versions, CPU, hook, cache, and a small loop fused and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fuselane
from fuselane import config
from fuselane.device import host_device
from fuselane.machine import describe_versions
from fuselane.runtime import hook
from fuselane.runtime.cache import open_cache
from fuselane.runtime.costs import costs_path, read_costs

_TOLERANCE: Final = 1e-5
_TEST_LANES: Final = 1000
_TEST_STEPS: Final = 100

Carry = tuple[jax.Array, jax.Array]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the check found.

    Attributes:
        lines: One fact each, as name and value.
        problem: A sentence about what is wrong, or "".
    """

    lines: tuple[tuple[str, str], ...]
    problem: str = ""


def diagnose() -> Diagnosis:
    """Looks at everything Fuselane needs and runs the self-test."""
    is_off = config.switch() is False
    problem = "" if is_off else run_self_test()
    verdict = "skipped, as FUSELANE=0 switches Fuselane off" if is_off else problem or "passed"
    device = host_device()
    hook_state = "installed" if hook.is_installed() else "not installed"
    return Diagnosis(
        lines=(
            *describe_versions().items(),
            ("cpu", f"{device.name}, {device.num_cores} cores"),
            ("vectors", f"{device.vector_bits} bits, {device.num_vector_registers} registers"),
            ("features", device.features or "unknown"),
            ("hook", hook_state),
            ("cache", _describe_cache()),
            ("costs", _describe_costs()),
            ("self-test", verdict),
        ),
        problem=problem,
    )


def run_self_test() -> str:
    """Runs a small loop under plain XLA and as a kernel; returns what is wrong, or ""."""
    start = jnp.linspace(-1.0, 1.0, _TEST_LANES), jnp.arange(_TEST_LANES, dtype=jnp.uint32)
    report = fuselane.explain(_wander, *start)
    if not report.loops:
        return "XLA did not show Fuselane the loop it compiled."
    if not report.num_fused:
        return f"The loop was not fused: {report.loops[0].decision.sentence}"
    fuselane.disable()
    expected, expected_bits = jax.jit(_wander)(*start)
    actual, actual_bits = fuselane.jit(_wander)(*start)
    if not np.array_equal(actual_bits, expected_bits):
        return "The fused loop computes other integers than plain XLA."
    difference = float(jnp.abs(actual - expected).max())
    if not difference <= _TOLERANCE:
        return f"The fused loop is off by {difference:.1e}."
    return ""


def _wander(start: jax.Array, seeds: jax.Array) -> Carry:
    """Returns where random steps lead, f32[lanes], and the random bits at the end, u32[lanes].

    A bit of everything that forgets its rounding errors: integers, selects, sines.
    """

    def step(_: int, carry: Carry) -> Carry:
        position, bits = carry
        bits = bits * jnp.uint32(1664525) + jnp.uint32(1013904223)
        push = jnp.where(bits >> 31 == 0, 0.1, -0.1)
        return 0.9 * jnp.sin(position) + push, bits

    end: Carry = lax.fori_loop(0, _TEST_STEPS, step, (start, seeds))
    return end


def _describe_costs() -> str:
    path = costs_path(config.cache_dir())
    if read_costs(path) is None:
        return "built in; `fuselane calibrate` measures this machine's"
    return f"measured, {path}"


def _describe_cache() -> str:
    directory = config.cache_dir()
    num_kernels, num_bytes = open_cache(directory).disk_usage()
    return f"{directory}, {num_kernels} kernels, {num_bytes / 2**20:.1f} MiB"
