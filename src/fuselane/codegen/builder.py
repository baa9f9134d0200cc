"""The builder that emits kernels: llvmlite's, which stops when one gets out of hand.

Views are computed anew wherever they are read, so a loop of a few dozen instructions can ask for
more code than there is memory for.
"""

from __future__ import annotations

from typing import Final, final

from llvmlite import ir

from fuselane import budget
from fuselane.decisions import Reason
from fuselane.errors import UnsupportedError

MAX_INSTRUCTIONS: Final = 300_000
"""The most instructions a kernel may have. LLVM takes about 0.1 ms for each."""

_CHECK_EVERY: Final = 1024


@final
class KernelBuilder(ir.IRBuilder):  # type: ignore[misc]
    """Emits the instructions of one kernel.

    Attributes:
        contracts: Whether a product and a sum of it may be rounded once, not twice.
        calls: Whether what several places do with memory may be a function that they call; not
            where each access is traced back to what it lies in.
        num_instructions: How many there are so far.
    """

    def __init__(self, block: ir.Block, *, contracts: bool = True, calls: bool = True) -> None:
        super().__init__(block)
        self.contracts, self.calls = contracts, calls
        self.num_instructions = 0

    def _insert(self, instruction: ir.Instruction) -> None:
        """What all methods of llvmlite's builder end in.

        Raises:
            UnsupportedError: for one instruction too many.
            OutOfTimeError: when the time to compile is over.
        """
        super()._insert(instruction)
        self.num_instructions += 1
        if self.num_instructions % _CHECK_EVERY:
            return
        budget.check()
        if self.num_instructions > MAX_INSTRUCTIONS:
            detail = f"more than {MAX_INSTRUCTIONS:,} instructions of LLVM's"
            raise UnsupportedError(Reason.TOO_MUCH_CODE.decide(detail=detail))


def may_contract(builder: ir.IRBuilder) -> bool:
    """Returns whether what a builder emits may round a product and a sum of it once."""
    return not isinstance(builder, KernelBuilder) or builder.contracts
