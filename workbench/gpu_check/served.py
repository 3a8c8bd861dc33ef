"""Sessions streamed through an engine, all frames of a round together, and what came of each frame."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.bound import KVBound
from workbench.engine.base import EngineDead, EngineError, Facts
from workbench.engine.host import LOG
from workbench.engine.vllm import VllmEngine
from workbench.gpu_check.table import CheckFailed, NotAvailable
from workbench.profiles import Profile

# Two engines may stand side by side, and a screen may hold some memory too.
MEMORY_SHARE = 0.4
# How vLLM and its parts say that this machine lacks a backend.
_LACKS = ("is not valid for this configuration", "No module named 'flashinfer", "Could not find nvcc")


class WatchedEngine(VllmEngine):
    """Keeps in ``said`` what vLLM logged while it started, in ``graph_mode`` which CUDA graphs it is configured for."""

    said = graph_mode = ""

    async def _shake_hands(self) -> Facts:
        facts = await super()._shake_hands()
        self.said = (self._log_dir / LOG).read_text(errors="replace")
        self.graph_mode = self._llm.vllm_config.compilation_config.cudagraph_mode.name
        return facts


@dataclass(frozen=True)
class Setting:
    """What all checks share: the profile served (its dtype is that of every check that names none), and by what."""

    profile: Profile
    engine: type[VllmEngine] = WatchedEngine

    def with_(self, **changes) -> Setting:
        """The same with some fields of the profile changed."""
        return replace(self, profile=self.profile.with_(**changes))


@dataclass
class Frame:
    """What went into a session under which bound, what came out, and how likely each of that was."""

    tokens_in: list[int]
    bound: KVBound | None
    owed: int
    tokens_out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@asynccontextmanager
async def running(
    setting: Setting,
    say: Callable[[str], None],
    engine: type[VllmEngine] | None = None,
    logprobs: bool = True,
    **engine_args,
):
    """An engine that was started, and is stopped; ``engine``: another class than the setting's.

    Raises NotAvailable for a backend that is not there, EngineError.
    """
    made = (engine or setting.engine)(
        setting.profile, logprobs=logprobs, engine_args={"gpu_memory_utilization": MEMORY_SHARE, **engine_args}
    )
    try:
        try:
            await made.start(say)
        except EngineError as error:
            if any(words in str(error) for words in _LACKS):
                raise NotAvailable(str(error)) from error
            raise
        yield made
    finally:
        await made.stop()


async def serve(engine: VllmEngine, sessions: dict[str, list[Frame]]) -> None:
    """Serve each session's frames, the k-th of all together, into their ``tokens_out`` and ``logprobs``.

    Raises CheckFailed when a frame does not get what it is owed, EngineDead.
    """
    current: dict[str, Frame] = {}
    waiting: set[str] = set()
    answered = asyncio.Event()
    trouble: list[Exception] = []

    def hear(event) -> None:
        frame = current[event.session]
        frame.tokens_out.extend(event.tokens)
        frame.logprobs.extend(event.logprobs or ())
        if event.ended is not None:
            stop(CheckFailed(f"session {event.session} ended: {event.ended}"))
        elif event.done:
            waiting.discard(event.session)
            if not waiting:
                answered.set()

    def stop(error: Exception) -> None:
        trouble.append(error)
        answered.set()

    engine.on_event, engine.on_dead = hear, lambda reason: stop(EngineDead(reason))
    for frames in zip(*sessions.values(), strict=True):
        current.update(zip(sessions, frames, strict=True))
        waiting.update(sessions)
        answered.clear()
        for name, frame in current.items():
            engine.submit(name, frame.tokens_in, frame.owed, frame.bound)
        await answered.wait()
        if trouble:
            raise trouble[0]
        for name, frame in current.items():
            finite = [value for value in frame.logprobs if math.isfinite(value)]
            if not len(frame.tokens_out) == len(finite) == frame.owed:
                raise CheckFailed(
                    f"session {name} was owed {frame.owed} tokens and got {len(frame.tokens_out)}, "
                    f"{len(finite)} of them with a finite log-probability"
                )
    for name in sessions:
        engine.close(name)


def words(folder: Path, vocab_size: int, count: int, seed: int) -> list[int]:
    """``count`` tokens of running text in the model's own words; of seeded chance where it has no tokenizer.json.

    On tokens of chance a real model is so ill-conditioned that rounding alone can exceed any tolerance.
    """
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        from workbench.quality.texts import HeldOut

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return HeldOut(lambda text: tokenizer.encode(text, add_special_tokens=False).ids).read(seed, count)
    draw = random.Random(seed)
    return [draw.randrange(vocab_size) for _ in range(count)]
