"""Times reading and writing a module of 20,000 instructions.

    python benchmarks/hlo_round_trip.py [number of instructions]

The module looks like those at the hook: fused computations of some fifty elementwise instructions
with metadata, called from one entry.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from fuselane.hlo import HloComputation, HloInstruction, HloModule, PrimitiveType, Shape, verify

_SHAPE = Shape.array(PrimitiveType.F32, (4, 2048))
_FUSED_INSTRUCTIONS = 50
_OPCODES = ("add", "multiply", "subtract", "maximum")


def _metadata(number: int) -> dict[str, str | int]:
    return {
        "op_name": f"jit(rollout)/while/body/closed_call/jit(_uniform)/while/body/op_{number}",
        "stack_frame_id": number,
    }


def _fused_computation() -> HloComputation:
    computation = HloComputation.create("fused_computation")
    parameters = [
        computation.add(HloInstruction.create("parameter", _SHAPE, parameter_number=number))
        for number in range(2)
    ]
    left, right = parameters
    for number in range(_FUSED_INSTRUCTIONS - len(parameters)):
        opcode = _OPCODES[number % len(_OPCODES)]
        new = HloInstruction.create(opcode, _SHAPE, [left, right], metadata=_metadata(number))
        left, right = right, computation.add(new)
    computation.root = right
    computation.proto.is_fusion_computation = True
    return computation


def make_module(num_instructions: int) -> bytes:
    """Returns a serialized module of about so many instructions."""
    entry = HloComputation.create("main")
    first = entry.add(HloInstruction.create("parameter", _SHAPE))
    last = first
    for number in range(num_instructions // (_FUSED_INSTRUCTIONS + 1)):
        fusion = HloInstruction.create(
            "fusion",
            _SHAPE,
            [last, first],
            called_computations=[_fused_computation()],
            fusion_kind="kLoop",
            metadata=_metadata(number),
        )
        last = entry.add(fusion)
    entry.root = last
    return HloModule.create("rollout", entry).to_bytes()


def measure(work: Callable[[], object], repetitions: int = 7) -> float:
    """Returns the median time of a call in seconds."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Prints a line per step."""
    num_instructions = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    data = make_module(num_instructions)
    module = HloModule.from_bytes(data)
    count = sum(len(computation.instructions) for computation in module.computations)
    print(f"{count} instructions, {len(data) / 1e6:.2f} MB")
    steps: dict[str, Callable[[], object]] = {
        "from_bytes": lambda: HloModule.from_bytes(data),
        "to_bytes": module.to_bytes,
        "round trip": lambda: HloModule.from_bytes(data).to_bytes(),
        "verify": lambda: verify(module),
        "create the same": lambda: make_module(num_instructions),
    }
    for name, work in steps.items():
        seconds = measure(work)
        print(f"{name:16} {seconds * 1e3:8.1f} ms {seconds / count * 1e6:8.2f} us per instruction")


if __name__ == "__main__":
    main()
