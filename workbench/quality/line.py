"""Sessions that are fed as fast as the engine answers, each by a script of its own, and what they leave.

Quality does not depend on the clock: no frame falls due here, none is capped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from workbench.bound import KVBound
from workbench.engine.base import Engine, EngineDead, EngineError, SessionView, TokenEvent
from workbench.telemetry import ON_TIME, FrameRow, PoolRow, SessionRow, Tables

ANSWER_TIMEOUT_S = 600.0
POOL_EVERY_S = 1.0


class Answer(NamedTuple):
    """What came for a frame. ``scores``: log-probabilities of the tokens fed, the last of them where one is missing."""

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    eos: bool


class Lines:
    """The sessions of an engine that is started, whose events it takes over; ``tables`` get a row a frame.

    ``held``: what the scheduler had of a session before it was closed, by name.
    """

    def __init__(self, engine: Engine, run: str) -> None:
        self.engine, self.tables = engine, Tables(run)
        self.held: dict[str, SessionView] = {}
        self._began = engine.now()
        self._open: dict[str, Line] = {}
        self._dead: str | None = None
        engine.on_event, engine.on_dead = self._hear, self._die

    def now(self) -> float:
        return self.engine.now() - self._began

    def open(self, name: str, bound: KVBound | None) -> Line:
        """A session that nobody fed yet."""
        line = self._open[name] = Line(self, name, bound)
        self.tables.session_rows[name] = SessionRow(self.tables.run, name, "", self.now(), self.now())
        return line

    def _hear(self, event: TokenEvent) -> None:
        line = self._open.get(event.session)
        if line is not None:
            line.hear(event)

    def _die(self, reason: str) -> None:
        self._dead = reason
        for line in self._open.values():
            line.answered.set()

    def check(self) -> None:
        """Raise EngineDead once the engine is."""
        if self._dead is not None:
            raise EngineDead(f"the engine died: {self._dead}")

    async def end(self, line: Line) -> None:
        """Close a session, once the scheduler was asked what it holds."""
        self.held[line.name] = (await self.engine.snapshot([line.name])).sessions[line.name]
        self.engine.close(line.name)
        self._open.pop(line.name, None)
        self.tables.session_rows[line.name].ended_at_s = self.now()

    async def watch_pool(self) -> None:
        """Write a row of the pool each second, until cancelled."""
        while True:
            seen = await self.engine.snapshot([])
            self.tables.pool_rows.append(
                PoolRow(
                    self.tables.run,
                    seen.at - self._began,
                    seen.blocks_used,
                    seen.blocks_total,
                    seen.running,
                    seen.waiting,
                    seen.parked,
                    seen.preemptions,
                    len(self._open),
                    seen.resident_tokens,
                    host_rss_bytes=self.engine.rss_bytes(),
                )
            )
            await asyncio.sleep(POOL_EVERY_S)


class Line:
    """A session. ``context``: every token that its model has computed, evicted ones included.

    ``last``: the token sampled last, which the next frame drops. A frame that begins with it goes on as if there were
    no frames.
    """

    def __init__(self, lines: Lines, name: str, bound: KVBound | None) -> None:
        self.lines, self.name, self.bound = lines, name, bound
        self.context: list[int] = []
        self.last: int | None = None
        self.answered = asyncio.Event()
        self._events: list[TokenEvent] = []
        self._frames = 0

    @property
    def age(self) -> int:
        return len(self.context)

    async def visible(self) -> list[int]:
        """The tokens that its model still has, before the next frame evicts some."""
        view = (await self.lines.engine.snapshot([self.name])).sessions[self.name]
        block = self.lines.engine.facts.block_size
        pinned = min(view.resident, 0 if self.bound is None else self.bound.sink_tokens(block))
        return self.context[:pinned] + self.context[len(self.context) - (view.resident - pinned) :]

    def hear(self, event: TokenEvent) -> None:
        self._events.append(event)
        if event.done:
            self.answered.set()

    async def feed(self, tokens: Sequence[int], owed: int = 1, stop: tuple[int, ...] = (), sampling=None) -> Answer:
        """Serve a frame. ``stop``, ``sampling``: see VllmEngine.submit. Raises EngineError, EngineDead."""
        lines, engine = self.lines, self.lines.engine
        lines.check()
        self._events.clear()
        self.answered.clear()
        submitted = lines.now()
        engine.submit(self.name, list(tokens), owed, self.bound, stop, sampling)
        try:
            await asyncio.wait_for(self.answered.wait(), ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise EngineError(f"a frame was not answered within {ANSWER_TIMEOUT_S:g} s") from None
        lines.check()
        ended = self._events[-1].ended
        if ended is not None:
            raise EngineError(f"session {self.name} ended: {ended}")
        replied = tuple(token for event in self._events for token in event.tokens)
        scores = tuple(score for event in self._events for score in event.scores or ())
        self.context += [*tokens, *replied[:-1]]
        self.last = replied[-1]
        self._note(submitted, len(tokens), owed, len(replied))
        return Answer(replied, scores, self._events[-1].eos)

    def _note(self, submitted: float, fed: int, owed: int, replied: int) -> None:
        first, last = (self._events[k].at - self.lines._began for k in (0, -1))
        bound = self.bound
        self.lines.tables.frame_rows.append(
            FrameRow(
                self.lines.tables.run,
                self.name,
                self._frames,
                due_at_s=submitted,
                submitted_at_s=submitted,
                first_token_at_s=first,
                returned_at_s=last,
                latency_s=last - submitted,
                status=ON_TIME,
                eos=self._events[-1].eos,
                tokens_in=fed,
                tokens_owed=owed,
                tokens_delivered=replied,
                age_tokens=self.age,
                window=None if bound is None else bound.window,
                sinks=None if bound is None else bound.sinks,
            )
        )
        self._frames += 1
