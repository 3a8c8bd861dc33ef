"""Does the simulator tell the truth? The same profile simulated and on the real engine: t_full, the wall, and N*."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench.costs import load_calibration
from workbench.experiments import Claim, ExperimentError, Progress, Result, check_sessions_stay, joined, params_of
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.simulation import ANY_MACHINE, simulated
from workbench.telemetry import RETURNED, Tables
from workbench.workload import caller, play

ERROR = 0.02
N_STAR_FRAMES = 60  # frames of each session that N* is judged by
AT_THE_WALL = 4  # frames to watch from the wall on
GIVE_UP_FACTOR = 2.0
BEGINS = 0.3  # of the first budget
FARTHEST = 4  # sessions by which N* may be off before the search is given up
MEASURED, SIMULATED = "measured", "simulated"


@dataclass(frozen=True)
class Steady:
    """N bounded sessions on a fresh engine, from the plateau on. Latencies in seconds."""

    executor: str
    n: int
    latency_p50_s: float
    latency_p99_s: float
    capped: int
    empty: int
    frames: int

    def holds(self, target_s: float) -> bool:
        """The condition of N*: nothing capped, nothing empty, p99 within the target."""
        return self.capped == 0 and self.empty == 0 and self.latency_p99_s <= target_s


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    seed: int | None = None,
    n_star: bool = True,
    target: float = 0.3,
    frames: int = N_STAR_FRAMES,
    step_noise: float | None = None,
    any_machine: bool = False,
) -> Result:
    """Run ``profile`` twice, on the engine at hand and simulated with what `workbench calibrate` measured of it.

    ``target``: the controller's, as a part of B, that the p99 of frame latency has to keep at N*. ``n_star`` false
    leaves N* out, which takes most of the time: each N is a fresh engine and ``frames`` frames of every session.
    ``step_noise``: of the twin, by default the spread of step times that the calibration found, since a p99 is made of
    it. ``any_machine``: take a calibration that was made elsewhere. Raises ExperimentError, CostError, EngineError.
    """
    if seed is not None:
        profile = profile.with_(seed=seed)
    _check(profile, target, frames)
    say = progress or (lambda message, fraction: None)
    twin = simulated(profile)
    if step_noise is None:
        step_noise = load_calibration(profile, any_machine=any_machine).error.sigma
    twin = twin.with_(calibration=ANY_MACHINE if any_machine else "", step_noise=step_noise)
    arms = {}
    for name, served, share in ((SIMULATED, twin, (0.0, 0.05)), (MEASURED, profile, (0.05, 0.3 if n_star else 1.0))):
        arms[name] = _to_the_wall(served, name, _part(say, *share), tables_dir)
    points: list[Steady] = []
    found: dict[str, int | None] = {SIMULATED: None, MEASURED: None}
    if n_star:
        found, points = _find_both(profile, twin, target * profile.frame_budget_s, frames, _part(say, 0.3, 1.0))
    return _result(
        profile,
        arms,
        found,
        points,
        {"target": target, "n_star_frames": frames if n_star else None, "step_noise": twin.step_noise},
    )


def _check(profile: Profile, target: float, frames: int) -> None:
    check_sessions_stay(profile)
    if not 0 < target < profile.wait_cap:
        raise ExperimentError(f"target must lie between 0 and the wait cap {profile.wait_cap:g} of B, not {target:g}")
    if frames < 1:
        raise ExperimentError(f"frames must be 1 or more, not {frames}")
    profile.check_bound(profile.bound)


def _part(say: Progress, start: float, end: float) -> Progress:
    return lambda message, part: say(message, start + (end - start) * part)


def _check_alive(manager: SessionManager) -> None:
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died: {manager.beat.dead}")


# -- the pool ----------------------------------------------------------------------------------------------------------


def _to_the_wall(profile: Profile, run: str, say: Progress, tables_dir: Path | None) -> SessionManager:
    budget = profile.frame_budget_s
    expected = profile.pool_tokens / (profile.sessions * profile.growth) * budget + (2 + AT_THE_WALL) * budget
    folder = None if tables_dir is None else Path(tables_dir) / run
    with SessionManager(profile, run, progress=lambda m: say(f"{run}: {m}", 0.0), save_to=folder) as manager:
        beat = manager.beat

        def over() -> bool:
            return beat.wall_at_s is not None and manager.now() >= beat.wall_at_s + (2 + AT_THE_WALL) * budget

        def tell(at: float) -> None:
            say(f"{run}: {manager.status()}", min(1.0, at / expected))

        # On both clocks between two ticks, so that the sessions begin at the same instants.
        manager.wait_until(BEGINS * budget)
        play(manager, GIVE_UP_FACTOR * expected, caller(manager), stop=over, tell=tell)
    _check_alive(manager)
    return manager


# -- N* ----------------------------------------------------------------------------------------------------------------


def _find_both(profile, twin, target_s, frames, say) -> tuple[dict[str, int | None], list[Steady]]:
    """N* of the simulator by bisection over every N, then of the real engine by stepping from there."""
    points: list[Steady] = []

    def probe(served: Profile) -> Callable[[int], bool]:
        known: dict[int, bool] = {}

        def holds(n: int) -> bool:
            if n not in known:
                points.append(_steady(served, n, frames, say))
                known[n] = points[-1].holds(target_s)
            return known[n]

        return holds

    low, high, holds = 0, profile.max_sessions + 1, probe(twin)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return {SIMULATED: low, MEASURED: _step_from(low, probe(profile), profile.max_sessions)}, points


def _step_from(start: int, holds: Callable[[int], bool], most: int) -> int | None:
    """The N next to ``start`` that holds while N + 1 does not; None when it is farther than FARTHEST away."""
    n = min(max(1, start), most)
    if holds(n):
        while n < most and n - start < FARTHEST and holds(n + 1):
            n += 1
        return None if n - start >= FARTHEST else n
    while n > 1 and start - n < FARTHEST:
        n -= 1
        if holds(n):
            return n
    return 0 if n == 1 else None


def _steady(profile: Profile, n: int, frames: int, say: Progress) -> Steady:
    bound, budget = profile.bound, profile.frame_budget_s
    # From the frame on at which a session has reached its plateau.
    first = math.ceil((bound.sink_tokens(profile.block_size) + bound.window + profile.block_size) / profile.growth)
    served = profile.with_(sessions=n)
    run = f"N = {n}, {SIMULATED if profile.executor == 'simulated' else MEASURED}"
    with SessionManager(served, run, progress=lambda m: say(f"{run}: {m}", 0.0)) as manager:
        manager.wait_until(BEGINS * budget)
        add = caller(manager, bound)
        for call in range(n):
            add(call)
        # One budget more, so that the last frame has returned.
        until = (first + frames + 3) * budget
        while manager.now() < until and manager.beat.dead is None:
            manager.wait_for(seconds=min(budget, until - manager.now()))
            say(f"{run}: {manager.status()}", min(1.0, manager.now() / until))
    _check_alive(manager)
    table = manager.frames()
    table = table[table["status"].isin(RETURNED) & table["frame"].between(first, first + frames - 1)]
    return Steady(
        executor=manager.engine.facts.executor,
        n=n,
        latency_p50_s=float(table["latency_s"].median()),
        latency_p99_s=float(table["latency_s"].quantile(0.99)),
        capped=int(table["capped"].sum()),
        empty=int(table["empty"].sum()),
        frames=len(table),
    )


# -- what comes of it --------------------------------------------------------------------------------------------------


def _result(profile, arms: dict[str, SessionManager], found, points: list[Steady], params: dict) -> Result:
    real, twin = arms[MEASURED], arms[SIMULATED]
    facts, budget = real.engine.facts, profile.frame_budget_s
    times = {
        "t_full": (twin.beat.first_refused_at_s, real.beat.first_refused_at_s),
        "t_wall": (twin.beat.wall_at_s, real.beat.wall_at_s),
    }
    metrics, claims = {}, []
    for name, (simulated_s, measured_s) in times.items():
        there = simulated_s is not None and measured_s is not None
        error = abs(simulated_s - measured_s) / measured_s if there else None
        metrics |= {f"{name}_error": error, f"{name}_simulated_s": simulated_s, f"{name}_measured_s": measured_s}
        holds = there and error <= max(ERROR, budget / measured_s)
        claims.append(Claim(f"{name} is that of the real engine", holds, error, f"<= {ERROR} or one frame"))
    metrics |= {
        "n_star_simulated": found[SIMULATED],
        "n_star_measured": found[MEASURED],
        "points": [{**vars(point), "holds": point.holds(params["target"] * budget)} for point in points],
        "latency_p50_s": {name: _median_latency(manager.tables) for name, manager in arms.items()},
    }
    if points:
        both = None not in found.values()
        off = abs(found[SIMULATED] - found[MEASURED]) if both else None
        claims.append(Claim("N* is that of the real engine", both and off <= 1, off, "<= 1 session"))
    return Result(
        experiment="agreement",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={**params_of(profile, facts), **params, "costs": twin.engine.facts.costs},
        metrics=metrics,
        claims=tuple(claims),
        **joined([manager.tables for manager in arms.values()]),
    )


def _median_latency(tables: Tables) -> float:
    """Of the frames on time, in seconds."""
    frames = tables.frames()
    return float(frames.loc[frames["status"] == "on_time", "latency_s"].median())
