"""What a command shows: a bar and one-line errors on stderr, tables on stdout, and nothing else on stdout."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Self

_REDRAW_S = 0.2
# A log keeps every line of a bar that a terminal would overwrite.
_REDRAW_IN_A_LOG_S = 15.0


class Bar:
    """A progress bar on stderr, called as ``bar(message, fraction)``; ``fraction`` is 0 to 1, or None for unknown."""

    def __init__(self) -> None:
        from tqdm import tqdm

        shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
        self._bar = tqdm(total=1.0, file=sys.stderr, bar_format=shape, dynamic_ncols=True, desc="starting")
        self._redraw_s = _REDRAW_S if sys.stderr.isatty() else _REDRAW_IN_A_LOG_S
        self._drawn_at = -math.inf

    def __call__(self, message: str, fraction: float | None = None) -> None:
        self._bar.set_description_str(message, refresh=False)
        if fraction is not None:
            self._bar.n = min(max(fraction, 0.0), 1.0)
        if time.monotonic() - self._drawn_at >= self._redraw_s:
            self._drawn_at = time.monotonic()
            self._bar.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


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
