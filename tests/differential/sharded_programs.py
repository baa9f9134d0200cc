"""The programs of `test_devices`: run as a module with a program's name, on four virtual
devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.differential.comparison import assert_same_results
from tests.differential.harness import IS_OFF, assert_decisions, check, run_and_explain, run_fused

LANES: Final = 4 * 21


def rollout(state: jax.Array, rows: jax.Array) -> Any:
    def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x * 3 + row, x[::-1]

    return lax.scan(step, state, rows)


def inputs() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    state = generator.integers(-99, 99, (2, LANES)).astype(np.int32)
    return state, generator.integers(-99, 99, (70, 2, LANES)).astype(np.int32)


def mesh() -> Mesh:
    devices = jax.devices()
    assert len(devices) == 4, devices
    return Mesh(np.array(devices), ("lanes",))


def sharded_lanes() -> None:
    """The lanes are spread over the devices: XLA partitions the program, each part is fused."""
    over = mesh()
    state, rows = inputs()
    expected = jax.jit(rollout)(state, rows)
    arguments = (
        jax.device_put(state, NamedSharding(over, PartitionSpec(None, "lanes"))),
        jax.device_put(rows, NamedSharding(over, PartitionSpec(None, None, "lanes"))),
    )
    actual, report = run_and_explain(rollout, *arguments)
    assert_same_results(expected, actual)
    assert len(actual[0].sharding.device_set) == 4
    assert_decisions(report)
    assert IS_OFF or {loop.lanes for loop in report.loops} == {LANES // 4}


def replicated() -> None:
    """Every device computes everything."""
    over = mesh()
    arguments = [jax.device_put(x, NamedSharding(over, PartitionSpec())) for x in inputs()]
    assert_same_results(jax.jit(rollout)(*inputs()), run_fused(rollout, *arguments))


def shard_map() -> None:
    """Each device runs its own loop over its own lanes, then they exchange a sum."""

    def per_device(state: jax.Array, rows: jax.Array) -> Any:
        last, path = rollout(state, rows)
        return last, path, lax.psum(last.sum(1), "lanes")

    lanes = PartitionSpec(None, "lanes")
    program = jax.shard_map(
        per_device,
        mesh=mesh(),
        in_specs=(lanes, PartitionSpec(None, None, "lanes")),
        out_specs=(lanes, PartitionSpec(None, None, "lanes"), PartitionSpec()),
    )
    check(program, *inputs())


def collective_in_the_loop() -> None:
    """The devices exchange data in every step, so that the loop stays XLA's."""

    def per_device(state: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x * 3 + lax.psum(x, "lanes"), None

        return lax.scan(step, state, length=5)[0]

    spec = PartitionSpec(None, "lanes")
    program = jax.shard_map(per_device, mesh=mesh(), in_specs=(spec,), out_specs=spec)
    check(program, inputs()[0], fused=None)


def one_program_per_device() -> None:
    """The same compiled loop runs on each device by itself, at the same time."""
    state, rows = inputs()
    expected = jax.jit(rollout)(state, rows)
    results = [
        run_fused(rollout, jax.device_put(state, device), jax.device_put(rows, device))
        for device in jax.devices()
    ]
    for result in results:
        assert_same_results(expected, result)


def random_numbers() -> None:
    """Sharded random numbers: each device draws those of its own lanes."""
    over = mesh()

    def program(key: jax.Array, state: jax.Array) -> Any:
        def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
            key, x = carry
            key, subkey = jax.random.split(key)
            drawn = jax.random.bits(subkey, x.shape)
            return (key, x ^ drawn), drawn & 1

        return lax.scan(step, (key, state), length=4)

    key, state = jax.random.key(0), jnp.zeros((2, LANES), jnp.uint32)
    expected = jax.jit(program)(key, state)
    sharded = jax.device_put(state, NamedSharding(over, PartitionSpec(None, "lanes")))
    assert_same_results(expected, run_fused(program, key, sharded))


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (
        sharded_lanes,
        replicated,
        shard_map,
        collective_in_the_loop,
        one_program_per_device,
        random_numbers,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
