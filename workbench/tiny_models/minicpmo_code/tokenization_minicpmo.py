"""MiniCPM-o's tokenizer: Qwen2's, with the delimiters' texts and ids that vLLM's processor reads as attributes."""

from transformers import Qwen2Tokenizer

_MARKS = {
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "audio_start": "<|audio_start|>",
    "audio_end": "<|audio_end|>",
    "spk_start": "<|spk_bos|>",
    "spk_end": "<|spk_eos|>",
}


class MiniCPMOTokenizer(Qwen2Tokenizer):
    """`im_start`, `audio_end` and so on are texts, `im_start_id`, `audio_end_id` and so on their token ids."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for name, text in _MARKS.items():
            setattr(self, name, text)
            setattr(self, f"{name}_id", self.convert_tokens_to_ids(text))
        # What the processor strips from an answer that it decodes; this tokenizer has neither.
        self.bos_id = self.eos_id = None
