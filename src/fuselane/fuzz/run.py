"""Compiles and runs random programs under plain XLA and under Fuselane."""

from __future__ import annotations

import functools
import itertools
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final
from unittest import mock

import jax
import numpy as np

import fuselane
from fuselane import pipeline
from fuselane.fuzz.build import Built, Judgement
from fuselane.fuzz.compare import find_difference
from fuselane.fuzz.inputs import NumpyArray, draw_inputs, sharded_axes
from fuselane.fuzz.kinds import Value
from fuselane.fuzz.program import Program, is_usual
from fuselane.hlo.computation import reachable_computations
from fuselane.hlo.module import HloModule

XLA_OPTIONS: Final[dict[str, Any]] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""For XLA's own code, LLVM is told not to optimise, and compiles it as a whole, which saves time.
HLO is optimised as ever."""

_OLDER_EMITTERS: Final = {"xla_cpu_use_fusion_emitters": False}

UNASSUMING: Final = {"xla_disable_hlo_passes": "fusion,while-loop-trip-count-annotator"}
"""With these, XLA's instructions are kernels of their own, and its loops ask before each step.

Otherwise one whose unsigned counter goes down, which XLA writes as `i + 255`, ends after its first
step unless it is compiled to one function: XLA notes a trip count of 1 (jaxlib 0.10.2)."""

OPTIONS: Final = {"min_gain": 0.0, "cache_mib": 0, "max_compile_s": 3600.0}


_numbers: Final = itertools.count()


@functools.cache
def quick_options() -> dict[str, Any]:
    """Returns options with which XLA takes half the time, if this jaxlib (up to 0.10) has them.

    They choose its older emitters for fusions, which need no MLIR. What Fuselane is compared with
    is made by these first, and what it leaves to XLA for most modules.
    """
    options = {**XLA_OPTIONS, **_OLDER_EMITTERS}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return XLA_OPTIONS
    return options


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong with a program.

    Attributes:
        form: A word for the sort of failure: `differs`, `complains`, `crash`, `hang`, or an
            exception's name; `differs-fused` if what XLA does with the code around the kernels
            makes the difference; `xla-differs` if XLA disagrees with itself and Fuselane with only
            one of its answers; `xla-refuses` if plain XLA does not compile it; `xla-crash` and
            `xla-hang` if plain XLA gets no further.
        detail: One line.
    """

    form: str
    detail: str

    @property
    def is_xlas(self) -> bool:
        """Whether it is a failure of XLA alone."""
        return self.form.startswith("xla-")


@final
@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a few programs in one module.

    Attributes:
        num_programs: How many there were.
        failures: By number in the module, what is wrong with a program.
        reasons: Codes of the decisions about their loops.
        opcodes: How often "opcode dtype" stands in a loop that was fused.
        seconds: Time spent, by stage.
    """

    num_programs: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    opcodes: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        """Adds what became of other programs, but for their failures."""
        self.num_programs += other.num_programs
        self.reasons += other.reasons
        self.opcodes += other.opcodes
        self.seconds.update(other.seconds)


@final
@dataclass(frozen=True, slots=True)
class Module:
    """A few programs as one module of StableHLO, with their inputs.

    Its name is nothing else's in this process.
    """

    name: str
    lowered: Any
    inputs: list[Any]
    judgements: list[tuple[Judgement, ...]]
    shardings: Any

    @staticmethod
    def of(programs: Sequence[Program]) -> Module:
        """Returns the module of programs that share their word size, `donated` and `devices`."""
        built = [Built(program) for program in programs]
        inputs = [draw_inputs(program) for program in programs]

        def fuzz(arguments: list[Any]) -> list[list[jax.Array]]:
            results: list[list[jax.Array]] = []
            left: list[Value] = []
            for program, (carries, streams) in zip(built, arguments, strict=True):
                results.append(program(carries, streams, left))
                left = program.values(results[-1])
            return results

        # JAX hands out what it has compiled under this name, and Fuselane is not asked.
        fuzz.__name__ = f"fuzz_{next(_numbers)}"
        donated = (0,) if programs[0].donated else ()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            shardings = list(map(_shardings, programs))
            function = jax.jit(
                fuzz, keep_unused=True, donate_argnums=donated, in_shardings=(shardings,)
            )
            lowered = function.lower(inputs)
        judgements = [program.judgements for program in built]
        return Module(f"jit_{fuzz.__name__}", lowered, inputs, judgements, shardings)


def _shardings(program: Program) -> tuple[list[Any], list[Any]]:
    """Returns how the carries and streams of a program are spread over devices."""
    devices = jax.devices("cpu")[: program.devices]
    mesh = jax.make_mesh((len(devices),), ("devices",), devices=devices)

    def spread(axis: int | None) -> jax.sharding.NamedSharding:
        names = () if axis is None else (*[None] * axis, "devices")
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))

    carries, streams = sharded_axes(program)
    return list(map(spread, carries)), list(map(spread, streams))


def run_programs(
    programs: Sequence[Program],
    after_xla: Callable[[], None] = lambda: None,
    *,
    is_examined: bool = False,
) -> Outcome:
    """Runs programs that share options and word size, both ways, and compares.

    Args:
        programs: What to run.
        after_xla: Called when plain XLA is done with them, before Fuselane begins.
        is_examined: Whether plain XLA has to get through them as users have it, too, as it has to
            with what Fuselane leaves to it.
    Returns:
        The outcome; an exception is the failure of all programs.
    """
    outcome = Outcome(num_programs=len(programs))
    first = programs[0]
    try:
        with jax.enable_x64(first.x64):
            _run(programs, outcome, after_xla, is_examined=is_examined)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].name}:{frames[-1].lineno}" if frames else ""
        text = str(error).strip().partition("\n")[0][:400]
        form = "xla-refuses" if _xla_refuses(programs) else type(error).__name__
        failure = Failure(form, f"{text} ({place})")
        outcome.failures = dict.fromkeys(range(len(programs)), failure)
    return outcome


def _xla_refuses(programs: Sequence[Program]) -> bool:
    """Whether XLA alone does not compile programs, as users run it."""
    try:
        with jax.enable_x64(programs[0].x64):
            Module.of(programs).lowered.compile(compiler_options=XLA_OPTIONS)
    except jax.errors.JaxRuntimeError:
        return True
    except Exception:  # of JAX's, or of the fuzzer's own
        return False
    return False


def _run(
    programs: Sequence[Program],
    outcome: Outcome,
    after_xla: Callable[[], None],
    *,
    is_examined: bool,
) -> None:
    clock = _Clock(outcome.seconds)
    module = Module.of(programs)
    clock.lap("trace")
    plain = module.lowered.compile(compiler_options=quick_options())
    clock.lap("xla")
    expected = _call(plain, module)
    if is_examined:
        _call(module.lowered.compile(compiler_options=XLA_OPTIONS), module)
    clock.lap("run")
    after_xla()
    options = {**programs[0].options, **OPTIONS}
    with (
        warnings.catch_warnings(record=True) as caught,
        _watched() as seen,
        fuselane.enabled(**options),
    ):
        warnings.simplefilter("always")
        xla_options = XLA_OPTIONS if is_usual(programs[0].seed) else quick_options()
        fused = module.lowered.compile(compiler_options=xla_options)
    clock.lap("fuselane")
    actual = _call(fused, module)
    clock.lap("run")
    loops = [loop for loop in fuselane.decisions().loops if loop.module == module.name]
    outcome.reasons.update(loop.decision.reason.code for loop in loops)
    told = [str(warning.message) for warning in caught if "uselane" in str(warning.message)]
    broken = [
        loop.decision.sentence for loop in loops if loop.decision.reason.code == "internal-error"
    ]
    pairs = zip(expected, actual, module.judgements, strict=True)
    if any(find_difference(*pair) for pair in pairs):
        outcome.failures.update(_judge(module, actual, options))
    for complaint in [*told, *broken]:
        for i in range(len(programs)):
            outcome.failures.setdefault(i, Failure("complains", complaint))
    names = {loop.name for loop in loops if loop.decision.fused}
    for data in seen:
        outcome.opcodes.update(count_opcodes(HloModule.from_bytes(data), names))
    clock.lap("compare")


def _judge(
    module: Module, actual: list[list[NumpyArray]], options: Mapping[str, Any]
) -> Iterator[tuple[int, Failure]]:
    """Yields by number the programs with results that are not those of XLA as users run it.

    A result that is none of XLA's is asked for again without what XLA does to the code around our
    kernels, which may be at fault: or how kernels are made of such code.
    """
    unassuming_options = {**XLA_OPTIONS, **UNASSUMING}
    plain, unassuming = (
        _call(module.lowered.compile(compiler_options=xla_options), module)
        for xla_options in (XLA_OPTIONS, unassuming_options)
    )
    again: list[list[NumpyArray]] = []
    for i, (got, judgements) in enumerate(zip(actual, module.judgements, strict=True)):
        difference = find_difference(plain[i], got, judgements)
        ours = find_difference(_nearer(plain[i], unassuming[i], got, judgements), got, judgements)
        if difference and not ours:
            yield i, Failure("xla-differs", difference)
        elif difference:
            if not again:
                with fuselane.enabled(**options):
                    fused = module.lowered.compile(compiler_options=unassuming_options)
                again = _call(fused, module)
            still = find_difference(unassuming[i], again[i], judgements)
            seen = f"; with XLA's fusion off: {still}" if still else ", not with XLA's fusion off"
            yield i, Failure("differs" if still else "differs-fused", ours + seen)


def _nearer(
    plain: list[NumpyArray],
    unassuming: list[NumpyArray],
    got: list[NumpyArray],
    judgements: Sequence[Judgement],
) -> list[NumpyArray]:
    """Returns of two answers of XLA's the second for each result that it agrees with."""
    answers = zip(plain, unassuming, got, judgements, strict=True)
    return [b if not find_difference([b], [c], [how]) else a for a, b, c, how in answers]


def _call(compiled: Any, module: Module) -> list[list[NumpyArray]]:
    """Returns the results.

    Raises:
        AssertionError: if an argument that is still there is no longer what it was.
    """
    inputs = module.inputs
    arguments = jax.device_put(jax.tree.map(np.copy, inputs), module.shardings)
    results = [[np.asarray(array) for array in part] for part in compiled(arguments)]
    for before, after in zip(jax.tree.leaves(inputs), jax.tree.leaves(arguments), strict=True):
        if not after.is_deleted() and np.asarray(after).tobytes() != before.tobytes():
            raise AssertionError(f"an argument, {before.dtype}{list(before.shape)}, was changed")
    return results


@contextmanager
def _watched() -> Iterator[list[bytes]]:
    """Collects the modules that Fuselane gets to see."""
    seen: list[bytes] = []
    transform = pipeline.transform

    def watch(data: bytes, *others: Any, **named: Any) -> bytes | None:
        seen.append(data)
        return transform(data, *others, **named)

    with mock.patch.object(pipeline, "transform", watch):
        yield seen


def count_opcodes(module: HloModule, loops: set[str]) -> Counter[str]:
    """Counts the instructions in loops of a module by opcode and element type."""
    counts: Counter[str] = Counter()
    roots = [
        called
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode == "while" and instruction.name in loops
        for called in instruction.called_computations
    ]
    for computation in reachable_computations(roots):
        for instruction in computation.instructions:
            shape = instruction.shape
            counts[f"{instruction.opcode} {shape.element_type.name.lower()}"] += 1
    return counts


@final
class _Clock:
    """Adds up the time between laps."""

    def __init__(self, seconds: Counter[str]) -> None:
        self._seconds = seconds
        self._last = time.process_time()

    def lap(self, stage: str) -> None:
        now = time.process_time()
        self._seconds[stage] += now - self._last  # type: ignore[assignment]
        self._last = now
