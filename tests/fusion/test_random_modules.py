"""Random modules under every named pipeline, and under random ones: XLA's results, valid modules
and the same decisions every time.

`FUSELANE_EXAMPLES=1000 pytest tests/fusion/test_random_modules.py` looks at more, and with
`FUSELANE_SEED=12` at those from seed 12 on.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from typing import Final

import numpy as np
import pytest

import fuselane
from fuselane.fusion.decision import FusionLog
from fuselane.fusion.pipelines import PIPELINES, parse_pipeline, pipeline_text
from fuselane.fusion.running import apply
from fuselane.fuzz.run import quick_options
from fuselane.hlo import HloModule
from fuselane.runtime import hook
from tests.differential.harness import no_warnings
from tests.fusion.random_modules import RandomModule, draw_module
from tests.fusion.random_pipelines import draw_pipeline
from tests.hlo.xla import Array, load, module_of, parse, to_text

FIRST: Final = int(os.environ.get("FUSELANE_SEED", "0"))
SEEDS: Final = range(FIRST, FIRST + int(os.environ.get("FUSELANE_EXAMPLES", "3")))
NUM_RANDOM: Final = 2
OPTIONS: Final = {"loops": False, "verify_hlo": True, "min_gain": 0.0, "cache_mib": 0}
NEAR: Final = 1e-3
"""How far results that round may be off, of the largest of an array."""


def draw_pipelines(seed: int) -> list[str]:
    """Returns all named pipelines and some random ones."""
    rng = random.Random(seed)
    drawn = [draw_pipeline(rng) for _ in range(NUM_RANDOM)]
    texts = [pipeline_text(passes) for passes in drawn]
    for text, passes in zip(texts, drawn, strict=True):
        assert parse_pipeline(text) == passes
    return [*PIPELINES, *texts]


def run_by_xla(module: RandomModule) -> tuple[list[Array], bytes]:
    """Returns plain XLA's results, and the module as its hook shows it."""
    options = quick_options()  # which compiles something, the first time
    with fuselane.enabled(loops=False, fusion=""), hook.observed() as shown:
        run = load(parse(module.text), options)
    (data,) = shown
    return run(*module.inputs), data


def fuse(data: bytes, pipeline: str) -> tuple[bytes, FusionLog]:
    """Returns what a pipeline makes of a module, and its decisions."""
    module = HloModule.from_bytes(data)
    log = apply(module, parse_pipeline(pipeline))
    return module.to_bytes(), log


def assert_same(actual: Array, expected: Array, near: bool) -> None:
    if not near:
        np.testing.assert_array_equal(actual, expected)
        return
    right = expected.astype(np.float64)
    largest = max(1.0, float(np.abs(right).max(initial=0.0)))
    np.testing.assert_allclose(actual.astype(np.float64), right, rtol=0, atol=NEAR * largest)


@pytest.mark.parametrize("seed", SEEDS)
def test_results_and_decisions(seed: int) -> None:
    """XLA's results, from modules that it accepts; fused once more, the same."""
    module = draw_module(seed)
    expected, shown = run_by_xla(module)
    for pipeline in draw_pipelines(seed):
        fused, log = fuse(shown, pipeline)
        to_text(fused)
        again, log_again = fuse(shown, pipeline)
        assert fused == again, pipeline
        assert log.steps == log_again.steps, pipeline
        with fuselane.enabled(**OPTIONS, fusion=pipeline), no_warnings():
            run = load(parse(module.text))
        results = run(*module.inputs)
        for at, values in enumerate(zip(results, expected, module.near, strict=True)):
            try:
                assert_same(*values)
            except AssertionError as error:
                pytest.fail(f"result {at} under {pipeline}: {error}")


def decide(seed: int) -> str:
    """Returns a digest of what all pipelines make of a random module, and of their decisions."""
    digest = hashlib.sha256()
    module = module_of(draw_module(seed).text)
    module.proto.ClearField("id")  # XLA counts modules
    shown = module.to_bytes()
    for pipeline in draw_pipelines(seed):
        fused, log = fuse(shown, pipeline)
        digest.update(fused + repr(log.steps).encode())
    return digest.hexdigest()


def test_the_same_in_another_process() -> None:
    """Whatever order Python's sets and identities have there."""
    here = [decide(seed) for seed in SEEDS]
    code = f"from {__name__} import decide\nprint([decide(s) for s in {SEEDS}])"
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == str(here)
