"""MiniCPM-o 4.5, tiny: a Qwen3 decoder and a Whisper encoder, and the three Python files that its folder carries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from workbench.tiny_models import minicpmo_code, parts
from workbench.tiny_models.minicpmo_code.tokenization_minicpmo import MiniCPMOTokenizer
from workbench.tiny_models.tokenizer import qwen2_tokenizer

_SPECIAL = {
    "unknown_token": "<unk>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "audio_start_token": "<|audio_start|>",
    "audio_end_token": "<|audio_end|>",
    "spk_start_token": "<|spk_bos|>",
    "spk_end_token": "<|spk_eos|>",
}
_TEXT = parts.TEXT | {
    "head_dim": parts.HEAD_DIM,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
_AUDIO = parts.AUDIO | {"num_mel_bins": 80, "max_source_positions": 1500}
_CONFIG = _TEXT | {
    "model_type": "minicpmo",
    "architectures": ["MiniCPMO"],
    "auto_map": {"AutoConfig": "configuration_minicpmo.MiniCPMOConfig"},
    "version": "4.5",
    "dtype": "float32",
    "audio_config": _AUDIO,
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 448,
        "patch_size": 14,
    },
    "audio_pool_step": 5,
    "audio_chunk_length": 1.0,
}
_PREPROCESSOR = parts.whisper_features(mels=80) | {
    "processor_class": "MiniCPMOProcessor",
    "image_processor_type": "MiniCPMOImageProcessor",
    "auto_map": {"AutoImageProcessor": "image_processing_minicpmo.MiniCPMOImageProcessor"},
}


def write(folder: Path) -> None:
    """Write the model's Hugging Face folder. Raises OSError where that fails."""
    MiniCPMOTokenizer.register_for_auto_class("AutoTokenizer")
    tokenizer = qwen2_tokenizer(_SPECIAL, parts.VOCABULARY, MiniCPMOTokenizer)
    tensors = parts.random_tensors(_shapes(), seed=45, special=len(tokenizer.all_special_ids))
    parts.write_folder(folder, _CONFIG, _PREPROCESSOR, tokenizer, tensors)
    for file in Path(minicpmo_code.__file__).parent.glob("*_minicpmo.py"):
        (folder / file.name).write_bytes(file.read_bytes())


def _shapes() -> Iterator[parts.Shape]:
    yield from parts.shapes(Qwen3ForCausalLM, Qwen3Config(**_TEXT), prefix="llm.")
    yield from parts.shapes(WhisperEncoder, WhisperConfig(**_AUDIO), prefix="apm.")
    # vLLM's projection of the encoder's states, which no class of transformers has.
    for layer, inputs in (("linear1", parts.AUDIO_WIDTH), ("linear2", parts.HIDDEN)):
        yield f"audio_projection_layer.{layer}.weight", (parts.HIDDEN, inputs)
        yield f"audio_projection_layer.{layer}.bias", (parts.HIDDEN,)
