"""Switching on and off, for functions compiled before and after, on one thread and on several."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fuselane
from fuselane import api, pipeline
from fuselane.config import Options
from fuselane.decisions import DecisionLog
from fuselane.errors import OptionError
from fuselane.fusion.plan import write_plan

LANES = 1000


def program(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 300, lambda i, x: (x * 3 + i) ^ (x >> 2), x)


def argument() -> jax.Array:
    return jnp.arange(LANES, dtype=jnp.int32)


class Watch:
    """Counts the modules that reach the pipeline and the loops it replaced."""

    def __init__(self) -> None:
        self.num_modules = 0
        self.num_fused = 0
        self.options: list[Options] = []
        self._inner = pipeline.transform

    def __call__(self, data: bytes, options: Options, *others: Any, **named: Any) -> bytes | None:
        if b"jit_program" in data:
            self.num_modules += 1
            self.options.append(options)
        log: DecisionLog = others[0]
        before = sum(loop.decision.fused for loop in log)
        result = self._inner(data, options, *others, **named)
        self.num_fused += sum(loop.decision.fused for loop in log) - before
        return result


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    jax.clear_caches()
    watch = Watch()
    monkeypatch.setattr(pipeline, "transform", watch)
    return watch


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", fuselane.FuselaneWarning)
        yield


def test_compiled_again_after_switching(watch: Watch) -> None:
    """The same jitted function is compiled once per state, and both versions stay."""
    function: Any = jax.jit(program)
    expected = function(argument())
    assert watch.num_modules == 0
    fuselane.enable()
    np.testing.assert_array_equal(function(argument()), expected)
    assert (watch.num_modules, watch.num_fused) == (1, 1)
    fuselane.disable()
    np.testing.assert_array_equal(function(argument()), expected)
    fuselane.enable()
    np.testing.assert_array_equal(function(argument()), expected)
    assert (watch.num_modules, watch.num_fused) == (1, 1)
    assert function._cache_size() == 2


def test_enabled_block(watch: Watch) -> None:
    function = jax.jit(program)
    assert not fuselane.is_enabled()
    for _ in range(2):
        with fuselane.enabled():
            assert fuselane.is_enabled()
            function(argument())
        assert not fuselane.is_enabled()
        function(argument())
    assert (watch.num_modules, watch.num_fused) == (1, 1)


def test_enabled_block_that_raises() -> None:
    with pytest.raises(KeyError), fuselane.enabled():
        raise KeyError
    assert not fuselane.is_enabled()


def test_nested_blocks_and_options(watch: Watch) -> None:
    function = jax.jit(program)
    with fuselane.enabled(unroll=1):
        with fuselane.enabled(unroll=2):
            function(argument())
        function(argument())
    fuselane.enable(unroll=4)
    function(argument())
    with fuselane.enabled(unroll=1):
        function(argument())
    assert [options.unroll for options in watch.options] == [2, 1, 4]


def test_blocks_with_equal_options_nest() -> None:
    with fuselane.enabled():
        with fuselane.enabled():
            pass
        assert fuselane.is_enabled()
    assert not fuselane.is_enabled()


def test_disable_inside_a_block_ends_enable_only() -> None:
    fuselane.enable()
    with fuselane.enabled():
        fuselane.disable()
        assert fuselane.is_enabled()
    assert not fuselane.is_enabled()


def test_other_threads(watch: Watch) -> None:
    """`enable` counts for all threads; a block's key for its own."""
    function = jax.jit(program)
    fuselane.enable()
    thread = threading.Thread(target=lambda: function(argument()))
    thread.start()
    thread.join()
    function(argument())
    assert watch.num_modules == 1


def test_jit(watch: Watch) -> None:
    function = fuselane.jit(program, donate_argnums=())
    plain = jax.jit(program)
    expected = plain(argument())
    np.testing.assert_array_equal(function(argument()), expected)
    np.testing.assert_array_equal(function(argument()), expected)
    assert (watch.num_modules, watch.num_fused) == (1, 1)
    assert getattr(function, "__name__", "") == "program"
    assert not fuselane.is_enabled()


def test_jit_ahead_of_time(watch: Watch) -> None:
    compiled = fuselane.jit(program).lower(argument()).compile()
    np.testing.assert_array_equal(compiled(argument()), jax.jit(program)(argument()))
    assert watch.num_fused == 1
    jax.clear_caches()
    fuselane.jit(program).trace(argument()).lower().compile()
    assert watch.num_fused == 2
    untyped: Any = fuselane.jit(program)
    assert untyped.eval_shape(argument()).shape == (LANES,)


def test_jit_looks_at_its_strategy_once(watch: Watch, tmp_path: Path) -> None:
    """Not in every call, where reading a plan takes longer than many a program."""
    path = tmp_path / "plan.json"
    write_plan(path, [])
    function = fuselane.jit(program, fusion=str(path))
    expected = function(argument())
    path.unlink()
    np.testing.assert_array_equal(function(argument()), expected)
    write_plan(path, [])
    fuselane.enable(min_gain=2.0)  # the function's other options are these now
    function(argument())
    assert [options.min_gain for options in watch.options] == [0.0, 2.0]


def test_jit_as_decorator(watch: Watch) -> None:
    @fuselane.jit(static_argnames="steps")
    def jitted_program(x: jax.Array, steps: int) -> jax.Array:
        return lax.fori_loop(0, steps, lambda i, x: (x * 3 + i) ^ (x >> 2), x)

    jitted_program(argument(), steps=300)
    assert watch.num_fused == 1


def test_switched_off_by_the_environment(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE", "0")
    fuselane.enable()
    with fuselane.enabled():
        assert not fuselane.is_enabled()
        jax.jit(program)(argument())
        fuselane.jit(program)(argument())
    assert watch.num_modules == 0
    assert "FUSELANE=0" in fuselane.explain(program, argument()).text()


def test_environment_does_not_overrule_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX loads plug-ins when it starts its backends, maybe after the program has decided."""
    monkeypatch.setenv("FUSELANE", "1")
    fuselane.disable()
    api.enable_from_environment()
    assert not fuselane.is_enabled()


@pytest.mark.parametrize("enter", [fuselane.enable, lambda **o: fuselane.enabled(**o).__enter__()])
def test_wrong_options(enter: Any) -> None:
    with pytest.raises(OptionError, match="no option 'unrol'; options are"):
        enter(unrol=3)
    with pytest.raises(OptionError, match="vector_bits has to be 128, 256 or 512"):
        enter(vector_bits=100)
    assert not fuselane.is_enabled()


def test_disable_jit_and_transformations(watch: Watch) -> None:
    fuselane.enable()
    with jax.disable_jit():
        eager = lax.fori_loop(0, 3, lambda i, x: x * 3 + i, argument())
    np.testing.assert_array_equal(eager, jax.jit(lambda x: ((x * 3) * 3 + 1) * 3 + 2)(argument()))
    stacked = jax.vmap(program)(jnp.stack([argument(), argument() + 1]))
    np.testing.assert_array_equal(stacked[1], jax.jit(program)(argument() + 1))


def test_explain() -> None:
    before = fuselane.decisions()
    report = fuselane.explain(program, argument())
    (loop,) = report.loops
    assert (loop.trip_count, loop.lanes, loop.decision.fused) == (300, LANES, True)
    assert loop.module == "jit_program" and loop.source.startswith("test_switching.py:")
    assert str(report) == report.text()
    assert f"one native kernel over {LANES} lanes" in " ".join(report.text().split())
    assert not fuselane.is_enabled()
    assert fuselane.decisions() == before


def test_explain_compiles_afresh_and_leaves_caches_alone(watch: Watch) -> None:
    function: Any = jax.jit(program)
    with fuselane.enabled():
        function(argument())
        for _ in range(2):
            assert fuselane.explain(function, argument()).num_fused == 1
        function(argument())
        assert fuselane.explain(fuselane.jit(program), argument()).num_fused == 1
    assert watch.num_modules == 4
    assert function._cache_size() == 1


def test_explain_takes_shapes_and_static_arguments() -> None:
    @jax.jit
    def never_run(x: jax.Array) -> jax.Array:
        return program(x) + 1

    shape = jax.ShapeDtypeStruct((LANES,), jnp.int32)
    assert fuselane.explain(never_run, shape).num_fused == 1
    static = jax.jit(lambda x, n: lax.fori_loop(0, n, lambda i, x: x * 3 + i, x), static_argnums=1)
    (loop,) = fuselane.explain(static, shape, 77).loops
    assert loop.trip_count == 77


def test_explain_without_loops() -> None:
    report = fuselane.explain(lambda x: x + 1, argument())
    assert report.loops == ()
    (module,) = report.modules
    assert [kernel.opcodes["add"] for kernel in module.kernels] == [1]
