"""What vLLM is started with for a model that hears."""

from __future__ import annotations

import json
import shutil

import numpy as np

from workbench.engine.arguments import engine_args
from workbench.profiles import load_profile
from workbench.weights import model_path


def args_of(name: str, folder=None) -> dict:
    profile = load_profile(name)
    return engine_args(profile, folder or model_path(profile.model), "a.Scheduler", "a.Worker", trusted=False)


def test_only_a_model_that_hears_is_told_what_of():
    text, hears = args_of("tiny"), args_of("qwen3-omni-tiny")
    assert "limit_mm_per_prompt" not in text and text["skip_tokenizer_init"]
    assert hears["limit_mm_per_prompt"] == {"audio": 1, "image": 0, "video": 0} and not hears["skip_tokenizer_init"]
    # It is fed streams without a tokenizer of its own.
    assert args_of("moshi-tiny")["skip_tokenizer_init"]


def test_positions_are_set_where_the_decoder_is_configured():
    assert args_of("tiny")["hf_overrides"] == {"max_position_embeddings": 8192}
    nested = {"thinker_config": {"text_config": {"max_position_embeddings": 8192}}}
    assert args_of("qwen2.5-omni-tiny")["hf_overrides"] == nested


def test_audio_is_not_padded_to_the_minutes_that_a_checkpoint_asks_for(tmp_path):
    """Qwen2.5-Omni is published with 300 s, which would take the feature extractor half a second a frame."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.renderers import renderer_from_config

    folder = tmp_path / "model"
    shutil.copytree(model_path("qwen2.5-omni-tiny"), folder)
    published = json.loads((folder / "preprocessor_config.json").read_text()) | {"chunk_length": 300}
    (folder / "preprocessor_config.json").write_text(json.dumps(published))
    args = args_of("qwen2.5-omni-tiny", folder)
    for name in ("scheduler_cls", "worker_extension_cls"):
        del args[name]
    renderer = renderer_from_config(AsyncEngineArgs(**args).create_engine_config())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    marks = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    tokens = [marks[name] for name in ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")]
    audio = (np.sin(np.arange(32_000) / 7).astype(np.float32), 16_000)
    (heard,) = renderer.render_cmpl([TokensPrompt(prompt_token_ids=tokens, multi_modal_data={"audio": [audio]})])
    renderer.shutdown()
    (item,) = heard["mm_kwargs"]["audio"]
    # In frames of 10 ms: all that was padded to.
    assert item["feature_attention_mask"].data.shape == (3_000,)
    assert len(heard["prompt_token_ids"]) == 2 + 50
