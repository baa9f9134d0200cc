"""Random pipelines of fusion passes, with random values of their rules."""

from __future__ import annotations

import random
from typing import Final

from fuselane.fusion.pipelines import (
    PASSES,
    PIPELINES,
    FixedPoint,
    Pipeline,
    Setting,
    settings,
    with_setting,
)

_NAMES: Final = tuple(name for name in PASSES if name != FixedPoint.name)


def draw_pipeline(rng: random.Random, max_passes: int = 4, depth: int = 0) -> Pipeline:
    """Returns a pipeline of passes, named ones among them, and repeated ones."""
    passes: Pipeline = ()
    for _ in range(rng.randint(1, max_passes)):
        drawn = rng.random()
        if drawn < 0.15:
            passes += rng.choice(tuple(PIPELINES.values()))
        elif drawn < 0.3 and depth < 2:
            inner = draw_pipeline(rng, 2, depth + 1)
            passes += (FixedPoint(passes=inner, max_rounds=rng.choice((0, 1, 2, 25))),)
        else:
            fusion_pass = PASSES[rng.choice(_NAMES)]
            known = settings(fusion_pass)
            for key in rng.sample(sorted(known), rng.randint(0, min(4, len(known)))):
                fusion_pass = with_setting(fusion_pass, key, _draw_value(rng, known[key]))
            passes += (fusion_pass,)
    return passes


def _draw_value(rng: random.Random, usual: Setting) -> Setting:
    if isinstance(usual, bool):
        return not usual
    if isinstance(usual, float):
        return usual * rng.choice((0.0, 0.5, 2.0, 100.0))
    return rng.choice((0, 1, 2, 3, 5, max(usual // 2, 0), max(usual * 2, 0), 2**24))
