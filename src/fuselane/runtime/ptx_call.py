"""Kernels as XLA's own PTX custom calls: nothing of ours is needed to run them.

XLA:GPU compiles the PTX that a call of `__gpu$xla.gpu.ptx` carries, and launches it with the
addresses of the call's operands and results as arguments. Source: XLA's
`backends/gpu/runtime/thunk.h` users of `custom_call_config`, `ParsePtxCustomCall`.
"""

from __future__ import annotations

from typing import Final

PTX_TARGET: Final = "__gpu$xla.gpu.ptx"
"""Custom call target, of API version 4."""

_ESCAPED: Final = {'"': "\\22", "\\": "\\5C", "\n": "\\0A", "\t": "\\09"}


def ptx_attributes(
    ptx: str,
    symbol: str,
    *,
    grid_blocks: int,
    block_threads: int,
    num_inputs: int,
    num_outputs: int,
) -> bytes:
    """Returns a call's attributes, as a dictionary in MLIR's syntax.

    The kernel's parameters are the first operands and then the first results of the call; the
    addresses of further ones come behind them, where the kernel does not look.

    Args:
        ptx: Text of the module.
        symbol: Name of the kernel in it.
        grid_blocks: Thread blocks to launch.
        block_threads: Threads of each.
        num_inputs: Parameters that are operands.
        num_outputs: Parameters that are results.
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
    results = ", ".join(f"{number} : i32" for number in range(num_inputs, num_inputs + num_outputs))
    parts = [
        f'name = "{symbol}"',
        'kernel_type = "ptx"',
        f'kernel_data = "{_escape(ptx)}"',
        *(f"{name} = {size} : i32" for name, size in sizes.items()),
        f"output_indices = [{results}]",
    ]
    return f"{{{', '.join(parts)}}}".encode()


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(character, character) for character in text)
