"""What a command shows: a bar and one-line errors on stderr, tables on stdout, and nothing else on stdout."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Self

HELD, FAILED, REFUSED = 0, 1, 2
_REDRAW_S = 0.2
# Where nothing is heard for a while the time left still goes down.
_TICK_S = 1.0
# A log keeps every line of a bar that a terminal would overwrite.
_REDRAW_IN_A_LOG_S = 15.0


class Bar:
    """A progress bar on stderr, called as ``bar(message, fraction)``; ``fraction`` is 0 to 1, or None for unknown.

    It tells the time so far and, from the first progress on, about how much is left. On a terminal it goes on counting
    between two calls.
    """

    def __init__(self) -> None:
        from tqdm import tqdm

        shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        self._bar = tqdm(total=1.0, file=sys.stderr, bar_format=shape, dynamic_ncols=True, desc="starting")
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn_at = -math.inf
        self._ends_at: float | None = None
        self._closed = threading.Event()
        self._ticks = threading.Thread(target=self._tick, name="progress-bar", daemon=True)
        if self._terminal:
            self._ticks.start()

    def __call__(self, message: str, fraction: float | None = None) -> None:
        now = time.monotonic()
        self._bar.set_description_str(message, refresh=False)
        if fraction is not None:
            done = min(max(fraction, 0.0), 1.0)
            if done != self._bar.n:
                self._bar.n = done
                self._ends_at = ends_at(self._began, now, done)
        if now - self._drawn_at >= (_REDRAW_S if self._terminal else _REDRAW_IN_A_LOG_S):
            self._draw(now)

    def _draw(self, now: float) -> None:
        self._drawn_at = now
        # tqdm puts a comma before it.
        left = "" if self._ends_at is None else duration(self._ends_at - now)
        self._bar.set_postfix_str(f"about {left} left" if left else "", refresh=False)
        self._bar.refresh()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_S):
            self._draw(time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._terminal:
            self._ticks.join()
        self._bar.set_postfix_str("", refresh=False)
        self._bar.close()


def ends_at(began: float, now: float, done: float) -> float | None:
    """When what began and is ``done`` (0 to 1) will end if it goes on like this; None when nothing is known."""
    return None if done <= 0 else now + (now - began) * (1 - done) / done


def duration(seconds: float) -> str:
    """Seconds as a person reads them, to come: "40 s", "12 min", "3 h 20 min"; nothing for none."""
    if seconds < 1:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Within this context whatever is written to stdout, by child processes and C libraries too, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def say(line: str, status: int = HELD) -> int:
    """Tell a person one line, on stderr; returns the exit status that goes with it."""
    print(f"workbench: {line}", file=sys.stderr)
    return status


def speaks_for_itself(error: BaseException) -> bool:
    """Whether an error is one of the workbench's own, whose message is one line that says what to do."""
    return type(error).__module__.partition(".")[0] in ("workbench", "kernels_patch")


def show(value: Any) -> str:
    """A value as a person reads it: four significant digits, the rest as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Columns as wide as their widest cell; the last one is not padded."""
    lines = [[show(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )
