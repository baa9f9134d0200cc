"""The programs of `test_devices`: run as a module with their names, on eight virtual devices, or
with a coordinator's address, a number of processes and a process's number, on a device each."""

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

LANES: Final = 8 * 21


def rollout(state: jax.Array, rows: jax.Array) -> Any:
    def step(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x * 3 + row, x[::-1]

    return lax.scan(step, state, rows)


def inputs() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    state = generator.integers(-99, 99, (2, LANES)).astype(np.int32)
    return state, generator.integers(-99, 99, (70, 2, LANES)).astype(np.int32)


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("lanes",))


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
    assert len(actual[0].sharding.device_set) == 8
    assert_decisions(report)
    assert IS_OFF or {loop.lanes for loop in report.loops} == {LANES // 8}


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


def meet_now_and_then(state: jax.Array) -> jax.Array:
    """Loops between which the devices add up: the outer one is XLA's, the inner ones fuse."""

    def round_(_: Any, x: jax.Array) -> jax.Array:
        x = lax.fori_loop(0, 40, lambda i, x: x * 3 + (x >> 2) + i, x)
        x = x ^ (x.sum() + lax.psum(x.sum(), "lanes"))
        return lax.fori_loop(0, 30, lambda i, x: x * 5 - (x >> 3), x)

    return lax.fori_loop(0, 50, round_, state)


def collectives_between_loops() -> None:
    """Kernels and waiting devices share one pool of threads: none may wait for the other."""
    spec = PartitionSpec(None, "lanes")
    program = jax.shard_map(meet_now_and_then, mesh=mesh(), in_specs=spec, out_specs=spec)
    expected = jax.jit(program)(inputs()[0])
    actual, report = run_and_explain(program, inputs()[0])
    assert_same_results(expected, actual)
    assert IS_OFF or [loop.fused for loop in report.loops].count(True) == 2, report


def collective_in_some_steps() -> None:
    """The devices exchange data in every seventh step: kernels take the steps in between."""

    def per_device(state: jax.Array) -> jax.Array:
        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            x = x * 3 + i
            meet = i % 7 == 6
            return lax.cond(meet, lambda x: x ^ lax.psum(x.sum(), "lanes"), lambda x: x, x), None

        return lax.scan(step, state, jnp.arange(100))[0]

    spec = PartitionSpec(None, "lanes")
    program = jax.shard_map(
        per_device, mesh=mesh(), in_specs=(spec,), out_specs=spec, check_vma=False
    )
    expected = jax.jit(program)(inputs()[0])
    actual, report = run_and_explain(program, inputs()[0])
    assert_same_results(expected, actual)
    told = [loop.decision.sentence for loop in report.loops]
    assert IS_OFF or any("only XLA can take" in sentence for sentence in told), told


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


def run_distributed(coordinator: str, num_processes: int, process: int) -> None:
    """Runs one of several processes that exchange data; compares with plain XLA in all of them."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes, process)
    over = mesh()
    assert over.size == num_processes * jax.local_device_count()
    spec = PartitionSpec(None, "lanes")
    whole = np.tile(inputs()[0], (1, num_processes))
    state = jax.make_array_from_callback(
        whole.shape, NamedSharding(over, spec), lambda index: whole[index]
    )
    program = jax.shard_map(meet_now_and_then, mesh=over, in_specs=spec, out_specs=spec)
    expected = jax.jit(program)(state)
    actual, report = run_and_explain(program, state)
    for one, other in zip(expected.addressable_shards, actual.addressable_shards, strict=True):
        np.testing.assert_array_equal(np.asarray(one.data), np.asarray(other.data))
    assert IS_OFF or [loop.fused for loop in report.loops].count(True) == 2, report


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (
        sharded_lanes,
        replicated,
        shard_map,
        collective_in_the_loop,
        collectives_between_loops,
        collective_in_some_steps,
        one_program_per_device,
        random_numbers,
    )
}

if __name__ == "__main__":
    if sys.argv[1] in PROGRAMS:
        assert len(jax.devices()) == 8, jax.devices()
        for name in sys.argv[1:]:
            sys.stdout.write(f"{name}\n")
            PROGRAMS[name]()
    else:
        run_distributed(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
