"""What the run under valgrind gets to see, without valgrind."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from llvmlite import binding

import fuselane
from fuselane import device
from fuselane.backends import cpu
from valgrind import Recorder, leave_out_new_instructions


def test_kernels_are_kept_with_the_sizes_of_their_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build_planned", "make_kernel"):  # put back afterwards
        monkeypatch.setattr(cpu, name, getattr(cpu, name))
    recorder = Recorder()
    recorder.install()
    with fuselane.enabled(min_gain=0):
        run = jax.jit(lambda x: lax.fori_loop(0, 9, lambda i, x: x * 3 + i, x))
        run.lower(jnp.arange(301)).compile()
    (kernel,) = recorder.kernels.values()
    assert kernel.kernel.object_code
    assert 4 * 301 in kernel.outputs


def test_kernels_have_no_instructions_that_valgrind_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = binding.get_host_cpu_features()
    known.update({"avx2": True, "avx512f": True, "gfni": True})
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: known)
    monkeypatch.setattr(
        device, "parse_cpu_info", lambda _: ("a CPU", frozenset({"avx2", "avx512f"}))
    )
    leave_out_new_instructions()
    assert device.parse_cpu_info("") == ("a CPU", frozenset({"avx2"}))
    features = binding.get_host_cpu_features().flatten()
    assert "+avx2" in features
    assert "-avx512f" in features and "-gfni" in features
    assert "+avx512" not in features
