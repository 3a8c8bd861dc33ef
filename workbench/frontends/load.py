"""The load front end: a fixed count of tokens a frame, from no audio. For the simulator, where words mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.audio import Clip
from workbench.frontends import FrontEndError

EOS = 0
_FIRST = 2  # below are the tokens that the simulated model says


class LoadFrontEnd:
    """``load:COUNT``: COUNT tokens a frame; from 3 on no two frames of a run have the same. FrontEndError."""

    name = "load"
    meaningful = False
    hears = False
    stop_token_ids: tuple[int, ...] = (EOS,)

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
        self.most_tokens = self.tokens_per_frame(frame_budget_s, argument)
        self._digits = vocab_size - _FIRST
        self._chunk = [_FIRST + session % self._digits] * self.most_tokens

    @staticmethod
    def tokens_per_frame(frame_budget_s: float, argument: str) -> int:
        """COUNT. FrontEndError unless it is a whole number of at least 1."""
        if not (argument.isascii() and argument.isdecimal() and int(argument) >= 1):
            raise FrontEndError(f"load front end: load:{argument} is no count of tokens: give load:26 for 26 a frame")
        return int(argument)

    def encode(self, samples: None, frame: int) -> list[int]:
        """COUNT token ids: the session's number, but for two that spell the frame's, where there is room for them."""
        tokens = self._chunk.copy()
        if len(tokens) >= 3:
            tokens[1], tokens[2] = _FIRST + frame % self._digits, _FIRST + frame // self._digits
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """A label with the number of tokens; there are no words in them."""
        return f"‹{len(tokens)} simulated tokens, no meaning›"
