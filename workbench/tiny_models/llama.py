"""The tiny Llama for tests: seeded random weights, no tokenizer."""

from typing import Any

import numpy as np


def read() -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Keys of config.json, tensors by name, and no tokenizer."""
    head, heads, kv_heads, ffn, vocabulary, layers = 32, 4, 2, 128, 2048, 2
    hidden = heads * head
    # RandomState and not torch: its stream is frozen, where torch's changes with the CPU's vector width.
    random = np.random.RandomState(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        # 0.2 is over twice 1 / sqrt(128): logits then spread over several units and attention is far from even, so
        # that a token, a position or a cache block gone wrong shows in the output.
        return random.normal(0.0, 0.2, (rows, columns)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, hidden), "lm_head.weight": matrix(vocabulary, hidden)}
    norms = ["model.norm"]
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.self_attn.q_proj.weight": matrix(heads * head, hidden),
            f"{prefix}.self_attn.k_proj.weight": matrix(kv_heads * head, hidden),
            f"{prefix}.self_attn.v_proj.weight": matrix(kv_heads * head, hidden),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden, heads * head),
            f"{prefix}.mlp.gate_proj.weight": matrix(ffn, hidden),
            f"{prefix}.mlp.up_proj.weight": matrix(ffn, hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden, ffn),
        }
        norms += [f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm"]
    tensors |= {f"{norm}.weight": np.ones(hidden, np.float32) for norm in norms}
    config = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        # Said outright: left out, transformers takes tokens 1 and 2, and one of them would end a session.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    return config, tensors, None
