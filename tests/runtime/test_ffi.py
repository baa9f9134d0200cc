"""Kernels as custom calls: finding them, running their tiles, letting go of them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuselane.codegen.ffi_handler import build_handler_ir
from fuselane.codegen.llvm import HostTarget
from fuselane.errors import RuntimeFailure
from fuselane.runtime import ffi
from fuselane.runtime.cache import KernelCache, open_cache
from fuselane.runtime.kernel import Kernel
from fuselane.runtime.table import KernelTable, Record, load, table
from tests.runtime.hand_kernels import call, make_kernel, scale

# Busy work, so that tiles take long enough (about 50 us) for pool threads to get their share.
_SLOW = """
  br label %work
work:
  %k = phi i64 [ 0, %tile ], [ %k.next, %work ]
  call void asm sideeffect "", ""()
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, 100000
  br i1 %more, label %work, label %over
over:
"""


@pytest.fixture(autouse=True)
def registered(own_cache: Path) -> None:
    ffi.register()


def slow_kernel(body: str, num_tiles: int, **arguments: Any) -> Kernel:
    """Returns a kernel whose tiles each take a while before they compute."""
    return make_kernel(_SLOW + body, num_tiles, end="%over", **arguments)


@pytest.mark.parametrize("max_threads", [0, 1, 2, 64])
@pytest.mark.parametrize("num_tiles", [0, 1, 2, 3, 17, 1000])
def test_every_tile_runs_once(num_tiles: int, max_threads: int) -> None:
    kernel = make_kernel("  %y = fadd float %x, 1.0", num_tiles=num_tiles, max_threads=max_threads)
    x = jnp.arange(num_tiles, dtype=jnp.float32)
    function = jax.jit(lambda x: call(kernel, x))
    for _ in range(20):
        np.testing.assert_array_equal(function(x), np.arange(num_tiles) + 1)


def test_tiles_are_shared_between_threads() -> None:
    kernel = slow_kernel(
        "  %y = call i64 @pthread_self()",
        64,
        element="i64",
        declarations="declare i64 @pthread_self()",
    )
    with jax.enable_x64(True):
        x = jnp.zeros(64, jnp.int64)
        function = jax.jit(lambda x: call(kernel, x))
        threads = {int(thread) for _ in range(20) for thread in np.asarray(function(x))}
    assert len(threads) >= 2


def test_one_thread_when_asked_for() -> None:
    kernel = slow_kernel(
        "  %y = call i64 @pthread_self()",
        64,
        element="i64",
        declarations="declare i64 @pthread_self()",
        max_threads=1,
    )
    with jax.enable_x64(True):
        function = jax.jit(lambda x: call(kernel, x))
        assert len(set(np.asarray(function(jnp.zeros(64, jnp.int64))).tolist())) == 1


def test_denormals_are_flushed_as_xla_does_on_every_thread() -> None:
    kernel = slow_kernel("  %y = fmul float %x, 0.5", 64)
    x = jnp.full(64, np.float32(1e-38) * np.float32(1.5))
    expected = np.asarray(jax.jit(lambda x: x * 0.5)(x))
    for _ in range(20):
        actual = np.asarray(jax.jit(lambda x: call(kernel, x))(x))
        np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def test_many_callers_at_once() -> None:
    """Python threads run one executable, whose tiles go to one pool, at the same time."""
    kernel = slow_kernel("  %y = fmul float %x, 3.0", 48)
    function = jax.jit(lambda x: call(kernel, x))
    failures: list[BaseException] = []

    def run(start: int) -> None:
        try:
            for turn in range(10):
                x = np.arange(48, dtype=np.float32) + start + turn
                np.testing.assert_array_equal(function(x), x * 3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(100 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_several_devices_and_results() -> None:
    """A tuple of results reaches the kernel as a flat list of buffers."""
    kernel = make_kernel("  %y = fmul float %x, 2.0", 4)
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)

    def program(x: jax.Array) -> jax.Array:
        function = jax.ffi.ffi_call(ffi.TARGET, (shape, shape, shape))
        first, _, _ = function(x, image=kernel.to_text(), key=kernel.key)
        result: jax.Array = first
        return result

    np.testing.assert_array_equal(jax.jit(program)(jnp.arange(4.0)), 2 * np.arange(4))


def test_missing_kernel_comes_from_disk(own_cache: Path) -> None:
    kernel = scale("5.0", 4)
    KernelCache(own_cache).put(kernel)
    result = jax.jit(lambda x: call(kernel, x, image="none here"))(jnp.arange(4.0))
    np.testing.assert_array_equal(result, 5 * np.arange(4))


def test_missing_kernel_comes_from_the_executable(own_cache: Path) -> None:
    kernel = scale("6.0", 4)
    assert open_cache(own_cache).get(kernel.key) is None
    result = jax.jit(lambda x: call(kernel, x))(jnp.arange(4.0))
    np.testing.assert_array_equal(result, 6 * np.arange(4))


def test_missing_everywhere() -> None:
    kernel = scale("7.0", 4)
    with pytest.raises(jax.errors.JaxRuntimeError, match="neither cached nor in the executable"):
        jax.jit(lambda x: call(kernel, x, image="none here"))(jnp.arange(4.0))


def test_kernel_under_another_name() -> None:
    kernel = scale("8.0", 4)
    with pytest.raises(jax.errors.JaxRuntimeError, match="holds another kernel"):
        jax.jit(lambda x: call(kernel, x, key="0" * 64))(jnp.arange(4.0))


def test_kernel_for_another_machine() -> None:
    host = HostTarget.host()
    newer = dataclasses.replace(host, features=host.features + ",+avx1024")
    kernel = scale("9.0", 4, target=newer)
    with pytest.raises(jax.errors.JaxRuntimeError, match="machine with avx1024, which this"):
        jax.jit(lambda x: call(kernel, x))(jnp.arange(4.0))


def test_object_code_that_does_not_load() -> None:
    kernel = dataclasses.replace(scale("10.0", 4), key="1" * 64, object_code=b"no object")
    with pytest.raises(jax.errors.JaxRuntimeError, match="Fuselane failed"):
        jax.jit(lambda x: call(kernel, x))(jnp.arange(4.0))


def test_same_kernel_is_loaded_once() -> None:
    kernel = scale("11.0", 4)
    before = len(table)
    for size in (4, 8, 12):
        result = jax.jit(lambda x: call(kernel, x))(jnp.arange(float(size)))
        np.testing.assert_array_equal(result[:4], 11 * np.arange(4))
    assert len(table) == before + 1
    assert kernel.key in table


def test_idle_kernels_are_unloaded() -> None:
    own = KernelTable(max_idle=2)
    kernels = [scale(f"{i}.0", 4) for i in range(20, 26)]
    for kernel in (*kernels, kernels[0]):
        address = own.acquire(kernel.key, functools.partial(load, kernel))
        Record.from_address(address).released = 1
    more = [scale(f"{i}.0", 4) for i in range(30, 32)]
    own.acquire(more[0].key, functools.partial(load, more[0]))
    assert [k.key in own for k in kernels] == [True, False, False, False, False, False]
    assert len(own) == 2, "one acquired twice and released once, one new"


def test_kernels_in_use_outlive_their_table() -> None:
    """XLA counts in a record when an executable goes: into other objects, were it gone by then."""
    own = KernelTable(max_idle=0)
    kernels = [scale(f"{i}.0", 4) for i in range(40, 42)]
    records = []
    for kernel in kernels:
        address = own.acquire(kernel.key, functools.partial(load, kernel))
        records.append(weakref.ref(own._loaded[kernel.key].record))
        Record.from_address(address).released = int(kernel is kernels[0])
    del own
    gc.collect()
    unloaded, used = (record() for record in records)
    assert unloaded is None
    assert used is not None and used.released == 0


def test_executables_release_their_kernels() -> None:
    kernel = scale("12.0", 4)
    function = jax.jit(lambda x: call(kernel, x))
    executable = function.lower(jnp.arange(4.0)).compile()
    loaded = table._loaded[kernel.key]
    assert not loaded.is_idle
    np.testing.assert_array_equal(executable(jnp.arange(4.0)), 12 * np.arange(4))
    del function, executable
    jax.clear_caches()
    gc.collect()
    assert loaded.is_idle


def test_attributes_are_ascii_and_quoted() -> None:
    kernel = scale("13.0", 4)
    text = ffi.custom_call_attributes(kernel).decode()
    assert text.startswith('{image = "') and text.endswith(f'", key = "{kernel.key}"}}')


def test_find_kernel_checks_the_key() -> None:
    kernel = scale("14.0", 4)
    attributes = {"key": b"2" * 64, "image": kernel.to_text().encode()}
    with pytest.raises(RuntimeFailure, match="another kernel"):
        ffi.find_kernel(attributes)


def test_handler_is_cached_on_disk(own_cache: Path) -> None:
    kernel = ffi._handler_kernel("handler", build_handler_ir())
    found = KernelCache(own_cache).get(kernel.key)
    assert found == kernel
