"""JAX's own tests with Fuselane on and off: whatever passes without it has to pass with it.

    git clone --branch jax-v0.10.2 https://github.com/jax-ml/jax
    python benchmarks/jax_suite.py jax --cases 2 --docs docs/trust.md

How the comparison is made stands in `trial/test_runs.py`. With `--parts 10 --json PATH` the files
are run a tenth at a time, and what PATH holds already is not run again.
Needs `pip install pytest-xdist absl-py hypothesis scipy cloudpickle matplotlib`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fuselane.machine import describe_machine
from suite import fill_in
from trial.test_runs import (
    Comparison,
    Harness,
    add_parts,
    add_up,
    compare,
    describe_totals,
    format_row,
    list_rows,
    read_comparisons,
)

FILES: Final = (
    "api_test",
    "compilation_cache_test",
    "export_test",
    "lax_control_flow_test",
    "lax_numpy_test",
    "lax_scipy_special_functions_test",
    "lax_scipy_test",
    "lax_test",
    "lax_vmap_test",
    "linalg_test",
    "ode_test",
    "pjit_test",
    "random_lax_test",
    "random_test",
    "scipy_optimize_test",
    "shard_map_test",
)
MARKS: Final = ("<!-- jax-suite:begin -->", "<!-- jax-suite:end -->")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the files asked for; returns 1 if a test ends differently or Fuselane fails in one."""
    options = parse_options(arguments)
    parts = read_parts(options)
    for file, share in itertools.product(options.files, list_shares(options.parts)):
        if any((part.file, part.share) == (file, share) for part in parts):
            continue
        part = compare(file, [f"tests/{file}.py"], make_harness(options, share))
        print(format_row(part), *part.different, *part.list_faults(), sep="\n", flush=True)
        parts.append(part)
        if options.json is not None:
            options.json.write_text(json.dumps(to_json(parts, options), indent=1) + "\n")
    comparisons = add_up(parts)
    print(describe_totals(comparisons))
    if options.docs is not None:
        fill_in(options.docs, make_markdown(comparisons, options), MARKS)
    return int(any(c.different or c.list_faults() for c in comparisons))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="JAX's source, as tagged for the installed jax")
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES, metavar="FILE")
    parser.add_argument(
        "--cases", type=int, default=2, help="generated cases per test (JAX_NUM_GENERATED_CASES)"
    )
    parser.add_argument("--parts", type=int, default=1, help="in how many parts a file is run")
    parser.add_argument(
        "--brief", action="store_true", help="leave out other runs of what passes with every loop"
    )
    parser.add_argument("--x64", action="store_true", help="with 64-bit types")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="add how every test ended to this file")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    return parser.parse_args(arguments)


def list_shares(num_parts: int) -> list[tuple[float, float]]:
    """Returns the parts of a file."""
    return [(part / num_parts, (part + 1) / num_parts) for part in range(num_parts)]


def read_parts(options: argparse.Namespace) -> list[Comparison]:
    """Returns what was measured before; raises SystemExit if it was something else."""
    if options.json is None or not options.json.exists():
        return []
    known = json.loads(options.json.read_text())
    wanted = to_json([], options)
    if any(known[name] != wanted[name] for name in ("jax", "cases", "x64")):
        raise SystemExit(f"{options.json} is about another version of jax, or other settings.")
    return read_comparisons(known["rows"])


def make_harness(options: argparse.Namespace, share: tuple[float, float] = (0.0, 1.0)) -> Harness:
    """Returns how JAX's tests are run."""
    return Harness(
        checkout=options.checkout,
        environment={
            "JAX_ENABLE_X64": str(int(options.x64)),
            "JAX_NUM_GENERATED_CASES": str(options.cases),
        },
        share=share,
        jobs=options.jobs,
        brief=options.brief,
    )


def make_markdown(comparisons: Sequence[Comparison], options: argparse.Namespace) -> str:
    """Returns the table of a docs page."""
    machine = describe_machine()
    names = list(comparisons[0].runs)
    headings = ["File", "Date", "Tests", "With loops", *(f"Failed, {name}" for name in names)]
    headings += [*(f"Loops fused, {name}" for name in names[:-1]), "Different"]
    lines = [
        f"jax {machine['jax']}, `JAX_NUM_GENERATED_CASES={options.cases}`, "
        f"{'64' if options.x64 else '32'}-bit types, {add_parts(comparisons).cpu}.",
        "",
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
    ]
    for c in comparisons:
        always = c.runs["always"]
        share = c.share[1]
        tests = f"{len(always.outcomes)}{'' if share == 1 else f' ({share:.0%})'}"
        cells = [f"`{c.file}`", c.day, tests, len(always.num_fused)]
        cells += [c.runs[name].count("failed") for name in names]
        cells += [sum(c.runs[name].num_fused.values()) for name in names[:-1]]
        lines.append(f"| {' | '.join(map(str, [*cells, len(c.different)]))} |")
    lines += ["", re.sub("\n", " ", describe_totals(comparisons))]
    return "\n".join(lines) + "\n"


def to_json(parts: Sequence[Comparison], options: argparse.Namespace) -> dict[str, Any]:
    """Returns everything measured."""
    settings = {"jax": describe_machine()["jax"], "cases": options.cases, "x64": options.x64}
    return {**settings, "rows": list_rows(parts)}


if __name__ == "__main__":
    sys.exit(main())
