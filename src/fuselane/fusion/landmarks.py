"""Names for instructions that outlive small changes of the program: line, opcode, occurrence.

    cartpole.py:12 sine #1        the second sine that line 12 of cartpole.py makes

Lines are found again by what they make: the opcodes of each line in turn, so that those of a file
that grew or shrank elsewhere, or of a function with another name, keep their meaning.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from fuselane.fusion.traversal import sequential_computations, xla_post_order
from fuselane.hlo.instruction import HloInstruction
from fuselane.hlo.module import HloModule

_UNNAMED: Final = frozenset({"parameter", "tuple", "constant"})


@final
@dataclass(frozen=True, slots=True, order=True)
class Landmark:
    """An instruction, as a plan names it.

    Attributes:
        line: `file.py:12`, or "" if unknown.
        opcode: Its opcode.
        occurrence: How many of that opcode the line has made before it.
    """

    line: str
    opcode: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.line or '?'} {self.opcode} #{self.occurrence}"

    @staticmethod
    def parse(text: str) -> Landmark | None:
        """Returns what `str` made text of; None if it is none."""
        parts = text.rsplit(" ", 2)
        if len(parts) != 3 or not parts[2].startswith("#") or not parts[2][1:].isdigit():
            return None
        return Landmark("" if parts[0] == "?" else parts[0], parts[1], int(parts[2][1:]))


Lines = Mapping[str, str]
"""By line: the opcodes it makes, in alphabetical order, one after the other."""


@final
class Landmarks:
    """The landmarks of a module without fusions."""

    def __init__(self, module: HloModule) -> None:
        self.of: dict[HloInstruction, Landmark] = {}
        self.find: dict[Landmark, HloInstruction] = {}
        seen: Counter[tuple[str, str]] = Counter()
        opcodes: defaultdict[str, list[str]] = defaultdict(list)
        for computation in sequential_computations(module):
            for instruction in xla_post_order(computation):
                if instruction.opcode in _UNNAMED:
                    continue
                line, opcode = _line(module, instruction), instruction.opcode
                landmark = Landmark(line, opcode, seen[line, opcode])
                seen[line, opcode] += 1
                opcodes[line].append(opcode)
                self.of[instruction] = landmark
                self.find[landmark] = instruction
        self.lines: Lines = {
            line: " ".join(sorted(opcodes[line])) for line in sorted(opcodes, key=_place)
        }


def match_lines(old: Lines, new: Lines) -> dict[str, str]:
    """Returns which line of a program is which line of another version of it.

    Lines that make the same, in the same order in their file, are the same; what stands between two
    such lines is matched where there are as many lines before as after.
    """
    matched: dict[str, str] = {}
    before, after = list(old), list(new)
    matcher = difflib.SequenceMatcher(
        None, [old[line] for line in before], [new[line] for line in after], autojunk=False
    )
    for tag, i, end_i, j, end_j in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and end_i - i == end_j - j):
            matched.update(zip(before[i:end_i], after[j:end_j], strict=True))
    return matched


def likeness(old: Lines, new: Lines) -> float:
    """Returns which share of what two versions make stands in lines that both have, 0 to 1."""
    before, after = list(old.values()), list(new.values())
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    same = (before[b.a : b.a + b.size] for b in matcher.get_matching_blocks())
    total = _count(before) + _count(after)
    return 2 * sum(map(_count, same)) / total if total else 0.0


def _count(lines: Sequence[str]) -> int:
    """Returns how many instructions lines make."""
    return sum(len(line.split()) for line in lines)


def _line(module: HloModule, instruction: HloInstruction) -> str:
    source = module.source(instruction)
    if source is None:
        return ""
    line = source.innermost
    return f"{line.file.rpartition('/')[2]}:{line.line}"


def _place(line: str) -> tuple[str, int]:
    file, _, number = line.rpartition(":")
    return (file, int(number)) if number.isdigit() else (line, 0)
