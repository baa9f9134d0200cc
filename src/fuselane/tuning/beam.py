"""Beam search: the few best of all that is new around the few best before, round by round.

    beam  ->  all new neighbours  ->  the few best of them, better or not  ->  ...

Two decisions that help only together are found if one of them alone is among the best. It ends when
nothing is new, or some rounds have found nothing better.

Source: B. T. Lowerre, The Harpy speech recognition system, 1976.
"""

from __future__ import annotations

import random
from typing import Final

from fuselane.tuning.searching import Candidate, Cost, Space, around, rank

WIDTH: Final = 4
NUM_ROUNDS: Final = 8
"""Rounds without a better best before it ends."""


def search(space: Space[Candidate], cost: Cost[Candidate], chance: random.Random) -> None:
    """Moves the beam on until that does not help any more."""
    ranked = rank(space.starts(), cost)
    best, num_idle = ranked[0][0], 0
    seen = {candidate for _, candidate in ranked}
    while num_idle < NUM_ROUNDS:
        beam = [candidate for _, candidate in ranked[:WIDTH]]
        near = dict.fromkeys(n for candidate in beam for n in around(space, candidate, chance))
        new = [neighbour for neighbour in near if neighbour not in seen]
        if not new:
            return
        seen.update(new)
        ranked = rank(new, cost)
        num_idle = 0 if ranked[0][0] < best else num_idle + 1
        best = min(best, ranked[0][0])
