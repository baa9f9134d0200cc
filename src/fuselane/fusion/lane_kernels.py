"""Lane kernels for straight-line code: many of XLA's kernels become one of ours.

    %a = f32[8] fusion(%x)  %b = f32[8] fusion(%x)  %c = f32[] reduce(%b)
    ->  (f32[8], f32[8], f32[1]) custom-call(%x)

XLA:CPU runs a kernel for each fusion, one after the other, and each goes through memory; what two
of them need is computed twice or stored in between. As a lane program all of it is computed lane by
lane, in registers. Regions are taken as large as they get: whatever can be computed in a lane
program, depends on the same calls of libraries and loops, and hangs together by values or large
operands. Where a region has no lanes, since some reduction over them is needed by what follows, it
is cut behind such reductions, and each part has a chance of its own; so have the parts between
slices that start anywhere.

Which regions are worth a kernel is asked of who makes them, by estimate; the others stay as XLA
fused them. Does not handle: the bodies of loops, updates in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

from fuselane.analysis.opcodes import ELEMENTWISE_OPCODES
from fuselane.boundary import BoundaryReason
from fuselane.decisions import Decision, Reason
from fuselane.fusion.decision import FusionDecision, FusionLog, FusionStep, allow, refuse
from fuselane.fusion.in_place import members
from fuselane.fusion.outline import Outlined, outline
from fuselane.fusion.remainder import fuse_remainder
from fuselane.hlo.computation import HloComputation
from fuselane.hlo.dots import DotDimensions
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule
from fuselane.hlo.tuples import element_of, tuple_of

MakeKernel = Callable[[Outlined], Decision]
"""Replaces the loop that stands for some instructions by a kernel, if that is worth it."""

_MEMBERS: Final = ELEMENTWISE_OPCODES | {
    "bitcast",
    "broadcast",
    "complex",
    "concatenate",
    "constant",
    "copy",
    "dot",
    "dynamic-slice",
    "gather",
    "get-tuple-element",
    "imag",
    "iota",
    "map",
    "pad",
    "parameter",
    "real",
    "reduce",
    "reduce-window",
    "reshape",
    "reverse",
    "scatter",
    "slice",
    "transpose",
    "tuple",
}
_LEAVES: Final = frozenset({"constant", "iota", "parameter"})
_MAX_SMALL_DOT: Final = 16
"""Products of matrices of which no dimension is smaller are a library's."""
_MAX_CONSTANT: Final = 64
_MIN_SHARED: Final = 1024
"""Elements of an operand that two kernels had better read together, however large they are."""
_MIN_REDUCED: Final = 64
"""How many times fewer elements than its operand a reduction has behind which a region is cut."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneKernels:
    """Makes lane kernels of straight-line code.

    Attributes:
        min_kernels: Regions of fewer of XLA's kernels stay as they are.
        max_attempts: How many regions are tried, the largest first, before the rest stays.
        make_kernel: Who makes kernels; without, nothing is changed.
    """

    name: ClassVar[str] = "lane-kernels"
    min_kernels: int = 1
    max_attempts: int = 24
    make_kernel: MakeKernel | None = None

    def run(self, module: HloModule, log: FusionLog) -> bool:
        """Replaces the regions that are worth a kernel; returns whether there were any."""
        if self.make_kernel is None:
            return False
        _take_apart_root(module.entry)
        attempts = _Attempts(self, self.make_kernel, module, log)
        for region in sorted(find_regions(module.entry), key=_count_elements, reverse=True):
            attempts.try_region(region)
        if attempts.has_changed:
            fuse_remainder(module)
        return attempts.has_changed


def describe_refusals(log: FusionLog) -> tuple[str, ...]:
    """Returns a sentence about each region that was left to XLA, the longest-running first.

    Regions that are left for the same reason, word by word, share one; beyond a few, their number.
    """
    refused: dict[str, list[FusionStep]] = {}
    for step in log:
        if step.pass_name == LaneKernels.name and not step.decision.can_fuse:
            refused.setdefault(step.decision.detail, []).append(step)
    ordered = sorted(refused.items(), key=lambda item: -sum(map(_xla_us, item[1])))
    sentences = [
        f"No kernel of Fuselane's for {_name_region(steps)}: {detail}" for detail, steps in ordered
    ]
    if len(sentences) > _MAX_SENTENCES:
        rest = len(sentences) - _MAX_SENTENCES
        sentences[_MAX_SENTENCES:] = [f"Nor for {rest:,} smaller regions, for other reasons."]
    return tuple(sentences)


_MAX_SENTENCES: Final = 5


def _name_region(steps: Sequence[FusionStep]) -> str:
    first = steps[0]
    name = f"`{first.producer}`"
    if first.consumer:
        name += f" to `{first.consumer}`"
    others = len(steps) - 1
    return f"{name} and {others:,} regions like it" if others else name


def _xla_us(step: FusionStep) -> float:
    return step.decision.numbers.get("xla_us", 0.0)


@final
class _Attempts:
    """The regions of a module on their way to kernels."""

    def __init__(
        self, options: LaneKernels, make_kernel: MakeKernel, module: HloModule, log: FusionLog
    ) -> None:
        self.options = options
        self.make_kernel = make_kernel
        self.module = module
        self.log = log
        self.num_left = options.max_attempts
        self.refused: dict[object, FusionDecision] = {}
        """Decisions about regions, by what they compute."""
        self.out_of_time: FusionDecision | None = None
        """What is said of all that is left once the time to compile is over."""
        self.has_changed = False

    def try_region(self, region: Sequence[HloInstruction]) -> None:
        """Makes a kernel of a region with what comes between, or of the parts it is cut into."""
        left = [member for member in region if member.computation is not None]
        if not any(map(_is_kernel, left)):
            return
        structure = _structure(left)
        if self.out_of_time is not None:
            self._note(left, self.out_of_time)
        elif structure in self.refused:
            self._note(left, self.refused[structure])
        elif self.num_left == 0:
            limit = self.options.max_attempts
            detail = f"{limit} larger regions were tried before this one"
            self._note(left, refuse(BoundaryReason.BUDGET, detail, limit=limit))
        else:
            self.num_left -= 1
            refusal = self._replace(with_between(left))
            if refusal is not None:
                self.refused[structure] = refusal

    def _replace(self, region: Sequence[HloInstruction]) -> FusionDecision | None:
        """Makes a kernel of a region, or of its parts; returns why not of the whole."""
        num_kernels = sum(map(_is_kernel, region))
        if num_kernels < max(1, self.options.min_kernels) or not _is_read(region):
            return None
        outlined = outline(self.module, region)
        decision = self.make_kernel(outlined)
        numbers = {"xla_kernels": float(num_kernels), **decision.numbers}
        if decision.fused:
            outlined.drop()
            self.has_changed = True
            self._note(region, allow(decision.sentence, **numbers), fusion=decision.instruction)
            return None
        outlined.put_back()
        refusal = refuse(BoundaryReason.SLOWER, decision.sentence)._replace(numbers=numbers)
        self._note(region, refusal)
        if decision.reason is Reason.OUT_OF_TIME:
            self.out_of_time = refusal
        for part in cut(region) or split(region):
            for component in _components(part):
                self.try_region(component)
        return refusal

    def _note(
        self, region: Sequence[HloInstruction], decision: FusionDecision, fusion: str = ""
    ) -> None:
        kernels = [instruction.name for instruction in region if _is_kernel(instruction)]
        self.log.append(
            FusionStep(
                pass_name=LaneKernels.name,
                producer=kernels[0],
                consumer=kernels[-1] if len(kernels) > 1 else "",
                decision=decision,
                fusion=fusion,
            )
        )


def _take_apart_root(computation: HloComputation) -> None:
    """Makes a root of several arrays a tuple of elements of what computes them, as all others that
    have several results are read by elements alone."""
    root = computation.root
    if root.opcode != "tuple" and any(shape.is_array for shape in root.shape.tuple_shapes):
        elements = [
            computation.add(element_of(root, number))
            for number, _ in enumerate(root.shape.tuple_shapes)
        ]
        computation.root = computation.add(tuple_of(elements))


def find_regions(computation: HloComputation) -> list[list[HloInstruction]]:
    """Returns the straight-line regions of a computation, each in the order of its instructions.

    Members of one region depend on the same instructions outside, so that none of these comes
    between two of them, and hang together.
    """
    parts = _by_what_comes_before(computation.post_order(), can_be_member)
    return [region for members in parts for region in _components(members)]


def _by_what_comes_before(
    order: Sequence[HloInstruction], is_member: Callable[[HloInstruction], bool]
) -> list[list[HloInstruction]]:
    """Returns the members among some instructions, those together that depend on the same others.

    Args:
        order: The instructions, operands first.
        is_member: Whether one is a member; what is neither that nor a leaf comes between those it
            depends on and those that depend on it.
    """
    depths: dict[HloInstruction, int] = {}
    by_depth: dict[int, list[HloInstruction]] = {}
    inside = set(filter(is_member, order))
    for instruction in order:
        before = (o for o in _dependencies(instruction) if o in depths)
        steps = [depths[o] + (o.opcode not in _LEAVES and o not in inside) for o in before]
        depths[instruction] = max(steps, default=0)
        if instruction in inside:
            by_depth.setdefault(depths[instruction], []).append(instruction)
    return list(by_depth.values())


def with_between(region: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Returns what is left of a region, with all that comes between two of its members, tuples with
    all their elements; nothing if what comes between cannot be a member."""
    inside = {member for member in region if member.computation is not None}
    behind = _reach(inside, lambda member: member.users)
    ahead = _reach(inside, lambda member: member.operands)
    between = behind & ahead - inside
    between |= {user for member in between if member.shape.is_tuple for user in member.users}
    if not all(map(can_be_member, between)):
        return []
    computation = next((member.computation for member in inside), None)
    order = [] if computation is None else computation.instructions
    return [i for i in order if i in inside or i in between]


def _reach(
    start: Iterable[HloInstruction], following: Callable[[HloInstruction], list[HloInstruction]]
) -> set[HloInstruction]:
    """Returns all that is reached from some instructions, but not these themselves unless again."""
    reached: set[HloInstruction] = set()
    stack = [other for instruction in start for other in following(instruction)]
    while stack:
        instruction = stack.pop()
        if instruction not in reached:
            reached.add(instruction)
            stack.extend(following(instruction))
    return reached


def cut(region: Sequence[HloInstruction]) -> list[list[HloInstruction]]:
    """Returns the parts of a region cut behind its reductions that large members depend on.

    What does not lead to such a reduction stands behind all of them. Elements of a tuple stay with
    it. There are no parts if that leaves one only.
    """
    inside = set(region)
    large = max(_size(member) for member in region) // _MIN_REDUCED
    needs: dict[HloInstruction, bool] = {}
    for member in reversed(region):
        users = [user for user in member.users if user in inside]
        needs[member] = any(needs[user] or _size(user) > large for user in users)
    stages: dict[HloInstruction, int] = {}
    reductions: list[HloInstruction] = []
    for member in region:
        before = [o for o in member.operands if o in inside]
        is_small = _size(member) * _MIN_REDUCED <= max(map(_size, member.operands), default=0)
        is_cut = is_small and needs[member] and _size(member) <= large
        stages[member] = max((stages[o] + (o in reductions) for o in before), default=0)
        if is_cut:
            reductions.append(member)
    last = max(stages.values())
    placed: dict[HloInstruction, int] = {}
    for reduction in reductions:
        stack = [reduction]
        while stack:
            member = stack.pop()
            if member not in placed or placed[member] > stages[reduction]:
                placed[member] = stages[reduction]
                stack.extend(o for o in member.operands if o in inside)
    parts: dict[int, list[HloInstruction]] = {}
    for member in region:
        is_element = member.opcode == "get-tuple-element"
        made = member.operands[0] if is_element else member
        parts.setdefault(placed.get(made, last), []).append(member)
    return list(parts.values()) if len(parts) > 1 else []


def split(region: Sequence[HloInstruction]) -> list[list[HloInstruction]]:
    """Returns the parts of a region in front of, between and behind slices that start anywhere,
    which may take apart what would be its lanes; none if there is no such slice."""
    if not any(map(_slices_anywhere, region)):
        return []
    return _by_what_comes_before(region, lambda member: not _slices_anywhere(member))


def _slices_anywhere(instruction: HloInstruction) -> bool:
    return any(member.opcode == "dynamic-slice" for member in members(instruction))


def can_be_member(instruction: HloInstruction) -> bool:
    """Whether an instruction of a sequential computation can be part of a lane kernel."""
    if instruction.control_predecessors or instruction.control_successors:
        return False
    if instruction.opcode in ("parameter", "tuple"):
        return False
    users = instruction.users
    if instruction.shape.is_tuple and any(u.opcode != "get-tuple-element" for u in users):
        return False
    if instruction.opcode == "get-tuple-element":
        return can_be_member(instruction.operands[0])
    return all(map(_is_lane_opcode, members(instruction)))


def _is_lane_opcode(instruction: HloInstruction) -> bool:
    if instruction.opcode == "dot":
        return _is_small(instruction)
    if instruction.opcode == "constant":
        return instruction.shape.is_array and instruction.shape.num_elements <= _MAX_CONSTANT
    return instruction.opcode in _MEMBERS


def _is_small(dot: HloInstruction) -> bool:
    """Whether some dimension of a product of matrices is small: libraries gain little there."""
    contracted = DotDimensions.of(dot).contracted_size(dot)
    left, right = (operand.shape.num_elements for operand in dot.operands)
    result = max(1, dot.shape.num_elements)
    # left = batch * m * k, right = batch * k * n, result = batch * m * n
    rows, columns = result * contracted / max(1, right), result * contracted / max(1, left)
    return min(rows, columns, contracted) <= _MAX_SMALL_DOT


def _dependencies(instruction: HloInstruction) -> Iterator[HloInstruction]:
    yield from instruction.operands
    yield from instruction.control_predecessors


def _components(members: Sequence[HloInstruction]) -> list[list[HloInstruction]]:
    """Returns the members by what hangs together: by a large value, made by one or read by both."""
    group: dict[HloInstruction, HloInstruction] = {}

    def find(instruction: HloInstruction) -> HloInstruction:
        while group.setdefault(instruction, instruction) is not instruction:
            group[instruction] = group[group[instruction]]
            instruction = group[instruction]
        return instruction

    inside = set(members)
    for member in members:
        for operand in member.operands:
            is_part = operand in inside and operand.shape.is_tuple
            if is_part or _is_large(operand, member):
                group[find(operand)] = find(member)
    regions: dict[HloInstruction, list[HloInstruction]] = {}
    for member in members:
        if member.opcode not in _LEAVES:
            regions.setdefault(find(member), []).append(member)
    return list(regions.values())


def _is_large(operand: HloInstruction, member: HloInstruction) -> bool:
    """Whether an operand is no small part of what an instruction reads."""
    size = _size(operand)
    return size >= _MIN_SHARED or (size > 1 and size * _MIN_REDUCED >= _size(member))


def _structure(region: Sequence[HloInstruction]) -> object:
    """Returns what regions have in common of which one is as good as the other."""
    return tuple(
        (i.opcode, i.shape, tuple((o.opcode, o.shape) for o in _inner(i)), len(i.users))
        for i in region
    )


def _inner(instruction: HloInstruction) -> Sequence[HloInstruction]:
    is_fusion = instruction.opcode == "fusion"
    return instruction.to_apply.instructions if is_fusion else instruction.operands


def _is_read(region: Sequence[HloInstruction]) -> bool:
    """Whether anything needs what a region computes."""
    inside = set(region)
    return any(m.is_root or any(user not in inside for user in m.users) for m in region)


def _is_kernel(instruction: HloInstruction) -> bool:
    return instruction.opcode not in ("bitcast", "get-tuple-element", "constant")


def _size(instruction: HloInstruction) -> int:
    shapes = instruction.shape.tuple_shapes or (instruction.shape,)
    return max(shape.num_elements for shape in shapes)


def _count_elements(region: Sequence[HloInstruction]) -> int:
    return sum(_size(member) for member in region if _is_kernel(member))
