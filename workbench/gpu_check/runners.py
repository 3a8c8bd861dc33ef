"""Which of vLLM's model runners serve: V1 does, V2 has to be refused, for the position hook does nothing in it."""

from __future__ import annotations

import os
from collections.abc import Callable

from workbench._loop import run_to_end
from workbench.engine.base import EngineError
from workbench.gpu_check.served import Frame, Setting, WatchedEngine, running, serve
from workbench.gpu_check.table import CheckFailed, Row, judged

FRAMES, FRAME_TOKENS, OWED = 12, 50, 4
REFUSAL = "the V2 model runner is on"


class V2Engine(WatchedEngine):
    """Asks vLLM for the runner that the plugin refuses."""

    def _construct(self, *args):
        # Taken back with the rest of the environment that engines are made in.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        return super()._construct(*args)


def run(setting: Setting, say: Callable[[str], None], v2: type = V2Engine) -> list[Row]:
    """A row per runner. Raises CheckFailed, EngineError."""
    return [run_to_end(_v1(setting, say)), run_to_end(_v2(setting, say, v2))]


async def _v1(setting: Setting, say) -> Row:
    async with running(setting, say, enforce_eager=True) as engine:
        bound, block = setting.profile.bound, setting.profile.block_size
        frames = [Frame(list(range(1, 1 + FRAME_TOKENS)), bound, OWED) for _ in range(FRAMES)]
        await serve(engine, {"bounded": frames})
        grown = FRAMES * (FRAME_TOKENS + OWED - 1)
        if bound.resident_max(block, FRAME_TOKENS, OWED) >= grown:
            raise CheckFailed(f"{grown} tokens are too few for a bound of {bound.words} to evict any")
        return judged("V1", True, f"{engine.facts.runner} served {grown} tokens of a session bounded to {bound.words}")


async def _v2(setting: Setting, say, v2: type) -> Row:
    say("asking for the V2 runner")
    try:
        async with running(setting, say, engine=v2) as engine:
            return judged("V2", False, f"it was not refused: {engine.facts.runner} serves")
    except EngineError as error:
        return judged("V2", REFUSAL in str(error), f"refused: {error}" if REFUSAL in str(error) else str(error))
