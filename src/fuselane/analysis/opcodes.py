"""The opcodes a lane program may hold. What is not listed here is refused, never guessed at."""

from __future__ import annotations

from typing import Final

ELEMENTWISE_OPCODES: Final = frozenset(
    {
        "abs",
        "add",
        "and",
        "atan2",
        "bitcast-convert",
        "cbrt",
        "ceil",
        "clamp",
        "compare",
        "convert",
        "cosine",
        "count-leading-zeros",
        "divide",
        "erf",
        "exponential",
        "exponential-minus-one",
        "floor",
        "is-finite",
        "log",
        "log-plus-one",
        "logistic",
        "maximum",
        "minimum",
        "mulhi",
        "multiply",
        "negate",
        "not",
        "or",
        "popcnt",
        "power",
        "reduce-precision",
        "remainder",
        "round-nearest-afz",
        "round-nearest-even",
        "rsqrt",
        "select",
        "shift-left",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
        "sine",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "xor",
    }
)
"""Opcodes whose result at an index depends on their operands at that index only."""

COMPLEX_OPCODES: Final = frozenset({"complex", "imag", "real"})
"""The same for those that only complex numbers have."""

UPDATING_OPCODES: Final = frozenset({"dynamic-update-slice", "scatter"})
"""Opcodes whose result is their first operand with some elements changed."""

STRUCTURAL_OPCODES: Final = frozenset(
    {
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "conditional",
        "while",
        "iota",
        "broadcast",
        "reshape",
        "transpose",
        "slice",
        "pad",
        "reverse",
        "concatenate",
        "dot",
        "dynamic-slice",
        "dynamic-update-slice",
        "gather",
        "scatter",
        "reduce",
        "reduce-window",
        "sort",
    }
)
"""Opcodes that move, select or gather data, or hold the region together."""

LANE_OPCODES: Final = ELEMENTWISE_OPCODES | STRUCTURAL_OPCODES

FREE_OPCODES: Final = frozenset(
    {
        "after-all",
        "bitcast",
        "constant",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)
"""What XLA runs nothing for, on any kind of processor."""
