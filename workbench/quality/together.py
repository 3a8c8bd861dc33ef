"""Sessions served all together, each by its script, until the last of them has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable

from workbench.quality.line import Line, Lines
from workbench.quality.scripts import Left

TELL_EVERY_S = 1.0
# Opens a session and says what it does.
Begin = Callable[[], tuple[Line, Coroutine[None, None, Left]]]


async def together(
    lines: Lines, begins: dict[Hashable, Begin], tokens: int, say: Callable, at_once: int | None = None
) -> dict[Hashable, Left]:
    """What each of the sessions left, by its key; ``at_once`` at a time, all by default.

    ``tokens``: how many all of them are about to compute, for the progress that ``say`` tells. When one fails the
    others are cancelled. Raises EngineError, EngineDead.
    """
    room, open_lines = asyncio.Semaphore(at_once or len(begins)), []

    async def one(begin: Begin) -> Left:
        async with room:
            line, script = begin()
            open_lines.append(line)
            left = await script
            await lines.end(line)
            return left

    async def tell() -> None:
        while True:
            done = sum(line.age for line in open_lines)
            say(f"{lines.tables.run}: {done} of some {tokens} tokens", min(1.0, done / tokens))
            await asyncio.sleep(TELL_EVERY_S)

    watching = [asyncio.ensure_future(each) for each in (lines.watch_pool(), tell())]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {key: group.create_task(one(begin)) for key, begin in begins.items()}
    except ExceptionGroup as failed:
        # Many sessions fail of one cause: the first says it.
        raise failed.exceptions[0] from None
    finally:
        for each in watching:
            each.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return {key: task.result() for key, task in tasks.items()}
