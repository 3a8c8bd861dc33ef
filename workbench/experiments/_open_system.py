"""An open system before a gate: callers come and go, a controller sets the cap, and what is counted of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from workbench.admission import Controller, Gate
from workbench.beat import WALL_BUDGETS
from workbench.experiments import ExperimentError, Progress
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.telemetry import RETURNED
from workbench.workload import play, voice


@dataclass(frozen=True)
class Arm:
    """One run of the open system."""

    manager: SessionManager
    gate: Gate

    @property
    def walled(self) -> bool:
        """The wall, or what is left of it where people hang up: each gives some blocks back, and a few late tokens come
        of them. Then it is two frame budgets without one whole frame after the pool was full."""
        return self.manager.beat.wall_at_s is not None or (
            self.manager.beat.first_refused_at_s is not None
            and self.longest_silence_s >= WALL_BUDGETS * self.manager.profile.frame_budget_s
        )

    @property
    def says(self) -> str:
        """In words, whether and when it walled."""
        wall_s = self.manager.beat.wall_at_s
        if wall_s is not None:
            return f"wall at {wall_s:.1f} s"
        return f"{self.longest_silence_s:.1f} s without a whole frame" if self.walled else "no wall"

    @property
    def longest_silence_s(self) -> float:
        """The longest time without a whole frame, from the first refused allocation on; 0 without one."""
        full = self.manager.beat.first_refused_at_s
        if full is None:
            return 0.0
        frames = self.manager.frames()
        whole = frames[(frames["status"] == "on_time") & ~frames["empty"] & (frames["returned_at_s"] > full)]
        at = [full, *sorted(whole["returned_at_s"]), self.manager.now()]
        return max(b - a for a, b in pairwise(at))


def serve(
    profile: Profile,
    controller: Controller,
    bounded: bool,
    until_s: float,
    name: str,
    say: Progress,
    tables_dir: Path | None = None,
    offered: float = math.inf,
) -> Arm:
    """Let the profile's callers come and go before a gate, on a fresh engine. ``offered``: who calls, at most."""
    gate, bound = Gate(controller, profile.frame_budget_s), profile.bound if bounded else None
    folder = None if tables_dir is None else Path(tables_dir) / name.replace(", ", "_")

    def offer(call: int) -> str | None:
        if call >= offered:
            return None
        clip, start_s = voice(profile, call)
        return manager.offer(clip, bound, start_s=start_s)

    def tell(at: float) -> None:
        say(f"{name}: {len(manager.beat.sessions)} sessions, cap {gate.cap}, {manager.status()}", at / until_s)

    with SessionManager(
        profile, name, gate=gate, save_to=folder, progress=lambda m: say(f"{name}: {m}", 0.0)
    ) as manager:
        play(manager, until_s, offer, tell=tell)
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died in the {name} arm: {manager.beat.dead}")
    return Arm(manager, gate)


def found(trace: list[dict]) -> int:
    """The N* that a controller found: the mean of the open sessions from the first time on that it lowered the cap.

    Where it never did, the most that there were: fewer were offered than it would have let in.
    """
    turns = turning_points(trace)
    if not turns:
        return max((row["sessions"] for row in trace), default=0)
    settled = [row["sessions"] for row in trace if row["at_s"] >= turns[0]["at_s"]]
    return round(sum(settled) / len(settled))


def turning_points(trace: list[dict]) -> list[dict]:
    """The intervals of a gate's trace at whose end the cap was lowered."""
    return [after for before, after in pairwise(trace) if after["cap"] < before["cap"]]


def measures(arm: Arm) -> dict:
    """What is counted of an arm. Times in seconds; shares are of the frames that returned."""
    beat, trace = arm.manager.beat, arm.gate.trace
    frames = arm.manager.frames()
    frames = frames[frames["status"].isin(RETURNED)]
    failed = frames["capped"] | frames["empty"]
    full = beat.first_refused_at_s
    sessions = [row["sessions"] for row in trace]
    turns = [row["sessions"] for row in turning_points(trace)]
    return {
        "controller": arm.gate.controller.name,
        "n_peak": max(sessions, default=0),
        "turns": turns,
        "offered": len(arm.manager.tables.session_rows),
        "shed": arm.gate.shed,
        "walled": arm.walled,
        "t_full_s": full,
        "t_wall_s": beat.wall_at_s,
        "longest_silence_s": arm.longest_silence_s,
        "usage_peak": max((row["usage"] for row in trace), default=0.0),
        "latency_p99_s": float(frames.loc[~failed, "latency_s"].quantile(0.99)) if (~failed).any() else None,
        "failed_share": float(failed.mean()) if len(frames) else None,
        "failed_share_after_full": None if full is None else float(failed[frames["due_at_s"] > full].mean()),
        "trace": trace,
    }
