"""From the rows of many runs to P(wall) with its interval, the spread of the wall, and what of it is claimed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, mean, stdev
from typing import Any

from workbench.experiments import Claim
from workbench.experiments._metastability import (
    BOUNDED,
    FIXED_N,
    NONE,
    SOURCES,
    UNBOUNDED,
    WITHIN,
    Strengths,
    eq1_s,
    expected_s,
    stair_s,
)
from workbench.experiments.saturation import PAPER_SESSIONS, PAPER_T_FULL_S
from workbench.profiles import Profile
from workbench.wilson import wilson

# What the paper prints (arXiv 2607.02640): N in {96, 128}, 300 s; walls of runs in each of its batches.
PAPER_N, PAPER_DURATION_S = (96, 128), 300.0
PAPER_BATCHES = (
    {"policy": UNBOUNDED, "batch": "one batch", "walled": 4, "runs": 10},
    {"policy": UNBOUNDED, "batch": "seeded, in random order", "walled": 10, "runs": 10},
    {"policy": UNBOUNDED, "batch": "both together", "walled": 14, "runs": 20},
    {"policy": BOUNDED, "batch": "windowed", "walled": 0, "runs": 20},
)
_MODEL = "qwen3-omni"
# The t_full that it measured with 128 sessions, and by Eq. 1, which has N below the line, what that makes of 96.
PAPER_FULL_S = {n: PAPER_T_FULL_S[_MODEL][1] * PAPER_SESSIONS[_MODEL] / n for n in PAPER_N}

GOOD_SHARE = 0.99  # of frames answered, in a good bounded arm
INGESTED = 2.0  # pools, likewise
EDGE_FRAMES = 2.0  # a duration this near to the stair says nothing: the wall begins some steps after the refusal
ERROR = 0.02
WITHIN_CV = 0.01

Durations = dict[int, list[tuple[float, float | None]]]


def cells(rows: Sequence[dict], durations: Durations) -> list[dict[str, Any]]:
    """P(wall) by policy, source, N and duration: ``walled`` of ``runs``, with the Wilson interval [low, high].

    ``part``: the duration as a part of Eq. 1's time, None for one given in seconds. Cells along duration share runs.
    """
    found = []
    for policy in (UNBOUNDED, BOUNDED):
        for source in SOURCES:
            for n, at in durations.items():
                mine = [row for row in rows if (row["policy"], row["variance"], row["n"]) == (policy, source, n)]
                found += [_cell(mine, policy, source, n, at_s, of) for at_s, of in at if mine]
    return found


def _cell(rows: list[dict], policy: str, source: str, n: int, duration_s: float, of: float | None) -> dict[str, Any]:
    walled = sum(row["wall_at_s"] is not None and row["wall_at_s"] <= duration_s for row in rows)
    low, high = wilson(walled, len(rows))
    return {
        "policy": policy,
        "variance": source,
        "n": n,
        "duration_s": duration_s,
        "part": of,
        "runs": len(rows),
        "walled": walled,
        "low": low,
        "high": high,
    }


def metrics_of(profile: Profile, strengths: Strengths, rows: list[dict], counted: list[dict]) -> dict[str, Any]:
    """All that the runs ``rows`` show. Times in seconds; ``cv``: standard deviation over mean."""
    sessions = sorted({row["n"] for row in rows})
    bounded = [row for row in rows if row["policy"] == BOUNDED]
    walled = sum(row["wall_at_s"] is not None for row in bounded)
    low, high = wilson(walled, len(bounded))
    ours = {n: eq1_s(profile.with_(sessions=n)) for n in sessions}
    return {
        "cells": counted,
        "predicted": [
            {
                "n": n,
                "eq1_s": ours[n],
                "stair_s": stair_s(profile.with_(sessions=n)),
                "growth": profile.growth,
                "pool_tokens": profile.pool_tokens,
            }
            for n in sessions
        ],
        "spread": _spreads(profile, strengths, rows, sessions),
        "bounded": {
            "runs": len(bounded),
            "good": sum(map(good, bounded)),
            "walled": walled,
            "low": low,
            "high": high,
            "least_ingested_over_pool": min(row["ingested_over_pool"] for row in bounded),
            "least_answered": min(row["answered"] for row in bounded),
            "capped": sum(row["capped"] for row in bounded),
            "most_usage": max(row["peak_usage"] for row in bounded),
        },
        "paper": {
            "n": PAPER_N,
            "duration_s": PAPER_DURATION_S,
            "batches": [
                dict(zip(("low", "high"), wilson(b["walled"], b["runs"]), strict=True)) | b for b in PAPER_BATCHES
            ],
            "t_full_s": PAPER_FULL_S,
        },
        "needed": [
            {"whose": whose, "n": n, "t_full_s": at_s, "walled": b["walled"], "runs": b["runs"]}
            | {"cv": needed_cv(PAPER_DURATION_S, at_s, b["walled"], b["runs"])}
            for whose, times in (("the paper's", PAPER_FULL_S), ("ours", ours))
            for n, at_s in times.items()
            for b in PAPER_BATCHES
            if b["policy"] == UNBOUNDED and 0 < b["walled"] < b["runs"]
        ],
        "runs": rows,
    }


def needed_cv(duration_s: float, median_s: float, walled: int, runs: int) -> float | None:
    """By what part of ``median_s`` normally distributed walls would have to deviate for ``walled`` of ``runs`` to come
    by ``duration_s``: (duration / median - 1) / z, z the standard normal's quantile of walled / runs.

    None where no spread does it: more than half of the walls come before a median that lies later, or fewer than half
    before one that lies earlier. Any distribution has half on either side of its median.
    """
    quantile = NormalDist().inv_cdf(walled / runs)
    if quantile == 0:
        return None
    cv = (duration_s / median_s - 1) / quantile
    return cv if cv > 0 else None


def _spreads(profile: Profile, strengths: Strengths, rows: list[dict], sessions: list[int]) -> list[dict[str, Any]]:
    """How far apart the walls of runs of one source are, of those that came, and likewise their t_full."""
    found = []
    for source in SOURCES:
        for n in sessions:
            mine = [row for row in rows if (row["policy"], row["variance"], row["n"]) == (UNBOUNDED, source, n)]
            if not mine:
                continue
            walls = [row["wall_at_s"] for row in mine if row["wall_at_s"] is not None]
            full = [row["full_at_s"] for row in mine if row["full_at_s"] is not None]
            center, apart = _spread(walls)
            full_center, full_apart = _spread(full)
            found.append(
                {
                    "variance": source,
                    "n": n,
                    "runs": len(mine),
                    "walled": len(walls),
                    "mean_s": center,
                    "sd_s": apart,
                    "cv": None if apart is None else apart / center,
                    "full": len(full),
                    "full_mean_s": full_center,
                    "full_sd_s": full_apart,
                    "full_cv": None if full_apart is None else full_apart / full_center,
                    "first_s": min(walls, default=None),
                    "last_s": max(walls, default=None),
                    "expected_s": expected_s(profile.with_(sessions=n), source, strengths),
                    "growth_least": min(row["growth"] for row in mine),
                    "growth_most": max(row["growth"] for row in mine),
                }
            )
    return found


def _spread(times: list[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation; None where there are too few."""
    return mean(times) if times else None, stdev(times) if len(times) > 1 else None


def good(row: dict[str, Any]) -> bool:
    """A good bounded arm: twice the pool ingested, owed = delivered (or EOS) in 99 % of frames, none capped."""
    return row["ingested_over_pool"] >= INGESTED and row["answered"] >= GOOD_SHARE and row["capped"] == 0


# -- claims ------------------------------------------------------------------------------------------------------------


def claims_of(profile: Profile, strengths: Strengths, rows: list[dict], counted: list[dict]) -> list[Claim]:
    """What must hold at every size: facts of the bound and of Eq. 1. How far chance reaches is a metric, no claim."""
    bounded = [row for row in rows if row["policy"] == BOUNDED]
    walled, well = sum(row["wall_at_s"] is not None for row in bounded), sum(map(good, bounded))
    claims = [
        Claim("no bounded run walls", walled == 0, f"{walled} of {len(bounded)} runs", "0"),
        Claim("every bounded run is a good bounded arm", well == len(bounded), f"{well} of {len(bounded)}", "all"),
    ]
    unbounded = [row for row in rows if row["policy"] == UNBOUNDED]
    if plain := [row for row in unbounded if row["variance"] == NONE]:
        claims += _stair_claims(profile, plain, counted)
    if fixed := [row for row in unbounded if row["variance"] in FIXED_N]:
        off = max(_off(profile, row) for row in fixed)
        claims.append(
            Claim(
                "with N fixed, the pool is full when Eq. 1 says so at the growth that the run had",
                off <= 1,
                f"off by {off:.2f} of what is allowed",
                f"{ERROR:.0%} or {EDGE_FRAMES:g} frames",
            )
        )
    return claims + list(_within_claims(profile, unbounded))


def _stair_claims(profile: Profile, plain: list[dict], counted: list[dict]) -> list[Claim]:
    stairs = {row["n"]: stair_s(profile.with_(sessions=row["n"])) for row in plain}
    edge_s = EDGE_FRAMES * profile.frame_budget_s
    full = [row for row in plain if row["full_at_s"] is not None]
    off = max((abs(row["full_at_s"] - stairs[row["n"]]) / profile.frame_budget_s for row in full), default=math.inf)
    late_s = {n: edge_s + max(_put_off_s(profile, row) for row in plain if row["n"] == n) for n in stairs}
    mine = [cell for cell in counted if (cell["policy"], cell["variance"]) == (UNBOUNDED, NONE)]
    before = [cell for cell in mine if cell["duration_s"] < stairs[cell["n"]] - edge_s]
    past = [cell for cell in mine if cell["duration_s"] > stairs[cell["n"]] + late_s[cell["n"]]]
    right = sum(cell["walled"] == 0 for cell in before) + sum(cell["walled"] == cell["runs"] for cell in past)
    return [
        Claim(
            "without variance the pool is full within a frame of Eq. 1's stair",
            off <= 1 or not full,
            f"{off:.2g} frames" if full else "no duration reaches it",
            "<= 1",
        ),
        Claim(
            "without variance every run walls within the durations past the stair, and none within the others",
            right == len(before) + len(past),
            f"{right} of {len(before) + len(past)} cells",
            "all",
        ),
    ]


def _put_off_s(profile: Profile, row: dict) -> float:
    """By how much preemptions may put off a wall: what one of N sessions held, the others fill in t_full / (N - 1)."""
    return row["preemptions"] * eq1_s(profile.with_(sessions=row["n"])) / max(1, row["n"] - 1)


def _off(profile: Profile, row: dict) -> float:
    """How far a run's t_full was from Eq. 1's at its own growth, over what is allowed. A run that Eq. 1 says is not
    full by its end, and was not, is off by nothing."""
    predicted = eq1_s(profile.with_(sessions=row["n"]), row["growth"])
    allowed = max(ERROR * predicted, EDGE_FRAMES * profile.frame_budget_s)
    if row["full_at_s"] is None:
        return max(0.0, row["ended_at_s"] - predicted) / allowed
    return abs(row["full_at_s"] - predicted) / allowed


def _within_claims(profile: Profile, unbounded: Iterable[dict]) -> Iterable[Claim]:
    """Variance of each session, token or step for itself averages out: the pools of one N are full together.

    Of t_full and not of the wall, which a preempted session may put off for some frames.
    """
    full: dict[tuple[str, int], list[float]] = {}
    for row in unbounded:
        if row["variance"] in WITHIN and row["full_at_s"] is not None:
            full.setdefault((row["variance"], row["n"]), []).append(row["full_at_s"])
    for source in WITHIN:
        apart = [
            stdev(each) / max(WITHIN_CV * mean(each), profile.frame_budget_s)
            for (of, _), each in full.items()
            if of == source and len(each) > 1
        ]
        if apart:
            yield Claim(
                f"{source}: the pools of all runs are full at one time",
                max(apart) <= 1,
                f"deviation {max(apart):.2f} of what is allowed",
                f"{WITHIN_CV:.0%} of their mean or one frame",
            )
