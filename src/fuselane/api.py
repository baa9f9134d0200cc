"""Switching Fuselane on and off, and asking what it does.

XLA compiles on threads of its own, and the hook there cannot see which thread of Python asked. So
what is compiled how is one setting for the process: that of the innermost `enabled()` block entered
last, on any thread, or else that of `enable()`. JAX, however, looks up what it has compiled by
thread: a function compiled while Fuselane was off for a thread is compiled again by its next call
on a thread for which it is on, and the other way round; both versions stay cached.

All this concerns compilation only. What has been compiled runs, however Fuselane is switched since.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, final, overload

import jax
from jax._src import cache_key

from fuselane import config, peek
from fuselane.config import Options
from fuselane.decisions import MAX_LOGGED_DECISIONS, DecisionLog
from fuselane.gpu import GpuDescription
from fuselane.later import Later
from fuselane.runtime import ffi, hook, repeat, verify
from fuselane.runtime.cache import open_cache
from fuselane.runtime.warning import warn_once
from fuselane.tuning.choice import Choice

if TYPE_CHECKING:
    from fuselane import explaining, gpu_fusion, pipeline
    from fuselane.backends import gpu as gpu_backend
    from fuselane.explain import report
    from fuselane.fusion import strategies
    from fuselane.runtime import launch, ptx_call
    from fuselane.xla import capture, targets, toolchain
else:
    capture = Later("fuselane.xla.capture")
    explaining = Later("fuselane.explaining")
    gpu_backend = Later("fuselane.backends.gpu")
    gpu_fusion = Later("fuselane.gpu_fusion")
    launch = Later("fuselane.runtime.launch")
    pipeline = Later("fuselane.pipeline")
    ptx_call = Later("fuselane.runtime.ptx_call")
    report = Later("fuselane.explain.report")
    strategies = Later("fuselane.fusion.strategies")
    targets = Later("fuselane.xla.targets")
    toolchain = Later("fuselane.xla.toolchain")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Setting:
    """How modules are compiled while this setting is in force."""

    options: Options
    key: str
    log: DecisionLog
    choice: Choice


@final
class _Switchboard:
    """The settings in force in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base: _Setting | None = None
        self._scopes: list[_Setting] = []
        self.was_set = False

    @property
    def active(self) -> _Setting | None:
        """The setting that the next compilation goes by, or None if Fuselane is off."""
        scopes = self._scopes
        return scopes[-1] if scopes else self._base

    def set_base(self, setting: _Setting | None) -> None:
        with self._lock:
            self.was_set = True
            self._base = setting
            _context.set_global(None if setting is None else setting.key)

    @contextlib.contextmanager
    def scope(self, setting: _Setting) -> Iterator[None]:
        """Puts a setting in force for the process, and its key on this thread."""
        own = replace(setting)  # told apart from the same setting in another block
        with self._lock:
            self._scopes = [*self._scopes, own]
        try:
            with _context(setting.key):
                yield
        finally:
            with self._lock:
                self._scopes = [other for other in self._scopes if other is not own]


# Part of the key under which `jax.jit` looks up what it has traced and compiled.
_context: Final[Any] = jax.make_user_context(None)  # type: ignore[no-untyped-call]
_switchboard: Final = _Switchboard()
_log: Final = DecisionLog(MAX_LOGGED_DECISIONS)


def enable(**options: Any) -> None:
    """Switches Fuselane on: from here on, loops of programs that JAX compiles become kernels.

    Does nothing where the environment says `FUSELANE=0`. Calling it again changes the options.

    Args:
        options: Fields of `fuselane.Options`, such as `threads=1`.
    Raises:
        OptionError: for an unknown option or a value that is not allowed.
    """
    chosen = config.options_from(options)
    if config.switch() is not False:
        _switchboard.set_base(_prepare(chosen))


def disable() -> None:
    """Switches Fuselane off again, but for blocks of `enabled()` that are running."""
    _switchboard.set_base(None)


def enable_from_environment() -> None:
    """Switches Fuselane on if the environment says `FUSELANE=1` and the program nothing yet."""
    if config.switch() and not _switchboard.was_set:
        enable()


@contextlib.contextmanager
def enabled(**options: Any) -> Iterator[None]:
    """Switches Fuselane on inside a `with` block, with options as for `enable`.

    What another thread compiles meanwhile goes by this setting too; see the module's head.

    Raises:
        OptionError: for an unknown option or a value that is not allowed.
    """
    chosen = config.options_from(options)
    if config.switch() is False:
        yield
        return
    with _switchboard.scope(_prepare(chosen)):
        yield


def is_enabled() -> bool:
    """Whether what is compiled next goes through Fuselane."""
    return _switchboard.active is not None


def decisions() -> report.Report:
    """Returns what became of the loops compiled in this process so far, the last 2,000 of them.

    What `explain` was asked about is not among them.
    """
    return report.Report.of(_log)


@overload
def jit(
    function: Callable[..., Any], /, *, fusion: str | None = None, **jit_arguments: Any
) -> jax.stages.Wrapped: ...


@overload
def jit(
    *, fusion: str | None = None, **jit_arguments: Any
) -> Callable[[Callable[..., Any]], jax.stages.Wrapped]: ...


def jit(
    function: Callable[..., Any] | None = None,
    /,
    *,
    fusion: str | None = None,
    **jit_arguments: Any,
) -> Any:
    """Returns `jax.jit(function, **jit_arguments)` that is compiled with Fuselane on.

    Also a decorator, with or without arguments. Options are those of `enable`, if it was called, or
    else the defaults. Where the function is traced into a program around it, that program's
    compilation decides: call `enable` for those.

    Args:
        function: What `jax.jit` takes.
        fusion: The option of that name, for this function alone; None takes that of `enable`.
        jit_arguments: Further arguments of `jax.jit`.
    Raises:
        OptionError: for a value of `fusion` that is not allowed.
    """
    if function is None:
        return functools.partial(jit, fusion=fusion, **jit_arguments)
    if fusion:
        strategies.find_strategy(fusion)
    scoped = _Scoped(jax.jit(function, **jit_arguments), config.from_environment(), fusion)
    return functools.update_wrapper(scoped, function)


def explain(
    function: Callable[..., Any], /, *arguments: Any, target: str = "cpu", **keywords: Any
) -> report.Report:
    """Compiles a function afresh with XLA and returns what became of it. Does not run it.

    The report shows every kernel, loop and boundary with its reason, pass by pass, and what
    Fuselane makes of the loops, whether it is on or not; for a GPU, with its option `gpu`. With a
    fusion strategy in force, kernels are those of that, and so are the reasons.

    Args:
        function: A function that `jax.jit` takes, or what `jax.jit` returned.
        arguments: What it would be called with; `jax.ShapeDtypeStruct`s do.
        target: `cpu`, a GPU model such as `h100`, or the path of a GpuTargetConfigProto as text. A
            keyword of the function's own that has this name can be bound by `functools.partial`.
        keywords: Further arguments by name.
    Raises:
        InputError: for an unknown target.
        CaptureError: if the GPU compiler is not there, fails or takes too long.
    """
    inner = function.inner if isinstance(function, _Scoped) else function
    jitted: Any = inner if hasattr(inner, "lower") else jax.jit(inner)
    with contextlib.nullcontext() if target == targets.CPU else toolchain.no_complaints():
        lowered = capture.lower(jitted, target, *arguments, **keywords)
        captured = capture.capture(lowered, target)
    setting = _switchboard.active
    if isinstance(function, _Scoped) and function.fusion is not None:
        options = config.from_environment() if setting is None else setting.options
        return explaining.report_on(captured, replace(options, fusion=function.fusion))
    if setting is None:
        return explaining.report_on(captured)
    return explaining.report_on(captured, setting.options, setting.choice)


@final
class _Scoped:
    """Something of JAX's whose calls and stages of compilation run with Fuselane on."""

    def __init__(self, inner: Any, options: Options, fusion: str | None = None) -> None:
        self.inner = inner
        self._options = options
        self.fusion = fusion
        self._made: tuple[Options, _Setting] | None = None
        """The setting that calls are in, and the options that it is made of."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self._scope():
            return self.inner(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        return functools.partial(self._run_stage, value) if name in _STAGES else value

    def _run_stage(self, stage: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        with self._scope():
            result = stage(*arguments, **keywords)
        is_stage = any(hasattr(result, name) for name in ("lower", "compile"))
        return _Scoped(result, self._options, self.fusion) if is_stage else result

    def _scope(self) -> contextlib.AbstractContextManager[None]:
        active = _switchboard.active
        if config.switch() is False or (active is not None and self.fusion is None):
            return contextlib.nullcontext()
        given = self._options if active is None else active.options
        made = self._made
        if made is None or made[0] is not given:
            options = given
            if self.fusion is not None:
                options = replace(given, fusion=self.fusion, tuned=False)
            made = self._made = given, _prepare(options)
        return _switchboard.scope(made[1])


_STAGES: Final = frozenset({"trace", "lower", "compile", "eval_shape"})


def _prepare(options: Options) -> _Setting:
    """Connects Fuselane to XLA and returns the setting with these options."""
    choice = Choice.by(options)
    with _preparing:
        return _prepare_once(options, choice)


_preparing: Final = threading.Lock()


@functools.lru_cache(maxsize=64)
def _prepare_once(options: Options, choice: Choice) -> _Setting:
    open_cache(config.cache_dir(), options.cache_mib * 2**20)
    _install()
    if options.gpu:
        launch.register()
    if options.gpu or choice.strategy is not None:
        _install_on_gpus()
    key = f"fuselane {options.fingerprint()} {choice.key}".rstrip()
    return _Setting(options=options, key=key, log=_log, choice=choice)


@functools.cache
def _install() -> None:
    """Connects Fuselane to XLA and JAX, once per process."""
    ffi.register()
    verify.register()
    repeat.register()
    hook.install(_transform)
    before: Callable[[], str] = cache_key.custom_hook
    cache_key.custom_hook = functools.partial(_persistent_key, before)


@functools.cache
def _install_on_gpus() -> None:
    """Connects Fuselane to XLA's GPU compilers, once per process."""
    hook.install_on_gpus(_transform_for_gpu, _fuse_for_gpu)


def _transform_for_gpu(gpu: GpuDescription, data: bytes) -> bytes | None:
    setting = _switchboard.active
    if setting is None or not setting.options.gpu or setting.options.verify:
        return None
    target = _launch_target(setting.options)
    backend = gpu_backend.GpuBackend(setting.options, gpu, target)
    return pipeline.transform(data, setting.options, setting.log, backend)


def _launch_target(options: Options) -> str:
    """Returns the custom call that kernels for GPUs go into."""
    is_own = options.gpu_launch == "xla"
    if options.gpu_launch == "auto":
        is_own = toolchain.knows_call(ptx_call.PTX_TARGET)
    return ptx_call.PTX_TARGET if is_own else ptx_call.LAUNCH_TARGET


def _fuse_for_gpu(gpu: GpuDescription, data: bytes) -> bytes | None:
    setting = _switchboard.active
    strategy = None if setting is None else setting.choice.strategy
    if setting is None or strategy is None:
        return None
    if strategies.is_for_cpus(strategy):
        warn_once(_ONLY_ON_CPUS.format(setting.options.fusion))
        return None
    return gpu_fusion.fuse(data, setting.options, gpu, strategy)


_ONLY_ON_CPUS: Final = (
    "The fusion strategy {!r} goes on from XLA:CPU's fusions; programs for GPUs keep XLA's own."
)


def _transform(data: bytes) -> bytes | None:
    setting = _switchboard.active
    if setting is None:
        return None
    strategy = setting.choice.strategy_of(data)
    if strategy is None and not peek.has_loops(data):
        return None  # most modules, and some processes never need the compiler
    return pipeline.transform(data, setting.options, setting.log, strategy=strategy)


def _persistent_key(before: Callable[[], str]) -> str:
    """Returns what tells our executables from others in JAX's persistent cache."""
    setting = _switchboard.active
    return before() if setting is None else f"{before()} {setting.key}"
