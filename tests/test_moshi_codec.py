"""Mimi in frames says what Mimi in one piece says, and keeps no more for the thousandth frame than for the first."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from workbench.moshi_codec import FRAME_IN, CodecError, Mimi, Upsampler, load_mimi
from workbench.weights import model_path

FRAMES = 60  # past the tiny Mimi's window of 50 positions, two a frame


@pytest.fixture(scope="module")
def folder():
    return model_path("moshi-tiny")


@pytest.fixture(scope="module")
def mimi(folder) -> Mimi:
    return load_mimi(folder)


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return (np.random.RandomState(5).standard_normal(FRAMES * FRAME_IN) * 0.2).astype(np.float32)


@pytest.fixture(scope="module")
def codes(mimi, speech) -> np.ndarray:
    """Of the whole audio at once, (frames, codebooks), by transformers' Mimi."""
    with torch.inference_mode():
        heard = torch.from_numpy(Upsampler()(speech))[None, None]
        return mimi.model.encode(heard, num_quantizers=mimi.codebooks).audio_codes[0].T.numpy()


def test_frames_give_the_codes_of_the_whole(mimi, speech, codes):
    encoder = mimi.encoder()
    frames = np.stack([encoder.encode(frame) for frame in speech.reshape(FRAMES, FRAME_IN)])
    assert codes.shape == (FRAMES, 8)
    assert (frames == codes).all()
    # Every codebook hears something.
    assert all(len(set(stream)) > 8 for stream in codes.T)


def test_sessions_do_not_hear_each_other(mimi, speech, codes):
    one, other = mimi.encoder(), mimi.encoder()
    for k, frame in enumerate(speech.reshape(FRAMES, FRAME_IN)[:4]):
        other.encode(frame[::-1].copy())
        assert (one.encode(frame) == codes[k]).all()


def held(value, seen: set[int]) -> int:
    """Numbers in all tensors and arrays that an object of this package or of transformers' caches holds."""
    if id(value) in seen or isinstance(value, Mimi):
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(held(each, seen) for each in value.values())
    if isinstance(value, list | tuple):
        return sum(held(each, seen) for each in value)
    return held(vars(value), seen) if hasattr(value, "__dict__") else 0


def test_the_state_of_a_session_is_bounded_over_300_frames(mimi):
    encoder = mimi.encoder()
    noise = np.random.RandomState(6)
    sizes = []
    for _ in range(300):
        encoder.encode(noise.standard_normal(FRAME_IN).astype(np.float32) * 0.2)
        sizes.append(held(encoder, set()))
    assert sizes[0] < sizes[24]
    # Full with the window of 50 positions, 25 frames; from then on not a byte more.
    assert set(sizes[25:]) == {sizes[25]}
    assert 0 < sizes[25] < 200_000


def test_16_khz_becomes_24_khz_a_millisecond_late(mimi):
    at = np.arange(16_000) / 16_000
    upsampler = Upsampler()
    heard = np.concatenate([upsampler(np.sin(2 * np.pi * 1000 * frame)) for frame in at.reshape(-1, 1_280 // 8)])
    then = np.arange(24_000) / 24_000 - 0.001
    assert heard.shape == then.shape and heard.dtype == np.float32
    assert np.abs(heard - np.sin(2 * np.pi * 1000 * then))[100:].max() < 1e-3


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (np.zeros(1_279, np.float32), "float32 (1279,)"),
        (np.zeros(1_920, np.float32), "float32 (1920,)"),
        (np.zeros((1, 1_280), np.float32), "float32 (1, 1280)"),
        (np.zeros(1_280, np.int16), "int16 (1280,)"),
    ],
)
def test_a_frame_of_another_rate_or_shape_is_refused(mimi, samples, found):
    with pytest.raises(CodecError) as refused:
        mimi.encoder().encode(samples)
    assert found in str(refused.value) and "\n" not in str(refused.value)


def without_mimi(folder):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("audio_encoder.")}
    save_file(kept, folder / "model.safetensors")


def changed(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (without_mimi, "no weights of Mimi"),
        (changed(audio_encoder_config=None), "no Mimi"),
        (lambda folder: (folder / "config.json").unlink(), "config.json cannot be read: "),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json holds no JSON object"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "cannot be read"),
    ],
)
def test_a_folder_without_mimi_is_refused(folder, tmp_path, spoil, why):
    spoiled = shutil.copytree(folder, tmp_path / "spoiled")
    spoil(spoiled)
    with pytest.raises(CodecError) as refused:
        load_mimi(spoiled)
    assert why in str(refused.value) and str(spoiled) in str(refused.value) and "\n" not in str(refused.value)


def test_a_checkpoint_in_several_files_is_read(folder, mimi, tmp_path):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, tmp_path / file)
    where = {name: file for file, some in parts.items() for name in some}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    shutil.copy(folder / "config.json", tmp_path)
    states = load_mimi(tmp_path).model.state_dict(), mimi.model.state_dict()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
