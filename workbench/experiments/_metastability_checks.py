"""What the metastability experiment is asked for: read from text, and refused before an engine starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.experiments import ExperimentError, listed
from workbench.experiments._metastability import ALL, BOUNDED, CHURN, SOURCES, Strengths, eq1_s, stair_s, vary
from workbench.profiles import Profile

# Fields of a profile that are sources of variance, or that only unbounded sessions can have.
OWN_VARIANCE = ("start_jitter", "eos_chance", "step_noise", "arrivals_per_s", "holding_s", "shared_prefix")
FEWEST_FRAMES = 10
LONGEST = 10.0  # of Eq. 1's time
# Under churn the number of open sessions is Poisson distributed: five of its standard deviations above N.
CHURN_DEVIATIONS = 5


def numbers(name: str, text: str, kind: type) -> list:
    """Positive numbers from a text such as "96,128", ascending. Raises ExperimentError."""
    values = listed(name, text, kind, "whole numbers" if kind is int else "numbers")
    for value in values:
        if not 0 < value < math.inf:
            raise ExperimentError(f"{name} must be above 0 and finite, not {value:g}")
    return sorted(values)


def names(text: str) -> list[str]:
    """Sources of variance from a text, in the order of SOURCES. Raises ExperimentError."""
    words = listed("sources", text)
    for word in words:
        if word not in SOURCES:
            raise ExperimentError(f"no source of variance {word!r}: choose from {', '.join(SOURCES)}")
    return [source for source in SOURCES if source in words]


def check_simulated(profile: Profile) -> None:
    """Refuse a real engine. Raises ExperimentError."""
    if profile.executor != "simulated":
        raise ExperimentError(
            f"metastability takes hundreds of runs and needs a simulated profile, not {profile.name}: give a sim: one"
        )


def check(
    profile: Profile,
    sessions: Sequence[int],
    sources: Sequence[str],
    runs_per_cell: int,
    bounded_runs: int,
    strengths: Strengths,
    longest: dict[int, float],
) -> None:
    """Refuse what could not be served, or would show nothing.

    ``longest``: seconds of the longest duration, by N. Raises ExperimentError, BoundError, ProfileError.
    """
    for name in OWN_VARIANCE:
        if getattr(profile, name):
            raise ExperimentError(f"{name} would add to every source of variance of the experiment: set it to 0")
    for name, value in (("runs_per_cell", runs_per_cell), ("bounded_runs", bounded_runs)):
        if value < 1:
            raise ExperimentError(f"{name} must be 1 or more, not {value}")
    if not 0 < strengths.holding < math.inf:
        raise ExperimentError(f"holding must be above 0, as a multiple of Eq. 1's time, not {strengths.holding}")
    if not 0 < strengths.silence <= 0.99:
        raise ExperimentError(f"silence must lie above 0 and be at most 0.99, not {strengths.silence}")
    profile.check_bound(profile.bound)
    for n in sessions:
        _check_n(profile, n, sources, strengths)
        _check_duration(profile.with_(sessions=n), longest[n])


def _check_n(profile: Profile, n: int, sources: Sequence[str], strengths: Strengths) -> None:
    most = n
    if CHURN in sources or ALL in sources:
        most = math.ceil(n + CHURN_DEVIATIONS * math.sqrt(n))
    if most > profile.max_sessions:
        under = f" (up to {most} under churn)" if most > n else ""
        raise ExperimentError(f"n = {n}{under} is more than max_sessions {profile.max_sessions}: lower n or raise it")
    profile = profile.with_(sessions=n)
    if warning := profile.plateau_warning([profile.bound] * most):
        raise ExperimentError(f"n = {n}: the {BOUNDED} arm cannot hold its plateau: {warning}")
    frames = stair_s(profile) / profile.frame_budget_s
    if frames < FEWEST_FRAMES:
        raise ExperimentError(
            f"n = {n} fills the pool within {frames:.0f} frames, too few to tell durations apart: lower n or raise "
            "pool_blocks"
        )
    for source in sources:
        vary(profile, source, strengths)


def _check_duration(profile: Profile, longest_s: float) -> None:
    full_s, budget, n = eq1_s(profile), profile.frame_budget_s, profile.sessions
    if longest_s > LONGEST * full_s:
        raise ExperimentError(
            f"n = {n}: a duration of {longest_s:g} s is more than {LONGEST:g} times as long as the pool takes to fill, "
            f"{full_s:.0f} s: give a shorter one"
        )
    # A wall comes at the latest when the pool is full of what only silent sessions ingest.
    oldest = min(longest_s, full_s * profile.growth / (profile.frame_tokens - 1)) / budget * profile.growth
    if oldest > profile.max_model_len:
        raise ExperimentError(
            f"n = {n}: sessions would reach max_model_len {profile.max_model_len} before the pool is full: raise n"
        )
    if longest_s / budget * profile.growth > profile.max_positions:
        raise ExperimentError(
            f"n = {n}: bounded sessions would reach max_positions {profile.max_positions} within {longest_s:g} s: give "
            "a shorter duration or a larger n"
        )
