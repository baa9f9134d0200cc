"""What searches ask for and what they are given; they know neither fusion nor time.

A search walks a space of candidates, asks what each costs, and goes on until nothing is left that
it would try, or until asking raises `BudgetOverError`, which it passes on. Whoever answers keeps
the best. With the same seed and the same answers it asks the same questions in the same order: that
is how a search is resumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

Candidate = TypeVar("Candidate", bound=Hashable)


class Space(Protocol[Candidate]):
    """What can be tried."""

    def starts(self) -> Sequence[Candidate]:
        """Returns where a search begins; at least one candidate."""

    def neighbours(self, candidate: Candidate) -> Sequence[Sequence[Candidate]]:
        """Returns what differs from a candidate in one decision, by the kind of decision.

        The order means nothing, and is always the same; the candidate itself is not among them.
        """


Cost = Callable[[Candidate], float]
"""Returns what a candidate costs, lower being better; infinity for one that cannot be used."""

Search = Callable[[Space[Candidate], Cost[Candidate], random.Random], None]


def rank(candidates: Iterable[Candidate], cost: Cost[Candidate]) -> list[tuple[float, Candidate]]:
    """Returns different candidates with their costs, cheapest first; equal ones stay in order."""
    priced = [(cost(candidate), candidate) for candidate in dict.fromkeys(candidates)]
    return sorted(priced, key=lambda pair: pair[0])


def around(space: Space[Candidate], candidate: Candidate, chance: random.Random) -> list[Candidate]:
    """Returns all neighbours in an order of chance, in which no kind of decision comes first."""
    kinds = [chance.sample(kind, len(kind)) for kind in space.neighbours(candidate)]
    order: list[Candidate] = []
    while kinds := [kind for kind in kinds if kind]:
        order.append(chance.choice(kinds).pop())
    return list(dict.fromkeys(order))
