"""How fast the simulator is: a whole run, tables and all, beside the bare EngineCore loop on the same schedule."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

from workbench.engine.sim_core import make_core
from workbench.engine.simulated import SimulatedEngine
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.simulation import MAX_SESSIONS

SESSIONS, BUDGET_S, TOKENS_IN, OWED = 256, 2.0, 26, 2
TURNS = 5
# Frames of each session in one turn: as many as take about a second each way.
SCHEDULES = {"all together": (1, 30), "in 32 phases": (32, 30), "fully staggered": (SESSIONS, 12)}


@dataclass(frozen=True)
class Instant:
    """Costs of a step that is over before the next one falls due, on any of the schedules."""

    front_end_s: float = 0.0
    source: str = "a constant, for the bench"

    def step_s(
        self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float, prefill_pairs: int
    ) -> float:
        return 1e-4


def simulator_rows(say: Callable[[str, float | None], None], seed: int = 0) -> list[dict]:
    """A row for each schedule: session-frames per second of this machine's time, simulator / bare loop."""
    rows = []
    for i, (name, (groups, frames)) in enumerate(SCHEDULES.items()):
        profile = _profile(groups, frames, seed)
        rates: dict[str, list[float]] = {"simulator": [], "bare": []}
        for turn in range(TURNS):
            say(f"simulator against the bare loop, {name}", (i + turn / TURNS) / len(SCHEDULES))
            # In turns, each first as often as the other: the machine's speed drifts.
            for what in ("simulator", "bare") if turn % 2 else ("bare", "simulator"):
                seconds = _simulated_s(profile, frames) if what == "simulator" else _bare_s(profile, frames)
                rates[what].append(SESSIONS * frames / seconds)
        rows.append(_row(name, groups, frames, rates, seed))
    return rows


def _profile(groups: int, frames: int, seed: int) -> Profile:
    return Profile(
        name="sim:bench",
        model="bench",
        executor="simulated",
        sessions=SESSIONS,
        window=512,
        block_size=16,
        pool_blocks=SESSIONS * (frames * (TOKENS_IN + OWED) // 16 + 2),
        max_model_len=4096,
        max_positions=1 << 16,
        frame_budget_s=BUDGET_S,
        tokens_owed=OWED,
        front_end=f"load:{TOKENS_IN}",
        phase_groups=groups,
        # As simulated profiles have it. With no more seats than sessions the stock scan would stop before the parked.
        max_sessions=MAX_SESSIONS,
        max_batched_tokens=8192,
        seed=seed,
    )


def _simulated_s(profile: Profile, frames: int) -> float:
    with SessionManager(profile, engine=SimulatedEngine(profile, costs=Instant())) as manager:
        for _ in range(profile.sessions):
            manager.add(None)
        began = time.perf_counter()
        # To the end of the last group's last frame.
        manager.wait_for(seconds=(frames + 1) * BUDGET_S - 1e-3)
        seconds = time.perf_counter() - began
        served = sum(row.status == "on_time" for row in manager.tables.frame_rows)
    if served != profile.sessions * frames:
        raise RuntimeError(f"bench: {served} frames were served, not {profile.sessions * frames}")
    return seconds


def _bare_s(profile: Profile, frames: int) -> float:
    """The stock scheduler in vLLM's EngineCore, fed chunk by chunk and stepped: nothing is kept of what it says."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    core, executor = make_core(profile, "vllm.v1.core.sched.scheduler.Scheduler")
    executor.prepare(
        core.scheduler.requests, Instant(), lambda output, requests: (0, 0, 0, 0), 0.0, 0.0, 0.0, profile.seed
    )
    params = SamplingParams(temperature=0.0, max_tokens=OWED, ignore_eos=True, detokenize=False)
    groups = profile.phase_groups
    answered = 0
    began = time.perf_counter()
    for _ in range(frames):
        for group in range(groups):
            for session in range(group, profile.sessions, groups):
                chunk = [2 + session % 100] * TOKENS_IN
                core.add_request(Request(f"s{session}", chunk, params, None, arrival_time=0.0, resumable=True))
            while core.scheduler.has_unfinished_requests():
                outputs, executed = core.step()
                core.post_step(executed)
                answered += sum(o.finish_reason is not None for batch in outputs.values() for o in batch.outputs)
    seconds = time.perf_counter() - began
    core.scheduler.shutdown()
    if answered != profile.sessions * frames:
        raise RuntimeError(f"bench: {answered} frames were answered, not {profile.sessions * frames}")
    return seconds


def _row(name: str, groups: int, frames: int, rates: dict[str, list[float]], seed: int) -> dict:
    ratios = [a / b for a, b in zip(rates["simulator"], rates["bare"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "name": f"simulator / bare EngineCore loop, session-frames per second, {name}",
        "value": median(ratios),
        "low": low,
        "high": high,
        "unit": "ratio",
        "rates": {what: median(values) for what, values in rates.items()},
        "turns": TURNS,
        "executor": "simulated",
        "params": {
            "sessions": SESSIONS,
            "frames": frames,
            "phase_groups": groups,
            "tokens_in": TOKENS_IN,
            "tokens_owed": OWED,
            "max_sessions": MAX_SESSIONS,
            "seed": seed,
        },
    }
