"""The moshi front end: both speak at once. A frame is one position of 17 streams, and its answer is part of the next.

The streams of a position are a text token, eight codes of Moshi's own audio and eight of the user's. Text and each
side's first code, which carries the meaning, are those of now; the seven others come one position later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench._model_config import read_config
from workbench.audio import Clip
from workbench.engine.media import AudioChunk
from workbench.frontends import FrontEndError
from workbench.frontends.text import load_tokenizer
from workbench.moshi_codec import FRAME_S, CodecError, load_mimi
from workbench.omni_models import MOSHI

# What its text stream says while nothing is said: 3 pads, 0 ends a pad.
_SILENT = (0, 3)


class MoshiFrontEnd:
    """Front end of a Moshi session, a workbench.beat.Talk. It needs every chunk's answer before the next chunk.

    As the model was trained, position 0 holds no audio but start tokens alone, and the user's audio begins with the
    frame after it. FrontEndError for a frame budget that is not 80 ms, a folder that is no Moshi or has no Mimi, and a
    vocabulary that is not the folder's.
    """

    name = "moshi"
    hears = True
    talks = True
    media = True
    most_tokens = 1
    stop_token_ids: tuple[int, ...] = ()

    def __init__(
        self,
        *,
        vocab_size: int,
        clip: Clip | None,
        frame_budget_s: float,
        model_path: Path | None = None,
        loop: bool = True,
        start_s: float = 0.0,
    ) -> None:
        self.tokens_per_frame(frame_budget_s)
        if model_path is None:
            raise FrontEndError("moshi front end: needs the folder of a Moshi; serve moshi or moshi-tiny")
        config = _config(Path(model_path))
        if config["vocab_size"] != vocab_size:
            raise FrontEndError(
                f"moshi front end: {model_path} has a text vocabulary of {config['vocab_size']}, the engine one of "
                f"{vocab_size}; serve that folder"
            )
        try:
            self._mimi = load_mimi(Path(model_path))
        except CodecError as error:
            raise FrontEndError(f"moshi front end: {error}") from error
        has_words = (Path(model_path) / "tokenizer.json").is_file()
        self._tokenizer = load_tokenizer(model_path, vocab_size) if has_words else None
        self.meaningful = has_words
        self._encoder = self._mimi.encoder()
        # Past the last token and the last code there is one more, which stands for what is not there yet.
        self._no_text, self._no_code = vocab_size, self._mimi.codes
        self._positions = 0
        self._text: int | None = None
        self._own: tuple[int, ...] | None = None
        self._users_before: np.ndarray | None = None
        self._heard: dict[int, np.ndarray | None] = {}
        self._said, self._spoken = 0, 0

    @staticmethod
    def tokens_per_frame(frame_budget_s: float) -> int:
        """1. FrontEndError unless the budget is 80 ms, a position of the model."""
        if not math.isclose(frame_budget_s, FRAME_S, rel_tol=1e-9):
            raise FrontEndError(f"moshi front end: frame budget {frame_budget_s} s is not {FRAME_S} s, Moshi's own")
        return 1

    # -- what is heard ----------------------------------------------------------------------------------------------

    def encode(self, samples: np.ndarray, frame: int) -> list[int]:
        """Hear a frame. It has no tokens of its own: ``chunk`` gives those of the position.

        FrontEndError for samples that are no 80 ms, and on an engine that makes no codes.
        """
        if self._said > self._spoken:
            raise FrontEndError("moshi front end: a frame was answered without codes; serve it on vLLM with the plugin")
        # Position 0 has no audio, and Mimi begins with what is heard.
        first = self._positions == 0 and not self._heard
        try:
            self._heard[frame] = None if first else self._encoder.encode(samples)
        except CodecError as error:
            raise FrontEndError(f"moshi front end: frame {frame}: {error}") from error
        return []

    # -- the model's part (Talk) ------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether all frames that were heard are with the model."""
        return not self._heard

    def chunk(self, frame: int, owed: int) -> tuple[list[int], int]:
        """The next position, an AudioChunk of one token whose audio is its streams, int64 (17,), and 1 owed."""
        streams = self._streams(self._heard.pop(frame))
        # Frames before it that were dropped: the model hears one as if it followed the one it heard last.
        self._heard = {later: codes for later, codes in self._heard.items() if later > frame}
        self._positions += 1
        # The start token is none of the prompt's; the model reads the text from the streams alone.
        token = 0 if streams[0] == self._no_text else int(streams[0])
        return AudioChunk([token], streams, 1), min(owed, 1)

    def _streams(self, users: np.ndarray | None) -> np.ndarray:
        nothing = np.full(self._mimi.codebooks, self._no_code)
        text, own, heard = self._no_text, nothing.copy(), nothing.copy()
        if self._positions > 0:
            if self._text is not None:
                text = self._text
            if self._own is not None:
                # The seven later codes of an answer are delayed as they come; the first answer's are of before.
                now = self._mimi.codebooks if self._positions > 1 else 1
                own[:now] = self._own[:now]
            if users is not None:
                heard[0] = users[0]
            if self._users_before is not None:
                heard[1:] = self._users_before[1:]
            self._users_before = users
        return np.array([text, *own, *heard], dtype=np.int64)

    def said(self, tokens: Sequence[int], frame: int, at_s: float) -> tuple[int, ...]:
        """The text token that answers ``frame``: those to show, which is none where nothing is said."""
        if tokens:
            self._text = tokens[-1]
            self._said += 1
        return tuple(token for token in tokens if token not in _SILENT)

    def spoke(self, codes: tuple[int, ...]) -> None:
        """The codes of Moshi's own audio that answer the frame. FrontEndError for any other number of codes."""
        if len(codes) != self._mimi.codebooks:
            raise FrontEndError(f"moshi front end: {len(codes)} codes answer a frame, not {self._mimi.codebooks}")
        self._own = codes
        self._spoken += 1

    def close(self) -> None:
        """The session has ended."""

    # -- what there is to see ---------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens' text; of a folder without a tokenizer a label with their number."""
        if self._tokenizer is None:
            return f"‹{len(tokens)} tokens of text, no tokenizer›"
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


def _config(folder: Path) -> dict:
    config = read_config(folder, lambda line: FrontEndError(f"moshi front end: {line}; give a Moshi folder"))
    if MOSHI not in (config.get("architectures") or ()):
        raise FrontEndError(
            f"moshi front end: {folder} is no {MOSHI} but {config.get('architectures')}; give a Moshi folder"
        )
    return config
