"""Measuring what things cost on this machine: `fuselane calibrate`.

A few tiny programs run under plain XLA and as kernels. Each stands for one kind of cost, and how
much slower or faster it is than on the machine on which the built-in costs were measured scales
these. The whole takes a second or two. It is never done behind the user's back: a measurement in
the middle of somebody's program would be wrong, slow that program down, and change from one run to
the next which loops are taken.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fuselane
from fuselane import config
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.errors import InputError

_MIN_SCALE: Final = 0.1
_MAX_SCALE: Final = 10.0
_REPEATS: Final = 30
_TIME_LIMIT_S: Final = 0.03

Step = Callable[[Any], Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A loop whose time stands for some costs.

    Attributes:
        names: The fields of `MachineCosts` that its time scales.
        step: The loop's body.
        state: Makes the initial value.
        steps: Iterations.
        usual_us: Time of one iteration on the machine of the built-in costs.
        is_kernel: Whether it runs as a kernel rather than under plain XLA.
    """

    names: tuple[str, ...]
    step: Step
    state: Callable[[], Any]
    steps: int
    usual_us: float
    is_kernel: bool = False


def calibrate() -> MachineCosts:
    """Measures this machine and returns its costs. Switches Fuselane off.

    What calling a kernel and handing work to other threads cost is not measured: it stays as built
    in.

    Raises:
        InputError: under FUSELANE=0, as there are no kernels to measure.
    """
    if config.switch() is False:
        raise InputError("FUSELANE=0 switches Fuselane off: there are no kernels to measure.")
    fuselane.disable()
    idle = _measure_call()
    measured = [(probe.names, _scale(probe, idle)) for probe in PROBES]
    scales = {name: scale for names, scale in measured for name in names}
    usual = MachineCosts()
    changed = {
        name: getattr(usual, name) * (1 / scale if name.endswith("bytes_per_us") else scale)
        for name, scale in scales.items()
    }
    return dataclasses.replace(usual, **changed)


def _scale(probe: Probe, idle_us: float) -> float:
    """Returns how many times as long a probe takes as usual, within bounds."""
    measured = (_measure(probe) - idle_us) / probe.steps
    return min(max(measured / probe.usual_us, _MIN_SCALE), _MAX_SCALE)


def _measure(probe: Probe) -> float:
    """Returns the shortest of several times of a probe, in microseconds."""

    state = probe.state()
    if probe.is_kernel:
        state = (state, _full((), 0.0))
        with fuselane.enabled(min_gain=0, threads=1):
            compiled = jax.jit(lambda state: _run_counting(probe, state)).lower(state).compile()
    else:
        compiled = _compile_plainly(lambda state: _run(probe, state), state)
    return _shortest_us(lambda: compiled(state))


def _run(probe: Probe, state: Any) -> Any:
    return lax.fori_loop(0, probe.steps, lambda _, carry: probe.step(carry), state)


def _run_counting(probe: Probe, state: tuple[Any, jax.Array]) -> Any:
    """As `_run`, and adds something up: a kernel whose state comes back would end there."""
    return lax.fori_loop(
        0, probe.steps, lambda _, carry: (probe.step(carry[0]), carry[1] + 0.5), state
    )


def _measure_call() -> float:
    """Returns the time of a call of next to nothing, in microseconds."""
    state = _full((), 0.0)
    compiled = _compile_plainly(lambda x: x + 1, state)
    return _shortest_us(lambda: compiled(state))


def _compile_plainly(program: Callable[[Any], Any], state: Any) -> Any:
    return jax.jit(program).lower(state).compile()


def _shortest_us(run: Callable[[], Any]) -> float:
    _run_to_end(run)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < _REPEATS and (len(times) < 3 or time.perf_counter() - start < _TIME_LIMIT_S):
        before = time.perf_counter()
        _run_to_end(run)
        times.append(time.perf_counter() - before)
    return min(times) * 1e6


def _run_to_end(run: Callable[[], Any]) -> None:
    for result in jax.tree.leaves(run()):
        result.block_until_ready()


# The probes.


def _attract(state: Any) -> Any:
    """Several small fusions and copies."""
    x, y, z = state
    return x + 0.1 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 2.7 * z)


def _sums_and_products(state: Any) -> Any:
    for _ in range(8):
        state = state * 0.999 + 0.001
    return state


def _exponentials(state: Any) -> Any:
    return jnp.exp(-jnp.exp(-state))


def _sines(state: Any) -> Any:
    return jnp.sin(jnp.sin(state) + 1)


def _row_means(state: Any) -> Any:
    """What XLA:CPU leaves to its library: a function, reduced along rows."""
    rows, means = state
    return rows, jnp.exp(rows - means[:, None]).mean(axis=1)


def _recurrence(state: Any) -> Any:
    """A chain of scalar operations that XLA compiles into one function."""
    for _ in range(4):
        state = state * (1.5 - state) + 0.1
    return state


def _full(shape: tuple[int, ...], value: float) -> jax.Array:
    """Returns an array; nothing is compiled for it."""
    array: jax.Array = jax.device_put(np.full(shape, value, np.float32))
    return array


def _filled(*shape: int) -> Callable[[], jax.Array]:
    return lambda: _full(shape, 0.7)


def _rows_and_means() -> tuple[jax.Array, ...]:
    return _full((64, 1024), 0.7), _full((64,), 0.5)


def _three() -> tuple[jax.Array, ...]:
    return tuple(_full((64,), value) for value in (1.0, 1.1, 20.0))


PROBES: Final = (
    Probe(
        names=("thunk_us", "queued_thunk_us", "library_us"),
        step=_attract,
        state=_three,
        steps=2000,
        usual_us=0.107,
    ),
    Probe(
        names=("xla_operation_us",),
        step=_sums_and_products,
        state=_filled(4096),
        steps=500,
        usual_us=1.15,
    ),
    Probe(names=("xla_scalar_us",), step=_recurrence, state=_filled(), steps=5000, usual_us=0.0114),
    Probe(
        names=("xla_function_us",),
        step=_exponentials,
        state=_filled(4096),
        steps=100,
        usual_us=5.33,
    ),
    Probe(names=("xla_call_us",), step=_sines, state=_filled(4096), steps=50, usual_us=32.5),
    Probe(
        names=("library_operation_us", "library_function_us"),
        step=_row_means,
        state=_rows_and_means,
        steps=20,
        usual_us=56.0,
    ),
    Probe(
        names=("cached_bytes_per_us",),
        step=lambda x: x * 0.999,
        state=_filled(1 << 15),
        steps=300,
        usual_us=1.63,
    ),
    Probe(
        names=("memory_bytes_per_us",),
        step=lambda x: x * 0.999,
        state=_filled(1 << 22),
        steps=3,
        usual_us=1000.0,
    ),
    Probe(
        names=("kernel_cycle_us", "kernel_operation_us"),
        step=_sums_and_products,
        state=_filled(4096),
        steps=500,
        usual_us=0.655,
        is_kernel=True,
    ),
    Probe(
        names=("kernel_function_us",),
        step=_sines,
        state=_filled(4096),
        steps=100,
        usual_us=3.785,
        is_kernel=True,
    ),
    Probe(
        names=("kernel_scalar_us",),
        step=_recurrence,
        state=_filled(),
        steps=5000,
        usual_us=0.0086,
        is_kernel=True,
    ),
)
