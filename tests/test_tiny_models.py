"""Facts about the tiny interaction models, without an engine: transformers' own classes read what was written."""

import json
from pathlib import Path

import numpy as np
import pytest

from workbench import weights
from workbench.omni_models import omni_model

pytest.importorskip("transformers")
pytest.importorskip("torch")

NAMES = ("qwen2.5-omni-tiny", "qwen3-omni-tiny", "minicpm-o-4.5-tiny")
QWENS = NAMES[:2]
CONFIG_CLASS = {
    "qwen2.5-omni-tiny": "Qwen2_5OmniConfig",
    "qwen3-omni-tiny": "Qwen3OmniMoeConfig",
    "minicpm-o-4.5-tiny": "MiniCPMOConfig",
}
TEXTS = ("Hello, how are you?", "line\nbreaks  and   spaces", "Grüße 你好 🎧", "<|im_start|>user\nhi<|im_end|>\n")


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METRONOME_CACHE", str(root))
        # Where transformers puts the Python files of a folder that it trusts.
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(root / "modules"))
        yield root


@pytest.fixture(scope="module")
def folder(cache, name) -> Path:
    return weights.model_path(name)


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def tensors(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def read_config(folder: Path):
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, trust_remote_code=True)


def read_tokenizer(folder: Path):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_two_builds_give_equal_manifests(folder, name, tmp_path, monkeypatch):
    monkeypatch.setenv("METRONOME_CACHE", str(tmp_path))
    again = weights.model_path(name)
    assert again != folder and manifest(again) == manifest(folder)


def test_a_tampered_folder_is_built_again(folder, name):
    sound = manifest(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    said = []
    assert weights.model_path(name, said.append) == folder
    assert said[0] == f"{folder} is damaged: building it again" and manifest(folder) == sound


def test_the_models_own_class_reads_the_config(folder, name):
    config = read_config(folder)
    text = config.get_text_config()
    assert type(config).__name__ == CONFIG_CLASS[name]
    sizes = (text.hidden_size, text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads)
    assert sizes == (128, 2, 4, 2) and text.max_position_embeddings == 8192
    # A session must end when it is told to, not when a random model happens to say so.
    assert text.eos_token_id is None and json.loads((folder / "generation_config.json").read_text()) == {}


def test_the_heads_are_the_tiny_llamas(folder):
    # test_weights shows that vLLM's CPU attention takes no smaller ones.
    text = read_config(folder).get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    assert head == weights.MODELS["tiny"].read()[0]["head_dim"]


def test_the_tokenizer_gives_every_text_back(folder):
    tokenizer = read_tokenizer(folder)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_transformers_tokenizes_as_the_file_says(folder):
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(folder, trust_remote_code=True), read_tokenizer(folder)
    for text in TEXTS:
        assert theirs.encode(text) == ours.encode(text).ids
    # vLLM ends a session at the tokenizer's end of text.
    assert theirs.eos_token_id is None


def test_the_delimiters_are_tokens_of_the_model(folder, name):
    tokenizer, model = read_tokenizer(folder), omni_model(folder)
    assert tokenizer.get_vocab_size() == read_config(folder).get_text_config().vocab_size
    single = ["<|im_start|>", "<|im_end|>"]
    single += [model.before, model.placeholder, model.after] if model.before else ["<unk>", "<|audio_start|>"]
    ids = [tokenizer.token_to_id(text) for text in single]
    assert None not in ids and len(set(ids)) == len(single)
    assert [tokenizer.encode(text).ids for text in single] == [[i] for i in ids]
    assert tokenizer.decode(ids, skip_special_tokens=True) == ""


def test_a_greedy_answer_holds_no_special_token(folder):
    tokenizer = read_tokenizer(folder)
    special = sorted(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
    (head,) = (tensor for name, tensor in tensors(folder).items() if name.endswith("lm_head.weight"))
    silent = np.flatnonzero(~head.any(axis=1))
    assert list(silent) == special and special[-1] == tokenizer.get_vocab_size() - 1


def test_a_package_without_its_checkout_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("METRONOME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("workbench.tiny_models.tokenizer._TEXT", tmp_path / "LICENSE")
    with pytest.raises(weights.WeightsError, match="run from a checkout"):
        weights.model_path(QWENS[0])


def test_a_folder_is_small(folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4 << 20


def test_only_minicpm_brings_code(folder, name):
    code = sorted(file.name for file in folder.glob("*.py"))
    needs = [f"{part}_minicpmo.py" for part in ("configuration", "image_processing", "tokenization")]
    assert code == (needs if name == "minicpm-o-4.5-tiny" else [])
    assert ("auto_map" in json.loads((folder / "config.json").read_text())) == bool(code)


# The two Qwens, whose models transformers has: they hear.


@pytest.fixture(scope="module", params=QWENS)
def thinker(cache, request):
    import transformers

    folder = weights.model_path(request.param)
    config = read_config(folder)
    made = {"qwen2.5-omni-tiny": "Qwen2_5Omni", "qwen3-omni-tiny": "Qwen3OmniMoe"}[request.param]
    model = getattr(transformers, f"{made}ThinkerForConditionalGeneration")
    # The configuration said outright: from the folder's alone transformers takes its own, of seven thousand million.
    return folder, *model.from_pretrained(
        folder, config=config.thinker_config, dtype="float32", output_loading_info=True
    )


def test_the_models_own_class_takes_every_tensor(thinker):
    _, _, info = thinker
    assert not info["unexpected_keys"] and not info["mismatched_keys"] and not info["error_msgs"]
    assert {name.split(".")[0] for name in info["missing_keys"]} == {"visual"}


def hear(thinker, audio: np.ndarray):
    """Log-probabilities of the token after a prompt with this audio, shape (vocabulary,)."""
    import torch
    from transformers import AutoFeatureExtractor

    folder, model, _ = thinker
    delimiters, tokenizer = omni_model(folder), read_tokenizer(folder)
    audio_text = delimiters.placeholder * delimiters.audio_tokens(audio.size)
    ids = tokenizer.encode(f"<|im_start|>user\n{delimiters.before}{audio_text}{delimiters.after}").ids
    extract = AutoFeatureExtractor.from_pretrained(folder)
    heard = extract([audio], sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            input_features=heard["input_features"],
            feature_attention_mask=heard["attention_mask"],
        ).logits
    return logits[0, -1].log_softmax(-1)


def test_one_tenth_of_a_second_changes_the_answer(thinker):
    audio = np.random.RandomState(0).normal(0, 0.1, 16_000).astype(np.float32)
    other = audio.copy()
    other[8_000:9_600] = 0
    assert (hear(thinker, audio) - hear(thinker, audio)).abs().max() == 0
    # Far more than float32 error, so that an audio token gone wrong cannot hide.
    assert (hear(thinker, audio) - hear(thinker, other)).abs().max() > 0.5
