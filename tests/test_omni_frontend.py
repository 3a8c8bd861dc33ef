"""The omni front end: what a frame of each model is, how long it counts, and what is refused in one line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer

from workbench.engine import EngineError
from workbench.engine.media import AudioChunk, chunk_length
from workbench.frontends import FrontEndError, make_frontend, tokens_per_frame
from workbench.omni_models import OMNI
from workbench.profiles import load_profile
from workbench.weights import model_path

VOCAB = 512
ONE_LINE = r"^[^\n]+$"


def make(name: str, budget: float = 1.0, folder=None, argument: str | None = None, vocab_size: int = VOCAB):
    folder = model_path(f"{name}-tiny") if folder is None else folder
    front_end = f"omni:{argument or name}"
    return make_frontend(front_end, vocab_size=vocab_size, clip=None, frame_budget_s=budget, model_path=folder)


def audio(seconds: float) -> np.ndarray:
    return np.sin(np.arange(round(seconds * 16_000)) / 7).astype(np.float32)


@pytest.mark.parametrize("name", OMNI)
def test_the_first_frame_has_the_header_and_every_one_the_models_own_delimiters(name):
    front_end, model = make(name), OMNI[name]
    tokenizer = Tokenizer.from_file(str(model_path(f"{name}-tiny") / "tokenizer.json"))
    first, second = (front_end.encode(audio(1.0), k) for k in (0, 1))
    framed = f"{model.before}{model.placeholder}{model.after}"
    assert tokenizer.decode(list(second), skip_special_tokens=False) == framed
    said = tokenizer.decode(list(first), skip_special_tokens=False)
    assert said.startswith("<|im_start|>system\n") and said.endswith(f"<|im_start|>user\n{framed}")
    assert front_end.stop_token_ids == (tokenizer.token_to_id("<|im_end|>"),)
    # The weights are made up, so the words are too.
    assert not front_end.meaningful


@pytest.mark.parametrize("manifest", ["[]", '{"model": {}}', "{", None])
def test_of_a_folder_that_is_not_this_package_s_the_words_are_shown(tmp_path, manifest):
    folder = shutil.copytree(model_path("qwen3-omni-tiny"), tmp_path / "theirs")
    (folder / "manifest.json").unlink()
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    assert make("qwen3-omni", folder=folder).meaningful


@pytest.mark.parametrize("name", OMNI)
def test_a_frame_counts_as_the_model_counts_its_audio(name):
    profile = load_profile(f"{name}-tiny")
    front_end = make(name, profile.frame_budget_s)
    first, second = (front_end.encode(audio(profile.frame_budget_s), k) for k in (0, 1))
    marks = bool(OMNI[name].before) + bool(OMNI[name].after)
    assert chunk_length(second) == marks + OMNI[name].audio_tokens(round(16_000 * profile.frame_budget_s))
    assert chunk_length(second) == tokens_per_frame(profile.front_end, profile.frame_budget_s) == profile.frame_tokens
    assert chunk_length(first) - chunk_length(second) == len(first) - len(second)
    assert chunk_length(first) == front_end.most_tokens
    ((samples, rate),) = second.audio
    assert (samples.dtype, samples.size, rate) == (np.float32, round(16_000 * profile.frame_budget_s), 16_000)


def test_the_header_comes_with_the_first_frame_that_is_encoded():
    front_end = make("qwen2.5-omni")
    dropped_before, later = front_end.encode(audio(1.0), 3), front_end.encode(audio(1.0), 4)
    assert len(dropped_before) > len(later) == 3


@pytest.mark.parametrize("name", OMNI)
def test_a_frame_that_the_model_does_not_take_is_refused(name):
    shortest = OMNI[name].shortest_samples
    make(name, shortest / 16_000)
    for budget in ((shortest - 1) / 16_000, 30.1):
        with pytest.raises(
            FrontEndError, match=f"{name} takes audio chunks of .* to 30 s, not {budget:g} s: change the"
        ):
            make(name, budget)


def test_a_folder_of_another_model_is_refused():
    with pytest.raises(FrontEndError, match="holds qwen3-omni, not qwen2.5-omni: use front_end omni:qwen3-omni"):
        make("qwen3-omni", argument="qwen2.5-omni")
    with pytest.raises(FrontEndError, match=ONE_LINE) as refused:
        make("qwen3-omni", folder=model_path("tiny"))
    assert "LlamaForCausalLM" in str(refused.value)


def test_a_model_that_there_is_not_lists_those_there_are():
    with pytest.raises(FrontEndError, match="omni:whale: no such model; choose from qwen2.5-omni, qwen3-omni, minicpm"):
        tokens_per_frame("omni:whale", 1.0)


def test_a_folder_without_its_tokens_is_refused(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_path("qwen2.5-omni-tiny"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    with pytest.raises(FrontEndError, match="has 512 tokens, more than the model's 400"):
        make("qwen2.5-omni", folder=folder, vocab_size=400)
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["content"] != "<|audio_bos|>"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(FrontEndError, match=r"has no <\|audio_bos\|>: use the model's own folder"):
        make("qwen2.5-omni", folder=folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(FrontEndError, match="no such tokenizer"):
        make("qwen2.5-omni", folder=folder)


def test_a_tokenizer_in_parts_is_put_together(tmp_path):
    """As checkpoints are published that have no tokenizer.json."""
    whole, folder = model_path("qwen2.5-omni-tiny"), tmp_path / "model"
    shutil.copytree(whole, folder)
    parts = json.loads((folder / "tokenizer.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(parts["model"]["vocab"]))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in parts["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(added.pop("id")): added for added in parts["added_tokens"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").unlink()
    one, other = (make("qwen2.5-omni", folder=each).encode(audio(1.0), 0) for each in (whole, folder))
    assert list(one) == list(other)


def test_samples_of_another_length_are_refused():
    with pytest.raises(FrontEndError, match=r"frame 0 has shape \(15999,\), not 16000"):
        make("qwen2.5-omni").encode(audio(1.0)[:-1], 0)


def test_audio_of_another_rate_is_refused():
    with pytest.raises(EngineError, match="audio at 8000 Hz cannot be served: resample it to 16000 Hz"):
        AudioChunk([1], (audio(1.0), 8_000), 25)


def test_a_prompt_before_the_first_chunk_counts_with_it():
    chunk = [5, 6] + AudioChunk([1, 2, 3], (audio(1.0), 16_000), 27)
    assert list(chunk) == [5, 6, 1, 2, 3] and chunk_length(chunk) == 29 and len(chunk.audio) == 1
