"""JupyterLab and Voila as real processes for one test run: loopback, a token, folders of their own, nothing left."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil

from workbench.lab import lab_command, voila_command

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
LINGER_S = 20.0
_POLL_S = 0.1
_REQUEST_S = 30.0
_NEWS = "@jupyterlab/apputils-extension:announcements"
_NOTEBOOK_SETTINGS = "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
# A process started by a kernel may outlive its parent; its environment still says which server it came from.
_MARK = "METRONOME_TEST_SERVER"


class ServerError(RuntimeError):
    """A server of the tests did not start, or left something behind; one line that says what."""


def wait_for(true: Callable[[], object], limit_s: float, what: Callable[[], str]):
    """Ask until the answer is true and return it; past the limit raise ServerError with what ``what`` says then."""
    deadline = time.monotonic() + limit_s
    while not (answer := true()):
        if time.monotonic() > deadline:
            raise ServerError(f"{what()} within {limit_s:g} s")
        time.sleep(_POLL_S)
    return answer


def runs(process: psutil.Process) -> bool:
    """Whether a process is there and does something: a dead one that nobody has reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class ServerProcess:
    """A server process and everything it starts, as a context manager."""

    name: str
    _answers_at: str

    def __init__(self, folder: Path, port: int | None = None, linger_s: float = LINGER_S) -> None:
        """``folder`` is what it serves, ``port`` None a free one, ``linger_s`` how long its processes may outlive it."""
        self.folder = Path(folder)
        self.port = port or _free_port()
        self.linger_s = linger_s
        self.token = secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{self.port}"
        self._seen: set[psutil.Process] = set()

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="metronome-server-")
        self.home = Path(self._folder.name)
        self._log = self.home / "log"
        self._environment = {**_clean_environment(self.home), "JUPYTER_TOKEN": self.token}
        self._environment[_MARK] = self.token
        self._prepare(self.home)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), env=self._environment, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_for(self._ready, START_LIMIT_S, lambda: f"{self.name} did not answer ({self.last_line()})")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind, error, trace) -> None:
        left = self._end()
        # A test's own failure says more than what it made the server leave behind.
        if left and kind is None:
            raise ServerError(f"{self.name} left {len(left)} of its processes behind: {'; '.join(left)}")

    def log(self) -> str:
        """All that the server and its kernels wrote."""
        return self._log.read_text(errors="replace")

    def last_line(self) -> str:
        """The last line of its log that is not empty."""
        lines = self.log().split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")

    def processes(self) -> list[psutil.Process]:
        """The server and all that it and its kernels ever started, as far as they still run."""
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self._process.pid)
            self._seen.update([server, *server.children(recursive=True)])
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # gone meanwhile, or another user's
                if process.environ().get(_MARK) == self.token:
                    self._seen.add(process)
        return [process for process in self._seen if runs(process)]

    def kernel_process(self, kernel: str) -> psutil.Process:
        """The process of the kernel of that id, found without asking it, so a busy one is found too."""
        # The eldest, since what it forks goes by the same command line.
        for process in sorted(self.processes(), key=psutil.Process.create_time):
            with suppress(psutil.NoSuchProcess):
                if any(kernel in word for word in process.cmdline()):
                    return process
        raise ServerError(f"{self.name} runs no kernel {kernel}")

    def request(self, path: str, method: str = "GET", token: bool = True):
        """Ask the server's REST interface, with its token unless told otherwise; JSON comes back as Python objects."""
        headers = {"Authorization": f"token {self.token}"} if token else {}
        request = Request(f"{self.url}/{path}", method=method, headers=headers, data=b"" if method == "POST" else None)
        with urlopen(request, timeout=_REQUEST_S) as answer:
            body = answer.read().decode()
            return json.loads(body) if "json" in answer.headers.get("Content-Type", "") and body else body

    def _prepare(self, home: Path) -> None:
        """Write what the server is to find in its own folders."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _shut_kernels(self) -> None:
        """End the kernels before the server, where the server can be asked to."""

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise ServerError(f"{self.name} ended with status {self._process.returncode} ({self.last_line()})")
        try:
            self.request(self._answers_at)
        except OSError:
            return False
        return True

    def _end(self) -> list[str]:
        """Stop the server and its folders; say what lived on, which is killed then."""
        self.processes()
        if self._process.poll() is None:
            with suppress(OSError):  # one that answers no more gets the signal alone
                self._shut_kernels()
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):  # it is among those that live on, then
                self._process.wait(STOP_LIMIT_S)
        left = self._await_end(self.linger_s)
        said = []
        for process in left:
            with suppress(psutil.NoSuchProcess):
                said.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
                process.kill()
        self._process.wait(STOP_LIMIT_S)
        if alive := self._await_end(STOP_LIMIT_S):
            said.append(f"{len(alive)} not even killed")
        self._folder.cleanup()
        return said

    def _await_end(self, limit_s: float) -> list[psutil.Process]:
        # Not psutil's own wait: where nobody reaps orphans, a dead one stays in the list of processes for ever.
        deadline = time.monotonic() + limit_s
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return alive


class LabServer(ServerProcess):
    """JupyterLab as ``make lab`` starts it, with the app within reach of a page's scripts and no news from outside."""

    name = "JupyterLab"
    _answers_at = "api/status"

    def _prepare(self, home: Path) -> None:
        _write(home / "config" / "labconfig" / "page_config.json", {"disabledExtensions": {_NEWS: True}})
        # As it comes, JupyterLab leaves cells out of view undrawn, and what is not drawn has no text.
        _write(home / "settings" / _NOTEBOOK_SETTINGS, {"windowingMode": "none"})

    def _command(self) -> list[str]:
        return [
            *lab_command(self.port, browser=False, folder=self.folder),
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
        ]

    def page_url(self, notebook: str) -> str:
        """Where a notebook opens alone, in a workspace that remembers nothing."""
        return f"{self.url}/doc/tree/{quote(notebook)}?token={self.token}&reset"

    def kernels(self) -> list[str]:
        """The ids of the kernels that run."""
        return [kernel["id"] for kernel in self.request("api/kernels")]

    def shut_sessions(self, notebook: str | None = None) -> None:
        """End the sessions of a notebook, or all, each with its kernel."""
        for session in self.request("api/sessions"):
            if notebook in (None, session["path"]):
                self.request(f"api/sessions/{session['id']}", method="DELETE")

    def _shut_kernels(self) -> None:
        self.shut_sessions()
        for kernel in self.kernels():
            self.request(f"api/kernels/{kernel}", method="DELETE")


class VoilaServer(ServerProcess):
    """Voila as ``workbench lab --voila`` starts it, on a folder of notebooks."""

    name = "Voila"
    _answers_at = "voila/api/contents"

    def _command(self) -> list[str]:
        return [
            *voila_command(self.port, browser=False, notebook=self.folder),
            "--Voila.port_retries=0",
            "--show_tracebacks=True",
            f"--Voila.connection_dir_root={self.home}",
        ]

    def page_url(self, notebook: str) -> str:
        """Where a notebook runs and shows its outputs alone."""
        return f"{self.url}/voila/render/{quote(notebook)}?token={self.token}"


def _clean_environment(home: Path) -> dict[str, str]:
    """The environment without the user's Jupyter and IPython, which find folders under ``home`` in their place."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "IPYTHONDIR": "ipython",
    }
    return {**kept, **{name: str(home / folder) for name, folder in own.items()}}


def _write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
