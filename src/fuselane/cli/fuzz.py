"""`fuselane fuzz`: random programs, compared with plain XLA."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from pathlib import Path

from fuselane import config
from fuselane.cli.common import (
    OK,
    WRONG,
    check_writable,
    minutes,
    names,
    natural,
    positive,
    say,
    write,
)
from fuselane.errors import InputError
from fuselane.explaining import OFF_NOTE
from fuselane.fuzz.campaign import Settings as CampaignSettings
from fuselane.fuzz.campaign import make_choice, run_campaign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=minutes, metavar="N", help="how long; default 1")
    parser.add_argument("--programs", type=positive, metavar="N", help="how many, instead")
    parser.add_argument(
        "--seed", type=natural, metavar="S", help="of the first program; default a fresh one"
    )
    parser.add_argument(
        "--opcodes", type=names, default=(), metavar="NAMES", help="what steps do; default all"
    )
    parser.add_argument(
        "--dtypes", type=names, default=(), metavar="NAMES", help="of carries; default all"
    )
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="processes; default one per core"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("fuzz-failures"),
        help="where reproducers are written; default fuzz-failures",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if config.switch() is False:
        raise InputError(f"{OFF_NOTE} There is nothing to compare.")
    choice = make_choice(options.opcodes, options.dtypes)
    if options.json is not None:
        check_writable(options.json)
    seed = secrets.randbelow(10**12) if options.seed is None else options.seed
    say(f"seed {seed}")
    minutes = options.minutes or (None if options.programs else 1.0)
    results = run_campaign(
        CampaignSettings(
            seed=seed,
            minutes=minutes,
            num_programs=options.programs,
            jobs=options.jobs or os.cpu_count() or 1,
            folder=options.folder,
            choice=choice,
        ),
        say=say,
    )
    for line in results.lines():
        print(line)
    if options.json is not None:
        write(options.json, json.dumps(results.to_json(), indent=2) + "\n")
    return OK if results.is_good else WRONG
