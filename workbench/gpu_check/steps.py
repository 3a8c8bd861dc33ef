"""A decode step of bounded sessions beside one of vLLM's own scheduler and worker, with the same tokens resident."""

from __future__ import annotations

from collections.abc import Callable

from workbench._loop import run_to_end
from workbench.bench import StockEngine, step_time
from workbench.engine.rounds import Rounds
from workbench.gpu_check.served import Setting, running
from workbench.gpu_check.table import Row, judged

LIMIT = 1.25
# Of a frame of one token in and a block's worth out every step is a decode, and every frame of an old session evicts.
CHANGES = {"frame_budget_s": 0.04, "tokens_owed": 32}


def run(setting: Setting, say: Callable[[str], None], stock: type = StockEngine) -> list[Row]:
    """A row per ratio; ``stock``: the engine beside which the setting's stands. Raises EngineError."""
    return run_to_end(_run(setting.with_(**CHANGES), say, stock))


async def _run(setting: Setting, say, stock: type) -> list[Row]:
    profile = setting.profile
    plain = {"logprobs": False}
    async with running(setting, say, stock, **plain) as theirs, running(setting, say, **plain) as ours:
        say("measuring by turns")
        ratios = await step_time(profile, Rounds(theirs), Rounds(ours), lambda message, part: None)
    rows = []
    for ratio, what in zip(ratios, ("bounded", "unbounded"), strict=True):
        step = {who: 1000 * seconds / profile.tokens_owed for who, seconds in ratio["seconds"].items()}
        detail = (
            f"{ratio['value']:.2f} of stock, quartiles {ratio['low']:.2f} to {ratio['high']:.2f}, at most {LIMIT}; "
            f"{step[what]:.2f} and {step['stock']:.2f} ms, {profile.sessions} sessions a step"
        )
        figures = {key: ratio[key] for key in ("value", "low", "high", "turns")}
        rows.append(judged(what, ratio["value"] <= LIMIT, detail, **figures, step_ms=step))
    return rows
