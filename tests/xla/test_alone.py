"""Programs that XLA compiles alone for a report, while Fuselane is on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fuselane
from fuselane.runtime import hook
from fuselane.xla.alone import compiled_alone, is_compiled_alone
from fuselane.xla.capture import capture, lower


def grow(x: jax.Array) -> jax.Array:
    """A loop that Fuselane takes."""
    return lax.fori_loop(0, 300, lambda i, c: (c * 3 + i) ^ (c >> 5), x)


def test_capture_leaves_fuselane_out() -> None:
    """However many programs were compiled before: XLA's passes for hooks may be numbered."""
    x = jnp.arange(1000, dtype=jnp.int32)
    with fuselane.enabled(min_gain=0):
        for _ in range(3):
            jax.jit(lambda y: y + 1)(x)
        (module,) = capture(lower(jax.jit(grow), "cpu", x))
        assert b"fuselane.while" not in module.final
        assert fuselane.explain(grow, x).num_fused == 1
        assert "fuselane.while" in str(jax.jit(grow).lower(x).compile().as_text())
        np.testing.assert_array_equal(jax.jit(grow)(x), grow(x))


def test_only_modules_of_the_name_are_left_to_xla() -> None:
    x = jnp.arange(10)
    with fuselane.enabled(), hook.observed() as modules:
        jax.jit(grow)(x)
    (module,) = (m for m in modules if b"jit_grow" in m)
    assert not is_compiled_alone(module)
    with compiled_alone("jit_other"):
        assert not is_compiled_alone(module)
        with compiled_alone("jit_grow"), compiled_alone("jit_grow"):
            assert is_compiled_alone(module)
    assert not is_compiled_alone(module)
