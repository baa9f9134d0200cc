"""`fuselane fuse`: fusion strategies on a program, side by side, and their plans."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table

from fuselane.cli.common import (
    OK,
    WRONG,
    check_writable,
    positive,
    progress,
    say,
    show,
    stay_on_the_cpu,
)
from fuselane.comparing import (
    XLA,
    GpuCode,
    StrategyCosts,
    compare_strategies,
    measure,
    plan_module,
)
from fuselane.errors import InputError
from fuselane.fusion.pipelines import PIPELINES, refines
from fuselane.fusion.plan import write_plan
from fuselane.fusion.strategies import find_strategy, is_for_cpus, names_for_gpus, split_strategies
from fuselane.xla.capture import MAX_SECONDS
from fuselane.xla.inputs import capture_input, load_function, split_function
from fuselane.xla.programs import Program, program_of
from fuselane.xla.targets import CPU, Target, find_target
from fuselane.xla.targets import NAMES as TARGETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.usage = (
        "fuselane fuse (SCRIPT.py:FUNCTION | SCRIPT.py | FILE) [--pipeline P] [--compare P,Q,...] "
        "[--target NAME] [--save PLAN.json]"
    )
    parser.add_argument(
        "input",
        help="a function in a script, which returns a function to compile and its arguments (it is "
        "run and timed on the CPU); a script; a file of HLO, StableHLO or jax.export",
    )
    parser.add_argument(
        "--pipeline",
        default="",
        metavar="P",
        help=f"{', '.join(PIPELINES)}, passes as text, or a plan; default all by name",
    )
    parser.add_argument(
        "--compare",
        default="",
        metavar="P,Q,...",
        help="further strategies; separated by semicolons if one is a list of passes",
    )
    parser.add_argument(
        "--target",
        default=CPU,
        metavar="NAME",
        help=f"{', '.join(TARGETS)} or a GpuTargetConfigProto file; default cpu",
    )
    parser.add_argument(
        "--save", type=Path, metavar="PLAN.json", help="write what --pipeline fuses as a plan"
    )
    parser.add_argument(
        "--rounds", type=positive, default=15, metavar="N", help="runs of each; default 15"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    target = find_target(options.target)
    known = list(PIPELINES) if target.gpu is None else names_for_gpus()
    named = [options.pipeline] if options.pipeline else known
    strategies = list(dict.fromkeys([*named, *split_strategies(options.compare)]))
    for text in strategies:  # rather now than after minutes of compiling
        if is_for_cpus(find_strategy(text)) and target.gpu is not None:
            raise InputError(f"The strategy {text!r} goes on from XLA:CPU's fusions only.")
    if options.save is not None and not options.pipeline:
        raise InputError("--save writes what --pipeline fuses, so name one.")
    if options.save is not None:
        strategy = find_strategy(options.pipeline)
        if is_for_cpus(strategy) or refines(strategy):
            raise InputError(
                f"A plan cannot say what {options.pipeline!r} changes about XLA's own fusions;"
                " save another pipeline's."
            )
        check_writable(options.save)
    stay_on_the_cpu()
    captured = capture_input(
        [options.input], options.target, max_s=MAX_SECONDS, on_progress=progress
    )
    for reason in captured.refused:
        say(f"XLA could not compile a module: {reason}.")
    if not captured.modules:
        raise InputError(f"{options.input!r} compiles nothing.")
    rows = compare_strategies(
        captured.modules,
        strategies,
        compile_for=None if target.gpu is None else target,
        on_progress=progress,
    )
    program = _program(options.input) if target.gpu is None else None
    if program is not None:
        rows = measure(program, [XLA, *strategies], rows, rounds=options.rounds)
    show(_table(rows, target))
    for row in rows:
        if row.code is not None and row.code.refusal:
            say(f"XLA cannot compile what {row.strategy} makes: {row.code.refusal}")
        for refusal in row.refusals:
            say(f"{row.strategy}: {refusal}")
    if options.save is not None:
        pipeline = find_strategy(options.pipeline)
        plans = [plan_module(module, pipeline) for module in captured.modules]
        try:
            write_plan(options.save, plans)
        except OSError as error:
            raise InputError(
                f"{str(options.save)!r} cannot be written: {error.strerror}."
            ) from None
        say(f"Written to {options.save}: {sum(len(plan.kernels) for plan in plans)} kernels.")
    return WRONG if captured.exit_code else OK


def _program(text: str) -> Program | None:
    """Returns what can be run of an input: a function and its arguments, if it names one."""
    function = split_function(text)
    return None if function is None else program_of(*load_function(*function))


def _table(rows: Sequence[StrategyCosts], target: Target) -> Table:
    title = f"Fusion strategies, target {target.name}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("strategy", overflow="fold", min_width=14)
    last = ("measured\nus", "largest\ndiff") if target.gpu is None else _GPU_COLUMNS
    for column in ("kernels", "launches", "MiB", "modelled\nus", *last):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.strategy,
            f"{row.num_kernels:,}",
            f"{row.num_launches:,.0f}",
            f"{row.num_bytes / 2**20:,.2f}",
            f"{row.modelled_us:,.1f}",
            *(_run_cells(row) if row.code is None else _code_cells(row.code)),
        )
    return table


_GPU_COLUMNS: Final = ("XLA's\nthunks", "most\nregs", "spilled\nbytes", "least\noccup.")


def _run_cells(row: StrategyCosts) -> tuple[str, ...]:
    return (
        "-" if row.measured_us is None else f"{row.measured_us:,.1f}",
        "-" if row.max_difference is None else f"{row.max_difference:.1e}",
    )


def _code_cells(code: GpuCode) -> tuple[str, ...]:
    if code.refusal:
        return "refused", "-", "-", "-"
    if code.max_registers is None:
        return f"{code.num_thunks:,}", "-", "-", "-"
    return (
        f"{code.num_thunks:,}",
        f"{code.max_registers}",
        f"{code.spill_bytes:,}",
        f"{code.min_occupancy:.0%}",
    )
