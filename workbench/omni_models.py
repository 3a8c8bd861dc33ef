"""The models that hear audio as multimodal data: their prompt's delimiters, and how many tokens a chunk becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench._model_config import read_config
from workbench.audio import SAMPLE_RATE

# Which hears codes, by a front end of its own.
MOSHI = "MoshiForConditionalGeneration"
# What is longer Whisper's feature extractor cuts off, and says nothing.
LONGEST_S = 30
# One log-mel frame of Whisper's feature extractor is 10 ms.
_HOP = 160
# MiniCPM-o 4.5: audio_pool_step, and the embeddings of one second.
_POOL, _PER_SECOND = 5, 10


class OmniError(ValueError):
    """A model or an audio chunk that cannot be used. The message is one line that says what to do."""


@dataclass(frozen=True)
class OmniModel:
    """How one model takes audio in a prompt: `before` + `placeholder` + `after`, texts of its own tokenizer.

    vLLM replaces the placeholder's ids, which must be those of that text encoded alone, by the audio's tokens.
    `shortest_samples` is the fewest at 16 kHz that were accepted.
    """

    name: str
    architectures: tuple[str, ...]
    before: str
    placeholder: str
    after: str
    shortest_samples: int
    tokens: Callable[[int], int]

    @property
    def shortest_s(self) -> float:
        """Seconds of the shortest chunk."""
        return self.shortest_samples / SAMPLE_RATE

    def audio_tokens(self, samples: int) -> int:
        """Tokens that stand in the placeholder's stead; `before` and `after` are not in it.

        OmniError for a chunk shorter than the model accepts, or longer than its feature extractor keeps.
        """
        if not self.shortest_samples <= samples <= LONGEST_S * SAMPLE_RATE:
            raise OmniError(
                f"{self.name} takes audio chunks of {self.shortest_s:g} to {LONGEST_S} s, not "
                f"{samples / SAMPLE_RATE:g} s: change the frame budget"
            )
        return self.tokens(samples)


def _frames(samples: int) -> int:
    return -(-samples // _HOP)


def _halved(length: int) -> int:
    """Length behind a convolution of width 3, stride 2 and padding 1."""
    return (length - 1) // 2 + 1


def _qwen2_5_tokens(samples: int) -> int:
    """25 a second: one convolution of stride 2, then means of two. From _get_feat_extract_output_lengths of vLLM's
    qwen2_audio."""
    return _halved(_frames(samples)) // 2


def _qwen3_tokens(samples: int) -> int:
    """13 a second: three convolutions of stride 2 over blocks of 100 frames. From _get_feat_extract_output_lengths of
    vLLM's qwen3_omni_moe_thinker."""
    seconds, rest = divmod(_frames(samples), 100)
    return 13 * seconds + _halved(_halved(_halved(rest)))


def _minicpm_tokens(samples: int) -> int:
    """10 a second: one convolution of stride 2, then means of five, and a start and an end token around every second
    begun. From get_audio_placeholder of vLLM's MiniCPMOProcessor."""
    embeddings = _halved(_frames(samples)) // _POOL
    return embeddings + 2 * -(-embeddings // _PER_SECOND)


OMNI = {
    model.name: model
    for model in (
        OmniModel(
            "qwen2.5-omni",
            architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
            before="<|audio_bos|>",
            placeholder="<|AUDIO|>",
            after="<|audio_eos|>",
            shortest_samples=2 * _HOP + 1,
            tokens=_qwen2_5_tokens,
        ),
        # A prompt that ends on this model's placeholder kills vLLM's engine, so `after` must never be left out.
        OmniModel(
            "qwen3-omni",
            architectures=("Qwen3OmniMoeForConditionalGeneration",),
            before="<|audio_start|>",
            placeholder="<|audio_pad|>",
            after="<|audio_end|>",
            shortest_samples=_HOP + 1,
            tokens=_qwen3_tokens,
        ),
        # vLLM puts the delimiters itself.
        OmniModel(
            "minicpm-o-4.5",
            architectures=("MiniCPMO",),
            before="",
            placeholder="(<audio>./</audio>)",
            after="",
            shortest_samples=8 * _HOP + 1,
            tokens=_minicpm_tokens,
        ),
    )
}


def omni_model(folder: Path) -> OmniModel:
    """What the model in a Hugging Face folder is, by the architecture in its config.json.

    OmniError where there is no such folder, no readable config.json, or none of the models in OMNI.
    """
    config = _config(Path(folder))
    architectures = config.get("architectures") or []
    for model in OMNI.values():
        if not set(architectures).isdisjoint(model.architectures) and _is_version(model, config):
            return model
    found = " ".join([*architectures, str(config.get("version", ""))]).strip() or "no architecture"
    raise OmniError(f"{folder} holds {found}, which takes no audio here: give a folder of {', '.join(OMNI)}")


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise OmniError(f"no model folder {folder}: give one that holds a config.json")
    return read_config(folder, lambda line: OmniError(f"{line}; restore it"))


def _is_version(model: OmniModel, config: dict[str, Any]) -> bool:
    """MiniCPM-o 2.6 has the architecture of 4.5 and pools otherwise; only its version tells."""
    return model.name != "minicpm-o-4.5" or str(config.get("version")) == "4.5"
