"""The boundaries of a module: its edges, each with its reason and the user's lines."""

from __future__ import annotations

from collections.abc import Iterable

from fuselane.explain.edges import Edge, EdgeKind
from fuselane.explain.expressions import read_expression
from fuselane.explain.model import BoundaryModel
from fuselane.explain.provenance import Provenance
from fuselane.explain.why import Judge


def describe_boundaries(
    edges: Iterable[Edge], judge: Judge, provenance: Provenance
) -> tuple[BoundaryModel, ...]:
    """Returns the boundaries of a module, most bytes per run first."""
    found = [_describe(edge, judge, provenance) for edge in edges]
    return tuple(sorted(found, key=_bytes_per_run, reverse=True))


def _describe(edge: Edge, judge: Judge, provenance: Provenance) -> BoundaryModel:
    source, consumer_source = map(provenance.line, (edge.producer, edge.consumer))
    return BoundaryModel(
        producer=edge.producer.name,
        consumer=_name_consumer(edge),
        shape=str(edge.shape),
        num_bytes=edge.num_bytes,
        bytes_per_run=None if edge.count is None else edge.num_bytes * edge.count,
        decision=judge.decide(edge),
        crossing=edge.kind.name.lower(),
        loop=edge.loop.name if edge.loop else "",
        source=source,
        consumer_source=consumer_source,
        expression=read_expression(source),
        consumer_expression=read_expression(consumer_source),
    )


def _name_consumer(edge: Edge) -> str:
    """Returns the consumer's name; for a result of the program that of the entry computation."""
    computation = edge.consumer.computation
    if edge.kind is EdgeKind.EXIT and computation is not None:
        return computation.name
    return edge.consumer.name


def _bytes_per_run(boundary: BoundaryModel) -> tuple[float, int]:
    run = boundary.bytes_per_run
    return (boundary.num_bytes if run is None else run, boundary.num_bytes)
