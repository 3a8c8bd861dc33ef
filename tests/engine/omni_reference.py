"""The decoder of a tiny omni model by Hugging Face, with the mask that a bound amounts to, and Qwen's audio encoders.

A tiny model has no checkpoint of its own elsewhere, so its decoder is filled from the folder's tensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from tests.engine.fed import Fed
from tests.engine.reference import reference_rows
from workbench.reference import ReferenceSession


class Decoder:
    """The text part of the model in ``folder``: from embeddings (tokens, width) to log-probabilities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_text())
        self._axes = 3
        if self.config["architectures"] == ["MiniCPMO"]:
            self._axes = 1
            self.text, self.head = self._qwen3()
        else:
            self.text, self.head = self._thinker()

    def _thinker(self):
        from transformers import AutoConfig, Qwen2_5OmniThinkerForConditionalGeneration
        from transformers import Qwen3OmniMoeThinkerForConditionalGeneration as Qwen3Thinker

        config = AutoConfig.from_pretrained(self.folder)
        made = Qwen2_5OmniThinkerForConditionalGeneration if "qwen2_5" in config.model_type else Qwen3Thinker
        # Without the config of the part it would build the whole model at its default size.
        self.thinker, told = made.from_pretrained(
            self.folder, config=config.thinker_config, dtype=torch.float32, output_loading_info=True
        )
        # The tower for images is in no tiny checkpoint, and never used here.
        assert not told["unexpected_keys"] and not [key for key in told["missing_keys"] if "visual" not in key]
        self.thinker.eval()
        return self.thinker.model, self.thinker.lm_head

    def _qwen3(self):
        from transformers import Qwen3Config, Qwen3ForCausalLM

        model = Qwen3ForCausalLM(Qwen3Config(**{key: value for key, value in self.config.items() if key != "auto_map"}))
        tensors = load_file(self.folder / "model.safetensors")
        held = {name.removeprefix("llm."): each for name, each in tensors.items() if name.startswith("llm.")}
        missing, unexpected = model.load_state_dict(held, strict=False)
        assert not unexpected and not missing, (missing, unexpected)
        model = model.float().eval()
        return model.model, model.lm_head

    def logprobs(self, frames, embeddings: np.ndarray, block: int) -> list[torch.Tensor]:
        """Per frame the log-probability of each sampled token. ``embeddings``: of all kept tokens in true order."""

        def hidden(tokens: list[int], mask: torch.Tensor) -> torch.Tensor:
            assert len(tokens) == len(embeddings)
            at = torch.arange(len(tokens))[None]
            return self.text(
                inputs_embeds=torch.from_numpy(embeddings)[None],
                position_ids=at.expand(3, 1, -1) if self._axes == 3 else at,
                attention_mask=mask[None, None],
                use_cache=False,
            ).last_hidden_state[0]

        return reference_rows(hidden, self.head, frames, block)

    def moving_logprobs(self, frames, embeddings: np.ndarray, block: int) -> list[torch.Tensor]:
        """As ``logprobs``, frame after frame with a cache whose sinks move, for a decoder of one axis of positions."""
        assert self._axes == 1
        fed = Fed(self.text, self.head, torch.from_numpy(embeddings), self.text.rotary_emb)
        session = ReferenceSession(fed, block)
        return [torch.tensor(session.logprobs(frame)) for frame in frames]

    def heard(self, samples: np.ndarray) -> torch.Tensor:
        """What Qwen's audio encoder makes of float32 samples at 16 kHz: (audio tokens, width)."""
        from transformers import AutoFeatureExtractor

        extractor = AutoFeatureExtractor.from_pretrained(self.folder)
        # As each model's processor has it: beyond the audio the one hears silence, the other the audio reflected.
        padding = "max_length" if "qwen2_5" in self.config["model_type"] else True
        how = {"return_tensors": "pt", "return_attention_mask": True, "padding": padding}
        features = extractor(samples, sampling_rate=16_000, **how)
        with torch.inference_mode():
            outputs = self.thinker.get_audio_features(
                features["input_features"], feature_attention_mask=features["attention_mask"]
            )
        return outputs.last_hidden_state if hasattr(outputs, "last_hidden_state") else outputs
