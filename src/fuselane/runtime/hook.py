"""The places where XLA hands us its modules: one in its CPU compiler, one in its GPU compiler.

XLA calls a registered transformation once or more per compilation, on a thread of its own that
Python has not seen before, after its own fusion passes and before scheduling. The transformation
registered here never raises and, when it fails, leaves the module as it was.

Ctrl-C is the exception. Python takes it on the main thread only, which waits in XLA's CPU compiler
until that is done, and raises KeyboardInterrupt behind it. Where a compiler calls from the main
thread, Ctrl-C comes in the middle of the transformation: it ends the compilation, and JAX is told
that the error XLA makes of it was one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import jaxlib
from jax._src import compiler, xla_bridge

from fuselane.codegen.llvm import needed_cuda
from fuselane.gpu import GPUS, GpuDescription, describe_gpu
from fuselane.runtime.driver import driver_version
from fuselane.runtime.warning import warn_once
from fuselane.xla.alone import is_compiled_alone

NAME: Final = "fuselane"

_PRE_SCHEDULER: Final = 0
_POST_SCHEDULER: Final = 1
"""Values of jax.extend.xla.PipelineStage."""

Transformation = Callable[[bytes], bytes | None]
GpuTransformation = Callable[[GpuDescription, bytes], bytes | None]

_OLDEST: Final = "{}.{}".format(*min(gpu.compute_capability for gpu in GPUS.values()))

_INTERRUPTED: Final = "Ctrl-C came while Fuselane looked at a module."
"""What says KeyboardInterrupt in the hook; XLA's error repeats it."""

_CUDA: Final = "cuda"
_GPU_PLATFORMS: Final = frozenset({_CUDA, "gpu"})

_lock = threading.Lock()
_current: list[Transformation] = []
_registered: list[str] = []
_observers: list[list[bytes]] = []


def install(transformation: Transformation) -> None:
    """Makes XLA's CPU compiler call a function with every module; replaces the one before.

    The function gets a serialized HloModuleProto and returns a changed one, or None to leave it.
    It stays registered for the life of the process, as other threads may be compiling; switching
    off is up to the function.
    """
    with _lock:
        _current[:] = [transformation]
        if not _registered:
            _register()
            _registered.append(NAME)


def is_installed() -> bool:
    """Whether XLA has been given the hook."""
    return bool(_registered)


@contextlib.contextmanager
def observed() -> Iterator[list[bytes]]:
    """Yields a list that gets every module XLA's CPU compiler hands over inside a `with` block.

    On whatever thread that is, and as XLA has it, before the transformation. `install` comes first.
    """
    modules: list[bytes] = []
    with _lock:
        _observers.append(modules)
    try:
        yield modules
    finally:
        with _lock:
            _observers[:] = [other for other in _observers if other is not modules]


def _register() -> None:
    register = getattr(getattr(jaxlib, "_xla", None), "register_xla_transform", None)
    if register is not None:
        # What the public function comes down to for the CPU. Since JAX 0.11 that one also starts
        # all backends, too early for settings still to come, and endless inside a JAX plug-in.
        register(NAME, _PRE_SCHEDULER, _call)
    else:
        xla = importlib.import_module("jax.extend.xla")
        stage = xla.PipelineStage.PRE_SCHEDULER
        xla.register_hlo_module_transformation(_call, name=NAME, stage=stage, platforms="cpu")
    handle = getattr(compiler, "register_xla_runtime_error_handler", None)
    if handle is not None:
        handle(_as_interrupt)


def _as_interrupt(error: Exception) -> Any:
    """Returns KeyboardInterrupt for what XLA made of one in the hook, None for other errors."""
    return KeyboardInterrupt() if _INTERRUPTED in str(error) else None


def install_on_gpus(transformation: GpuTransformation, after: GpuTransformation) -> None:
    """Makes XLA's GPU compilers call two functions with every module; to be called once.

    Those of plug-ins and clients still to come too. The functions get the GPU, and else as for
    `install`.

    Args:
        transformation: Is shown modules before layouts and fusion.
        after: Is shown them after scheduling; code generation is all that follows.
    """
    stages = ((_PRE_SCHEDULER, transformation), (_POST_SCHEDULER, after))
    by_client = getattr(xla_bridge, "register_backend_initialization_hook", None)
    if by_client is not None:  # JAX 0.10: a compiler belongs to a client
        by_client(functools.partial(_register_client, stages))
    else:  # since JAX 0.11: to a plug-in, with or without clients
        registering = functools.partial(_register_plugin, stages)
        xla_bridge.register_plugin_callbacks(registering)  # type: ignore[no-untyped-call]


_Stages = tuple[tuple[int, GpuTransformation], ...]
"""What to call at which stage of XLA's."""


def _register_client(stages: _Stages, client: Any) -> None:
    """Registers the hook with one client of XLA's, if that is one for NVIDIA GPUs we know."""
    if client.platform not in _GPU_PLATFORMS:
        return
    with _warned():
        gpu = _describe_client(client)
        if gpu is None:
            return
        for stage, transformation in stages:
            _register_at(client, stage, functools.partial(_call_on_gpu, transformation, gpu))


def _register_plugin(stages: _Stages, *, c_api: Any) -> None:
    """Registers the hook with one plug-in of JAX's, if that is the one for NVIDIA GPUs."""
    with _warned():
        factory = xla_bridge._backend_factories.get(_CUDA)
        if factory is not None and factory.c_api is c_api:
            for stage, transformation in stages:
                _register_at(c_api, stage, functools.partial(_call_on_first_gpu, transformation))


def _register_at(compiler: Any, stage: int, transformation: Transformation) -> None:
    register = jaxlib._xla.register_xla_transform_c_api
    register(compiler, NAME, stage, functools.partial(guard, transformation))


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """Turns what goes wrong into a warning."""
    try:
        yield
    except Exception as error:
        warn_once(f"Fuselane leaves programs for the GPU to XLA: {describe(error)}")


def _describe_client(client: Any) -> GpuDescription | None:
    """Returns the first GPU of a client; None, with a warning, if it or its driver is too old."""
    device = client.local_devices()[0]
    gpu = _describe_device(device)
    if gpu is None:
        missing = f"compute capability {_OLDEST} or later, not {device.compute_capability}"
    else:
        missing = _missing_of_driver(gpu)
    if missing:
        warn_once(
            f"Fuselane leaves programs for the {device.device_kind} to XLA: kernels need {missing}."
        )
        return None
    return gpu


def _missing_of_driver(gpu: GpuDescription) -> str:
    """Returns what the driver lacks to read PTX for a GPU; "" if nothing, or nothing is known."""
    needed, version = needed_cuda(gpu.compute_capability), driver_version()
    if version is None or version >= needed:
        return ""
    wanted, found = (".".join(map(str, numbers)) for numbers in (needed, version))
    return f"an NVIDIA driver for CUDA {wanted} or later, not {found}; install a newer driver"


def _describe_device(device: Any) -> GpuDescription | None:
    major, _, minor = str(device.compute_capability).partition(".")
    return describe_gpu(device.device_kind, (int(major), int(minor or 0)), int(device.core_count))


def _call_on_gpu(
    transformation: GpuTransformation, gpu: GpuDescription, module: bytes
) -> bytes | None:
    return transformation(gpu, module)


def _call_on_first_gpu(transformation: GpuTransformation, module: bytes) -> bytes | None:
    """Runs a transformation for the GPU of this process, unless it compiles for one not there."""
    client = xla_bridge._backends.get(_CUDA)
    gpu = None if client is None else _describe_client(client)
    return None if gpu is None else transformation(gpu, module)


def _call(module: bytes) -> bytes | None:
    """Runs the current transformation as XLA calls it, unless XLA is to be alone."""
    if is_compiled_alone(module):
        return None
    for modules in list(_observers):
        modules.append(module)
    return guard(_current[0], module)


def guard(transformation: Transformation, module: bytes) -> bytes | None:
    """Runs a transformation; where it fails, that is a warning, and the module stays as it is.

    Raises:
        KeyboardInterrupt: if Ctrl-C comes meanwhile.
    """
    try:
        return transformation(module)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_INTERRUPTED) from None
    except BaseException as error:
        warn_once(f"Fuselane failed and left a program to XLA: {describe(error)}")
        return None


def describe(error: BaseException) -> str:
    """Returns one line that names an exception, what it says and where it came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_name}:{trace.tb_lineno})"
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"
