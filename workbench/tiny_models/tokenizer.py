"""The tiny models' tokenizer: a byte-level BPE trained on the checkout's LICENSE, and the model's special tokens."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from workbench.weights import WeightsError

_CHAT = {"im_start_token": "<|im_start|>", "im_end_token": "<|im_end|>"}
_TEXT = Path(__file__).parents[2] / "LICENSE"


def qwen2_tokenizer(special: dict[str, str], size: int, make: type[Qwen2Tokenizer] = Qwen2Tokenizer) -> Qwen2Tokenizer:
    """A Qwen2Tokenizer of `size` tokens: the last are <|im_start|>, <|im_end|> and `special`, attribute -> text.

    It knows no end of text, since vLLM would end a session there. Raises WeightsError where the LICENSE is missing.
    """
    if not _TEXT.is_file():
        raise WeightsError(f"no {_TEXT}, on which the tiny models' tokenizers are trained: run from a checkout")
    texts = _CHAT | special
    trained = Tokenizer(models.BPE())
    backend = Qwen2Tokenizer().backend_tokenizer
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    entries = size - len(set(texts.values()))
    trainer = trainers.BpeTrainer(vocab_size=entries, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(_TEXT.read_text(encoding="utf-8").splitlines(), trainer)
    model = json.loads(trained.to_str())["model"]
    return make(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        extra_special_tokens=texts,
        **dict.fromkeys(("unk_token", "eos_token", "pad_token")),
    )
