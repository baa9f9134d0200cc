"""Other libraries' own tests with Fuselane on and off: what passes without it has to pass with it.

    git clone --branch v0.7.2 https://github.com/patrick-kidger/diffrax
    python benchmarks/library_tests.py diffrax test/test_integrate.py test/test_event.py

The library is imported from wherever Python finds it; pytest is started in the checkout, as its
authors do. How the comparison is made stands in `trial/test_runs.py`. With `--verify` all tests are
first run so that every fused loop is run by XLA too, and compared.
Needs `pip install pytest-xdist` and what the library's tests need.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuselane.machine import describe_machine
from trial.test_runs import Comparison, Harness, compare, describe_totals, format_row, list_rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the files asked for; returns 1 if a test ends differently or Fuselane fails in one."""
    options = parse_options(arguments)
    harness = make_harness(options)
    comparisons = []
    for file in options.files:
        comparison = compare(file, [file], harness)
        told = [*comparison.different, *comparison.list_faults()]
        print(format_row(comparison), *told, sep="\n", flush=True)
        first = comparison.runs[harness.first]
        if not first.outcomes:
            print("No test ran:", first.log, flush=True)
        comparisons.append(comparison)
        if options.json is not None:
            options.json.write_text(json.dumps(to_json(comparisons, options), indent=1) + "\n")
    print(describe_totals(comparisons))
    return int(any(c.different or c.list_faults() for c in comparisons))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a library's source, as tagged")
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of tests in the checkout")
    parser.add_argument("-k", dest="chosen", default="", help="which tests, as pytest takes it")
    parser.add_argument("--share", type=float, default=1.0, help="share of each file's tests")
    parser.add_argument(
        "--timeout", type=float, help="seconds a test may take; needs pytest-timeout"
    )
    parser.add_argument("--verify", action="store_true", help="compare every fused loop with XLA's")
    parser.add_argument(
        "--brief", action="store_true", help="leave out other runs of what passes with every loop"
    )
    parser.add_argument("--repeats", type=int, default=3, help="of what ends differently")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument(
        "--pytest", action="append", default=[], metavar="OPTION", help="tell pytest: --pytest=-x"
    )
    parser.add_argument("--json", type=Path, help="write how every test ended")
    return parser.parse_args(arguments)


def make_harness(options: argparse.Namespace) -> Harness:
    """Returns how the library's tests are run."""
    pytest_options = list(options.pytest)
    if options.timeout is not None:
        pytest_options.append(f"--timeout={options.timeout}")
    if options.chosen:
        pytest_options += ["-k", options.chosen]
    return Harness(
        checkout=options.checkout,
        pytest_options=pytest_options,
        share=(0.0, options.share),
        jobs=options.jobs,
        num_repeats=options.repeats,
        brief=options.brief,
        first="verify" if options.verify else "always",
    )


def to_json(comparisons: Sequence[Comparison], options: argparse.Namespace) -> dict[str, Any]:
    """Returns everything measured."""
    settings = {"checkout": str(options.checkout), "share": options.share, "chosen": options.chosen}
    return {"machine": describe_machine(), **settings, "rows": list_rows(comparisons)}


if __name__ == "__main__":
    sys.exit(main())
