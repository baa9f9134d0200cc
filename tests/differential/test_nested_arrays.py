"""Large arrays that loops within loops, branches and updates pass on to each other, at random: what
is changed where it lies must be needed by nobody, be they each lane's own or shared by all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.differential.harness import check

NUM_ARRAYS: Final = 3
LANES: Final = NUM_ARRAYS
"""The number of one more array, if there is one: of lanes, which share the others."""
NUM_STEPS: Final = 6
MAX_DEPTH: Final = 2

Arrays = list[Any]
Statement = Callable[[Arrays, Any], Arrays]
"""Makes other arrays of some, by the number of a step."""


def _block(rng: random.Random, depth: int) -> Statement:
    """Returns a few statements, one after the other."""
    nested = [_counted, _while, _cond, _cond, _switch] if depth < MAX_DEPTH else []
    made = [rng.choice([*_KINDS, *nested])(rng, depth + 1) for _ in range(rng.randint(1, 3))]

    def run(arrays: Arrays, step: Any) -> Arrays:
        for statement in made:
            arrays = statement(list(arrays), step)
        return arrays

    return run


def _no_block(arrays: Arrays, step: Any) -> Arrays:
    return arrays


def _block_or_none(rng: random.Random, depth: int) -> Statement:
    return _block(rng, depth) if rng.random() < 0.6 else _no_block


def _three(rng: random.Random) -> list[int]:
    return [rng.randrange(NUM_ARRAYS) for _ in range(3)]


def _update(rng: random.Random, depth: int) -> Statement:
    (to, of, by), factor = _three(rng), rng.randint(1, 9)

    def run(arrays: Arrays, step: Any) -> Arrays:
        size = arrays[of].shape[0]
        row = lax.dynamic_slice_in_dim(arrays[by], (step * factor + 1) % size, 1, 0) + 1
        start = (step * factor) % size
        arrays[to] = lax.dynamic_update_slice_in_dim(arrays[of], row % 999, start, 0)
        return arrays

    return run


def _add(rng: random.Random, depth: int) -> Statement:
    to, left, right = _three(rng)

    def run(arrays: Arrays, step: Any) -> Arrays:
        arrays[to] = (arrays[left] + arrays[right]) % 999
        return arrays

    return run


def _turn(rng: random.Random, depth: int) -> Statement:
    to, of, _ = _three(rng)

    def run(arrays: Arrays, step: Any) -> Arrays:
        arrays[to] = arrays[of][::-1]
        return arrays

    return run


def _swap(rng: random.Random, depth: int) -> Statement:
    one, other, _ = _three(rng)

    def run(arrays: Arrays, step: Any) -> Arrays:
        arrays[one], arrays[other] = arrays[other], arrays[one]
        return arrays

    return run


def _copy(rng: random.Random, depth: int) -> Statement:
    to, of, _ = _three(rng)

    def run(arrays: Arrays, step: Any) -> Arrays:
        arrays[to] = arrays[of]
        return arrays

    return run


def _move_up(rng: random.Random, depth: int) -> Statement:
    to, of, _ = _three(rng)

    def run(arrays: Arrays, step: Any) -> Arrays:
        arrays[to] = jnp.concatenate([arrays[of][1:], arrays[of][:1] + 1])
        return arrays

    return run


def _see(rng: random.Random, depth: int) -> Statement:
    """All lanes read the same element."""
    (of, _, _), factor = _three(rng), rng.randint(1, 9)

    def run(arrays: Arrays, step: Any) -> Arrays:
        if len(arrays) > LANES:
            rows, columns = arrays[of].shape
            element = arrays[of][step * factor % rows, (step + factor) % columns]
            arrays[LANES] = (3 * arrays[LANES] + element) % 997
        return arrays

    return run


def _pick(rng: random.Random, depth: int) -> Statement:
    """Each lane reads another element."""
    of, _, _ = _three(rng)

    def run(arrays: Arrays, step: Any) -> Arrays:
        if len(arrays) > LANES:
            rows, columns = arrays[of].shape
            picked = arrays[of][arrays[LANES] % rows, step % columns]
            arrays[LANES] = (arrays[LANES] + picked) % 997
        return arrays

    return run


def _meet(rng: random.Random, depth: int) -> Statement:
    """What lanes make together becomes part of an array."""
    (to, of, _), factor = _three(rng), rng.randint(1, 9)

    def run(arrays: Arrays, step: Any) -> Arrays:
        if len(arrays) > LANES:
            row = step * factor % arrays[of].shape[0]
            arrays[to] = arrays[of].at[row, 0].set(jnp.sum(arrays[LANES]) % 999)
        return arrays

    return run


_KINDS: Final = (_update, _update, _add, _turn, _swap, _copy, _move_up, _see, _see, _pick, _meet)


def _counted(rng: random.Random, depth: int) -> Statement:
    block, factor, most = _block(rng, depth), rng.randint(1, 9), rng.randint(1, 3)

    def run(arrays: Arrays, step: Any) -> Arrays:
        def body(inner: Any, carried: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(block(list(carried), inner + step))

        return list(lax.fori_loop(0, step * factor % (most + 1), body, tuple(arrays)))

    return run


def _while(rng: random.Random, depth: int) -> Statement:
    """A loop that carries some of the arrays, and sees the others as they were."""
    block, factor, most = _block(rng, depth), rng.randint(1, 9), rng.randint(1, 3)
    among = sorted({*_three(rng), rng.choice([0, LANES])})

    def run(arrays: Arrays, step: Any) -> Arrays:
        carried = [index for index in among if index < len(arrays)]

        def body(state: Any) -> Any:
            inner, values = state
            seen = list(arrays)
            for index, value in zip(carried, values, strict=True):
                seen[index] = value
            seen = block(seen, inner + step)
            return inner + 1, tuple(seen[index] for index in carried)

        start = 0, tuple(arrays[index] for index in carried)
        _, values = lax.while_loop(lambda s: s[0] < step * factor % (most + 1), body, start)
        for index, value in zip(carried, values, strict=True):
            arrays[index] = value
        return arrays

    return run


def _cond(rng: random.Random, depth: int) -> Statement:
    blocks = _block(rng, depth), _block_or_none(rng, depth)
    factor, every = rng.randint(1, 9), rng.randint(2, 4)

    def run(arrays: Arrays, step: Any) -> Arrays:
        sides = [lambda a, b=block: tuple(b(list(a), step)) for block in blocks]
        return list(lax.cond(step * factor % every == 0, *sides, tuple(arrays)))

    return run


def _switch(rng: random.Random, depth: int) -> Statement:
    blocks, factor = [_block_or_none(rng, depth) for _ in range(3)], rng.randint(1, 9)

    def run(arrays: Arrays, step: Any) -> Arrays:
        sides = [lambda a, b=block: tuple(b(list(a), step)) for block in blocks]
        return list(lax.switch(step * factor % 3, sides, tuple(arrays)))

    return run


def _program(block: Statement, *arrays: Any) -> Any:
    return lax.fori_loop(0, NUM_STEPS, lambda k, a: tuple(block(list(a), k)), arrays)


@pytest.mark.parametrize("seed", range(40))
def test_random_blocks(seed: int) -> None:
    rng = random.Random(seed)
    program: Any = partial(_program, _block(rng, 0))
    rows, lanes = rng.choice([9, 33, 40]), rng.choice([1, 5, 19, 40])
    if rng.random() < 0.4:  # lanes go different ways then
        program = jax.vmap(program, in_axes=1, out_axes=1)
    values = np.random.default_rng(seed).integers(0, 50, (NUM_ARRAYS, rows, lanes))
    check(program, *map(jnp.int32, values), fused=None)


# The last ones read, in branches that lanes take, what all lanes share and something changes later.
@pytest.mark.parametrize("seed", [*range(40), 155, 537, 586])
def test_random_blocks_beside_lanes(seed: int) -> None:
    rng = random.Random(seed)
    program: Any = partial(_program, _block(rng, 0))
    (rows, columns), lanes = rng.choice([(9, 5), (33, 40), (70, 1)]), rng.choice([16, 40, 300])
    generator = np.random.default_rng(seed)
    shared = generator.integers(0, 50, (NUM_ARRAYS, rows, columns))
    own = generator.integers(0, 50, lanes)
    check(program, *map(jnp.int32, shared), jnp.int32(own), fused=None)
