"""JAX's own tests with Fuselane on and off: whatever passes without it has to pass with it.

    git clone --branch jax-v0.10.2 https://github.com/jax-ml/jax
    python benchmarks/jax_suite.py jax --cases 2 --docs docs/trust.md

How the comparison is made stands in `trial/test_runs.py`.
Needs `pip install pytest-xdist absl-py hypothesis scipy cloudpickle matplotlib`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fuselane.machine import describe_machine
from suite import fill_in
from trial.test_runs import Comparison, Harness, compare, describe_totals, format_row, list_rows

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
    comparisons = []
    for file in options.files:
        comparison = compare(file, [f"tests/{file}.py"], make_harness(options))
        told = [*comparison.different, *comparison.list_faults()]
        print(format_row(comparison), *told, sep="\n", flush=True)
        comparisons.append(comparison)
        if options.json is not None:
            options.json.write_text(json.dumps(to_json(comparisons, options), indent=1) + "\n")
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
    parser.add_argument("--share", type=float, default=1.0, help="share of each file's tests")
    parser.add_argument(
        "--brief", action="store_true", help="leave out other runs of what passes with every loop"
    )
    parser.add_argument("--x64", action="store_true", help="with 64-bit types")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write how every test ended")
    parser.add_argument("--docs", type=Path, help="put the table between a page's two marks")
    return parser.parse_args(arguments)


def make_harness(options: argparse.Namespace) -> Harness:
    """Returns how JAX's tests are run."""
    return Harness(
        checkout=options.checkout,
        environment={
            "JAX_ENABLE_X64": str(int(options.x64)),
            "JAX_NUM_GENERATED_CASES": str(options.cases),
        },
        share=options.share,
        jobs=options.jobs,
        brief=options.brief,
    )


def make_markdown(comparisons: Sequence[Comparison], options: argparse.Namespace) -> str:
    """Returns the table of a docs page."""
    machine = describe_machine()
    names = list(comparisons[0].runs)
    headings = ["File", "Tests", "With loops", *(f"Failed, {name}" for name in names)]
    headings += [*(f"Loops fused, {name}" for name in names[:-1]), "Different"]
    lines = [
        f"jax {machine['jax']}, `JAX_NUM_GENERATED_CASES={options.cases}`, "
        f"{'64' if options.x64 else '32'}-bit types, {machine['cpu']}, {machine['cores']} cores, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}"
        + (f", {options.share:.0%} of each file's tests." if options.share < 1 else "."),
        "",
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
    ]
    for c in comparisons:
        always = c.runs["always"]
        cells = [f"`{c.file}`", len(always.outcomes), len(always.num_fused)]
        cells += [c.runs[name].count("failed") for name in names]
        cells += [sum(c.runs[name].num_fused.values()) for name in names[:-1]]
        lines.append(f"| {' | '.join(map(str, [*cells, len(c.different)]))} |")
    lines += ["", re.sub("\n", " ", describe_totals(comparisons))]
    return "\n".join(lines) + "\n"


def to_json(comparisons: Sequence[Comparison], options: argparse.Namespace) -> dict[str, Any]:
    """Returns everything measured."""
    settings = {"cases": options.cases, "share": options.share, "x64": options.x64}
    return {"machine": describe_machine(), **settings, "rows": list_rows(comparisons)}


if __name__ == "__main__":
    sys.exit(main())
