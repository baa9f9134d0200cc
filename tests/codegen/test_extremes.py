"""The largest of many floats: the order of zeros is made up for in the end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import pytest

from fuselane.codegen.kernel import build
from fuselane.config import Options
from fuselane.lanes.form import form
from tests.codegen.kernels import DEVICE
from tests.lanes.loops import counting_loop, loop_of

LARGEST: Final = """
    least = {type}[] constant(-inf)
    y = {type}[4096] reduce(e1, least), dimensions={{1}}, to_apply=combine"""
COMBINE: Final = """combine {{
    a = {type}[] parameter(0)
    b = {type}[] parameter(1)
    ROOT c = {type}[] {name}(a, b)
}}"""


def kernel_ir(
    size: int, *, kind: str = "f32", name: str = "maximum", vector_bits: int = 256
) -> str:
    body, more = LARGEST.format(type=kind), COMBINE.format(type=kind, name=name)
    shapes = [f"{kind}[4096]", f"{kind}[4096,{size}]"]
    module = counting_loop(body, ["y", "e1"], shapes, more=more)
    device = replace(DEVICE, vector_bits=vector_bits)
    return build(form(module, loop_of(module)), Options(), device).ir


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize(("name", "signs"), [("maximum", " = and "), ("minimum", " = or ")])
def test_zeros_are_put_in_order_once(name: str, signs: str, kind: str) -> None:
    code = kernel_ir(6, kind=kind, name=name)
    assert re.search(rf'call nsz <\d+ x \w+> @"llvm\.{name}\.', code)
    assert signs in code


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize(
    ("name", "order", "signs"), [("maximum", "ogt", " = and "), ("minimum", "olt", " = or ")]
)
def test_in_loops_nan_is_noted_beside(name: str, order: str, signs: str, kind: str) -> None:
    """What remains of each maximum is one instruction of the processor's."""
    code = kernel_ir(60, kind=kind, name=name)
    assert f"llvm.{name}." not in code
    assert re.search(rf"fcmp nnan nsz {order} <\d+ x \w+>", code)
    assert "fcmp uno" in code
    assert signs in code


@pytest.mark.parametrize(
    ("size", "name", "vector_bits"),
    [(2, "maximum", 256), (6, "add", 256), (6, "maximum", 128)],
    ids=["few", "sum", "arm"],
)
def test_what_has_no_order_of_zeros_to_save(size: int, name: str, vector_bits: int) -> None:
    assert "nsz" not in kernel_ir(size, name=name, vector_bits=vector_bits)
