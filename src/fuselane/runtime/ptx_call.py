"""Kernels as custom calls that carry PTX: XLA's own, or those of our handler (`runtime.launch`).

XLA:GPU compiles the PTX that a call of `__gpu$xla.gpu.ptx` carries, and launches it with the
addresses of the call's operands and results as arguments. Source: XLA's
`service/gpu/kernel_call.cc`, `service/gpu/custom_kernel_emitter.cc` and
`codegen/emitters/kernel_arguments.cc`.
"""

from __future__ import annotations

from typing import Final

PTX_TARGET: Final = "__gpu$xla.gpu.ptx"
"""Custom call target of XLA's own, of API version 4: nothing of ours is needed to run it."""

LAUNCH_TARGET: Final = "fuselane_launch"
"""Custom call target of our handler, of API version 4."""

_ESCAPED: Final = {'"': "\\22", "\\": "\\5C", "\n": "\\0A", "\t": "\\09"}


def ptx_attributes(
    target: str,
    ptx: str,
    symbol: str,
    *,
    grid_blocks: int,
    block_threads: int,
    num_inputs: int,
    num_results: int,
) -> bytes:
    """Returns a call's attributes, as a dictionary in MLIR's syntax.

    XLA passes the addresses of the first `num_inputs` operands, those of all results, which
    `output_indices` has to name without exception, and then those of further operands. The
    kernel's parameters are the first of them; a launch takes as many as the kernel has. Our
    handler passes them in the same order, but XLA reads no list of its attributes, only numbers.

    Args:
        target: PTX_TARGET or LAUNCH_TARGET.
        ptx: Text of the module.
        symbol: Name of the kernel in it.
        grid_blocks: Thread blocks to launch.
        block_threads: Threads of each.
        num_inputs: Parameters that are operands.
        num_results: Results of the call, which may be more than the kernel has.
    """
    sizes = {
        "grid_x": grid_blocks,
        "grid_y": 1,
        "grid_z": 1,
        "block_x": block_threads,
        "block_y": 1,
        "block_z": 1,
        "shared_mem_bytes": 0,
    }
    results = ", ".join(f"{number} : i32" for number in range(num_inputs, num_inputs + num_results))
    order = f"num_inputs = {num_inputs} : i32"
    if target == PTX_TARGET:
        order = f"output_indices = [{results}]"
    parts = [
        f'name = "{symbol}"',
        'kernel_type = "ptx"',
        f'kernel_data = "{_escape(ptx)}"',
        *(f"{name} = {size} : i32" for name, size in sizes.items()),
        order,
    ]
    return f"{{{', '.join(parts)}}}".encode()


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(character, character) for character in text)
