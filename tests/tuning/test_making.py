"""Which modules are worth a run."""

from __future__ import annotations

import pytest

from fuselane.fusion.pipelines import Pipeline, run_pipeline
from fuselane.hlo.module import HloModule
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.evaluation import RefusedError
from fuselane.tuning.making import Made, Maker
from tests.hlo.xla import module_of


def chain(length: int) -> bytes:
    """Returns a module of so many single instructions in a row."""
    lines = [f"v{i + 1} = f32[8] sine(v{i})" for i in range(length)]
    text = " ".join(lines)
    return module_of(
        f"HloModule m ENTRY main {{ v0 = f32[8] parameter(0) {text}"
        f" ROOT r = f32[8] negate(v{length}) }}"
    ).to_bytes()


def maker(xla: bytes, source: bytes, max_registers: int = 99) -> Maker:
    def fuse(passes: Pipeline | None) -> Made:
        module = HloModule.from_bytes(xla if passes is None else source)
        run_pipeline(passes or (), module)
        return Made(module=module)

    return Maker(xla=xla, fuse=fuse, max_registers=max_registers)


def test_many_more_kernels_than_xlas() -> None:
    """They are refused; fused into few, or where XLA has as many, they are not."""
    with pytest.raises(RefusedError, match="would make 101 kernels, where XLA makes 4"):
        maker(chain(3), chain(100)).make(Candidate("none"))
    maker(chain(3), chain(100)).make(Candidate("xla-today-cpu"))
    maker(chain(99), chain(100)).make(Candidate("none"))


def test_too_many_registers() -> None:
    """Above the limit, unless XLA's own needs as many."""
    with pytest.raises(RefusedError, match="would take 1 registers, more than 0"):
        maker(chain(3), chain(3), 0).make(Candidate("xla-today-cpu"))
    maker(chain(3), chain(3), 1).make(Candidate("xla-today-cpu"))
