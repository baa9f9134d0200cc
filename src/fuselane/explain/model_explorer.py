"""The graph as Google's Model Explorer reads it.

Source: google-ai-edge/model-explorer, `graph_builder.py`: a graph collection whose nodes lie in
layers by their namespace, with boundaries as edge overlays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fuselane.explain import costs
from fuselane.explain.graph import Graph, make_graph
from fuselane.explain.model import InstructionModel, ModuleModel
from fuselane.explain.palette import FAMILIES, Family
from fuselane.explain.units import format_bytes, format_opcodes, format_us


def to_model_explorer(modules: Sequence[ModuleModel]) -> str:
    """Returns a graph collection as JSON, one graph per module."""
    graphs = [_graph(module) for module in modules]
    return json.dumps({"label": "fuselane", "graphs": graphs}, allow_nan=False)


def _graph(module: ModuleModel) -> dict[str, Any]:
    graph = make_graph(module)
    incoming: dict[str, list[dict[str, str]]] = {x.name: [] for x in graph.instructions}
    for edge in graph.edges:
        edges = incoming[edge.consumer]
        ends = {"sourceNodeOutputId": "0", "targetNodeInputId": str(len(edges))}
        edges.append({"sourceNodeId": edge.producer, **ends})
    attributes = _kernel_attributes(module)
    namespaces = _namespaces(graph)
    nodes = [
        {
            "id": x.name,
            "label": x.opcode,
            "namespace": namespaces.get(x.computation, ""),
            "attrs": [*_attributes(x), *attributes.get(x.name, [])],
            "incomingEdges": incoming[x.name],
            "outputsMetadata": [{"id": "0", "attrs": [_attribute("shape", x.shape)]}],
        }
        for x in graph.instructions
    ]
    overlays = _overlays(module, graph)
    return {
        "id": f"{module.name} on {module.target}",
        "nodes": nodes,
        "tasksData": {"edgeOverlaysDataListLeftPane": [overlays]},
    }


def _namespaces(graph: Graph) -> dict[str, str]:
    """Returns the path of layers of each computation; names of instructions hold no slash."""
    computation_of = {x.name: x.computation for x in graph.instructions}
    paths: dict[str, str] = {}
    for computation in graph.caller:
        path: list[str] = []
        current = computation
        while current in graph.caller and len(path) < len(graph.caller):
            path.append(graph.caller[current].replace("/", "_"))
            current = computation_of[graph.caller[current]]
        paths[computation] = "/".join(reversed(path))
    return paths


def _attributes(instruction: InstructionModel) -> list[dict[str, str]]:
    values = {
        "name": instruction.name,
        "kernel": instruction.kernel,
        "source": "" if instruction.source is None else str(instruction.source),
        "op_name": instruction.op_name,
    }
    return [_attribute(key, value) for key, value in values.items() if value]


def _kernel_attributes(module: ModuleModel) -> dict[str, list[dict[str, str]]]:
    return {
        cost.kernel.name: [
            _attribute("kind", cost.kernel.kind),
            _attribute("computes", format_opcodes(cost.kernel.opcodes)),
            _attribute("launches", str(cost.kernel.launches or "?")),
            _attribute("modelled time", f"{format_us(cost.time_us)} ({cost.share:.1%})"),
            _attribute("bytes moved", format_bytes(cost.bytes)),
        ]
        for cost in costs.kernel_costs(module)
    }


def _overlays(module: ModuleModel, graph: Graph) -> dict[str, Any]:
    """Returns the boundaries as one overlay per family of reasons."""
    edges: dict[Family, list[dict[str, str]]] = {}
    for edge in graph.edges:
        for index in edge.boundaries:
            reason = module.boundaries[index].decision.reason
            ends = {"sourceNodeId": edge.producer, "targetNodeId": edge.consumer}
            edges.setdefault(FAMILIES[reason], []).append({**ends, "label": reason.code})
    overlays = [
        {"name": family.label, "edgeColor": family.on_light, "edges": edges[family]}
        for family in Family
        if family in edges
    ]
    return {"type": "edge_overlays", "name": "Boundaries", "overlays": overlays}


def _attribute(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}
