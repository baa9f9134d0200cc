"""What goes wrong when a kernel is loaded or run: the program goes on, or fails with an error."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuselane.codegen.ffi_calls import INSTANTIATE_SYMBOL, RESOLVER_SYMBOL
from fuselane.codegen.ffi_handler import EXECUTE_SYMBOL, build_handler_ir
from fuselane.codegen.llvm import compile_object
from fuselane.codegen.loading import load_object
from fuselane.errors import CodegenError
from fuselane.runtime import ffi, table
from fuselane.runtime.kernel import Kernel
from tests.runtime.hand_kernels import call, make_kernel, scale

_TILES: Final = 64

# A kernel that no other test loads, for each test: it stays loaded.
_factors: Final = itertools.count(100)

# Changes of the handler by which something that it calls for never works.
_SHORTAGES: Final[dict[str, tuple[str, str]]] = {
    "memory": (
        "declare ptr @malloc(i64)",
        "define internal ptr @malloc(i64 %size) noinline { ret ptr null }",
    ),
    "tasks": (
        "%error = call ptr @call_schedule(ptr %frame, ptr %args)",
        "%error = call ptr @make_error(ptr %frame, ptr @no_state)",
    ),
    "threads": (
        "%error = call ptr @call_num_threads(ptr %frame, ptr %args)\n  %is_known",
        "%error = call ptr @make_error(ptr %frame, ptr @no_state)\n  %is_known",
    ),
}


@pytest.fixture(autouse=True)
def registered(own_cache: Any) -> None:
    ffi.register()


@pytest.mark.parametrize("number", range(len(_SHORTAGES)), ids=list(_SHORTAGES))
def test_shortages_while_running(number: int) -> None:
    """All tiles run on the calling thread then."""
    found, put = list(_SHORTAGES.values())[number]
    text = build_handler_ir()
    assert text.count(found) == 1
    # A type's name can be registered only once, and has 15 letters.
    text = text.replace(found, put).replace('c"fuselane_kernel"', f'c"fuselane_short{number}"')
    handler = load_object(compile_object(text))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
    resolver = ctypes.c_void_p.from_address(handler.address(RESOLVER_SYMBOL))
    resolver.value = ctypes.cast(ffi._resolver, ctypes.c_void_p).value
    stages = {"instantiate": INSTANTIATE_SYMBOL, "execute": EXECUTE_SYMBOL}
    target = f"fuselane_short{number}"
    ffi.register_handler(target, handler, stages, "cpu")
    kernel = make_kernel("  %y = fmul float %x, 3.0", _TILES)
    shape = jax.ShapeDtypeStruct((_TILES,), jnp.float32)

    def program(x: jax.Array) -> Any:
        return jax.ffi.ffi_call(target, shape)(x, image=kernel.to_text(), key=kernel.key)

    x = np.arange(_TILES, dtype=np.float32)
    for _ in range(5):
        np.testing.assert_array_equal(jax.jit(program)(x), 3 * x)


@pytest.mark.parametrize("failure", [MemoryError(), CodegenError("injected"), KeyError()], ids=repr)
@pytest.mark.parametrize(
    ("owner", "name"), [(table, "load_object"), (table, "missing_features"), (ffi, "find_kernel")]
)
def test_loading_that_fails_once(
    owner: Any, name: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of JAX's, and nothing half-loaded: the next attempt succeeds."""
    factor = next(_factors)
    kernel = scale(f"{factor}.0", 4)

    def fail(*_: Any) -> Any:
        raise failure

    def run() -> Any:
        return jax.jit(lambda x: call(kernel, x))(jnp.arange(4.0))

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"Fuselane.*{type(failure).__name__}"):
            run()
    assert kernel.key not in table.table
    np.testing.assert_array_equal(run(), factor * np.arange(4))


_ATTRIBUTES: Final[dict[str, Callable[[Kernel], dict[str, Any]]]] = {
    "none": lambda kernel: {},
    "no key": lambda kernel: {"image": kernel.to_text()},
    "no image": lambda kernel: {"key": kernel.key},
    "numbers": lambda kernel: {"image": np.int64(1), "key": np.float32(2)},
    "a path": lambda kernel: {"image": "", "key": "../../../etc/passwd"},
    "half an image": lambda kernel: {"image": kernel.to_text()[:-40], "key": kernel.key},
    "long": lambda kernel: {"image": "x" * 100_000, "key": "y" * 100_000},
}


@pytest.mark.parametrize("name", _ATTRIBUTES)
def test_attributes_that_name_no_kernel(name: str) -> None:
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    attributes = _ATTRIBUTES[name](scale("16.0", 4))

    def program(x: jax.Array) -> Any:
        return jax.ffi.ffi_call(ffi.TARGET, shape)(x, **attributes)

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"kernel .*than|Fuselane's kernel"):
        jax.jit(program)(jnp.arange(4.0))


def test_no_object_code_in_the_kernel() -> None:
    kernel = Kernel(
        key="3" * 64,
        symbol="f",
        object_code=b"",
        num_tiles=1,
        max_threads=1,
        target=scale("17.0", 4).target,
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="Fuselane failed"):
        jax.jit(lambda x: call(kernel, x))(jnp.arange(4.0))
