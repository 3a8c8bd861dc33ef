"""The Chromium that tests and checks look at pages with: found on the machine, or installed by ``make browser``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEBIAN_PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")
# Without a screen, a sandbox (root has none) or anything that goes to the network by itself.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_ANSWER_S = 60
_INSTALL_S = 900
_PLAYWRIGHT_PATH = """
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    print(playwright.chromium.executable_path)
"""


class BrowserError(RuntimeError):
    """No Chromium to be had. The message is one line that says what to do."""


def find_chromium() -> str:
    """The path of a Chromium that starts: one on PATH, else the one playwright downloaded. Raises BrowserError."""
    for command in COMMANDS:
        path = shutil.which(command)
        # Asked for its version because some systems ship a command that only says how to install it.
        if path and _runs([path, "--version"]):
            return path
    path = _playwright_chromium()
    if path and _runs([path, "--version"]):
        return path
    raise BrowserError(f"no Chromium here: run `make browser`, or install {' and '.join(DEBIAN_PACKAGES[::2])}")


def ensure_chromium(say: Callable[[str], None]) -> str:
    """find_chromium, after installing one where there is none. ``say`` gets a line for each step that takes time.

    As root the system's package manager is asked first, then playwright's own download. Raises BrowserError.
    """
    try:
        return find_chromium()
    except BrowserError:
        pass
    failures = []
    for what, commands in _ways():
        say(f"no Chromium here: {what}")
        failure = next(filter(None, map(_failure, commands)), None)
        if failure is None:
            try:
                return find_chromium()
            except BrowserError:
                failure = "what it installed does not start"
        failures.append(f"{what} failed ({failure})")
    raise BrowserError(f"no Chromium here: {'; '.join(failures)}; install one and put it on PATH as {COMMANDS[0]}")


def _ways() -> list[tuple[str, list[list[str]]]]:
    ways = []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "--no-install-recommends", *DEBIAN_PACKAGES]
        ways.append(("installing Debian's packages", [["apt-get", "update"], install]))
    ways.append(("playwright's own download", [[sys.executable, "-m", "playwright", "install", "chromium"]]))
    return ways


def _failure(command: list[str]) -> str | None:
    """Run an installer; None when it went well, else its last words in one line."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return " ".join(str(error).split())
    if done.returncode == 0:
        return None
    words = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return words[-1].strip() if words else f"exit status {done.returncode}"


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=_ANSWER_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _playwright_chromium() -> str | None:
    # In a process of its own: playwright's plain interface refuses to start where an asyncio loop runs.
    asked = subprocess.run([sys.executable, "-c", _PLAYWRIGHT_PATH], check=False, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else None


def main() -> int:
    """Print where the Chromium is; install it first where there is none."""
    try:
        print(f"Chromium: {ensure_chromium(lambda step: print(f'make browser: {step}', file=sys.stderr, flush=True))}")
    except BrowserError as error:
        print(f"make browser: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
