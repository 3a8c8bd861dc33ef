"""Facts about workbench.omni_models: what a folder holds, and how many tokens a chunk becomes."""

import json
from importlib import util
from pathlib import Path

import pytest

from workbench.omni_models import OMNI, OmniError, omni_model

# Samples at 16 kHz -> tokens in the placeholder's stead, as counted in the prompts of vLLM 0.32's answers.
COUNTED = {
    "qwen2.5-omni": {321: 1, 640: 1, 960: 1, 1120: 2, 1600: 2, 6400: 10, 12345: 19, 12800: 20, 15999: 25, 16000: 25}
    | {16001: 25, 17000: 27, 32000: 50, 64000: 100, 128000: 200},
    "qwen3-omni": {161: 1, 640: 1, 1280: 1, 1400: 2, 1600: 2, 6400: 5, 12345: 10, 12800: 10, 15999: 13, 16000: 13}
    | {16001: 14, 17000: 14, 32000: 26, 64000: 52, 128000: 104},
    "minicpm-o-4.5": {1400: 3, 1600: 3, 6400: 6, 12345: 9, 12800: 10, 15999: 12, 16000: 12, 16001: 12, 17000: 12}
    | {32000: 24, 64000: 48, 128000: 96},
}
# The shortest chunk accepted and one sample less, which vLLM refused.
SHORTEST = {"qwen2.5-omni": 321, "qwen3-omni": 161, "minicpm-o-4.5": 1281}
ARCHITECTURES = {
    "Qwen2_5OmniModel": "qwen2.5-omni",
    "Qwen2_5OmniForConditionalGeneration": "qwen2.5-omni",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3-omni",
    "MiniCPMO": "minicpm-o-4.5",
}


def folder_of(tmp_path, **config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def refusal(call, *args) -> str:
    with pytest.raises(OmniError) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", OMNI)
def test_tokens_are_those_that_the_engine_made(name):
    model = OMNI[name]
    assert {samples: model.audio_tokens(samples) for samples in COUNTED[name]} == COUNTED[name]


@pytest.mark.parametrize("name", OMNI)
def test_no_chunk_is_shorter_than_the_model_accepts(name):
    model, samples = OMNI[name], SHORTEST[name]
    assert model.shortest_s == samples / 16_000 and model.audio_tokens(samples) >= 1
    message = refusal(model.audio_tokens, samples - 1)
    assert message.startswith(f"{name} takes audio chunks of {model.shortest_s:g} to 30 s, not ")
    assert refusal(model.audio_tokens, 30 * 16_000 + 1).endswith("not 30.0001 s: change the frame budget")


@pytest.mark.parametrize(("architecture", "name"), ARCHITECTURES.items())
def test_the_architecture_tells(tmp_path, architecture, name):
    assert omni_model(folder_of(tmp_path, architectures=[architecture], version=4.5)) is OMNI[name]


def test_vllm_knows_every_architecture():
    vllm = util.find_spec("vllm")
    if vllm is None:
        pytest.skip("vLLM is not installed")
    # Its text, since an import takes half a minute.
    registry = (Path(vllm.origin).parent / "model_executor/models/registry.py").read_text()
    assert [name for name in ARCHITECTURES if f'    "{name}": (' not in registry] == []
    assert {name for model in OMNI.values() for name in model.architectures} == set(ARCHITECTURES)


def test_another_architecture_is_named(tmp_path):
    message = refusal(omni_model, folder_of(tmp_path, architectures=["LlamaForCausalLM"]))
    assert message == (
        f"{tmp_path} holds LlamaForCausalLM, which takes no audio here: give a folder of "
        "qwen2.5-omni, qwen3-omni, minicpm-o-4.5"
    )
    assert "holds no architecture" in refusal(omni_model, folder_of(tmp_path))


@pytest.mark.parametrize("version", [{"version": 2.6}, {}], ids=["2.6", "none"])
def test_the_older_minicpm_pools_otherwise_and_is_refused(tmp_path, version):
    assert "holds MiniCPMO" in refusal(omni_model, folder_of(tmp_path, architectures=["MiniCPMO"], **version))


def test_a_folder_that_is_not_there(tmp_path):
    nowhere = tmp_path / "nowhere"
    assert refusal(omni_model, nowhere) == f"no model folder {nowhere}: give one that holds a config.json"
    assert refusal(omni_model, tmp_path).startswith(f"no model folder {tmp_path}: give one")


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_a_config_that_is_none(tmp_path, content):
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    assert "restore it" in refusal(omni_model, tmp_path)
