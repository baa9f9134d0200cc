"""What a search tries: how XLA's kernels are formed, and what XLA is told besides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One way to compile a program.

    Attributes:
        fusion: A pipeline as text, or "" for XLA's own fusions.
        compiler_options: Options of XLA by name, sorted, that differ from their defaults.
    """

    fusion: str = ""
    compiler_options: tuple[tuple[str, str], ...] = ()

    def to_text(self) -> str:
        """Returns the candidate as text that `from_text` reads back."""
        return json.dumps([self.fusion, dict(self.compiler_options)])

    @staticmethod
    def from_text(text: str) -> Candidate:
        """Returns the candidate that `to_text` wrote.

        Raises:
            ValueError: for any other text.
        """
        match json.loads(text):
            case [str(fusion), dict(options)]:
                return Candidate(fusion, sort_options(options))
        raise ValueError("The text is no candidate.")

    def __str__(self) -> str:
        parts = [self.fusion or "XLA's own fusions"]
        parts += [f"{name}={value}" for name, value in self.compiler_options]
        return " + ".join(parts)


def sort_options(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns compiler options as candidates have them."""
    return tuple(sorted((name, str(value)) for name, value in options.items()))
