"""The command ``workbench``: a thin face over the functions that notebooks call.

Exit status 0: it ran and every claim held. 1: it ran and a claim failed, named on stderr. 2: bad arguments or a missing
part, one line on stderr that says what to do. 130: interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from workbench import _cli_run, _cli_sweep
from workbench._cli_options import REPORTS, add_json, add_profile, add_set, read_profile
from workbench._files import STDOUT, check_file, check_folder, to_json, write_json
from workbench._terminal import FAILED, HELD, REFUSED, Bar, say, speaks_for_itself, stdout_kept_clean, table

# As a shell reports a program that SIGINT or SIGPIPE ended.
INTERRUPTED, UNREAD = 130, 141


def main(argv: list[str] | None = None) -> int:
    """Carry out a command line and return its exit status; SystemExit where argparse ends it itself."""
    args = _parser().parse_args(argv)
    try:
        status = args.command(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout has gone (`| head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return UNREAD
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "workbench", "kernels_patch"):
            raise
        return say(f"the Python package {package} is missing: run `make setup`", REFUSED)
    except Exception as error:
        if not speaks_for_itself(error):
            raise
        return say(" ".join(str(error).split()), REFUSED)


# -- the command line -------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print the usage as well: here bad arguments get one line.
        self.exit(REFUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="workbench",
        description="Serve real-time interaction sessions on a bounded KV cache, and measure what the bound changes.",
        epilog="Exit status: 0 every claim held, 1 a claim failed, 2 bad arguments or a missing part, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"workbench {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, function, summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        made.set_defaults(command=function)
        return made

    doctor = command("doctor", _doctor, "say what works on this machine and what to do about the rest")
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.add_argument("--no-engine", action="store_true", help="leave out the engine's start, which takes some 20 s")

    run = command("run", _cli_run.run, "run an experiment; without a name, list those there are")
    _cli_run.add_arguments(run)
    sweep = command("sweep", _cli_sweep.run, "run an experiment at every point of a grid, on all cores, and keep each")
    _cli_sweep.add_arguments(sweep)

    report = command("report", _report, "run notebooks and write their report; without a name, all notebooks")
    report.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="its name, or how it begins (01)")
    add_profile(report)
    report.add_argument("--full", action="store_true", help="the long form of each notebook (default: the short one)")
    report.add_argument("--out", type=Path, default=REPORTS, metavar="DIR", help="where to write (default: reports/)")

    calibrate = command("calibrate", _calibrate, "measure what an engine step costs here, for simulated runs")
    add_profile(calibrate)
    add_set(calibrate)
    add_json(calibrate)
    place = "where to keep the calibration (default: reports/calibration/PROFILE.json, where simulated runs look)"
    calibrate.add_argument("--out", type=Path, metavar="FILE", help=place)

    bench = command("bench", _bench, "measure the performance ratios, side by side in one run")
    add_json(bench)
    bench.add_argument(
        "--redraw-s", type=_seconds, metavar="S", help="how long the panel's redraws are counted (default: 60)"
    )

    lab = command("lab", _lab, "open JupyterLab on notebooks/, on this machine alone and with a token")
    lab.add_argument("--port", type=_port, metavar="N", help="its port (default: the next free one from 8888)")
    lab.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    lab.add_argument("--voila", action="store_true", help="show the panel as a page of its own, without the notebook")
    return parser


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is no port: give 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 10 <= seconds <= 7200:
        raise argparse.ArgumentTypeError(f"{text} is no time of 10 to 7200 s")
    return seconds


def _version() -> str:
    try:
        return metadata.version("metronome-workbench")
    except metadata.PackageNotFoundError:
        return "(not installed: run `make setup`)"


# -- commands ---------------------------------------------------------------------------------------------------------


def _report(args: argparse.Namespace) -> int:
    from workbench.report import make_report

    check_folder(args.out)
    with stdout_kept_clean():
        report = make_report(args.notebooks, args.profile, args.out, args.full)
    print(f"report: {report.index}")
    for failure in report.failures:
        say(failure, FAILED)
    return HELD if report.ok else FAILED


def _calibrate(args: argparse.Namespace) -> int:
    from workbench.calibrate import calibrate, render
    from workbench.costs import calibration_path

    profile = read_profile(args.profile, args.set)
    path = calibration_path(profile.name) if args.out is None else args.out
    check_file(args.json)
    check_folder(path.parent)
    check_file(str(path))
    with stdout_kept_clean(), Bar() as bar:
        calibration = calibrate(profile, progress=bar)
    calibration.save(path)
    write_json(args.json, calibration.to_dict())
    if args.json != STDOUT:
        print(f"{render(calibration)}\nsaved: {path}")
    return HELD


def _bench(args: argparse.Namespace) -> int:
    from workbench.bench import run_bench

    check_file(args.json)
    with stdout_kept_clean(), Bar() as bar:
        figures = run_bench(progress=bar, **({} if args.redraw_s is None else {"redraw_s": args.redraw_s}))
    write_json(args.json, figures)
    if args.json != STDOUT:
        columns = ("name", "value", "unit", "executor")
        print(table([[row[column] for column in columns] for row in figures["rows"]], columns))
    for line in figures["left_out"]:
        say(f"left out: {line}", HELD)
    return HELD


def _lab(args: argparse.Namespace) -> int:
    from workbench.lab import open_lab

    open_lab(args.port, browser=not args.no_browser, voila=args.voila)


def _doctor(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from workbench.doctor import examine, healthy, render

    with stdout_kept_clean():
        checks = examine(not args.no_engine, progress=lambda line: say(line, HELD))
    print(to_json([asdict(check) for check in checks]) if args.json else render(checks))
    if healthy(checks):
        return HELD
    return say(f"missing: {', '.join(c.name for c in checks if c.needed and not c.ok)}", REFUSED)


if __name__ == "__main__":
    sys.exit(main())
