"""Which line of the user's program an instruction comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, final

from fuselane.hlo.proto import Message

_PASSED_OVER: Final = (
    "/site-packages/jax/",
    "/site-packages/jaxlib/",
    "/dist-packages/jax/",
    "/dist-packages/jaxlib/",
    "/jax/_src/",
)
_RUNNERS: Final = "/fuselane/xla/"
"""Files that trace functions, and run scripts, to see what they compile; no caller of theirs is a
part of the program."""
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|<string>$|<frozen ")
"""What the names of files that came with Python or a package hold, and of code they make."""
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
        library: The line of an installed package that this one led to, where the operation is one
            of that; else None.
    """

    file: str
    line: int
    function: str = ""
    end_line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)
    end_column: int = field(default=0, compare=False)
    library: SourceLine | None = None

    @property
    def innermost(self) -> SourceLine:
        """The line that says most exactly what the operation is: the library's, if there is one."""
        return self.library or self

    def __str__(self) -> str:
        name = self.file.rpartition("/")[2]
        place = f"{name}:{self.line}" + (f" ({self.function})" if self.function else "")
        return place if self.library is None else f"{place}, in {self.library}"


@final
class SourceLines:
    """The stack frames of a module.

    Built from its StackFrameIndexProto, all of whose ids count from 1, with 0 for none.
    """

    def __init__(self, index: Message) -> None:
        self._index = index
        self._found: dict[int, SourceLine | None] = {}

    def find(self, metadata: Message) -> SourceLine | None:
        """Returns the line that an OpMetadata points at, or None if it points at none.

        It is the innermost one of the user's, outside installed packages and Python's own, and
        knows the innermost one of a package's below it; where no line is the user's, that of the
        package. Frames inside JAX itself are passed over where there are others.
        """
        frame_id = metadata.stack_frame_id
        if frame_id not in self._found:
            self._found[frame_id] = self._choose(frame_id)
        found = self._found[frame_id]
        if found is None and metadata.source_file:
            return SourceLine(
                metadata.source_file,
                metadata.source_line,
                "",
                metadata.source_end_line,
                metadata.source_column,
                metadata.source_end_column,
            )
        return found

    def stack(self, frame_id: int) -> list[SourceLine]:
        """Returns a stack frame and its callers, innermost first."""
        return [self._line(file, location) for file, location in self._locations(frame_id)]

    def _locations(self, frame_id: int) -> Iterator[tuple[str, Message]]:
        """Yields the files and FileLocations of a stack frame and its callers, innermost first."""
        frames, locations = self._index.stack_frames, self._index.file_locations
        names = self._index.file_names
        for _ in range(len(frames)):
            frame = _by_id(frames, frame_id)
            if frame is None:
                break
            location = _by_id(locations, frame.file_location_id)
            if location is not None:
                yield _by_id(names, location.file_name_id) or "", location
            frame_id = frame.parent_frame_id

    def _line(self, file: str, location: Message) -> SourceLine:
        return SourceLine(
            file,
            location.line,
            _by_id(self._index.function_names, location.function_name_id) or "",
            location.end_line,
            location.column,
            location.end_column,
        )

    def _choose(self, frame_id: int) -> SourceLine | None:
        """Returns the line that tells most of a stack frame and its callers."""
        first = innermost = user = None
        for frame in self._locations(frame_id):
            first = first or frame
            if _RUNNERS in frame[0]:
                break
            if _is_passed_over(frame[0]):
                continue
            innermost = innermost or frame
            if not _INSTALLED.search(frame[0]):
                user = frame
                break
        chosen = user or innermost or first
        if chosen is None:
            return None
        line = self._line(*chosen)
        if innermost is None or chosen is innermost:
            return line
        return replace(line, library=self._line(*innermost))


def _by_id(items: Sequence[_T], number: int) -> _T | None:
    return items[number - 1] if 1 <= number <= len(items) else None


def _is_passed_over(file: str) -> bool:
    return any(directory in file for directory in _PASSED_OVER)
