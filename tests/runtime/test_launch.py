"""Launches on GPUs by our own handler, with a driver that only writes down what it is told.

XLA:CPU calls the handler as XLA:GPU would; but it has no stream, so that is put in.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from fuselane.codegen.ffi_calls import API_FUNCTIONS
from fuselane.codegen.launch_handler import DRIVER_FUNCTIONS, build_launch_ir
from fuselane.runtime import launch
from fuselane.runtime.ptx_call import LAUNCH_TARGET

_STREAM: Final = 4242
_ASK: Final = "%no_stream = call ptr @call_stream_get(ptr %frame, ptr %args)"
_GIVE: Final = """%stream.given = getelementptr %Stream, ptr %args, i64 0, i32 3
  store ptr inttoptr (i64 4242 to ptr), ptr %stream.given
  %no_stream = select i1 true, ptr null, ptr null"""

_REFUSED: Final = 218
_LIBRARY: Final = 0x1000
_KERNEL: Final = 0x2000


@dataclass
class Launch:
    """One call of `cuLaunchKernel`."""

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    parameters: list[int]


@dataclass
class Driver:
    """What a driver was told.

    A kernel has two arrays of four numbers in, x and y, and two out, x - y and x + y.
    """

    ptx: str
    texts: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    unloaded: list[int] = field(default_factory=list)
    failing: str = ""
    meanwhile: Callable[[], Any] = lambda: None

    def load(self, library: Any, text: bytes, *_: Any) -> int:
        self.texts.append(text)
        library[0] = _LIBRARY + len(self.texts)
        self.meanwhile()
        return _REFUSED if self.failing == "load" else 0

    def find(self, kernel: Any, library: int, name: bytes) -> int:
        self.names.append(name)
        kernel[0] = library - _LIBRARY + _KERNEL
        return _REFUSED if self.failing == "find" else 0

    def unload(self, library: int) -> int:
        self.unloaded.append(library - _LIBRARY)
        return 0

    def launch(self, kernel: int, *numbers: Any) -> int:
        *sizes, shared_bytes, stream, parameters, _ = numbers
        addresses = [ctypes.c_void_p.from_address(parameters[i]).value or 0 for i in range(4)]
        grid, block = (tuple(sizes[start : start + 3]) for start in (0, 3))
        self.launches.append(Launch(kernel, grid, block, shared_bytes, stream, addresses))
        x, y, difference, total = (
            np.ctypeslib.as_array((ctypes.c_float * 4).from_address(a)) for a in addresses
        )
        total[:], difference[:] = x + y, x - y
        return _REFUSED if self.failing == "launch" else 0

    def describe(self, status: int, text: Any) -> int:
        if status == _REFUSED:
            text[0] = b"a PTX JIT compilation failed"
        return 0


_told: Final = [Driver("")]

_U32, _POINTER = ctypes.c_uint32, ctypes.c_void_p
_POINTERS: Final = ctypes.POINTER(ctypes.c_void_p)


def _library() -> SimpleNamespace:
    """Returns the driver's C interface, which passes on to the driver of the running test."""
    load = (_POINTERS, ctypes.c_char_p, _POINTER, _POINTER, _U32, _POINTER, _POINTER, _U32)
    functions: dict[str, tuple[str, Any]] = {
        "cuLibraryLoadData": ("load", load),
        "cuLibraryGetKernel": ("find", (_POINTERS, _POINTER, ctypes.c_char_p)),
        "cuLibraryUnload": ("unload", (_POINTER,)),
        "cuLaunchKernel": ("launch", (_POINTER, *[_U32] * 7, _POINTER, _POINTERS, _POINTER)),
        "cuGetErrorString": ("describe", (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))),
    }

    def tell(name: str, *arguments: Any) -> int:
        status: int = getattr(_told[0], name)(*arguments)
        return status

    return SimpleNamespace(
        **{
            name: ctypes.CFUNCTYPE(ctypes.c_int, *types)(functools.partial(tell, method))
            for name, (method, types) in functions.items()
        }
    )


LIBRARY: Final = _library()


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """XLA takes a name once per process."""
    text = build_launch_ir()
    assert text.count(_ASK) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "build_launch_ir", lambda: text.replace(_ASK, _GIVE))
        launch.register_stages("cpu", LIBRARY)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Driver:
    """A driver that nobody has told anything yet, for a kernel that nobody has launched yet."""
    monkeypatch.setattr(launch, "open_driver", lambda: LIBRARY)
    _told[0] = Driver(f'.version 7.8 // "{request.node.name}"\n')
    return _told[0]


def module() -> Any:
    """Returns what is loaded of the only kernel that was launched last."""
    return list(launch.table._loaded.values())[-1].code


def call(x: Any, y: Any, **changes: Any) -> Any:
    """Launches a kernel, with a third operand that is not a parameter; traceable."""
    numbers = {"grid_x": 3, "block_x": 64, "shared_mem_bytes": 128, "num_inputs": 2}
    attributes: dict[str, Any] = {
        **{name: np.int32(number) for name, number in numbers.items()},
        "name": "fuselane_kernel",
        "kernel_data": _told[0].ptx,
        **changes,
    }
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    return jax.ffi.ffi_call(LAUNCH_TARGET, (shape, shape))(x, y, jnp.zeros(7), **attributes)


def program(**changes: Any) -> Any:
    """Returns a program of one call, which JAX has not seen before."""
    return jax.jit(lambda x, y: call(x, y, **changes))


X: Final = np.array([1, 2, 3, 4], np.float32)
Y: Final = np.array([10, 20, 30, 50], np.float32)


def test_what_the_driver_is_told(driver: Driver) -> None:
    """PTX once, at the first call; then geometry, stream and the addresses of arrays."""
    compiled = program().lower(X, Y).compile()
    assert not driver.texts, "no driver is needed to compile"
    for _ in range(3):
        difference, total = compiled(X, Y)
        np.testing.assert_array_equal(difference, X - Y)
        np.testing.assert_array_equal(total, X + Y)
    assert driver.texts == [driver.ptx.encode()] and driver.names == [b"fuselane_kernel"]
    assert len(driver.launches) == 3
    told = driver.launches[-1]
    assert (told.kernel, told.stream, told.shared_bytes) == (_KERNEL + 1, _STREAM, 128)
    assert (told.grid, told.block) == ((3, 1, 1), (64, 1, 1))
    assert len(set(told.parameters)) == 4


def test_launches_of_one_kernel_share_it(driver: Driver) -> None:
    """Calls that differ in nothing; another grid is another launch."""
    both = jax.jit(lambda x, y: (call(x, y), call(y, x)))(X, Y)
    np.testing.assert_array_equal(both[1][0], Y - X)
    assert len(driver.texts) == 1
    program(grid_x=np.int32(9))(X, Y)
    assert len(driver.texts) == 2
    assert [launch.grid[0] for launch in driver.launches] == [3, 3, 9]


def test_threads_that_come_first_together(driver: Driver) -> None:
    """Each loads the kernel. Whoever is late finds it there and unloads its own."""
    first, second = (program().lower(X, Y).compile() for _ in range(2))

    def overtake() -> None:
        driver.meanwhile = lambda: None
        thread = threading.Thread(target=lambda: jax.block_until_ready(second(X, Y)))
        thread.start()
        thread.join(60)

    driver.meanwhile = overtake
    np.testing.assert_array_equal(first(X, Y)[0], X - Y)
    assert len(driver.texts) == 2 and driver.unloaded == [1]
    assert [launch.kernel - _KERNEL for launch in driver.launches] == [2, 2]


def test_idle_kernels_are_unloaded(driver: Driver) -> None:
    compiled = program().lower(X, Y).compile()
    compiled(X, Y)
    module().close()
    assert driver.unloaded == [1]


def test_kernels_never_called_are_not_unloaded(driver: Driver) -> None:
    program().lower(X, Y).compile()
    module().close()
    assert not driver.unloaded


@pytest.mark.parametrize("failing", ["load", "find", "launch"])
def test_what_the_driver_refuses(driver: Driver, failing: str) -> None:
    driver.failing = failing
    said = r"the NVIDIA driver refused a kernel: a PTX JIT compilation failed"
    with pytest.raises(jax.errors.JaxRuntimeError, match=said):
        jax.block_until_ready(program()(X, Y))
    assert driver.unloaded == ([1] if failing == "find" else [])
    driver.failing = ""
    np.testing.assert_array_equal(program()(X, Y)[0], X - Y)


def test_where_there_is_no_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `register_stages(..., None)`, which leaves the table empty."""
    text = build_launch_ir().replace('c"fuselane_launch"', 'c"fuselane_nobody"')
    monkeypatch.setattr(launch, "build_launch_ir", lambda: text)
    monkeypatch.setattr(launch, "LAUNCH_TARGET", "fuselane_nobody")
    launch.register_stages("cpu", None)
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    sizes = ("grid_x", "block_x", "shared_mem_bytes", "num_inputs")
    numbers = dict.fromkeys(sizes, np.int32(1))
    names = {"name": "k", "kernel_data": ""}
    function = jax.ffi.ffi_call("fuselane_nobody", shape)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"driver \(libcuda.so.1\) is missing"):
        jax.block_until_ready(jax.jit(lambda x: function(x, **numbers, **names))(X))


def test_calls_that_lack_something(driver: Driver) -> None:
    """Or have it in another type."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="has no attribute 'num_inputs'"):
        program(num_inputs=np.int64(2))(X, Y)


def test_functions_of_xlas_interface_are_where_its_header_has_them() -> None:
    """Those for GPUs are never called here."""
    header = Path(jaxlib.__file__).parent / "include" / "xla" / "ffi" / "api" / "c_api.h"
    names = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((XLA_FFI_\w+)\);", header.read_text())
    found = {ours: names[place] for ours, place in API_FUNCTIONS.items()}
    assert found["stream_get"] == "XLA_FFI_Stream_Get"
    assert found["state_get"] == "XLA_FFI_State_Get"
    assert found["error_create"] == "XLA_FFI_Error_Create"
    assert found["num_threads"] == "XLA_FFI_ThreadPool_NumThreads"


def test_the_table_has_a_place_for_every_function() -> None:
    assert f"@fuselane_driver = global [{len(DRIVER_FUNCTIONS)} x ptr]" in build_launch_ir()
