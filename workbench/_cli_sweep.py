"""The command ``workbench sweep``: an experiment at every point of a grid."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench._cli_options import (
    REPORTS,
    add_json,
    add_params,
    add_profile,
    add_runs,
    add_set,
    field_value,
    read_params,
    read_profile,
)
from workbench._files import STDOUT, check_file, check_folder, write_json
from workbench._terminal import FAILED, HELD, Bar, say, stdout_kept_clean, table
from workbench._values import ValueRefused, kinds_of, parse, split_pairs

if TYPE_CHECKING:
    from workbench.sweep import SweepResult

SHOWN = 4  # metrics beside the grid in the summary; all are in the files
MOST_SEEDS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", help="its name")
    text = (
        "values of a parameter of EXPERIMENT, or else of a field of the profile; several --grid are combined, each "
        "value with each; where values hold commas, put ; between them: 'windows=512,1024;2048'"
    )
    parser.add_argument("--grid", action="append", default=[], metavar="KEY=V1,V2", help=text)
    parser.add_argument("--seeds", metavar="0-4|0,3,7", help="seeds to run each point of the grid with")
    add_params(parser)
    add_profile(parser, None)
    add_set(parser)
    add_json(parser)
    text = "where finished points are kept, and sweep.json and sweep.csv written (default: reports/sweeps/EXPERIMENT)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
    add_runs(parser)
    parser.add_argument("--dry-run", action="store_true", help="list the points and run nothing")


def run(args: argparse.Namespace) -> int:
    from workbench.runs import Runs
    from workbench.sweep import check_key, grid_points, real_engine, sweep

    name = args.experiment
    params = read_params(name, args)
    profile = read_profile(args.profile, args.set, name)
    grid = {}
    for key, text in split_pairs(args.grid, "--grid").items():
        check_key(name, key)
        grid[key] = [_value(name, key, value) for value in _split(key, text)]
    seeds = None if args.seeds is None else read_seeds(args.seeds)
    points = grid_points(name, profile, grid, seeds, params)
    if args.dry_run:
        print(table([list(point.values.values()) for point in points], list(points[0].values)))
        return HELD
    out = args.out or REPORTS / "sweeps" / name
    runs = Runs(out / "points", args.workers, args.ray, args.fresh)
    if real_engine(points) and not args.ray:
        say("a real engine takes all cores: its points run one at a time")
    check_file(args.json)
    check_folder(out)
    with stdout_kept_clean(), Bar() as bar:
        swept = sweep(name, profile, grid, seeds, params, runs, progress=bar)
    if runs.reused:
        say(f"{runs.found()}: --fresh computes them again")
    swept.save(out)
    write_json(args.json, swept.to_dict())
    if args.json != STDOUT:
        print(f"{_summary(swept)}\n\nsaved: {out / 'sweep.json'}, {out / 'sweep.csv'}")
    for line in swept.failures():
        say(line)
    return HELD if swept.holds else FAILED


def read_seeds(text: str) -> list[int]:
    """``0-4`` or ``0,3,7`` as whole numbers. Raises ValueRefused."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None:
            raise ValueRefused(f"--seeds {text}: give whole numbers from 0 on, as 0-4 or 0,3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueRefused(f"--seeds {part.strip()} goes down: give {last}-{first}")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise ValueRefused(f"--seeds {text} are more than {MOST_SEEDS}: give fewer")
        seeds += range(first, last + 1)
    return seeds


def _split(key: str, text: str) -> list[str]:
    values = [value.strip() for value in text.split(";" if ";" in text else ",")]
    if not all(values):
        raise ValueRefused(f"--grid {key}={text}: a value is missing: give it as key=value,value")
    return values


def _value(name: str, key: str, text: str) -> Any:
    from workbench.experiments import parameters

    known = parameters(name)
    return parse(f"parameter {key}", text, kinds_of(known[key])) if key in known else field_value(key, text)


def _summary(swept: SweepResult) -> str:
    from workbench.sweep import BESIDE

    grid = list(swept.points[0].values)
    frame = swept.frame()
    # Those that tell the points apart come first.
    metrics = [key for key in frame.columns if key not in (*grid, *BESIDE) and frame[key].map(_is_number).all()]
    metrics = sorted(metrics, key=lambda key: frame[key].nunique() < 2)[:SHOWN]
    rows = []
    for point, row in zip(swept.points, frame.to_dict("records"), strict=True):
        state = "error" if point.error else "NO" if point.failed_claims else "yes"
        rows.append([*point.values.values(), state, *(row[key] for key in metrics)])
    executors = ", ".join(sorted({point.result["executor"] for point in swept.points if point.result})) or "nothing ran"
    return f"{swept.experiment}, {len(rows)} points, {executors}\n\n{table(rows, (*grid, 'holds', *metrics))}"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
