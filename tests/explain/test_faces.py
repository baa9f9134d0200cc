"""JSON with its schema, the difference of two reports, and graphs for other tools."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import jsonschema
import pytest

import fuselane
from fuselane.boundary import BoundaryReason
from fuselane.errors import InputError
from fuselane.explain.graph import make_graph
from fuselane.explain.model import SCHEMA_VERSION, BoundaryModel, KernelModel, ModuleModel
from fuselane.explain.palette import FAMILIES
from fuselane.explain.report import Report
from fuselane.explain.schema import json_schema
from fuselane.hlo.source_lines import SourceLine
from tests.explain.factory import large_module, rollout_module
from tests.explain.model_explorer_schema import GRAPH_COLLECTION

SCHEMA: Final = Path(__file__).resolve().parents[2] / "docs" / "report.schema.json"

DIFF: Final = """\
jit_rollout on rtx2080ti → jit_rollout on h100
4 → 3 kernels · 3,001 → 2,001 launches · 98.3 MB → 82.0 MB moved · 11.5 ms → 4 ms modelled

Kernels, by change of modelled time
-        6 ms  1,000 launches  16.4 MB  xor          rollout.py:10
~    3 → 1 ms  1,000 launches  32.8 MB  concatenate  rollout.py:13
~  2.5 → 3 ms  1,000 launches  49.2 MB  add          rollout.py:13

Boundaries, by change of bytes a run
-  16.4 MB  1 edge  concatenate-users: concatenate → add  rollout.py:13"""


def test_json_follows_its_schema() -> None:
    report = Report.of_modules([rollout_module(), large_module(num_instructions=300)], note="x")
    values = json.loads(report.json())
    jsonschema.validate(values, json_schema())
    rollout = values["modules"][0]
    assert values["schema"] == SCHEMA_VERSION
    kernel = rollout["kernels"][1]
    assert kernel["time_us"] == 3000 and kernel["bytes"] == 32_768_000
    assert kernel["intensity"] == 24_576 / 32_768
    assert values["modules"][0]["boundaries"][0]["decision"]["reason"] == "concatenate-users"
    assert (values["modules"][0]["launches"], values["modules"][0]["fuselane_launches"]) == (
        3001,
        2,
    )


def test_json_is_read_back() -> None:
    """What was written is what is read, so that a report kept can be compared with another."""
    report = Report.of_modules([rollout_module(), large_module(num_instructions=300)], note="x")
    again = Report.from_json(report.json())
    assert again == report
    assert again.text(width=100) == report.text(width=100)
    assert Report.from_json(Report(note="Off.").json()) == Report(note="Off.")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "The report cannot be read"),
        ("[]", "This JSON is not a report"),
        ('{"a": 1}', "This JSON is not a report"),
        ('{"schema": 0}', "The report has schema 0"),
        (f'{{"schema": {SCHEMA_VERSION}}}', "The report cannot be read: KeyError"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_bad_json_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        Report.from_json(text)


def test_json_with_a_field_of_another_type_is_refused() -> None:
    """Nothing of a report that was tampered with gets further than its reader."""
    values = json.loads(Report.of_modules([rollout_module()]).json())

    def places(value: Any) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            found.append((value, key))
            if isinstance(item, dict | list):
                found += places(item)
        return found

    derived = {"time_us", "share", "bytes", "intensity", "modelled_us", "bytes_moved", "launches"}
    refused = 0
    for holder, key in places(values["modules"]):
        if key in derived | {"fuselane_launches"}:
            continue
        before, holder[key] = holder[key], object
        with pytest.raises(InputError):
            Report.from_json(json.dumps(values, default=lambda _: [[{"x": [1]}]]))
        holder[key] = before
        refused += 1
    assert refused > 500


def test_the_schema_in_the_docs_is_up_to_date() -> None:
    """docs/report.schema.json is what the models say, with a description for every field."""
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == json_schema()
    for name, definition in json_schema()["$defs"].items():
        bare = [
            key for key, value in definition["properties"].items() if "description" not in value
        ]
        assert not bare, f"{name}: {bare} are not described"


def test_json_writes_null_for_what_it_cannot_write() -> None:
    module = rollout_module()
    endless = dataclasses.replace(
        module.kernels[0], flops=1.0, bytes_read=0, bytes_written=0, modelled_us=float("inf")
    )
    text = Report.of_modules([dataclasses.replace(module, kernels=(endless,))]).json()
    (kernel,) = json.loads(text)["modules"][0]["kernels"]
    assert kernel["intensity"] is None and kernel["modelled_us"] is None


def changed(module: ModuleModel) -> ModuleModel:
    """Returns the module for another target, with other numbers and without the random kernel."""

    def rename(text: str) -> str:
        return re.sub(r"\d+$", lambda number: str(int(number[0]) + 40), text)

    def kernel(old: KernelModel, us: float) -> KernelModel:
        return dataclasses.replace(old, name=rename(old.name), modelled_us=us)

    times = {"fusion.4": 1.0, "add.5": 3.0, "copy.9": 2.0}
    return dataclasses.replace(
        module,
        target="h100",
        kernels=tuple(kernel(k, times[k.name]) for k in module.kernels if k.name in times),
        boundaries=tuple(
            dataclasses.replace(b, producer=rename(b.producer), consumer=rename(b.consumer))
            for b in module.boundaries[1:]
        ),
        instructions=tuple(
            dataclasses.replace(x, name=rename(x.name)) for x in module.instructions
        ),
    )


def test_diff_matches_by_line_and_opcode() -> None:
    """Names differ in all of HLO's numbers; only what really changed is told."""
    module = rollout_module()
    diff = Report.of_modules([module]).diff(Report.of_modules([changed(module)]))
    assert diff.text() == DIFF
    assert str(diff) == diff.text()


def test_diff_of_equal_reports_is_empty() -> None:
    report = Report.of_modules([rollout_module()])
    (module,) = report.diff(report).modules
    assert module.kernels == module.boundaries == ()
    assert "No kernel and no boundary changed." in report.diff(report).text()
    assert Report().diff(Report()).text() == "There is nothing to compare."


def test_diff_follows_lines_that_moved() -> None:
    """Lines added above a function change no kernel."""
    module = rollout_module()

    def down(source: SourceLine | None) -> SourceLine | None:
        return source and dataclasses.replace(source, line=source.line + 20)

    moved = dataclasses.replace(
        module,
        kernels=tuple(dataclasses.replace(k, source=down(k.source)) for k in module.kernels),
        boundaries=tuple(dataclasses.replace(b, source=down(b.source)) for b in module.boundaries),
    )
    (diff,) = Report.of_modules([module]).diff(Report.of_modules([moved])).modules
    assert diff.kernels == diff.boundaries == ()


def test_diff_of_fuselane_on_and_off() -> None:
    """A kernel that came has no past, and says so in JSON."""
    module = rollout_module()
    kernel = dataclasses.replace(
        module.kernels[0], name="custom-call.1", kind="fuselane", launches=1, modelled_us=900.0
    )
    fused = dataclasses.replace(module, kernels=(kernel,), boundaries=())
    diff = Report.of_modules([module]).diff(Report.of_modules([fused]))
    came = [change for change in diff.modules[0].kernels if change.before is None]
    assert [(change.place, change.what) for change in came] == [("rollout.py:10", "fuselane")]
    went = [change for change in diff.modules[0].boundaries if change.after is None]
    assert len(went) == len(diff.modules[0].boundaries) == 4
    values = json.loads(diff.json())
    assert values["modules"][0]["totals"][1]["launches"] == 1


def test_diff_pairs_modules_by_name() -> None:
    one, two = rollout_module(), dataclasses.replace(rollout_module(), name="jit_other")
    text = Report.of_modules([one, two]).diff(Report.of_modules([two])).text()
    assert "jit_rollout on rtx2080ti went" in text and "jit_other on rtx2080ti\n" in text


def test_the_graph_leaves_out_what_passes_values_on() -> None:
    """Tuples and their elements are gone; edges lead past them and carry their boundaries."""
    module = rollout_module()
    graph = make_graph(module)
    names = {x.name for x in graph.instructions}
    assert names & {"init", "final", "carry.0", "carry.1"} == set()
    assert {"carry", "carried", "condition"} <= names | set(graph.caller)
    ends = {(edge.producer, edge.consumer): edge.boundaries for edge in graph.edges}
    assert ends["carry", "fusion.3"] == () and ends["fusion.3", "add.5"] == (1,)
    assert ends["while.1", "copy.9"] == (3,) and ends["state", "while.1"] == (4,)
    assert ("key", "while.1") in ends
    assert graph.caller == {
        "body": "while.1",
        "condition": "while.1",
        "fused_random": "fusion.3",
        "fused_step": "fusion.4",
    }


def test_the_graph_keeps_boundaries_whatever_their_ends() -> None:
    """An edge nobody would find among the operands is drawn; unknown names are no error."""
    module = rollout_module()
    far = dataclasses.replace(module.boundaries[0], producer="state", consumer="add.5")
    lost = dataclasses.replace(module.boundaries[0], producer="nowhere", consumer="add.5")
    graph = make_graph(dataclasses.replace(module, boundaries=(far, lost)))
    edges = [edge for edge in graph.edges if edge.boundaries]
    assert [(e.producer, e.consumer, e.boundaries) for e in edges] == [("state", "add.5", (0,))]


def test_the_graph_keeps_a_kernel_that_feeds_itself() -> None:
    """What it leaves for its next iteration is an edge from it to itself."""
    module = rollout_module()
    own = dataclasses.replace(module.boundaries[2], producer="add.5", consumer="add.5")
    graph = make_graph(dataclasses.replace(module, boundaries=(own,)))
    ends = [(e.producer, e.consumer) for e in graph.edges if e.boundaries]
    assert ends == [("add.5", "add.5")]


def test_a_module_that_calls_itself_has_faces(tmp_path: Path) -> None:
    """XLA knows no recursion, but files may come from anywhere."""
    module = rollout_module()
    calls = {"fusion.3": ("body",), "fusion.4": ("fused_step", "condition"), "sine.1": ("main",)}
    instructions = tuple(
        dataclasses.replace(x, calls=calls.get(x.name, x.calls), opcode=opcode)
        for x in module.instructions
        for opcode in ["fusion" if x.name in calls else x.opcode]
    )
    twisted = dataclasses.replace(module, instructions=(*instructions, instructions[0]))
    graph = make_graph(twisted)
    inside = {x.name: x.computation for x in graph.instructions}
    for computation in graph.caller:
        path = [computation]
        while path[-1] in graph.caller:
            path.append(inside[graph.caller[path[-1]]])
            assert len(path) == len(set(path))
    report = Report.of_modules([twisted])
    report.html(tmp_path / "report.html")
    assert report.dot() and report.model_explorer()


def test_every_reason_has_a_family() -> None:
    assert set(FAMILIES) == set(BoundaryReason)


def test_dot() -> None:
    """Kernels with their costs in the boxes of their loops; boundaries named, nothing unquoted."""
    module = rollout_module()
    kernel = dataclasses.replace(module.kernels[3], opcodes={'a"; b [': 1})
    text = Report.of_modules(
        [dataclasses.replace(module, kernels=(*module.kernels[:3], kernel))]
    ).dot()
    assert r'label="fusion.3\n52.2%, 6 ms, 16.4 MB\nrollout.py:10"' in text
    assert 'label="while.1 (while)"' in text and 'label="random-numbers"' in text
    assert "sine.1" not in text
    assert r'tooltip="copy: a\"; b ["' in text
    if dot := shutil.which("dot"):
        subprocess.run([dot, "-Tsvg"], input=text.encode(), check=True, capture_output=True)


def test_model_explorer() -> None:
    """Nodes lie in the layers of their boxes; every edge has a node at its other end."""
    collection = json.loads(Report.of_modules([rollout_module()]).model_explorer())
    jsonschema.validate(collection, GRAPH_COLLECTION)
    (graph,) = collection["graphs"]
    nodes: dict[str, Any] = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"])
    assert nodes["xor.1"]["namespace"] == "while.1/fusion.3"
    assert {"key": "source", "value": "rollout.py:10 (step)"} in nodes["xor.1"]["attrs"]
    assert [edge["sourceNodeId"] for edge in nodes["add.5"]["incomingEdges"]] == [
        "fusion.4",
        "fusion.3",
    ]
    for node in nodes.values():
        assert all(edge["sourceNodeId"] in nodes for edge in node["incomingEdges"])
        assert not {part for part in node["namespace"].split("/") if part} - set(nodes)
    (overlays,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    assert [overlay["name"] for overlay in overlays["overlays"]] == [
        "loops and branches",
        "random numbers",
        "repeated work",
        "copies and layout",
        "edges of the program",
    ]
    ends = [edge for overlay in overlays["overlays"] for edge in overlay["edges"]]
    assert all({edge["sourceNodeId"], edge["targetNodeId"]} <= set(nodes) for edge in ends)


@pytest.mark.parametrize("face", ["text", "annotated", "json", "dot", "model_explorer"])
def test_empty_reports_have_all_faces(face: str) -> None:
    for report in (Report(), Report.of_modules([ModuleModel(name="jit_f", target="cpu")])):
        assert getattr(report, face)()


def test_the_faces_of_a_real_program(tmp_path: Path) -> None:
    """What XLA makes of a loop with random numbers, from `explain` to every face."""

    def rollout(state: jax.Array, key: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> Any:
            state, key = carry
            key, draw = jax.random.split(key)
            return (jnp.sin(state) + jax.random.uniform(draw, state.shape), key), None

        return jax.lax.scan(step, (state, key), length=7)[0][0]

    report = fuselane.explain(rollout, jnp.ones((4, 64)), jax.random.key(0))
    (module,) = report.modules
    text, listing = report.text(width=100), report.annotated(width=100)
    assert "7 iterations" in text and "loop-control" in text and "test_faces.py" in text
    assert "draw, state.shape), key), None" in listing
    jsonschema.validate(json.loads(report.json()), json_schema())
    assert Report.from_json(report.json()) == report
    graph = make_graph(module)
    drawn = {x.name for x in graph.instructions}
    assert {kernel.name for kernel in module.kernels} <= drawn
    shown = {index for edge in graph.edges for index in edge.boundaries}
    hidden = [b for i, b in enumerate(module.boundaries) if i not in shown]
    assert all(b.decision.reason is BoundaryReason.EXIT for b in hidden)
    report.html(tmp_path / "report.html")
    assert report.dot()
    jsonschema.validate(json.loads(report.model_explorer()), GRAPH_COLLECTION)


def test_a_boundary_may_lack_everything() -> None:
    """No source, no detail, no known count."""
    module = rollout_module()
    bare: BoundaryModel = dataclasses.replace(
        module.boundaries[0], source=None, consumer_source=None, bytes_per_run=None
    )
    report = Report.of_modules([dataclasses.replace(module, boundaries=(bare,))])
    assert "fusion.4 → add.5  " in report.text(width=100) and "16.4 kB × ?" in report.text(
        width=100
    )
    assert "Without a source line" in report.annotated(width=100)
