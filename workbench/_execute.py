"""Execute one notebook with papermill, in a kernel that is this Python, under two time-outs."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)
# nbclient takes 0 seconds and less for "no time-out".
_LEAST_S = 0.1


class NotebookFailed(RuntimeError):
    """A notebook that did not run to its end; one line that names the cell and the error."""


@dataclass(frozen=True)
class Step:
    """How far a notebook is: cells done, the heading over the cell in hand, the line that it printed last."""

    notebook: str
    done: int
    cells: int
    heading: str
    said: str = ""

    def __str__(self) -> str:
        where = f"{self.notebook} cell {self.done + 1} of {self.cells}"
        return ": ".join(filter(None, (where, self.heading, self.said)))


@dataclass(frozen=True)
class Limits:
    """The most seconds that a cell and the whole notebook may take."""

    cell_s: float
    notebook_s: float


def execute(path: Path, folder: Path, values: dict[str, Any], limits: Limits, tell: Callable[[Step], None]) -> None:
    """Run the notebook ``path`` with the parameters ``values`` and leave it, executed as far as it came, in ``folder``.

    ``tell`` is called at each cell and each line printed. Raises NotebookFailed for a cell that fails, a time-out, a
    kernel that dies or does not start. What the kernel says outside its cells is left in ``folder``/kernel.log.
    """
    from papermill import execute_notebook

    hand, log_file = _CellInHand(path.stem, limits, tell), folder / "kernel.log"
    with tempfile.TemporaryDirectory(prefix="report-") as scratch, log_file.open("wb") as log, silenced():
        try:
            execute_notebook(
                str(path),
                str(folder / path.name),
                parameters=values,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                execution_timeout=limits.cell_s,
                timeout_func=hand.time_left,
                kernel_manager_class=_kernel_class(Path(scratch), log),
                resources={"metadata": {"path": str(path.parent)}},
                coalesce_streams=True,
                on_notebook_start=hand.begin,
                on_cell_start=hand.start,
                stdout_file=hand,
            )
        except Exception as error:  # whatever stops a notebook is the outcome of that notebook
            raise NotebookFailed(f"{hand.where}: {hand.reason(error)}") from error
        finally:
            if not log_file.stat().st_size:
                log_file.unlink()


def headings(source: str) -> list[str]:
    """The headings of a markdown cell, as plain words."""
    return [re.sub(r"[*`_]", "", words) for words in _HEADING.findall(source)]


@contextmanager
def silenced() -> Iterator[None]:
    """papermill logs what it also raises, and nbconvert what nobody can change: neither belongs among the progress."""
    loggers = [logging.getLogger(name) for name in ("papermill", "traitlets")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _kernel_class(scratch: Path, log: Any) -> type:
    """A kernel that is this Python, whatever kernels and IPython start-up files the user has; it writes to ``log``."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(
                argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                name=kernel_name,
                display_name="Python 3",
                language="python",
                env={"IPYTHONDIR": str(scratch / "ipython")},
            )

    class QuietKernel(AsyncKernelManager):
        def __init__(self, **traits: Any) -> None:
            # Sockets in a folder of ours: over TCP every user of the machine could reach the kernel. Names are short
            # because the path of a socket may have some hundred characters only.
            place = {"transport": "ipc", "connection_file": str(scratch / "k.json")}
            super().__init__(kernel_spec_manager=ThisPython(), **place, **traits)

        async def start_kernel(self, **arguments: Any) -> None:
            await super().start_kernel(stdout=log, stderr=log, **arguments)

    return QuietKernel


class _CellInHand:
    """Which cell runs, how long it may take, what it says. nbclient's hooks and the kernel's stdout arrive here."""

    def __init__(self, notebook: str, limits: Limits, tell: Callable[[Step], None]) -> None:
        self.notebook, self.limits, self.tell = notebook, limits, tell
        self.ends_at = time.monotonic() + limits.notebook_s
        self.cell, self.cells, self.heading, self.limit = None, 0, "", ""

    @property
    def where(self) -> str:
        if self.cell is None:
            return "before the first cell"
        return f"cell {self.cell + 1}" + (f" ({self.heading})" if self.heading else "")

    def begin(self, notebook: Any) -> None:
        self.cells = len(notebook.cells)

    def start(self, cell: Any, cell_index: int) -> None:
        self.cell = cell_index
        if cell.cell_type == "markdown":
            self.heading = (headings(cell.source) or [self.heading])[-1]
        self._tell()

    def time_left(self, cell: Any) -> float:
        rest = self.ends_at - time.monotonic()
        if rest < self.limits.cell_s:
            self.limit = f"{self.limits.notebook_s:g} s, the time-out of a notebook"
        else:
            self.limit = f"{self.limits.cell_s:g} s, the time-out of a cell"
        return max(_LEAST_S, min(rest, self.limits.cell_s))

    def write(self, text: str) -> None:
        lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]
        if lines:
            self._tell(lines[-1])

    def flush(self) -> None:
        """Nothing is held back."""

    def _tell(self, said: str = "") -> None:
        self.tell(Step(self.notebook, self.cell or 0, self.cells, self.heading, said))

    def reason(self, error: Exception) -> str:
        from nbclient.exceptions import CellTimeoutError, DeadKernelError
        from papermill import PapermillExecutionError

        if isinstance(error, CellTimeoutError):
            return f"stopped after {self.limit}"
        if isinstance(error, DeadKernelError):
            return "its kernel died"
        if isinstance(error, PapermillExecutionError):
            return one_line(f"{error.ename}: {error.evalue}")
        return one_line(f"{type(error).__name__}: {error}")


def one_line(text: str) -> str:
    """``text`` without terminal colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split()).rstrip(": ")
