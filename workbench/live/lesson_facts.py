"""What a live run answers to the lesson's questions, read from its manager's beat and tables, and the lesson's claims.

An answer is a number, or in words why there is none yet. A run is one manager's: a reset begins another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from workbench.bound import KVBound, plateau
from workbench.experiments import Claim, Result, joined, params_of
from workbench.experiments.cliff import wall_claims
from workbench.experiments.saturation import ERROR
from workbench.saturation import PREDICT_BELOW_USAGE, Prediction, prediction
from workbench.telemetry import DROPPED, RETURNED, TABLES, FrameRow, load_tables

if TYPE_CHECKING:
    import pandas as pd

    from workbench.profiles import Profile
    from workbench.sessions import SessionManager

HELD_FRAMES = 3  # of watching, before a level is called a plateau
Answer = float | str


def opened(manager: SessionManager, before_s: float = math.inf) -> list[float]:
    """When the audio of the sessions began that were opened before ``before_s``, in seconds since the run began."""
    with manager.tables.lock:
        starts = [row.opened_at_s for row in manager.tables.session_rows.values()]
    return [start for start in starts if start is not None and start < before_s]


def t_full_s(manager: SessionManager) -> Answer:
    """Seconds from the first session's opening to the first refused allocation."""
    starts, full_s = opened(manager), manager.beat.first_refused_at_s
    if not starts:
        return "no session was added yet"
    if full_s is None:
        return f"the pool is not full yet: t = {max(0.0, manager.now() - min(starts)):.1f} s"
    return full_s - min(starts)


def forecast(manager: SessionManager) -> Prediction | None:
    """The forecast that counts, by workbench.saturation.prediction; its times are since the run began."""
    profile = manager.profile
    return prediction(manager.pool(), manager.sessions(), profile.frame_budget_s, profile.block_size)


def _returned(manager: SessionManager) -> list[FrameRow]:
    with manager.tables.lock:
        return [row for row in manager.tables.frame_rows if row.status in RETURNED and row.returned_at_s is not None]


def at_wall(manager: SessionManager) -> list[FrameRow] | str:
    """The frames that fell due at the wall and returned before any token came again, or why there are none."""
    wall_s = manager.beat.wall_at_s
    if wall_s is None:
        return f"the run is not at the wall yet: {manager.beat.status(manager.now())}"
    rows = _returned(manager)
    came = (row.first_token_at_s for row in rows if row.first_token_at_s is not None and row.first_token_at_s > wall_s)
    ends_s = min(came, default=math.inf)
    found = [row for row in rows if row.due_at_s > wall_s and row.returned_at_s < ends_s]
    return found or "no frame has returned at the wall yet: wait for one"


def misses_at_wall(manager: SessionManager) -> Answer:
    """Deadlines that were missed at the wall."""
    rows = at_wall(manager)
    return rows if isinstance(rows, str) else float(sum(row.missed for row in rows))


def lag_growth(manager: SessionManager) -> Answer:
    """Seconds by which content lag grows in a second at the wall: the mean over sessions, each first to last frame."""
    rows = at_wall(manager)
    if isinstance(rows, str):
        return rows
    slopes = [
        (frames[-1].content_lag_s - frames[0].content_lag_s) / (frames[-1].due_at_s - frames[0].due_at_s)
        for frames in _by_session(rows).values()
        if len(frames) > 1
    ]
    return fmean(slopes) if slopes else "a second frame has to return at the wall: wait for it"


def _by_session(rows: list[FrameRow]) -> dict[str, list[FrameRow]]:
    found = defaultdict(list)
    for row in rows:
        found[row.session].append(row)
    return dict(found)


def bounds(manager: SessionManager) -> list[KVBound | None]:
    """The bound of each session that still has frames, as its newest one has it."""
    return [_bound_of(frames[-1]) for frames in _present(manager).values()]


def _present(manager: SessionManager) -> dict[str, list[FrameRow]]:
    """The frames of the sessions that had one fall due of late: by the tables alone, which outlive the engine."""
    sessions = _by_session(_returned(manager))
    newest_s = max((frames[-1].due_at_s for frames in sessions.values()), default=0.0)
    # One budget between two frames, another for the wait cap of the newest.
    since_s = newest_s - 2 * manager.profile.frame_budget_s
    return {name: frames for name, frames in sessions.items() if frames[-1].due_at_s > since_s}


def _bound_of(row: FrameRow) -> KVBound | None:
    return None if row.window is None else KVBound(row.window, row.sinks)


def settled_s(manager: SessionManager) -> Answer:
    """From when on every session was bounded and old enough for its plateau, in seconds since the run began."""
    present = _present(manager)
    unbounded = sum(_bound_of(frames[-1]) is None for frames in present.values())
    if not present:
        return "no frame has returned yet"
    if unbounded:
        return f"{unbounded} of {len(present)} sessions are unbounded: switch the bound on for all"
    since = [_settled_s(frames, manager.profile) for frames in present.values()]
    if None in since:
        return f"{since.count(None)} of {len(since)} sessions have not come to their plateau yet: wait some frames"
    return max(since)


def _settled_s(frames: list[FrameRow], profile: Profile) -> float | None:
    bound, since = _bound_of(frames[-1]), None
    least = bound.sink_tokens(profile.block_size) + bound.window
    most = bound.resident_max(profile.block_size, profile.frame_tokens, profile.tokens_owed)
    for row in reversed(frames):
        if _bound_of(row) != bound:
            break
        # One that came from the wall still holds all it ever heard until its bound is taken up.
        if row.age_tokens is not None and row.age_tokens >= least and row.resident_tokens <= most:
            since = row.returned_at_s
    return since


def plateau_blocks(manager: SessionManager) -> Answer:
    """The most blocks that these sessions had in use since each of them has been at its plateau."""
    since_s = settled_s(manager)
    if isinstance(since_s, str):
        return since_s
    sessions = len(_present(manager))
    with manager.tables.lock:
        rows = [row for row in manager.tables.pool_rows if row.at_s > since_s and row.sessions == sessions]
    watch_s = HELD_FRAMES * manager.profile.frame_budget_s
    if not rows or rows[-1].at_s - since_s < watch_s:
        return f"the bound took hold at {since_s:.1f} s: watch the pool for {HELD_FRAMES} frames"
    return float(max(row.blocks_used for row in rows))


def back(manager: SessionManager) -> set[str]:
    """The sessions that delivered under a bound after the wall."""
    wall_s = manager.beat.wall_at_s
    if wall_s is None:
        return set()
    rows = _returned(manager)
    return {row.session for row in rows if row.due_at_s > wall_s and row.window is not None and row.tokens_delivered}


def dropped_before_full(manager: SessionManager) -> int:
    """Frames whose audio was dropped before the pool was full: the engine could not keep up with them."""
    full_s = manager.beat.first_refused_at_s or math.inf
    return sum(row.status == DROPPED and row.due_at_s < full_s for row in _returned(manager))


def most_blocks(profile: Profile, chosen: list[KVBound]) -> int:
    """The blocks of sessions under these bounds together, each at the most that it ever holds."""
    tokens_in, owed = profile.frame_tokens, profile.tokens_owed
    return sum(plateau(bound, profile.block_size, tokens_in, owed).most for bound in chosen)


def result(manager: SessionManager, silent: pd.DataFrame, saved: Path, metrics: dict) -> Result:
    """The run as the Result of an experiment, with what the lesson claims of it.

    ``silent``: the frames table as it was at the wall, before the bound was switched on. ``saved``: the folder that got
    the tables when the engine was ended. ``metrics``: to be kept with it, beside the instants of the first opening and
    of the wall, in seconds since the run began, and the frames whose audio was dropped before the pool was full.
    """
    facts, starts = manager.engine.facts, opened(manager)
    profile = manager.profile.with_(sessions=len(starts))
    return Result(
        experiment="lesson",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params=params_of(profile, facts),
        metrics={
            **metrics,
            "opened_at_s": min(starts),
            "wall_at_s": manager.beat.wall_at_s,
            "dropped_before_full": dropped_before_full(manager),
        },
        claims=(*_forecast_claims(manager), *_wall_claims(manager, silent), *_bound_claims(manager, saved)),
        **joined([manager.tables]),
    )


def _forecast_claims(manager: SessionManager) -> list[Claim]:
    made, full_s = forecast(manager), manager.beat.first_refused_at_s
    budget_s = manager.profile.frame_budget_s
    known = made is not None and full_s is not None
    error_s = abs(made.forecast.t_full_s - full_s) if known else None
    within_s = max(ERROR * (full_s - min(opened(manager))), budget_s) if known else None
    return [
        Claim(
            f"the forecast was written while usage was <= {PREDICT_BELOW_USAGE} and its replay agrees",
            made is not None and made.replays,
            None if made is None else made.at_s,
            "the same number",
        ),
        Claim(
            "t_full is forecast",
            known and error_s <= within_s,
            error_s / budget_s if known else None,
            f"<= {within_s / budget_s:.3g} frames off" if known else "a forecast and a refusal",
        ),
    ]


def _wall_claims(manager: SessionManager, silent: pd.DataFrame) -> list[Claim]:
    wall_s, sessions = manager.beat.wall_at_s, len(opened(manager))
    claims = [Claim("unbounded sessions come to the wall", wall_s is not None, wall_s, "a wall by definition")]
    if wall_s is None:
        return claims
    after = silent[(silent["due_at_s"] > wall_s) & silent["status"].isin(RETURNED)]
    empty = after.groupby("session")["empty"].all()
    silent_ones = int(empty.sum())
    claims.append(
        Claim("at the wall every session is silent", silent_ones == sessions, f"{silent_ones} of {sessions}", "all")
    )
    return claims + wall_claims(silent, wall_s)


def _bound_claims(manager: SessionManager, saved: Path) -> list[Claim]:
    sessions, speak = len(opened(manager)), len(back(manager))
    held, most = plateau_blocks(manager), most_blocks(manager.profile, [b for b in bounds(manager) if b is not None])
    tables = load_tables(saved)
    rows = {name: len(tables[name]) for name in TABLES}
    there = {name: len(getattr(manager, name)()) for name in TABLES}
    return [
        Claim("with the bound on every session delivers again", speak == sessions, f"{speak} of {sessions}", "all"),
        Claim(
            "with the bound on the pool falls to the plateau and stays there",
            isinstance(held, float) and held <= most < manager.profile.pool_blocks,
            held,
            f"<= {most} of {manager.profile.pool_blocks} blocks",
        ),
        Claim("the tables are saved to the last row", rows == there, rows, there),
    ]
