"""The space: which candidates are one decision apart."""

from __future__ import annotations

import pytest

from fuselane.fusion.pipelines import PASSES, PIPELINES, parse_pipeline, pipeline_text
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.space import MAX_PASSES, FusionSpace

OPTIONS = {"xla_width": ("128", "512")}


def space(*starts: str, **settings: object) -> FusionSpace:
    return FusionSpace(
        starting=[Candidate(text) for text in starts],
        xlas_own="xla-today-cpu",
        **settings,  # type: ignore[arg-type]
    )


def around(text: str) -> set[str]:
    return {candidate.fusion for candidate in space().neighbours(Candidate(text))}


def test_values_of_rules() -> None:
    """Whole numbers are halved and doubled, small ones change by one, flags flip."""
    near = around("instruction-fusion{max-duplication=20}")
    assert {
        "instruction-fusion{max-duplication=10}",
        "instruction-fusion{max-duplication=40}",
        "instruction-fusion{max-reduces=4,max-duplication=20}",
        "instruction-fusion{max-reduces=6,max-duplication=20}",
        "instruction-fusion{max-duplication=20,may-duplicate=false}",
    } <= near
    assert "instruction-fusion{max-duplication=21}" not in near


def test_passes_of_a_fixed_point() -> None:
    """What runs again and again varies as a pipeline does, and numbers are halved and doubled."""
    near = around("fixed-point(fusion-merger,fusion-cse)")
    assert {
        "fixed-point(fusion-merger)",
        "fixed-point(fusion-cse,fusion-merger)",
        "fixed-point(fusion-merger{max-consumers=2},fusion-cse)",
        "fixed-point(fusion-merger{max-bytes-ratio=2.2},fusion-cse)",
    } <= near


def test_passes_come_and_go() -> None:
    """One more at any place, one less, or two in the other order."""
    near = around("instruction-fusion{max-reduces=6},priority-fusion")
    assert {
        "instruction-fusion{max-reduces=6}",
        "priority-fusion",
        "priority-fusion,instruction-fusion{max-reduces=6}",
        "instruction-fusion,instruction-fusion{max-reduces=6},priority-fusion",
    } <= near


@pytest.mark.parametrize("name", PIPELINES)
def test_all_candidates_are_pipelines(name: str) -> None:
    """Of at most so many passes; none is the candidate itself, and each is there once."""
    near = [candidate.fusion for candidate in space().neighbours(Candidate(name))]
    assert len(near) == len(set(near))
    assert name not in near
    for text in near:
        assert pipeline_text(parse_pipeline(text)) == text


def test_pipelines_do_not_grow_for_ever() -> None:
    """Long ones only get shorter, or other values."""
    text = ",".join(["instruction-fusion{max-reduces=4}"] * MAX_PASSES)
    lengths = {len(parse_pipeline(other)) for other in around(text)}
    assert lengths == {MAX_PASSES - 1, MAX_PASSES}


def test_options_of_xla() -> None:
    """One changes, or goes back to its default."""
    near = space(compiler_options=OPTIONS).neighbours(
        Candidate("xla-today-cpu", compiler_options=(("xla_width", "128"),))
    )
    assert Candidate("xla-today-cpu") in near
    assert Candidate("xla-today-cpu", compiler_options=(("xla_width", "512"),)) in near
    with_default = space(compiler_options=OPTIONS).neighbours(Candidate("xla-today-cpu"))
    assert sum(bool(candidate.compiler_options) for candidate in with_default) == 2


def test_around_xlas_own() -> None:
    """A search that starts there goes on around the pipeline nearest to it."""
    assert around("") == around("xla-today-cpu")
    assert len(around("")) > len(PASSES)


def test_single_edges() -> None:
    """Plans come from whoever knows the module."""
    near = space(edges=lambda candidate: [candidate.fusion + "!"]).neighbours(Candidate("none"))
    assert Candidate("none", "none!") in near
