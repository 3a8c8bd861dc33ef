"""What the points of the capacity experiment compute, each in a process of its own: N*, a burst, a slowdown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from workbench.bound import blocks_for
from workbench.experiments._steady import Steady, burst, first_judged, largest, memory_ceiling, n_star, steady
from workbench.profiles import Profile

SEARCH_FRAMES = 20  # of each session while N* is searched; the N that is found is then served for as many as it needs
MANY_FRAMES = 10 * SEARCH_FRAMES
COARSE = 0.05
FAST = 0.01  # the slowdown at which no step takes long enough for latency to decide anything
FASTEST, SLOWEST = 1 / 16, 512.0  # slowdowns between which one that N sessions bear is looked for
PRECISION = 0.05  # of such a slowdown
MEMORY, LATENCY = "memory", "latency"


def measure(what: str, **point: Any) -> dict[str, Any]:
    """One point, by name: "n_star", "burst" or "slowdown". What it returns can be kept as JSON."""
    return {"n_star": find_n_star, "burst": find_burst, "slowdown": find_slowdown}[what](**point)


def find_n_star(profile: Profile, target: float, frames: int, within: float) -> dict[str, Any]:
    """N* and what limits it: searched with SEARCH_FRAMES, then confirmed with ``frames`` on a fresh engine.

    N* may be too small by the part ``within``. Where latency limits it, memory's own ceiling is measured as well, with
    steps so short that latency does not count.
    """
    target_s = target * profile.frame_budget_s
    prompted = is_prompted(profile)
    searched = min(SEARCH_FRAMES, frames)
    found, points = n_star(profile, target, searched, _quiet, prompted=prompted, within=within)
    if found and searched < frames:

        def holds(n: int) -> bool:
            points.append(steady(profile, n, frames, _quiet, target_s, prompted))
            return points[-1].holds(target_s)

        found = largest(holds, found, found, within)
    limit, fails = _limit(points, found, target_s)
    ceiling = found
    if limit == LATENCY:
        fast = profile.with_(slowdown=FAST)
        ceiling, _ = n_star(fast, target, cycle(profile), _quiet, prompted=prompted, within=within)
    at = next((point for point in reversed(points) if point.n == found), None)
    return {
        "n_star": found,
        "fails_at": fails,
        "limit": limit,
        "latency_p99_s": None if at is None else at.latency_p99_s,
        "plateau_usage": None if at is None else at.plateau_usage,
        "frames_judged": 0 if at is None else at.frames,
        "memory_ceiling_measured": ceiling,
        "prompted": prompted,
        "probes": [asdict(point) for point in points],
        **_served(points),
    }


def find_burst(profile: Profile, target: float, seconds: float, within: float) -> dict[str, Any]:
    """How many unbounded sessions a fresh engine serves for ``seconds`` of audio each, and what limits them.

    A burst of many frames is dear. Its last ones take longest, so those alone say where to begin the search, and where
    an N need not be exact, ``within`` is COARSE at least.
    """
    target_s, frames = target * profile.frame_budget_s, burst_frames(profile, seconds)
    points: list[Steady] = []
    guess = burst_room(profile, seconds)
    if frames > MANY_FRAMES:
        within = max(within, COARSE) if within else within

        def ends_well(n: int) -> bool:
            return burst(profile, n, SEARCH_FRAMES, _quiet, target_s, aged=frames - SEARCH_FRAMES).holds(target_s)

        guess = largest(ends_well, guess, guess, within)

    def holds(n: int) -> bool:
        points.append(burst(profile, n, frames, _quiet, target_s))
        return points[-1].holds(target_s)

    found = largest(holds, profile.max_sessions, guess, within)
    limit, fails = _limit(points, found, target_s)
    return {"burst": found, "fails_at": fails, "limit": limit, **_served(points)}


def find_slowdown(profile: Profile, n: int, target: float, seconds: float | None) -> dict[str, Any]:
    """The largest slowdown that ``n`` sessions bear: bounded ones on their plateau, or a burst of ``seconds``.

    A what-if, no measurement of an engine. None where they bear none at all or any, or do not fit the pool however fast
    the engine is. ``latency_p99_s``: without any.
    """
    if n > (most_plateaus(profile) if seconds is None else burst_room(profile, seconds)):
        return {"n": n, "slowdown": None, "latency_p99_s": None}
    profile = profile.with_(max_sessions=max(profile.max_sessions, n))
    target_s = target * profile.frame_budget_s
    p99: dict[float, float] = {}

    def holds(slowdown: float) -> bool:
        slow = profile.with_(slowdown=slowdown)
        if seconds is None:
            seen = steady(slow, n, SEARCH_FRAMES, _quiet, target_s, is_prompted(slow))
        else:
            seen = burst(slow, n, burst_frames(slow, seconds), _quiet, target_s)
        p99[slowdown] = seen.latency_p99_s
        return seen.holds(target_s)

    return {"n": n, "slowdown": slowest(holds), "latency_p99_s": p99[1.0]}


def slowest(holds: Callable[[float], bool]) -> float | None:
    """The largest slowdown that holds, to PRECISION: by doubling or halving from 1, then by halving the ratio."""
    low = high = None
    slowdown = 1.0
    while low is None or high is None:
        if not FASTEST <= slowdown <= SLOWEST:
            return None
        if holds(slowdown):
            low, slowdown = slowdown, 2 * slowdown
        else:
            high, slowdown = slowdown, slowdown / 2
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# -- arithmetic --------------------------------------------------------------------------------------------------------


def is_prompted(profile: Profile) -> bool:
    """Whether sessions open with a prompt: where they would take longer to their plateau than they are judged there."""
    return first_judged(profile) > 2 * SEARCH_FRAMES


def cycle(profile: Profile) -> int:
    """Frames after which a session's blocks on the plateau repeat."""
    return profile.block_size // math.gcd(profile.growth, profile.block_size)


def burst_frames(profile: Profile, seconds: float) -> int:
    """Frames of ``seconds`` of audio."""
    return math.ceil(seconds / profile.frame_budget_s - 1e-9)


def burst_room(profile: Profile, seconds: float) -> int:
    """How many unbounded sessions of ``seconds`` fit into the pool, in whole blocks: Eq. 1 with t_full = seconds."""
    return profile.pool_blocks // blocks_for(burst_frames(profile, seconds) * profile.growth, profile.block_size)


def most_plateaus(profile: Profile) -> int:
    """How many sessions fit if each held no more than its bound keeps: no N can lie above."""
    kept = profile.bound.sink_tokens(profile.block_size) + profile.bound.window
    return profile.pool_blocks // blocks_for(kept, profile.block_size)


def roomy(profile: Profile, seconds: float) -> Profile:
    """The profile with as many sessions as memory could ever hold: an engine's default for the most is no capacity."""
    most = max(memory_ceiling(profile, profile.bound), most_plateaus(profile), burst_room(profile, seconds)) + 1
    # A step takes up no more sessions than tokens.
    return profile.with_(max_sessions=max(profile.max_sessions, min(most, profile.max_batched_tokens)))


def _limit(points: list[Steady], found: int, target_s: float) -> tuple[str | None, int | None]:
    """What the smallest N above ``found`` failed by, and that N. None where every N held."""
    failed = [point for point in points if point.n > found and not point.holds(target_s)]
    if not failed:
        return None, None
    first = min(failed, key=lambda point: point.n)
    return MEMORY if first.refused else LATENCY, first.n


def _served(points: list[Steady]) -> dict[str, Any]:
    return {"executor": points[0].executor, "vllm": points[0].vllm, "costs": points[0].costs}


def _quiet(message: str, fraction: float | None) -> None:
    """A point runs where nobody reads along."""
