"""How many operations XLA:GPU's cost model counts for an elementwise instruction.

Source: measured. XLA writes a modelled compute time into every kernel (`reification_cost`, with
`xla_gpu_collect_cost_model_stats`); the numbers are what that time comes to per element for a
kernel of one instruction, for compute capability 9.0 and jaxlib 0.10.2. All others count 3.
"""

from __future__ import annotations

from typing import Final

from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.shape import PrimitiveType

DEFAULT_FLOPS: Final = 3

_FLOAT_OPCODES: Final = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "sqrt",
    "rsqrt",
    "cbrt",
    "exponential",
    "exponential-minus-one",
    "log",
    "log-plus-one",
    "sine",
    "cosine",
    "tanh",
    "atan2",
    "power",
)
_TABLE: Final = {
    PrimitiveType.F16: (
        _FLOAT_OPCODES,
        (7, 7, 7, 43, 95, 95, 201, 102, 217, 182, 245, 993, 997, 502, 451, 526),
    ),
    PrimitiveType.F32: (
        _FLOAT_OPCODES,
        (7, 7, 3, 19, 75, 75, 178, 79, 190, 166, 229, 958, 978, 467, 431, 510),
    ),
    PrimitiveType.F64: (
        _FLOAT_OPCODES,
        (15, 15, 15, 526, 332, 277, 586, 376, 712, 815, 1259, 554, 558, 431, 930, 2205),
    ),
    PrimitiveType.C64: (
        ("add", "subtract", "multiply", "divide", "rsqrt", "tanh", "power"),
        (7, 7, 79, 498, 3148, 2379, 5532),
    ),
    PrimitiveType.S8: (("multiply", "divide"), (7, 356)),
    PrimitiveType.S32: (("divide",), (297,)),
    PrimitiveType.S64: (("multiply", "divide"), (11, 685)),
}
_FLOPS: Final = {
    (opcode, element_type): flops
    for element_type, (opcodes, counts) in _TABLE.items()
    for opcode, flops in zip(opcodes, counts, strict=True)
}


def flops_per_element(instruction: HloInstruction) -> int:
    """Returns the operations counted for one element of an elementwise instruction's result."""
    return _FLOPS.get((instruction.opcode, instruction.shape.element_type), DEFAULT_FLOPS)
