"""The omni front end: a frame's audio itself, for a model that encodes it in the engine's step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from workbench.audio import SAMPLE_RATE, Clip, frame_samples
from workbench.engine.media import AudioChunk
from workbench.frontends import FrontEndError
from workbench.frontends.text import END_OF_TURN, HEADER, load_tokenizer
from workbench.omni_models import OMNI, OmniError, OmniModel, omni_model


class OmniFrontEnd:
    """Each frame is the model's own delimiters around one placeholder, which vLLM turns into the audio's tokens.

    ``argument``: the model that is to hear it, a name of workbench.omni_models, which fixes how many they are.
    The first frame begins with a system message and opens the user's turn; the end of a turn is the stop token.
    FrontEndError for a model that hears no audio, a frame budget shorter than the model accepts, and a tokenizer that
    is missing, broken, larger than the model's vocabulary or without the model's delimiters. FrontEndError also where
    the folder holds another model.
    """

    name = "omni"
    hears = True
    media = True

    def __init__(
        self,
        *,
        vocab_size: int,
        clip: Clip | None = None,
        frame_budget_s: float,
        argument: str,
        model_path: Path | None = None,
        loop: bool = True,
        start_s: float = 0.0,
    ) -> None:
        if model_path is None:
            raise FrontEndError("omni front end: needs model_path, the folder of a model that hears audio")
        self._model = _asked(argument)
        in_folder = _omni_model(model_path)
        if in_folder.name != self._model.name:
            raise FrontEndError(
                f"omni front end: {model_path} holds {in_folder.name}, not {self._model.name}: "
                f"use front_end omni:{in_folder.name}"
            )
        self.tokens_per_frame(frame_budget_s, argument)
        self._frame_samples = frame_samples(frame_budget_s)
        self._tokenizer = load_tokenizer(model_path, vocab_size)
        self._before, self._placeholder, self._after = (
            self._known(text) for text in (self._model.before, self._model.placeholder, self._model.after)
        )
        self._audio_tokens = self._model.audio_tokens(self._frame_samples)
        self._header = self._ids(HEADER)
        self.most_tokens = len(self._header) + self._frame_length
        self.meaningful = not _is_random(Path(model_path))
        end = self._tokenizer.token_to_id(END_OF_TURN)
        self.stop_token_ids: tuple[int, ...] = () if end is None else (end,)

    @staticmethod
    def tokens_per_frame(frame_budget_s: float, argument: str) -> int:
        """Of every frame but the first, which has the header too. FrontEndError for one the model does not take."""
        model = _asked(argument)
        try:
            heard = model.audio_tokens(frame_samples(frame_budget_s))
        except OmniError as error:
            raise FrontEndError(f"omni front end: {error}") from None
        return bool(model.before) + bool(model.after) + heard

    def _known(self, text: str) -> list[int]:
        ids = self._ids(text)
        # A mark is one token. MiniCPM's placeholder is plain text.
        if len(ids) > 1 and text.startswith("<|"):
            raise FrontEndError(f"omni front end: the model's tokenizer has no {text}: use the model's own folder")
        return ids

    def _frame(self) -> list[int]:
        return [*self._before, *self._placeholder, *self._after]

    @property
    def _frame_length(self) -> int:
        return len(self._before) + self._audio_tokens + len(self._after)

    def encode(self, samples: np.ndarray, frame: int) -> AudioChunk:
        """The frame's chunk. FrontEndError for samples of another shape than (round(B x 16000),)."""
        if samples.shape != (self._frame_samples,):
            raise FrontEndError(f"omni front end: frame {frame} has shape {samples.shape}, not {self._frame_samples}")
        # With the first frame that is encoded, not with frame 0: an overloaded session may drop its oldest audio.
        header, self._header = self._header, []
        tokens = [*header, *self._frame()]
        return AudioChunk(tokens, (samples.astype(np.float32), SAMPLE_RATE), len(header) + self._frame_length)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens' text, special tokens left out."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


def _is_random(folder: Path) -> bool:
    """Whether this package made the weights up, for tests."""
    try:
        return json.loads((folder / "manifest.json").read_text())["model"].endswith("-tiny")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or one of somebody else's making
        return False


def _asked(name: str) -> OmniModel:
    if name not in OMNI:
        raise FrontEndError(f"front end omni:{name}: no such model; choose from {', '.join(OMNI)}")
    return OMNI[name]


def _omni_model(model_path: Path) -> OmniModel:
    try:
        return _read(Path(model_path), (Path(model_path) / "config.json").stat().st_mtime_ns)
    except (OmniError, OSError) as error:
        raise FrontEndError(f"omni front end: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=4)
def _read(folder: Path, modified_ns: int) -> OmniModel:
    """A model folder's, one for all sessions; `modified_ns` is part of the key, so a changed folder is read anew."""
    return omni_model(folder)
