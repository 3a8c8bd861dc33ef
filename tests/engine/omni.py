"""Sessions of an omni model in a test: their chunks by the product's own front end, served round by round."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from tests.engine.driver import ANSWER_TIMEOUT_S, Driver, Frame
from workbench.audio import AudioStream, sample_clip
from workbench.engine.media import AudioChunk
from workbench.frontends import make_frontend
from workbench.profiles import load_profile

RECORDING = "tests.engine.omni_worker.RecordingWorker"
CLIP = "numbers"


class Omni:
    """A started engine of a tiny model. ``seconds``: of audio a frame; ``at_once``: items that a prompt may have."""

    def __init__(self, name: str, seconds: float, at_once: int = 8, **profile) -> None:
        self.profile = load_profile(name, frame_budget_s=seconds, **profile)
        args = {"limit_mm_per_prompt": {"audio": at_once, "image": 0, "video": 0}}
        self.driver = Driver(self.profile, worker_extension=RECORDING, engine_args=args)
        self.engine, self.folder = self.driver.engine, self.driver.engine.model_path
        self.sent: dict[str, list[AudioChunk]] = {}
        self._voices: dict[str, tuple] = {}

    def rpc(self, name: str):
        """What the one worker answers."""
        return self.driver.do(self.engine._llm.collective_rpc(name))[0]

    def chunk(self, session: str, start_s: float = 0.0) -> AudioChunk:
        """The session's next chunk; its audio begins ``start_s`` into the clip."""
        if session not in self._voices:
            clip, budget = sample_clip(CLIP), self.profile.frame_budget_s
            front_end = make_frontend(
                self.profile.front_end,
                vocab_size=self.engine.facts.vocab_size,
                clip=clip,
                frame_budget_s=budget,
                model_path=self.folder,
            )
            self._voices[session] = front_end, AudioStream(clip, budget, loop=True, start_s=start_s)
        front_end, stream = self._voices[session]
        sent = self.sent.setdefault(session, [])
        sent.append(front_end.encode(stream.chunk(len(sent)), len(sent)))
        return sent[-1]

    def round(self, bounds: dict, owed: int = 3, starts: dict[str, float] | None = None) -> dict[str, Frame]:
        """One frame of each session under its bound; its tokens are counted as the model counts its audio."""
        chunks = {name: (self.chunk(name, (starts or {}).get(name, 0.0)), bound) for name, bound in bounds.items()}
        frames = self.driver.round(chunks, owed)
        for name, frame in frames.items():
            frame.tokens_in = [0] * chunks[name][0].length
        return frames

    def outgrow(self, sessions, owed: int) -> None:
        """One more frame of each, with a reply so long that the last has to wait until the first was closed."""
        *others, last = sessions
        first = others[0]

        async def serve() -> None:
            for name in sessions:
                self.driver._submit(name, self.chunk(name), None, owed)
            done = self.driver._done
            await asyncio.wait_for(asyncio.gather(*(done[name].wait() for name in others)), ANSWER_TIMEOUT_S)
            assert not done[last].is_set()
            self.engine.close(first)
            await asyncio.wait_for(done[last].wait(), ANSWER_TIMEOUT_S)

        self.driver.do(serve())
        for name in sessions:
            self.frames(name)[-1].tokens_in = [0] * self.sent[name][-1].length

    def frames(self, session: str) -> list[Frame]:
        return self.driver.frames[session]

    def one_shot(self, session: str) -> AudioChunk:
        """All that ``session`` kept, up to the last token that went in, as one chunk."""
        tokens, audio = [], []
        for sent, frame in zip(self.sent[session], self.frames(session), strict=True):
            last = frame is self.frames(session)[-1]
            tokens += [*sent, *([] if last else frame.tokens_out[:-1])]
            audio += sent.audio
        length = sum(sent.length for sent in self.sent[session]) + sum(
            len(frame.tokens_out) - 1 for frame in self.frames(session)[:-1]
        )
        return AudioChunk(tokens, audio, length)

    def embeddings(self) -> dict[str, np.ndarray]:
        """Session -> the embeddings of its tokens, in the order in which they were computed, since the last call."""
        found = self.rpc("metronome_embeddings")
        named = {name: key for key in found for name in self.driver.frames if key.rpartition("-")[0] == name}
        return {name: np.asarray(found[key], np.float32) for name, key in named.items()}

    def close(self, *sessions: str) -> None:
        self.driver.close(*sessions)
        for name in sessions:
            self.sent.pop(name, None)
            self._voices.pop(name, None)

    def stop(self) -> None:
        self.driver.stop()


def without_bound(frames: list[Frame]) -> list[Frame]:
    """The same frames, as if no bound had been asked for."""
    return [replace(frame, bound=None) for frame in frames]
