"""Sessions offered at a rate, and a controller that finds how many fit: bounded, unbounded, with an eye on the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from workbench.admission import AdmissionError, Aimd, Controller, FixedCap, Gradient2, Headroom
from workbench.experiments import Claim, ExperimentError, Progress, Result, joined, params_of, part
from workbench.experiments._open_system import Arm, found, measures, serve
from workbench.experiments._steady import FRAMES, Steady, check_target, memory_ceiling, n_star, steady
from workbench.profiles import SIMULATED, Profile, load_profile

# An engine at half the speed of the roofline, which no kernel reaches: of this model and this hardware it is latency
# that limits bounded sessions, and the pool that limits unbounded ones.
PROFILE = f"{SIMULATED}qwen2.5-omni@rtx-pro-6000"
PROFILE_CHANGES = {"slowdown": 2.0}
# The paper's own run (arXiv 2607.02640): sessions offered, their rate, the target as a part of B, where it settled, and
# the steady p99 of frame latency there, in seconds.
PAPER_PROFILE = f"{SIMULATED}qwen3-omni@rtx-pro-6000"
PAPER_OFFERED, PAPER_RATE, PAPER_TARGET, PAPER_N_STAR = 512, 8.0, 0.3, 209
PAPER_P99_S = 0.012
ERROR = 0.05
WITHIN = 0.01  # of the true N*, by which the quick form may find it too small
LARGE = 64  # sessions
BOUNDED, UNBOUNDED, HEADROOM = "bounded", "unbounded", "unbounded, headroom"
CONTROLLERS = ("aimd", "gradient2", "fixed", "headroom")


@dataclass(frozen=True)
class Plan:
    """An open system and who stands before it. Times in seconds; ``step`` and ``start`` in sessions."""

    controller: str
    target: float
    step: float
    factor: float
    start: int
    cap: int
    duration_s: float
    horizon_s: float

    def make(self, profile: Profile, bounded: bool, name: str | None = None) -> Controller:
        """The controller of one arm. Raises AdmissionError."""
        name = name or self.controller
        if name == "fixed":
            return FixedCap(self.cap)
        if name == "gradient2":
            return Gradient2(start=self.start)
        aimd = Aimd(
            self.target * profile.frame_budget_s, step=float(self.step), factor=float(self.factor), start=self.start
        )
        if name == "aimd":
            return aimd
        if name == "headroom":
            ceiling = memory_ceiling(profile, profile.bound) if bounded else None
            return Headroom(aimd, horizon_s=float(self.horizon_s), ceiling=ceiling)
        raise ExperimentError(f"no controller {name!r}: choose from {', '.join(CONTROLLERS)}")


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    controller: str = "aimd",
    target: float = PAPER_TARGET,
    step: float | None = None,
    factor: float = 0.9,
    start: int | None = None,
    cap: int | None = None,
    rate: float | None = None,
    holding: float | None = None,
    duration: float | None = None,
    horizon: float | None = None,
    frames: int = FRAMES,
    paper: bool = True,
    seed: int | None = None,
    full: bool = False,
) -> Result:
    """Serve an open system under ``controller``, and hold the N* it finds against that of a sweep of fixed N.

    ``target``: of p99 frame latency, as a part of B. ``step``, ``start``: of the cap, in sessions; by default 1/512 and
    1/4 of what memory or max_sessions allow. ``cap``: of the controller "fixed". ``rate``: sessions offered a second,
    by default enough to fill that many; ``holding``: how long a caller stays on average, ``duration``: of each arm, and
    ``horizon``: for which "headroom" keeps the pool from filling, by default twice ``holding``; all in seconds.
    ``frames``: of each session, to judge a fixed N by. ``paper`` adds the paper's own run. ``full`` takes three times
    the duration and finds the true N* exactly, otherwise to WITHIN. Three minutes by default, ten in full.
    Raises ExperimentError, EngineError.
    """
    say = progress or (lambda message, fraction: None)
    if seed is not None:
        profile = profile.with_(seed=seed)
    profile = open_system(profile, rate, holding)
    plan = _plan(profile, controller, target, step, factor, start, cap, duration, horizon, full)
    _check(profile, plan, frames)
    arms = {}
    shares = {BOUNDED: (0.0, 0.2), UNBOUNDED: (0.2, 0.3), HEADROOM: (0.3, 0.45)}
    for name, share in shares.items():
        bounded = name == BOUNDED
        made = plan.make(profile, bounded, "headroom" if name == HEADROOM else None)
        arms[name] = serve(profile, made, bounded, plan.duration_s, name, part(say, *share), tables_dir)
    settled = found(arms[BOUNDED].gate.trace)
    closed = profile.with_(arrivals_per_s=0.0, holding_s=0.0, sessions=1)
    # Where the search begins does not change what it finds.
    within = 0.0 if full else WITHIN
    n_true, points = n_star(closed, target, frames, part(say, 0.45, 0.75), guess=settled, within=within)
    below = sorted({n_true * quarter // 4 for quarter in (1, 2, 3)} - {0, *(point.n for point in points)})
    for i, n in enumerate(below):
        points.append(steady(closed, n, frames, part(say, 0.75 + 0.1 * i / 3, 0.78 + 0.1 * i / 3)))
    papers = _paper_run(profile.seed, part(say, 0.85, 1.0), tables_dir) if paper else {}
    judged = {"n_star_frames": frames, "within": within}
    return _result(profile, plan, judged, arms, settled, n_true, points, papers)


# -- what is asked for -------------------------------------------------------------------------------------------------


def open_system(profile: Profile, rate: float | None = None, holding: float | None = None) -> Profile:
    """The profile with its callers: see ``run``. Raises ExperimentError."""
    simulated = profile.executor == "simulated"
    for name, value in (("rate", rate), ("holding", holding)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ExperimentError(f"{name} must be above 0, not {value:g}")
    holding = holding or profile.holding_s or (150 if simulated else 30) * profile.frame_budget_s
    rate = rate or profile.arrivals_per_s or _most(profile) / holding
    return profile.with_(sessions=1, arrivals_per_s=float(rate), holding_s=float(holding))


def _most(profile: Profile) -> int:
    return min(profile.max_sessions, memory_ceiling(profile, profile.bound))


def _plan(profile, controller, target, step, factor, start, cap, duration, horizon, full) -> Plan:
    most, budget = _most(profile), profile.frame_budget_s
    if duration is None:
        duration = (250 if profile.executor == "simulated" else 45) * budget
    return Plan(
        controller=controller,
        target=target,
        # Slowly, for a session that has just come holds less than it will: a fast rise sees latencies of the young.
        step=max(1.0, most // 512) if step is None else step,
        factor=factor,
        # Where that rise would take too long, not from the bottom.
        start=(max(1, most // 4) if most >= LARGE else 1) if start is None else start,
        cap=most if cap is None else cap,
        duration_s=duration * (3 if full else 1),
        # A caller may stay for longer than most.
        horizon_s=2 * profile.holding_s if horizon is None else horizon,
    )


def _check(profile: Profile, plan: Plan, frames: int) -> None:
    profile.check_bound(profile.bound)
    check_target(profile, plan.target)
    if not (plan.duration_s >= 10 * profile.frame_budget_s and math.isfinite(plan.duration_s)):
        raise ExperimentError(f"duration must be at least 10 frames, {10 * profile.frame_budget_s:g} s")
    if frames < 1:
        raise ExperimentError(f"frames must be 1 or more, not {frames}")
    for name in (plan.controller, "headroom"):
        try:
            plan.make(profile, True, name)
        except AdmissionError as error:
            raise ExperimentError(str(error)) from None


# -- the paper's own run ----------------------------------------------------------------------------------------------


def _paper_run(seed: int, say: Progress, tables_dir) -> dict[str, Arm]:
    profile = load_profile(PAPER_PROFILE, seed=seed, arrivals_per_s=PAPER_RATE, sessions=1)
    arms = {}
    for name, bounded, share in ((BOUNDED, True, (0.0, 0.6)), (UNBOUNDED, False, (0.6, 1.0))):
        # Neither its start nor its step is printed. From a cap that lets all of them in, latency alone can shed any.
        controller = Aimd(PAPER_TARGET * profile.frame_budget_s, start=PAPER_OFFERED)
        until_s = 3 * PAPER_OFFERED / PAPER_RATE
        run = f"the paper's run, {name}"
        arms[name] = serve(profile, controller, bounded, until_s, run, part(say, *share), tables_dir, PAPER_OFFERED)
    return arms


# -- what comes of it --------------------------------------------------------------------------------------------------


def _result(
    profile, plan: Plan, judged: dict, arms: dict[str, Arm], settled, n_true, points: list[Steady], papers
) -> Result:
    error = abs(settled - n_true) / n_true if n_true else None
    bounded, unbounded, careful = (arms[name] for name in (BOUNDED, UNBOUNDED, HEADROOM))
    target_s = plan.target * profile.frame_budget_s
    metrics = {
        "bounded": {
            "n_star": settled,
            "n_true": n_true,
            "error": error,
            **measures(bounded),
            "points": [{**vars(point), "holds": point.holds(target_s)} for point in points],
        },
        "unbounded": measures(unbounded),
        "headroom": measures(careful),
    }
    within = error is not None and (error <= ERROR or abs(settled - n_true) <= 1)
    claims = [
        Claim("the controller finds N* on bounded sessions", within, error, f"<= {ERROR} or one session"),
        Claim("bounded sessions never wall under it", not bounded.walled, bounded.says, "no wall"),
        Claim("on unbounded sessions it over-admits into the wall", unbounded.walled, unbounded.says, "a wall"),
        Claim(
            "with an eye on the pool's forecast no allocation is refused",
            careful.manager.beat.first_refused_at_s is None,
            careful.manager.beat.first_refused_at_s or "none",
            "none",
        ),
    ]
    if papers:
        metrics["paper"] = {
            "profile": papers[BOUNDED].manager.profile.name,
            "offered": PAPER_OFFERED,
            "rate": PAPER_RATE,
            "n_star_of_the_paper": PAPER_N_STAR,
            **{name: measures(arm) for name, arm in papers.items()},
        }
        claims.append(
            Claim(
                "the paper's run walls unbounded and not bounded",
                papers[UNBOUNDED].walled and not papers[BOUNDED].walled,
                {name: arm.says for name, arm in papers.items()},
                "unbounded alone",
            )
        )
    facts = bounded.manager.engine.facts
    return Result(
        experiment="admission",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={**params_of(profile, facts), **vars(plan), **judged},
        metrics=metrics,
        claims=tuple(claims),
        **joined([arm.manager.tables for arm in (*arms.values(), *papers.values())]),
    )
