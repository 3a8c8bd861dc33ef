"""Options that several commands take, and what becomes of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench._values import ValueRefused, kinds_of, parse, split_pairs

if TYPE_CHECKING:
    from workbench.profiles import Profile

REPORTS = Path(__file__).parent.parent / "reports"


def add_profile(parser: argparse.ArgumentParser, default: str | None = "smollm2") -> None:
    """``default`` None: the experiment says."""
    said = "the experiment's own, mostly a simulated one" if default is None else default
    text = f"what to serve and how: a built-in profile, sim:MODEL@HARDWARE or a .toml file (default: {said})"
    parser.add_argument("--profile", default=default, metavar="P", help=text)


def add_set(parser: argparse.ArgumentParser) -> None:
    text = "change a field of the profile, such as pool_blocks=400"
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help=text)


def add_json(parser: argparse.ArgumentParser) -> None:
    text = "write the metrics there as JSON; - is stdout, with nothing else on it (default: a summary on stdout)"
    parser.add_argument("--json", metavar="FILE|-", help=text)


def add_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--param", action="append", default=[], metavar="KEY=VALUE", help="set a parameter")
    parser.add_argument("--full", action="store_true", help="the long form (default: the one of some minutes)")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Who computes the points, and whether those that were kept are found again."""
    text = "processes that compute points (default: one for each core; on a cluster, all that it has room for)"
    parser.add_argument("--workers", type=positive, metavar="N", help=text)
    text = (
        "compute on a Ray cluster: local starts one on this machine for the run, auto or HOST:PORT joins one, whose "
        "machines need Ray and the same version of this package installed"
    )
    parser.add_argument("--ray", metavar="ADDRESS", help=text)
    parser.add_argument("--fresh", action="store_true", help="compute again what an earlier run finished and kept")


def positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is no number of workers: give 1 or more")
    return int(text)


def read_profile(name: str | None, pairs: list[str], experiment: str = "") -> Profile:
    """The profile that --profile and --set ask for; None is the one of ``experiment``. Raises ProfileError,
    ValueRefused."""
    from workbench.experiments import profile_of
    from workbench.profiles import load_profile

    values = {key: field_value(key, text) for key, text in split_pairs(pairs, "--set").items()}
    return (profile_of(experiment) if name is None else load_profile(name)).with_(**values)


def field_value(key: str, text: str) -> Any:
    """``text`` as the value of a field of the profile. Raises ValueRefused."""
    from dataclasses import fields

    from workbench.profiles import Profile

    kinds = {field.name: (field.type,) for field in fields(Profile)}
    if key not in kinds:
        raise ValueRefused(f"a profile has no field {key!r}: choose from {', '.join(kinds)}")
    return parse(f"profile field {key}", text, kinds[key])


def read_params(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What -p and --full set of an experiment's parameters. Raises ExperimentError, ValueRefused."""
    from workbench.experiments import parameters

    known, values = parameters(name), {}
    for key, text in split_pairs(args.param, "-p").items():
        if key not in known:
            raise ValueRefused(f"experiment {name} has no parameter {key!r}: choose from {', '.join(known) or 'none'}")
        values[key] = parse(f"parameter {key}", text, kinds_of(known[key]))
    if args.full:
        if "full" not in known:
            raise ValueRefused(f"experiment {name} has one form only: leave out --full")
        if "full" in values:
            raise ValueRefused("full is given twice: leave out --full or -p full")
        values["full"] = True
    return values
