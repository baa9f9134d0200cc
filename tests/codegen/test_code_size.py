"""How much code a kernel is: what is small enough for registers may be too much to write out."""

from __future__ import annotations

import re
from typing import Final

import pytest

from fuselane.codegen.kernel import KernelCode, build
from fuselane.codegen.llvm import Vectors, optimised_ir
from fuselane.config import Options
from fuselane.lanes.form import form
from tests.codegen.kernels import DEVICE
from tests.lanes.loops import counting_loop, loop_of

NUM_LANES: Final = 64

STAGES: Final = """
    zero_x = {type}[] constant({start})
    many = {type}[64,1024] broadcast(e0), dimensions={{0}}
    mixed = {type}[64,1024] {mix}(many, e1)
    parts = {type}[64,32,32] reshape(mixed)
    few = {type}[64,32] reduce(parts, zero_x), dimensions={{2}}, to_apply=combine
    all = {type}[64] reduce(few, zero_x), dimensions={{1}}, to_apply=combine
"""
COMBINE: Final = """combine {{
    x = {type}[] parameter(0)
    y = {type}[] parameter(1)
    ROOT z = {type}[] {name}(x, y)
}}"""

BEFORE: Final = """before {
    x = f32[] parameter(0)
    y = f32[] parameter(1)
    ROOT z = pred[] compare(x, y), direction=LT
}"""


@pytest.mark.parametrize(
    ("type_", "combiner", "start", "mix"),
    [
        ("bf16", "add", "0", "multiply"),
        ("f16", "multiply", "1", "add"),
        ("f32", "maximum", "-inf", "add"),
        ("s32", "maximum", "-2147483648", "xor"),
        ("s64", "multiply", "1", "xor"),
        ("u8", "add", "0", "xor"),
    ],
)
def test_stages_of_a_reduction_are_not_written_out(
    type_: str, combiner: str, start: str, mix: str
) -> None:
    body = STAGES.format(type=type_, start=start, mix=mix)
    more = COMBINE.format(type=type_, name=combiner)
    carried = [f"{type_}[{NUM_LANES}]", f"{type_}[{NUM_LANES},1024]"]
    module = counting_loop(body, ["all", "mixed"], carried, more=more)
    kernel = build(form(module, loop_of(module)), Options(), DEVICE)
    assert kernel.num_instructions < 2 * 1024


def test_a_loop_reads_few_elements_from_memory() -> None:
    """Twelve are in registers, but 144 products of two of them are made in a loop: selecting each
    among twelve would be most of its work."""
    body = """
    left = f32[64,12,12] broadcast(e0), dimensions={0,1}
    right = f32[64,12,12] broadcast(e0), dimensions={0,2}
    products = f32[64,12,12] multiply(left, right)
    sum = f32[64,12,12] add(products, e1)
    short = f32[64,12] sqrt(e0)
"""
    carried = [f"f32[{NUM_LANES},12]", f"f32[{NUM_LANES},12,12]"]
    module = counting_loop(body, ["short", "sum"], carried)
    kernel = build(form(module, loop_of(module)), Options(), DEVICE)
    assert kernel.ir.count(" select ") < 6


@pytest.mark.parametrize(("num_elements", "num_sines"), [(2, 2), (8, 1)])
def test_sines_of_many_elements_are_made_in_a_loop(num_elements: int, num_sines: int) -> None:
    """What follows takes them from memory, without eight copies of all that a sine needs."""
    carried = [f"f32[{NUM_LANES},{num_elements}]", f"f32[{NUM_LANES}]"]
    body = f"""
    zero_x = f32[] constant(0)
    waves = f32[64,{num_elements}] sine(e0)
    all = f32[64] reduce(waves, zero_x), dimensions={{1}}, to_apply=combine
"""
    more = COMBINE.format(type="f32", name="add")
    module = counting_loop(body, ["waves", "all"], carried, more=more)
    kernel = build(form(module, loop_of(module)), Options(), DEVICE)
    assert len(re.findall('= call .*"fuselane.sine.<', kernel.ir)) == num_sines


@pytest.mark.parametrize("lanes", ["64,", ""])
def test_a_long_sort_is_as_much_code_as_a_short_one(lanes: str) -> None:
    """Its stages are a loop, in which LLVM exchanges elements side by side where lanes are not."""

    def compile_sort(size: int) -> KernelCode:
        shape = f"f32[{lanes}{size}]"
        dimension = int(bool(lanes))
        body = f"y = {shape} sort(e0), dimensions={{{dimension}}}, to_apply=before"
        module = counting_loop(body, ["y"], [shape], more=BEFORE)
        program = form(module, loop_of(module))
        assert program.has_lanes == bool(lanes)
        return build(program, Options(), DEVICE)

    short, long = compile_sort(65), compile_sort(1000)
    assert long.num_instructions <= short.num_instructions
    if not lanes:
        assert re.search(r"store <\d+ x ", optimised_ir(long.ir, vectorise=Vectors.EVERYWHERE))
