"""The LLVM side of code generation: IR text in, object code out; `codegen.loading` loads it.

`read_ir` takes the first step, which may fail, and `compile_bitcode` the others, which take long.

Kernels arrive as vector code with loops, so the pipeline simplifies and schedules but never
vectorises or unrolls. LLVM itself aborts the process on some mistakes; all IR is therefore verified
first. llvmlite serialises every call into LLVM with one lock of its own, so these functions may be
called from any thread.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar, final

from llvmlite import binding, ir
from llvmlite.binding.newpassmanagers import NewPassManager

from fuselane import budget
from fuselane.decisions import Reason
from fuselane.errors import CodegenError, OutOfTimeError, UnsupportedError

_Result = TypeVar("_Result")
_emission = threading.Lock()
PTX_ARCHITECTURES: Final = MappingProxyType(
    {
        (7, 0): (9, 0),
        (7, 5): (10, 0),
        (8, 0): (11, 0),
        (8, 6): (11, 1),
        (8, 9): (11, 8),
        (9, 0): (11, 8),
        (10, 0): (12, 7),
        (12, 0): (12, 8),
    }
)
"""Compute capabilities that PTX is made for, oldest first, each with the first version of CUDA
whose drivers read that PTX. Source: the PTX ISA's release history."""
_NVPTX: Final = "nvptx64-nvidia-cuda"
_TUNED_LLVM: Final = 22
"""The major version whose options we know; LLVM ends the process at one that it doesn't."""
_S_PER_INSTRUCTION = 1e-4
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HostTarget:
    """What machine code is made for.

    Attributes:
        triple: LLVM's target triple, such as "x86_64-unknown-linux-gnu".
        cpu: LLVM's name of the CPU, which also picks the scheduling model.
        features: "+avx2,-sse4a,...": extensions added to, or taken from, those of the CPU.
    """

    triple: str
    cpu: str
    features: str

    @staticmethod
    def host() -> HostTarget:
        """Returns the target for the machine this process runs on."""
        return _host_target()


@lru_cache(maxsize=1)
def _host_target() -> HostTarget:
    features = binding.get_host_cpu_features()
    return HostTarget(
        triple=binding.get_process_triple(),
        cpu=binding.get_host_cpu_name(),
        features=features.flatten(),
    )


@final
class Vectors(enum.IntEnum):
    """Where LLVM looks for vectors in scalar code; see `codegen.heavy_loops`."""

    NOWHERE = 0
    EVERYWHERE = 1
    IN_LOOPS = 2
    """Beside vectors of lanes, which it would put together with each other, and spill more of."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bitcode:
    """A module that LLVM has read and verified, and how it is to make machine code of it.

    Attributes:
        data: The module, for a target it names, in LLVM's own form, which later versions read.
        opt_level: See `compile_object`.
        vectorise: See `compile_object`.
        in_order: See `compile_object`.
    """

    data: bytes
    opt_level: int = 2
    vectorise: Vectors = Vectors.NOWHERE
    in_order: bool = False


def read_ir(module_ir: ir.Module | str, target: HostTarget | None = None) -> bytes:
    """Returns a module as bitcode.

    Args:
        module_ir: As for `compile_object`.
        target: As for `compile_object`.
    Raises:
        CodegenError: as `compile_object`.
    """

    def write(_: binding.TargetMachine, module: binding.ModuleRef) -> bytes:
        return bytes(module.as_bitcode())

    return _with_machine(module_ir, target, 0, write)


def compile_bitcode(bitcode: Bitcode, target: HostTarget) -> bytes:
    """Returns object code of a module, as `compile_object` does.

    Raises:
        CodegenError: if this LLVM cannot read it, or the target does not exist.
    """
    return compile_object(
        bitcode.data,
        target,
        bitcode.opt_level,
        vectorise=bitcode.vectorise,
        in_order=bitcode.in_order,
    )


def check_time(num_instructions: int) -> None:
    """Does nothing while there is time to compile so many instructions of IR.

    Raises:
        OutOfTimeError: if LLVM would probably need longer than there is time.
    """
    needed_s = _S_PER_INSTRUCTION * num_instructions
    if needed_s > budget.remaining_s():
        raise OutOfTimeError(f"LLVM would need another {needed_s:.1f} s.")


def compile_object(
    module_ir: ir.Module | str | bytes,
    target: HostTarget | None = None,
    opt_level: int = 2,
    *,
    vectorise: Vectors = Vectors.NOWHERE,
    in_order: bool = False,
) -> bytes:
    """Compiles a module to position-independent object code (ELF, or the system's own format).

    Args:
        module_ir: An llvmlite module or its text; triple and data layout are set here. Or bitcode.
        target: Defaults to the host.
        opt_level: 0 runs no IR pass and has the code generator do what it must, in an eighth of the
            time; 1 runs a few cheap passes, 2 LLVM's simplification of functions, 3 its whole
            pipeline. Kernels gain nothing from 3. 1 leaves loads that 2 removes or takes
            out of loops, up to a quarter of a kernel's time, but nothing where most work is dots
            or there are few; it is a seventh of the passes' time and saves a tenth to a half of
            LLVM's.
        vectorise: Where LLVM looks for vectors in scalar code.
        in_order: Whether instructions keep the order of the IR: for long chains of operations on
            vectors of several registers, with few values alive.
    Raises:
        CodegenError: if the IR does not parse or verify, or the target does not exist.
    """
    emit = _emit_in_order if in_order else _emit
    return _with_machine(module_ir, target, opt_level, emit, vectorise=vectorise)


def assembly(
    module_ir: ir.Module | str, target: HostTarget | None = None, opt_level: int = 2
) -> str:
    """Returns the assembly text of what `compile_object` would make; for tests and for people."""

    def emit(machine: binding.TargetMachine, module: binding.ModuleRef) -> str:
        machine.set_asm_verbosity(True)
        try:
            return str(machine.emit_assembly(module))
        finally:
            machine.set_asm_verbosity(False)

    return _with_machine(module_ir, target, opt_level, emit)


def compile_ptx(module_ir: ir.Module | str, target: HostTarget, opt_level: int = 3) -> str:
    """Compiles a module to PTX.

    Args:
        module_ir: As for `compile_object`; kernels have the calling convention `ptx_kernel`.
        target: What `nvptx_target` returned.
        opt_level: As for `compile_object`. Of 2 and 3, only 3 finds out which addresses are
            multiples of 16, so that up to four neighbours are loaded and stored at once; it takes
            a fifth longer.
    Raises:
        CodegenError: as `compile_object`.
        UnsupportedError: if this LLVM makes no PTX.
    """

    _check_nvptx()
    return _with_machine(module_ir, target, opt_level, _emit_ptx)


def nvptx_target(compute_capability: tuple[int, int]) -> HostTarget:
    """Returns the target for NVIDIA GPUs of a compute capability.

    PTX for an older architecture runs on every newer one, so that is what unknown ones get. LLVM
    writes the oldest version of PTX that knows the architecture; every driver that does reads it.

    Raises:
        UnsupportedError: for an architecture older than all that are supported.
    """
    major, minor = _architecture(compute_capability)
    return HostTarget(triple=_NVPTX, cpu=f"sm_{major}{minor}", features="")


def needed_cuda(compute_capability: tuple[int, int]) -> tuple[int, int]:
    """Returns the oldest CUDA whose drivers read the PTX for NVIDIA GPUs of a compute capability.

    Raises:
        UnsupportedError: as `nvptx_target`.
    """
    return PTX_ARCHITECTURES[_architecture(compute_capability)]


def _architecture(compute_capability: tuple[int, int]) -> tuple[int, int]:
    """Returns the newest architecture known that is not newer than a GPU's."""
    known = [found for found in PTX_ARCHITECTURES if found <= compute_capability]
    if not known:
        major, minor = compute_capability
        oldest = ".".join(map(str, min(PTX_ARCHITECTURES)))
        detail = f"kernels need compute capability {oldest} or later, not {major}.{minor}"
        raise UnsupportedError(Reason.UNSUPPORTED_TARGET.decide(detail=detail))
    return max(known)


def optimised_ir(
    module_ir: ir.Module | str,
    target: HostTarget | None = None,
    opt_level: int = 2,
    *,
    vectorise: Vectors = Vectors.NOWHERE,
) -> str:
    """Returns the text of a module after the IR passes that `compile_object` runs."""

    def finish(_: binding.TargetMachine, module: binding.ModuleRef) -> str:
        return str(module)

    return _with_machine(module_ir, target, opt_level, finish, vectorise=vectorise)


def _emit(
    machine: binding.TargetMachine, module: binding.ModuleRef, *options: tuple[str, str, str]
) -> bytes:
    """Emits a module without loop strength reduction.

    It looks for the pointers with which a loop's addresses take the fewest registers, all sets of
    them against each other. Ours are sums of few parts already: kernels are as fast without, and
    for those with hundreds of addresses it took a quarter to a half of the code generator's time.
    """
    with _set_options(("disable-lsr", "true", "false"), *options):
        return bytes(machine.emit_object(module))


def _emit_in_order(machine: binding.TargetMachine, module: binding.ModuleRef) -> bytes:
    """Emits a module whose registers side by side stay there.

    An operation on a vector of several registers becomes one instruction for each, which do not
    wait for one another. To save registers, LLVM's machine scheduler, which goes from the end to
    the beginning, would do one register's chain of operations after the other's, too far apart to
    overlap. The other way round it leaves them side by side. Which way it goes is an option of the
    process, so it is turned round only for as long as a kernel is emitted.
    """
    return _emit(machine, module, ("misched-prera-direction", "topdown", "bottomup"))


def _emit_ptx(machine: binding.TargetMachine, module: binding.ModuleRef) -> str:
    """Emits PTX, without a search of LLVM 22 that takes most of the time for random numbers.

    Before straight-line strength reduction makes a sum from an earlier one, LLVM 22 looks through
    hundreds of instructions on both for one whose result might be poison, each time anew: 0.85 of
    1 s for a step of 2,000 instructions. Earlier ones never did. No result of ours is poison: flags
    of wrapping are on offsets only, which are in their arrays.
    """
    with _set_options(("enable-poison-reuse-guard", "false", "true")):
        return str(machine.emit_assembly(module))


@contextlib.contextmanager
def _set_options(*options: tuple[str, str, str]) -> Iterator[None]:
    """Sets options of LLVM's, each a name, a value and the default, inside a `with` block.

    They are the process's, so that one thread at a time has its own. Where LLVM is of another
    version than the one they are known of, they are left as they are.
    """
    if binding.llvm_version_info[0] != _TUNED_LLVM:
        yield
        return
    with _emission:
        for name, value, _ in options:
            binding.set_option("fuselane", f"--{name}={value}")
        try:
            yield
        finally:
            for name, _, default in options:
                binding.set_option("fuselane", f"--{name}={default}")


def _with_machine(
    module_ir: ir.Module | str | bytes,
    target: HostTarget | None,
    opt_level: int,
    finish: Callable[[binding.TargetMachine, binding.ModuleRef], _Result],
    *,
    vectorise: Vectors = Vectors.NOWHERE,
) -> _Result:
    """Parses, verifies and optimises a module in its own LLVM context, then applies `finish`."""
    if not 0 <= opt_level <= 3:
        raise CodegenError(f"The optimisation level has to be 0, 1, 2 or 3, not {opt_level}.")
    try:
        machine = _machine(target or _host_target(), opt_level)
        text = module_ir if isinstance(module_ir, bytes) else str(module_ir)
        with _parse(text, machine) as module:
            if vectorise:
                _vectorise(module, machine, vectorise)
            else:
                _optimise(module, machine, opt_level)
            return finish(machine, module)
    except RuntimeError as error:
        raise CodegenError(f"LLVM rejected a kernel: {str(error).strip()}") from error


def _machine(target: HostTarget, opt_level: int) -> binding.TargetMachine:
    """Returns a target machine: one for all kernels, but where it counts the calls it has seen.

    The code generator's level 1 leaves out of 3, on x86, only that instructions are scheduled once
    more when they have their registers, as LLVM's models of AMD's processors ask for: 2 to 25% of
    LLVM's time, most where blocks are long, and none of kernels'. On AArch64 it leaves out more.
    """
    thorough = 1 if target.triple.startswith("x86_64") else 3
    effort = thorough if opt_level else 0
    make = _create_machine if target.triple == _NVPTX else _shared_machine
    return make(target, effort)


@lru_cache(maxsize=4)
def _shared_machine(target: HostTarget, effort: int) -> binding.TargetMachine:
    return _create_machine(target, effort)


def _create_machine(target: HostTarget, effort: int) -> binding.TargetMachine:
    if target.triple == _host_target().triple:
        initialise_host()
    else:
        _initialise_all()
    features = target.features
    if target.triple.startswith("x86_64"):
        # Without it LLVM aborts when it does not know the CPU's name.
        features = ",".join(filter(None, [features, "+64bit"]))
    for word in (target.triple, target.cpu, *filter(None, features.split(","))):
        if not _PLAIN_WORD.fullmatch(word):
            raise CodegenError(f"{word!r} is not a name in an LLVM target.")
    return binding.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=features, opt=effort, reloc="pic", codemodel="small"
    )


def _check_nvptx() -> None:
    """Raises UnsupportedError if LLVM was built without NVIDIA's GPUs."""
    _initialise_all()
    try:
        binding.Target.from_triple(_NVPTX)
    except RuntimeError:
        detail = "LLVM was built without NVIDIA's; `pip install llvmlite` gets one that has them"
        raise UnsupportedError(Reason.UNSUPPORTED_TARGET.decide(detail=detail)) from None


@lru_cache(maxsize=1)
def initialise_host() -> None:
    """Starts what code for this machine needs; once is enough."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


@lru_cache(maxsize=1)
def _initialise_all() -> None:
    """Starts what code for other machines needs; it takes time and 10 MiB that most never use."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    # f32 is divided on GPUs as XLA:GPU does, by `div.full`, whose error is below 2 ulp (PTX ISA).
    binding.set_option("fuselane", "--nvptx-prec-divf32=1")


def _parse(text: str | bytes, machine: binding.TargetMachine) -> binding.ModuleRef:
    parse = binding.parse_bitcode if isinstance(text, bytes) else binding.parse_assembly
    module = parse(text, binding.create_context())
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return module


def _vectorise(module: binding.ModuleRef, machine: binding.TargetMachine, vectors: Vectors) -> None:
    """Runs the whole pipeline with its vectorisers."""
    builder = _pass_builder(machine, 2, slp=vectors == Vectors.EVERYWHERE, loops=True)
    with _disposing(builder.getModulePassManager()) as passes:
        passes.run(module, builder)


def _optimise(module: binding.ModuleRef, machine: binding.TargetMachine, opt_level: int) -> None:
    """Runs the IR passes of a level; vectorisers and unrollers stay off: layout is ours."""
    if opt_level == 0:
        return
    builder = _pass_builder(machine, opt_level)
    if opt_level == 3:
        with _disposing(builder.getModulePassManager()) as passes:
            passes.run(module, builder)
        return
    with _disposing(binding.create_new_module_pass_manager()) as cheap:
        cheap.add_always_inliner_pass()
        if opt_level == 1:
            cheap.add_instruction_combine_pass()
            cheap.add_simplify_cfg_pass()
        cheap.run(module, builder)
    if opt_level == 1:
        return
    with _disposing(builder.getFunctionPassManager()) as passes:
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)


_COMPILATIONS_PER_BUILDER: Final = 32
"""A pass builder of llvmlite's leaves 1.5 KiB behind when it is freed, and grows by 0.1 KiB each
time it is used, which then takes longer: so one serves that many compilations."""
_compilation_numbers = itertools.count()


def _pass_builder(
    machine: binding.TargetMachine, opt_level: int, *, slp: bool = False, loops: bool = False
) -> binding.PassBuilder:
    number = next(_compilation_numbers) // _COMPILATIONS_PER_BUILDER
    return _make_pass_builder(machine, opt_level, slp, loops, number)


@lru_cache(maxsize=4)
def _make_pass_builder(
    machine: binding.TargetMachine, opt_level: int, slp: bool, loops: bool, _number: int
) -> binding.PassBuilder:
    tuning = binding.create_pipeline_tuning_options(opt_level)
    tuning.loop_vectorization = loops
    tuning.slp_vectorization = slp
    tuning.loop_interleaving = False
    tuning.loop_unrolling = False
    return binding.create_pass_builder(machine, tuning)


@contextlib.contextmanager
def _disposing(passes: Any) -> Iterator[Any]:
    """Frees a pass manager of llvmlite's behind a block: 50 KiB that it would never free itself.

    In llvmlite 0.50 the method that frees them is hidden by an empty one of the other base class.
    """
    try:
        yield passes
    finally:
        NewPassManager._dispose(passes)
        passes.detach()
