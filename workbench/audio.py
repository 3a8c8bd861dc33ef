"""Clips and streams: any WAV, FLAC, OGG or MP3 file -> 16 kHz mono -> frames of B seconds."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

SAMPLE_RATE = 16_000
MIN_RATE, MAX_RATE = 8_000, 192_000
MAX_SECONDS = 3_600
SAMPLES_ENV = "METRONOME_AUDIO"

_FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
_BLOCK = 1 << 16


class AudioError(ValueError):
    """Audio that cannot be used. The message is one line that names the file or the value and the way out."""


@dataclass(frozen=True, eq=False)
class Clip:
    """A piece of speech: `samples` is float32 mono at 16 kHz, shape (n,), n >= 1, in [-1, 1], read-only.

    `name` is the file name without its suffix. Two clips are equal only when they are the same object.
    AudioError for samples that are not floats of that shape, or hold NaN or infinity.
    """

    name: str
    samples: np.ndarray
    transcript: str | None = None
    licence: str | None = None
    attribution: str | None = None

    def __post_init__(self) -> None:
        given = np.asarray(self.samples)
        if given.ndim != 1 or not given.size or not np.issubdtype(given.dtype, np.floating):
            found = f"{given.dtype} of shape {given.shape}"
            raise AudioError(f"clip {self.name}: samples must be floats of shape (n,) with n >= 1, not {found}")
        samples = given.astype(np.float32)
        if not np.isfinite(samples).all():
            raise AudioError(f"clip {self.name}: holds NaN or infinite samples")
        # Clipped, not refused: lossy decoders and resamplers overshoot full scale on sound files. Not kept
        # either: codec2 takes int16, where whatever is over 1 would wrap round into loud noise.
        np.clip(samples, -1.0, 1.0, out=samples)
        samples.setflags(write=False)
        object.__setattr__(self, "samples", samples)

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.samples.size / SAMPLE_RATE


def load_clip(path: str | os.PathLike[str], transcript: str | None = None) -> Clip:
    """Read a WAV, FLAC, OGG or MP3 file of 8 to 192 kHz and any channel count as a Clip.

    The channels are averaged, then resampled to 16 kHz. AudioError for a file that is missing, not one of the
    four formats, cut short, empty, over an hour, outside that rate range, or that holds NaN or infinity.
    """
    path = Path(path)
    return Clip(path.stem, _read_mono(path), transcript)


def _read_mono(path: Path) -> np.ndarray:
    import soundfile

    try:
        if path.is_dir():
            raise AudioError(f"{path}: is a folder; name an audio file in it")
        if not path.is_file():
            raise AudioError(f"{path}: no such audio file; check the name")
        if path.suffix.lower() == ".raw":
            # soundfile takes the name as its word for audio without a header, and asks for the rate.
            raise AudioError(f"{path}: audio without a header; convert it to WAV or FLAC")
        with soundfile.SoundFile(path) as sound:
            _check_header(path, sound)
            return _resample(path, sound)
    except soundfile.LibsndfileError as error:
        reason = " ".join(error.error_string.split()) or f"libsndfile error {error.code}"
        raise AudioError(f"{path}: not audio, or damaged ({reason}); give a whole WAV, FLAC, OGG or MP3") from error
    except OSError as error:
        raise AudioError(f"{path}: cannot be opened ({error.strerror}); check its name and permissions") from error


def _check_header(path: Path, sound) -> None:
    if sound.format not in _FORMATS:
        raise AudioError(f"{path}: is {sound.format}; convert it to WAV, FLAC, OGG or MP3")
    if not MIN_RATE <= sound.samplerate <= MAX_RATE:
        raise AudioError(f"{path}: {sound.samplerate} Hz is outside {MIN_RATE} to {MAX_RATE} Hz; resample it")
    if sound.frames == 0:
        raise AudioError(f"{path}: holds no audio (0 samples)")
    # libsndfile stands the largest 64-bit number in for a length that a FLAC header leaves open.
    if sound.frames >= 1 << 62 or (sound.format == "MP3" and not _mp3_states_length(path)):
        raise AudioError(f"{path}: its header states no length, so a cut would go unseen; convert it to WAV or FLAC")
    if sound.frames > MAX_SECONDS * sound.samplerate:
        raise AudioError(f"{path}: {sound.frames / sound.samplerate:.0f} s is over {MAX_SECONDS} s; cut it up")
    if _is_cut_wav(sound) or (sound.format == "OGG" and _is_cut_ogg(path)):
        raise AudioError(f"{path}: cut short, it ends before its own end; copy or record it again")


def _mp3_states_length(path: Path) -> bool:
    """True when the first MPEG frame is a Xing or Info frame with a frame count (its flag bit 0).

    Without one libmpg123 guesses the length from the first bit rate, and audio past the guess is never read.
    """
    with path.open("rb") as file:
        head = file.read(10)
        if head[:3] == b"ID3":
            size = 0
            for byte in head[6:10]:
                size = size << 7 | byte
            file.seek(10 + size)
        else:
            file.seek(0)
        tag = re.search(rb"(?:Xing|Info)...(.)", file.read(4096), re.DOTALL)
    return tag is not None and bool(tag[1][0] & 1)


def _is_cut_wav(sound) -> bool:
    """True when the data chunk states more bytes than follow; libsndfile says so only in its log."""
    stated = re.search(r"^data : (\d+) \(should be (\d+)\)", sound.extra_info, re.MULTILINE)
    # Programs that write to a pipe leave the largest length there is, near 2 or 4 GiB, which states nothing.
    return stated is not None and int(stated[2]) < int(stated[1]) < 0x7FFFF000


def _is_cut_ogg(path: Path) -> bool:
    """True unless the last Ogg page is whole and carries the end-of-stream flag (RFC 3533, section 6)."""
    with path.open("rb") as file:
        # A page is at most 65,307 bytes, so twice that always holds a page start.
        file.seek(max(0, path.stat().st_size - 2 * 65_307))
        tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 27 or not page[5] & 4:
        return True
    segments = page[27 : 27 + page[26]]
    return len(page) < 27 + page[26] + sum(segments)


def _resample(path: Path, sound) -> np.ndarray:
    import soxr

    # Block by block, so that an hour of many channels at 192 kHz never lies in memory whole.
    resampler = soxr.ResampleStream(sound.samplerate, SAMPLE_RATE, 1, dtype="float32")
    same_rate = sound.samplerate == SAMPLE_RATE
    pieces, read = [], 0
    while len(block := sound.read(_BLOCK, dtype="float32", always_2d=True)):
        read += len(block)
        mono = block.mean(axis=1)
        if not np.isfinite(mono).all():
            raise AudioError(f"{path}: holds NaN or infinite samples; export it again")
        pieces.append(mono if same_rate else resampler.resample_chunk(mono))
    if read < sound.frames:
        raise AudioError(f"{path}: cut short, {read} of {sound.frames} samples are there; copy or record it again")
    if not same_rate:
        pieces.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    samples = np.concatenate(pieces)
    if not samples.size:
        raise AudioError(f"{path}: shorter than one sample at {SAMPLE_RATE} Hz")
    return samples


def samples_folder() -> Path:
    """The folder of the sample clips: METRONOME_AUDIO when set, else audio_samples/ of the checkout."""
    chosen = os.environ.get(SAMPLES_ENV)
    return (Path(chosen) if chosen else Path(__file__).parent.parent / "audio_samples").resolve()


@lru_cache(maxsize=8)
def _manifest(folder: Path) -> dict[str, dict]:
    """Manifest entries by clip name, in manifest order."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise AudioError(f"{path}: no sample clips there; run from a checkout or set {SAMPLES_ENV} to their folder")
    try:
        entries = {Path(entry["file"]).stem: entry for entry in json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise AudioError(f"{path}: not a list of objects that name a file ({error}); restore it") from error
    if not entries:
        raise AudioError(f"{path}: names no clip; restore it")
    return entries


@lru_cache(maxsize=64)
def _load_sample(folder: Path, name: str) -> Clip:
    entry = _manifest(folder)[name]
    samples = _read_mono(folder / entry["file"])
    return Clip(name, samples, entry.get("transcript"), entry.get("licence"), entry.get("attribution"))


def sample_names(transcribed: bool = False) -> list[str]:
    """Names of the sample clips in manifest order; only those with a transcript when `transcribed`."""
    return [name for name, entry in _manifest(samples_folder()).items() if entry.get("transcript") or not transcribed]


def sample_clip(name: str) -> Clip:
    """One sample clip by name. AudioError, which lists the names there are, for any other."""
    if name not in _manifest(samples_folder()):
        raise AudioError(f"no sample clip {name!r}; there are {', '.join(sample_names())}")
    return _load_sample(samples_folder(), name)


def sample_clips() -> list[Clip]:
    """All sample clips in manifest order. AudioError when their folder or its manifest is missing."""
    return [_load_sample(samples_folder(), name) for name in sample_names()]


def frame_samples(frame_budget_s: float) -> int:
    """Samples in a frame of B seconds: round(B x 16000). AudioError unless B is one sample to an hour long."""
    # Written so that NaN, which compares false with everything, is refused too.
    if not 1 <= frame_budget_s * SAMPLE_RATE <= MAX_SECONDS * SAMPLE_RATE:
        raise AudioError(f"frame budget {frame_budget_s} s: must be 1/{SAMPLE_RATE} to {MAX_SECONDS} s")
    return round(frame_budget_s * SAMPLE_RATE)


def start_sample(frame: int, frame_budget_s: float) -> int:
    """First sample of a frame, counted from the start of its stream: round(k x B x 16000), so no error adds up."""
    if frame < 0:
        raise AudioError(f"frame {frame}: frames count from 0")
    return round(frame * (frame_budget_s * SAMPLE_RATE))


def offset_samples(clip: Clip, start_s: float, loop: bool) -> int:
    """Where a stream starts, in samples: round(start_s x 16000), past the clip's end into its loops if looped.

    AudioError unless start_s is finite and >= 0 and, for a stream that does not loop, before the clip's end.
    """
    if not (math.isfinite(start_s * SAMPLE_RATE) and start_s >= 0):
        raise AudioError(f"start_s {start_s}: must be a finite time of 0 s or more")
    offset = round(start_s * SAMPLE_RATE)
    if offset >= clip.samples.size and not loop:
        raise AudioError(f"start_s {start_s}: clip {clip.name} ends at {clip.seconds:.3f} s")
    return offset


class AudioStream:
    """A clip as frames of B seconds, by number and in any order: frame k always holds the same samples.

    Looped, the clip follows itself without a gap. Otherwise the last frame is filled up with silence, silence
    follows for ever, and `frames` counts the frames that hold audio (None when looped). `start_s` lets sessions
    stream distinct audio from one clip. Where B x 16000 is no whole number, neighbouring frames may share or skip
    one sample, since every frame has the same length. AudioError for a bad frame budget or start.
    """

    def __init__(self, clip: Clip, frame_budget_s: float, loop: bool = True, start_s: float = 0.0) -> None:
        self.clip = clip
        self.frame_budget_s = frame_budget_s
        self.loop = loop
        self.frame_samples = frame_samples(frame_budget_s)
        self._offset = offset_samples(clip, start_s, loop)
        self.frames = None if loop else self._count_frames()

    def _count_frames(self) -> int:
        audio = self.clip.samples.size - self._offset
        count = math.ceil(audio / (self.frame_budget_s * SAMPLE_RATE))
        # Where B x 16000 is no whole number, the last start may round up to the very end of the audio.
        return count - (start_sample(count - 1, self.frame_budget_s) >= audio)

    def chunk(self, k: int) -> np.ndarray:
        """Frame k: float32, shape (round(B x 16000),), the caller's own copy. AudioError for k < 0."""
        start = self._offset + start_sample(k, self.frame_budget_s)
        samples = self.clip.samples
        if self.loop:
            return samples[(start % samples.size + np.arange(self.frame_samples)) % samples.size]
        chunk = np.zeros(self.frame_samples, np.float32)
        audio = samples[start : start + self.frame_samples]
        chunk[: audio.size] = audio
        return chunk
