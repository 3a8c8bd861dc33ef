"""What every sampled token should have got: by a Hugging Face model in float32, its cache cut as a bound cuts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.bound import KVBound


class NoReference(RuntimeError):
    """A model that cannot be the reference; one line that says why."""


class Reference:
    """The causal language model in ``folder``. ``dtype``: its weights are rounded to it, then everything is float32.

    So what is left between it and an engine of that dtype is the engine's own arithmetic. Raises NoReference.
    """

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        import torch
        from transformers import AutoModelForCausalLM

        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        except Exception as error:
            reason = " ".join(str(error).split())
            raise NoReference(f"transformers cannot load {folder}: {reason}: give another model") from error
        for weight in model.parameters():
            weight.data = weight.data.to(getattr(torch, dtype)).float()
        self._model = model.eval()

    def session(self, block: int) -> ReferenceSession:
        """A session from its beginning; ``block``: tokens of a block."""
        return ReferenceSession(self._model, block)

    def logprobs(self, frames: Sequence[Any], block: int) -> list[list[float]]:
        """What a session says of ``frames``, from its first one on."""
        session = self.session(block)
        return [session.logprobs(frame) for frame in frames]


class ReferenceSession:
    """One session of a ``model`` of Hugging Face, frame by frame."""

    def __init__(self, model, block: int) -> None:
        from transformers import DynamicCache

        self._model, self._block = model, block
        self._cache = DynamicCache()
        # Where what is resident stands, and where the next token will.
        self._at: list[int] = []
        self._age = 0

    def logprobs(self, frame: Any) -> list[float]:
        """The log-probability of each token in ``frame.tokens_out``, natural logarithm.

        The last of them never enters the context. ``frame`` also has ``tokens_in`` and ``bound`` (KVBound or None).
        """
        import torch

        if frame.bound is not None:
            self._cut(frame.bound)
        tokens = frame.tokens_in + frame.tokens_out[:-1]
        held, count = len(self._at), len(tokens)
        # Whatever is resident is visible; only the frame's own tokens come one after the other.
        mask = torch.full((count, held + count), torch.finfo(torch.float32).min).triu(held + 1)
        own = range(self._age, self._age + count)
        with torch.inference_mode():
            logits = self._model(
                input_ids=torch.tensor([tokens]),
                position_ids=torch.tensor([list(own)]),
                attention_mask=mask[None, None],
                past_key_values=self._cache,
                logits_to_keep=len(frame.tokens_out),
            ).logits[0]
        self._at += own
        self._age += count
        scores = torch.log_softmax(logits, dim=-1)
        return scores.gather(1, torch.tensor(frame.tokens_out)[:, None])[:, 0].tolist()

    def _cut(self, bound: KVBound) -> None:
        """Evict what ``bound`` lets go, and move its sinks where they are to move."""
        import torch

        at, pinned = self._at, bound.sink_tokens(self._block)
        gap = bound.evictable(len(at), self._block)
        if not gap:
            return
        kept = torch.tensor([*range(pinned), *range(pinned + gap, len(at))])
        for layer in self._cache.layers:
            layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
        del at[pinned : pinned + gap]
        if bound.moving and pinned:
            moved = range(at[pinned] - pinned, at[pinned])
            self._turn(at[:pinned], back=True)
            self._turn(moved)
            at[:pinned] = moved

    def _turn(self, positions: Sequence[int], back: bool = False) -> None:
        """Rotate the cache's first keys by ``positions``, one for each.

        Not by the difference of two: an angle is rounded in float32, which is larger than any other rounding here.
        """
        import torch

        rotary = self._model.model.rotary_emb
        for layer in self._cache.layers:
            cos, sin = rotary(layer.keys, position_ids=torch.tensor([list(positions)]))
            # Some models scale what they rotate, and these keys were scaled when they were made.
            cos, sin = cos / rotary.attention_scaling, sin / rotary.attention_scaling * (-1 if back else 1)
            first, width = layer.keys[:, :, : len(positions)], cos.shape[-1]
            one, two = first[..., :width].chunk(2, dim=-1)
            turned = first[..., :width] * cos + torch.cat([-two, one], dim=-1) * sin
            first = torch.cat([turned, first[..., width:]], dim=-1)
            layer.keys = torch.cat([first, layer.keys[:, :, len(positions) :]], dim=2)
