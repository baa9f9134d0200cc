"""How long LAPACK takes for matrices, of which XLA:CPU hands it one after another.

Measured on up to 32 rows (8 for QR) in f32, 256 to 2,000 matrices, jaxlib 0.10.2 with SciPy's
OpenBLAS, in scalar operations of XLA's, of 0.4 ns: a call's own time, and a share that grows with
the square of the rows rather than with their cube, as vectors fill up.
"""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import Final

from fuselane.hlo.instruction import HloInstruction

_CALL: Final = 130.0
_BY_ELEMENT: Final = MappingProxyType(
    {"geqrf": 50.0, "getrf": 21.0, "orgqr": 35.0, "potrf": 7.5, "trsm": 4.2}
)
_BY_PRODUCT: Final = 0.1
"""A triangular solve's, for each element of the matrix and each right side."""

_TARGET: Final = re.compile(r"lapack_[sd]([a-z]+)_ffi")


def lapack_operations(call: HloInstruction) -> float | None:
    """Returns how many scalar operations of XLA's a custom call takes as long as.

    None if it calls something else, or what is not known.
    """
    target = _TARGET.fullmatch(call.custom_call_target)
    if target is None or target[1] not in _BY_ELEMENT:
        return None
    *batch, rows, columns = call.operands[0].shape.dimensions
    each = _CALL + _BY_ELEMENT[target[1]] * rows * columns
    if target[1] == "trsm":
        each += _BY_PRODUCT * call.operands[1].shape.num_elements / math.prod(batch) * rows
    return math.prod(batch) * each
