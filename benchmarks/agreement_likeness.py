"""How far two modules that came of one are alike: by their edges, and by what one kernel returns.

An edge is a value and an instruction that needs it in some kernel, and is either computed in that
kernel or read from memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from itertools import combinations
from typing import final

from fuselane.fusion.edges import Edge, Values, find_edges
from fuselane.hlo import HloModule


@final
@dataclass(frozen=True, slots=True)
class Likeness:
    """What two modules have in common.

    Attributes:
        edges: Edges in either module.
        same_edges: Edges in both.
        fused: Fused edges in either module.
        same_fused: Fused edges in both.
        pairs: Pairs of results of one kernel, in either module.
        same_pairs: Pairs in both.
    """

    edges: int = 0
    same_edges: int = 0
    fused: int = 0
    same_fused: int = 0
    pairs: int = 0
    same_pairs: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether both modules are alike."""
        return self.edges == self.same_edges and self.pairs == self.same_pairs

    def edges_alike(self, digits: int = 2) -> str:
        """Returns the share of edges in both, as text."""
        return _share(self.same_edges, self.edges, digits)

    def fused_alike(self, digits: int = 2) -> str:
        """Returns the share of fused edges in both, as text."""
        return _share(self.same_fused, self.fused, digits)

    def pairs_alike(self, digits: int = 2) -> str:
        """Returns the share of pairs in both, as text."""
        return _share(self.same_pairs, self.pairs, digits)


def total(of: Iterable[Likeness]) -> Likeness:
    """Returns the sums of all counts."""
    return Likeness(*map(sum, zip(*map(astuple, of), strict=True)))


def compare_modules(ours: HloModule, its: HloModule) -> Likeness:
    """Compares what became of a module in our hands and in XLA's."""
    values = Values()
    my_edges, my_kernels = find_edges(ours, values)
    its_edges, its_kernels = find_edges(its, values)
    my_pairs, its_pairs = _pairs_of(my_kernels), _pairs_of(its_kernels)
    return Likeness(
        edges=len(my_edges | its_edges),
        same_edges=len(my_edges & its_edges),
        fused=_count_fused(my_edges | its_edges),
        same_fused=_count_fused(my_edges & its_edges),
        pairs=len(my_pairs | its_pairs),
        same_pairs=len(my_pairs & its_pairs),
    )


def _count_fused(edges: set[Edge]) -> int:
    """Returns how many edges are within a kernel."""
    return sum(edge.is_fused for edge in edges)


def _pairs_of(kernels: set[frozenset[int]]) -> set[tuple[int, int]]:
    """Returns all pairs of results of one kernel."""
    return {pair for results in kernels for pair in combinations(sorted(results), 2)}


def _share(same: int, count: int, digits: int) -> str:
    return f"{same / count:.{digits}%}" if count else "-"
