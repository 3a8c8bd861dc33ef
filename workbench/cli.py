"""The command ``workbench``: a thin face over the functions that notebooks call.

Exit status 0: it ran and every claim held. 1: it ran and a claim failed, named on stderr. 2: bad arguments or a missing
part, one line on stderr that says what to do. 130: interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from workbench._files import STDOUT, check_file, check_folder, to_json, write_json, writing
from workbench._terminal import Bar, show, speaks_for_itself, stdout_kept_clean, table
from workbench._values import ValueRefused, kinds_of, parse, split_pairs

if TYPE_CHECKING:
    from workbench.experiments import Result
    from workbench.profiles import Profile

HELD, FAILED, REFUSED = 0, 1, 2
# As a shell reports a program that SIGINT or SIGPIPE ended.
INTERRUPTED, UNREAD = 130, 141
REPORTS = Path(__file__).parent.parent / "reports"


def main(argv: list[str] | None = None) -> int:
    """Carry out a command line and return its exit status; SystemExit where argparse ends it itself."""
    args = _parser().parse_args(argv)
    try:
        status = args.command(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout has gone (`| head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return UNREAD
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "workbench", "kernels_patch"):
            raise
        return _say(f"the Python package {package} is missing: run `make setup`", REFUSED)
    except Exception as error:
        if not speaks_for_itself(error):
            raise
        return _say(" ".join(str(error).split()), REFUSED)


def _say(line: str, status: int) -> int:
    print(f"workbench: {line}", file=sys.stderr)
    return status


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

    run = command("run", _run, "run an experiment; without a name, list those there are")
    run.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="its name")
    run.add_argument("--params", action="store_true", help="list the parameters of EXPERIMENT and run nothing")
    run.add_argument("-p", "--param", action="append", default=[], metavar="KEY=VALUE", help="set a parameter")
    _add_profile(run)
    _add_set(run)
    _add_json(run)
    run.add_argument("--tables", type=Path, metavar="DIR", help="save the three tables there, as Parquet files")

    report = command("report", _report, "run notebooks and write their report; without a name, all notebooks")
    report.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="its name, or how it begins (01)")
    _add_profile(report)
    report.add_argument("--full", action="store_true", help="the long form of each notebook (default: the short one)")
    report.add_argument("--out", type=Path, default=REPORTS, metavar="DIR", help="where to write (default: reports/)")

    calibrate = command("calibrate", _calibrate, "measure what an engine step costs here, for simulated runs")
    _add_profile(calibrate)
    _add_set(calibrate)
    _add_json(calibrate)
    place = "where to keep the calibration (default: reports/calibration/PROFILE.json, where simulated runs look)"
    calibrate.add_argument("--out", type=Path, metavar="FILE", help=place)

    _add_json(command("bench", _bench, "measure the performance ratios, side by side in one run"))

    lab = command("lab", _lab, "open JupyterLab on notebooks/, on this machine alone and with a token")
    lab.add_argument("--port", type=_port, metavar="N", help="its port (default: the next free one from 8888)")
    lab.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    return parser


def _add_profile(parser: argparse.ArgumentParser) -> None:
    text = "what to serve and how: a built-in profile or a .toml file (default: %(default)s)"
    parser.add_argument("--profile", default="smollm2", metavar="P", help=text)


def _add_set(parser: argparse.ArgumentParser) -> None:
    text = "change a field of the profile, such as pool_blocks=400"
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help=text)


def _add_json(parser: argparse.ArgumentParser) -> None:
    text = "write the metrics there as JSON; - is stdout, with nothing else on it (default: a summary on stdout)"
    parser.add_argument("--json", metavar="FILE|-", help=text)


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is no port: give 1 to 65535")
    return int(text)


def _version() -> str:
    try:
        return metadata.version("metronome-workbench")
    except metadata.PackageNotFoundError:
        return "(not installed: run `make setup`)"


# -- commands ---------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from workbench.experiments import experiment

    if args.experiment is None:
        print(table(_experiments(), ("experiment", "what it shows")))
        return HELD
    if args.params:
        print(table(_parameters(args.experiment), ("parameter", "takes", "default")))
        return HELD
    run = experiment(args.experiment)
    params = _given_parameters(args.experiment, args.param)
    profile = _profile(args.profile, args.set)
    check_file(args.json)
    check_folder(args.tables)
    with stdout_kept_clean(), Bar() as bar:
        result = run(profile, progress=bar, tables_dir=args.tables, **params)
    write_json(args.json, result.to_dict())
    if args.tables is not None:
        with writing(args.tables):
            result.save_tables(args.tables)
    if args.json != STDOUT:
        print(_summary(result))
    for claim in result.claims:
        if not claim.holds:
            _say(f"claim failed: {claim.name}: {claim.value}, where {claim.bound}", FAILED)
    return HELD if result.holds else FAILED


def _report(args: argparse.Namespace) -> int:
    from workbench.report import make_report

    check_folder(args.out)
    with stdout_kept_clean():
        report = make_report(args.notebooks, args.profile, args.out, args.full)
    print(f"report: {report.index}")
    for failure in report.failures:
        _say(failure, FAILED)
    return HELD if report.ok else FAILED


def _calibrate(args: argparse.Namespace) -> int:
    from workbench.calibrate import calibrate, render
    from workbench.costs import calibration_path

    profile = _profile(args.profile, args.set)
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
        figures = run_bench(progress=bar)
    write_json(args.json, figures)
    if args.json != STDOUT:
        columns = ("name", "value", "unit", "executor")
        print(table([[row[column] for column in columns] for row in figures["rows"]], columns))
    return HELD


def _lab(args: argparse.Namespace) -> int:
    from workbench.lab import open_lab

    open_lab(args.port, browser=not args.no_browser)


def _doctor(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from workbench.doctor import examine, healthy, render

    with stdout_kept_clean():
        checks = examine(not args.no_engine, progress=lambda line: _say(line, HELD))
    print(to_json([asdict(check) for check in checks]) if args.json else render(checks))
    if healthy(checks):
        return HELD
    return _say(f"missing: {', '.join(c.name for c in checks if c.needed and not c.ok)}", REFUSED)


# -- what goes in and what comes out ----------------------------------------------------------------------------------


def _experiments() -> list[tuple[str, str]]:
    from workbench.experiments import EXPERIMENTS

    return [
        (name, (import_module(module).__doc__ or "").strip().partition("\n")[0]) for name, module in EXPERIMENTS.items()
    ]


def _parameters(name: str) -> list[tuple[str, str, Any]]:
    from workbench.experiments import parameters

    return [(key, " or ".join(kinds_of(p)) or "no text", p.default) for key, p in parameters(name).items()]


def _given_parameters(name: str, pairs: list[str]) -> dict[str, Any]:
    from workbench.experiments import parameters

    known, values = parameters(name), {}
    for key, text in split_pairs(pairs, "-p").items():
        if key not in known:
            raise ValueRefused(f"experiment {name} has no parameter {key!r}: choose from {', '.join(known) or 'none'}")
        values[key] = parse(f"parameter {key}", text, kinds_of(known[key]))
    return values


def _profile(name: str, pairs: list[str]) -> Profile:
    from dataclasses import fields

    from workbench.profiles import Profile, load_profile

    kinds, values = {field.name: (field.type,) for field in fields(Profile)}, {}
    for key, text in split_pairs(pairs, "--set").items():
        if key not in kinds:
            raise ValueRefused(f"a profile has no field {key!r}: choose from {', '.join(kinds)}")
        values[key] = parse(f"profile field {key}", text, kinds[key])
    return load_profile(name).with_(**values)


def _summary(result: Result) -> str:
    params = ", ".join(f"{key} {show(value)}" for key, value in result.params.items())
    served = f"{result.experiment} on {result.profile}, {result.executor}, vLLM {result.vllm}, seed {result.seed}"
    rows = [("yes" if claim.holds else "NO", claim.name, claim.value, claim.bound) for claim in result.claims]
    return f"{served}\n{params}\n\n{table(rows, ('holds', 'claim', 'value', 'bound'))}"


if __name__ == "__main__":
    sys.exit(main())
