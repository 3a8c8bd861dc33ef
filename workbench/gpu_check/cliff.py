"""The cliff and the slope in real time, on a pool so small that it is full within seconds."""

from __future__ import annotations

from collections.abc import Callable

from workbench.experiments import cliff
from workbench.gpu_check.served import Setting
from workbench.gpu_check.table import Row, judged

# Eq. 1 fills this pool after some 23 frames: the experiment needs 20 to predict it from the first third.
CHANGES = {
    "sessions": 6,
    "window": 64,
    "sinks": 4,
    "pool_blocks": 56,
    "max_model_len": 1024,
    "frame_budget_s": 0.4,
    "phase_groups": 2,
}


def run(setting: Setting, say: Callable[[str], None]) -> list[Row]:
    """One row: every claim of the experiment held, or those that did not. Raises ExperimentError, EngineError."""
    result = cliff.run(setting.with_(**CHANGES).profile, progress=_seldom(say))
    broken = [f"{c.name}: {c.value}, where {c.bound}" for c in result.claims if not c.holds]
    metrics = result.metrics["bounded"]
    detail = (
        "; ".join(broken)
        or f"all {len(result.claims)} claims held; bounded, {metrics['ingested_over_pool']:.1f} x the pool was ingested"
    )
    return [judged("", not broken, detail, claims={c.name: c.holds for c in result.claims}, **result.metrics)]


def _seldom(say: Callable[[str], None]):
    """Say which arm runs, once each, not every half second how full the pool is."""
    said = set()

    def progress(message: str, fraction: float | None) -> None:
        arm = message.partition(":")[0]
        if arm not in said:
            said.add(arm)
            say(arm)

    return progress
