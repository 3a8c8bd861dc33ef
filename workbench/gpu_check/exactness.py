"""The bound on one attention backend: every sampled token as a float32 model with the same positions visible has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workbench._loop import run_to_end
from workbench.bound import KVBound
from workbench.gpu_check import judge
from workbench.gpu_check.served import Frame, Setting, running, serve, words
from workbench.gpu_check.table import ABSENT, CheckFailed, Row
from workbench.reference import Reference

FRAMES, FRAME_TOKENS, OWED = 20, 50, 4
UNBOUNDED, MOVING = "unbounded", "moving sinks"


def bounds(setting: Setting) -> dict[str, KVBound | None]:
    """The sessions, by name, and the bound of each."""
    window = setting.profile.window
    return {
        UNBOUNDED: None,
        f"S0 W{window}": KVBound(window, 0),
        f"S4 W{window}": KVBound(window, 4),
        MOVING: KVBound(window, 4, moving=True),
    }


def run(
    setting: Setting, say: Callable[[str], None], backend: str | None = None, dtype: str | None = None
) -> list[Row]:
    """A row per session. ``backend``: vLLM's name of it, None for the engine's choice; ``dtype``: None for the
    profile's.

    All sessions hear the same text in one batch, so that the unbounded one is the others' control. Raises CheckFailed,
    NotAvailable, EngineError, NoReference.
    """
    if dtype is not None:
        setting = setting.with_(dtype=dtype)
    profile = setting.profile
    served, why_not, folder = run_to_end(_serve(setting, say, backend))
    say("computing the reference on the CPU")
    reference = Reference(folder, profile.dtype)
    off = {name: _off(reference, frames, profile.block_size) for name, frames in served.items()}
    rows = [judge.control(UNBOUNDED, profile.dtype, off[UNBOUNDED])]
    for name in (name for name in served if name != UNBOUNDED):
        # What would be wrong where sinks move is that they stay.
        other, instead = (
            (KVBound(profile.window, 4), "had they stayed") if name == MOVING else (None, "without the bound")
        )
        ignored = _off(reference, [replace(frame, bound=other) for frame in served[name]], profile.block_size)
        rows.append(judge.bounded(name, profile.dtype, off[name], off[UNBOUNDED], ignored, instead))
    return rows if why_not is None else [*rows, Row(MOVING, ABSENT, why_not)]


async def _serve(setting: Setting, say, backend: str | None):
    """The frames by session, why sinks cannot move here (None where they can), and the model's folder."""
    async with running(setting, say, **({} if backend is None else {"attention_backend": backend})) as engine:
        if backend is not None and f"{backend} backend" not in engine.said:
            raise CheckFailed(f"the engine was asked for {backend} and does not say that it uses it")
        say("serving")
        text = words(engine.model_path, engine.facts.vocab_size, FRAMES * FRAME_TOKENS, setting.profile.seed)
        chunks = [text[k : k + FRAME_TOKENS] for k in range(0, len(text), FRAME_TOKENS)]
        why_not = engine.facts.sinks_stay
        sessions = {
            name: [Frame(chunk, bound, OWED) for chunk in chunks]
            for name, bound in bounds(setting).items()
            if name != MOVING or why_not is None
        }
        await serve(engine, sessions)
        return sessions, why_not, engine.model_path


def _off(reference: Reference, frames: list[Frame], block: int) -> list[float]:
    expected = reference.logprobs(frames, block)
    return [
        abs(got - right)
        for frame, row in zip(frames, expected, strict=True)
        for got, right in zip(frame.logprobs, row, strict=True)
    ]
