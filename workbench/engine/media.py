"""A chunk that has audio in it, and the first chunks of an engine's life."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.audio import SAMPLE_RATE, Clip, frame_samples
from workbench.engine.base import EngineError
from workbench.engine.model import decoder_config, read_config

WARM_UP_FRAMES = 2


class AudioChunk(list):
    """Token ids of a chunk, one of which stands for ``audio``: vLLM's item, such as (float32 samples, 16000).

    ``length``: tokens that the session grows by, for that one becomes as many as its audio has. A list has an item for
    each token that stands for one. Raises EngineError for audio at another rate: vLLM would resample it with a package
    that need not be there, and every frame anew.
    """

    def __init__(self, tokens, audio, length: int) -> None:
        super().__init__(tokens)
        self.audio, self.length = audio if isinstance(audio, list) else [audio], length
        rates = {item[1] for item in self.audio if isinstance(item, tuple)} - {SAMPLE_RATE}
        if rates:
            raise EngineError(f"audio at {rates.pop()} Hz cannot be served: resample it to {SAMPLE_RATE} Hz")

    def __copy__(self) -> AudioChunk:
        return AudioChunk(self, self.audio, self.length)

    def __radd__(self, header: list[int]) -> AudioChunk:
        return AudioChunk([*header, *self], self.audio, len(header) + self.length)


def chunk_length(chunk: list[int]) -> int:
    """Tokens that a session grows by with this chunk."""
    return chunk.length if isinstance(chunk, AudioChunk) else len(chunk)


def warm_up_chunks(profile, model_path: Path) -> list[list[int]]:
    """The chunks that an engine is warmed up with: of the kind that its sessions will send.

    Raises FrontEndError where the front end does not fit the model: it would refuse each session.
    """
    from workbench.frontends import hears_by_model, make_frontend

    if not hears_by_model(profile.front_end):
        return [[1] * profile.block_size] * WARM_UP_FRAMES
    vocab_size = decoder_config(read_config(model_path)).get("vocab_size")
    if vocab_size is None:
        raise EngineError(
            f"{model_path / 'config.json'} does not say its decoder's vocab_size: use the model's own folder"
        )
    samples = frame_samples(profile.frame_budget_s)
    silence = Clip("silence", np.zeros(samples, np.float32))
    front_end = make_frontend(
        profile.front_end,
        vocab_size=vocab_size,
        clip=silence,
        frame_budget_s=profile.frame_budget_s,
        model_path=model_path,
    )
    chunks = []
    for frame in range(WARM_UP_FRAMES):
        heard = front_end.encode(silence.samples, frame)
        chunks.append(front_end.chunk(frame, profile.tokens_owed)[0] if getattr(front_end, "talks", False) else heard)
    return chunks
