"""The table of kernels as PTX: what it counts, and the bounds that it holds them to."""

from __future__ import annotations

from typing import Any

from ptx import AHEAD, KernelRow, find_broken, summarise


def rows(count: int, **more: Any) -> list[KernelRow]:
    """Loops alike, with PTX that takes 30 registers."""
    usual: dict[str, Any] = {"gpu": "G", "program": "p", "registers": 30, "spill_bytes": 0}
    return [KernelRow(**(usual | {"key": f"{more}{i}"} | more)) for i in range(count)]


def broken(*found: KernelRow) -> list[str]:
    return [text.partition(":")[0] for text in find_broken(summarise(found))]


def test_what_is_counted() -> None:
    found = [*rows(9), *rows(1, refusal=AHEAD, registers=None)]
    numbers = summarise(found)
    assert (numbers["loops"], numbers["assembled"], numbers["share"]) == (10, 9, 0.9)
    assert numbers["refused"] == {AHEAD: 1}
    assert not find_broken(numbers)
    assert not find_broken(summarise([*rows(98), *rows(2, registers=255, spill_bytes=1024)]))


def test_each_bound_can_be_broken() -> None:
    refused = rows(1, refusal=AHEAD, registers=None)
    assert broken(*rows(8), *refused) == ["without PTX"]
    assert broken(*rows(99), *rows(1, registers=None)) == ["rejected by ptxas"]
    assert broken(*rows(1), *rows(1, registers=70)) == ["median registers"]
    assert broken(*rows(97), *rows(3, spill_bytes=8)) == ["share with spills"]
    assert broken(*rows(99), *rows(1, spill_bytes=1028)) == ["share with many spills"]
    assert find_broken(summarise([*rows(8), *refused])) == ["without PTX: 0.1111, more than 0.1"]
