"""Qwen2.5-Omni's Thinker, tiny: M-RoPE decoder and audio encoder; no talker, and no weights for images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

from workbench.tiny_models import parts
from workbench.tiny_models.tokenizer import qwen2_tokenizer

# The attributes that Qwen2_5OmniProcessor reads, with the real tokenizer's texts.
_SPECIAL = {
    "audio_token": "<|AUDIO|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}
_PREPROCESSOR = parts.whisper_features(mels=128) | {
    "processor_class": "Qwen2_5OmniProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


def write(folder: Path) -> None:
    """Write the model's Hugging Face folder. Raises OSError where that fails."""
    tokenizer = qwen2_tokenizer(_SPECIAL, parts.VOCABULARY)
    thinker = _thinker(tokenizer)
    config = {
        "model_type": "qwen2_5_omni",
        "architectures": ["Qwen2_5OmniModel"],
        "dtype": "float32",
        "enable_audio_output": False,
        "thinker_config": thinker,
        # There is no talker. Left out, transformers makes one up and complains that it does not fit itself.
        "talker_config": {"num_hidden_layers": 1, "vocab_size": 152_064},
    }
    named = parts.shapes(
        Qwen2_5OmniThinkerForConditionalGeneration,
        Qwen2_5OmniThinkerConfig(**thinker),
        prefix="thinker.",
        leave_out="visual.",
    )
    tensors = parts.random_tensors(named, seed=25, special=len(tokenizer.all_special_ids))
    parts.write_folder(folder, config, _PREPROCESSOR, tokenizer, tensors)


def _thinker(tokenizer: Any) -> dict[str, Any]:
    return {
        # Sections of the rotary half for time, height and width: together half of a head.
        "text_config": parts.TEXT
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}},
        "audio_config": parts.AUDIO | {"num_mel_bins": 128, "n_window": 100, "output_dim": parts.HIDDEN},
        "vision_config": {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": parts.HIDDEN,
            "fullatt_block_indexes": [0],
        },
        "audio_token_index": tokenizer.audio_token_id,
        "audio_start_token_id": tokenizer.audio_bos_token_id,
        "audio_end_token_id": tokenizer.audio_eos_token_id,
        # Read by transformers' M-RoPE.
        "vision_start_token_id": tokenizer.vision_bos_token_id,
        "vision_end_token_id": tokenizer.vision_eos_token_id,
        "image_token_index": tokenizer.image_token_id,
        "video_token_index": tokenizer.video_token_id,
    }
