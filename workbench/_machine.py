"""This machine, for whoever measures on it: what it is, how fast it can be at all, and what else runs on it."""

from __future__ import annotations

import math
import os
import platform
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from workbench.engine.host import core_list, executor, find_plugin
from workbench.engine.model import pool_bytes, read_config

CPUINFO = Path("/proc/cpuinfo")
# CPU time is counted in hundredths of a second: over this long, a twentieth of a core shows.
WINDOW_S = 0.2
# Of the engine's cores, taken by other work: up to this a step counts as undisturbed. On two cores it lengthens a step
# by twice as much, for what the one core does late the other waits for.
QUIET_SHARE = 0.03
_TRIES, _TRY_S = 5, 0.3
_MATRIX = 1024


@dataclass(frozen=True)
class Fingerprint:
    """What costs depend on. ``cores``: those the engine binds, as a list such as "0,1"; ``accelerator``: "" without."""

    cpu: str
    cores: str
    accelerator: str
    executor: str
    vllm: str
    model: str
    dtype: str
    block_size: int

    @classmethod
    def here(cls, profile) -> Fingerprint:
        """What ``profile`` would be served with on this machine."""
        serves = executor()
        return cls(
            cpu=cpu_model(),
            cores=core_list(profile.cores),
            accelerator=_accelerator() if serves == "vllm-cuda" else "",
            executor=serves,
            vllm=find_plugin().installed_vllm(),
            model=profile.model,
            dtype=profile.dtype,
            block_size=profile.block_size,
        )

    def differences(self, other: Fingerprint) -> list[str]:
        """Each field that differs, as "field: this, not other"."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [f"{name} {mine}, not {theirs}" for name, mine, theirs in pairs if mine != theirs]


def cpu_model() -> str:
    """The processor's name, the architecture's where it has none."""
    return _cpuinfo().get("model name", platform.machine())


def cpu_flags() -> set[str]:
    """The processor's feature flags, which ARM calls Features; none where the system does not tell."""
    known = _cpuinfo()
    return set(known.get("flags", known.get("Features", "")).split())


def _cpuinfo() -> dict[str, str]:
    """What the system tells of the first processor."""
    known: dict[str, str] = {}
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else ():
        key, colon, value = line.partition(":")
        if colon:
            known.setdefault(key.strip(), value.strip())
    return known


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name(0)


def core_numbers(cores: str) -> list[int]:
    """The cores in a list such as "0-3,8" or "all"."""
    numbers: list[int] = []
    for part in core_list(cores).split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


# -- what it can do at all --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachineFloor:
    """The least time of a step on this machine: its weights and its context read, its products reckoned.

    weight_bytes: of the layers and the head. kv_bytes: K and V of one token. token_flops: operations of one token in
    the layers; head_flops: of one sampled token; pair_flops: of one query with one key, in all layers. Rates:
    bytes_per_s, flops_per_s. A prefill samples nothing here, and of the pairs of prefill and of decode only the more
    numerous count (see workbench.roofline): both make the bound lower.
    """

    weight_bytes: float
    kv_bytes: float
    token_flops: float
    head_flops: float
    pair_flops: float
    bytes_per_s: float
    flops_per_s: float

    def step_s(
        self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float = 0.0, prefill_pairs: int = 0
    ) -> float:
        """Seconds a step takes at least (the roofline model: the longer of reading and reckoning)."""
        read, flops = self._work(prefill_tokens, decoding, context_tokens, prefill_pairs)
        return max(read / self.bytes_per_s, flops / self.flops_per_s)

    def not_above(self, steps: Sequence) -> MachineFloor:
        """The floor with rates at least as high as each of ``steps`` proves them to be."""
        work = [
            (*self._work(s.prefill_tokens, s.decoding, s.context_tokens, s.prefill_pairs), s.seconds) for s in steps
        ]
        return replace(
            self,
            bytes_per_s=max([self.bytes_per_s, *(read / seconds for read, _, seconds in work)]),
            flops_per_s=max([self.flops_per_s, *(flops / seconds for _, flops, seconds in work)]),
        )

    def _work(self, prefill_tokens: int, decoding: int, context_tokens: int, prefill_pairs: int) -> tuple[float, float]:
        """Bytes read and operations of a step."""
        read = self.weight_bytes + self.kv_bytes * context_tokens
        attention = self.pair_flops * max(prefill_pairs, context_tokens)
        return read, self.token_flops * (prefill_tokens + decoding) + self.head_flops * decoding + attention


def machine_floor(folder: Path, profile, cores: int) -> MachineFloor | None:
    """The floor of the model in ``folder``, with rates measured now on this machine (its GPU, where that serves).

    Reading is tried on as many bytes as the weights have, so that weights a cache holds count as such; reckoning on
    the product of two square matrices. The best of several tries counts. ``cores``: threads to measure with on a CPU.
    None where config.json does not describe a dense decoder with gated MLPs.
    """
    import torch

    try:
        config = read_config(folder)
        layers, head = _parameters(config)
    except KeyError:
        return None
    dtype = getattr(torch, profile.dtype)
    weight_bytes = (layers + head) * dtype.itemsize
    device, threads = "cuda" if executor() == "vllm-cuda" else "cpu", torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        weights = torch.ones(layers + head, dtype=dtype, device=device)
        square = torch.ones(_MATRIX, _MATRIX, dtype=dtype, device=device)
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        read_s, product_s = _best(weights.sum, wait), _best(lambda: square @ square, wait)
    finally:
        torch.set_num_threads(threads)
    return MachineFloor(
        weight_bytes=weight_bytes,
        kv_bytes=pool_bytes(folder, profile) / ((profile.pool_blocks + 1) * profile.block_size),
        token_flops=2 * layers,
        head_flops=2 * head,
        # A multiply and an add per element of a head, once for q.k and once for p.v.
        pair_flops=4 * config["num_hidden_layers"] * config["num_attention_heads"] * _head_dim(config),
        bytes_per_s=weight_bytes / read_s,
        flops_per_s=2 * _MATRIX**3 / product_s,
    )


def _parameters(config: dict) -> tuple[int, int]:
    """Parameters of the layers' matrices and of the head. KeyError where the config does not say."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    key_value = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * _head_dim(config) * (heads + key_value)
    if "num_experts" in config or "num_local_experts" in config:
        raise KeyError("experts")
    layer = attention + 3 * hidden * config["intermediate_size"]
    return config["num_hidden_layers"] * layer, hidden * config["vocab_size"]


def _head_dim(config: dict) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _best(work: Callable[[], object], wait: Callable[[], object]) -> float:
    """The least seconds of ``work`` over some tries; ``wait`` returns when the device has done all it was given."""
    times: list[float] = []
    while len(times) < _TRIES or sum(times) < _TRY_S:
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return min(times)


# -- what else runs on it ---------------------------------------------------------------------------------------------


class LoadWatch:
    """How much of the engine's cores other work took, in windows between marks.

    ``pids``: processes whose work is the engine's own; this one's is too. ``cores``: numbers of the cores watched.
    Read from the system's counts of CPU time, in which a hypervisor's theft counts as other work.
    """

    def __init__(self, pids: Sequence[int], cores: Sequence[int]) -> None:
        import psutil

        self._psutil = psutil
        self._own = [psutil.Process(pid) for pid in (os.getpid(), *pids)]
        self._cores = cores
        self._at: list[float] = []
        self._foreign_s: list[float] = []
        self.mark()

    def mark(self, least_s: float = 0.0) -> None:
        """End a window now, unless it is shorter than ``least_s``."""
        now = time.monotonic()
        if self._at and now - self._at[-1] < least_s:
            return
        times = self._psutil.cpu_times(percpu=True)
        busy = sum(sum(times[core][:8]) - times[core].idle - times[core].iowait for core in self._cores)
        own = sum(sum(process.cpu_times()[:2]) for process in self._own)
        self._at.append(now)
        self._foreign_s.append(busy - own)

    def share(self, began: float, ended: float) -> float:
        """Of the cores' time, the most that other work took in any window that [began, ended] touches; inf outside."""
        first, last = bisect_right(self._at, began) - 1, bisect_left(self._at, ended)
        if first < 0 or last >= len(self._at):
            return math.inf
        most = 0.0
        for k in range(first, last):
            took = (self._foreign_s[k + 1] - self._foreign_s[k]) / (self._at[k + 1] - self._at[k])
            most = max(most, took / len(self._cores))
        return most

    def quiet(self, began: float, ended: float) -> bool:
        """Whether [began, ended] was all but undisturbed by other work."""
        return self.share(began, ended) <= QUIET_SHARE
