"""What may vary about a program's fusions: pipelines, the values of their rules, single edges.

    xla-2021                                       a named pipeline, where a search starts
    xla-2023                                       another one
    xla-2021 with fusion-merger{max-consumers=3}   a rule's value
    ... without its last pass                      a pass more, a pass less, two that change places
    xla-2021,fuse-edge{producer=1,consumer=2}      a single edge
    fuse-edge{producer=1,consumer=2}               ... after XLA's own fusions
    ... compiled with xla_cpu_prefer_vector_width=512

Each is one decision away from the one before. Whole numbers are halved and doubled, and small ones
also change by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from fuselane.fusion.fusion_cse import FusionCse
from fuselane.fusion.pipelines import (
    PASSES,
    PIPELINES,
    FixedPoint,
    FusionPass,
    Pipeline,
    Setting,
    parse_pipeline,
    pipeline_text,
    settings,
    with_setting,
)
from fuselane.fusion.single_edges import FuseEdge, SplitKernel
from fuselane.tuning.candidate import Candidate, sort_options

MAX_PASSES: Final = 8
"""Longer pipelines are not tried, but for those a search starts from, and single edges."""

MAX_EDGES: Final = 64

_SINGLE: Final = (FuseEdge, SplitKernel)
_NOTHING: Final = (FusionCse(),)
"""Passes that change nothing in front of others."""

_SMALL: Final = 8
_MAX_VALUE: Final = 2**24


@final
@dataclass(slots=True, kw_only=True)
class FusionSpace:
    """Ways to compile one program.

    Attributes:
        starting: Where a search begins.
        xlas_own: The pipeline that is nearest to what XLA does on the target, around which a search
            goes on if XLA's own fusions are the best so far.
        compiler_options: Values to try for options of XLA, by name.
        edges: Returns the single edges that can be decided otherwise in the module that a candidate
            makes, by kind.
    """

    starting: Sequence[Candidate]
    xlas_own: str
    compiler_options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    edges: Callable[[Candidate], Sequence[Sequence[FusionPass]]] = lambda _: ()
    _known: dict[Candidate, list[list[Candidate]]] = field(default_factory=dict)

    def starts(self) -> Sequence[Candidate]:
        """Returns where a search begins."""
        return self.starting

    def neighbours(self, candidate: Candidate) -> Sequence[Sequence[Candidate]]:
        """Returns what differs in one decision: in a rule's value, passes, an edge, an option; and
        the named pipelines."""
        if candidate not in self._known:
            self._known[candidate] = self._find(candidate)
        return self._known[candidate]

    def _find(self, candidate: Candidate) -> list[list[Candidate]]:
        whole = parse_pipeline(candidate.fusion) if candidate.fusion else ()
        rules = tuple(p for p in whole if not isinstance(p, _SINGLE))
        edges = tuple(p for p in whole if isinstance(p, _SINGLE))
        if candidate.fusion and not whole:
            whole = rules = _NOTHING  # edges alone go on from XLA's own fusions
        near = rules or parse_pipeline(self.xlas_own)
        kinds = [
            [(*other, *edges) for other in _values_around(near)],
            [(*other, *edges) for other in _passes_around(near)],
            [(*rules, *edges[:at], *edges[at + 1 :]) for at in range(len(edges))],
        ]
        kinds.append([p for p in PIPELINES.values() if not any(p in kind for kind in kinds)])
        if len(edges) < MAX_EDGES:
            kinds += [[(*whole, edge) for edge in kind] for kind in self.edges(candidate)]
        found = [[replace(candidate, fusion=pipeline_text(p)) for p in kind] for kind in kinds]
        if not rules and len(edges) == 1:
            found[2] = [replace(candidate, fusion="")]
        found.append(list(self._options_around(candidate)))
        return [[n for n in dict.fromkeys(kind) if n != candidate] for kind in found]

    def _options_around(self, candidate: Candidate) -> Iterator[Candidate]:
        for name, values in self.compiler_options.items():
            for value in values:
                options = dict(candidate.compiler_options)
                if options.get(name) == value:
                    del options[name]
                else:
                    options[name] = value
                yield replace(candidate, compiler_options=sort_options(options))


def simpler(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Yields a pipeline without one of its passes, or with one more setting as it usually is."""
    for at, fusion_pass in enumerate(pipeline):
        before, after = pipeline[:at], pipeline[at + 1 :]
        yield (*before, *after)
        if isinstance(fusion_pass, FixedPoint):
            yield (*before, *fusion_pass.passes, *after)
            for passes in simpler(fusion_pass.passes):
                yield (*before, replace(fusion_pass, passes=passes), *after)
        elif not isinstance(fusion_pass, _SINGLE):
            usual = settings(PASSES[fusion_pass.name])
            for key, value in settings(fusion_pass).items():
                if value != usual[key]:
                    yield (*before, with_setting(fusion_pass, key, usual[key]), *after)


def _passes_around(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Yields pipelines with a pass less or more, or two in the other order."""
    for at, fusion_pass in enumerate(pipeline):
        before, after = pipeline[:at], pipeline[at + 1 :]
        yield (*before, *after)
        if after:
            yield (*before, after[0], fusion_pass, *after[1:])
        if isinstance(fusion_pass, FixedPoint):
            for passes in _passes_around(fusion_pass.passes):
                yield (*before, replace(fusion_pass, passes=passes), *after)
    if len(pipeline) < MAX_PASSES:
        for at in range(len(pipeline) + 1):
            for fusion_pass in PASSES.values():
                if not isinstance(fusion_pass, (FixedPoint, *_SINGLE)):
                    yield (*pipeline[:at], fusion_pass, *pipeline[at:])


def _values_around(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Yields pipelines with another value of one rule."""
    for at, fusion_pass in enumerate(pipeline):
        for other in _other_values(fusion_pass):
            yield (*pipeline[:at], other, *pipeline[at + 1 :])


def _other_values(fusion_pass: FusionPass) -> Iterator[FusionPass]:
    if isinstance(fusion_pass, FixedPoint):
        for passes in _values_around(fusion_pass.passes):
            yield replace(fusion_pass, passes=passes)
        return
    for key, value in settings(fusion_pass).items():
        for other in _around_value(value):
            yield with_setting(fusion_pass, key, other)


def _around_value(value: Setting) -> Sequence[Setting]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value / 2, value * 2]
    near = {value // 2, value * 2}
    if value <= _SMALL:
        near |= {value - 1, value + 1}
    return [other for other in sorted(near) if 0 <= other <= _MAX_VALUE and other != value]
