"""Frames served back to back, all sessions of a round together: how engines are timed."""

from __future__ import annotations

import asyncio

from workbench.bound import KVBound
from workbench.engine.base import Engine, EngineError

ANSWER_TIMEOUT_S = 120.0


class Rounds:
    """Serves rounds on ``engine``, whose events it takes over. Raises EngineError when a round is not answered."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: set[str] = set()
        self._all_answered = asyncio.Event()
        self._answered_at = 0.0
        self._failed: str | None = None
        engine.on_event, engine.on_dead = self._hear, self._fail

    def _fail(self, reason: str) -> None:
        self._failed = reason
        self._all_answered.set()

    def _hear(self, event) -> None:
        if event.ended is not None:
            self._fail(f"a session ended: {event.ended}")
        elif event.done:
            self._waiting.discard(event.session)
            if not self._waiting:
                self._answered_at = event.at
                self._all_answered.set()

    async def frame(self, sessions: list[str], tokens: int, owed: int, bound: KVBound | None = None) -> float:
        """Serve one frame of ``tokens`` tokens to each session; the seconds until the last one had what it is owed."""
        self._waiting = set(sessions)
        self._all_answered.clear()
        vocabulary, began = self.engine.facts.vocab_size, self.engine.now()
        for i, session in enumerate(sessions):
            # Any words do: the time of a frame does not depend on which.
            self.engine.submit(session, [(7 * i + 13 * k) % vocabulary for k in range(tokens)], owed, bound)
        try:
            await asyncio.wait_for(self._all_answered.wait(), ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise EngineError(f"a frame was not answered within {ANSWER_TIMEOUT_S:g} s") from None
        if self._failed is not None:
            raise EngineError(self._failed)
        return self._answered_at - began
