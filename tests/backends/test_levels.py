"""How much of LLVM a kernel gets: little where more would find nothing to do."""

from __future__ import annotations

import pytest

from fuselane.backends.cpu import make_kernel
from fuselane.config import Options
from tests.codegen.kernels import compile_loop
from tests.lanes.loops import counting_loop


@pytest.mark.parametrize(("num_states", "level"), [(1, 1), (4, 2)])
def test_kernels_that_load_and_store_little_get_cheap_passes(num_states: int, level: int) -> None:
    """A state in memory is loaded and stored element by element."""
    shape = "f32[4096,32]"
    body = "".join(
        f"""
      turned{i} = {shape} reverse(e{i}), dimensions={{1}}
      y{i} = {shape} multiply(e{i}, turned{i})"""
        for i in range(num_states)
    )
    results = [f"y{i}" for i in range(num_states)]
    code = compile_loop(counting_loop(body, results, [shape] * num_states), unroll=1).code
    assert code.num_accesses >= 64 * num_states
    bitcode = make_kernel(code, "key", Options()).bitcode
    assert bitcode is not None and bitcode.opt_level == level
