"""JupyterLab on the checkout's notebooks, or Voila on the panel: for this machine alone and only with a token."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
PANEL = "00_workbench.ipynb"
# For its engine to end in good order; Jupyter sends SIGTERM at half of it and ends the kernel after it. Its own is 5 s.
KERNEL_ENDS_WITHIN_S = 30


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
    command.append(f"--KernelManager.shutdown_wait_time={KERNEL_ENDS_WITHIN_S}")
    if (folder / PANEL).exists():
        command.append(f"--LabApp.default_url=/lab/tree/{PANEL}")
    if port is not None:
        # Whoever names a port has told it to someone: another one in its place would not be found.
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:
        # Jupyter refuses root lest strangers get in; on loopback and behind a token there are none.
        command.append("--allow-root")
    return command


def voila_command(port: int | None = None, browser: bool = True, notebook: Path | None = None) -> list[str]:
    """The command line that shows a notebook, by default the panel's, as a page of its own, on loopback, with a token.

    ``notebook`` may be a folder, whose notebooks are listed. Raises LabError.
    """
    notebook = notebook or NOTEBOOKS / PANEL
    if find_spec("voila") is None:
        raise LabError("Voila is not installed: run `make setup`, or `pip install 'metronome-workbench[voila]'`")
    if not notebook.exists():
        raise LabError(f"no notebook at {notebook}: run from a checkout that was set up by `make setup`")
    command = [sys.executable, "-m", "voila", str(notebook), "--Voila.ip=127.0.0.1"]
    # Bare: the token in JUPYTER_TOKEN, or a random one that Voila prints. Its own page gives no XSRF cookie back when it
    # asks for its kernel's end, and would leave an engine running for each tab that is closed.
    command += ["--token", "--Voila.tornado_settings={'disable_check_xsrf': True}"]
    command.append(f"--KernelManager.shutdown_wait_time={KERNEL_ENDS_WITHIN_S}")
    if port is not None:
        command.append(f"--Voila.port={port}")
    if not browser:
        command.append("--no-browser")
    return command


def open_lab(port: int | None = None, browser: bool = True, voila: bool = False) -> NoReturn:
    """Become JupyterLab or Voila, so that Ctrl-C and every other signal reach it alone. Raises LabError."""
    command = voila_command(port, browser) if voila else lab_command(port, browser)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)
