"""What was asked of the engines and is done in its own time."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future


class Asked:
    """What was asked of the engines, done in its own time: ``await`` it, or take ``result``, for its answer or error."""

    def __init__(self, what: str, answers: list[Future]) -> None:
        self.what, self._answers = what, answers
        for answer in answers:
            # Whoever does not wait reads it in the panel.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def result(self, timeout: float | None = None) -> list:
        """Wait for the answers, one for each arm. Raises what kept it from being done."""
        return [answer.result(timeout) for answer in self._answers]

    def __await__(self):
        return self._all().__await__()

    async def _all(self) -> list:
        # Shielded: a cell that is interrupted while it waits takes nothing back of what was asked.
        return [await asyncio.shield(asyncio.wrap_future(answer)) for answer in self._answers]

    def __repr__(self) -> str:
        return f"asked: {self.what}"
