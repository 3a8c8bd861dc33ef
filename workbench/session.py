"""One session as the beat has it: what it waits for, what it was given, and who says what goes in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workbench.bound import KVBound
from workbench.telemetry import FrameRow

# Delivered tokens kept per session for display: the last minutes of speech, not the whole of a long run.
WORDS_KEPT = 4096
STALLED_AFTER_EMPTY = 2  # empty frames in a row


class Talk(Protocol):
    """A session that says what goes in when a chunk goes to the engine, not when its audio ends, and hears the answers.

    ``settled``: all that was heard is with the model; until then its content lags, whatever is delivered.
    """

    settled: bool

    def chunk(self, frame: int, owed: int) -> tuple[list[int], int]:
        """The chunk's tokens and how many are owed, ``owed`` at most. ([], 0): none goes out, the frame is over."""
        ...

    def said(self, tokens: Sequence[int], frame: int, at_s: float) -> tuple[int, ...]:
        """Tokens came for ``frame``, in time or late, ``at_s`` after the session's audio began: those to show."""
        ...

    def spoke(self, codes: tuple[int, ...]) -> None:
        """The codes of speech that came with the frame's token, of a model that makes some."""
        ...

    def close(self) -> None:
        """The session has ended."""
        ...


@dataclass(slots=True)
class Session:
    """One session on the beat. ``frame_tokens(k)`` gives the tokens of its audio chunk k; a ``talk`` has its own.

    Its chunk k ends at phase_s + (first_tick + k + 1) B: the same sum for all sessions of a phase group, so that what
    falls due together is due at one instant and not at several that differ by a rounding.
    """

    name: str
    frame_tokens: Callable[[int], list[int]]
    stop_token_ids: tuple[int, ...]
    bound: KVBound | None
    group: int
    phase_s: float
    first_tick: int
    frames_limit: int | None = None
    frame: int = 0
    in_flight: FrameRow | None = None
    served_bound: KVBound | None = None
    waiting: deque[tuple[FrameRow, list[int]]] = field(default_factory=deque)
    unreturned: deque[FrameRow] = field(default_factory=deque)
    heard_until_s: float = 0.0
    empty_in_a_row: int = 0
    dropped: int = 0
    words: deque[int] = field(default_factory=lambda: deque(maxlen=WORDS_KEPT))
    talk: Talk | None = None

    @property
    def stalled(self) -> bool:
        return self.empty_in_a_row >= STALLED_AFTER_EMPTY
