"""What a kernel is by kind, and which of XLA's code generators makes it.

Source: XLA's HloFusionAnalysis for the emitters of GPU fusions, in its order of tests.
"""

from __future__ import annotations

import json
from typing import Final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.hlo.instruction import HloInstruction

FUSELANE_TARGET: Final = "fuselane_kernel"
COPY_OPCODES: Final = frozenset({"copy", "copy-start"})
LIBRARY_OPCODES: Final = frozenset({"convolution", "dot", "fft", "cholesky", "triangular-solve"})
COLLECTIVE_OPCODES: Final = frozenset(
    {
        "all-gather",
        "all-gather-start",
        "all-reduce",
        "all-reduce-start",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "collective-permute-start",
        "collective-reduce",
        "ragged-all-to-all",
        "recv",
        "reduce-scatter",
        "send",
    }
)
_LIBRARY_TARGETS: Final = (
    "__cublas",
    "__cudnn",
    "__cusolver",
    "__onednn",
    "blas_",
    "cu",
    "cusolver",
    "hipsolver",
    "lapack_",
    "ducc",
)
_CONFIG_EMITTERS: Final = {
    "__custom_fusion": "custom",
    "__dynamic_slice_fusion": "dynamic-slice",
    "__triton": "triton",
    "__triton_gemm": "triton",
    "__triton_nested_gemm_fusion": "triton",
    "__cudnn$fusion": "cudnn",
    "__onednn_fusion": "oneDNN",
    "__xnn_fusion": "XNNPACK",
    "__ynn_fusion": "YNNPACK",
}
_HEROES: Final = ("reduce", "transpose", "scatter", "sort", "concatenate")
_HERO_EMITTERS: Final = {"reduce": "reduction"}


def get_kind(instruction: HloInstruction) -> str:
    """Returns the kind of a kernel; see `KernelModel.kind`."""
    if instruction.opcode == "fusion":
        return instruction.fusion_kind
    if instruction.opcode in COPY_OPCODES:
        return "copy"
    if instruction.opcode == "custom-call":
        target = instruction.custom_call_target
        if target == FUSELANE_TARGET:
            return "fuselane"
        return "library" if target.startswith(_LIBRARY_TARGETS) else "custom-call"
    if instruction.opcode in LIBRARY_OPCODES:
        return "library"
    return "single"


def get_emitter(instruction: HloInstruction) -> str:
    """Returns which code generator makes a kernel; see `KernelModel.emitter`."""
    opcode = instruction.opcode
    if opcode == "fusion":
        return _fusion_emitter(instruction)
    if opcode in COPY_OPCODES:
        return "memcpy"
    if opcode == "custom-call":
        return instruction.custom_call_target
    if opcode in COLLECTIVE_OPCODES:
        return "collective"
    return opcode


def get_wrapped(instruction: HloInstruction) -> HloInstruction:
    """Returns the only instruction of a fusion that XLA made of one it left alone; else the
    instruction given."""
    if instruction.opcode != "fusion":
        return instruction
    inside = instruction.called_computations[0].instructions
    work = (i for i in inside if i.opcode not in ("parameter", "constant"))
    first, second = next(work, None), next(work, None)
    return instruction if first is None or second is not None else first


def get_sort(kernel: HloInstruction) -> HloInstruction | None:
    """Returns the sort a kernel is, or that a fusion ends in, as XLA:GPU makes them; else None."""
    root = kernel.called_computations[0].root if kernel.opcode == "fusion" else kernel
    return root if root.opcode == "sort" else None


def is_library(instruction: HloInstruction) -> bool:
    """Whether a library's code runs, be it for one instruction or for a fusion."""
    if instruction.opcode == "fusion" and instruction.fusion_kind == "kCustom":
        return get_emitter(instruction) not in ("triton", "dynamic-slice", "sort")
    return get_kind(instruction) == "library"


def _fusion_emitter(fusion: HloInstruction) -> str:
    config = get_fusion_config(fusion)
    if config:
        return _CONFIG_EMITTERS.get(config, config.strip("_"))
    if fusion.fusion_kind == "kOutput":
        return "dot"
    if get_sort(fusion) is not None:
        return "sort"
    if fusion.fusion_kind != "kInput":
        return "loop"
    hero = _find_hero(fusion)
    return _HERO_EMITTERS.get(hero, hero) or "loop"


def get_fusion_config(fusion: HloInstruction) -> str:
    """Returns the kind that XLA noted in a fusion's backend config, such as `__triton`, or ""."""
    try:
        config = json.loads(fusion.backend_config or b"{}")
    except ValueError:
        return ""
    inner = config.get("fusion_backend_config", config.get("fusion_config", {}))
    if not isinstance(inner, dict):
        return ""
    return str(inner.get("kind", ""))


def _find_hero(fusion: HloInstruction) -> str:
    """Returns the opcode nearest to a root, through elementwise instructions, that decides."""
    root = fusion.called_computations[0].root
    stack = list(root.operands) if root.opcode == "tuple" else [root]
    seen = set(stack)
    found: set[str] = set()
    while stack:
        instruction = stack.pop()
        if instruction.opcode in _HEROES:
            found.add(instruction.opcode)
            continue
        if instruction.opcode in ELEMENTWISE_OPCODES or instruction.opcode == "bitcast":
            fresh = [o for o in instruction.operands if o not in seen]
            seen.update(fresh)
            stack.extend(fresh)
    return next((hero for hero in _HEROES if hero in found), "")
