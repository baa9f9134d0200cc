"""Following a plan (see `plan`): the kernels it names, found in a module and made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, final

from fuselane.boundary import BoundaryReason
from fuselane.fusion import legal, legal_on_gpu
from fuselane.fusion.decision import FusionDecision, FusionLog, FusionStep, allow, refuse
from fuselane.fusion.fuse import LOOP
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.landmarks import Landmark, Landmarks, likeness, match_lines
from fuselane.fusion.pipelines import PIPELINES, for_gpu
from fuselane.fusion.plan import ARROW, Edge, PlannedKernel, PlannedModule, parameters_of
from fuselane.fusion.traversal import sequential_computations
from fuselane.gpu import GpuDescription
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.tuples import element_of, tuple_of

_RULES_OF_XLA: Final = frozenset({legal.NAME, legal_on_gpu.NAME})
"""How the log calls what takes kernels apart that XLA cannot compile."""

_MIN_LIKENESS: Final = 0.5
"""How like a plan and a module have to be if the module's name is another."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFusion:
    """Fuses what a plan says.

    Attributes:
        modules: What it says.
        gpu: What other modules are compiled for; None is a CPU.
    """

    name: ClassVar[str] = "plan"
    modules: tuple[PlannedModule, ...]
    gpu: GpuDescription | None = None

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Makes the kernels of the plan; returns whether there were any."""
        landmarks = Landmarks(module)
        planned = self._find(module, landmarks)
        if planned is None:
            return self._run_as_xla(module, log)
        follower = _Follower(landmarks, match_lines(dict(planned.lines), landmarks.lines), log)
        for kernel in planned.kernels:
            follower.add(kernel)
        follower.build(module)
        return bool(follower.kernels)

    def _run_as_xla(self, module: HloModule, log: FusionLog) -> bool:
        if self.gpu is None:
            return InstructionFusion().run(module, log)
        passes = for_gpu(PIPELINES["xla-today-gpu"], self.gpu)
        changed = [fusion_pass.run(module, log) for fusion_pass in passes]
        return any(changed)

    def _find(self, module: HloModule, landmarks: Landmarks) -> PlannedModule | None:
        """Returns the module of the plan that is most like another: of those with its name if
        there are any, and with its shapes if several are as like."""
        parameters = parameters_of(module)

        def rank(planned: PlannedModule) -> tuple[float, bool]:
            same = planned.parameters == parameters
            return likeness(dict(planned.lines), landmarks.lines), same

        named = [planned for planned in self.modules if planned.name == module.name]
        best = max(named or self.modules, key=rank, default=None)
        if best is None or named:
            return best
        return best if rank(best)[0] >= _MIN_LIKENESS else None


# Making kernels.


@final
@dataclass(frozen=True, slots=True)
class _Kernel:
    """Instructions of a module that become a fusion: all of them, and those it returns."""

    results: tuple[HloInstruction, ...]
    members: Mapping[HloInstruction, None]

    @property
    def operands(self) -> list[HloInstruction]:
        """What it reads from memory."""
        read = (operand for member in self.members for operand in member.operands)
        return [operand for operand in dict.fromkeys(read) if operand not in self.members]


@final
class _Follower:
    """Finds the kernels of a plan in a module, and makes them."""

    def __init__(self, landmarks: Landmarks, lines: Mapping[str, str], log: FusionLog) -> None:
        self.landmarks = landmarks
        self.lines = lines
        self.log = log
        self.kernels: list[_Kernel] = []
        self.owner: dict[HloInstruction, _Kernel] = {}
        """Which kernel returns an instruction."""

    def add(self, planned: PlannedKernel) -> None:
        """Adds what can be found of a kernel."""
        producers: defaultdict[HloInstruction, set[HloInstruction]] = defaultdict(set)
        for edge in planned.edges:
            found = self._follow(edge)
            if found is not None:
                producers[found[1]].add(found[0])
        results = [self._result(landmark) for landmark in planned.results]
        num_before = len(self.kernels)
        self._add([r for r in results if r is not None and r not in self.owner], producers)
        # An edge taken out of a plan leaves behind a kernel of what was in front of it.
        for consumer in reversed(list(producers)):
            if not any(consumer in kernel.members for kernel in self.kernels[num_before:]):
                self._add([consumer], producers)

    def build(self, module: HloModule) -> None:
        """Makes the kernels."""
        made: list[tuple[HloInstruction, HloInstruction]] = []
        for kernel in self.kernels:
            fusion, results = _build(module, kernel)
            made += results
            named = ", ".join(str(self.landmarks.of[result]) for result in kernel.results)
            self._note("", named, allow("The plan says so."), fusion.name)
        for old, new in made:
            old.move_control_edges_to(new.operands[0] if new.opcode != "fusion" else new)
            old.replace_all_uses_with(new)
        for computation in sequential_computations(module):
            computation.remove_dead_instructions()
            computation.sort()

    def _add(
        self,
        results: list[HloInstruction],
        producers: Mapping[HloInstruction, set[HloInstruction]],
    ) -> None:
        """Adds a kernel, or one for each result where they cannot be in one."""
        if not any(producers.get(result) for result in results):
            return
        kernel = _Kernel(tuple(results), _members(results, producers))
        computations = {result.computation for result in results}
        if len(results) > 1 and (len(computations) > 1 or self._depends_on_itself(kernel)):
            detail = "Its results depend on each other through other kernels; each gets its own."
            names = ", ".join(result.name for result in results)
            self._note(names, "", refuse(BoundaryReason.MULTI_OUTPUT, detail))
            for result in results:
                self._add([result], producers)
            return
        self.kernels.append(kernel)
        self.owner.update(dict.fromkeys(results, kernel))

    def _depends_on_itself(self, kernel: _Kernel) -> bool:
        """Whether what the kernel reads from memory needs one of its results."""
        stack = list(kernel.operands)
        seen = set(stack)
        while stack:
            instruction = stack.pop()
            if instruction in kernel.results:
                return True
            before = [*instruction.operands, *instruction.control_predecessors]
            if instruction in self.owner:
                before += self.owner[instruction].operands
            stack += [i for i in before if i not in seen]
            seen.update(before)
        return False

    def _follow(self, edge: Edge) -> tuple[HloInstruction, HloInstruction] | None:
        producer, consumer = map(self._instruction, edge)
        if producer is None or consumer is None:
            detail = f"There is no `{edge[0] if producer is None else edge[1]}` any more."
        elif producer not in consumer.operands:
            detail = f"`{edge[1]}` does not read `{edge[0]}` any more."
        else:
            self._note(producer.name, consumer.name, allow("The plan says so."))
            return producer, consumer
        self._note(str(edge[0]), str(edge[1]), refuse(BoundaryReason.UNKNOWN, detail))
        return None

    def _result(self, landmark: Landmark) -> HloInstruction | None:
        found = self._instruction(landmark)
        if found is None:
            detail = f"There is no `{landmark}` any more."
            self._note(str(landmark), "", refuse(BoundaryReason.UNKNOWN, detail))
        return found

    def _instruction(self, landmark: Landmark) -> HloInstruction | None:
        line = self.lines.get(landmark.line)
        if line is None:
            return None
        return self.landmarks.find.get(Landmark(line, landmark.opcode, landmark.occurrence))

    def _note(
        self, producer: str, consumer: str, decision: FusionDecision, fusion: str = ""
    ) -> None:
        self.log.append(
            FusionStep(
                pass_name=PlanFusion.name,
                producer=producer,
                consumer=consumer,
                decision=decision,
                fusion=fusion,
            )
        )


def complaint(log: FusionLog) -> str:
    """Returns a sentence about what of a plan could not be followed, or "" if all could."""
    places = [
        (ARROW.join(filter(None, (step.producer, step.consumer))), step.decision.detail)
        for step in log
        if step.pass_name == PlanFusion.name and not step.decision.can_fuse
    ]
    kernels = {step.fusion: step.consumer for step in log if step.pass_name == PlanFusion.name}
    places += [
        (kernels[step.consumer], step.decision.detail)
        for step in log
        if step.pass_name in _RULES_OF_XLA and kernels.get(step.consumer)
    ]
    if not places:
        return ""
    place, detail = places[0]
    where = "" if len(places) == 1 else f"in {len(places)} places, such as "
    return f"A plan could not be followed {where}at {place}: {detail}"


def _members(
    results: list[HloInstruction], producers: Mapping[HloInstruction, set[HloInstruction]]
) -> dict[HloInstruction, None]:
    """Returns what a kernel computes: along its edges, and constants of one element."""
    members, stack = dict.fromkeys(results), list(results)
    while stack:
        member = stack.pop()
        for operand in member.operands:
            is_inside = operand in producers.get(member, ()) or _is_number(operand)
            if is_inside and operand not in members:
                members[operand] = None
                stack.append(operand)
    return members


def _is_number(operand: HloInstruction) -> bool:
    return operand.opcode == "constant" and operand.shape.rank == 0


def _build(
    module: HloModule, kernel: _Kernel
) -> tuple[HloInstruction, list[tuple[HloInstruction, HloInstruction]]]:
    """Makes a fusion; returns it, and pairs of a result and what is to take its place."""
    results = kernel.results
    computation = results[0].computation
    assert computation is not None, "landmarks are of instructions in the module"
    body = HloComputation.create("fused_computation")
    body.proto.is_fusion_computation = True
    inside = {
        operand: body.add(_parameter(operand, number))
        for number, operand in enumerate(kernel.operands)
    }
    for member in computation.post_order():
        if member in kernel.members:
            inside[member] = body.add(member.clone([inside[o] for o in member.operands]))
    values = [inside[result] for result in results]
    body.root = values[0] if len(values) == 1 else body.add(tuple_of(values))
    module.add(body)
    fusion = HloInstruction.create(
        "fusion",
        body.root.shape,
        kernel.operands,
        name="fusion",
        called_computations=[body],
        fusion_kind=LOOP,
        metadata=results[0].metadata,
    )
    computation.add(fusion)
    if len(results) == 1:
        return fusion, [(results[0], fusion)]
    elements = [(r, computation.add(element_of(fusion, n))) for n, r in enumerate(results)]
    return fusion, elements


def _parameter(operand: HloInstruction, number: int) -> HloInstruction:
    return HloInstruction.create(
        "parameter", operand.shape, name=f"param_{number}", parameter_number=number
    )
