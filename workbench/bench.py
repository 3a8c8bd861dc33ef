"""The performance ratios, each of two things measured in turns within one run.

Two engines stand side by side on the same model and pool: one with vLLM's own scheduler, one with the plugin's. A
measurement is the wall time in which all sessions of a round get the tokens they are owed. Rounds are taken in the
order A B B A, so that a machine that warms up or slows down does so for both.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from statistics import median, quantiles

from workbench._machine import cpu_model
from workbench.bench_panel import REDRAW_S, panel_rows
from workbench.bench_panel_kernel import PanelBenchError
from workbench.bench_simulated import simulator_rows
from workbench.bound import KVBound, blocks_for
from workbench.engine import Facts
from workbench.engine.host import find_plugin
from workbench.engine.rounds import Rounds
from workbench.engine.vllm import VllmEngine
from workbench.profiles import Profile, load_profile

BLOCKS = 8  # of frames, per engine
FRAMES_PER_BLOCK = 4


class StockEngine(VllmEngine):
    """vLLM with its own scheduler and no plugin channel, for comparison only."""

    def __init__(self, profile: Profile, **options) -> None:
        super().__init__(profile, scheduler="vllm.v1.core.sched.scheduler.Scheduler", **options)

    async def _shake_hands(self) -> Facts:
        config = self._llm.vllm_config
        return Facts(
            executor="vllm-cpu" if config.device_config.device_type == "cpu" else "vllm-cuda",
            vllm=find_plugin().installed_vllm(),
            block_size=config.cache_config.block_size,
            blocks_total=self.profile.pool_blocks,
            max_model_len=config.model_config.max_model_len,
            max_positions=None,
            vocab_size=config.model_config.get_vocab_size(),
        )

    async def _warm_up(self, chunks) -> None:
        await Rounds(self).frame(["warm-up"], self.profile.frame_tokens, self.profile.tokens_owed)
        self.close("warm-up")


def run_bench(
    progress: Callable[[str, float | None], None] | None = None,
    profile: Profile | None = None,
    redraw_s: float = REDRAW_S,
) -> dict:
    """Measure every row. Returns {"machine": {...}, "rows": [{name, value, low, high, unit, executor, ...}], ...}.

    ``low`` and ``high`` are the quartiles of the ratio over the turns. ``redraw_s``: how long the panel's redraws are
    counted. ``left_out``: a line for each part that cannot be measured here. Takes some eight minutes on two cores.
    """
    say, profile = progress or (lambda message, fraction: None), profile or load_profile("smollm2")
    figures = asyncio.run(_bench(profile, lambda message, part: say(message, None if part is None else 0.5 * part)))
    try:
        rows = panel_rows(lambda message, part: say(message, 0.5 + 0.5 * part), profile, redraw_s)
        figures["rows"] += [{"vllm": figures["rows"][0]["vllm"], **row} for row in rows]
    except PanelBenchError as error:
        figures["left_out"].append(f"panel: {error}")
    return figures


async def _bench(profile: Profile, say) -> dict:
    stock, plugin = StockEngine(profile), VllmEngine(profile)
    try:
        for part, (name, engine) in enumerate((("stock", stock), ("plugin", plugin))):
            await engine.start(lambda message, n=name, p=part: say(f"{n} engine: {message}", 0.15 * p))
        rows = await step_time(profile, Rounds(stock), Rounds(plugin), say)
        rows += await _age(profile, Rounds(plugin), say)
        facts = plugin.facts
    finally:
        await plugin.stop()
        await stock.stop()
    shared = {
        "executor": facts.executor,
        "vllm": facts.vllm,
        "profile": profile.name,
        "params": {
            "sessions": profile.sessions,
            "tokens_in": profile.frame_tokens,
            "tokens_owed": profile.tokens_owed,
            "window": profile.window,
            "sinks": profile.sinks,
            "dtype": profile.dtype,
        },
    }
    rows = [{**shared, **row, "params": {**shared["params"], **row["params"]}} for row in rows]
    simulated = simulator_rows(lambda message, part: say(message, 0.9 + 0.1 * part), profile.seed)
    rows += [{"vllm": facts.vllm, **row} for row in simulated]
    return {"machine": _machine(facts), "rows": rows, "left_out": []}


async def step_time(profile: Profile, stock: Rounds, plugin: Rounds, say) -> list[dict]:
    """Ratios of frame times, bounded and unbounded, to the stock engine's, measured by turns at equal resident KV."""
    bound, names = profile.bound, [f"b{i}" for i in range(profile.sessions)]
    resident = bound.sink_tokens(profile.block_size) + bound.window + profile.block_size // 2
    # Old bounded sessions: far past their window, so that every frame evicts.
    for _ in range(blocks_for(3 * resident, profile.growth)):
        await plugin.frame(names, profile.frame_tokens, profile.tokens_owed, bound)
    times: dict[str, list[float]] = {"stock": [], "unbounded": [], "bounded": []}
    turns = ("stock", "unbounded", "bounded", "bounded", "unbounded", "stock")
    for turn in range(BLOCKS):
        say(f"step time, turn {turn + 1} of {BLOCKS}", 0.3 + 0.35 * turn / BLOCKS)
        for what in turns[:3] if turn % 2 == 0 else turns[3:]:
            if what == "bounded":
                times[what].append(await _block(plugin, names, profile, bound))
            else:
                rounds = stock if what == "stock" else plugin
                fresh = [f"{what}{turn}-{i}" for i in range(profile.sessions)]
                # Grown in one piece to where the measured frames lie around the resident set of the bounded ones.
                await rounds.frame(fresh, resident - FRAMES_PER_BLOCK * profile.growth // 2, profile.tokens_owed)
                times[what].append(await _block(rounds, fresh, profile, None))
                for name in fresh:
                    rounds.engine.close(name)
    for name in names:
        plugin.engine.close(name)
    seconds = {what: median(values) for what, values in times.items()}
    return [
        _ratio("frame time, bounded / stock at equal resident KV", times["bounded"], times["stock"], seconds),
        _ratio("frame time, plugin unbounded / stock", times["unbounded"], times["stock"], seconds),
    ]


async def _block(rounds: Rounds, names: list[str], profile: Profile, bound: KVBound | None) -> float:
    tokens, owed = profile.frame_tokens, profile.tokens_owed
    return median([await rounds.frame(names, tokens, owed, bound) for _ in range(FRAMES_PER_BLOCK)])


async def _age(profile: Profile, plugin: Rounds, say) -> list[dict]:
    """Frame time of old sessions over that of sessions of age 2 W, bounded, and beside them unbounded ones."""
    rows = []
    for what, bound in (("bounded", profile.bound), ("unbounded", None)):
        names = [f"{what}-age{i}" for i in range(2)]
        frames = blocks_for(8 * profile.window, profile.growth)
        times = []
        for k in range(frames):
            say(f"latency against age, {what}", 0.65 + 0.125 * (len(rows) + k / frames))
            times.append(await plugin.frame(names, profile.frame_tokens, profile.tokens_owed, bound))
        for name in names:
            plugin.engine.close(name)
        start, third = blocks_for(2 * profile.window, profile.growth), frames // 3
        early, late = times[start : start + third], times[-third:]
        pairs = min(len(early), len(late))
        row = _ratio(
            f"latency_age_ratio, {what}",
            late[:pairs],
            early[:pairs],
            {"early": median(early), "late": median(late)},
            {"sessions": len(names), "frames": frames},
        )
        row["value"] = median(late) / median(early)
        rows.append(row)
    return rows


def _ratio(
    name: str, above: list[float], below: list[float], seconds: dict[str, float], params: dict | None = None
) -> dict:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "name": name,
        "value": median(ratios),
        "low": low,
        "high": high,
        "unit": "ratio",
        "seconds": seconds,
        "turns": len(ratios),
        "params": params or {},
    }


def _machine(facts: Facts) -> dict:
    import psutil

    return {
        "cpu": cpu_model(),
        "cores": facts.threads,
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
    }
