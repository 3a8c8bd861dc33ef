"""Recycling from outside the engine against the bound inside it: compute per frame, latency and memory of each.

Three policies serve the same sessions: the stock scheduler, the bound in the engine, and application-level recycling
(end the request, open another with sinks + window as its prompt; workbench.engine.recycling). A slack lets a session
grow past its window before it is recycled: that makes recycling rarer and its sessions larger.

On a sim: profile compute is what its cost model says of each step beyond the least step there is. That model bills
every prefilled token as audio to encode, also replies and what was encoded before, so re-encoding is billed at its
upper end: some 20 % more than if only a chunk's own audio were encoded (qwen3-omni). On a real engine it is the sum of
the steps as they were timed. Quick: some 60 s on two cores; on smollm2 three minutes. ``full`` judges more frames, of
twice as many sessions where they are simulated: some three minutes on two cores, five on smollm2.
"""

from __future__ import annotations

from pathlib import Path

from workbench.bound import blocks_for
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
from workbench.experiments._recycle import BOUNDED, RECYCLED, UNBOUNDED, Served, compare, longest, recycling, serve
from workbench.frontends import hears_by_model
from workbench.profiles import Profile
from workbench.runs import Runs

PROFILE = "sim:qwen3-omni@rtx-pro-6000"
# Frame latencies of recycling in the paper (arXiv 2607.02640), in seconds; it gives "a flat few ms" for its bound.
PAPER_P50_S, PAPER_P90_S = (0.014, 0.017), 0.036
FRAMES = {"simulated": (32, 96), "vllm": (10, 30)}  # quick and full
SESSIONS = {"simulated": (32, 64), "vllm": (2, 2)}  # a small engine's unbounded sessions have to fit its pool
WINDOWS = (0.5, 1, 2)  # of the profile's, simulated; a real engine serves the profile's alone
SLACKS = {"simulated": "0,0.25,1", "vllm": "1"}
MOST_SLACK = 64.0


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    runs: Runs | None = None,
    full: bool = False,
    windows: str | None = None,
    slacks: str | None = None,
    sessions: int | None = None,
    frames: int | None = None,
    seed: int | None = None,
) -> Result:
    """Serve ``sessions`` sessions under each policy, for each window W and slack, on a fresh engine each.

    ``sessions``, ``frames``: by default SESSIONS and FRAMES.
    ``windows``: in tokens, separated by commas; by default half of the profile's, the profile's, and twice that, on a
    real engine the profile's alone. ``slacks``: as parts of W, separated by commas. ``frames``: frames of each session
    that are judged, at the least; they begin where both bounded policies are full. ``factor`` in the metrics is
    compute per frame, recycled over bounded. The profile's executor serves: simulated windows are computed by ``runs``,
    those of a real engine one after the other in this process. The tables are of one window and slack, ``shown`` in the
    parameters. Raises ExperimentError, BoundError, ProfileError,
    EngineError.
    """
    say = progress or (lambda message, fraction: None)
    simulated = profile.executor == "simulated"
    sessions = SESSIONS[profile.executor][full] if sessions is None else sessions
    profile = profile.with_(sessions=sessions, seed=profile.seed if seed is None else seed)
    frames = FRAMES[profile.executor][full] if frames is None else frames
    shares = _slacks(SLACKS[profile.executor] if slacks is None else slacks)
    default = [round(share * profile.window) for share in WINDOWS] if simulated else [profile.window]
    sizes = default if windows is None else listed("windows", windows, int, "whole numbers of tokens")
    points = [
        {"profile": served, "slacks": [round(share * served.window) for share in shares], "frames": frames}
        for served in (profile.with_(window=size) for size in sizes)
    ]
    for point in points:
        _check(**point)
    if simulated:
        done = (runs or Runs()).map(simulated_points, points, part(say, 0.0, 0.7))
        # The tables of one window, once more: what runs keep is metrics alone.
        shown = next((p for p in points if p["profile"].window == profile.window), points[0])
        slack = sorted(shown["slacks"])[len(shares) // 2]
        served = _shown(**shown, slack=slack, say=part(say, 0.7, 1.0), tables_dir=tables_dir)
    else:
        done = []
        for i, point in enumerate(points):
            tell = part(say, i / len(points), (i + 1) / len(points))
            found, served = compare(**point, say=tell, tables_dir=tables_dir)
            done.append(found)
    found = [each for window in done for each in window]
    recycled = served[RECYCLED].manager
    shown = {"window": recycled.profile.window, "slack": recycled.engine.slack}
    params = {"windows": sizes, "slacks": shares, "frames": frames, "shown": shown}
    return _result(profile, found, served, params)


def simulated_points(profile: Profile, slacks: list[int], frames: int) -> list[dict]:
    """The points of one window, for Runs."""
    return compare(profile, slacks, frames, lambda message, fraction: None)[0]


def _shown(
    profile: Profile, slacks: list[int], frames: int, slack: int, say: Progress, tables_dir: Path | None
) -> dict[str, Served]:
    """What ``compare`` served, with one slack, for its tables."""
    most = longest(profile, slacks, frames)
    return {
        policy: serve(profile, policy, most, part(say, i / 3, (i + 1) / 3), slack, tables_dir)
        for i, policy in enumerate((UNBOUNDED, BOUNDED, RECYCLED))
    }


# -- what can be asked -------------------------------------------------------------------------------------------------


def _slacks(text: str) -> list[float]:
    shares = listed("slacks", text, float, "parts of the window")
    if not all(0 <= share <= MOST_SLACK for share in shares):
        raise ExperimentError(f"slacks must be 0 to {MOST_SLACK:g} windows, not {text!r}")
    return shares


def _check(profile: Profile, slacks: list[int], frames: int) -> None:
    if hears_by_model(profile.front_end):
        raise ExperimentError(
            f"a recycled session cannot be fed audio, as front end {profile.front_end} does: use a front end of tokens"
        )
    check_sessions_stay(profile)
    for name in ("eos_chance", "shared_prefix"):
        if getattr(profile, name):
            raise ExperimentError(f"{name} is of no use here, tokens are counted exactly: set it to 0")
    if frames < 1:
        raise ExperimentError(f"frames must be 1 or more, not {frames}")
    profile.check_bound(profile.bound)
    most = max(recycling(profile, slack).most for slack in slacks)
    oldest = longest(profile, slacks, frames) * profile.growth
    for what, tokens, cure in (
        (f"a session recycled with a slack of {max(slacks)} tokens", most, "lower slacks"),
        ("an unbounded session", oldest + profile.frame_tokens, "lower frames, slacks or windows"),
    ):
        if tokens > profile.max_model_len:
            raise ExperimentError(
                f"window {profile.window}: {what} would hold {tokens} tokens, more than max_model_len "
                f"{profile.max_model_len}: {cure}"
            )
        blocks = profile.sessions * blocks_for(tokens, profile.block_size)
        if blocks > profile.pool_blocks:
            raise ExperimentError(
                f"window {profile.window}: {profile.sessions} times {what} would hold {blocks} blocks, more than the "
                f"pool's {profile.pool_blocks}: lower sessions, or {cure.removeprefix('lower ')}"
            )


# -- what comes of it --------------------------------------------------------------------------------------------------


def _result(profile: Profile, points: list[dict], served: dict[str, Served], params: dict) -> Result:
    facts = served[RECYCLED].manager.engine.facts
    for point in points:
        each = recycling(profile.with_(window=point["window"]), point["slack"])
        point["sessions_that_fit"] = profile.pool_blocks // blocks_for(each.most, profile.block_size)
    # Of one point's runs: what was prefilled, against the arithmetic.
    off = {
        f"W {p['window']}, slack {p['slack']}, {policy}": count["measured"] - count["predicted"]
        for p in points
        for policy, count in p["prefill_tokens"].items()
    }
    worst = max(off, key=lambda name: abs(off[name]))
    walled = [f"W {p['window']}, slack {p['slack']}" for p in points if p[RECYCLED]["walled"] or p[BOUNDED]["walled"]]
    silent = sum(p[policy][what] for p in points for policy in (BOUNDED, RECYCLED) for what in ("capped", "empty"))
    least = min(point["factor"] for point in points)
    claims = [
        Claim(
            "prefilled tokens are those of the arithmetic",
            off[worst] == 0,
            {"runs": len(off), "farthest off": worst, "tokens": off[worst]},
            "the same number, in every run",
        ),
        Claim("neither bound nor recycling walls", not walled, ", ".join(walled) or "no wall", "no wall"),
    ]
    if facts.executor == "simulated":
        # Of a real engine these are wall-clock, which whatever else runs on its machine may spoil.
        claims += [
            Claim("bounded and recycled, no frame is capped or empty", silent == 0, silent, "0"),
            Claim("recycling takes no less compute than the bound", least >= 1, least, ">= 1"),
        ]
    return Result(
        experiment="recycle",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={**params_of(profile, facts), **params},
        metrics={"points": points, "paper": {"latency_p50_s": list(PAPER_P50_S), "latency_p90_s": PAPER_P90_S}},
        claims=tuple(claims),
        **joined([one.manager.tables for one in served.values()]),
    )
