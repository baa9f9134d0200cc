"""Numbers and names as people read them, the same in all faces of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuselane.hlo.source_lines import SourceLine

_BYTE_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_TIME_UNITS: Final = ((1.0, "µs"), (1e3, "ms"), (1e6, "s"))


def format_bytes(number: float) -> str:
    """Returns a number of bytes in decimal units and three digits: `32.8 kB`."""
    size = float(number)
    unit = 0
    while size >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        size /= 1000
        unit += 1
    return f"{_three_digits(size)} {_BYTE_UNITS[unit]}"


def format_us(microseconds: float) -> str:
    """Returns microseconds in the unit that fits, with three digits: `19.3 ms`."""
    scale, name = next(
        ((scale, name) for scale, name in _TIME_UNITS if microseconds < 999.5 * scale),
        _TIME_UNITS[-1],
    )
    return f"{_three_digits(microseconds / scale)} {name}"


def format_count(number: float | None) -> str:
    """Returns a count with thousands apart: `10,000`; `?` if it is only known at run time."""
    if number is None:
        return "?"
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.3g}"


def plural(number: float | None, noun: str, nouns: str = "") -> str:
    """Returns a count with its noun: `1 loop`, `2 loops`."""
    return f"{format_count(number)} {noun if number == 1 else nouns or noun + 's'}"


def format_opcodes(opcodes: Mapping[str, int]) -> str:
    """Returns opcodes, the most frequent ones first: `multiply×3 add sine`."""
    counted = sorted(opcodes.items(), key=lambda item: (-item[1], item[0]))
    return " ".join(opcode if count == 1 else f"{opcode}×{count}" for opcode, count in counted)


def format_place(source: SourceLine | None) -> str:
    """Returns a line without its function, `cartpole.py:57`, and the one of a library it led to,
    `train.py:12 > linear.py:271`; "" for none."""
    if source is None:
        return ""
    place = printable(f"{file_name(source.file)}:{source.line}")
    return place if source.library is None else f"{place} > {format_place(source.library)}"


def file_name(path: str) -> str:
    """Returns the last part of a path."""
    return path.rpartition("/")[2]


def printable(text: str) -> str:
    """Returns a text with what could steer a terminal made visible.

    Names come from the program and may hold anything.
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _three_digits(number: float) -> str:
    if number == 0 or number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}".rstrip("0").rstrip(".")
