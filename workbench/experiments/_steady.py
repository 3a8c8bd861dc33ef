"""N*, the largest fixed N that holds: N sessions on a fresh engine, judged from their plateau on, and the search."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from workbench.bound import KVBound, plateau
from workbench.experiments import ExperimentError, Progress
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.telemetry import OPEN, RETURNED, FrameRow
from workbench.workload import caller

FRAMES = 60  # of each session that N* is judged by
BEGINS = 0.3  # of the first budget: on both clocks between two ticks, so that the sessions begin at the same instants
P99 = 0.99
SETTLED = 0.98  # of the longest latency a budget before: what is still shorter than that is still on its way
PATIENCE = 2  # times as long as all prompts so far took: when the next has no answer by then, there is no room for it


@dataclass(frozen=True)
class Steady:
    """N sessions on a fresh engine, from the frame on that they are judged from. Latencies in seconds.

    ``frames``: those judged; fewer than were asked for where the run was given up because N could not hold any more.
    ``plateau_usage``: the mean part of the pool in use over the judged frames. ``refused``: whether an allocation was
    refused. ``vllm``, ``costs``: of the engine's facts.
    """

    executor: str
    n: int
    latency_p50_s: float
    latency_p99_s: float
    capped: int
    empty: int
    frames: int
    plateau_usage: float = math.nan
    refused: bool = False
    vllm: str = ""
    costs: str | None = None

    def holds(self, target_s: float) -> bool:
        """The condition of N*: nothing capped, nothing empty, p99 within the target."""
        return self.capped == 0 and self.empty == 0 and self.latency_p99_s <= target_s


def check_target(profile: Profile, target: float) -> None:
    """Refuse a target, as a part of B, that no frame or every frame keeps. Raises ExperimentError."""
    if not 0 < target < profile.wait_cap:
        raise ExperimentError(f"target must lie between 0 and the wait cap {profile.wait_cap:g} of B, not {target:g}")


def memory_ceiling(profile: Profile, bound: KVBound) -> int:
    """How many sessions' plateaus fit into the pool, at the most that each of them holds: floor(pool / plateau)."""
    most = plateau(bound, profile.block_size, profile.frame_tokens, profile.tokens_owed).most
    return profile.pool_blocks // most


def first_judged(profile: Profile) -> int:
    """The number of the frame from which on a session of this profile's bound is on its plateau."""
    bound = profile.bound
    return math.ceil((bound.sink_tokens(profile.block_size) + bound.window + profile.block_size) / profile.growth)


def steady(
    profile: Profile, n: int, frames: int, say: Progress, target_s: float | None = None, prompted: bool = False
) -> Steady:
    """Serve ``n`` sessions of the profile's bound until each had ``frames`` frames on its plateau.

    With ``target_s`` the run ends as soon as N cannot hold any more. ``prompted``: the sessions open with a prompt as
    long as what the bound keeps, so that each is on its plateau with its first frame. They are judged as soon as the
    work that the prompts left is done, which is sooner where a frame adds few tokens. Raises ExperimentError,
    EngineError.
    """
    bound = profile.bound
    if prompted:
        return _serve(profile, n, frames, say, target_s, bound, bound.sink_tokens(profile.block_size) + bound.window)
    return _serve(profile, n, frames, say, target_s, bound, first=first_judged(profile))


def burst(profile: Profile, n: int, frames: int, say: Progress, target_s: float | None = None, aged: int = 0) -> Steady:
    """Serve ``n`` unbounded sessions for their first ``frames`` frames, all of which are judged. See ``steady``.

    ``aged``: they open with a prompt as long as what so many frames leave, and are judged when its work is done.
    """
    return _serve(profile, n, frames, say, target_s, prompt=aged * profile.growth)


def _serve(profile, n, frames, say, target_s, bound=None, prompt=0, first=0) -> Steady:
    """Judge ``frames`` frames of each session, from number ``first`` on or, with a prompt, from where all settled."""
    budget = profile.frame_budget_s
    run = f"N = {n}, {'simulated' if profile.executor == 'simulated' else 'measured'}"
    with SessionManager(profile.with_(sessions=n), run, progress=lambda m: say(f"{run}: {m}", 0.0)) as manager:
        manager.wait_until(BEGINS * budget)
        add = caller(manager, bound, prompt)
        with warnings.catch_warnings():
            # Whether N fits is what is asked here.
            warnings.filterwarnings("ignore", message="the plateaus of")
            for call in range(n):
                add(call)
        if prompt:
            _settle(manager, lambda: say(f"{run}: {manager.status()}, the prompts are computed", 0.0))
        sessions = manager.beat.sessions
        begins = {name: session.frame if prompt else first for name, session in sessions.items()}
        judged_from_s = manager.now() if prompt else (first + 1) * budget
        # One budget more, so that the last frame has returned.
        until = manager.now() + (frames + 2) * budget if prompt else (first + frames + 3) * budget
        lost = _Lost(manager.tables.frame_rows, begins, frames, target_s)
        while manager.now() < until and manager.beat.dead is None and not (target_s is not None and lost()):
            manager.wait_for(seconds=min(budget, until - manager.now()))
            say(f"{run}: {manager.status()}", min(1.0, manager.now() / until))
        left = len(sessions)
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died: {manager.beat.dead}")
    if left < n:
        reason = manager.sessions()["reason"].iloc[0]
        raise ExperimentError(f"{n - left} of {n} sessions ended before they were judged ({reason}): use fewer frames")
    table, pool = manager.frames(), manager.pool()
    number = table["frame"] - table["session"].map(begins)
    table = table[table["status"].isin(RETURNED) & number.between(0, frames - 1)]
    pool = pool[pool["at_s"] >= judged_from_s]
    facts = manager.engine.facts
    return Steady(
        executor=facts.executor,
        n=n,
        latency_p50_s=float(table["latency_s"].median()),
        latency_p99_s=float(table["latency_s"].quantile(P99)),
        capped=int(table["capped"].sum()),
        empty=int(table["empty"].sum()),
        frames=len(table),
        plateau_usage=float((pool["blocks_used"] / pool["blocks_total"]).mean()),
        refused=manager.beat.first_refused_at_s is not None,
        vllm=facts.vllm,
        costs=facts.costs,
    )


def _settle(manager: SessionManager, tell: Callable[[], None]) -> None:
    """Wait until all prompts are computed, no chunk waits behind another and frames no longer come back sooner than a
    budget before.

    Given up where that comes to nothing: a prompt that finds no room, or an engine that falls behind.
    """
    beat, rows, budget = manager.beat, manager.tables.frame_rows, manager.profile.frame_budget_s
    began = progress_at = manager.now()
    patience = first_judged(manager.profile) * budget
    answered, seen, before = 0, 0, math.inf
    while beat.dead is None and manager.now() - progress_at <= patience:
        manager.wait_for(seconds=budget)
        tell()
        sessions = beat.sessions.values()
        done = sum(s.frame > 0 and not (s.in_flight and s.in_flight.frame == 0) for s in sessions)
        if done > answered:
            answered, progress_at = done, manager.now()
            patience = max(2 * budget, PATIENCE * (progress_at - began))
        # Those of the budget before this one: each has returned, at the wait cap at the latest.
        end = next((i for i in range(seen, len(rows)) if rows[i].due_at_s > manager.now() - budget), len(rows))
        worst = max((row.latency_s for row in rows[seen:end]), default=math.inf)
        late = any(row.capped for row in rows[seen:end]) or any(s.waiting for s in sessions)
        if answered == len(sessions) and not late and SETTLED * before <= worst < math.inf:
            return
        seen, before = end, worst


class _Lost:
    """Whether N can hold no more: a judged frame was capped or empty, or too many of all to come are past the target.

    ``begins``: the number of the first judged frame of each session, ``frames`` of which are judged.
    """

    def __init__(self, rows: list[FrameRow], begins: dict[str, int], frames: int, target_s: float | None) -> None:
        self.rows, self.begins, self.frames, self.target_s = rows, begins, frames, target_s
        self._allowed = (1 - P99) * len(begins) * frames
        self._late = self._next = 0

    def __call__(self) -> bool:
        while self._next < len(self.rows) and (row := self.rows[self._next]).status != OPEN:
            self._next += 1
            if not 0 <= row.frame - self.begins[row.session] < self.frames or row.status not in RETURNED:
                continue
            if row.capped or row.empty:
                return True
            self._late += row.latency_s > self.target_s
        return self._late > self._allowed


def largest(holds: Callable[[int], bool], most: int, guess: int, within: float = 0.0) -> int:
    """The largest N from 0 to ``most`` that holds: from ``guess`` on in growing strides, then by bisection.

    ``holds`` has to be true up to some N and false from there on. It is asked about each N once at most. ``within``:
    the part of N by which the answer may be too small.
    """
    low, high = 0, most + 1
    n = min(max(1, guess), most)
    stride = max(1, int(within * n))
    while low < n < high:
        if holds(n):
            low, n = n, n + stride
        else:
            high, n = n, n - stride
        if low and high <= most:
            break
        stride *= 2
    while high - low > max(1, within * low):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def n_star(
    profile: Profile,
    target: float,
    frames: int,
    say: Progress,
    guess: int | None = None,
    prompted: bool = False,
    within: float = 0.0,
) -> tuple[int, list[Steady]]:
    """N* of a profile at ``target``, a part of B, and every N that was served to find it.

    ``guess``: by default what memory allows. ``prompted``: see ``steady``; ``within``: see ``largest``. Raises
    ExperimentError, EngineError.
    """
    points: list[Steady] = []
    target_s = target * profile.frame_budget_s

    def holds(n: int) -> bool:
        points.append(steady(profile, n, frames, say, target_s, prompted))
        return points[-1].holds(target_s)

    guess = memory_ceiling(profile, profile.bound) if guess is None else guess
    return largest(holds, profile.max_sessions, guess, within), points
