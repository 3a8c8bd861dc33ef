"""The command ``workbench run``: one experiment, or the list of those there are."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench._cli_options import (
    REPORTS,
    add_json,
    add_params,
    add_profile,
    add_runs,
    add_set,
    read_params,
    read_profile,
)
from workbench._files import STDOUT, check_file, check_folder, write_json, writing
from workbench._terminal import FAILED, HELD, Bar, say, show, stdout_kept_clean, table
from workbench._values import ValueRefused, kinds_of

if TYPE_CHECKING:
    from workbench.experiments import Result
    from workbench.runs import Runs

POINTS = REPORTS / "points"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="its name")
    parser.add_argument("--params", action="store_true", help="list the parameters of EXPERIMENT and run nothing")
    add_params(parser)
    add_profile(parser, None)
    add_set(parser)
    add_json(parser)
    parser.add_argument("--tables", type=Path, metavar="DIR", help="save the three tables there, as Parquet files")
    add_runs(parser)


def run(args: argparse.Namespace) -> int:
    from workbench.experiments import experiment

    if args.experiment is None:
        print(table(_experiments(), ("experiment", "what it shows")))
        return HELD
    name = args.experiment
    if args.params:
        print(table(_parameters(name), ("parameter", "takes", "default")))
        return HELD
    function = experiment(name)
    params = read_params(name, args)
    profile = read_profile(args.profile, args.set, name)
    runs = _runs(name, args)
    check_file(args.json)
    check_folder(args.tables)
    with stdout_kept_clean(), Bar() as bar:
        made_of = {} if runs is None else {"runs": runs}
        result = function(profile, progress=bar, tables_dir=args.tables, **made_of, **params)
    if runs is not None and runs.reused:
        say(f"{runs.found()}: --fresh computes them again")
    write_json(args.json, result.to_dict())
    if args.tables is not None:
        with writing(args.tables):
            result.save_tables(args.tables)
    if args.json != STDOUT:
        print(_summary(result))
    for claim in result.claims:
        if not claim.holds:
            say(f"claim failed: {claim.name}: {claim.value}, where {claim.bound}")
    return HELD if result.holds else FAILED


def _runs(name: str, args: argparse.Namespace) -> Runs | None:
    """Who computes the points of an experiment that is made of many runs; None for one that is not."""
    from workbench.experiments import takes_runs
    from workbench.runs import Runs

    if takes_runs(name):
        return Runs(POINTS, args.workers, args.ray, args.fresh)
    if args.workers or args.ray or args.fresh:
        raise ValueRefused(f"experiment {name} is not made of points: leave out --workers, --ray and --fresh")
    return None


def _experiments() -> list[tuple[str, str]]:
    from workbench.experiments import EXPERIMENTS

    return [
        (name, (import_module(module).__doc__ or "").strip().partition("\n")[0]) for name, module in EXPERIMENTS.items()
    ]


def _parameters(name: str) -> list[tuple[str, str, Any]]:
    from workbench.experiments import parameters

    return [(key, " or ".join(kinds_of(p)) or "no text", p.default) for key, p in parameters(name).items()]


def _summary(result: Result) -> str:
    params = ", ".join(f"{key} {show(value)}" for key, value in result.params.items())
    served = f"{result.experiment} on {result.profile}, {result.executor}, vLLM {result.vllm}, seed {result.seed}"
    rows = [("yes" if claim.holds else "NO", claim.name, claim.value, claim.bound) for claim in result.claims]
    return f"{served}\n{params}\n\n{table(rows, ('holds', 'claim', 'value', 'bound'))}"
