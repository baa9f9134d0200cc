"""The space: which candidates are one decision apart."""

from __future__ import annotations

import pytest

from fuselane.fusion.pipelines import PASSES, PIPELINES, parse_pipeline, pipeline_text, refines
from fuselane.fusion.single_edges import FuseEdge, SplitKernel
from fuselane.tuning.candidate import Candidate
from fuselane.tuning.space import MAX_PASSES, FusionSpace, simpler

OPTIONS = {"xla_width": ("128", "512")}


def space(*starts: str, **settings: object) -> FusionSpace:
    return FusionSpace(
        starting=[Candidate(text) for text in starts],
        xlas_own="xla-today-cpu",
        **settings,  # type: ignore[arg-type]
    )


def around(text: str) -> set[str]:
    return {candidate.fusion for candidate in near(space(), Candidate(text))}


def near(space: FusionSpace, candidate: Candidate) -> list[Candidate]:
    """Returns neighbours of all kinds."""
    return [neighbour for kind in space.neighbours(candidate) for neighbour in kind]


def test_values_of_rules() -> None:
    """Whole numbers are halved and doubled, small ones change by one, flags flip."""
    found = around("instruction-fusion{max-duplication=20}")
    assert {
        "instruction-fusion{max-duplication=10}",
        "instruction-fusion{max-duplication=40}",
        "instruction-fusion{max-reduces=4,max-duplication=20}",
        "instruction-fusion{max-reduces=6,max-duplication=20}",
        "instruction-fusion{max-duplication=20,may-duplicate=false}",
    } <= found
    assert "instruction-fusion{max-duplication=21}" not in found


def test_passes_of_a_fixed_point() -> None:
    """What runs again and again varies as a pipeline does, and numbers are halved and doubled."""
    found = around("fixed-point(fusion-merger,fusion-cse)")
    assert {
        "fixed-point(fusion-merger)",
        "fixed-point(fusion-cse,fusion-merger)",
        "fixed-point(fusion-merger{max-consumers=2},fusion-cse)",
        "fixed-point(fusion-merger{max-bytes-ratio=2.2},fusion-cse)",
    } <= found


def test_passes_come_and_go() -> None:
    """One more at any place, one less, or two in the other order."""
    found = around("instruction-fusion{max-reduces=6},priority-fusion")
    assert {
        "instruction-fusion{max-reduces=6}",
        "priority-fusion",
        "priority-fusion,instruction-fusion{max-reduces=6}",
        "instruction-fusion,instruction-fusion{max-reduces=6},priority-fusion",
    } <= found


@pytest.mark.parametrize("name", PIPELINES)
def test_all_candidates_are_pipelines(name: str) -> None:
    """Of at most so many passes; none is the candidate itself, and each is there once."""
    found = [candidate.fusion for candidate in near(space(), Candidate(name))]
    assert len(found) == len(set(found))
    assert name not in found
    for text in found:
        assert pipeline_text(parse_pipeline(text)) == text


@pytest.mark.parametrize("text", ["xla-2021", "instruction-fusion{max-reduces=6}", ""])
def test_named_pipelines_are_near(text: str) -> None:
    """Wherever a search is, it may go on from one of them."""
    assert set(PIPELINES) - {text} <= around(text)


def test_pipelines_do_not_grow_for_ever() -> None:
    """Long ones only get shorter, or other values."""
    text = ",".join(["instruction-fusion{max-reduces=4}"] * MAX_PASSES)
    lengths = {len(parse_pipeline(other)) for other in around(text) - set(PIPELINES)}
    assert lengths == {MAX_PASSES - 1, MAX_PASSES}


def test_options_of_xla() -> None:
    """One changes, or goes back to its default."""
    ways = space(compiler_options=OPTIONS)
    found = near(ways, Candidate("xla-today-cpu", (("xla_width", "128"),)))
    assert Candidate("xla-today-cpu") in found
    assert Candidate("xla-today-cpu", (("xla_width", "512"),)) in found
    with_default = near(ways, Candidate("xla-today-cpu"))
    assert sum(bool(candidate.compiler_options) for candidate in with_default) == 2


def test_around_xlas_own() -> None:
    """A search that starts there goes on around the pipeline nearest to it."""
    assert around("") - {"xla-today-cpu"} == around("xla-today-cpu")
    assert len(around("")) > len(PASSES)


def test_edges_of_xlas_own_and_of_nothing() -> None:
    """Edges alone refine XLA's own fusions, so what fuses nothing is told apart from that."""
    edge = FuseEdge(producer=1, consumer=2)
    ways = space(edges=lambda _: [[edge]])
    assert Candidate("fuse-edge{producer=1,consumer=2}") in near(ways, Candidate())
    assert Candidate("fusion-cse,fuse-edge{producer=1,consumer=2}") in near(ways, Candidate("none"))
    assert refines((edge,))
    assert not refines(parse_pipeline("fusion-cse,fuse-edge{producer=1,consumer=2}"))


def test_single_edges() -> None:
    """They follow the rules; their numbers are not varied, and each can be taken back."""
    edge, other = FuseEdge(producer=1, consumer=2), SplitKernel(kernel=3, value=4)
    ways = space(edges=lambda _: [[edge]])
    texts = {candidate.fusion for candidate in near(ways, Candidate(pipeline_text((other,))))}
    both = "split-kernel{kernel=3,value=4},fuse-edge{producer=1,consumer=2}"
    assert {both, "", "priority-fusion,instruction-fusion,split-kernel{kernel=3,value=4}"} <= texts
    assert not any("kernel=6" in text for text in texts)


def test_simpler() -> None:
    """A pass less, a setting as it usually is, or passes that run once only."""
    text = "fixed-point(fusion-merger{max-consumers=3},fusion-cse),fuse-edge{producer=1}"
    assert [pipeline_text(pipeline) for pipeline in simpler(parse_pipeline(text))] == [
        "fuse-edge{producer=1}",
        "fusion-merger{max-consumers=3},fusion-cse,fuse-edge{producer=1}",
        "fixed-point(fusion-cse),fuse-edge{producer=1}",
        "fixed-point(fusion-merger,fusion-cse),fuse-edge{producer=1}",
        "fixed-point(fusion-merger{max-consumers=3}),fuse-edge{producer=1}",
        "fixed-point(fusion-merger{max-consumers=3},fusion-cse)",
    ]
