"""A Moshi of a few layers with seeded random weights, in the folder and under the names of the real one."""

from __future__ import annotations

from pathlib import Path

SEED = 24
WINDOW = 96
# Gains over 1 / sqrt(inputs). Queries and keys: scores of standard deviation 3, so that attention is uneven.
_GAINS = {"q_proj": 1.7, "k_proj": 1.7, "lm_head": 2.0}


def write(folder: Path) -> None:
    """Write config.json and model.safetensors (float32, some 15 MB) into ``folder``, which exists.

    Text vocabulary 512, 16 codebooks of 64 codes, 3 layers of width 128 and 4 heads; its own window is WINDOW frames.
    It has no tokenizer: its words mean nothing.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import MoshiForConditionalGeneration

    config = _config()
    with torch.device("meta"):
        model = MoshiForConditionalGeneration(config)
    tensors = _tensors(model.state_dict())
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def _config():
    from transformers import MoshiConfig

    mimi = {
        "hidden_size": 32,
        "num_filters": 4,
        "codebook_size": 64,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 8,
        "upsample_groups": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "sliding_window": 50,
    }
    depth = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 256,
    }
    return MoshiConfig(
        architectures=["MoshiForConditionalGeneration"],
        dtype="float32",
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=32,
        ffn_dim=512,
        audio_vocab_size=64,
        max_position_embeddings=8192,
        sliding_window=WINDOW,
        audio_encoder_config=mimi,
        depth_decoder_config=depth,
    )


def _tensors(shapes) -> dict:
    """Random tensors for a state dict's names and shapes, drawn in the order of the names."""
    import numpy as np
    import torch

    draw = np.random.RandomState(SEED)
    tensors = {}
    for name in sorted(shapes):
        shape = tuple(shapes[name].shape)
        if name.endswith(("cluster_usage", "initialized")):
            values = np.ones(shape)
        elif name.endswith("embed_sum"):
            values = draw.standard_normal(shape) * 0.3
        elif name.endswith("scale"):
            values = np.full(shape, 0.3)
        elif len(shape) == 1:
            # Norms about 1; biases small, so that Mimi hears its input and not them.
            norm = "norm" in name and name.endswith("weight")
            values = 1 + draw.standard_normal(shape) * 0.1 if norm else draw.standard_normal(shape) * 0.01
        elif "embed_tokens" in name:
            values = draw.standard_normal(shape) * 0.3
        else:
            values = draw.standard_normal(shape) * _gain(name) / np.sqrt(_inputs(name, shape))
        tensors[name] = torch.from_numpy(np.asarray(values, dtype=np.float32).reshape(shape))
    return tensors


def _gain(name: str) -> float:
    return next((gain for part, gain in _GAINS.items() if part in name), 1.0)


def _inputs(name: str, shape: tuple[int, ...]) -> int:
    """Inputs of one output: of (out, in), (codebooks, out, in) or a convolution's (out, in, kernel)."""
    return shape[1] * shape[2] if len(shape) == 3 and name.startswith("audio_encoder.") else shape[-1]
