"""Does the simulator tell the truth? The same profile simulated and on the real engine: t_full, the wall, and N*."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workbench.costs import load_calibration
from workbench.experiments import Claim, ExperimentError, Progress, Result, check_sessions_stay, joined, params_of, part
from workbench.experiments._steady import BEGINS, FRAMES, Steady, check_target, largest, memory_ceiling, steady
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.simulation import ANY_MACHINE, simulated
from workbench.telemetry import Tables
from workbench.workload import caller, play

ERROR = 0.02
AT_THE_WALL = 4  # frames to watch from the wall on
GIVE_UP_FACTOR = 2.0
FARTHEST = 4  # sessions by which N* may be off before the search is given up
MEASURED, SIMULATED = "measured", "simulated"


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    seed: int | None = None,
    n_star: bool = True,
    target: float = 0.3,
    frames: int = FRAMES,
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
        arms[name] = _to_the_wall(served, name, part(say, *share), tables_dir)
    points: list[Steady] = []
    found: dict[str, int | None] = {SIMULATED: None, MEASURED: None}
    if n_star:
        found, points = _find_both(profile, twin, target * profile.frame_budget_s, frames, part(say, 0.3, 1.0))
    return _result(
        profile,
        arms,
        found,
        points,
        {"target": target, "n_star_frames": frames if n_star else None, "step_noise": twin.step_noise},
    )


def _check(profile: Profile, target: float, frames: int) -> None:
    check_sessions_stay(profile)
    check_target(profile, target)
    if frames < 1:
        raise ExperimentError(f"frames must be 1 or more, not {frames}")
    profile.check_bound(profile.bound)


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
                points.append(steady(served, n, frames, say))
                known[n] = points[-1].holds(target_s)
            return known[n]

        return holds

    most = profile.max_sessions
    there = largest(probe(twin), most, guess=memory_ceiling(twin, twin.bound))
    return {SIMULATED: there, MEASURED: _step_from(there, probe(profile), most)}, points


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
