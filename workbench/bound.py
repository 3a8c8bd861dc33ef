"""The bound on a session's KV cache, and its arithmetic in tokens and blocks.

A bounded session keeps its first S tokens (attention sinks) and its last W. Whole blocks only are given back,
and only at a frame boundary, so with S' = S rounded up to whole blocks the resident set before a frame is
S' + W + less than one block. Everything else follows from that sentence and is computed here once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

EXTRA_ARGS_KEY = "kv_bound"
# Marks the stop_reason of a session that the plugin's scheduler ended, before the reason in words.
ENDED = "ended: "


class BoundError(ValueError):
    """A bound that cannot be served; the message says which rule it breaks and what to do."""


@dataclass(frozen=True)
class KVBound:
    """Keep the last ``window`` tokens and the first ``sinks`` of a session resident.

    Both are counts of tokens. ``sinks`` takes effect in whole blocks (rounded up). A session without a bound is
    simply served by the stock scheduler; there is no value of KVBound that means "unbounded".
    ``moving``: at each eviction the sinks take the positions right before what follows them, so that no distance is
    longer than what is resident. Else they stay where they are and the distance to them grows with the session.
    """

    window: int
    sinks: int = 0
    moving: bool = False

    def __post_init__(self) -> None:
        for name in ("window", "sinks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise BoundError(f"{name} must be a whole number of tokens, not {value!r}")
        if self.window < 1:
            raise BoundError(f"window must be at least 1 token, not {self.window}")
        if self.sinks < 0:
            raise BoundError(f"sinks must be 0 or more tokens, not {self.sinks}")
        if not isinstance(self.moving, bool):
            raise BoundError(f"moving must be true or false, not {self.moving!r}")

    @property
    def words(self) -> str:
        """What it is called where there is little room."""
        return f"W {self.window} S {self.sinks}" + (" moving" if self.moving else "")

    def sink_tokens(self, block_size: int) -> int:
        """S': the pinned tokens, in whole blocks."""
        return blocks_for(self.sinks, block_size) * block_size

    def evictable(self, resident: int, block_size: int) -> int:
        """How many tokens behind the sinks to give back when ``resident`` tokens are computed: whole blocks."""
        return max(0, resident - self.window - self.sink_tokens(block_size)) // block_size * block_size

    def resident_max(self, block_size: int, frame_tokens: int, owed: int) -> int:
        """The most tokens a session ever needs slots for: sinks + window + block + frame + owed."""
        return self.sink_tokens(block_size) + self.window + block_size + frame_tokens + owed

    def to_args(self) -> dict[str, int | bool]:
        """The form that travels in ``SamplingParams.extra_args["kv_bound"]``."""
        return {"window": self.window, "sinks": self.sinks, "moving": self.moving}

    @classmethod
    def from_args(cls, value: object) -> KVBound | None:
        """Read what travelled; None stays None. Raises BoundError on anything else than window, sinks and moving."""
        if value is None:
            return None
        if not isinstance(value, dict) or not set(value) <= {"window", "sinks", "moving"} or "window" not in value:
            raise BoundError(f"a bound travels as {{'window': W, 'sinks': S, 'moving': M}}, not {value!r}")
        return cls(**value)


def blocks_for(tokens: int, block_size: int) -> int:
    """The blocks that hold ``tokens`` tokens."""
    return -(-tokens // block_size)


def growth_per_frame(tokens_in: int, owed: int) -> int:
    """Tokens a session's KV grows by each frame: in + out - 1, for the last sampled token is dropped."""
    return tokens_in + owed - 1


def check_bound(
    bound: KVBound, *, block_size: int, blocks_total: int, max_model_len: int, frame_tokens: int, owed: int
) -> None:
    """Refuse, with one line, a bound that this engine cannot serve at this frame size."""
    if bound.window < block_size:
        raise BoundError(
            f"window {bound.window} is smaller than one block of {block_size} tokens: use {block_size} or more"
        )
    if bound.window < frame_tokens:
        raise BoundError(
            f"window {bound.window} is smaller than one frame of {frame_tokens} tokens: use {frame_tokens} or more"
        )
    most = bound.resident_max(block_size, frame_tokens, owed)
    if most > max_model_len:
        raise BoundError(
            f"window {bound.window} with sinks {bound.sinks} holds up to {most} tokens (sinks + window + block + "
            f"frame + owed), more than max_model_len {max_model_len}: make the window smaller"
        )
    if blocks_for(most, block_size) > blocks_total:
        raise BoundError(
            f"window {bound.window} with sinks {bound.sinks} holds up to {blocks_for(most, block_size)} blocks, more "
            f"than the pool's {blocks_total}: make the window smaller or the pool larger"
        )


@dataclass(frozen=True)
class Plateau:
    """Blocks of one session at the end of a frame, once it is full: the least, the mean and the most."""

    least: int
    mean: float
    most: int


@lru_cache
def plateau(bound: KVBound, block_size: int, tokens_in: int, owed: int) -> Plateau:
    """The cycle that a bounded session's blocks settle into, by running the eviction rule until it repeats."""
    growth = growth_per_frame(tokens_in, owed)
    resident, seen, blocks = 0, {}, []
    while resident not in seen:
        seen[resident] = len(blocks)
        resident = resident - bound.evictable(resident, block_size) + growth
        blocks.append(blocks_for(resident, block_size))
    cycle = blocks[seen[resident] :]
    return Plateau(min(cycle), sum(cycle) / len(cycle), max(cycle))


def plateau_excess(bounds: list[KVBound], block_size: int, blocks_total: int, tokens_in: int, owed: int) -> int:
    """By how many blocks the sessions' plateaus together exceed the pool; 0 or less means that they fit."""
    return sum(plateau(b, block_size, tokens_in, owed).most for b in bounds) - blocks_total
