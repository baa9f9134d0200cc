"""Who may import whom, and other rules of the house that can be read off the syntax tree."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeGuard

import pytest

PACKAGE: Final = Path(__file__).resolve().parents[1] / "src" / "fuselane"
FILES: Final = sorted(PACKAGE.rglob("*.py"))

# What every layer above may use, each with what it may itself use of the others.
FOUNDATION: Final = {
    "boundary": set[str](),
    "collector": set[str](),
    "decisions": set[str](),
    "errors": {"decisions"},
    "budget": {"decisions", "errors"},
    "config": {"decisions", "errors"},
    "device": {"config", "decisions", "errors"},
    "contract": set[str](),
    "gpu": set[str](),
    "files": set[str](),
    "later": set[str](),
    "peek": set[str](),
}
# A name stands for a room (all its files), a file at the top, or one file of a room.
LAYERS: Final = FOUNDATION | {
    "hlo": {"budget", "errors"},
    "analysis": {"hlo", *FOUNDATION},
    "lanes": {"analysis", "hlo", *FOUNDATION},
    "codegen": {
        "analysis.cost",
        "analysis.gpu_time",
        "analysis.machine_costs",
        "analysis.opcodes",
        "hlo",
        "lanes.program",
        *FOUNDATION,
    },
    "runtime": {
        "analysis.machine_costs",
        "codegen.ffi_calls",
        "codegen.ffi_handler",
        "codegen.launch_handler",
        "codegen.llvm",
        "codegen.loading",
        "xla.alone",
        *FOUNDATION,
    },
    "fusion": {"analysis", "hlo", *FOUNDATION},
    "xla": {"hlo", *FOUNDATION},
    "explain": {"analysis", "fusion", "hlo", "xla.captured", *FOUNDATION},
    "backends": {
        "analysis.gpu_time",
        "analysis.machine_costs",
        "analysis.refusal",
        "analysis.xla_time",
        "codegen",
        "hlo",
        "lanes.identity",
        "lanes.program",
        "lanes.replace",
        "runtime",
        *FOUNDATION,
    },
    "tuning": {
        "analysis.hlo_cost",
        "analysis.machine_costs",
        "analysis.xla_time",
        "explain.gpu_time",
        "explain.launches",
        "fusion",
        "hlo",
        "runtime.private_directory",
        "runtime.warning",
        *FOUNDATION,
    },
    "replacing": {
        "analysis",
        "backends",
        "codegen.plan",
        "fusion.outline",
        "hlo",
        "lanes",
        "runtime.verify",
        "runtime.warning",
        *FOUNDATION,
    },
    "pipeline": {
        "analysis.brief_loops",
        "analysis.dispatch",
        "analysis.gain",
        "analysis.small_calls",
        "backends",
        "fusion",
        "hlo",
        "lanes",
        "replacing",
        "runtime.warning",
        *FOUNDATION,
    },
    "gpu_fusion": {"fusion", "hlo", "runtime.warning", "xla", *FOUNDATION},
    "explaining": {
        "backends",
        "explain",
        "fusion",
        "gpu_fusion",
        "hlo",
        "pipeline",
        "runtime.costs",
        "runtime.hook",
        "tuning.choice",
        "xla.captured",
        "xla.targets",
        *FOUNDATION,
    },
    "api": {
        "backends.gpu",
        "gpu_fusion",
        "explain.report",
        "explaining",
        "fusion.strategies",
        "pipeline",
        "runtime",
        "tuning.choice",
        "xla",
        *FOUNDATION,
    },
    "tuner": {
        "api",
        "fusion",
        "hlo",
        "pipeline",
        "runtime.costs",
        "runtime.hook",
        "script",
        "tuning",
        "xla",
        *FOUNDATION,
    },
    "__init__": {"api", "explain.report", "runtime.warning", "tuner", *FOUNDATION},
    "plugin": {"config"},
    "machine": {"device"},
    "calibration": {"__init__", "analysis.machine_costs", *FOUNDATION},
    "doctor": {"__init__", "machine", "runtime", *FOUNDATION},
    "script": {"__init__", *FOUNDATION},
    "fuzz": {"__init__", "analysis.support", "hlo", "pipeline", *FOUNDATION},
    "cartpole": {"__init__", "machine", *FOUNDATION},
    "comparing": {
        "analysis.hlo_cost",
        "api",
        "backends.cpu",
        "explain.launches",
        "fusion",
        "hlo",
        "pipeline",
        "runtime.costs",
        "tuning.modelled",
        "xla",
        *FOUNDATION,
    },
    "cli": {
        "__init__",
        "comparing",
        "calibration",
        "cartpole",
        "doctor",
        "explain",
        "fusion",
        "fuzz",
        "explaining",
        "runtime.costs",
        "script",
        "tuner",
        "tuning",
        "xla",
        *FOUNDATION,
    },
    "__main__": {"cli"},
}
# Libraries that must not spread, with the rooms and files that may import them.
LIBRARIES: Final = {
    "jax": {"api", "calibration", "cartpole", "cli", "doctor", "fuzz", "runtime", "tuner", "xla"},
    "jaxlib": {"runtime", "xla"},
    "llvmlite": {"codegen"},
    "ctypes": {"runtime", "xla.pjrt"},
    "google": {"hlo", "xla"},
    "rich": {"cartpole", "cli", "explain"},
    "torch": {"cartpole.peers"},
    "numba": {"cartpole.peers"},
}


def module_name(path: Path) -> str:
    """Returns the name below `fuselane`: `hlo.shape`, `hlo` for a room's `__init__`, `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def is_within(name: str, rooms: set[str]) -> bool:
    """Whether a module is one of the given rooms and files, or lies in one of them."""
    return any(name == room or name.startswith(room + ".") for room in rooms)


@cache
def imported_names(tree: ast.AST) -> tuple[tuple[int, str], ...]:
    """Returns line and dotted name of everything a file imports; `from a import b` is `a.b`."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return tuple(names)


MODULES: Final = {module_name(path): path for path in FILES}


def resolve(name: str) -> str | None:
    """Returns the module of ours behind an imported name, or None for other libraries."""
    if name != "fuselane" and not name.startswith("fuselane."):
        return None
    below = name.removeprefix("fuselane").removeprefix(".")
    while below and below not in MODULES:
        below = below.rpartition(".")[0]
    return below or "__init__"


@cache
def parse(path: Path) -> ast.Module:
    """Returns the syntax tree of a file, which all rules look at."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_imports_obey_the_layering() -> None:
    """A file imports its own room, and of the others only what its layer names."""
    wrong = []
    for name, path in MODULES.items():
        room = name.split(".")[0]
        assert room in LAYERS, f"{room} has no place in the layering yet"
        for line, imported in imported_names(parse(path)):
            target = resolve(imported)
            if target is None or target.split(".")[0] == room:
                continue
            if not is_within(target, LAYERS[room]):
                wrong.append(f"{path}:{line}: {room} may not import {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", LAYERS)
def test_what_may_be_imported_is(room: str) -> None:
    """A permission that nobody needs any more is none."""
    files = [path for name, path in MODULES.items() if is_within(name, {room})]
    imported = {target for path in files for target in all_imported_modules(path)}
    unused = {
        name
        for name in LAYERS[room] - FOUNDATION.keys()
        if not any(is_within(target, {name}) for target in imported)
    }
    assert not unused, f"{room} does not import {sorted(unused)}"


def test_libraries_stay_in_their_rooms() -> None:
    """JAX, llvmlite, ctypes and the like are imported only where the layering says so."""
    wrong = []
    for name, path in MODULES.items():
        for line, imported in imported_names(parse(path)):
            rooms = LIBRARIES.get(imported.split(".")[0])
            if rooms is not None and not is_within(name, rooms):
                wrong.append(f"{path}:{line}: imports {imported}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_where_a_library_may_be_it_is(library: str) -> None:
    """Each room and file that may import a library does."""
    importing = {
        name
        for name, path in MODULES.items()
        if any(imported.split(".")[0] == library for _, imported in imported_names(parse(path)))
    }
    unused = {
        room for room in LIBRARIES[library] if not any(is_within(n, {room}) for n in importing)
    }
    assert not unused, f"{sorted(unused)} do not import {library}"


def test_imports_stand_at_the_top() -> None:
    """No function imports anything."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    wrong = {
        f"{path}:{inner.lineno}"
        for path, node in all_nodes()
        if isinstance(node, functions)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_only_the_command_line_prints() -> None:
    """Library code returns values; `print` belongs to the command line."""
    wrong = [
        f"{path}:{node.lineno}: prints"
        for path, node in all_nodes()
        if isinstance(node, ast.Name) and node.id == "print"
        if not is_within(module_name(path), {"cli"})
    ]
    assert not wrong, "\n".join(wrong)


def test_only_config_reads_the_environment() -> None:
    """Environment variables are read in one file."""
    readers = {"environ", "environb", "getenv", "getenvb"}
    wrong = [
        f"{path}:{getattr(node, 'lineno', 0)}: reads the environment"
        for path, node in all_nodes()
        if (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in readers
        if module_name(path) != "config"
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_imported_later_is_what_type_checkers_see() -> None:
    """`name = Later("fuselane.x")` stands for the module that is imported as `name` for types."""
    for path in FILES:
        tree = parse(path)
        seen = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for block in tree.body
            if is_for_type_checkers(block)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Later("):
                name = ast.unparse(node.targets[0])
                assert ast.unparse(node.value) == f"Later({seen[name]!r})", path
                assert seen[name].removeprefix("fuselane.") in MODULES, path


def test_no_import_cycles() -> None:
    """The modules can be put in an order in which each imports only earlier ones.

    Imports for type checkers alone don't count.
    """
    graph = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()


def all_nodes() -> Iterator[tuple[Path, ast.AST]]:
    """Yields each node of each file's syntax tree, with the file."""
    for path in FILES:
        for node in ast.walk(parse(path)):
            yield path, node


def all_imported_modules(path: Path) -> set[str]:
    """Returns the modules of ours that a file imports, if only for type checkers."""
    return {target for _, name in imported_names(parse(path)) if (target := resolve(name))}


def imported_modules(path: Path) -> set[str]:
    """Returns the modules of ours that a file imports when it runs."""
    statements = [node for node in parse(path).body if not is_for_type_checkers(node)]
    names = imported_names(ast.Module(body=statements, type_ignores=[]))
    return {target for _, name in names if (target := resolve(name))}


def is_for_type_checkers(node: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
