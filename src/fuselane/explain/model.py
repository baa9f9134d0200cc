"""What `explain` knows about a program, as values: the report's faces only read these.

One `ModuleModel` per module that XLA compiles for one target. Everything is frozen, and JSON-able
by `to_json`. Names of instructions, kernels and loops are those of XLA's final module. Bytes and
flops are per launch unless they say "per run"; a run is one call of the program.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.decisions import LoopDecision
from fuselane.hlo.source_lines import SourceLine

SCHEMA_VERSION: Final = 1
"""Counted up when a field is renamed, removed or changes its meaning."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayModel:
    """An operand or a result of a kernel.

    Attributes:
        name: The instruction that computes it.
        shape: As HLO writes it, with its layout: `f32[2048,4]{1,0}`.
        num_bytes: Size of the whole array.
    """

    name: str
    shape: str
    num_bytes: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionModel:
    """One instruction of the final module: a node of the graph.

    Attributes:
        name: Unique in the module.
        opcode: Such as `add`; a fusion is one node and its members are others.
        shape: As HLO writes it.
        computation: Name of the computation it is in.
        operands: Names of its operands, in order.
        calls: Names of the computations it calls.
        kernel: Name of the kernel that computes it, or "" for what no kernel computes (parameters,
            tuples, bitcasts, control flow).
        source: The user's line, or None.
        op_name: JAX's own name path of the operation, or "".
    """

    name: str
    opcode: str
    shape: str
    computation: str
    operands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    kernel: str = ""
    source: SourceLine | None = None
    op_name: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModel:
    """Something XLA launches: a fusion, a single instruction, a library call, a copy.

    Attributes:
        name: Name of the instruction in the final module.
        kind: `kLoop`, `kInput`, `kOutput`, `kCustom`, `library`, `copy`, `custom-call`, `fuselane`,
            or `single` for an instruction on its own.
        emitter: Which of XLA's code generators makes it: `loop`, `reduction`, `transpose`,
            `scatter`, `concatenate`, `triton`, ..., or the library's name.
        opcodes: How many instructions of each opcode it computes, parameters left out.
        operands: What it reads.
        outputs: What it writes.
        loop: Name of the innermost loop it runs in, or "" outside of all.
        function: Name of the call of whose function it is a part, as XLA:CPU compiles some loops
            into one function each; "" for a kernel of its own. A launch is then one run of that
            part, and nothing has to be dispatched for it.
        launches: Launches per run: the product of the trip counts around it, times the launches it
            takes, which for a sort on a GPU are several. None if one of them is only known at run
            time.
        launches_per_iteration: Of its innermost loop; 1 unless a branch may leave it out, or it
            takes several.
        flops: Floating-point operations per launch.
        bytes_read: Per launch, each element counted as often as XLA's cost analysis does.
        bytes_written: Per launch.
        modelled_us: Estimated time of one launch, in microseconds, overhead included.
        source: The user's line of its root.
        sources: All the user's lines in it, most instructions first.
        registers: Per thread, from ptxas; None on a CPU.
        spill_bytes: Spilled per thread, stores and loads, from ptxas; None on a CPU.
        shared_bytes: Shared memory per block; None on a CPU.
        block_threads: Threads per block; None on a CPU.
        occupancy: Share of the warps a multiprocessor can hold that fit, 0 to 1; None on a CPU.
    """

    name: str
    kind: str
    emitter: str
    opcodes: Mapping[str, int]
    operands: tuple[ArrayModel, ...]
    outputs: tuple[ArrayModel, ...]
    loop: str = ""
    function: str = ""
    launches: int | None = 1
    launches_per_iteration: float = 1
    flops: float = 0
    bytes_read: float = 0
    bytes_written: float = 0
    modelled_us: float = 0
    source: SourceLine | None = None
    sources: tuple[SourceLine, ...] = ()
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    block_threads: int | None = None
    occupancy: float | None = None

    @property
    def intensity(self) -> float:
        """Flops per byte of memory traffic; infinite without traffic."""
        traffic = self.bytes_read + self.bytes_written
        return self.flops / traffic if traffic else float("inf") if self.flops else 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LoopModel:
    """A loop of the final module as plain XLA runs it, and what Fuselane makes of it.

    Attributes:
        name: Name of the `while`.
        source: The user's line, or None.
        parent: Name of the loop around it, or "".
        trip_count: Iterations, or None if only known at run time.
        kernels_per_iteration: Kernels XLA launches per iteration, condition and inner loops
            included; None if an inner trip count is unknown.
        launches: Kernels XLA launches for it per run, or None if unknown.
        fuselane_launches: The same under Fuselane, or None if unknown.
        function: Name of the call of whose function it is a part, or "".
        carried_bytes: Size of the loop-carried state.
        decision: What Fuselane decided about it; None on a target Fuselane does not compile for.
    """

    name: str
    source: SourceLine | None
    parent: str = ""
    trip_count: int | None = None
    kernels_per_iteration: float | None = None
    launches: int | None = None
    fuselane_launches: int | None = None
    function: str = ""
    carried_bytes: int = 0
    decision: LoopDecision | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryModel:
    """A producer-consumer edge that stays unfused.

    Attributes:
        producer: Name of the kernel or other instruction that makes the value.
        consumer: Name of the kernel or other instruction that reads it; for a result of the program
            that of the entry computation.
        shape: Of the value that crosses.
        num_bytes: What the consumer reads of it per launch.
        bytes_per_run: Times launches; None if they are unknown.
        decision: Why.
        crossing: How the value gets there: `dataflow` from kernel to kernel; `initial`, `carried`,
            `invariant` or `final` through a loop's state; `predicate`, `branch`, `entry`, `exit` or
            `constant`.
        loop: Name of the innermost loop it is in, or "".
        source: The user's line of the producer, or None.
        consumer_source: The user's line of the consumer, or None.
        expression: The Python behind `source`, or "" if the file cannot be read.
        consumer_expression: The Python behind `consumer_source`, or "".
    """

    producer: str
    consumer: str
    shape: str
    num_bytes: int
    bytes_per_run: int | None
    decision: BoundaryDecision
    crossing: str = "dataflow"
    loop: str = ""
    source: SourceLine | None = None
    consumer_source: SourceLine | None = None
    expression: str = ""
    consumer_expression: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """The module after one pass that changed it.

    Attributes:
        pipeline: XLA's pass pipeline.
        name: The pass that ran last; "" for the module as it came.
        num_instructions: In all computations, those of fusions included.
        num_fusions: How many instructions are fusions.
        opcodes: Number of instructions by opcode.
        bytes_moved: Operands and results of all kernels, each counted once (no trip counts).
        added: Names of instructions that were not there before, with their opcode; at the first
            stage all.
        removed: Names of instructions that are gone, with their opcode.
    """

    pipeline: str
    name: str
    num_instructions: int
    num_fusions: int
    opcodes: Mapping[str, int]
    bytes_moved: int
    added: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceModel:
    """Something the user can do about a boundary or a cost.

    Attributes:
        rule: Stable kebab-case identifier; `docs/reasons.md#<rule>` explains it.
        sentence: What is there, and what to do.
        gain: Predicted factor on the time of one run, above 1; None where only compile time or
            memory gains.
        source: The user's line to change, or None.
        kernels: Names of the kernels it is about.
        loop: Name of the loop it is about, or "".
    """

    rule: str
    sentence: str
    gain: float | None
    source: SourceLine | None = None
    kernels: tuple[str, ...] = ()
    loop: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerModel:
    """What a pass of a fusion strategy answered when it asked whether two become one kernel.

    Attributes:
        pass_name: Name of the pass, such as `instruction-fusion`.
        producer: Name of the producer at that time, or "" if a kernel was judged as a whole.
        consumer: Name of the consumer at that time, or "" if all users were asked about at once.
        reason: The kind of refusal; None for a yes.
        detail: This case in one plain sentence.
        xla: What XLA itself says in this case, or "".
        numbers: What was compared, by name.
        fusion: Name of the fusion that was made or grown, or "".
        times: How often the pass asked this and answered so.
        source: The user's line of the producer, or of the consumer where there is no producer.
    """

    pass_name: str
    producer: str
    consumer: str
    reason: BoundaryReason | None
    detail: str
    xla: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    fusion: str = ""
    times: int = 1
    source: SourceLine | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCountModel:
    """How many different answers of one kind a pass of a fusion strategy gave.

    Attributes:
        pass_name: Name of the pass.
        reason: The kind of refusal; None for a yes.
        count: Those that are left out of the list included.
    """

    pass_name: str
    reason: BoundaryReason | None
    count: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyModel:
    """What the passes of a fusion strategy decided about a module, yes and no alike.

    Attributes:
        answers: In the order they were first given; of each pass and reason the first 500.
        counts: Of each pass and reason, in the same order.
    """

    answers: tuple[AnswerModel, ...]
    counts: tuple[AnswerCountModel, ...]

    @property
    def num_left_out(self) -> int:
        """How many answers are counted and not listed."""
        return sum(count.count for count in self.counts) - len(self.answers)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleModel:
    """One module that XLA compiled for one target.

    Attributes:
        name: Such as `jit_rollout`.
        target: `cpu`, or a GPU model such as `h100`.
        kernels: In the order of the schedule.
        loops: Outer loops before those inside them.
        boundaries: Most bytes per run first.
        stages: The pass timeline, oldest first.
        advice: Largest predicted gain first.
        instructions: The graph: all instructions of the final module, those of fusions included.
        compile_s: Seconds XLA took.
        notes: Sentences about what could not be found out, and why.
        strategy: What the fusion strategy in force decided; None where XLA's own fusions stay
            without any other being tried.
    """

    name: str
    target: str
    kernels: tuple[KernelModel, ...] = ()
    loops: tuple[LoopModel, ...] = ()
    boundaries: tuple[BoundaryModel, ...] = ()
    stages: tuple[StageModel, ...] = ()
    advice: tuple[AdviceModel, ...] = ()
    instructions: tuple[InstructionModel, ...] = ()
    compile_s: float = 0
    notes: tuple[str, ...] = ()
    strategy: StrategyModel | None = None

    @property
    def launches(self) -> int | None:
        """Kernels launched per run, or None if a trip count is unknown."""
        counts = [kernel.launches for kernel in self.kernels]
        return None if None in counts else sum(count for count in counts if count is not None)


def to_json(value: Any) -> Any:
    """Returns a model as JSON values: dataclasses as objects, enum members as their codes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return getattr(value, "code", value.name)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value
