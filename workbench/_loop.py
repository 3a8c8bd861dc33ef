"""A coroutine run to its end from plain code, also where the thread has a loop already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from threading import Event, Thread
from typing import Any


def run_to_end(coroutine: Coroutine) -> Any:
    """What ``coroutine`` returns. An interrupt cancels it and waits until it has put away what it had begun."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return _Apart(coroutine).result()


class _Apart:
    """A coroutine on a loop and a thread of its own."""

    def __init__(self, coroutine: Coroutine) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(coroutine)
        # Not the thread's own end: some Pythons take a join that was interrupted for one that came back.
        self._over = Event()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait([self._task]))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            self._over.set()

    def result(self) -> Any:
        try:
            Thread(target=self._run, name="metronome-run-to-end").start()
            self._over.wait()
        except KeyboardInterrupt:
            # It may have ended just now.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._over.wait()
            raise
        return self._task.result()
