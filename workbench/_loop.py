"""A coroutine run to its end from plain code, also where the thread has a loop already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_to_end(coroutine: Coroutine) -> Any:
    """What ``coroutine`` returns. An interrupt cancels it and waits until it has put away what it had begun."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []

    async def known() -> Any:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await coroutine

    with ThreadPoolExecutor(1) as other_thread:
        future = other_thread.submit(asyncio.run, known())
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
            raise
