"""The cliff and the slope: the same pool, audio, N and seed, once unbounded and once bounded, a fresh engine each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from workbench.bound import KVBound, plateau
from workbench.experiments import Claim, ExperimentError, Progress, Result, check_sessions_stay, joined, params_of
from workbench.profiles import Profile
from workbench.saturation import PREDICT_BELOW_USAGE, prediction
from workbench.sessions import SessionManager
from workbench.telemetry import RETURNED
from workbench.workload import voice

PREDICTION_ERROR = 0.05
GOOD_SHARE = 0.99
INGESTED_OVER_POOL = 2.0
# The script of the early trace, in frame budgets after the start: two sessions join late (of two there are, one) and one
# leaves again, so that the forecast has to follow the sessions there are instead of extending one straight line.
JOINS_AT, LEAVES_AT = (2, 3), 4
FEWEST = 2
LAG_SLOPE_ERROR = 0.1
# What to watch from the wall on: frames, and of short ones as many seconds, or nobody would see the silence in a plot.
WALL_FRAMES, WALL_S = 6, 5.0
GIVE_UP_FACTOR = 2.5  # an unbounded arm that has not walled after this multiple of Eq. 1's time never will


@dataclass(frozen=True)
class Plan:
    """Lengths that follow from the profile: seconds until Eq. 1 fills the pool, and until 2 x the pool is ingested."""

    profile: Profile

    @property
    def fills_after_s(self) -> float:
        p = self.profile
        return p.pool_tokens / (p.sessions * p.growth) * p.frame_budget_s

    @property
    def bounded_frames(self) -> int:
        """Frames per session: twice the pool ingested with a little to spare, and three ages of 2 W to compare."""
        p = self.profile
        ingest = 1.05 * INGESTED_OVER_POOL * p.pool_tokens / (p.sessions * p.frame_tokens) + max(JOINS_AT)
        return math.ceil(max(ingest, 3 * 2 * p.window / p.growth))


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    sessions: int | None = None,
    window: int | None = None,
    sinks: int | None = None,
    seed: int | None = None,
    frames: int | None = None,
) -> Result:
    """Run both arms and compare. ``frames``: of the bounded arm, by default what a good bounded arm takes.

    ``tables_dir`` gets each arm's tables (in a folder named for it) even when the run is interrupted.
    Raises ExperimentError, BoundError, ProfileError, EngineError.
    """
    changes = {"sessions": sessions, "window": window, "sinks": sinks, "seed": seed}
    profile = profile.with_(**{key: value for key, value in changes.items() if value is not None})
    profile.check_bound(profile.bound)
    plan = Plan(profile)
    _check(profile, plan, frames)
    say = progress or (lambda message, fraction: None)
    bounded_frames = frames or plan.bounded_frames
    arms = {}
    for arm, bound in (("unbounded", None), ("bounded", profile.bound)):
        start, end = {"unbounded": (0.0, 0.45), "bounded": (0.45, 1.0)}[arm]
        arms[arm] = _run_arm(
            profile,
            plan,
            arm,
            bound,
            bounded_frames,
            lambda message, part, start=start, end=end, arm=arm: say(f"{arm}: {message}", start + (end - start) * part),
            None if tables_dir is None else Path(tables_dir) / arm,
        )
    return result_of(profile, arms, bounded_frames)


def _check(profile: Profile, plan: Plan, frames: int | None) -> None:
    check_sessions_stay(profile)
    if profile.sessions < FEWEST:
        raise ExperimentError(f"cliff needs at least {FEWEST} sessions (one joins late), not {profile.sessions}")
    if frames is not None and frames < 1:
        raise ExperimentError(f"frames must be 1 or more, not {frames}")
    early = PREDICT_BELOW_USAGE * plan.fills_after_s / profile.frame_budget_s
    if early < LEAVES_AT + 2:
        raise ExperimentError(
            f"the pool fills within {plan.fills_after_s:.0f} s, too soon to predict from usage <= "
            f"{PREDICT_BELOW_USAGE}: raise pool_blocks or lower sessions"
        )
    warning = profile.plateau_warning([profile.bound] * profile.sessions)
    if warning:
        raise ExperimentError(f"the bounded arm cannot hold its plateau: {warning}")
    longest = plan.fills_after_s / profile.frame_budget_s * profile.growth * 1.5
    if longest > profile.max_model_len:
        raise ExperimentError(
            f"unbounded sessions would reach max_model_len {profile.max_model_len} before the pool is full: raise it, "
            "or open more sessions"
        )


@dataclass(frozen=True)
class Arm:
    manager: SessionManager
    walled: bool


def _run_arm(profile, plan, arm, bound, bounded_frames, say, tables_dir) -> Arm:
    budget = profile.frame_budget_s
    # The same audio in both arms.
    voices = [voice(profile, call) for call in range(profile.sessions + 1)]
    with SessionManager(profile, arm, progress=lambda m: say(m, 0.0), save_to=tables_dir) as manager:
        early = len(voices) - min(len(JOINS_AT), profile.sessions - 1)
        names = [manager.add(clip, bound, start_s=at) for clip, at in voices[:early]]
        began = manager.now()
        # Not strict, for of two sessions one joins late.
        joins = zip(JOINS_AT, voices[early:], strict=False)
        pending = [(began + at * budget, "join", who) for at, who in joins]
        pending.append((began + LEAVES_AT * budget, "leave", names[-1]))
        for at, what, who in pending:
            manager.wait_until(at)
            if what == "join":
                manager.add(who[0], bound, start_s=who[1])
            else:
                manager.close_session(who)
        walled = watch(profile, plan, manager, bound, bounded_frames, began, say)
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died in the {arm} arm: {manager.beat.dead}")
    return Arm(manager, walled)


def watch(profile, plan, manager, bound, bounded_frames, began, say) -> bool:
    """Wait until the arm has shown what it is for; whether it walled."""
    budget = profile.frame_budget_s
    length = bounded_frames * budget if bound else GIVE_UP_FACTOR * plan.fills_after_s
    silence = max((2 + WALL_FRAMES) * budget, WALL_S)
    expected = length if bound else plan.fills_after_s + silence
    while manager.now() - began < length and manager.beat.dead is None:
        wall = manager.beat.wall_at_s
        if wall is not None and manager.now() > wall + silence:
            break
        if not manager.running:
            break
        manager.wait_for(seconds=min(budget, 0.5))
        say(manager.status(), min(1.0, (manager.now() - began) / expected))
    return manager.beat.wall_at_s is not None


def result_of(profile: Profile, arms: dict[str, Arm], bounded_frames: int) -> Result:
    """Metrics, claims and tables of two arms, "unbounded" and "bounded", the latter meant to last so many frames."""
    tables = {name: arm.manager.tables for name, arm in arms.items()}
    facts = arms["bounded"].manager.engine.facts
    unbounded, unbounded_claims = _unbounded(profile, arms["unbounded"])
    bounded, bounded_claims = _bounded(profile, arms["bounded"])
    params = {**params_of(profile, facts), "frames": bounded_frames}
    return Result(
        experiment="cliff",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params=params,
        metrics={"unbounded": unbounded, "bounded": bounded},
        claims=(*unbounded_claims, *bounded_claims),
        **joined(tables.values()),
    )


def counts(frames) -> dict:
    """Of the frames that returned: how many were missed, capped, empty; their tokens; the longest content lag."""
    returned = frames[frames["status"].isin(RETURNED)]
    return {
        "deadline_misses": int(returned["missed"].sum()),
        "capped_frames": int(returned["capped"].sum()),
        "empty_frames": int(returned["empty"].sum()),
        "owed": int(returned["tokens_owed"].sum()),
        "delivered": int(returned["tokens_delivered"].sum()),
        "max_content_lag_s": float(returned["content_lag_s"].max()),
    }


def _unbounded(profile: Profile, arm: Arm) -> tuple[dict, list[Claim]]:
    tables, beat = arm.manager.tables, arm.manager.beat
    frames, pool = tables.frames(), tables.pool()
    counted = counts(frames)
    made = prediction(pool, tables.sessions(), profile.frame_budget_s, profile.block_size)
    predicted, cut_s = (None, None) if made is None else (made.forecast.t_full_s, made.at_s)
    full, wall = beat.first_refused_at_s, beat.wall_at_s
    metrics = {
        "walled": arm.walled,
        "t_full_predicted_s": predicted,
        "predicted_at_s": cut_s,
        "t_full_measured_s": full,
        "t_wall_s": wall,
        **counted,
        "peak_usage": float((pool["blocks_used"] / pool["blocks_total"]).max()),
    }
    claims = [Claim("the unbounded arm walls", arm.walled, wall, "a wall by definition")]
    if arm.walled:
        claims += wall_claims(frames, wall)
    claims.append(
        Claim(
            f"the prediction was written while usage was <= {PREDICT_BELOW_USAGE} and its replay agrees",
            made is not None and made.replays,
            cut_s,
            "the same number",
        )
    )
    error = abs(predicted - full) / full if predicted is not None and full is not None else None
    claims.append(
        Claim("t_full is predicted", error is not None and error <= PREDICTION_ERROR, error, f"<= {PREDICTION_ERROR}")
    )
    return metrics, claims


def wall_claims(frames, wall: float) -> list[Claim]:
    """What has to hold of a frames table from ``wall`` on, in seconds since the run began."""
    # Frames that fell due from the wall on and have returned: each is expected capped, with nothing in it.
    after = frames[(frames["due_at_s"] > wall) & frames["status"].isin(RETURNED)]
    delivered = int(after["tokens_delivered"].sum() + after["tokens_late"].sum())
    # The clock runs on while nothing newer is heard: from a session's first frame to its last, a second each second.
    ordered = after.sort_values("due_at_s").groupby("session")
    passed = (ordered["due_at_s"].last() - ordered["due_at_s"].first()).replace(0.0, math.nan)
    slopes = ((ordered["content_lag_s"].last() - ordered["content_lag_s"].first()) / passed).dropna()
    grows = len(slopes) > 0 and bool(((slopes - 1).abs() <= LAG_SLOPE_ERROR).all())
    missed = int(after["missed"].sum())
    return [
        Claim("from the wall on nothing is delivered", delivered == 0 and len(after) > 0, delivered, "0 tokens"),
        Claim(
            "from the wall on every frame is capped",
            bool(after["capped"].all()) and len(after) > 0,
            f"{int(after['capped'].sum())} of {len(after)} frames",
            "all of them",
        ),
        Claim(
            "from the wall on content lag grows second by second",
            grows,
            None if slopes.empty else float(slopes.mean()),
            f"1 s per second, within {LAG_SLOPE_ERROR}",
        ),
        Claim("from the wall on no deadline is missed", missed == 0 and len(after) > 0, missed, "0"),
    ]


def _bounded(profile: Profile, arm: Arm) -> tuple[dict, list[Claim]]:
    tables = arm.manager.tables
    frames, pool = tables.frames(), tables.pool()
    counted = counts(frames)
    returned = frames[frames["status"].isin(RETURNED)]
    answered = (returned["tokens_delivered"] == returned["tokens_owed"]) | returned["eos"]
    served = returned[returned["status"] == "on_time"]
    ingested = int(served["tokens_in"].sum()) / profile.pool_tokens
    share = float(answered.mean())
    last_third = pool[pool["at_s"] >= pool["at_s"].max() * 2 / 3]
    # Blocks are counted at the end of a frame: when nothing runs or waits, or as little as ever on a busy engine.
    busy = last_third["running"] + last_third["waiting"]
    measured = float(last_third.loc[busy == busy.min(), "blocks_used"].mean())
    expected = (
        plateau(profile.bound, profile.block_size, profile.frame_tokens, profile.tokens_owed).mean * profile.sessions
    )
    ratio = latency_age_ratio(served, profile.bound)
    metrics = {
        "walled": arm.walled,
        "ingested_over_pool": ingested,
        "plateau_usage": measured / profile.pool_blocks,
        "plateau_predicted_usage": expected / profile.pool_blocks,
        **counted,
        "latency_age_ratio": ratio,
    }
    claims = [
        Claim("the bounded arm does not wall", not arm.walled, arm.manager.beat.wall_at_s or "no wall", "no wall"),
        Claim(
            "at least twice the pool was ingested", ingested >= INGESTED_OVER_POOL, ingested, f">= {INGESTED_OVER_POOL}"
        ),
        Claim("owed = delivered", share >= GOOD_SHARE, share, f">= {GOOD_SHARE} of frames"),
        Claim("no frame is capped", counted["capped_frames"] == 0, counted["capped_frames"], "0"),
        Claim(
            "the plateau is that of the arithmetic",
            abs(measured - expected) <= profile.sessions,
            {"blocks_measured": measured, "blocks_predicted": expected},
            "within one block per session",
        ),
    ]
    return metrics, claims


def latency_age_ratio(served, bound: KVBound) -> float | None:
    """Median latency of a run's last third over the median of the third that starts at age 2 W.

    ``served``: frames table of one bounded arm, frames on time. None when the run is too short to have both.
    """
    grown = served[served["age_tokens"] >= 2 * bound.window].sort_values("due_at_s")
    third = (served["due_at_s"].max() - served["due_at_s"].min()) / 3
    if grown.empty or not third > 0:
        return None
    first_at = grown["due_at_s"].iloc[0]
    early = grown[grown["due_at_s"] < first_at + third]
    late = served[served["due_at_s"] > served["due_at_s"].max() - third]
    if late["due_at_s"].min() < first_at:
        return None
    return float(late["latency_s"].median() / early["latency_s"].median())
