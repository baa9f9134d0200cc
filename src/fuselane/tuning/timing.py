"""Which of two programs is faster, on a machine on which other things run too.

Both run in turns, so that whatever else goes on falls on both. Each pair of runs gives a ratio of
times. The newcomer is taken to be faster if it was so in more pairs than chance explains (a sign
test) and by more than a trifle in the median. Pairs are run until that is settled: a newcomer that
is clearly slower is given up after three.

The test is asked after each pair, and of many newcomers, so now and then chance does win; the limit
is set with that in mind, and who reports a gain should measure it once more.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

Run = Callable[[], object]
"""Runs a program once, to its end."""

CHANCE: Final = 0.01
"""How likely the pairs seen may be at most between two programs that are equally fast."""

MIN_GAIN: Final = 0.005
"""Share of the time that a newcomer has to save."""

MIN_SAMPLE_S: Final = 0.002
"""Shorter programs run several times in a row, as one run."""

_GIVE_UP: Final = ((3, 1.15), (6, 1.03), (12, 1.0))
"""Pairs after which a newcomer is given up whose median ratio is above."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What pairs of runs say.

    Attributes:
        ratio: Median of the newcomer's time, divided by the other's.
        is_faster: Whether the newcomer is faster beyond chance.
        num_pairs: How many there were.
    """

    ratio: float
    is_faster: bool
    num_pairs: int


def compare(
    newcomer: Run,
    incumbent: Run,
    *,
    max_pairs: int = 40,
    max_s: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Runs two programs in turns until it is clear which one is faster.

    Args:
        newcomer: The program that wants to be better; has run before.
        incumbent: The one it is compared with; has run before.
        max_pairs: Most pairs of runs; not settled by then means not faster.
        max_s: Seconds after which no further pair is begun; three are always run.
        clock: Seconds.
    """
    start = clock()
    repeats = _repeats(incumbent, clock)
    ratios: list[float] = []
    while True:
        # The order changes from pair to pair: what comes second may find warmer caches.
        if len(ratios) % 2:
            old = _time(incumbent, repeats, clock)
            new = _time(newcomer, repeats, clock)
        else:
            new = _time(newcomer, repeats, clock)
            old = _time(incumbent, repeats, clock)
        ratios.append(new / old if old > 0 else math.inf)
        is_faster = is_surely_faster(ratios)
        is_over = len(ratios) >= 3 and clock() - start > max_s
        if is_faster or is_over or len(ratios) >= max_pairs or _is_hopeless(ratios):
            return Comparison(
                ratio=statistics.median(ratios), is_faster=is_faster, num_pairs=len(ratios)
            )


def is_surely_faster(ratios: list[float]) -> bool:
    """Whether pairs of runs show that the newcomer is faster."""
    wins = sum(ratio < 1 for ratio in ratios)
    total = len(ratios)
    tail = sum(math.comb(total, k) for k in range(wins, total + 1)) / 2**total
    return tail <= CHANCE and statistics.median(ratios) < 1 - MIN_GAIN


def _is_hopeless(ratios: list[float]) -> bool:
    median = statistics.median(ratios)
    return any(len(ratios) >= pairs and median > limit for pairs, limit in _GIVE_UP)


def _repeats(run: Run, clock: Callable[[], float]) -> int:
    """Returns how often to run a program in a row."""
    once = _time(run, 1, clock)
    return max(1, math.ceil(MIN_SAMPLE_S / max(once, 1e-9))) if once < MIN_SAMPLE_S else 1


def _time(run: Run, repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return clock() - start
