"""One file with everything in it: data, style and scripts; no network.

Nothing of the program becomes markup. Its strings travel in a block of JSON in which `<` is
escaped, and the scripts put them on the page as text. A content security policy names the page's
own script and style by their hashes and forbids all others, and every connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Final

from fuselane.explain.html.payload import make_payload
from fuselane.explain.model import ModuleModel
from fuselane.explain.schema import finite

SCRIPTS: Final = (
    "format.js",
    "model.js",
    "layout.js",
    "scene.js",
    "curve.js",
    "painter.js",
    "graph.js",
    "source.js",
    "table.js",
    "timeline.js",
    "details.js",
    "search.js",
    "app.js",
)
"""The page's scripts in the order they are read."""


def make_html(modules: Sequence[ModuleModel], note: str) -> str:
    """Returns the page of some modules.

    Args:
        modules: May be none: the page then says so.
        note: A sentence about the whole, or "".
    """
    style = _read("style.css")
    script = "(() => {\n'use strict';\n" + "\n".join(map(_read, SCRIPTS)) + "})();\n"
    fields = {
        "title": html.escape(_title(modules)),
        "policy": html.escape(_policy(style, script)),
        "style": style,
        "script": script,
        "data": _data_block(make_payload(modules, note)),
    }
    pieces = _read("page.html").split("@@")
    return "".join(fields[x] if index % 2 else x for index, x in enumerate(pieces))


def _title(modules: Sequence[ModuleModel]) -> str:
    names = dict.fromkeys(f"{module.name} on {module.target}" for module in modules)
    return f"{next(iter(names), 'nothing')}{' and more' if len(names) > 1 else ''} · Fuselane"


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _data_block(payload: object) -> str:
    """Returns JSON in which nothing can be taken for the end of the block or for markup."""
    text = json.dumps(finite(payload), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
