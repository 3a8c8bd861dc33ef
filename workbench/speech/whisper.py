"""Words of a piece of speech: Whisper tiny.en, run by faster-whisper on the CPU, offline."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from workbench.speech import SpeechError
from workbench.speech.parts import whisper_folder

COMPUTE_TYPE = "int8"
THREADS = 1  # the engine wants the others
# Whisper invents words where there are none; a piece that it takes for no speech, and is unsure of, has none.
NO_SPEECH, UNSURE = 0.6, -1.0


def recogniser() -> Callable[[np.ndarray], str]:
    """A function from samples (float32, 16 kHz mono) to words. It may be called from any thread. Raises SpeechError."""
    return _load(str(whisper_folder()))


@lru_cache(maxsize=1)
def _load(folder: str) -> Callable[[np.ndarray], str]:
    try:
        from faster_whisper import WhisperModel

        model = WhisperModel(
            folder, device="cpu", compute_type=COMPUTE_TYPE, cpu_threads=THREADS, local_files_only=True
        )
    except (ImportError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SpeechError(f"Whisper does not load: run `make setup`; it said: {reason}") from error

    def words(samples: np.ndarray) -> str:
        # Greedy, and at one temperature: the same audio has the same words each time.
        segments, _ = model.transcribe(
            samples,
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            no_speech_threshold=NO_SPEECH,
            log_prob_threshold=UNSURE,
        )
        return " ".join("".join(segment.text for segment in segments).split())

    return words
