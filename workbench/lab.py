"""JupyterLab on the checkout's notebooks, reachable from this machine alone and only with its token."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


class LabError(RuntimeError):
    """JupyterLab cannot be opened; one line that says what to do."""


def lab_command(port: int | None = None, browser: bool = True, folder: Path | None = None) -> list[str]:
    """The command line that serves a folder on loopback, with the random token that is Jupyter's default.

    ``port`` None leaves the choice to Jupyter, which takes the next free one; ``folder`` None is notebooks/ of the
    checkout. Raises LabError.
    """
    folder = folder or NOTEBOOKS
    if find_spec("jupyterlab") is None:
        raise LabError("JupyterLab is not installed: run `make setup`")
    if not folder.is_dir():
        raise LabError(f"no notebooks at {folder}: run from a checkout that was set up by `make setup`")
    command = [sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}"]
    if port is not None:
        # Whoever names a port has told it to someone: another one in its place would not be found.
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:
        # Jupyter refuses root lest strangers get in; on loopback and behind a token there are none.
        command.append("--allow-root")
    return command


def open_lab(port: int | None = None, browser: bool = True) -> NoReturn:
    """Become JupyterLab, so that Ctrl-C and every other signal reach it alone. Raises LabError."""
    command = lab_command(port, browser)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)
