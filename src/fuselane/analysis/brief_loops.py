"""Loops that XLA is done with before any kernel could pay, told from a module's bare message.

    %loop: a while of 5 steps, each of sixty operations on single numbers      0.5 us, at most

The keys of random numbers bring such loops into most programs. To make HLO objects of a module only
to leave it to XLA takes a part of the time that XLA compiles it in.

Seen are loops that XLA:CPU compiles into one function each (see `small_calls`), if it has counted
their steps and they compute few elements. How long they take at most is a sum: of what each
operation takes if it waits for all before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

from fuselane.analysis.gain import MIN_XLA_TIME_US, describe_time
from fuselane.analysis.machine_costs import MachineCosts
from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES, FREE_OPCODES
from fuselane.analysis.small_calls import is_marked
from fuselane.analysis.waiting import FLOATING, IN_MEMORY, LATENCIES
from fuselane.analysis.while_loops import read_trip_count
from fuselane.decisions import LoopDecision, Reason
from fuselane.hlo.proto import Message
from fuselane.hlo.shape import PrimitiveType
from fuselane.hlo.source_lines import SourceLines

_MAX_ELEMENTS: Final = 16
_LONGER: Final = 2.0
"""How much longer than those of f32 the functions of f64 take."""
_CALLING: Final = frozenset({"call", "conditional", "fusion"})
_MOVING: Final = frozenset(
    {
        *("broadcast", "concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "iota"),
        *("pad", "reshape", "reverse", "slice", "transpose"),
    }
)
"""Opcodes that do not read more elements than they make."""
_TAKING: Final = frozenset({"get-tuple-element", "parameter"})
_COMPLEX: Final = frozenset({PrimitiveType.C64, PrimitiveType.C128})


def find_brief_loops(module: Message, costs: MachineCosts) -> Sequence[LoopDecision] | None:
    """Returns why all loops of a module are left to XLA, if each is over too soon for a kernel.

    Args:
        module: A HloModuleProto, as XLA:CPU has it after fusion.
        costs: Those of the machine.
    Returns:
        A decision for each loop; None if more has to be found out of any.
    """
    search = _Search(module, costs)
    return search.decisions if search.finds_all() else None


@final
class _Search:
    """One module on its way through the search.

    Attributes:
        decisions: About the brief loops found so far.
    """

    def __init__(self, module: Message, costs: MachineCosts) -> None:
        self.decisions: list[LoopDecision] = []
        self._module = module
        self._unit_us = costs.xla_scalar_us
        self._lines = SourceLines(module.stack_frame_index)
        self._computations: dict[int, Message] = {c.id: c for c in module.computations}
        self._known_us: dict[int, float] = {}

    def finds_all(self) -> bool:
        """Whether the module has loops, and all are brief."""
        num_loops = 0
        for computation in self._computations.values():
            for instruction in computation.instructions:
                opcode = instruction.opcode
                num_loops += opcode == "while"
                is_small = opcode == "call" and is_marked(instruction)
                if is_small and not math.isfinite(self._time_us(instruction, 1)):
                    return False
        return 0 < num_loops == len(self.decisions)

    def _time_us(self, instruction: Message, num_elements: int) -> float:
        """Returns how long it takes at most to compute so many elements by an instruction, infinity
        for what is not certain."""
        opcode = instruction.opcode
        if opcode == "while":
            return self._loop_us(instruction)
        if opcode in _CALLING:
            return sum([self._computation_us(c) for c in instruction.called_computation_ids])
        return _latency(opcode) * num_elements * self._unit_us

    def _computation_us(self, computation_id: int) -> float:
        """Returns how long a computation takes at most: each operation once for every element of
        its largest array, as fusions compute again what several elements of a result need."""
        known_us = self._known_us.get(computation_id)
        if known_us is None:
            instructions = self._computations[computation_id].instructions
            shapes = [i.shape for i in instructions if i.opcode not in _TAKING]
            num_elements = max([math.prod(shape.dimensions) for shape in shapes], default=1)
            is_small = num_elements <= _MAX_ELEMENTS
            is_real = _COMPLEX.isdisjoint([shape.element_type for shape in shapes])
            known_us = math.inf
            if is_small and is_real:
                known_us = sum([self._time_us(i, num_elements) for i in instructions])
            self._known_us[computation_id] = known_us
        return known_us

    def _loop_us(self, loop: Message) -> float:
        """Returns how long a loop takes at most, and notes that if it is brief."""
        trip_count = read_trip_count(loop.backend_config)
        step_us = sum([self._computation_us(c) for c in loop.called_computation_ids])
        xla_us = math.inf if trip_count is None else trip_count * step_us
        if trip_count is None or xla_us >= MIN_XLA_TIME_US:
            return math.inf
        line = self._lines.find(loop.metadata)
        source = "" if line is None else str(line)
        decision = Reason.NOT_PROFITABLE.decide(
            instruction=loop.name,
            opcode=loop.opcode,
            source=source,
            numbers={"xla_us": xla_us},
            detail=describe_time(xla_us, trip_count, "at most"),
        )
        self.decisions.append(
            LoopDecision(
                module=self._module.name,
                name=loop.name,
                source=source,
                trip_count=trip_count,
                lanes=None,
                decision=decision,
            )
        )
        return xla_us


def _latency(opcode: str) -> float:
    """Returns after how many scalar operations an element of an instruction is there at most."""
    if opcode == "parameter":
        return IN_MEMORY
    if opcode in FREE_OPCODES:
        return 0.0
    if opcode in LATENCIES:
        return _LONGER * LATENCIES[opcode]
    is_known = opcode in ELEMENTWISE_OPCODES or opcode in _MOVING
    return FLOATING if is_known else math.inf
