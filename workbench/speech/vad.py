"""Voice activity: audio of any length in, one probability of speech for each 32 ms of it out.

Source: Silero VAD, version 6, as ONNX: 512 samples at 16 kHz behind the 64 before them, and the state of an LSTM.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workbench.speech.parts import detector_file

WINDOW = 512
_BEFORE = 64
_STATE = (1, 1, 128)


class Silero:
    """The voice detector of one stream; what is left over of a window waits for the next samples.

    Raises SpeechError where a part is missing.
    """

    window = WINDOW

    def __init__(self) -> None:
        self._session = _session(str(detector_file()))
        self._state = np.zeros(_STATE, np.float32), np.zeros(_STATE, np.float32)
        self._before = np.zeros(_BEFORE, np.float32)
        self._left = np.zeros(0, np.float32)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Probabilities of speech of the windows that are whole by now, shape (n,). ``samples``: float32, (m,)."""
        audio = np.concatenate((self._left, samples.astype(np.float32)))
        count = audio.size // WINDOW
        self._left = audio[count * WINDOW :].copy()
        if not count:
            return np.zeros(0, np.float32)
        heard = np.concatenate((self._before, audio[: count * WINDOW]))
        self._before = heard[-_BEFORE:].copy()
        windows = np.lib.stride_tricks.sliding_window_view(heard, _BEFORE + WINDOW)[::WINDOW]
        h, c = self._state
        found, *state = self._session.run(None, {"input": np.ascontiguousarray(windows), "h": h, "c": c})
        self._state = tuple(state)
        return found.reshape(-1)


@lru_cache(maxsize=1)
def _session(file: str):
    """The model, one for all streams: it keeps no state of its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Its work for a frame takes a millisecond or two: more threads would only spin beside the engine's.
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
