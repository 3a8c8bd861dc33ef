"""How many sessions a model and a GPU hold: memory's ceiling, N*, and a burst of 90 s, beside the paper's figures."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.bound import BoundError
from workbench.experiments import Claim, ExperimentError, Progress, Result, check_sessions_stay, listed, params_of
from workbench.experiments._capacity import (
    MEMORY,
    SEARCH_FRAMES,
    burst_frames,
    burst_room,
    measure,
    most_plateaus,
    roomy,
)
from workbench.experiments._steady import FRAMES, check_target, memory_ceiling
from workbench.profiles import SIMULATED, Profile, load_profile
from workbench.runs import Runs
from workbench.telemetry import Tables

PROFILE = "sim:qwen3-omni@rtx-pro-6000"
MODELS = "qwen3-omni,minicpm-o-4.5,qwen2.5-omni,moshi"
HARDWARE, ALL_HARDWARE = "rtx-pro-6000", "rtx-pro-6000,h100,h200,b200"
WINDOWS, ALL_WINDOWS = "1024", "512,1024,2048"
SLOWDOWNS, ALL_SLOWDOWNS = "1", "1,2,4"
WITHIN = 0.02  # of a capacity, by which the quick form may find it too small

# arXiv 2607.02640, on its GPU: of Qwen3-Omni with W = 1024 the memory ceiling and the N that its AIMD admission settles
# at, and of each model the sessions of a fresh burst of 90 s, from and to, with the word before them.
PAPER_HARDWARE, PAPER_WINDOW = "rtx-pro-6000", 1024
PAPER_CEILING = {"qwen3-omni": 496}
PAPER_N_STAR = {"qwen3-omni": 209}
PAPER_BURST = {
    "qwen3-omni": (160, None, "at least"),
    "minicpm-o-4.5": (96, 96, "about"),
    "moshi": (32, None, "at least"),
    "qwen2.5-omni": (16, 24, "limited by its encoder"),
}


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    runs: Runs | None = None,
    full: bool = False,
    models: str = MODELS,
    hardware: str | None = None,
    windows: str | None = None,
    slowdowns: str | None = None,
    what_if: str = "209",
    target: float = 0.3,
    frames: int = FRAMES,
    seconds: float = 90.0,
    seed: int | None = None,
) -> Result:
    """Search N* of each model, hardware, window and slowdown, and the largest burst, each on fresh engines.

    ``models``: model cards, separated by commas, simulated on each of ``hardware`` with each of ``windows`` (tokens)
    and of ``slowdowns`` (1: the roofline); "none" for the profile alone, which runs with its own window in any case.
    ``what_if``: for each of these N the slowdown is sought that the profile bears with it, "none" for none; for the
    bursts that the paper prints without "at least" it is as well. ``target``: of N* and of a burst, as a part of B.
    ``frames``: of each session at N*. ``seconds``: of a burst. The quick form takes one GPU, one window and no
    slowdown, and finds a capacity to WITHIN, in some two minutes on two free cores; the full one takes four GPUs,
    three windows, three slowdowns and every N, in some hours. Raises ExperimentError, CardError, ProfileError,
    EngineError.
    """
    say, runs = progress or (lambda message, fraction: None), runs or Runs()
    if seed is not None:
        profile = profile.with_(seed=seed)
    cases = _cases(
        profile,
        listed("models", models, none=True),
        listed("hardware", hardware or (ALL_HARDWARE if full else HARDWARE), none=True),
        _numbers("windows", windows or (ALL_WINDOWS if full else WINDOWS), int),
        _numbers("slowdowns", slowdowns or (ALL_SLOWDOWNS if full else SLOWDOWNS), float),
    )
    loads = _numbers("what_if", what_if, int)
    _check_numbers(frames, seconds)
    for each in cases:
        _check(each, target, seconds)
    common = {"target": target, "within": 0.0 if full else WITHIN}
    bursts = list(dict.fromkeys(_as_burst(each) for each in cases))
    what_ifs = _what_ifs(profile, loads, bursts, seconds)
    points = [
        *({"what": "burst", "profile": each, "seconds": seconds, **common} for each in bursts),
        *({"what": "n_star", "profile": each, "frames": frames, **common} for each in cases),
        *({"what": "slowdown", "target": target, **each} for each in what_ifs),
    ]
    # An engine's default for the most sessions is no capacity.
    done = runs.map(measure, [{**point, "profile": roomy(point["profile"], seconds)} for point in points], say)
    burst_of = dict(zip(bursts, done, strict=False))
    found, slow = done[len(bursts) : len(bursts) + len(cases)], done[len(bursts) + len(cases) :]
    rows = [
        _row(each, seen, burst_of[_as_burst(each)], seconds, target) for each, seen in zip(cases, found, strict=True)
    ]
    asked = {"target": target, "n_star_frames": frames, "search_frames": SEARCH_FRAMES, "burst_s": seconds}
    return _result(profile, rows, _slow_rows(what_ifs, slow), {**asked, "within": common["within"]})


# -- what is asked -----------------------------------------------------------------------------------------------------


def _numbers(name: str, text: str, kind: type) -> list:
    numbers = listed(name, text, kind, "whole numbers" if kind is int else "numbers", none=True)
    if not all(0 < each < math.inf for each in numbers):
        raise ExperimentError(f"{name} must all be above 0, not {text!r}")
    return numbers


def _cases(profile: Profile, models, hardware, windows, slowdowns) -> list[Profile]:
    """The cards' profiles in order, and the profile itself unless it is one of them."""
    if models and not (hardware and windows and slowdowns):
        raise ExperimentError(
            "hardware, windows and slowdowns must each name one: give models=none for the profile alone"
        )
    cases = [
        load_profile(f"{SIMULATED}{model}@{gpu}", seed=profile.seed, window=window, slowdown=slowdown)
        for model in models
        for gpu in hardware
        for window in windows
        for slowdown in slowdowns
    ]
    return cases if profile in cases else [*cases, profile]


def _check_numbers(frames: int, seconds: float) -> None:
    if frames < 1:
        raise ExperimentError(f"frames must be 1 or more, not {frames}")
    if not 0 < seconds < math.inf:
        raise ExperimentError(f"seconds must be above 0, not {seconds:g}")


def _check(profile: Profile, target: float, seconds: float) -> None:
    if profile.executor != "simulated":
        raise ExperimentError(
            f"{profile.name} is no simulated profile: give {SIMULATED}{profile.name}, or measure its N* with agreement"
        )
    check_sessions_stay(profile)
    check_target(profile, target)
    try:
        profile.check_bound(profile.bound)
    except BoundError as error:
        raise ExperimentError(f"{profile.name}: {error}") from None
    length = burst_frames(profile, seconds) * profile.growth
    if length > profile.max_model_len:
        raise ExperimentError(
            f"{profile.name}: after {seconds:g} s a session has {length} tokens, more than max_model_len "
            f"{profile.max_model_len}: use fewer seconds"
        )


def _what_ifs(profile: Profile, loads: list[int], bursts: list[Profile], seconds: float) -> list[dict[str, Any]]:
    points = [{"profile": profile, "n": n, "seconds": None} for n in loads]
    for each in bursts:
        _, most, _ = PAPER_BURST.get(each.model, (None, None, ""))
        if most is not None and each.hardware == PAPER_HARDWARE and each.slowdown == 1:
            points.append({"profile": each, "n": most, "seconds": seconds})
    return points


def _as_burst(profile: Profile) -> Profile:
    """A burst is unbounded, whatever the window."""
    return profile.with_(window=PAPER_WINDOW)


# -- what comes of it --------------------------------------------------------------------------------------------------


def _row(profile: Profile, seen: dict, burst: dict, seconds: float, target: float) -> dict[str, Any]:
    paper = profile.hardware == PAPER_HARDWARE and profile.window == PAPER_WINDOW
    low, high, words = PAPER_BURST.get(profile.model, (None, None, "")) if paper else (None, None, "")
    return {
        "model": profile.model,
        "hardware": profile.hardware,
        "window": profile.window,
        "sinks": profile.sinks,
        "slowdown": profile.slowdown,
        "memory_ceiling": memory_ceiling(profile, profile.bound),
        "memory_at_most": most_plateaus(profile),
        **{key: value for key, value in seen.items() if key != "vllm"},
        "target_s": target * profile.frame_budget_s,
        "burst_90s" if seconds == 90 else "burst": burst["burst"],
        "burst_seconds": seconds,
        "burst_by_eq1": burst_room(profile, seconds),
        "burst_fails_at": burst["fails_at"],
        "burst_limit": burst["limit"],
        "profile": profile.name,
        "frame_budget_s": profile.frame_budget_s,
        "growth_per_frame": profile.growth,
        "pool_tokens": profile.pool_tokens,
        "vllm": seen["vllm"],
        "paper_memory_ceiling": PAPER_CEILING.get(profile.model) if paper else None,
        "paper_n_star": PAPER_N_STAR.get(profile.model) if paper else None,
        "paper_burst_low": low,
        "paper_burst_high": high,
        "paper_burst_words": words,
    }


def _slow_rows(what_ifs: list[dict], found: list[dict]) -> list[dict[str, Any]]:
    return [
        {
            "model": each["profile"].model,
            "hardware": each["profile"].hardware,
            "window": each["profile"].window if each["seconds"] is None else None,
            "burst_seconds": each["seconds"],
            **seen,
        }
        for each, seen in zip(what_ifs, found, strict=True)
    ]


def _result(profile: Profile, rows: list[dict], slow: list[dict], asked: dict[str, Any]) -> Result:
    from types import SimpleNamespace

    own = (profile.name, profile.window, profile.slowdown)
    mine = next(row for row in rows if (row["profile"], row["window"], row["slowdown"]) == own)
    vllm = mine["vllm"]
    rows = [{key: value for key, value in row.items() if key != "vllm"} for row in rows]
    nothing = Tables("none")
    return Result(
        experiment="capacity",
        profile=profile.name,
        executor=mine["executor"],
        vllm=vllm,
        seed=profile.seed,
        params={**params_of(profile, SimpleNamespace(threads=None, costs=mine["costs"])), **asked},
        metrics={"points": rows, "what_if": slow},
        claims=tuple(_claims(rows, slow, asked["within"])),
        sessions=nothing.sessions(),
        frames=nothing.frames(),
        pool=nothing.pool(),
    )


def _claims(rows: list[dict], slow: list[dict], within: float) -> list[Claim]:
    claims = []
    for row in rows:
        name = label_of_point(row)
        # What a search may be off by, and a session that does not fit where its neighbours' blocks are not whole.
        slack = max(1, math.floor(within * row["memory_ceiling"]))
        low, high = row["memory_ceiling"] - slack, row["memory_at_most"]
        ceiling = row["memory_ceiling_measured"]
        claims += [
            Claim(f"{name}: memory ends where the plateaus say", low <= ceiling <= high, ceiling, f"{low} to {high}"),
            Claim(f"{name}: N* fits memory", 0 < row["n_star"] <= high, row["n_star"], f"1 to {high}"),
        ]
        if row["burst_limit"] == MEMORY:
            burst = row.get("burst_90s", row.get("burst"))
            slack = max(1, math.floor(within * row["burst_by_eq1"]))
            off = abs(burst - row["burst_by_eq1"])
            claims.append(Claim(f"{name}: Eq. 1 predicts the burst", off <= slack, off, f"<= {slack} sessions"))
    curve = sorted((each for each in slow if each["burst_seconds"] is None and each["slowdown"]), key=lambda e: e["n"])
    if len(curve) > 1:
        borne = [each["slowdown"] for each in curve]
        falls = all(more >= less for more, less in pairwise(borne))
        claims.append(
            Claim("the more sessions, the smaller the slowdown they bear", falls, borne, "never rises with N")
        )
    return claims


def label_of_point(row: dict[str, Any]) -> str:
    """A point of the metrics in words: model, hardware, window, and its slowdown where it has one."""
    where = f" on {row['hardware']}" if row["hardware"] else ""
    slow = f", slowdown {row['slowdown']:g}" if row["slowdown"] != 1 else ""
    return f"{row['model']}{where}, W = {row['window']}{slow}"
