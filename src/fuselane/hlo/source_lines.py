"""Which line of the user's program an instruction comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, final

from fuselane.hlo.proto import Message

_PASSED_OVER: Final = (
    "/site-packages/jax/",
    "/site-packages/jaxlib/",
    "/dist-packages/jax/",
    "/dist-packages/jaxlib/",
    "/jax/_src/",
    "/fuselane/xla/",  # runs scripts to see what they compile
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program, and which part of it.

    Two that differ in columns alone are the same line, so they are equal.

    Attributes:
        file: Path as Python knew it.
        line: Counted from 1.
        function: Qualified name, or empty if unknown.
        end_line: Line where the expression ends; 0 if unknown.
        column: Where the expression starts in its line, counted from 0 in bytes of UTF-8; means
            nothing where `end_line` is 0.
        end_column: Behind its last character, in `end_line`.
    """

    file: str
    line: int
    function: str = ""
    end_line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)
    end_column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" + (f" ({self.function})" if self.function else "")


@final
class SourceLines:
    """The stack frames of a module.

    Built from its StackFrameIndexProto, all of whose ids count from 1, with 0 for none.
    """

    def __init__(self, index: Message) -> None:
        locations = [
            SourceLine(
                _by_id(index.file_names, location.file_name_id) or "",
                location.line,
                _by_id(index.function_names, location.function_name_id) or "",
                location.end_line,
                location.column,
                location.end_column,
            )
            for location in index.file_locations
        ]
        self._frames = [
            (_by_id(locations, frame.file_location_id), frame.parent_frame_id)
            for frame in index.stack_frames
        ]

    def find(self, metadata: Message) -> SourceLine | None:
        """Returns the innermost line that an OpMetadata points at, or None if it points at none.

        Frames inside JAX itself, and inside what runs scripts here, are passed over where there
        are others.
        """
        frames = self.stack(metadata.stack_frame_id)
        if frames:
            return next((frame for frame in frames if not _is_passed_over(frame.file)), frames[0])
        if metadata.source_file:
            return SourceLine(
                metadata.source_file,
                metadata.source_line,
                "",
                metadata.source_end_line,
                metadata.source_column,
                metadata.source_end_column,
            )
        return None

    def stack(self, frame_id: int) -> list[SourceLine]:
        """Returns a stack frame and its callers, innermost first."""
        lines: list[SourceLine] = []
        for _ in self._frames:
            frame = _by_id(self._frames, frame_id)
            if frame is None:
                break
            line, frame_id = frame
            if line is not None:
                lines.append(line)
        return lines


def _by_id(items: Sequence[_T], number: int) -> _T | None:
    return items[number - 1] if 1 <= number <= len(items) else None


def _is_passed_over(file: str) -> bool:
    return any(directory in file for directory in _PASSED_OVER)
