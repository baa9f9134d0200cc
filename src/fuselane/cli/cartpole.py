"""`fuselane cartpole`: CartPole with and without Fuselane, or by fusion strategy."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Final

import jax
from rich import box
from rich.table import Table

from fuselane import config
from fuselane.cartpole.bench import run_benchmark
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.results import Settings
from fuselane.cartpole.table import make_table
from fuselane.cartpole.variants import PEER_VARIANT, VARIANTS
from fuselane.cli.common import (
    OK,
    WRONG,
    check_writable,
    natural,
    positive,
    say,
    show,
    stay_on_the_cpu,
    write,
)
from fuselane.comparing import XLA, StrategyCosts, compare_strategies, measure
from fuselane.errors import InputError
from fuselane.explaining import OFF_NOTE
from fuselane.fusion.pipelines import PIPELINES
from fuselane.xla.capture import capture, lower
from fuselane.xla.programs import program_of
from fuselane.xla.targets import CPU

PAPERS_CHANGE: Final = "xla-today-cpu,fusion-merger{max-consumers=3}"
"""The paper's changed rule: a value may be computed in each of three kernels that read it."""

_PAPER: Final = (
    "The paper (arXiv 2301.13062), on a GPU: two simulation kernels per step on concat, split at a"
    " value that both read, and one with its changed rule; up to 10.56 times its baseline by all"
    " its changes. Its times per variant are not known here."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--envs", type=positive, default=2048, metavar="N", help="default 2048")
    parser.add_argument("--steps", type=natural, default=10_000, metavar="T", help="default 10000")
    parser.add_argument("--repeats", type=positive, default=5, metavar="R", help="default 5")
    parser.add_argument(
        "--variants",
        type=_variant_names,
        default=tuple(VARIANTS),
        metavar="NAMES",
        help=f"some of {','.join(VARIANTS)}; default all",
    )
    parser.add_argument(
        "--peers", action="store_true", help="also time PyTorch, Numba and C where they are there"
    )
    parser.add_argument(
        "--strategies",
        action="store_true",
        help="compare fusion strategies on the variants instead: kernels per step, bytes, time",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if config.switch() is False:
        raise InputError(f"{OFF_NOTE} There is nothing to compare.")
    if options.peers and PEER_VARIANT not in options.variants:
        raise InputError(f"Peers run the variant {PEER_VARIANT!r}, which is not among the chosen.")
    if options.strategies:
        return _compare_strategies(options)
    if options.json is not None:
        check_writable(options.json)
    settings = Settings(
        num_envs=options.envs,
        num_steps=options.steps,
        num_repeats=options.repeats,
        variants=options.variants,
        with_peers=options.peers,
    )
    results = run_benchmark(settings, say=say)
    show(make_table(results))
    if options.json is not None:
        write(options.json, json.dumps(results.to_json(), indent=2) + "\n")
    return WRONG if results.disagreements else OK


def _compare_strategies(options: argparse.Namespace) -> int:
    if options.json is not None:
        check_writable(options.json)
    stay_on_the_cpu()
    problem = make_problem(options.envs, options.steps)
    strategies = [*PIPELINES, PAPERS_CHANGE]
    table = _strategies_table(options)
    found: list[dict[str, Any]] = []
    for name in options.variants:
        say(name)
        variant = VARIANTS[name]
        jitted = jax.jit(variant.make_rollout(options.steps))
        arguments = variant.get_arguments(problem)
        captured = capture(lower(jitted, CPU, *arguments), CPU)
        rows = compare_strategies(captured, strategies)
        program = program_of(jitted, arguments)
        rows = measure(program, [XLA, *strategies], rows, rounds=options.repeats)
        for row in rows:
            table.add_row(name, *_strategy_cells(row, rows[0], max(options.steps, 1)))
            found.append({"variant": name, **dataclasses.asdict(row)})
        table.add_section()
    show(table)
    if options.json is not None:
        write(options.json, json.dumps(found, indent=2) + "\n")
    return OK


def _strategies_table(options: argparse.Namespace) -> Table:
    table = Table(
        title=f"CartPole: {options.envs:,} environments x {options.steps:,} steps, median of"
        f" {options.repeats}",
        caption=_PAPER,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("variant", no_wrap=True)
    table.add_column("strategy", overflow="fold", min_width=20)
    for column in ("kernels\nper step", "KiB\nper step", "ms", "times\nXLA", "largest\ndiff"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _strategy_cells(row: StrategyCosts, own: StrategyCosts, num_steps: int) -> tuple[str, ...]:
    measured, first = row.measured_us or math.nan, own.measured_us or math.nan
    return (
        row.strategy,
        f"{row.num_launches / num_steps:,.1f}",
        f"{row.num_bytes / num_steps / 1024:,.1f}",
        f"{measured * 1e-3:,.2f}",
        f"{first / measured:.2f}",
        "-" if row.max_difference is None else f"{row.max_difference:.1e}",
    )


def _variant_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in VARIANTS:
            known = ", ".join(VARIANTS)
            raise argparse.ArgumentTypeError(f"there is no variant {name!r}, only {known}")
    return names
