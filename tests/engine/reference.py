"""A float32 Hugging Face model with the mask that a bound amounts to: what every sampled token should have got.

The rule is written out here a second time, on purpose: one list of the positions still resident, cut at each frame.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM


def visible_positions(frames, block: int) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """All kept tokens in true order, and per frame: the positions resident before it, and its own positions.

    The last sampled token of a frame never enters the context.
    """
    tokens: list[int] = []
    resident: list[int] = []
    before, own = [], []
    for frame in frames:
        if frame.bound is not None:
            pinned = -(-frame.bound.sinks // block) * block
            surplus = len(resident) - pinned - frame.bound.window
            if surplus >= block:
                del resident[pinned : pinned + surplus // block * block]
        new = frame.tokens_in + frame.tokens_out[:-1]
        positions = list(range(len(tokens), len(tokens) + len(new)))
        before.append(list(resident))
        own.append(positions)
        tokens.extend(new)
        resident.extend(positions)
    return tokens, before, own


def reference_logprobs(model, frames, block: int) -> list[torch.Tensor]:
    """Per frame the log-probability of each sampled token, from one forward pass with the equivalent mask."""

    def hidden(tokens: list[int], mask: torch.Tensor) -> torch.Tensor:
        return model.model(
            input_ids=torch.tensor([tokens]),
            position_ids=torch.arange(len(tokens))[None],
            attention_mask=mask[None, None],
        ).last_hidden_state[0]

    return reference_rows(hidden, model.lm_head, frames, block)


def reference_rows(hidden_of, head, frames, block: int) -> list[torch.Tensor]:
    """As ``reference_logprobs``: ``hidden_of`` makes of all kept tokens and the mask (n, n) the last hidden states."""
    tokens, before, own = visible_positions(frames, block)
    n = len(tokens)
    mask = torch.full((n, n), torch.finfo(torch.float32).min)
    for seen, positions in zip(before, own, strict=True):
        rows = torch.tensor(positions)
        mask[rows[:, None], torch.tensor(seen, dtype=torch.long)[None, :]] = 0.0
        first, last = positions[0], positions[-1] + 1
        mask[first:last, first:last] = torch.triu(torch.full((last - first,) * 2, mask.min().item()), diagonal=1)
    with torch.inference_mode():
        hidden = hidden_of(tokens, mask)
        result = []
        for frame, positions in zip(frames, own, strict=True):
            # The token sampled first is predicted by the last token that went in.
            start = positions[0] + len(frame.tokens_in) - 1
            rows = hidden[start : start + len(frame.tokens_out)]
            scores = torch.log_softmax(head(rows), dim=-1)
            result.append(scores[torch.arange(len(frame.tokens_out)), torch.tensor(frame.tokens_out)])
    return result


def load_reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


def largest_difference(model, frames, block: int) -> tuple[float, int]:
    """The largest |log-probability served - reference| and the number of tokens compared."""
    worst, count = 0.0, 0
    for frame, expected in zip(frames, reference_logprobs(model, frames, block), strict=True):
        got = torch.tensor(frame.logprobs)
        assert got.shape == expected.shape, "every sampled token carries its log-probability"
        assert torch.isfinite(got).all()
        worst = max(worst, (got - expected).abs().max().item())
        count += len(frame.logprobs)
    return worst, count
