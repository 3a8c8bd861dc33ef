"""CUDA graphs: an engine that replays them says what one without them says, bounded sessions included.

Each frame is owed one token, which never enters the context, so both engines see the same tokens to the end whatever
they sample. Between two chunks of text come chunks of a single token: the step that is replayed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

from workbench._loop import run_to_end
from workbench.gpu_check import judge
from workbench.gpu_check.exactness import MOVING, UNBOUNDED, bounds
from workbench.gpu_check.served import Frame, Setting, running, serve, words
from workbench.gpu_check.table import Row, judged

# Tokens of one chunk after the other, over and over.
CHUNKS, ROUNDS = (47, 1, 1, 1), 14
CAPTURED = "Graph capturing finished"


def run(setting: Setting, say: Callable[[str], None]) -> list[Row]:
    """Rows: whether graphs were captured, then one per session. Raises CheckFailed, EngineError."""
    graphs, mode, captured = run_to_end(_serve(setting, say, eager=False))
    eager, _, none = run_to_end(_serve(setting, say, eager=True))
    rows = [
        judged(
            "captured",
            captured and not none,
            f"cudagraph_mode {mode}, {_some(captured)} captured; with enforce_eager {_some(none)}",
            cudagraph_mode=mode,
        )
    ]
    dtype, off = setting.profile.dtype, {name: _off(graphs[name], eager[name]) for name in graphs}
    for name, each in off.items():
        allowed = judge.CONTROL[dtype] if name == UNBOUNDED else judge.allowance(dtype, off[UNBOUNDED])
        same = sum(a.tokens_out == b.tokens_out for a, b in zip(graphs[name], eager[name], strict=True))
        detail = f"{same} of {len(each)} tokens the same, largest difference {max(each):.2g}, at most {allowed:.2g}"
        rows.append(judged(name, max(each) <= allowed, detail, same=same, tokens=len(each), largest=max(each)))
    return rows


async def _serve(setting: Setting, say, eager: bool):
    """The frames by session, the engine's graph mode, and whether it says that it captured any."""
    say("without graphs" if eager else "with graphs")
    async with running(setting, say, enforce_eager=eager) as engine:
        text = iter(words(engine.model_path, engine.facts.vocab_size, ROUNDS * sum(CHUNKS), setting.profile.seed))
        chunks = [[next(text) for _ in range(count)] for _ in range(ROUNDS) for count in CHUNKS]
        sessions = {
            name: [Frame(chunk, bound, 1) for chunk in chunks]
            for name, bound in bounds(setting).items()
            if name != MOVING or engine.facts.sinks_stay is None
        }
        await serve(engine, sessions)
        return sessions, engine.graph_mode, CAPTURED in engine.said


def _some(captured: bool) -> str:
    return "graphs" if captured else "none"


def _off(graphs: list[Frame], eager: list[Frame]) -> list[float]:
    """By token the difference of log-probabilities; of two tokens that tie each engine may take another one."""
    return [abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(graphs, eager, strict=True)]
