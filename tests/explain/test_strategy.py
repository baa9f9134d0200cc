"""Reports with another fusion strategy than XLA's in force."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fuselane
from fuselane import explaining
from fuselane.boundary import BoundaryReason
from fuselane.config import Options
from fuselane.explain import strategy
from fuselane.explain.model import ModuleModel
from fuselane.explaining import SAME_NOTE, STRATEGY_NOTE, UNCHANGED_NOTE, report_on
from fuselane.fusion.pipelines import PIPELINES
from fuselane.tuning.choice import Choice
from fuselane.xla.capture import capture
from tests.gpu_extra import needs_gpu_extra


def rollout(x: jax.Array) -> Any:
    def step(c: jax.Array, _: None) -> Any:
        c = jnp.sin(c) * 2 + jnp.cos(c)
        d = c / (1 + c * c)
        return d * c, d[0]

    return jax.lax.scan(step, x, length=5)


def explained(function: Any = rollout) -> ModuleModel:
    (module,) = fuselane.explain(function, jnp.ones(500)).modules
    return module


def test_boundaries_are_the_strategys() -> None:
    plain = explained()
    with fuselane.enabled(fusion="xla-2021"):
        merged = explained()
    assert plain.notes == () and merged.notes == (STRATEGY_NOTE,)
    assert len(merged.kernels) < len(plain.kernels)
    assert [stage.pipeline for stage in merged.stages][-1] == "fuselane"
    reasons = {b.decision.reason for b in merged.boundaries}
    assert reasons <= {
        BoundaryReason.CONSTANT,
        BoundaryReason.COPY,
        BoundaryReason.ENTRY,
        BoundaryReason.EXIT,
        BoundaryReason.LOOP_CONTROL,
        BoundaryReason.LOOP_SHAPES,
        BoundaryReason.MULTI_OUTPUT,
    }


def test_a_function_compiled_by_a_strategy_is_explained_by_it() -> None:
    module = explained(fuselane.jit(rollout, fusion="instruction-fusion{may-duplicate=false}"))
    refused = [b for b in module.boundaries if b.crossing == "dataflow" and b.decision.xla]
    assert refused
    assert {b.decision.xla for b in refused} == {"pass cannot duplicate"}
    assert {b.decision.reason for b in refused} == {BoundaryReason.DUPLICATION}


def test_a_strategy_that_fails_leaves_xlas_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("of no use")

    plain = explained()
    monkeypatch.setattr(explaining, "apply", fail)
    with fuselane.enabled(fusion="instruction-fusion"):
        module = explained()
    assert module.kernels == plain.kernels
    (note,) = module.notes
    assert note.startswith("The fusion strategy failed") and "of no use" in note


def statistics(x: jax.Array) -> jax.Array:
    for _ in range(4):
        mean, largest = x.mean(0), x.max(0)
        x = jnp.sin(x) * mean + jnp.cos(x * largest)
    return x


def test_kernels_of_straight_line_code_are_shown() -> None:
    x = jnp.ones((512, 64))
    (plain,) = fuselane.explain(statistics, x).modules
    with fuselane.enabled(fusion="fuselane"):
        (module,) = fuselane.explain(statistics, x).modules
    (kernel,) = (kernel for kernel in module.kernels if kernel.kind == "fuselane")
    assert len(module.kernels) < len(plain.kernels)
    assert (kernel.bytes_read, kernel.bytes_written) == (x.nbytes, x.nbytes)
    assert 1 < kernel.modelled_us < sum(kernel.modelled_us for kernel in plain.kernels)
    assert kernel.source is not None and kernel.source.file == __file__
    (note,) = module.notes
    assert "goes on from XLA's fusions: it makes 1 kernel of Fuselane's of " in note
    assert BoundaryReason.UNKNOWN not in {b.decision.reason for b in module.boundaries}


def test_what_goes_on_from_xlas_fusions_and_changes_nothing_leaves_them() -> None:
    with fuselane.enabled(fusion="fuselane"):
        unchanged = explained(jnp.negative)
    plain = explained(jnp.negative)
    assert (unchanged.kernels, unchanged.boundaries) == (plain.kernels, plain.boundaries)
    note, refusal = unchanged.notes
    assert note == UNCHANGED_NOTE
    assert refusal.startswith("No kernel of Fuselane's for `") and "microseconds" in refusal


@needs_gpu_extra
def test_kernels_on_a_gpu_are_the_strategys() -> None:
    """As XLA's GPU compiler launches them; what passes said tells why they are apart."""

    def program(x: jax.Array) -> Any:
        return jnp.exp(jnp.sin(x)) * 2, jnp.cos(x).sum()

    def explained_for_gpu() -> ModuleModel:
        (module,) = fuselane.explain(program, jnp.ones((64, 500)), target="h100").modules
        return module

    plain = explained_for_gpu()
    with fuselane.enabled(fusion="none"):
        single = explained_for_gpu()
    with fuselane.enabled(fusion="xla-today-gpu"):
        same = explained_for_gpu()
    assert single.notes == (STRATEGY_NOTE,) and same.notes == (SAME_NOTE,)
    assert len(single.kernels) > len(plain.kernels) == len(same.kernels)
    assert all(kernel.registers for kernel in single.kernels)
    details = [b.decision.detail for b in single.boundaries]
    assert any(detail.startswith("No pass tried to fuse `") for detail in details)


def test_tuned_says_which_fusions_it_takes() -> None:
    captured = capture(jax.jit(rollout).lower(jnp.ones(500)))
    for passes, name in ((None, "XLA's own fusions"), (PIPELINES["xla-2021"], "`xla-2021`")):
        choice = Choice(strategy=passes)
        (module,) = report_on(captured, Options(tuned=True), choice).modules
        assert module.notes[0] == f"With the option tuned, this module gets {name}."
        assert len(module.notes) == (1 if passes is None else 2)


def test_every_answer_is_listed_yes_and_no() -> None:
    with fuselane.enabled(fusion="xla-2021"):
        report = fuselane.explain(rollout, jnp.ones(500))
    (module,) = report.modules
    assert module.strategy is not None
    answers = module.strategy.answers
    fused = [answer for answer in answers if answer.reason is None]
    refused = [answer for answer in answers if answer.reason is not None]
    assert all(answer.fusion for answer in fused) and all(answer.detail for answer in refused)
    assert any(answer.numbers for answer in answers)
    assert any(answer.source for answer in fused)
    assert sum(count.count for count in module.strategy.counts) == len(answers)
    lines = report.decided()
    assert len(lines.splitlines()) == 1 + len(answers)
    assert ": yes, in fusion" in lines and ": no, " in lines
    assert all(answer.fusion in report.trace(answer.fusion) for answer in fused[:3])


def test_of_many_answers_the_first_are_listed_and_all_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fuselane.enabled(fusion="xla-2021"):
        everything = explained().strategy
        monkeypatch.setattr(strategy, "MAX_LISTED", 1)
        report = fuselane.explain(rollout, jnp.ones(500))
    few = report.modules[0].strategy
    assert everything is not None and few is not None
    assert few.counts == everything.counts and len(few.answers) == len(few.counts)
    assert few.num_left_out == len(everything.answers) - len(few.answers) > 0
    assert report.decided().endswith(f"and {few.num_left_out:,} more")


def test_without_a_strategy_nothing_was_asked() -> None:
    report = fuselane.explain(rollout, jnp.ones(500))
    assert "No fusion strategy decided anything." in report.decided()
