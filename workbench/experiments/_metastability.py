"""One run of the metastability experiment: where its variance comes from, what Eq. 1 says, and what it came to."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.bound import blocks_for
from workbench.experiments import ExperimentError
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.telemetry import ON_TIME, OPEN, RETURNED, FrameRow
from workbench.workload import caller, play

NONE, JITTER, EOS, NOISE, CHURN, REPLIES, ALL = SOURCES = (
    "none",
    "start_jitter",
    "eos",
    "step_noise",
    "churn",
    "replies",
    "all",
)
# N and the growth of a run are given in these, though a run may have a growth of its own.
FIXED_N = (NONE, JITTER, EOS, NOISE, REPLIES)
# Each session and each step for itself: what they differ by averages out over a run.
WITHIN = (JITTER, EOS, NOISE)
UNBOUNDED, BOUNDED = "unbounded", "bounded"
WATCHED_AFTER = 3.0  # frame budgets after the last duration: a wall is known two of them after its start
GIVE_UP_FACTOR = 1.6  # of the time in which a bounded run should have ingested what it has to


@dataclass(frozen=True)
class Strengths:
    """How strong each source is. start_jitter: the part of B within which a session starts off the beat. eos_chance:
    that an owed token ends the reply. step_noise: sigma of the log-normal factor on a step. holding: mean stay of a
    session under churn, as a multiple of Eq. 1's t_full. silence: ``replies`` draws a run's eos_chance from 0 to this.
    """

    start_jitter: float
    eos_chance: float
    step_noise: float
    holding: float
    silence: float


def vary(profile: Profile, source: str, strengths: Strengths) -> Profile:
    """``profile`` with one source of variance on, or all of them; its seed decides what is drawn.

    ``churn``: N sessions at the start, Poisson arrivals at N / holding time and exponential stays, so that N are open
    on average. ``replies``: one eos_chance for all sessions of the run. With ``all`` it takes the place of ``eos``.
    """
    changes: dict[str, float] = {}
    if source in (JITTER, ALL):
        changes["start_jitter"] = strengths.start_jitter
    if source in (NOISE, ALL):
        changes["step_noise"] = strengths.step_noise
    if source == EOS:
        changes["eos_chance"] = strengths.eos_chance
    if source in (REPLIES, ALL):
        changes["eos_chance"] = float(np.random.default_rng([profile.seed, 21]).uniform(0, strengths.silence))
    if source in (CHURN, ALL):
        changes["holding_s"] = strengths.holding * eq1_s(profile)
        changes["arrivals_per_s"] = profile.sessions / changes["holding_s"]
    return profile.with_(**changes)


# -- what Eq. 1 says ---------------------------------------------------------------------------------------------------


def eq1_s(profile: Profile, growth: float | None = None) -> float:
    """Eq. 1 of the paper (arXiv 2607.02640) with rho0 = 0: seconds until N sessions fill the pool.

    ``growth``: tokens by which a session grows each frame, by default the profile's.
    """
    growth = profile.growth if growth is None else growth
    return profile.pool_tokens / (profile.sessions * growth) * profile.frame_budget_s


def stair_s(profile: Profile) -> float:
    """When the pool is full to the frame: the tick of the first session that finds too few whole blocks.

    For sessions that all open at 0 and grow alike.
    """
    budget, groups, sessions = profile.frame_budget_s, profile.phase_groups, profile.sessions

    def needed(frames: int) -> int:
        return blocks_for(frames * profile.growth, profile.block_size)

    full = profile.pool_tokens // (sessions * profile.growth)
    while sessions * needed(full) > profile.pool_blocks:
        full -= 1
    while sessions * needed(full + 1) <= profile.pool_blocks:
        full += 1
    served = (profile.pool_blocks - sessions * needed(full)) // (needed(full + 1) - needed(full))
    ticks = sorted(session % groups for session in range(sessions))
    return (full + 1) * budget + ticks[served] * budget / groups


def growth_with_eos(profile: Profile, chance: float) -> float:
    """Mean growth per frame if each owed token ends the reply with probability ``chance``: of a geometric number of
    tokens, cut at what is owed, the mean is (1 - (1 - chance)^owed) / chance."""
    if chance == 0:
        return float(profile.growth)
    return profile.frame_tokens - 1 + (1 - (1 - chance) ** profile.tokens_owed) / chance


def churn_s(profile: Profile) -> float:
    """When the mean of what is resident fills the pool, if sessions come and go: H ln(1 / (1 - T / H)), else infinity.

    T is Eq. 1's time and H the mean stay. At t the N open sessions are min(t, their stay) old, of which the mean is
    H (1 - exp(-t / H)): it never exceeds H, so no pool that Eq. 1 fills later than H is filled on average.
    """
    full, stay = eq1_s(profile), profile.holding_s
    return math.inf if full >= stay else -stay * math.log(1 - full / stay)


def expected_s(profile: Profile, source: str, strengths: Strengths) -> float | None:
    """When a pool should be full under a source, on average; None where the source says nothing that is a sum."""
    if source == EOS:
        return eq1_s(profile, growth_with_eos(profile, strengths.eos_chance))
    if source == CHURN:
        at_s = churn_s(vary(profile, CHURN, strengths))
        return None if at_s == math.inf else at_s
    return eq1_s(profile) if source in FIXED_N and source != REPLIES else None


# -- a run -------------------------------------------------------------------------------------------------------------


class _Ingested:
    """Tokens of audio that frames on time brought in, counted on as they return."""

    def __init__(self, rows: list[FrameRow]) -> None:
        self.rows, self.tokens, self._next = rows, 0, 0

    def __call__(self) -> int:
        while self._next < len(self.rows) and (row := self.rows[self._next]).status != OPEN:
            self._next += 1
            self.tokens += row.tokens_in if row.status == ON_TIME else 0
        return self.tokens


def serve(
    profile: Profile, policy: str, until_s: float, ingest: int = 0, save_to: Path | None = None
) -> SessionManager:
    """A fresh engine until the wall, or ``until_s`` and, if that takes longer, until ``ingest`` tokens came in.

    Raises ExperimentError, EngineError.
    """
    bound = profile.bound if policy == BOUNDED else None
    expected = ingest / (profile.sessions * profile.frame_tokens) * profile.frame_budget_s
    with SessionManager(profile, policy, save_to=save_to) as manager, warnings.catch_warnings():
        # Under churn there may be more sessions for a while than fit at their most: that is what is watched here.
        warnings.filterwarnings("ignore", message="the plateaus of")
        beat, ingested = manager.beat, _Ingested(manager.tables.frame_rows)

        def over() -> bool:
            return beat.wall_at_s is not None or (manager.now() >= until_s and ingested() >= ingest)

        last = max(until_s, GIVE_UP_FACTOR * expected) + profile.frame_budget_s
        play(manager, last, caller(manager, bound), stop=over)
    if beat.dead is not None:
        raise ExperimentError(f"the engine died: {beat.dead}")
    return manager


def one_run(profile: Profile, policy: str, variance: str, until_s: float, ingest: int = 0) -> dict[str, Any]:
    """What ``serve`` came to, as JSON says it: a point of workbench.runs. ``variance`` names what ``profile`` has."""
    return {"variance": variance, **account(serve(profile, policy, until_s, ingest))}


def account(manager: SessionManager) -> dict[str, Any]:
    """The row of a run. Times in seconds since it began, None for what did not happen.

    growth: tokens a session grew by from frame to frame until the pool was full. sessions_mean: open until then, over
    time. ingested_over_pool: tokens of frames on time. answered: the share of frames that got what they were owed or
    ended with EOS. peak_usage: blocks used / total.
    """
    profile, beat, tables, facts = manager.profile, manager.beat, manager.tables, manager.engine.facts
    pool = tables.pool_rows
    frames = [row for row in tables.frame_rows if row.status in RETURNED]
    end_s = beat.first_refused_at_s or pool[-1].at_s
    grown = [row for row in pool if row.at_s <= end_s and row.grown_frames]
    opened = sum(
        max(0.0, min(end_s if row.ended_at_s is None else row.ended_at_s, end_s) - row.opened_at_s)
        for row in tables.session_rows.values()
    )
    on_time = sum(row.tokens_in for row in frames if row.status == ON_TIME)
    answered = sum(row.tokens_delivered == row.tokens_owed or row.eos for row in frames)
    return {
        "policy": tables.run,
        "n": profile.sessions,
        "seed": profile.seed,
        "eos_chance": profile.eos_chance,
        "wall_at_s": beat.wall_at_s,
        "full_at_s": beat.first_refused_at_s,
        "ended_at_s": pool[-1].at_s,
        "growth": grown[-1].grown_tokens / grown[-1].grown_frames if grown else None,
        "sessions_mean": opened / end_s,
        "frames": len(frames),
        "capped": sum(row.capped for row in frames),
        "empty": sum(row.empty for row in frames),
        "missed": sum(row.missed for row in frames),
        "answered": answered / len(frames) if frames else 0.0,
        "ingested_over_pool": on_time / profile.pool_tokens,
        "peak_usage": max(row.blocks_used / row.blocks_total for row in pool),
        "preemptions": pool[-1].preemptions,
        "executor": facts.executor,
        "vllm": facts.vllm,
        "costs": facts.costs,
    }
