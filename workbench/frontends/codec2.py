"""The codec2 front end: real audio as a steady 25 tokens a second. A load generator, its words mean nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench.audio import SAMPLE_RATE, Clip, frame_samples
from workbench.frontends import FrontEndError

TOKEN_S = 0.04
_BIT_RATE = 1_200
_CODEC_RATE = 8_000
_TAPS = 97
_CUTOFF_HZ = 3_700
_MIN_VOCAB = 8


def _low_pass() -> np.ndarray:
    """Windowed-sinc low-pass filter, shape (97,), gain 1 at 0 Hz: flat to 3.3 kHz, 60 dB down from 4.1 kHz.

    Source: the window method with a Kaiser window (Oppenheim and Schafer, Discrete-Time Signal Processing, ch. 7).
    """
    at = np.arange(_TAPS) - _TAPS // 2
    taps = np.sinc(at * 2 * _CUTOFF_HZ / SAMPLE_RATE) * np.kaiser(_TAPS, 6.0)
    return taps / taps.sum()


def token_range(vocab_size: int) -> range:
    """Token ids codec2 uses: the first 4096 of the vocabulary's upper half, or as many as half of that half holds."""
    start = vocab_size // 2
    return range(start, start + min(4_096, vocab_size // 4))


class Codec2FrontEnd:
    """One token per 40 ms of audio: codec2 at 1200 bit/s, each frame's 48 bits hashed into `token_range`.

    FrontEndError for a frame budget that is not a whole number of 40 ms and for a vocabulary under 8 tokens.
    """

    name = "codec2"
    meaningful = False
    hears = True
    stop_token_ids: tuple[int, ...] = ()

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
        import pycodec2

        if vocab_size < _MIN_VOCAB:
            raise FrontEndError(f"codec2 front end: a vocabulary of {vocab_size} tokens is under {_MIN_VOCAB}")
        self.most_tokens = self.tokens_per_frame(frame_budget_s)
        self._frame_samples = frame_samples(frame_budget_s)
        self._range = token_range(vocab_size)
        self._codec = pycodec2.Codec2(_BIT_RATE)
        self._filter = _low_pass()
        # The filter runs over the audio before each frame: silence ahead of the first makes that one full length too.
        self._tail = np.zeros(_TAPS - 1)

    @staticmethod
    def tokens_per_frame(frame_budget_s: float) -> int:
        """B / 40 ms. FrontEndError unless that is a whole number of at least 1."""
        tokens = frame_budget_s / TOKEN_S
        if not (math.isfinite(tokens) and round(tokens) >= 1 and math.isclose(tokens, round(tokens), rel_tol=1e-9)):
            raise FrontEndError(f"codec2 front end: frame budget {frame_budget_s} s is not a multiple of {TOKEN_S} s")
        return round(tokens)

    def encode(self, samples: np.ndarray, frame: int) -> list[int]:
        """Exactly B / 40 ms token ids. FrontEndError for samples of another shape than (round(B x 16000),)."""
        if samples.shape != (self._frame_samples,):
            raise FrontEndError(f"codec2 front end: frame {frame} has shape {samples.shape}, not {self._frame_samples}")
        speech = self._to_codec_rate(samples)
        return [self._token(self._codec.encode(piece)) for piece in speech.reshape(self.most_tokens, -1)]

    def _to_codec_rate(self, samples: np.ndarray) -> np.ndarray:
        # Not soxr: its stream gives samples in bursts up to 0.12 s late, so a frame's tokens would stand for older
        # audio. This filter is 3 ms late and gives half as many samples as it takes, always. In float64, so that the
        # int16 values, and with them the tokens, do not hang on how the audio was cut into frames.
        heard = np.concatenate((self._tail, samples.astype(np.float64)))
        self._tail = heard[-(_TAPS - 1) :].copy()
        halved = np.convolve(heard, self._filter, mode="valid")[:: SAMPLE_RATE // _CODEC_RATE]
        return np.round(np.clip(halved, -1.0, 1.0) * 32_767).astype(np.int16)

    def _token(self, bits: bytes) -> int:
        # Not hash(), which differs from process to process.
        digest = hashlib.blake2b(bits, digest_size=8).digest()
        return self._range[int.from_bytes(digest, "little") % len(self._range)]

    def decode(self, tokens: Sequence[int]) -> str:
        """A label with the number of tokens; there are no words in them."""
        return f"‹{len(tokens)} tokens of load, no meaning›"
