"""The command behind `make gpu-check`.

Exit status 0: something was measured and all of it held. 1: something failed, or nothing could be measured. 2: no
usable GPU, bad arguments or a missing part, one line on stderr. 130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from workbench._files import STDOUT, check_file, write_json
from workbench._terminal import FAILED, REFUSED, speaks_for_itself, stdout_kept_clean
from workbench._values import ValueRefused
from workbench.cli import INTERRUPTED
from workbench.gpu_check import device
from workbench.gpu_check.checks import CHECKS
from workbench.gpu_check.contained import Check, run_checks
from workbench.gpu_check.served import Setting
from workbench.gpu_check.table import render, status, to_dict


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print the usage as well: here bad arguments get one line.
        self.exit(REFUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: list[str] | None = None, checks: Sequence[Check] = CHECKS, gpu=device) -> int:
    """Run ``checks`` on ``gpu`` as the command line asks; the exit status. SystemExit where argparse ends it itself."""
    args = _parser(checks).parse_args(argv)
    try:
        return _run(args, checks, gpu)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except Exception as error:
        if not speaks_for_itself(error):
            raise
        return _say(" ".join(str(error).split()), REFUSED)


def _parser(checks: Sequence[Check]) -> argparse.ArgumentParser:
    width = max(len(check.name) for check in checks)
    parser = _Parser(
        prog="gpu-check",
        description="Check on this machine's GPU what only a GPU can show, in some ten minutes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="checks:\n"
        + "\n".join(f"  {c.name:{width}}  {c.looks_at} ({c.budget_s:.0f} s)" for c in checks)
        + "\n\nExit status: 0 all passed, 1 something failed, 2 no usable GPU or bad arguments, 130 interrupted.\n"
        "What a machine lacks is not available, which is neither passed nor failed.",
    )
    parser.add_argument("--only", metavar="NAME[,NAME]", help="run these checks alone (default: all of them)")
    model = "a model of the workbench or a Hugging Face folder; the reference computes it in float32 on the CPU"
    parser.add_argument("--model", default="smollm2", metavar="M", help=f"{model} (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE|-", help="write what was found as JSON; - is stdout, without the table")
    return parser


def _run(args: argparse.Namespace, checks: Sequence[Check], gpu) -> int:
    chosen = _chosen(args.only, checks)
    check_file(args.json)
    why_not = gpu.unusable()
    if why_not is not None:
        return _say(f"no usable GPU: {why_not}; nothing was measured", REFUSED)
    with stdout_kept_clean():
        caption, findings = _measure(args.model, chosen, gpu)
    write_json(args.json, to_dict(findings, caption))
    if args.json != STDOUT:
        print(render(findings, caption))
    return status(findings)


def _chosen(only: str | None, checks: Sequence[Check]) -> list[Check]:
    if only is None:
        return list(checks)
    names = [name.strip() for name in only.split(",")]
    known = [check.name for check in checks]
    for name in names:
        if name not in known:
            raise ValueRefused(f"no check {name!r}: choose from {', '.join(known)}")
    return [check for check in checks if check.name in names]


def _measure(model: str, checks: Sequence[Check], gpu) -> tuple[dict, list]:
    from workbench.engine.host import find_plugin
    from workbench.engine.model import model_folder
    from workbench.profiles import load_profile

    model_folder(model, _say)
    version, dtype = find_plugin().check_version(), gpu.half()
    profile = load_profile("smollm2", model=model, dtype=dtype, max_sessions=8)
    caption = {"vLLM": version, "GPU": gpu.name(), "dtype": dtype, "model": model, "seed": profile.seed}
    began, findings = time.monotonic(), []
    for finding in run_checks(
        checks, Setting(profile), lambda line: _say(f"{time.monotonic() - began:4.0f} s  {line}")
    ):
        findings.append(finding)
        for row in finding.rows:
            _say(f"{time.monotonic() - began:4.0f} s  {finding.check} {row.part}: {row.outcome}")
    return caption, findings


def _say(line: str, status: int = FAILED) -> int:
    print(f"gpu-check: {line}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
