"""What may vary about a program's fusions: pipelines, the values of their rules, single edges.

    xla-2021                                       a named pipeline, where a search starts
    xla-2021 with fusion-merger{max-consumers=3}   a rule's value
    ... without its last pass                      a pass more, a pass less, two that change places
    ... and this edge not fused                    a single edge
    ... compiled with xla_cpu_prefer_vector_width=512

Each is one decision away from the one before. Whole numbers are halved and doubled, and small ones
also change by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from fuselane.fusion.pipelines import (
    PASSES,
    FixedPoint,
    FusionPass,
    Pipeline,
    Setting,
    parse_pipeline,
    pipeline_text,
    settings,
    with_setting,
)
from fuselane.tuning.candidate import Candidate, sort_options

MAX_PASSES: Final = 8
"""Longer pipelines are not tried, but for those a search starts from."""

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
        edges: Returns the plans that differ in one edge from a candidate's.
    """

    starting: Sequence[Candidate]
    xlas_own: str
    compiler_options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    edges: Callable[[Candidate], Sequence[str]] = lambda _: ()
    _known: dict[Candidate, list[Candidate]] = field(default_factory=dict)

    def starts(self) -> Sequence[Candidate]:
        """Returns where a search begins."""
        return self.starting

    def neighbours(self, candidate: Candidate) -> Sequence[Candidate]:
        """Returns what differs in one decision."""
        if candidate not in self._known:
            found = dict.fromkeys(self._around(candidate))
            found.pop(candidate, None)
            self._known[candidate] = list(found)
        return self._known[candidate]

    def _around(self, candidate: Candidate) -> Iterator[Candidate]:
        pipeline = parse_pipeline(candidate.fusion or self.xlas_own)
        for other in _pipelines_around(pipeline):
            yield replace(candidate, fusion=pipeline_text(other))
        for plan in self.edges(candidate):
            yield replace(candidate, fusion=pipeline_text(pipeline), plan=plan)
        for name, values in self.compiler_options.items():
            for value in values:
                options = dict(candidate.compiler_options)
                if options.get(name) == value:
                    del options[name]
                else:
                    options[name] = value
                yield replace(candidate, compiler_options=sort_options(options))


def _pipelines_around(pipeline: Pipeline) -> Iterator[Pipeline]:
    for at, fusion_pass in enumerate(pipeline):
        before, after = pipeline[:at], pipeline[at + 1 :]
        for other in _values_around(fusion_pass):
            yield (*before, other, *after)
        yield (*before, *after)
        if after:
            yield (*before, after[0], fusion_pass, *after[1:])
    if len(pipeline) < MAX_PASSES:
        for at in range(len(pipeline) + 1):
            for fusion_pass in PASSES.values():
                if not isinstance(fusion_pass, FixedPoint):
                    yield (*pipeline[:at], fusion_pass, *pipeline[at:])


def _values_around(fusion_pass: FusionPass) -> Iterator[FusionPass]:
    if isinstance(fusion_pass, FixedPoint):
        for passes in _pipelines_around(fusion_pass.passes):
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
