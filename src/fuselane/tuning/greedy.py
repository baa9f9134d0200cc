"""Greedy search: from the best start, the first neighbour that is better, until none is.

    starts  ->  best  ->  first better neighbour  ->  ...  ->  nothing better next to it

What it finds is as good as anything that differs from it in one decision.
"""

from __future__ import annotations

import random

from fuselane.tuning.searching import Candidate, Cost, Space, around, rank


def search(space: Space[Candidate], cost: Cost[Candidate], chance: random.Random) -> None:
    """Walks downhill until it cannot."""
    present, candidate = rank(space.starts(), cost)[0]
    is_moving = True
    while is_moving:
        is_moving = False
        for neighbour in around(space, candidate, chance):
            price = cost(neighbour)
            if price < present:
                present, candidate, is_moving = price, neighbour, True
                break
