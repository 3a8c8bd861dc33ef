"""What a session keeps: the window W, and which of its first tokens are pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workbench.bound import KVBound, blocks_for
from workbench.speech.chat import ASSISTANT, END, TURN, USER

NOTHING, HEADER, CONTENT, REPLY = "nothing", "header", "content", "reply"
# Each of them with all that stand before it.
PINNED = (NOTHING, HEADER, CONTENT, REPLY)
SYSTEM = (
    "You are a helpful assistant on the phone. You listen well, and you answer each question in one short sentence."
)
FIRST = "Hello! Please tell me all that you know about the sea, its waves and its fish."


@dataclass(frozen=True)
class Opening:
    """How every session begins. Header (the system message), content (the user's first turn, and the model's opened)
    and reply (its first generated tokens) are whole blocks each, so that pinning one more is always another S.
    """

    header: tuple[int, ...]
    content: tuple[int, ...]
    reply: int

    @classmethod
    def of(cls, encode: Callable[[str], Sequence[int]], block_size: int) -> Opening:
        """``encode``: text -> token ids, with the chat's marks as one token each."""
        header = _padded(encode, f"{TURN}system\n{SYSTEM}", f"{END}\n", block_size)
        return cls(header, _padded(encode, f"{USER}{FIRST}", f"{END}\n{ASSISTANT}", block_size), block_size)

    @property
    def tokens(self) -> int:
        return len(self.header) + len(self.content) + self.reply

    def sinks(self, pinned: str) -> int:
        """S, in tokens, that pins so much."""
        parts = (0, len(self.header), len(self.content), self.reply)
        return sum(parts[: PINNED.index(pinned) + 1])


def _padded(encode, text: str, ending: str, block_size: int) -> tuple[int, ...]:
    """``text`` and ``ending``, with empty lines between them up to the edge of a block."""
    pad, tokens, after = encode("\n")[0], encode(text), encode(ending)
    short = blocks_for(len(tokens) + len(after), block_size) * block_size - len(tokens) - len(after)
    return (*tokens, *[pad] * short, *after)


@dataclass(frozen=True)
class Policy:
    """A window and what is pinned beside it; both None: unbounded."""

    window: int | None = None
    pinned: str | None = None

    @property
    def name(self) -> str:
        return "unbounded" if self.window is None else f"W{self.window}-{self.pinned}"

    def bound(self, opening: Opening) -> KVBound | None:
        return None if self.window is None else KVBound(self.window, opening.sinks(self.pinned))


UNBOUNDED = Policy()


def policies(windows: Iterable[int], pinned: Iterable[str]) -> list[Policy]:
    """Every window with everything that may be pinned, and unbounded."""
    pinned = list(pinned)
    return [UNBOUNDED, *(Policy(window, each) for window in windows for each in pinned)]
