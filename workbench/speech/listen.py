"""Turns of a speaker: probabilities of speech -> when a turn begins, its audio in pieces, and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.audio import SAMPLE_RATE

SPEECH, SILENCE = 0.5, 0.35  # at least this is speech; under that is silence; between, whatever it was before
BEGINS_S = 0.09  # speech for so long begins a turn: three windows, so that no click interrupts anybody
ENDS_S = 0.7  # silence for so long ends it
BEFORE_S = 0.3  # of the audio before the turn goes with it: a word's first consonant is no speech to a detector
LONGEST_S = 24.0  # a longer turn is handed on in pieces, for Whisper hears 30 s at a time


@dataclass(frozen=True)
class Began:
    """A turn began at ``at_s``, in seconds of the stream."""

    at_s: float


@dataclass(frozen=True, eq=False)
class Piece:
    """Audio of a turn, float32 at 16 kHz, with a margin around the speech, which lasts from ``from_s`` to ``to_s``.

    ``last``: the turn has ended with it.
    """

    from_s: float
    to_s: float
    samples: np.ndarray
    last: bool


class Listener:
    """Hears one stream, frame by frame. ``detect``: workbench.speech.vad.Silero or what stands in for it: samples in,
    a probability for each whole ``detect.window`` of them out.
    """

    def __init__(self, detect: Callable[[np.ndarray], np.ndarray]) -> None:
        self._detect, self._window = detect, detect.window
        self._audio = np.zeros(0, np.float32)  # from sample _kept_from of the stream on
        self._kept_from = self._judged = 0  # samples
        self._speech = self._silence = 0  # windows in a row
        self._piece_from: int | None = None  # the first sample of the turn that goes on
        self._began = 0

    @property
    def speaking(self) -> bool:
        """Whether a turn goes on."""
        return self._piece_from is not None

    def hear(self, samples: np.ndarray) -> list[Began | Piece]:
        """What became clear with these samples, in order."""
        self._audio = np.concatenate((self._audio, samples.astype(np.float32)))
        found = [event for p in self._detect(samples) for event in self._judge(float(p))]
        self._forget()
        return found

    def _judge(self, probability: float) -> list[Began | Piece]:
        self._judged += self._window
        speech = probability >= (SPEECH if not self._speech else SILENCE)
        self._speech, self._silence = (self._speech + 1, 0) if speech else (0, self._silence + 1)
        if not self.speaking:
            if self._seconds(self._speech) < BEGINS_S:
                return []
            self._began = self._judged - self._speech * self._window
            self._piece_from = max(self._kept_from, self._began - round(BEFORE_S * SAMPLE_RATE))
            return [Began(self._began / SAMPLE_RATE)]
        if self._seconds(self._silence) >= ENDS_S:
            # Half of the silence stays with the words, the rest is nobody's.
            return [self._cut(self._judged - self._silence * self._window // 2, last=True)]
        if self._judged - self._piece_from >= LONGEST_S * SAMPLE_RATE:
            return [self._cut(self._judged, last=False)]
        return []

    def _seconds(self, windows: int) -> float:
        return windows * self._window / SAMPLE_RATE

    def _cut(self, end: int, last: bool) -> Piece:
        begin, began = self._piece_from, self._began
        samples = self._audio[begin - self._kept_from : end - self._kept_from].copy()
        self._piece_from, self._began = None if last else end, end
        # Where the speaker fell silent, not where the audio was cut.
        spoken = self._judged - self._silence * self._window if last else end
        return Piece(began / SAMPLE_RATE, spoken / SAMPLE_RATE, samples, last)

    def _forget(self) -> None:
        """Let go of the audio that no turn can want any more."""
        keep = self._judged - round((BEFORE_S + BEGINS_S) * SAMPLE_RATE) - self._window
        if self._piece_from is not None:
            keep = min(keep, self._piece_from)
        gone = max(0, keep - self._kept_from)
        self._audio, self._kept_from = self._audio[gone:], self._kept_from + gone
