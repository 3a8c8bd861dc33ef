"""The scratchpad front end: a load generator for chunks of all lengths, as thoughts and tools' answers are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from workbench.audio import Clip
from workbench.frontends import FrontEndError
from workbench.frontends.load import LoadFrontEnd


class ScratchpadFrontEnd:
    """``scratchpad:SHORTEST-LONGEST:SEED``: each frame has as many tokens as its draw says, from SHORTEST to LONGEST.

    The lengths are log-uniform: a chunk is as likely to lie between 20 and 40 tokens as between 200 and 400, so most
    are short and a few hold most of the tokens. That shape is an assumption. A draw hangs on SEED (0 where it is left
    out), the session's number and the frame, on nothing else. FrontEndError.
    """

    name = "scratchpad"
    meaningful = False
    hears = False
    of_audio = False
    stop_token_ids = LoadFrontEnd.stop_token_ids

    def __init__(
        self,
        *,
        vocab_size: int,
        argument: str,
        session: int = 0,
        clip: Clip | None = None,
        frame_budget_s: float = 0.0,
        model_path: Path | None = None,
        loop: bool = True,
        start_s: float = 0.0,
    ) -> None:
        self._shortest, self.most_tokens, self._seed = _read(argument)
        self._session = session
        self._load = LoadFrontEnd(vocab_size=vocab_size, argument=str(self.most_tokens), session=session)

    @staticmethod
    def tokens_per_frame(frame_budget_s: float, argument: str) -> None:
        """None: no two frames need have the same. FrontEndError for an argument that is no range."""
        _read(argument)

    def encode(self, samples: None, frame: int) -> list[int]:
        """The frame's tokens, made as those of ``load`` are."""
        draw = random.Random(f"{self._seed} scratchpad {self._session} {frame}").random()
        # P(length >= n) = ln((longest + 1) / n) / ln((longest + 1) / shortest), by inversion.
        length = int(self._shortest * ((self.most_tokens + 1) / self._shortest) ** draw)
        return self._load.encode(samples, frame)[: min(length, self.most_tokens)]

    def decode(self, tokens: Sequence[int]) -> str:
        """A label with the number of tokens; there are no words in them."""
        return self._load.decode(tokens)


def mean_tokens(shortest: int, longest: int) -> float:
    """The expected length of a chunk, in tokens: the sum over n of P(length >= n), which is exact."""
    chances = (math.log((longest + 1) / n) for n in range(shortest + 1, longest + 1))
    return shortest + sum(chances) / math.log((longest + 1) / shortest)


def _read(argument: str) -> tuple[int, int, int]:
    """SHORTEST, LONGEST and SEED."""
    lengths, _, seed = argument.partition(":")
    shortest, _, longest = lengths.partition("-")
    said = (shortest, longest, seed or "0")
    if not all(part.isascii() and part.isdecimal() for part in said) or not 1 <= int(shortest) <= int(longest):
        raise FrontEndError(
            f"scratchpad front end: scratchpad:{argument} is no range of tokens: give scratchpad:16-2048 for 16 to "
            "2048 a frame, or scratchpad:16-2048:7 with a seed"
        )
    return tuple(map(int, said))
