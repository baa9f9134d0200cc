"""Programs that are compiled again and again: those of functions, and those of scripts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuselane.errors import InputError
from fuselane.xla.programs import program_of, recording


def test_a_function() -> None:
    """Its results, as often as one likes, and for varied arguments."""
    arguments = ({"x": jnp.ones(8), "n": jnp.arange(8)}, 2.0)
    program = program_of(jax.jit(lambda tree, k: (tree["x"] * k, tree["n"] + 1)), arguments)
    compiled = program.compile()
    for _ in range(2):
        compiled.run()
    doubled, counted = compiled.results()
    assert doubled.tolist() == [2.0] * 8
    assert counted.tolist() == list(range(1, 9))
    up, down = (compiled.results(vary=sign) for sign in (1, -1))
    assert (up[0] > 2).all()
    assert (down[0] < 2).all()
    np.testing.assert_allclose(up[0], 2, rtol=1e-4)
    assert up[1].tolist() == counted.tolist()


def test_donated_arguments_stay() -> None:
    """Each run gets a copy."""
    x = jnp.ones(1024)
    compiled = program_of(jax.jit(lambda x: x + 1, donate_argnums=0), (x,)).compile()
    assert compiled.results()[0][0] == 2
    assert compiled.results()[0][0] == 2
    assert not x.is_deleted()


def test_options_of_xla() -> None:
    """They reach it."""
    program = program_of(jax.jit(jnp.sin), (jnp.ones(8),))
    program.compile({"xla_cpu_prefer_vector_width": "128"}).run()
    with pytest.raises(RuntimeError, match="xla_no_such_flag"):
        program.compile({"xla_no_such_flag": "1"})


def test_keys_and_no_floats() -> None:
    """Random keys are arguments and results as well."""
    key = jax.random.key(3)
    compiled = program_of(jax.jit(jax.random.split), (key,)).compile()
    assert np.array_equal(compiled.results()[0], jax.random.key_data(jax.random.split(key)))
    assert np.array_equal(compiled.results(vary=1)[0], compiled.results()[0])


def test_side_effects_and_static_arguments() -> None:
    """They are refused with a sentence."""

    def talks(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x

    with pytest.raises(InputError, match="side effects"):
        program_of(jax.jit(talks), (1.0,))
    power = jax.jit(lambda x, n: x**n, static_argnums=1)
    with pytest.raises(InputError, match="Static arguments"):
        program_of(power, (2.0, 3))
    program_of(jax.jit(functools.partial(lambda x, n: x**n, n=3)), (2.0,)).compile().run()


def test_recording() -> None:
    """Each program with its first arguments, its calls and their time."""
    step = jax.jit(lambda x, k: x * k, donate_argnums=0)
    talk = jax.jit(lambda x: jax.debug.callback(lambda _: None, x))
    with recording() as found:
        x = jnp.arange(8.0)
        for k in (2.0, 3.0, 5.0):
            x = step(x, k)
        talk(x)
    assert x.tolist() == [30.0 * i for i in range(8)]
    (recorded,) = [one for one in found.programs if one.num_calls == 3]
    assert recorded.total_s > 0
    compiled = recorded.program.compile()
    assert (
        compiled.results()[0].tolist()
        == compiled.results()[0].tolist()
        == [2.0 * i for i in range(8)]
    )
    assert len(found.passed_over) == 1
    num_programs = len(found.programs)
    jax.jit(lambda x: x - 7)(x)
    assert len(found.programs) == num_programs
