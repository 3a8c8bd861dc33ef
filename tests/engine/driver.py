"""Drive an engine frame by frame from a plain test: all sessions of a round together, each answered before the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import psutil

from workbench.bound import KVBound
from workbench.engine import TokenEvent
from workbench.engine.vllm import VllmEngine

ANSWER_TIMEOUT_S = 120.0
COUNTED = ("features", "scheduler_entries", "worker_entries")


@dataclass
class Frame:
    """One frame as it was served: what went in under which bound, and what came out."""

    tokens_in: list[int]
    bound: KVBound | None
    tokens_out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: str | None = None


class Driver:
    """An engine on an event loop that runs only inside the calls; ``frames[session]`` is what was served."""

    def __init__(self, profile, engine_type=VllmEngine, **options) -> None:
        self.profile = profile
        self.loop = asyncio.new_event_loop()
        self.engine = engine_type(profile, logprobs=True, **options)
        self.frames: dict[str, list[Frame]] = {}
        self.dead: str | None = None
        self._done: dict[str, asyncio.Event] = {}
        self.do(self.engine.start())
        self.engine.on_event = self._hear
        self.engine.on_dead = self._die

    def do(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def _hear(self, event: TokenEvent) -> None:
        frame = self.frames[event.session][-1]
        frame.tokens_out.extend(event.tokens)
        frame.logprobs.extend(event.logprobs or ())
        frame.ended = event.ended
        if event.done:
            self._done[event.session].set()

    def _die(self, reason: str) -> None:
        self.dead = reason
        for done in self._done.values():
            done.set()

    def round(self, chunks: dict[str, tuple[list[int], KVBound | None]], owed: int = 3) -> dict[str, Frame]:
        """Submit one chunk to each session and wait for every answer."""
        return self.do(self._round(chunks, owed))

    async def _round(self, chunks, owed):
        for session, (tokens, bound) in chunks.items():
            self._submit(session, tokens, bound, owed)
        await asyncio.wait_for(asyncio.gather(*(self._done[s].wait() for s in chunks)), ANSWER_TIMEOUT_S)
        assert self.dead is None, self.dead
        return {session: self.frames[session][-1] for session in chunks}

    def _submit(self, session, tokens, bound, owed) -> None:
        self._done[session] = asyncio.Event()
        self.frames.setdefault(session, []).append(Frame(list(tokens), bound))
        self.engine.submit(session, tokens, owed, bound)

    def snapshot(self):
        return self.do(self.engine.snapshot())

    def media(self) -> list[int]:
        """Features that sessions hold, and what the scheduler and the worker have in the encoder cache."""
        media = self.do(self.engine.media())
        return [media[key] for key in COUNTED]

    def resident_mib(self) -> float:
        """Host memory of this process, which hears the audio first, and of the engine's."""
        return (psutil.Process().memory_info().rss + self.engine.rss_bytes()) / 2**20

    def close(self, *sessions: str) -> None:
        """Close sessions and wait until the scheduler has forgotten them."""
        self.do(self._close(sessions))

    async def _close(self, sessions) -> None:
        for session in sessions:
            self.engine.close(session)
            self.frames.pop(session, None)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while set(sessions) & set((await self.engine.snapshot()).sessions):
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self.do(self.engine.stop())
        self.loop.close()
