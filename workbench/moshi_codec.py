"""Mimi, Moshi's codec, frame by frame: 80 ms of speech to eight codes. transformers' model, streamed.

The audio of this workbench is 16 kHz, Mimi's 24 kHz. A session's state is what its causal convolutions saw last and
the keys and values of a window of frames, whatever its age.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from workbench._model_config import read_config
from workbench.audio import SAMPLE_RATE

MIMI_RATE = 24_000
FRAME_S = 0.08
FRAME_IN = round(SAMPLE_RATE * FRAME_S)
FRAME_OUT = round(MIMI_RATE * FRAME_S)
_UP, _DOWN = 3, 2
_TAPS = 97
_CUTOFF_HZ = 7_600
_PREFIX = "audio_encoder."


class CodecError(ValueError):
    """Audio or weights that Mimi cannot take. The message is one line that names the value and the way out."""


class Upsampler:
    """16 kHz to 24 kHz, each frame as long as it came, 1 ms late.

    Not soxr: its stream gives samples in bursts. Three samples for each by a windowed-sinc low-pass filter, of which
    every second is kept (Oppenheim and Schafer, Discrete-Time Signal Processing, ch. 4 and 7).
    """

    def __init__(self) -> None:
        at = np.arange(_TAPS) - _TAPS // 2
        taps = np.sinc(at * 2 * _CUTOFF_HZ / (SAMPLE_RATE * _UP)) * np.kaiser(_TAPS, 6.0)
        self._taps = _UP * taps / taps.sum()
        self._tail = np.zeros(_TAPS - 1)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """float32 (3 n / 2,) for samples (n,), n even."""
        stuffed = np.zeros(len(samples) * _UP)
        stuffed[::_UP] = samples
        heard = np.concatenate((self._tail, stuffed))
        self._tail = heard[-(_TAPS - 1) :].copy()
        return np.convolve(heard, self._taps, mode="valid")[::_DOWN].astype(np.float32)


class Mimi:
    """The codec of a Moshi folder, one for all sessions; each has its own Encoder.

    ``codebooks``: codes of a frame. ``codes``: values of a code.
    """

    def __init__(self, model, codebooks: int) -> None:
        self.model = model
        self.codebooks = codebooks
        self.codes = model.config.codebook_size

    def encoder(self) -> Encoder:
        """For the frames of a session, in order."""
        return Encoder(self)


def load_mimi(folder: Path) -> Mimi:
    """The codec in a Moshi folder, read once, float32, on the GPU where there is one. CodecError where it has none."""
    folder = Path(folder)
    config = read_config(folder, lambda line: CodecError(f"{line}; give a Moshi folder"))
    if not isinstance(config.get("audio_encoder_config"), dict):
        raise CodecError(f"{folder}: its config.json has no audio_encoder_config, so no Mimi; give a Moshi folder")
    return _load(folder, (folder / "config.json").stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _load(folder: Path, modified_ns: int) -> Mimi:
    """``modified_ns`` is part of the key, so a rebuilt folder is read."""
    import torch
    from transformers import MimiModel, MoshiConfig

    try:
        config = MoshiConfig.from_pretrained(folder)
        model = MimiModel(config.audio_encoder_config)
        weights = _weights(folder)
        missing = model.load_state_dict(weights, strict=False).missing_keys if weights else ["all"]
    except Exception as error:  # whatever a broken file makes transformers, safetensors or torch raise
        reason = " ".join(str(error).split())[:200]
        raise CodecError(f"{folder}: Mimi cannot be read ({reason}); build or fetch the folder again") from error
    if missing:
        raise CodecError(f"{folder}: has no weights of Mimi ({_PREFIX}...: {missing[0]}); use a whole Moshi checkpoint")
    if model.config.sampling_rate != MIMI_RATE or model.config.frame_size != FRAME_OUT:
        raise CodecError(
            f"{folder}: its Mimi has frames of {model.config.frame_size} samples at {model.config.sampling_rate} Hz, "
            f"not {FRAME_OUT} at {MIMI_RATE}; use a Moshi checkpoint"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Mimi(model.eval().requires_grad_(False).to(device), config.num_codebooks)


def _weights(folder: Path) -> dict:
    """Mimi's tensors, float32, by their names in MimiModel, of one file or of several with an index."""
    import torch
    from safetensors import safe_open

    index, files = folder / "model.safetensors.index.json", ["model.safetensors"]
    if index.is_file():
        named = json.loads(index.read_bytes())["weight_map"]
        files = sorted({file for name, file in named.items() if name.startswith(_PREFIX)})
    tensors = {}
    for file in files:
        with safe_open(folder / file, framework="pt") as stream:
            names = [name for name in stream.keys() if name.startswith(_PREFIX)]  # noqa: SIM118, it is no dict
            tensors |= {name.removeprefix(_PREFIX): stream.get_tensor(name).to(torch.float32) for name in names}
    return tensors


@contextmanager
def _frame_by_frame():
    """No gradients, and one thread: a frame is too little for two, which beside a busy engine wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(threads)


class Encoder:
    """A session's ear: ``encode`` its frames in order."""

    def __init__(self, mimi: Mimi) -> None:
        self._mimi = mimi
        self._upsampler = Upsampler()
        self._padding = self._keys = None

    def encode(self, samples: np.ndarray) -> np.ndarray:
        """int64 (codebooks,) for a frame, floats of shape (1280,) at 16 kHz. CodecError for any other."""
        if samples.shape != (FRAME_IN,) or not np.issubdtype(samples.dtype, np.floating):
            raise CodecError(
                f"Mimi hears frames of {FRAME_IN} floats (80 ms at 16 kHz), not {samples.dtype} {samples.shape}: "
                "resample and cut the audio"
            )
        import torch

        model = self._mimi.model
        with _frame_by_frame():
            heard = torch.from_numpy(self._upsampler(samples)).to(model.device)
            output = model.encode(
                heard[None, None],
                num_quantizers=self._mimi.codebooks,
                encoder_past_key_values=self._keys,
                padding_cache=self._padding,
                use_streaming=True,
                return_dict=True,
            )
            self._padding, self._keys = output.padding_cache, output.encoder_past_key_values
            return output.audio_codes[0, :, 0].cpu().numpy()
