"""Moshi in the plugin, as far as it goes without an engine; tests/engine/test_moshi_engine.py has the rest."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from kernels_patch.moshi import MoshiForConditionalGeneration


def test_a_position_s_embedding_sums_its_streams_and_keeps_no_other_s_memory():
    torch.manual_seed(0)
    tables, text = [nn.Embedding(9, 6) for _ in range(4)], nn.Embedding(20, 6)
    model = SimpleNamespace(embed_tokens=tables, model=SimpleNamespace(embed_input_ids=text))
    streams = torch.tensor([[19, 0, 8, 3, 1], [2, 8, 8, 8, 8], [7, 5, 4, 2, 0]])
    with torch.inference_mode():
        rows = MoshiForConditionalGeneration.embed_multimodal(model, streams=streams)
        for row, (first, *codes) in zip(rows, streams, strict=True):
            expected = text(first) + sum(table(code) for table, code in zip(tables, codes, strict=True))
            assert torch.allclose(row, expected[None]) and row.shape == (1, 6)
            # It stays in the encoder cache for as long as its session holds the position, the others' may go before.
            assert row.untyped_storage().nbytes() == row.nbytes
