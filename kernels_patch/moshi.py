"""Moshi for vLLM: the temporal transformer, one position per 80 ms frame, from the Hugging Face checkpoint's weights.

It is a Llama whose feed-forward layer has gate and up in one matrix, so it is served by vLLM's own. What is Moshi's is
the input: a position is a text token and sixteen codes (eight of its own audio, eight of the user's), whose embeddings
are summed. They come as the chunk's item "audio", int64 (17,), the text token first: the first position of a session
has a start token past the vocabulary, which vLLM would take for none of the prompt. So the item alone says what a
position is, at every computation of it anew, and the prompt has one token a position which nobody embeds.

The checkpoint turns halves of a head against each other (rotate-half), not neighbours as the first published weights.

The checkpoint's own window of 3,000 frames is not used: with it vLLM would choose another kind of cache, which cannot
be cut. KVBound(2999, 0) stands for it. Both show a position itself and the 2,999 before it; in blocks of one token they
are the same model, in blocks of b a position sees up to b - 1 more, for a cut takes whole blocks. How far that is from
the checkpoint's own window hangs on the weights: random ones, which heed every position alike, were a median of 0.4 in
log-probability away with a window of 96 and blocks of 32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import nn
from transformers import BatchFeature, LlamaConfig
from vllm.config import VllmConfig
from vllm.inputs import mm_input
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig, PlaceholderRange
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

from kernels_patch.depth import DepthDecoder


class MoshiInfo(BaseProcessingInfo):
    """An item is one position, and a prompt may be many."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"audio": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {"audio": 1}


class MoshiDummyInputs(BaseDummyInputsBuilder[MoshiInfo]):
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options) -> dict:
        streams = 1 + 2 * self.info.get_hf_config().num_codebooks
        return {"audio": [np.zeros(streams, dtype=np.int64)] * mm_counts.get("audio", 0)}


class MoshiProcessor(BaseMultiModalProcessor[MoshiInfo]):
    """Item i is position i of its prompt. ValueError for any other number of items, and for codes that are none."""

    requires_tokenizer = False

    def _call_hf_processor(self, hf_data, hf_kwargs) -> BatchFeature:
        config = self.info.get_hf_config()
        most = np.array([config.vocab_size] + 2 * config.num_codebooks * [config.audio_vocab_size])
        for item in hf_data["audio"]:
            if item.shape != most.shape or not np.issubdtype(item.dtype, np.integer):
                raise ValueError(f"a Moshi position is {len(most)} whole numbers, not {item.dtype} {item.shape}")
            if (item < 0).any() or (item > most).any():
                raise ValueError(
                    f"Moshi position {item.tolist()} is out of range: text is 0 to {most[0]}, a code 0 to {most[1]}"
                )
        return BatchFeature({"streams": torch.from_numpy(np.stack(hf_data["audio"]).astype(np.int64))})

    def _get_mm_fields_config(self, hf_inputs, hf_processor_mm_kwargs) -> Mapping[str, MultiModalFieldConfig]:
        return {"streams": MultiModalFieldConfig.batched("audio")}

    def _get_prompt_updates(self, mm_items, hf_processor_mm_kwargs, out_mm_kwargs) -> list:
        return []

    def apply(self, inputs, timing_ctx):
        count = inputs.mm_data_items.get_all_counts().get("audio", 0)
        # vLLM's own dummy prompt is empty.
        prompt = inputs.prompt or [0] * count
        if len(prompt) != count:
            raise ValueError(f"a Moshi prompt of {len(prompt)} positions has {count} audio items: give one a position")
        processed = self._apply_hf_processor(inputs, timing_ctx)
        return mm_input(
            prompt_token_ids=prompt,
            mm_kwargs=processed.kwargs,
            mm_hashes=processed.hashes,
            mm_placeholders={"audio": [PlaceholderRange(offset=index, length=1) for index in range(count)]},
        )


@MULTIMODAL_REGISTRY.register_processor(MoshiProcessor, info=MoshiInfo, dummy_inputs=MoshiDummyInputs)
class MoshiForConditionalGeneration(nn.Module, SupportsMultiModal):
    """Temporal transformer and text head; ``depth`` is what kernels_patch.depth runs after a text token is sampled.

    Mimi stays outside: the session sends codes and is sent codes.
    """

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "audio_encoder.": None,
            "depth_decoder.": "depth.",
            "decoder.lm_head.": "lm_head.",
            "decoder.model.": "model.",
        },
        orig_to_new_substr={
            "_proj.linear.": "_proj.",
            ".mlp.fc1.": ".mlp.gate_up_proj.",
            ".mlp.fc2.": ".mlp.down_proj.",
        },
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = self.config = vllm_config.model_config.hf_config
        with self._mark_tower_model(vllm_config, "audio"):
            self.embed_tokens = nn.ModuleList(
                nn.Embedding(config.audio_vocab_size + 1, config.hidden_size) for _ in range(2 * config.num_codebooks)
            )
        with self._mark_language_model(vllm_config):
            self.model = LlamaModel(
                vllm_config=vllm_config.with_hf_config(_llama(config), ["LlamaForCausalLM"]),
                prefix=maybe_prefix(prefix, "model"),
            )
        self.lm_head = ParallelLMHead(
            config.vocab_size,
            config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.depth = DepthDecoder(config.depth_decoder_config)

    def embed_multimodal(self, **kwargs: object) -> tuple[torch.Tensor, ...]:
        """Each item's summed embeddings, (1, hidden size)."""
        streams = kwargs.get("streams")
        if streams is None:
            return ()
        streams = streams if isinstance(streams, torch.Tensor) else torch.stack(list(streams))
        embedded = sum(table(codes) for table, codes in zip(self.embed_tokens, streams.T[1:], strict=True))
        # Copies: in the encoder cache a row that is a view would keep the whole step's.
        return tuple(row.clone() for row in (embedded + self.model.embed_input_ids(streams[:, 0])).split(1))

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors=None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)


def _llama(config) -> LlamaConfig:
    """The temporal transformer as the Llama that it is; its embedding has a row more for the start token."""
    return LlamaConfig(
        vocab_size=config.vocab_size + 1,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_dim // 2,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        hidden_act=config.hidden_act,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=config.rope_parameters,
        tie_word_embeddings=False,
    )
