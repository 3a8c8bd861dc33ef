"""Serve a policy with every engine step recorded, and judge it: compute and prefill tokens a frame, latency, memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workbench.bound import KVBound
from workbench.engine import EngineDead
from workbench.engine.recycling import Recycling, RecyclingEngine
from workbench.engine.simulated import SimulatedEngine
from workbench.engine.vllm import VllmEngine
from workbench.experiments import ExperimentError, Progress, part
from workbench.experiments._steady import BEGINS, first_judged
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.simulation import costs_of
from workbench.workload import caller

UNBOUNDED, BOUNDED, RECYCLED = "unbounded", "bounded", "recycled"
ENDS = 0.1  # of a budget after the wait cap: when a session is closed behind its last frame


class EngineStep(NamedTuple):
    """One step: when, on the engine's clock; its prefill tokens; the seconds of it that are compute.

    A simulated step is mostly the reading of the weights, once for whoever is in it. An engine that is never idle takes
    the same seconds per frame whatever it is asked to do: more just shares a step. So compute is what a step takes
    beyond the least one there is, a single sequence that decodes one token on no context. Of a real step, whose parts
    nobody can see, it is all that was timed; there this says something where the engine is idle between the frames.
    """

    began_s: float
    ended_s: float
    prefill_tokens: int
    compute_s: float


class _Noted:
    """Costs that remember what they said last: the prefill tokens of a step, and its compute in seconds."""

    def __init__(self, costs, slowdown: float) -> None:
        self.costs, self.source, self.front_end_s = costs, costs.source, costs.front_end_s
        self.slowdown = slowdown
        self.least_s = costs.step_s(0, 1, 0, 0.0, 0)
        self.last = (0, 0.0)

    def step_s(self, prefill_tokens, decoding, context_tokens, encoder_s, prefill_pairs) -> float:
        seconds = self.costs.step_s(prefill_tokens, decoding, context_tokens, encoder_s, prefill_pairs)
        self.last = (prefill_tokens, self.slowdown * max(0.0, seconds - self.least_s))
        return seconds


class RecordedSimulation(SimulatedEngine):
    """A simulated engine that keeps its steps in ``recorded``."""

    def __init__(self, profile: Profile) -> None:
        self._noted = _Noted(costs_of(profile), profile.slowdown)
        super().__init__(profile, costs=self._noted)
        self.recorded: list[EngineStep] = []

    def begin_step(self) -> None:
        steps = self.steps
        super().begin_step()
        if self.steps > steps:
            # It runs now, so what happens next is its end.
            self.recorded.append(EngineStep(self.now(), self.next_at(), *self._noted.last))


class RecordedVllm(VllmEngine):
    """A real engine that keeps its steps in ``recorded``, once it has stopped."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.recorded: list[EngineStep] = []
        self._records = False

    async def start(self, progress=None) -> None:
        await super().start(progress)
        await self.record_steps(True)
        self._records = True

    async def stop(self) -> None:
        if self._records:
            self._records = False
            try:
                for began, ended, prefill, *_ in await self.steps():
                    self.recorded.append(EngineStep(began, ended, prefill, ended - began))
            except EngineDead:
                pass  # the beat has heard of it, and its run is given up there
        await super().stop()


@dataclass(frozen=True)
class Span:
    """The frames that a comparison is made on: the same of every session and every policy, whole periods of them."""

    first: int
    frames: int

    @property
    def end(self) -> int:
        return self.first + self.frames


def recycling(profile: Profile, slack: int) -> Recycling:
    return Recycling(profile.bound, slack, profile.block_size, profile.frame_tokens, profile.tokens_owed)


def span(profile: Profile, slack: int, frames: int) -> Span:
    """From where both bounded policies are full, for at least ``frames`` frames."""
    each = recycling(profile, slack)
    # Recycled sessions repeat themselves from ``first`` on, so a later start that is no whole period on is as good.
    return Span(max(each.first, first_judged(profile)), -(-frames // each.period) * each.period)


@dataclass(frozen=True)
class Served:
    """A policy that was served: each session for ``frames`` frames. ``steps`` are in seconds since the run began."""

    profile: Profile
    frames: int
    manager: SessionManager
    steps: list[EngineStep]

    @property
    def prefill_tokens(self) -> int:
        """Of the whole run."""
        return sum(step.prefill_tokens for step in self.steps)

    @property
    def walled(self) -> bool:
        return self.manager.beat.wall_at_s is not None

    def judged(self, which: Span) -> dict[str, Any]:
        """What a frame of ``which`` took: seconds of compute, prefill tokens, latency; how busy the engine was, and how
        full the pool."""
        profile, budget = self.profile, self.profile.frame_budget_s
        # In this time each session's frames ``which`` fall due. What is still unanswered at its end makes up for what
        # was at its beginning, a whole number of periods before.
        begins, ends = ((BEGINS + 1 + at) * budget for at in (which.first, which.end))
        steps = [step for step in self.steps if begins <= step.began_s < ends]
        count = profile.sessions * which.frames
        table, pool = self.manager.frames(), self.manager.pool()
        table = table[table["frame"].between(which.first, which.end - 1)]
        pool = pool[pool["at_s"].between(begins, ends)]
        usage = pool["blocks_used"] / pool["blocks_total"]
        latency = table["latency_s"]
        return {
            "compute_per_frame_s": sum(step.compute_s for step in steps) / count,
            "busy": sum(step.ended_s - step.began_s for step in steps) / (ends - begins),
            "prefill_per_frame": sum(step.prefill_tokens for step in steps) / count,
            **{f"latency_p{q}_s": float(latency.quantile(q / 100)) for q in (50, 90, 99)},
            "capped": int(table["capped"].sum()),
            "empty": int(table["empty"].sum()),
            "usage_mean": float(usage.mean()),
            "usage_most": float(usage.max()),
            "walled": self.walled,
        }

    def latency_of(self, which: Span, recycled: bool, each: Recycling) -> float | None:
        """The median latency of the frames at which sessions are recycled, or of those between; None without any."""
        table = self.manager.frames()
        frames = [k for k in range(which.first, which.end) if each.recycles(k) == recycled]
        return float(table.loc[table["frame"].isin(frames), "latency_s"].median()) if frames else None


def serve(
    profile: Profile,
    policy: str,
    frames: int,
    say: Progress,
    slack: int = 0,
    tables_dir: Path | None = None,
    run: str | None = None,
) -> Served:
    """Serve ``frames`` frames of each of the profile's sessions under ``policy`` on a fresh engine, and no more.

    ``run`` names it in the tables. Raises ExperimentError where the engine died, EngineError.
    """
    engine = (RecordedSimulation if profile.executor == "simulated" else RecordedVllm)(profile)
    outer = RecyclingEngine(engine, profile.bound, slack) if policy == RECYCLED else engine
    bound: KVBound | None = None if policy == UNBOUNDED else profile.bound
    budget, name = profile.frame_budget_s, run or policy
    folder = None if tables_dir is None else Path(tables_dir) / name
    with SessionManager(profile, name, engine=outer, progress=lambda m: say(m, 0.0), save_to=folder) as manager:
        # On both clocks between two ticks, so that the sessions begin at the same instants.
        manager.wait_until(BEGINS * budget)
        add = caller(manager, bound)
        for call in range(profile.sessions):
            add(call)
        after = (frames + profile.wait_cap + ENDS) * budget
        rows = manager.tables.session_rows
        for until, session in sorted((row.opened_at_s + after, session) for session, row in rows.items()):
            while manager.now() < until and manager.beat.dead is None:
                manager.wait_for(seconds=min(budget, until - manager.now()))
                say(f"{name}: {manager.status()}", min(1.0, manager.now() / (after + 2 * budget)))
            if session in manager.beat.sessions:
                manager.close_session(session)
        offset = engine.now() - manager.now()
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died in the {name} run: {manager.beat.dead}")
    steps = [step._replace(began_s=step.began_s - offset, ended_s=step.ended_s - offset) for step in engine.recorded]
    return Served(profile, frames, manager, steps)


def compare(profile: Profile, slacks: list[int], frames: int, say: Progress, tables_dir: Path | None = None):
    """The profile's bound as three policies, recycled with each of ``slacks``: (points, what was served last of each).

    Each served for as many frames as the longest comparison needs. A point is a dict, see the experiment's metrics.
    """
    most = longest(profile, slacks, frames)
    total = 2 + len(slacks)
    served = {
        policy: serve(profile, policy, most, part(say, i / total, (i + 1) / total), tables_dir=tables_dir)
        for i, policy in enumerate((UNBOUNDED, BOUNDED))
    }
    points = []
    for i, slack in enumerate(slacks):
        tell = part(say, (2 + i) / total, (3 + i) / total)
        served[RECYCLED] = serve(profile, RECYCLED, most, tell, slack, tables_dir)
        points.append(_point(profile, served, slack, span(profile, slack, frames)))
    return points, served


def longest(profile: Profile, slacks: list[int], frames: int) -> int:
    """Frames of a session that a comparison over ``slacks`` needs."""
    return max(span(profile, slack, frames).end for slack in slacks)


def _point(profile: Profile, served: dict[str, Served], slack: int, which: Span) -> dict[str, Any]:
    each, recycled = recycling(profile, slack), served[RECYCLED]
    judged = {policy: one.judged(which) for policy, one in served.items()}
    facts = recycled.manager.engine.facts
    return {
        "executor": facts.executor,
        "window": profile.window,
        "slack": slack,
        "sessions": profile.sessions,
        "factor": judged[RECYCLED]["compute_per_frame_s"] / judged[BOUNDED]["compute_per_frame_s"],
        "prefill_factor": judged[RECYCLED]["prefill_per_frame"] / judged[BOUNDED]["prefill_per_frame"],
        "prefill_per_frame_predicted": each.prefill_per_frame,
        "first_frame": which.first,
        "frames": which.frames,
        "period_frames": each.period,
        "recycled_frame_p50_s": recycled.latency_of(which, True, each),
        "between_p50_s": recycled.latency_of(which, False, each),
        "prefill_tokens": {
            policy: {
                "measured": one.prefill_tokens,
                "predicted": profile.sessions
                * (each.prefill(one.frames) if policy == RECYCLED else one.frames * profile.frame_tokens),
            }
            for policy, one in served.items()
        },
        "preemptions": max(int(one.manager.pool()["preemptions"].max()) for one in served.values()),
        **judged,
    }
