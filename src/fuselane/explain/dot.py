"""The kernels of a program and what crosses between them, for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fuselane.explain import costs
from fuselane.explain.costs import KernelCost
from fuselane.explain.graph import Edge, Graph, make_graph
from fuselane.explain.model import InstructionModel, ModuleModel
from fuselane.explain.palette import FAMILIES
from fuselane.explain.units import format_bytes, format_opcodes, format_place, format_us


def to_dot(modules: Sequence[ModuleModel]) -> str:
    """Returns one directed graph: a cluster per module and per loop, a node per kernel.

    The insides of fusions are left out. Edges that stay boundaries have the colour of their
    reason's family and name it.
    """
    lines = [
        "digraph fuselane {",
        "  compound=true; rankdir=TB; ranksep=0.4;",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica];',
        "  edge [color=gray, fontname=Helvetica, fontsize=9];",
    ]
    for index, module in enumerate(modules):
        lines += [f"  {line}" for line in _module_lines(module, f"m{index}")]
    return "\n".join([*lines, "}", ""])


def _module_lines(module: ModuleModel, prefix: str) -> Iterator[str]:
    graph = make_graph(module)
    costs_by_kernel = {cost.kernel.name: cost for cost in costs.kernel_costs(module)}
    fusions = {x.name for x in graph.instructions if x.opcode == "fusion"}
    inside = {name for name, caller in graph.caller.items() if caller in fusions}
    shown = [x for x in graph.instructions if x.computation not in inside]
    ids = {x.name: f"{prefix}_{index}" for index, x in enumerate(shown)}
    yield f"subgraph cluster_{prefix} {{"
    yield f"  label={_quote(f'{module.name} on {module.target}')};"
    boxes = _by_box(graph, shown)
    yield from _box_lines(boxes, "", ids, costs_by_kernel)
    for edge in graph.edges:
        if edge.producer in ids and edge.consumer in ids:
            attributes = [*_edge_ends(edge, boxes, ids), *_edge_look(module, edge)]
            ends = f"{ids[edge.producer]} -> {ids[edge.consumer]}"
            yield f"  {ends} [{', '.join(attributes)}];" if attributes else f"  {ends};"
    yield "}"


def _by_box(graph: Graph, shown: Sequence[InstructionModel]) -> dict[str, list[InstructionModel]]:
    """Returns the instructions by the name of the instruction in whose box they are drawn."""
    boxes: dict[str, list[InstructionModel]] = {}
    for instruction in shown:
        boxes.setdefault(graph.caller.get(instruction.computation, ""), []).append(instruction)
    return boxes


def _box_lines(
    boxes: Mapping[str, Sequence[InstructionModel]],
    box: str,
    ids: Mapping[str, str],
    costs_by_kernel: Mapping[str, KernelCost],
) -> Iterator[str]:
    for instruction in boxes.get(box, ()):
        name = ids[instruction.name]
        if instruction.name in boxes:
            yield f"  subgraph cluster_{name} {{"
            yield f"    label={_quote(f'{instruction.name} ({instruction.opcode})')};"
            yield f"    {name} [shape=point, style=invis];"
            for line in _box_lines(boxes, instruction.name, ids, costs_by_kernel):
                yield f"  {line}"
            yield "  }"
        else:
            yield f"  {name} [{_label(instruction, costs_by_kernel.get(instruction.name))}];"


def _label(instruction: InstructionModel, cost: KernelCost | None) -> str:
    if cost is None:
        label = f"label={_quote(f'{instruction.opcode} {instruction.name}')}"
        return f"{label}, fillcolor=gray95, color=gray, tooltip={_quote(instruction.shape)}"
    kernel = cost.kernel
    size = f"{cost.share:.1%}, {format_us(cost.time_us)}, {format_bytes(cost.bytes)}"
    rows = [kernel.name, size, format_place(kernel.source)]
    label = _quote("\n".join(row for row in rows if row))
    return f"label={label}, tooltip={_quote(f'{kernel.kind}: {format_opcodes(kernel.opcodes)}')}"


def _edge_ends(edge: Edge, boxes: Mapping[str, object], ids: Mapping[str, str]) -> list[str]:
    """Returns what makes an edge stop at the border of a box."""
    ends = (("ltail", edge.producer), ("lhead", edge.consumer))
    return [f"{end}=cluster_{ids[name]}" for end, name in ends if name in boxes]


def _edge_look(module: ModuleModel, edge: Edge) -> list[str]:
    if not edge.boundaries:
        return []
    boundary = module.boundaries[edge.boundaries[0]]
    reason = boundary.decision.reason
    attributes = [f"color={_quote(FAMILIES[reason].on_light)}"]
    if reason not in costs.EDGES_OF_THE_PROGRAM:
        attributes.append(f"label={_quote(reason.code)}")
    tooltip = f"{edge.shape}: {boundary.decision.detail or reason.sentence}"
    return [*attributes, f"edgetooltip={_quote(tooltip)}"]


def _quote(text: str) -> str:
    r"""Returns a string of the DOT language; Graphviz reads `\n` in it as a new line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
