"""A model of Hugging Face that hears, as workbench.reference asks for one that reads tokens."""

from __future__ import annotations

from types import SimpleNamespace

import torch


class Fed:
    """A causal model that is given ``embeddings`` (tokens, width) one after the other, whatever tokens it is told.

    ``text``: from embeddings to the last hidden states, ``head``: from these to logits, ``rotary``: what rotates keys.
    ``states``: the hidden states whose logits were asked for.
    """

    def __init__(self, text, head, embeddings: torch.Tensor, rotary) -> None:
        self.model = SimpleNamespace(rotary_emb=rotary)
        self._text, self._head, self._rest = text, head, embeddings
        self.states: list[torch.Tensor] = []

    def __call__(self, input_ids, logits_to_keep: int, **given) -> SimpleNamespace:
        count = input_ids.shape[1]
        now, self._rest = self._rest[:count], self._rest[count:]
        hidden = self._text(inputs_embeds=now[None], **given).last_hidden_state[:, -logits_to_keep:]
        self.states.append(hidden[0])
        return SimpleNamespace(logits=self._head(hidden))
