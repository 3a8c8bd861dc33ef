"""What a session manager needs of an engine, and the values that pass between them.

An engine has a clock of its own (``now``); every time it reports is on that clock. It is driven from one asyncio loop
and calls back on that loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from workbench.bound import KVBound


class EngineError(RuntimeError):
    """The engine cannot be started or used; one line that says what to do."""


class EngineDead(EngineError):
    """The engine is gone and every session on it with it."""


@dataclass(frozen=True)
class Facts:
    """What a started engine says of itself. ``executor``: "vllm-cpu", "vllm-cuda" or "simulated".

    ``scheduler`` and ``runner``: the classes that answered the plugin's handshake, in the engine's own processes.
    ``vocab_size``: tokens the model knows. ``costs``: where a simulated engine has the duration of its steps from.
    ``sinks_stay``: why sinks cannot move on this engine, None where they can.
    """

    executor: str
    vllm: str
    block_size: int
    blocks_total: int
    max_model_len: int
    max_positions: int | None
    vocab_size: int
    scheduler: str = ""
    runner: str = ""
    threads: int | None = None
    costs: str = ""
    sinks_stay: str | None = None


class TokenEvent(NamedTuple):
    """Tokens that came for a session's chunk. ``done``: no more of this chunk will come; ``eos``: it ended itself.

    ``ended``: the engine ended the session, for this reason. ``logprobs``: of each token, where asked for. ``scores``:
    log-probabilities of the chunk's own tokens, where asked for, with the first of its events that has tokens.
    ``codes``: of the speech that a model with a depth transformer made beside the token.
    """

    session: str
    tokens: tuple[int, ...]
    at: float
    done: bool = False
    eos: bool = False
    ended: str | None = None
    logprobs: tuple[float, ...] | None = None
    scores: tuple[float, ...] | None = None
    codes: tuple[int, ...] | None = None


class SessionView(NamedTuple):
    """A session as the scheduler has it: ``state`` is parked, waiting, running or preempted."""

    state: str
    resident: int
    evicted: int
    blocks: int
    queued: int


@dataclass(frozen=True)
class Snapshot:
    """The scheduler's account of itself at one instant (see the plugin's BoundedScheduler.snapshot).

    ``resident_tokens``, ``evicted_tokens``: of all sessions; ``grown_*``: see workbench.saturation.Grown; ``sessions``:
    those that were asked for.
    """

    at: float
    free_blocks: int
    blocks_total: int
    running: int
    waiting: int
    parked: int
    preemptions: int
    refused_allocations: int
    first_refused_at: float | None
    head_needs_blocks: int
    resident_tokens: int
    evicted_tokens: int
    grown_frames: int
    grown_tokens: int
    grown_squares: int
    sessions: dict[str, SessionView]

    @property
    def blocks_used(self) -> int:
        return self.blocks_total - self.free_blocks


class Engine(ABC):
    """Serves sessions chunk by chunk. After ``start`` its ``facts`` are set and ``on_event`` is called.

    ``virtual``: its clock is a virtual one, which whoever drives it sets. ``model_path``: the model's folder, for front
    ends that need its tokenizer; None where there is none.
    """

    virtual = False
    model_path: Path | None = None
    facts: Facts
    on_event: Callable[[TokenEvent], None]
    on_dead: Callable[[str], None]

    @abstractmethod
    async def start(self, progress: Callable[[str], None] | None = None) -> None:
        """Come up and shake hands with the plugin. Raises EngineError."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on the engine's clock."""

    @abstractmethod
    def submit(
        self, session: str, tokens: list[int], owed: int, bound: KVBound | None, stop_token_ids: tuple[int, ...] = ()
    ) -> None:
        """Hand over a session's next chunk; the first one opens it. Returns at once."""

    @abstractmethod
    def close(self, session: str) -> None:
        """End a session and give all its blocks back. Returns at once; an unknown session is no error."""

    @abstractmethod
    async def set_bound(self, session: str, bound: KVBound | None) -> str:
        """Change a bound past the stream of chunks. Returns "at once", "next frame" or "unknown"."""

    @abstractmethod
    async def snapshot(self, sessions: Collection[str] | None = None) -> Snapshot:
        """The scheduler's account of itself, and of ``sessions``, all by default. Raises EngineDead."""

    @abstractmethod
    async def stop(self) -> None:
        """End the engine and all its processes; more than once is no error."""

    def rss_bytes(self) -> int | None:
        """Resident host memory of the engine's processes, None where it has none of its own."""
        return None
