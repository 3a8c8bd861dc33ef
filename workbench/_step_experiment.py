"""The experiment behind `workbench calibrate`: batches of sessions whose steps tell the costs apart.

Batches are opened, aged, served a frame of each length and closed. Sizes, chunk lengths and ages are varied against
each other, so that a step's prefill tokens, decoding sequences, context tokens and prefill pairs do not rise and fall
together.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from workbench._machine import WINDOW_S, LoadWatch
from workbench.bound import growth_per_frame
from workbench.costs import CostError
from workbench.engine.rounds import Rounds
from workbench.engine.vllm import VllmEngine
from workbench.profiles import Profile

# Chunk lengths in frames: the profile's own, with a shorter and a longer one to tell tokens from steps.
CHUNKS = (0.5, 1.0, 2.0)
SIZES = 6
# Of a batch, in times the sessions of the profile.
LARGEST_BATCH = 3
# The experiment ends when so many undisturbed steps are there, not before the first time and never after the second.
ENOUGH_STEPS = 300
LEAST_S, MOST_S = 15.0, 180.0
LONE_FRAMES = 20
# Its multiples, modulo 1, fill the unit interval evenly, however many there are.
_GOLDEN = 0.6180339887498949

Say = Callable[[str, float | None], None]
# (began, ended, prefill tokens, decoding, context tokens, prefill pairs), as the engine records it.
Recorded = tuple[float, float, int, int, int, int]


@dataclass(frozen=True)
class ServedFrame:
    """A frame of batch number ``batch``: how many sessions, the tokens each got and was old before, and its steps."""

    batch: int
    sessions: int
    chunk: int
    age: int
    steps: list[Recorded]


def chunk_lengths(profile: Profile) -> list[int]:
    """Tokens of the chunks that are served. At least 2: a chunk of one token would count as decoding."""
    return sorted({max(2, round(part * profile.frame_tokens)) for part in CHUNKS})


def _owed(profile: Profile) -> int:
    # The first token comes with the prefill: a second one makes a step that only decodes.
    return max(2, profile.tokens_owed)


def _room(profile: Profile, sessions: int) -> int:
    """Tokens of age that each of ``sessions`` can have before its frames; below 0 when there is no room for these."""
    frames = sum(growth_per_frame(chunk, _owed(profile)) for chunk in chunk_lengths(profile))
    held = min(profile.pool_blocks // sessions * profile.block_size, profile.max_model_len, profile.max_positions)
    # The last sampled token of a frame has a place until the next one.
    return held - frames - 1


def batch_sizes(profile: Profile) -> list[int]:
    """Sessions of the batches: spread evenly by ratio from 1 to three times the profile's, where the pool holds them.

    Raises CostError when the pool holds no two sizes.
    """
    most = min(LARGEST_BATCH * profile.sessions, profile.max_sessions)
    wanted = sorted({round(most ** (k / (SIZES - 1))) for k in range(SIZES)})
    sizes = [sessions for sessions in wanted if _room(profile, sessions) >= 0]
    if len(sizes) < 2:
        raise CostError(f"profile {profile.name} has no room for the experiment's sessions: raise pool_blocks")
    return sizes


def batches(profile: Profile) -> Iterator[tuple[int, int]]:
    """(sessions, age in tokens) of one batch after the other, for ever: each round every size, at another age."""
    draw, count = random.Random(profile.seed), 0
    while True:
        for sessions in draw.sample(sizes := batch_sizes(profile), len(sizes)):
            count += 1
            yield sessions, int(count * _GOLDEN % 1 * _room(profile, sessions))


async def serve_batches(served: Served, counts: Callable[[Recorded], bool], say: Say) -> list[ServedFrame]:
    """Serve batches until ENOUGH_STEPS steps are there for which ``counts`` holds, or MOST_S seconds have passed."""
    profile, began, frames, quiet = served.engine.profile, time.monotonic(), [], 0
    draw = random.Random(profile.seed)
    for number, (sessions, age) in enumerate(batches(profile)):
        seconds = time.monotonic() - began
        enough = quiet >= ENOUGH_STEPS and seconds >= LEAST_S and number >= SIZES
        if enough or seconds >= MOST_S:
            return frames
        done = max(min(quiet / ENOUGH_STEPS, seconds / LEAST_S, 1.0), seconds / MOST_S)
        say(f"measuring steps, {quiet} of {ENOUGH_STEPS}", 0.1 + 0.8 * done)
        new = await served.batch(number, sessions, age, draw)
        quiet += sum(counts(step) for frame in new for step in frame.steps)
        frames += new


class Served:
    """Frames served back to back on an engine that records its steps, all sessions of a batch together."""

    def __init__(self, engine: VllmEngine, watch: LoadWatch) -> None:
        self.engine, self.watch = engine, watch
        self._rounds = Rounds(engine)

    async def batch(self, number: int, sessions: int, age: int, draw: random.Random) -> list[ServedFrame]:
        """Open a batch, bring it to ``age``, serve it one frame of each length, and close it."""
        profile, lengths = self.engine.profile, chunk_lengths(self.engine.profile)
        names, frames, old = [f"batch{number}-{i}" for i in range(sessions)], [], 0
        replied = [(chunk, _owed(profile)) for chunk in draw.sample(lengths, len(lengths))]
        while replied:
            # Aged without a reply: its one token comes with the prefill and is dropped again.
            fitting = [chunk for chunk in lengths if old + chunk <= age]
            chunk, owed = (draw.choice(fitting), 1) if fitting else replied.pop()
            _, steps = await self.frame(names, chunk, owed)
            frames.append(ServedFrame(number, sessions, chunk, old, steps))
            old += growth_per_frame(chunk, owed)
        await self.close(names)
        return frames

    async def frame(self, names: list[str], tokens: int, owed: int) -> tuple[float, list[Recorded]]:
        """Serve one frame of ``tokens`` tokens to each session: seconds until the last had what it is owed, steps."""
        seconds = await self._rounds.frame(names, tokens, owed)
        self.watch.mark(WINDOW_S)
        return seconds, await self.engine.steps()

    async def close(self, names: list[str]) -> None:
        """Close sessions, wait until the scheduler has forgotten them, and end the watch's window."""
        for name in names:
            self.engine.close(name)
        while (await self.engine.snapshot()).sessions:
            await asyncio.sleep(0)
        await asyncio.sleep(WINDOW_S)
        self.watch.mark()


async def delivery_s(served: Served, counts: Callable[[Recorded], bool]) -> float:
    """Seconds of a lone session's frame beside its engine steps, the median over frames: the way there and back.

    Of the frames whose steps all count, where there are any.
    """
    profile, beside = served.engine.profile, []
    frames = min(LONE_FRAMES, profile.max_model_len // growth_per_frame(profile.frame_tokens, profile.tokens_owed))
    for _ in range(frames):
        seconds, steps = await served.frame(["lone"], profile.frame_tokens, profile.tokens_owed)
        beside.append((seconds - (steps[-1][1] - steps[0][0]), steps))
    await served.close(["lone"])
    undisturbed = [seconds for seconds, steps in beside if all(counts(step) for step in steps)]
    return median(undisturbed or [seconds for seconds, _ in beside])
