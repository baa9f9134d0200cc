"""`fuselane cartpole`: CartPole with and without Fuselane."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from fuselane import config
from fuselane.cartpole.bench import run_benchmark
from fuselane.cartpole.results import Settings
from fuselane.cartpole.table import make_table
from fuselane.cartpole.variants import PEER_VARIANT, VARIANTS
from fuselane.cli.common import OK, WRONG, natural, positive, say, write
from fuselane.errors import InputError
from fuselane.explaining import OFF_NOTE


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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if config.switch() is False:
        raise InputError(f"{OFF_NOTE} There is nothing to compare.")
    if options.peers and PEER_VARIANT not in options.variants:
        raise InputError(f"Peers run the variant {PEER_VARIANT!r}, which is not among the chosen.")
    if options.json is not None:
        write(options.json, "")  # rather now than after minutes of measuring
    settings = Settings(
        num_envs=options.envs,
        num_steps=options.steps,
        num_repeats=options.repeats,
        variants=options.variants,
        with_peers=options.peers,
    )
    results = run_benchmark(settings, say=say)
    Console().print(make_table(results))
    if options.json is not None:
        write(options.json, json.dumps(results.to_json(), indent=2) + "\n")
    return WRONG if results.disagreements else OK


def _variant_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in VARIANTS:
            known = ", ".join(VARIANTS)
            raise argparse.ArgumentTypeError(f"there is no variant {name!r}, only {known}")
    return names
