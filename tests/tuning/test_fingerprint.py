"""Fingerprints of modules: what makes a difference and what does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from fuselane.hlo.module import HloModule
from fuselane.tuning.fingerprint import fingerprint
from fuselane.tuning.tuned import module_name
from tests.hlo.xla import lowered, module_of, parse

MODULE = """HloModule m
  add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
  ENTRY main { x = f32[8] parameter(0) y = f32[8] parameter(1) a = f32[8] sine(x)
  b = f32[8] cosine(y) c = f32[8] subtract(a, b) z = f32[] constant(0)
  ROOT r = f32[] reduce(c, z), dimensions={0}, to_apply=add }"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("HloModule m", "HloModule n"),
        ("sine(x)", 'sine(x), metadata={op_name="sin" source_file="f.py" source_line=3}'),
        ("a = f32[8] sine(x)\n  b = f32[8] cosine(y)", "b = f32[8] cosine(y) a = f32[8] sine(x)"),
        ("add { a = f32[] parameter(0)", "plus { a = f32[] parameter(0)"),
    ],
)
def test_no_difference(old: str, new: str) -> None:
    """Names, lines and order."""
    text = MODULE.replace(old, new).replace(
        "to_apply=add", "to_apply=plus" if "plus" in new else "to_apply=add"
    )
    assert text != MODULE
    assert fingerprint(module_of(text)) == fingerprint(module_of(MODULE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sine(x)", "cosine(x)"),
        ("sine(x)", "sine(y)"),
        ("subtract(a, b)", "subtract(b, a)"),
        ("constant(0)", "constant(1)"),
        ("c = f32[] add(a, b)", "c = f32[] multiply(a, b)"),
        ("f32[8]", "f32[9]"),
        ("cosine(y)", "cosine(y), control-predecessors={a}"),
    ],
)
def test_a_difference(old: str, new: str) -> None:
    """Whatever changes what is computed, or when."""
    assert fingerprint(module_of(MODULE.replace(old, new))) != fingerprint(module_of(MODULE))


def test_what_is_computed_twice() -> None:
    """Equal values, but not equal kernels."""
    once = """HloModule m
      ENTRY main { x = f32[8] parameter(0) a = f32[8] sine(x) ROOT c = f32[8] add(a, a) }"""
    twice = once.replace(
        "ROOT c = f32[8] add(a, a)", "b = f32[8] sine(x) ROOT c = f32[8] add(a, b)"
    )
    assert fingerprint(module_of(once)) != fingerprint(module_of(twice))


def test_the_same_after_edits_elsewhere() -> None:
    """A function that moves to other lines of its file keeps its fingerprint."""
    source = "def f(x):\n    y = jnp.sin(x)\n    return jnp.cumsum(y * 2)\n"
    digests = set()
    for text in (source, "\n\n# moved\n" + source):
        names = {"jnp": jnp}
        exec(compile(text, "f.py", "exec"), names)
        digests.add(fingerprint(HloModule.from_bytes(lowered(names["f"], jnp.ones(9)))))
    assert len(digests) == 1


def test_names_from_the_front_of_the_bytes() -> None:
    """However long they are."""

    def f(x: jax.Array) -> jax.Array:
        return x + 1

    assert module_name(lowered(f, 1.0)) == "jit_f"
    long = "n" * 300
    assert module_name(parse(MODULE.replace("HloModule m", f"HloModule {long}"))) == long
