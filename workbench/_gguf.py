"""A Llama GGUF file, read as what a Hugging Face folder is written from: config, tensors, tokenizer.

Imported only when a folder is built, for it pulls in transformers, which takes seconds.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_llama(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], Any]:
    """Config entries, float32 tensors by their Hugging Face names, and the tokenizer of a Llama GGUF file.

    Raises KeyError for a file whose metadata or tensors are not those of a Llama.
    """
    reader = gguf.GGUFReader(file)
    config = _config(reader)
    return config, _tensors(reader, config), _tokenizer(reader, file, config["max_position_embeddings"])


def rows_in_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's row order in a q or k projection of shape (heads x head size, hidden); same shape out.

    Rotary embedding turns pairs of rows. A Llama GGUF stores the two rows of a pair next to each other; Hugging Face
    keeps the first rows of all pairs in the first half of a head and the second rows in the other half.
    """
    pairs_first = weight.reshape(heads, -1, 2, weight.shape[1])
    return pairs_first.swapaxes(1, 2).reshape(weight.shape)


def _config(reader: gguf.GGUFReader) -> dict[str, Any]:
    def llama(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    def token(key: str) -> int:
        return reader.fields[f"tokenizer.ggml.{key}_token_id"].contents()

    return {
        "num_hidden_layers": llama("block_count"),
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_attention_heads": llama("attention.head_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "head_dim": llama("rope.dimension_count"),
        "vocab_size": llama("vocab_size"),
        "max_position_embeddings": llama("context_length"),
        "rope_theta": llama("rope.freq_base"),
        "rms_norm_eps": llama("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "bos_token_id": token("bos"),
        "eos_token_id": token("eos"),
        "pad_token_id": token("padding"),
    }


def _tensors(reader: gguf.GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    rotated = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        # "blk.7.attn_q.weight", or "output_norm.weight" outside the layers
        *block, part, suffix = tensor.name.split(".")
        name = f"model.layers.{block[1]}.{_LAYER[part]}.{suffix}" if block else f"{_TOP[part]}.{suffix}"
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        if part in rotated:
            weight = rows_in_halves(weight, rotated[part])
        # safetensors writes the memory behind an array as it lies, strides ignored
        tensors[name] = np.ascontiguousarray(weight, dtype=np.float32)
    return tensors


def _tokenizer(reader: gguf.GGUFReader, file: Path, context_tokens: int) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    tokenizer.model_max_length = context_tokens
    if reader.fields["tokenizer.ggml.pre"].contents() == "smollm":
        # transformers does not read this key. SmolLM splits off every digit before the byte-level words;
        # without it the spaces before a number come out as other tokens than the model was trained on.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer
