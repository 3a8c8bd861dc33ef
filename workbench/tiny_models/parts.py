"""What the tiny models share: their sizes, seeded random tensors, and the files of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

VOCABULARY = 512
HIDDEN, LAYERS, FFN = 128, 2, 128
# Heads of 32, the smallest that vLLM's CPU attention takes.
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
AUDIO_WIDTH, AUDIO_LAYERS, AUDIO_HEADS, AUDIO_FFN = 64, 2, 4, 256
POSITIONS = 8192

# Over twice 1 / sqrt(inputs), as in the tiny Llama: attention is then far from even, and one audio token gone wrong
# moves log-probabilities by units.
_GAIN = 2.2
_BIAS = 0.1

Shape = tuple[str, tuple[int, ...]]

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
}
AUDIO = {
    "d_model": AUDIO_WIDTH,
    "encoder_layers": AUDIO_LAYERS,
    "encoder_attention_heads": AUDIO_HEADS,
    "encoder_ffn_dim": AUDIO_FFN,
}


def whisper_features(mels: int) -> dict[str, Any]:
    """Keys of preprocessor_config.json for Whisper's log-mel frames of 10 ms, padded to at most 30 s."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": mels,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        # The real models pad every chunk to as much as 300 s: the same tokens, at 25 times the host's work.
        "chunk_length": 30,
        "return_attention_mask": True,
    }


def shapes(model: type[torch.nn.Module], config: Any, prefix: str = "", leave_out: str = "\0") -> Iterator[Shape]:
    """Name and shape of each parameter of a model class; no memory is taken. Names that begin with `leave_out`
    are left out, `prefix` is put before the others."""
    import torch

    with torch.device("meta"):
        parameters = list(model(config).named_parameters())
    for name, parameter in parameters:
        if not name.startswith(leave_out):
            yield prefix + name, tuple(parameter.shape)


def random_tensors(named: Iterable[Shape], seed: int, special: int) -> dict[str, np.ndarray]:
    """A float32 array for each name: normal weights by the number of inputs, small biases, norms that do nothing.

    The last `special` tokens of the vocabulary get the logit 0, which is never the largest of so many.
    """
    # RandomState and not torch: its stream is frozen, where torch's changes with the CPU's vector width.
    random = np.random.RandomState(seed)
    tensors = {name: _random(random, name, shape) for name, shape in sorted(named)}
    # An answer that holds a placeholder or the end of a turn, fed again, would be taken at its word.
    (head,) = (tensor for name, tensor in tensors.items() if name.endswith("lm_head.weight"))
    head[-special:] = 0
    return tensors


def _random(random: np.random.RandomState, name: str, shape: tuple[int, ...]) -> np.ndarray:
    owner, kind = name.split(".")[-2:]
    if "norm" in owner or owner.startswith("ln_"):
        return np.full(shape, kind == "weight", np.float32)
    if len(shape) == 1:
        return random.normal(0.0, _BIAS, shape).astype(np.float32)
    weights = random.normal(0.0, _GAIN / np.sqrt(np.prod(shape[1:])), shape)
    # The sum over inputs is 0: behind an activation that is hardly ever negative, all audio would else sound alike.
    return (weights - weights.mean(axis=tuple(range(1, len(shape))), keepdims=True)).astype(np.float32)


def write_folder(
    folder: Path, config: dict[str, Any], preprocessor: dict[str, Any], tokenizer: Any, tensors: dict[str, np.ndarray]
) -> None:
    """Write the files that transformers and vLLM read. Raises OSError where the disk does not take them."""
    # An empty one: left out, each reader makes up its own, and one with the end of a session in it.
    files = {"config": config, "preprocessor_config": preprocessor, "generation_config": {}}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))
    save(folder, tokenizer, tensors)


def save(folder: Path, tokenizer: Any, tensors: dict[str, np.ndarray]) -> None:
    """Write a tokenizer, or None, and the tensors beside a config.json. Raises OSError for a disk that is full."""
    from safetensors.numpy import save_file

    try:
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except Exception as error:
        # Both are written in Rust, which raises no OSError for a full disk but an exception of its own.
        raise OSError(f"{error}, while writing in {folder}") from error
    # safetensors makes its file readable by its owner alone; a cache may be shared.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
