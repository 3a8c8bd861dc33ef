"""Latency, plateau and capacity over the window W: the same sessions, each W on a fresh engine.

A larger window remembers more. It costs memory in proportion, so fewer sessions fit; whether it costs latency as well
is measured. Quick: some 60 s on two cores. ``full`` judges twice the frames and looks for N* of each window, which
takes some 20 minutes.
"""

from __future__ import annotations

from pathlib import Path

from workbench.bound import plateau
from workbench.experiments import (
    Claim,
    ExperimentError,
    Progress,
    Result,
    check_sessions_stay,
    joined,
    listed,
    params_of,
    part,
)
from workbench.experiments._steady import BEGINS, check_target, first_judged, memory_ceiling, n_star, steady
from workbench.profiles import Profile
from workbench.runs import Runs
from workbench.sessions import SessionManager
from workbench.workload import caller

PROFILE = "sim:qwen3-omni@rtx-pro-6000"
# The paper's pool usage (arXiv 2607.02640, quality table) by window, with this many sessions and no sinks.
PAPER_USAGE, PAPER_SESSIONS, PAPER_SINKS = {512: 0.033, 1024: 0.064, 2048: 0.127}, 32, 0
# Of the pool, per session at its operating point.
PAPER_SHARE, PAPER_WINDOW = 0.002, 1024
# It calls latency flat for windows up to this one; here that is: within this part of the smallest window's median.
PAPER_FLAT_UP_TO, FLAT = 2048, 0.1
FRAMES = (30, 60)  # quick and full
ABOVE_CEILING = 1.25  # N* may lie above what memory allows for sure: sessions do not all hold their most at once


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    runs: Runs | None = None,
    full: bool = False,
    windows: str = "512,1024,2048,4096",
    sessions: int = PAPER_SESSIONS,
    frames: int | None = None,
    target: float = 0.3,
    seed: int | None = None,
) -> Result:
    """Serve ``sessions`` bounded sessions at each of ``windows`` (tokens, separated by commas) from the plateau on.

    ``frames``: of each session, judged. ``target``: of N*, as a part of B, with ``full``. The tables are those of the
    smallest window. Raises ExperimentError, BoundError, ProfileError, EngineError.
    """
    say = progress or (lambda message, fraction: None)
    if profile.executor != "simulated":
        raise ExperimentError(f"window is simulated, {profile.name} is not: give a sim: profile, such as {PROFILE}")
    check_sessions_stay(profile)
    check_target(profile, target)
    profile = profile.with_(sessions=sessions, seed=profile.seed if seed is None else seed)
    frames = FRAMES[full] if frames is None else frames
    if frames < 1:
        raise ExperimentError(f"frames must be 1 or more, not {frames}")
    points = [
        {"profile": profile.with_(window=size), "frames": frames, "target": target if full else None}
        for size in listed("windows", windows, int, "whole numbers of tokens")
    ]
    for point in points:
        _check(point["profile"])
    found = (runs or Runs()).map(at_window, points, part(say, 0.0, 0.9))
    smallest = min((point["profile"] for point in points), key=lambda each: each.window)
    manager = _tables(smallest, part(say, 0.9, 1.0), tables_dir)
    params = {"windows": [each["window"] for each in found], "frames": frames, "target": target if full else None}
    return _result(profile, found, manager, params)


def at_window(profile: Profile, frames: int, target: float | None) -> dict:
    """One point: the profile's sessions at the profile's window, and with ``target`` its N*. For Runs."""

    def quiet(message: str, fraction: float | None) -> None:
        pass

    bound = profile.bound
    ceiling = memory_ceiling(profile, bound)
    seen = steady(profile, profile.sessions, frames, quiet)
    each = plateau(bound, profile.block_size, profile.frame_tokens, profile.tokens_owed)
    found = None
    if target is not None:
        roomy = profile.with_(max_sessions=max(profile.max_sessions, round(ABOVE_CEILING * ceiling)))
        found, _ = n_star(roomy, target, frames, quiet)
    return {
        "executor": seen.executor,
        "window": profile.window,
        "sinks": profile.sinks,
        "n": seen.n,
        "latency_p50_s": seen.latency_p50_s,
        "latency_p99_s": seen.latency_p99_s,
        "capped": seen.capped,
        "empty": seen.empty,
        "frames": seen.frames,
        "plateau_usage": seen.plateau_usage,
        "plateau_predicted_usage": each.mean * seen.n / profile.pool_blocks,
        "share_per_session": each.mean / profile.pool_blocks,
        "memory_ceiling": ceiling,
        "n_star": found,
        "pool_blocks": profile.pool_blocks,
    }


def _tables(profile: Profile, say: Progress, tables_dir: Path | None) -> SessionManager:
    """A look at the smallest window, to its plateau and a few frames on: what runs keep is metrics alone."""
    budget, name = profile.frame_budget_s, f"W = {profile.window}"
    with SessionManager(profile, name, progress=lambda m: say(m, 0.0), save_to=tables_dir) as manager:
        manager.wait_until(BEGINS * budget)
        add = caller(manager, profile.bound)
        for call in range(profile.sessions):
            add(call)
        until = (first_judged(profile) + 10) * budget
        while manager.now() < until and manager.beat.dead is None:
            manager.wait_for(seconds=min(budget, until - manager.now()))
            say(f"{name}: {manager.status()}", min(1.0, manager.now() / until))
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died: {manager.beat.dead}")
    return manager


# -- what can be asked -------------------------------------------------------------------------------------------------


def _check(profile: Profile) -> None:
    profile.check_bound(profile.bound)
    if profile.eos_chance:
        raise ExperimentError("eos_chance is of no use here, the plateau is that of full replies: set it to 0")
    ceiling = memory_ceiling(profile, profile.bound)
    if profile.sessions > ceiling:
        raise ExperimentError(
            f"window {profile.window}: the plateaus of {profile.sessions} sessions do not fit the pool of "
            f"{profile.pool_blocks} blocks, {ceiling} do: lower sessions or leave this window out"
        )


# -- what comes of it --------------------------------------------------------------------------------------------------


def _result(profile: Profile, points: list[dict], manager: SessionManager, params: dict) -> Result:
    facts = manager.engine.facts
    silent = sum(point["capped"] + point["empty"] for point in points)
    apart = {p["window"]: (p["plateau_usage"] - p["plateau_predicted_usage"]) * p["pool_blocks"] for p in points}
    farthest = max(apart, key=lambda window: abs(apart[window]))
    claims = [
        Claim(
            "the plateau is that of the arithmetic, at every window",
            all(abs(blocks) <= point["n"] for blocks, point in zip(apart.values(), points, strict=True)),
            {"window": farthest, "blocks_off": apart[farthest]},
            "within one block per session",
        ),
        Claim("no frame is capped or empty", silent == 0, silent, "0"),
    ]
    flat = sorted((p for p in points if p["window"] <= PAPER_FLAT_UP_TO), key=lambda p: p["window"])
    if len(flat) > 1:
        rise = max(point["latency_p50_s"] / flat[0]["latency_p50_s"] - 1 for point in flat)
        name = f"latency is flat from W = {flat[0]['window']} to {flat[-1]['window']}"
        claims.append(Claim(name, rise <= FLAT, rise, f"the median rises by <= {FLAT}"))
    return Result(
        experiment="window",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={**params_of(profile, facts), **params},
        metrics={
            "points": points,
            "paper": {
                "usage": {str(window): usage for window, usage in PAPER_USAGE.items()},
                "sessions": PAPER_SESSIONS,
                "sinks": PAPER_SINKS,
                "share_per_session": PAPER_SHARE,
            },
        },
        claims=tuple(claims),
        **joined([manager.tables]),
    )
