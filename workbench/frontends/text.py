"""The text front end: the clip's transcript, fed word by word at the pace at which it is spoken."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from workbench.audio import AudioError, Clip, frame_samples, offset_samples, sample_names, start_sample
from workbench.frontends import FrontEndError

_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
HEADER = f"{_TURN}system\nYou listen to a speaker and reply in a few words.{END_OF_TURN}\n{_TURN}user\n"


class TextFrontEnd:
    """A frame's tokens are those of the words that begin in it; the words are spread evenly over the clip.

    The words loop as the audio does. A frame without a word gets one newline token, so none is empty. Where the
    tokenizer has SmolLM2's chat tokens, the first frame begins with a system message and opens the user's turn, and
    the end of a turn is the stop token. FrontEndError for a clip without a transcript and for a tokenizer that is
    missing, broken, larger than the model's vocabulary or without a newline token; AudioError for a bad frame
    budget or start_s.
    """

    name = "text"
    meaningful = True
    hears = True

    def __init__(
        self,
        *,
        vocab_size: int,
        clip: Clip,
        frame_budget_s: float,
        model_path: Path | None = None,
        loop: bool = True,
        start_s: float = 0.0,
    ) -> None:
        frame_samples(frame_budget_s)
        self._words = _words(clip)
        self._tokenizer = load_tokenizer(model_path, vocab_size)
        self._newline = self._ids("\n")
        if len(self._newline) != 1:
            raise FrontEndError(f"{model_path}: its tokenizer has no newline token, which stands for a pause")
        self._clip_samples = clip.samples.size
        self._offset = offset_samples(clip, start_s, loop)
        self._frame_budget_s = frame_budget_s
        self._loop = loop
        end = self._tokenizer.token_to_id(END_OF_TURN)
        self.stop_token_ids: tuple[int, ...] = () if end is None else (end,)
        self._chat = end is not None and self._tokenizer.token_to_id(_TURN) is not None
        self._header = self._ids(HEADER) if self._chat else []

    @staticmethod
    def tokens_per_frame(frame_budget_s: float) -> None:
        """None: a frame has as many tokens as its words need."""

    @property
    def most_tokens(self) -> int:
        """The most tokens that a frame of this clip becomes, the header counted in."""
        # Frames begin at different places of each loop, so a frame's words are looked for in two loops of the clip.
        frames = 2 * self._clip_samples // frame_samples(self._frame_budget_s) + 2
        header = self._ids(HEADER) if self._chat else []
        return len(header) + max(len(self._words_ids(k)) for k in range(frames))

    def _words_ids(self, frame: int) -> list[int]:
        words = "".join(f" {word}" for word in self._words_in(frame))
        return (self._ids(words) if words else []) or list(self._newline)

    def encode(self, samples: np.ndarray, frame: int) -> list[int]:
        """Token ids of the words that begin in the frame. `samples` is not looked at. AudioError for frame < 0."""
        # With the first frame that is encoded, not with frame 0: an overloaded session may drop its oldest audio.
        header, self._header = self._header, []
        return header + self._words_ids(frame)

    def _words_in(self, frame: int) -> list[str]:
        first, end = (self._words_before(start_sample(k, self._frame_budget_s)) for k in (frame, frame + 1))
        if not self._loop:
            first, end = min(first, len(self._words)), min(end, len(self._words))
        return [self._words[index % len(self._words)] for index in range(first, end)]

    def _words_before(self, stream_sample: int) -> int:
        """Words that begin before this sample of the stream: word j begins j x clip / words in, j counted over loops.

        In whole numbers, so that a looped word is never said twice or lost between two frames.
        """
        return -(-(self._offset + stream_sample) * len(self._words) // self._clip_samples)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens' text, special tokens left out."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


def _words(clip: Clip) -> list[str]:
    words = (clip.transcript or "").split()
    if not words:
        try:
            remedy = f"use {', '.join(sample_names(transcribed=True))}, or load_clip with a transcript"
        except AudioError:
            # Without the sample clips there is no other clip to offer; the refusal itself stands.
            remedy = "load it with load_clip and a transcript"
        raise FrontEndError(f"text front end: clip {clip.name} has no transcript; {remedy}")
    return words


def load_tokenizer(model_path: Path | None, vocab_size: int):
    """The tokenizer (tokenizers) of the model in a folder. FrontEndError where it is missing, broken or too large."""
    if model_path is None:
        raise FrontEndError("text front end: needs model_path, the folder that holds the model's tokenizer.json")
    folder = Path(model_path)
    # A folder may have the parts of a tokenizer, of which transformers makes one.
    file = next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), None)
    if file is None:
        file = folder / TOKENIZER_FILES[0]
        raise FrontEndError(f"{file}: no such tokenizer; give the folder that holds the model's tokenizer.json")
    tokenizer = _read_tokenizer(file, file.stat().st_mtime_ns)
    size = tokenizer.get_vocab_size()
    if size > vocab_size:
        raise FrontEndError(f"{file}: has {size} tokens, more than the model's {vocab_size}; use the model's own")
    return tokenizer


@lru_cache(maxsize=4)
def _read_tokenizer(file: Path, modified_ns: int):
    """The tokenizer in a file, one for all sessions; `modified_ns` is part of the key, so a rebuilt file is read."""
    from tokenizers import Tokenizer

    try:
        if file.name != TOKENIZER_FILES[0]:
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(file.parent, trust_remote_code=False).backend_tokenizer
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        reason = " ".join(str(error).split())
        raise FrontEndError(f"{file}: not a tokenizer ({reason}); build the model folder again") from error
