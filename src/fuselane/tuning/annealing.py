"""Simulated annealing: a neighbour of chance, taken if it is better, or sometimes if it is not.

    probability = exp(-(cost / present - 1) / temperature)

Each kind of decision is as likely as the others. The temperature falls with each question; when all
is frozen, it starts over from the best so far, a few times. So decisions that help only together
are found, however far apart.

Source: S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, Optimization by simulated annealing, 1983.
"""

from __future__ import annotations

import math
import random
from typing import Final

from fuselane.tuning.searching import Candidate, Cost, Space, rank

HOT: Final = 0.1
COLD: Final = 0.002
"""A candidate that costs as much more as the temperature is taken with probability 1/e."""

COOLING: Final = 0.98
NUM_ROUNDS: Final = 8
"""Rounds without a better best before it ends."""


def search(space: Space[Candidate], cost: Cost[Candidate], chance: random.Random) -> None:
    """Cools down, round by round, until rounds do not help any more."""
    best, candidate = rank(space.starts(), cost)[0]
    num_idle = 0
    while num_idle < NUM_ROUNDS:
        found, candidate = _cool(space, cost, chance, candidate, best)
        num_idle = 0 if found < best else num_idle + 1
        best = found


def _cool(
    space: Space[Candidate],
    cost: Cost[Candidate],
    chance: random.Random,
    candidate: Candidate,
    present: float,
) -> tuple[float, Candidate]:
    """Runs one round; returns the best of it."""
    best = present, candidate
    temperature = HOT
    while temperature > COLD:
        temperature *= COOLING
        kinds = [kind for kind in space.neighbours(candidate) if kind]
        if not kinds:
            break
        neighbour = chance.choice(chance.choice(kinds))
        price = cost(neighbour)
        if price <= present or chance.random() < _probability(price, present, temperature):
            present, candidate = price, neighbour
        if present < best[0]:
            best = present, candidate
    return best


def _probability(price: float, present: float, temperature: float) -> float:
    """Returns how likely a worse candidate is taken; both costs are more than zero."""
    if math.isinf(price):
        return 0.0
    return math.exp(-(price / present - 1) / temperature)
