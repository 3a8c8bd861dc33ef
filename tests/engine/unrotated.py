"""A Llama that keeps its keys unrotated and turns them where they are read: what moving sinks amount to, once more.

Written from the model's definition, without vLLM and without the plugin: each frame says where every resident token
stands, and the keys are rotated to there from the start.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


class Unrotated:
    """The weights in a Hugging Face folder of a Llama, in float32."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.layers, self.width = self.config["num_hidden_layers"], self.config["head_dim"]
        # Angles in float32, as every engine has them: their rounding is larger than any other.
        self.frequencies = 1.0 / self.config["rope_theta"] ** (torch.arange(0, self.width, 2).float() / self.width)

    def _turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions.float()[:, None] * self.frequencies
        one, two = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def step(self, tokens: list[int], at: list[int], cache: list, seen_at: list[int]) -> torch.Tensor:
        """Log-probabilities (tokens, vocabulary) after each of ``tokens``, which stand ``at`` positions.

        ``cache``: per layer None or (keys, values) of the resident tokens (kv heads, resident, width), which stand at
        ``seen_at``; the new ones are appended.
        """
        weights, count, held = self.weights, len(tokens), len(seen_at)
        x = weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        own, everywhere = torch.tensor(at), torch.tensor([*seen_at, *at])
        mask = torch.ones(count, held + count, dtype=torch.bool).tril(held)
        for k in range(self.layers):
            layer = f"model.layers.{k}"

            def project(x, which, heads, layer=layer):
                return (x @ weights[f"{layer}.self_attn.{which}_proj.weight"].T).view(count, heads, -1).transpose(0, 1)

            y = self._norm(x, f"{layer}.input_layernorm")
            query = project(y, "q", self.heads)
            new = project(y, "k", self.kv_heads), project(y, "v", self.kv_heads)
            cache[k] = (
                new if cache[k] is None else tuple(torch.cat(pair, 1) for pair in zip(cache[k], new, strict=True))
            )
            keys, values = (each.repeat_interleave(self.heads // self.kv_heads, 0) for each in cache[k])
            scores = self._turn(query, own) @ self._turn(keys, everywhere).transpose(1, 2) / self.width**0.5
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values
            x = x + y.transpose(0, 1).reshape(count, -1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
            y = self._norm(x, f"{layer}.post_attention_layernorm")
            gate, up = (y @ weights[f"{layer}.mlp.{which}_proj.weight"].T for which in ("gate", "up"))
            x = x + (torch.nn.functional.silu(gate) * up) @ weights[f"{layer}.mlp.down_proj.weight"].T
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        return torch.log_softmax(self._norm(x, "model.norm") @ head.T, dim=-1)


def reference_logprobs(model: Unrotated, frames, block: int) -> list[list[float]]:
    """Per frame the log-probability of each sampled token. The rule of the bound is written out here once more."""
    cache: list = [None] * model.layers
    positions: list[int] = []
    age, result = 0, []
    for frame in frames:
        if frame.bound is not None:
            pinned = -(-frame.bound.sinks // block) * block
            surplus = len(positions) - pinned - frame.bound.window
            if surplus >= block:
                kept = [*range(pinned), *range(pinned + surplus // block * block, len(positions))]
                cache = [tuple(each[:, kept] for each in pair) for pair in cache]
                positions = [positions[k] for k in kept]
                if frame.bound.moving and pinned:
                    positions[:pinned] = range(positions[pinned] - pinned, positions[pinned])
        tokens = frame.tokens_in + frame.tokens_out[:-1]
        at = list(range(age, age + len(tokens)))
        logprobs = model.step(tokens, at, cache, positions)[len(frame.tokens_in) - 1 :]
        result.append([float(row[token]) for row, token in zip(logprobs, frame.tokens_out, strict=True)])
        positions += at
        age += len(tokens)
    return result
