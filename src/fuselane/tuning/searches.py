"""The searches by name."""

from __future__ import annotations

from typing import Any, Final

from fuselane.tuning import annealing, beam, greedy
from fuselane.tuning.searching import Search

SEARCHES: Final[dict[str, Search[Any]]] = {
    "greedy": greedy.search,
    "beam": beam.search,
    "annealing": annealing.search,
}
