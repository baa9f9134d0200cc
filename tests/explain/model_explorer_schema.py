"""What Google's Model Explorer reads, as a JSON schema that allows nothing else.

Source: google-ai-edge/model-explorer, `graph_builder.py` of ai-edge-model-explorer 0.1.34.
"""

from __future__ import annotations

from typing import Any, Final

_STRING: Final = {"type": "string"}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_ATTRIBUTES: Final = _list(_object({"key": _STRING, "value": _STRING}))
_METADATA: Final = _list(_object({"id": _STRING}, attrs=_ATTRIBUTES))
_INCOMING: Final = _object(
    {"sourceNodeId": _STRING}, sourceNodeOutputId=_STRING, targetNodeInputId=_STRING
)
_NODE: Final = _object(
    {"id": _STRING, "label": _STRING},
    namespace=_STRING,
    subgraphIds=_list(_STRING),
    attrs=_ATTRIBUTES,
    incomingEdges=_list(_INCOMING),
    outputsMetadata=_METADATA,
    inputsMetadata=_METADATA,
)
_OVERLAY: Final = _object(
    {"name": _STRING, "edgeColor": {"type": "string", "pattern": "^#[0-9a-f]{6}$"}},
    edges=_list(_object({"sourceNodeId": _STRING, "targetNodeId": _STRING}, label=_STRING)),
    edgeWidth={"type": "integer"},
    edgeLabelFontSize={"type": "number"},
)
_OVERLAYS: Final = _list(
    _object({"name": _STRING, "type": {"const": "edge_overlays"}}, overlays=_list(_OVERLAY))
)
_GRAPH: Final = _object(
    {"id": _STRING, "nodes": _list(_NODE)},
    tasksData=_object(
        {}, edgeOverlaysDataListLeftPane=_OVERLAYS, edgeOverlaysDataListRightPane=_OVERLAYS
    ),
)
GRAPH_COLLECTION: Final = _object({"label": _STRING, "graphs": _list(_GRAPH)})
