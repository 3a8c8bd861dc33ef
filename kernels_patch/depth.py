"""Moshi's depth transformer: the eight codes of a frame's own audio, after its text token was sampled, in the worker.

It runs over a frame's codebooks, not over time: eight positions, each with weights of its own, and no state from one
frame to the next. Position 0 has the text token and position i the code before it; every one also has the temporal
transformer's last hidden state. Each code is the likeliest.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu


class _PerCodebook(nn.Module):
    """One linear layer a codebook, ``weight``: (codebooks, outputs, inputs)."""

    def __init__(self, codebooks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(codebooks, outputs, inputs), requires_grad=False)

    def forward(self, hidden: torch.Tensor, codebook: int) -> torch.Tensor:
        return linear(hidden, self.weight[codebook])


class _Layer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        codebooks, width = config.num_codebooks, config.hidden_size
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": _PerCodebook(codebooks, width, heads * self.head_dim),
                "k_proj": _PerCodebook(codebooks, width, kv_heads * self.head_dim),
                "v_proj": _PerCodebook(codebooks, width, kv_heads * self.head_dim),
                "o_proj": _PerCodebook(codebooks, heads * self.head_dim, width),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_up_proj": _PerCodebook(codebooks, width, config.ffn_dim),
                "down_proj": _PerCodebook(codebooks, config.ffn_dim // 2, width),
            }
        )
        self.input_layernorm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, codebook: int, keys: list, values: list) -> torch.Tensor:
        """``hidden``: (frames, width). ``keys``, ``values``: of the codebooks before, to which this one's are added."""
        normed, heads = self.input_layernorm(hidden), (len(hidden), -1, 1, self.head_dim)
        query = self.self_attn["q_proj"](normed, codebook).view(heads)
        keys.append(self.self_attn["k_proj"](normed, codebook).view(heads))
        values.append(self.self_attn["v_proj"](normed, codebook).view(heads))
        attended = scaled_dot_product_attention(query, torch.cat(keys, 2), torch.cat(values, 2), enable_gqa=True)
        hidden = hidden + self.self_attn["o_proj"](attended.flatten(1), codebook)
        normed = self.post_attention_layernorm(hidden)
        gate, up = self.mlp["gate_up_proj"](normed, codebook).chunk(2, dim=-1)
        return hidden + self.mlp["down_proj"](silu(gate) * up, codebook)


class DepthDecoder(nn.Module):
    """``config``: transformers' MoshiDepthConfig. Its layers are few and narrow: every tensor-parallel rank has all."""

    def __init__(self, config) -> None:
        super().__init__()
        self.codebooks, width = config.num_codebooks, config.hidden_size
        self.text_embed_tokens = nn.Embedding(config.vocab_size + 1, width)
        # The last code is nobody's input.
        self.embed_tokens = nn.ModuleList(
            nn.Embedding(config.audio_vocab_size + 1, width) for _ in range(self.codebooks - 1)
        )
        self.input_projections = _PerCodebook(self.codebooks, config.input_size, width)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.lm_heads = _PerCodebook(self.codebooks, width, config.audio_vocab_size)

    def forward(self, last_hidden: torch.Tensor, text_tokens: torch.Tensor) -> torch.Tensor:
        """Codes, int64 (frames, codebooks), for ``last_hidden`` (frames, width) and ``text_tokens`` (frames,)."""
        codes = []
        cache = [([], []) for _ in self.layers]
        for codebook in range(self.codebooks):
            embedded = self.embed_tokens[codebook - 1](codes[-1]) if codes else self.text_embed_tokens(text_tokens)
            hidden = embedded + self.input_projections(last_hidden, codebook)
            for layer, (keys, values) in zip(self.layers, cache, strict=True):
                hidden = layer(hidden, codebook, keys, values)
            codes.append(self.lm_heads(hidden, codebook).argmax(dim=-1))
        return torch.stack(codes, dim=1)


def attach_depth(runner) -> None:
    """Let a V1 ``runner`` whose model has a ``depth`` send codes with the outputs of each step, once.

    Of every session that sampled a text token: request id -> float32 (codebooks,), which holds codes exactly. They go
    the way of vLLM's own scores of fixed tokens, as those of kernels_patch.scores do.
    """
    if hasattr(runner, "metronome_depth"):
        return
    depth = runner.metronome_depth = runner.get_model().depth
    sample_tokens = runner.sample_tokens

    @torch.inference_mode()
    def sample_then_speak(*args, **kwargs):
        state = runner.execute_model_state
        output = sample_tokens(*args, **kwargs)
        if state is None:
            return output
        # A session in the midst of its prefill has sampled nothing.
        rows = [row for row, tokens in enumerate(output.sampled_token_ids) if tokens]
        if rows:
            last_hidden = state.sample_hidden_states[rows]
            text = torch.tensor([output.sampled_token_ids[row][-1] for row in rows], device=last_hidden.device)
            codes = depth(last_hidden, text).float().cpu()
            names = [output.req_ids[row] for row in rows]
            output.prompt_token_id_logprobs_dict.update(zip(names, codes, strict=True))
        return output

    runner.sample_tokens = sample_then_speak
