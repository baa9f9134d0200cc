"""Programs that can be compiled in one way after another and run on the same arguments.

A function's program is what `jax.jit` makes of it. A script's are what it compiles while it runs:
each is recorded with the arguments of its first call, and how long its calls took.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import pxla

from fuselane.contract import VARIATION_ULP
from fuselane.errors import InputError
from fuselane.xla.capture import not_persistent

Arrays = Sequence[Any]
NumpyArray = np.ndarray[Any, np.dtype[Any]]
Executable = Callable[[Arrays], Arrays]
"""Runs a compiled program on flat arguments, without waiting, and returns its flat results."""

_MAX_ARGUMENT_BYTES: Final = 2**31
"""Of all arguments that are recorded for a script."""

_compilation: Final[Any] = jax.make_user_context(None)  # type: ignore[no-untyped-call]
"""Part of the key under which JAX looks up what it has compiled."""

_numbers: Final = itertools.count()

_SIDE_EFFECTS: Final = ("ordered_effects", "unordered_effects", "host_callbacks")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A program and arguments for it, which runs leave as they are.

    Attributes:
        name: As JAX has it, such as `jit(step)`.
        compiled_by: Compiles it afresh with compiler options.
        arguments: Flat.
        is_donated: Which of them a run would use up, so that each run gets copies.
    """

    name: str
    compiled_by: Callable[[Mapping[str, str]], Executable]
    arguments: tuple[Any, ...]
    is_donated: tuple[bool, ...]

    def compile(self, compiler_options: Mapping[str, str] | None = None) -> CompiledProgram:
        """Compiles the program with XLA as Fuselane is set now; no cache of JAX's is asked.

        Raises:
            RuntimeError: if XLA refuses.
        """
        with not_persistent(), _compilation(next(_numbers)):
            executable = self.compiled_by(compiler_options or {})
        return CompiledProgram(self, executable)


@final
class CompiledProgram:
    """A program compiled in one way."""

    def __init__(self, program: Program, executable: Executable) -> None:
        self._program = program
        self._executable = executable

    def run(self) -> None:
        """Runs the program once, to its end."""
        _wait(self._executable(self._arguments()))

    def results(self, vary: int = 0) -> list[NumpyArray]:
        """Runs the program once and returns its results.

        Args:
            vary: 1 or -1 moves floating-point arguments by some units in their last place, up or
                down in magnitude, as `contract` has it.
        """
        arguments = self._arguments()
        if vary:
            arguments = tuple(_vary(argument, vary) for argument in arguments)
        return [_to_numpy(result) for result in self._executable(arguments)]

    def _arguments(self) -> tuple[Any, ...]:
        program = self._program
        if not any(program.is_donated):
            return program.arguments
        return tuple(
            _keep(argument) if donated else argument
            for argument, donated in zip(program.arguments, program.is_donated, strict=True)
        )


def program_of(jitted: Any, arguments: Sequence[Any]) -> Program:
    """Returns the program of a function.

    Args:
        jitted: What `jax.jit` returned.
        arguments: What it is called with; none of them static.
    Raises:
        InputError: if the program has side effects, which repeated runs would repeat.
    """
    lowered = jitted.lower(*arguments)
    flat, tree = jax.tree.flatten(tuple(arguments))
    donated = tuple(bool(info.donated) for info in jax.tree.leaves(lowered.args_info))
    if len(donated) != len(flat):
        raise InputError("Static arguments have to be bound, as by functools.partial.")
    computation: Any = lowered._lowering
    if has_side_effects(computation):
        raise InputError(f"{computation._name} has side effects, which runs would repeat.")

    def compiled_by(compiler_options: Mapping[str, str]) -> Executable:
        compiled = lowered.compile(compiler_options=dict(compiler_options))

        def execute(values: Arrays) -> Arrays:
            return jax.tree.leaves(compiled(*jax.tree.unflatten(tree, values)))

        return execute

    return Program(
        name=computation._name,
        compiled_by=compiled_by,
        arguments=tuple(flat),
        is_donated=donated,
    )


def has_side_effects(computation: Any) -> bool:
    """Whether a lowered computation does more than return results."""
    return any(computation.compile_args.get(name) for name in _SIDE_EFFECTS)


@final
@dataclass(slots=True, kw_only=True)
class RecordedProgram:
    """A program that a script compiled.

    Attributes:
        program: The program, with the arguments of its first call.
        total_s: Seconds that its calls took until their results were there.
        num_calls: How often it was called.
    """

    program: Program
    total_s: float = 0.0
    num_calls: int = 0


@final
@dataclass(slots=True)
class Recording:
    """What a script compiled and called.

    Attributes:
        programs: In the order of their first calls.
        passed_over: Names of programs that cannot be run again: with side effects, on several
            devices, or whose arguments are too large to be kept.
    """

    programs: list[RecordedProgram] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    room_bytes: int = _MAX_ARGUMENT_BYTES
    is_paused: bool = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Records nothing inside a `with` block."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Records what JAX compiles and calls inside a `with` block, which makes calls slower."""
    found = Recording()
    inner = pxla.MeshComputation.compile

    def compile_and_record(self: Any, *arguments: Any, **keywords: Any) -> Any:
        executable: Any = inner(self, *arguments, **keywords)
        if not found.is_paused and isinstance(executable.unsafe_call, pxla.ExecuteReplicated):
            # What is not an ExecuteReplicated is called through Python every time.
            recorder = _Recorder(found, self, executable.unsafe_call)
            executable._unsafe_call = recorder
        return executable

    pxla.MeshComputation.compile = compile_and_record  # type: ignore[method-assign]
    try:
        yield found
    finally:
        pxla.MeshComputation.compile = inner  # type: ignore[method-assign]


@final
class _Recorder:
    """The calls of one executable."""

    def __init__(self, found: Recording, computation: Any, inner: Any) -> None:
        self._found = found
        self._computation = computation
        self._inner = inner
        self._recorded: RecordedProgram | None = None
        self._was_called = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *arguments: Any) -> Any:
        if not self._was_called:
            self._was_called = True
            self._record(arguments)
        start = time.perf_counter()
        results = self._inner(*arguments)
        if self._recorded is not None:
            _wait(results)
            self._recorded.total_s += time.perf_counter() - start
            self._recorded.num_calls += 1
        return results

    def _record(self, arguments: Arrays) -> None:
        found, computation = self._found, self._computation
        num_bytes = sum(getattr(argument, "nbytes", 0) for argument in arguments)
        is_single = len(self._inner.xla_executable.local_devices()) == 1
        if has_side_effects(computation) or not is_single or num_bytes > found.room_bytes:
            found.passed_over.append(computation._name)
            return
        found.room_bytes -= num_bytes
        with found.paused():
            kept = tuple(map(_keep, arguments))
        program = Program(
            name=computation._name,
            compiled_by=lambda options: _executable(computation, options),
            arguments=kept,
            # Which ones is told for those that the program needs only, not for all it is given.
            is_donated=(any(computation._donated_invars),) * len(kept),
        )
        self._recorded = RecordedProgram(program=program)
        found.programs.append(self._recorded)


def _executable(computation: Any, compiler_options: Mapping[str, str]) -> Executable:
    compiled = computation.compile(dict(compiler_options))
    return lambda arguments: list(compiled.unsafe_call(*arguments))


def _keep(argument: Any) -> Any:
    """Returns a copy of an argument that the script cannot change or use up."""
    if isinstance(argument, np.ndarray):
        return argument.copy()
    return jnp.copy(argument) if isinstance(argument, jax.Array) else argument


def _wait(results: Arrays) -> None:
    jax.block_until_ready(results)  # type: ignore[no-untyped-call]


def _vary(argument: Any, sign: int) -> Any:
    """Returns an argument with floats moved in their last places, and others as they are."""
    dtype = getattr(argument, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        return argument
    limits: Any = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    units = VARIATION_ULP if limits.bits >= 32 else 1
    factor = 1 + sign * units * float(limits.eps)
    return jnp.asarray(argument * np.asarray(factor, dtype))


def _to_numpy(result: Any) -> NumpyArray:
    if isinstance(result, jax.Array) and jnp.issubdtype(result.dtype, jax.dtypes.prng_key):
        result = jax.random.key_data(result)
    return np.asarray(result)
