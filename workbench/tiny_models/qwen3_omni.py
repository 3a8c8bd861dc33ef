"""Qwen3-Omni's Thinker, tiny: a mixture of four experts, M-RoPE, audio encoder; no talker, no weights for images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration

from workbench.tiny_models import parts
from workbench.tiny_models.tokenizer import qwen2_tokenizer

# The attributes that Qwen3OmniMoeProcessor reads, with the real tokenizer's texts.
_SPECIAL = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
_PREPROCESSOR = parts.whisper_features(mels=128) | {
    "processor_class": "Qwen3OmniMoeProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


def write(folder: Path) -> None:
    """Write the model's Hugging Face folder. Raises OSError where that fails."""
    tokenizer = qwen2_tokenizer(_SPECIAL, parts.VOCABULARY)
    thinker = _thinker(tokenizer)
    config = {
        "model_type": "qwen3_omni_moe",
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "dtype": "float32",
        "enable_audio_output": False,
        "thinker_config": thinker,
        "im_start_token_id": tokenizer.im_start_token_id,
        "im_end_token_id": tokenizer.im_end_token_id,
    }
    named = parts.shapes(
        Qwen3OmniMoeThinkerForConditionalGeneration,
        Qwen3OmniMoeThinkerConfig(**thinker),
        prefix="thinker.",
        leave_out="visual.",
    )
    tensors = parts.random_tensors(_one_by_one(named), seed=3, special=len(tokenizer.all_special_ids))
    parts.write_folder(folder, config, _PREPROCESSOR, tokenizer, tensors)


def _thinker(tokenizer: Any) -> dict[str, Any]:
    return {
        # vLLM reads tie_word_embeddings (in TEXT), image_size and apply_vit_abs_pos_embed; the class has none of them.
        "text_config": parts.TEXT
        | {
            "head_dim": parts.HEAD_DIM,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": parts.FFN,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [4, 6, 6],
                "mrope_interleaved": True,
            },
        },
        "audio_config": parts.AUDIO
        | {"num_mel_bins": 128, "n_window": 50, "downsample_hidden_size": 16, "output_dim": parts.HIDDEN},
        "vision_config": {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": parts.HIDDEN,
            "deepstack_visual_indexes": [0],
            "image_size": 768,
            "apply_vit_abs_pos_embed": True,
        },
        "audio_token_id": tokenizer.audio_token_id,
        "audio_start_token_id": tokenizer.audio_bos_token_id,
        "audio_end_token_id": tokenizer.audio_eos_token_id,
        # Read by transformers' M-RoPE.
        "vision_start_token_id": tokenizer.vision_bos_token_id,
        "vision_end_token_id": tokenizer.vision_eos_token_id,
        "image_token_id": tokenizer.image_token_id,
        "video_token_id": tokenizer.video_token_id,
    }


def _one_by_one(named: Iterable[parts.Shape]) -> Iterator[parts.Shape]:
    """The experts' weights as checkpoints have them, each on its own: transformers holds a layer's in one tensor."""
    for name, shape in named:
        fused, _, kind = name.rpartition(".")
        if not fused.endswith(".experts"):
            yield name, shape
            continue
        experts, rows, columns = shape
        for expert in range(experts):
            if kind == "gate_up_proj":
                yield f"{fused}.{expert}.gate_proj.weight", (rows // 2, columns)
                yield f"{fused}.{expert}.up_proj.weight", (rows // 2, columns)
            else:
                yield f"{fused}.{expert}.{kind}.weight", (rows, columns)
