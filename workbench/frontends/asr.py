"""The asr front end: a conversation. Speech in, its words into the model by the chat template, the reply's tokens out.

A turn's words go in when it has ended and Whisper, on a thread of its own, has its words; the tokens owed from then on
are the reply, until the model ends it or the speaker interrupts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from workbench.audio import Clip, frame_samples
from workbench.frontends import FrontEndError
from workbench.frontends.text import load_tokenizer
from workbench.speech import SpeechError
from workbench.speech.chat import END, TURN, Chat
from workbench.speech.listen import Began, Listener
from workbench.speech.turns import Transcript, Turn
from workbench.speech.worker import Background


class AsrFrontEnd:
    """Front end of a conversation, a workbench.beat.Talk: workbench.speech.chat says what goes in and what is owed.

    ``detect``, ``recognise`` and ``worker`` stand in for Silero, Whisper and the thread. FrontEndError where a part is
    missing, and for a tokenizer that is missing, broken, larger than the model's vocabulary or without chat tokens;
    AudioError for a bad frame budget.
    """

    name = "asr"
    meaningful = True
    hears = True
    talks = True

    def __init__(
        self,
        *,
        vocab_size: int,
        clip: Clip | None,
        frame_budget_s: float,
        model_path: Path | None = None,
        loop: bool = True,
        start_s: float = 0.0,
        detect: Callable[[np.ndarray], np.ndarray] | None = None,
        recognise: Callable[[np.ndarray], str] | None = None,
        worker: type = Background,
    ) -> None:
        frame_samples(frame_budget_s)
        if model_path is None:
            raise FrontEndError("asr front end: needs a model with a tokenizer; serve smollm2, not a simulated engine")
        self._tokenizer = load_tokenizer(model_path, vocab_size)
        if None in (self._tokenizer.token_to_id(TURN), self._tokenizer.token_to_id(END)):
            raise FrontEndError(f"{model_path}: its tokenizer has no chat tokens; serve a model that has, as smollm2")
        detect, recognise = _parts(detect, recognise)
        self._chat = Chat(lambda text: self._tokenizer.encode(text, add_special_tokens=False).ids)
        self._transcript = Transcript()
        self.stop_token_ids: tuple[int, ...] = (self._chat.end,)
        self.most_tokens = self._chat.most_tokens
        self._listener = Listener(detect)
        self._began_frame = 0
        self._recognising = 0
        self._worker = worker(recognise, "metronome-hears")

    @staticmethod
    def tokens_per_frame(frame_budget_s: float) -> None:
        """None: a frame has as many tokens as there is to say."""

    # -- what is heard ----------------------------------------------------------------------------------------------

    def encode(self, samples: np.ndarray, frame: int) -> list[int]:
        """Hear a frame. It has no tokens of its own: ``chunk`` gives those of the conversation."""
        for (piece, began_frame), words in self._worker.take():
            self._recognising -= 1
            if words:
                self._chat.add(words)
                self._transcript.heard(words, piece.from_s, piece.to_s, began_frame, frame, self._chat.replies)
        for event in self._listener.hear(samples):
            if isinstance(event, Began):
                self._began_frame = frame
                if self._chat.interrupt():
                    self._transcript.cut(self._chat.replies, frame)
            else:
                self._recognising += 1
                self._worker.put((event, self._began_frame), event.samples)
        self._chat.listening = self._listener.speaking or self._recognising > 0
        return []

    # -- the model's part (Talk) ------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether all words that were heard are with the model."""
        return self._chat.settled

    @property
    def quiet(self) -> bool:
        """Whether nobody speaks, no words wait and no reply goes on."""
        return self._chat.settled and not self._chat.replying

    @property
    def seen(self) -> tuple[int, ...]:
        """Every token of this session that the model has computed when the chunk in flight has been answered."""
        return tuple(self._chat.seen)

    def chunk(self, frame: int, owed: int) -> tuple[list[int], int]:
        """The tokens that go in now and how many are owed, ``owed`` at most; ([], 0): there is nothing to say."""
        return self._chat.chunk(owed)

    def said(self, tokens: Sequence[int], frame: int, at_s: float) -> tuple[int, ...]:
        """Tokens that came for ``frame``, ``at_s`` seconds after the session's audio began: those to show."""
        shown = self._chat.said(tokens)
        if self._chat.answering and tokens:
            ended = self._chat.end in tokens
            self._transcript.replied(self._chat.replies, len(tokens), shown, ended, frame, at_s)
        return shown

    def close(self) -> None:
        """The session has ended: so does the thread that hears for it."""
        self._worker.close()

    # -- what there is to see ---------------------------------------------------------------------------------------

    def transcript(self) -> list[Turn]:
        """Who said what when, so far."""
        return self._transcript.turns(self.decode)

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens' text, special tokens left out."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


def _parts(detect, recognise):
    """What hears, loaded here where it is missing: the caller waits for it, no frame does."""
    from workbench.speech.vad import Silero
    from workbench.speech.whisper import recogniser

    try:
        return Silero() if detect is None else detect, recogniser() if recognise is None else recognise
    except SpeechError as error:
        raise FrontEndError(f"asr front end: {error}") from error
