"""workbench.audio: what is read, what is refused, and that frames are exact."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import audio
from workbench.audio import SAMPLE_RATE, AudioError, AudioStream, Clip, load_clip, sample_clip, sample_clips

FORMATS = {"wav": "WAV", "flac": "FLAC", "ogg": "OGG", "mp3": "MP3"}
RATES = (8_000, 11_025, 44_100, 48_000, 192_000)
# MPEG layer III ends at 48 kHz and two channels.
KINDS = [
    (suffix, rate, channels)
    for suffix in FORMATS
    for rate in RATES
    for channels in (1, 2, 6)
    if suffix != "mp3" or (rate <= 48_000 and channels <= 2)
]


def tone(rate, channels=1, seconds=0.5, hertz=440.0):
    """The same tone in every channel, shape (n, channels), peak 0.5."""
    wave = 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)
    return np.tile(wave[:, None], (1, channels)).astype(np.float32)


def write(path, samples, rate=SAMPLE_RATE, **options):
    soundfile.write(path, samples, rate, **options)
    return path


def refused(path, *words):
    """load_clip refuses the file in one line that names it and holds these words."""
    with pytest.raises(AudioError) as caught:
        load_clip(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def ramp(size):
    return Clip("ramp", np.arange(size, dtype=np.float32) / size)


# Reading


@pytest.mark.parametrize(("suffix", "rate", "channels"), KINDS)
def test_every_format_rate_and_channel_count_gives_the_same_tone(tmp_path, suffix, rate, channels):
    path = write(tmp_path / f"tone.{suffix}", tone(rate, channels), rate, format=FORMATS[suffix])
    clip = load_clip(path, "a tone")
    assert (clip.name, clip.transcript) == ("tone", "a tone")
    assert clip.samples.dtype == np.float32
    assert clip.samples.shape == (pytest.approx(SAMPLE_RATE * 0.5, abs=1),)
    heard, wanted = clip.samples[2_000:6_000], tone(SAMPLE_RATE)[2_000:6_000, 0]
    # Lossy formats keep the shape, not the level: Vorbis, for one, empties the bass channel of six.
    assert np.corrcoef(heard, wanted)[0, 1] > 0.998
    if suffix in ("wav", "flac"):
        assert np.abs(heard - wanted).max() < 1e-3


def test_samples_at_16_khz_are_kept_exactly(tmp_path):
    samples = tone(SAMPLE_RATE)[:, 0]
    assert np.array_equal(load_clip(write(tmp_path / "a.wav", samples, subtype="FLOAT")).samples, samples)


def test_channels_are_averaged(tmp_path):
    left_only = tone(SAMPLE_RATE, 2)
    left_only[:, 1] = 0
    clip = load_clip(write(tmp_path / "a.wav", left_only, subtype="FLOAT"))
    assert np.allclose(clip.samples, left_only[:, 0] / 2)


def test_blocks_join_without_a_seam(tmp_path):
    seconds = 2 * audio._BLOCK / 48_000 + 0.1
    clip = load_clip(write(tmp_path / "long.wav", tone(48_000, seconds=seconds), 48_000, subtype="FLOAT"))
    wanted = tone(SAMPLE_RATE, seconds=seconds)[:, 0]
    assert np.abs(clip.samples - wanted)[200:-200].max() < 1e-3


def test_silence_is_audio(tmp_path):
    assert not load_clip(write(tmp_path / "silence.wav", np.zeros(100))).samples.any()


def test_samples_over_full_scale_are_clipped(tmp_path):
    clip = load_clip(write(tmp_path / "loud.wav", 3 * tone(SAMPLE_RATE)[:, 0], subtype="FLOAT"))
    assert (clip.samples.min(), clip.samples.max()) == (-1, 1)


def test_a_clip_is_read_only_and_hashable():
    clip = ramp(32)
    with pytest.raises(ValueError, match="read-only"):
        clip.samples[0] = 1
    assert clip.seconds == 32 / SAMPLE_RATE
    assert len({clip, clip, ramp(32)}) == 2


@pytest.mark.parametrize("pipe_size", [0xFFFFFFFF, 0x7FFFF000])
def test_a_wav_written_to_a_pipe_is_whole(tmp_path, pipe_size):
    path = write(tmp_path / "pipe.wav", tone(SAMPLE_RATE))
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = pipe_size.to_bytes(4, "little")
    path.write_bytes(data)
    assert load_clip(path).seconds == 0.5


# Refusing


def test_a_missing_file_a_folder_and_an_impossible_name_are_refused(tmp_path):
    refused(tmp_path / "none.wav", "no such")
    refused(tmp_path, "folder")
    refused(tmp_path / ("x" * 300 + ".wav"), "too long")


@pytest.mark.parametrize("name", ["text.wav", "text.flac", "text.ogg", "text.mp3", "text.raw", "text"])
@pytest.mark.parametrize("data", [b"", b"not audio at all " * 50])
def test_what_is_not_audio_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    refused(tmp_path / name, "audio")


def test_another_format_is_refused(tmp_path):
    refused(write(tmp_path / "a.aiff", tone(SAMPLE_RATE)), "AIFF", "WAV, FLAC, OGG or MP3")


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_no_samples_are_refused(tmp_path, suffix):
    refused(write(tmp_path / f"empty.{suffix}", np.zeros(0)), "0 samples")


def test_less_than_one_sample_at_16_khz_is_refused(tmp_path):
    refused(write(tmp_path / "a.wav", np.zeros(1), 192_000), "shorter than one sample")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rate", [SAMPLE_RATE, 48_000])
def test_nan_and_infinity_are_refused(tmp_path, bad, rate):
    samples = tone(rate)
    samples[777] = bad
    refused(write(tmp_path / "bad.wav", samples, rate, subtype="FLOAT"), "NaN or infinite")


@pytest.mark.parametrize("rate", [7_999, 192_001])
def test_rates_out_of_range_are_refused(tmp_path, rate):
    refused(write(tmp_path / "a.wav", np.zeros(100), rate), str(rate), "8000 to 192000")


def write_flac_that_states(path, frames):
    """A short 16 kHz FLAC whose header states another length, 0 for unknown."""
    data = bytearray(write(path, tone(SAMPLE_RATE)).read_bytes())
    # The sample count is the low 36 bits of STREAMINFO's bytes 10 to 17, and STREAMINFO begins at byte 8 (RFC 9639).
    fields = int.from_bytes(data[18:26], "big") >> 36 << 36 | frames
    data[18:26] = fields.to_bytes(8, "big")
    path.write_bytes(data)
    return path


def test_over_an_hour_is_refused_from_the_header_alone(tmp_path):
    refused(write_flac_that_states(tmp_path / "long.flac", 3_601 * SAMPLE_RATE), "3601 s", "3600 s")


def test_a_flac_that_states_no_length_is_refused(tmp_path):
    refused(write_flac_that_states(tmp_path / "open.flac", 0), "states no length")


def test_a_flac_that_states_too_much_is_refused(tmp_path):
    refused(write_flac_that_states(tmp_path / "short.flac", SAMPLE_RATE))


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95, 0.999])
@pytest.mark.parametrize(
    ("suffix", "subtype"), [("wav", None), ("flac", None), ("ogg", "VORBIS"), ("ogg", "OPUS"), ("mp3", None)]
)
def test_a_cut_file_is_refused(tmp_path, suffix, subtype, kept):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 2 * SAMPLE_RATE)
    path = write(tmp_path / f"cut.{suffix}", noise, format=FORMATS[suffix], subtype=subtype)
    assert load_clip(path).seconds == 2
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    refused(path)


def test_an_ogg_cut_between_two_pages_is_refused(tmp_path):
    path = write(tmp_path / "cut.ogg", np.random.default_rng(0).uniform(-0.5, 0.5, 4 * SAMPLE_RATE))
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"OggS")])
    refused(path, "cut short")


@pytest.mark.parametrize("id3", [b"", b"ID3\x04\x00\x00\x00\x00\x40\x00" + bytes(1 << 13)])
def test_an_mp3_must_state_its_length(tmp_path, id3):
    path = write(tmp_path / "a.mp3", tone(SAMPLE_RATE))
    data = path.read_bytes()
    path.write_bytes(id3 + data)
    assert load_clip(path).seconds == 0.5
    tag = data.index(b"Xing")
    for where, value in ((tag, b"none"), (tag + 7, b"\x0e")):
        # Without the tag, or with the flag for its frame count off.
        path.write_bytes(id3 + data[:where] + value + data[where + len(value) :])
        refused(path, "states no length")


@pytest.mark.parametrize(
    "samples", [np.zeros((2, 2), np.float32), np.zeros(0, np.float32), np.zeros(4, np.int16), np.array([0, np.nan])]
)
def test_a_clip_refuses_samples_that_are_not_audio(samples):
    with pytest.raises(AudioError, match="clip bad: "):
        Clip("bad", samples)


# The sample clips


def test_the_manifest_tells_the_truth():
    folder = audio.samples_folder()
    manifest = json.loads((folder / "manifest.json").read_text())
    licences = (folder / "LICENSES.md").read_text()
    assert {entry["file"] for entry in manifest} == {path.name for path in folder.glob("*.flac")}
    for entry in manifest:
        path = folder / entry["file"]
        info = soundfile.info(path)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
        assert (info.samplerate, info.channels) == (entry["sample_rate"], entry["channels"])
        assert info.duration == pytest.approx(entry["seconds"], abs=1e-3)
        # The clip stands in the section that is headed by its licence, and that section attributes it.
        section = next(part for part in licences.split("\n## ") if f"`{entry['file']}`" in part)
        assert section.startswith(entry["licence"] + "\n")
        assert entry["attribution"] in section
        assert entry["source"] in section


def test_sample_clips_come_in_manifest_order_with_their_transcripts():
    manifest = json.loads((audio.samples_folder() / "manifest.json").read_text())
    clips = sample_clips()
    assert [f"{clip.name}.flac" for clip in clips] == [entry["file"] for entry in manifest]
    for clip, entry in zip(clips, manifest, strict=True):
        told = (clip.transcript, clip.licence, clip.attribution)
        assert told == (entry["transcript"], entry["licence"], entry["attribution"])
        assert clip.seconds == pytest.approx(entry["seconds"], abs=1e-3)
        assert sample_clip(clip.name) is clip


def test_an_unknown_sample_clip_lists_those_there_are():
    with pytest.raises(AudioError) as caught:
        sample_clip("nonesuch")
    assert all(name in str(caught.value) for name in ["nonesuch", *audio.sample_names()])


def test_a_folder_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setenv("METRONOME_AUDIO", str(tmp_path))
    with pytest.raises(AudioError, match="METRONOME_AUDIO"):
        sample_clips()
    for broken in ("{", "[]", '[{"name": "mine"}]', '["mine.wav"]', "7"):
        (tmp_path / "manifest.json").write_text(broken)
        with pytest.raises(AudioError, match="manifest.json") as caught:
            sample_clips()
        assert "\n" not in str(caught.value)
    (tmp_path / "manifest.json").write_text('[{"file": "mine.wav"}]')
    with pytest.raises(AudioError, match=r"mine\.wav: no such"):
        sample_clip("mine")
    write(tmp_path / "mine.wav", tone(SAMPLE_RATE))
    assert [(clip.name, clip.seconds, clip.transcript) for clip in sample_clips()] == [("mine", 0.5, None)]
    assert audio.sample_names(transcribed=True) == []


# Frames

exact = settings(deadline=None, derandomize=True)
budgets = st.one_of(st.sampled_from([0.02, 0.08, 1.0, 2.0]), st.floats(1 / SAMPLE_RATE, 0.05))


@exact
@given(size=st.integers(1, 3_000), frame_budget_s=budgets, k=st.integers(0, 10_000), offset=st.integers(0, 5_000))
def test_a_looped_frame_is_a_slice_of_the_tiled_clip(size, frame_budget_s, k, offset):
    clip = ramp(size)
    chunk = AudioStream(clip, frame_budget_s, start_s=offset / SAMPLE_RATE).chunk(k)
    length = round(frame_budget_s * SAMPLE_RATE)
    start = (offset + round(k * (frame_budget_s * SAMPLE_RATE))) % size
    wanted = np.tile(clip.samples, (start + length) // size + 1)[start : start + length]
    assert chunk.dtype == np.float32
    assert np.array_equal(chunk, wanted)


@exact
@given(size=st.integers(1, 3_000), frame_budget_s=budgets, data=st.data())
def test_a_stream_that_ends_holds_the_clip_then_silence(size, frame_budget_s, data):
    clip = Clip("ones", np.ones(size, np.float32))
    offset = data.draw(st.integers(0, size - 1))
    stream = AudioStream(clip, frame_budget_s, loop=False, start_s=offset / SAMPLE_RATE)
    length = round(frame_budget_s * SAMPLE_RATE)
    for k in (0, stream.frames - 1, stream.frames):
        audio_left = size - offset - round(k * (frame_budget_s * SAMPLE_RATE))
        chunk = stream.chunk(k)
        assert chunk.shape == (length,)
        assert chunk.sum() == max(0, min(length, audio_left))
    assert stream.chunk(stream.frames - 1).any()
    assert not stream.chunk(stream.frames).any()


def test_frames_in_any_order_join_to_the_clip():
    clip = ramp(3_200)
    stream = AudioStream(clip, 0.08, loop=False)
    assert stream.frames == 3
    frames = {k: stream.chunk(k) for k in (2, 0, 1)}
    assert np.array_equal(np.concatenate([frames[k] for k in range(3)])[:3_200], clip.samples)
    assert AudioStream(clip, 0.08).frames is None


def test_a_last_start_that_rounds_up_to_the_end_is_no_frame():
    # Frames of 2.6 samples start at 0 and, rounded, at 3: a clip of 3 samples fills the first alone.
    assert AudioStream(ramp(3), 2.6 / SAMPLE_RATE, loop=False).frames == 1


def test_a_chunk_is_the_callers_own():
    stream = AudioStream(ramp(3_200), 0.08)
    stream.chunk(0)[:] = 9
    assert stream.chunk(0).max() < 1


@pytest.mark.parametrize("frame_budget_s", [0, -1, float("nan"), float("inf"), 1e-5, 1e12])
def test_bad_frame_budgets_are_refused(frame_budget_s):
    with pytest.raises(AudioError, match="frame budget"):
        AudioStream(ramp(10), frame_budget_s)


@pytest.mark.parametrize("start_s", [-1, float("nan"), float("inf"), 1e308])
@pytest.mark.parametrize("loop", [True, False])
def test_bad_starts_are_refused(start_s, loop):
    with pytest.raises(AudioError, match="start_s"):
        AudioStream(ramp(10), 0.08, loop, start_s)


def test_a_start_past_the_end_is_refused_unless_looped():
    with pytest.raises(AudioError, match="clip ramp ends at 1.000 s"):
        AudioStream(ramp(SAMPLE_RATE), 0.08, loop=False, start_s=1.0)
    late, first = (AudioStream(ramp(SAMPLE_RATE), 0.08, start_s=start_s) for start_s in (3.0, 0.0))
    assert np.array_equal(late.chunk(5), first.chunk(5))


def test_frames_count_from_zero():
    with pytest.raises(AudioError, match="frame -1"):
        AudioStream(ramp(10), 0.08).chunk(-1)


def test_importing_stays_light():
    code = "import sys, workbench.audio, workbench.frontends; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "workbench.audio" in loaded
    assert not {"soundfile", "soxr", "pycodec2", "tokenizers", "pandas", "plotly", "torch", "vllm"} & set(loaded)
