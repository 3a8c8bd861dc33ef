"""MiniCPM-o as vLLM has it, with audio counted: where images and videos are switched off vLLM 0.32 rejects all audio.

The reason is that its table of the most tokens of an item has images and videos alone.
"""

from __future__ import annotations

from vllm.model_executor.models import minicpmo
from vllm.multimodal import MULTIMODAL_REGISTRY


class ProcessingInfo(minicpmo.MiniCPMOProcessingInfo):
    """vLLM's, and the most tokens of a piece of audio."""

    def get_mm_max_tokens_per_item(self, seq_len, mm_counts):
        """As the parent's, with "audio": each second of it has two tokens around its own."""
        each = self.get_max_audio_tokens_per_chunk() + 2
        audio = self.get_max_audio_chunks_with_most_features() * each
        return {**super().get_mm_max_tokens_per_item(seq_len, mm_counts), "audio": audio}


@MULTIMODAL_REGISTRY.register_processor(
    minicpmo.MiniCPMOMultiModalProcessor, info=ProcessingInfo, dummy_inputs=minicpmo.MiniCPMODummyInputsBuilder
)
class MiniCPMO(minicpmo.MiniCPMO):
    """vLLM's own model."""
