"""Work that takes longer than a frame may wait: done on a thread of its own, one piece after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Background:
    """``work(what)`` on a thread, for each ``put(key, what)``; ``take`` gives what is finished, and never waits.

    The thread begins with the first piece and ends with ``close``, after the piece in hand; what is not finished by
    then is dropped.
    """

    def __init__(self, work: Callable[[Any], Any], name: str) -> None:
        self._work, self._name = work, name
        self._todo: queue.SimpleQueue = queue.SimpleQueue()
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, key: Any, what: Any) -> None:
        """Hand over a piece of work; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._todo.put((key, what))

    def take(self) -> list[tuple[Any, Any]]:
        """(key, result) of the pieces finished since the last call, in order. Raises what the work raised."""
        found = []
        while True:
            try:
                key, result, error = self._done.get_nowait()
            except queue.Empty:
                return found
            if error is not None:
                raise error
            found.append((key, result))

    def close(self) -> None:
        """Let the thread end; returns at once. Again is no error."""
        self._closed = True
        self._todo.put(None)

    def _run(self) -> None:
        while (piece := self._todo.get()) is not None and not self._closed:
            key, what = piece
            try:
                self._done.put((key, self._work(what), None))
            except Exception as error:  # noqa: BLE001, raised again by take
                self._done.put((key, None, error))


class AtOnce:
    """Does the work in ``put`` itself, so that a run hangs on no thread: for tests, and for work that takes no time."""

    def __init__(self, work: Callable[[Any], Any], name: str) -> None:
        self._work, self._done = work, []

    def put(self, key: Any, what: Any) -> None:
        """Do a piece of work."""
        self._done.append((key, self._work(what)))

    def take(self) -> list[tuple[Any, Any]]:
        """As Background.take."""
        found, self._done = self._done, []
        return found

    def close(self) -> None:
        """Nothing is left to end."""
