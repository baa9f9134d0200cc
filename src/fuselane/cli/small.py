"""Commands without arguments: `fuselane support`, `doctor` and `calibrate`."""

from __future__ import annotations

import argparse
import dataclasses

from fuselane import config
from fuselane.calibration import calibrate
from fuselane.cli.common import OK, WRONG, say
from fuselane.doctor import diagnose
from fuselane.explain.support_table import support_table
from fuselane.runtime.costs import costs_path, write_costs


def print_support(_: argparse.Namespace) -> int:
    print(support_table())
    return OK


def print_diagnosis(_: argparse.Namespace) -> int:
    diagnosis = diagnose()
    width = max(len(name) for name, _ in diagnosis.lines)
    for name, value in diagnosis.lines:
        print(f"{name:{width}}  {value}")
    return WRONG if diagnosis.problem else OK


def measure_costs(_: argparse.Namespace) -> int:
    costs = calibrate()
    path = costs_path(config.cache_dir())
    write_costs(path, costs)
    for field in dataclasses.fields(costs):
        print(f"{field.name:22}  {getattr(costs, field.name):.4g}")
    say(f"Kept in {path}.")
    return OK
