"""Text that nobody generated: Python's reference documentation, which comes with every Python."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from functools import lru_cache

# Places that are spread evenly over the text, however many seeds there are.
_GOLDEN = 0.6180339887498949


class TextError(ValueError):
    """Text that cannot be had as asked; one line that says what to do."""


@lru_cache(maxsize=1)
def reference_text() -> str:
    """The help topics of the Python that runs, in its own order."""
    from pydoc_data.topics import topics

    return "\n\n".join(text.strip() for text in topics.values())


def described() -> str:
    """Which text it is, for the parameters of a run: another release of Python has another one."""
    digest = hashlib.sha256(reference_text().encode()).hexdigest()[:16]
    return f"help topics of Python {platform.python_version()}, sha256 {digest}"


class HeldOut:
    """The text's tokens. ``encode``: text -> token ids."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self.tokens = list(encode(reference_text()))

    def read(self, seed: int, count: int, offset: int = 0) -> list[int]:
        """``count`` tokens from ``offset`` tokens behind the place of ``seed``. Raises TextError for more than all."""
        if count > len(self.tokens):
            raise TextError(f"the text has {len(self.tokens)} tokens, {count} were asked for: ask for shorter sessions")
        begin = int(seed * _GOLDEN % 1 * len(self.tokens)) + offset
        return [self.tokens[(begin + k) % len(self.tokens)] for k in range(count)]
