"""Who may come in: controllers that set the admission cap, one class each, behind one small interface.

A controller is told what each interval showed (Interval) and answers with the cap, the most sessions that may be open.
A session that is offered at the cap is shed: refused at once, with the reason in the sessions table. No session that is
open is ever ended for admission's sake, so a cap below the sessions there are takes effect as they leave.

A frame that was capped or empty is a failure, never a latency sample: at a wall frames return on time, and a controller
that read their latency would let everybody in. And no cap rises while fewer sessions are offered than it allows, for
then the latencies seen say nothing of what it would take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class AdmissionError(ValueError):
    """A controller that cannot be made as asked; one line that says what to do."""


@dataclass(frozen=True)
class Interval:
    """What was seen since the cap was last set.

    latencies_s: of the frames that returned whole, in seconds. failures: frames that returned capped or empty.
    sessions: open at its end. shed: refused during it. at_s: its end, in seconds since the run began.
    t_full_s: the forecast of the pool, None where there is none: too early, or some session is bounded.
    """

    at_s: float
    sessions: int
    latencies_s: Sequence[float] = ()
    failures: int = 0
    shed: int = 0
    t_full_s: float | None = None

    def pressed(self, cap: int) -> bool:
        """Whether as many sessions were offered as ``cap`` allows, or more."""
        return self.shed > 0 or self.sessions >= cap

    def latency_s(self, quantile: float) -> float | None:
        """A quantile of the latencies; None without one."""
        import numpy as np

        return float(np.quantile(self.latencies_s, quantile)) if len(self.latencies_s) else None


class Controller(Protocol):
    """``cap``: the most sessions that may be open. ``name``: as it is said to whoever is shed."""

    name: str
    cap: int

    def update(self, seen: Interval) -> None:
        """Set the cap by what an interval showed."""
        ...


class FixedCap:
    """A cap that stays what it is."""

    name = "fixed"

    def __init__(self, cap: int) -> None:
        self.cap = _whole("cap", cap, 1)

    def update(self, seen: Interval) -> None:
        """Nothing that is seen changes it."""


class Aimd:
    """Additive increase, multiplicative decrease, on the measured latency of frames: the paper's controller.

    With L the ``quantile`` of the latencies and F the failures of an interval,

        cap <- cap + step                                  F = 0, L <= target, and the cap is pressed
        cap <- max(1, floor(factor x min(cap, sessions)))  F > 0 or L > target, and sessions <= cap since before it
        cap                                                else

    Source: arXiv 2607.02640 for the signal and the target (600 ms of B = 2 s), Chiu and Jain (1989) for the rule; the
    paper prints neither step nor factor. One congestion lowers the cap once: before the load has come down to it, and
    for the interval in which it does, frames tell of the load that there was (as RFC 5681 halves a window once a round
    trip).
    """

    name = "AIMD"

    def __init__(
        self, target_s: float, *, step: float = 1.0, factor: float = 0.9, start: int = 1, quantile: float = 0.99
    ) -> None:
        self.target_s = _above("target_s", target_s, 0)
        self.step = _above("step", step, 0)
        self.factor = _between("factor", factor)
        self.quantile = _between("quantile", quantile)
        self._cap = float(_whole("start", start, 1))
        self._came_down = True

    @property
    def cap(self) -> int:
        return int(self._cap)

    def update(self, seen: Interval) -> None:
        latency = seen.latency_s(self.quantile)
        if seen.failures or (latency is not None and latency > self.target_s):
            if self._came_down and seen.sessions <= self.cap:
                self._cap = float(max(1, math.floor(self.factor * min(self.cap, seen.sessions))))
        elif latency is not None and seen.pressed(self.cap):
            self._cap += self.step
        self._came_down = seen.sessions <= self.cap


class Gradient2:
    """A cap that follows the gradient of latency: how much longer frames take now than they have of late.

    With the interval's mean latency S, its exponential mean over the last ``long`` intervals L, tolerance t, and
    smoothing a,

        g   <- max(0.5, min(1, t L / S)), and 0.5 after a failure
        cap <- (1 - a) cap + a (g cap + queue)

    while at least half of the cap is open; it rises only where it is pressed. L is taken back by 5 % where it is
    more than twice S, so that an overload is not remembered as the rule. Source: Gradient2Limit of Netflix's
    concurrency-limits, with its defaults. It knows no deadline: where latency grows slowly it lets in more than a
    target would, and a latency that stays high becomes the rule.
    """

    name = "Gradient2"

    def __init__(
        self, *, tolerance: float = 1.5, smoothing: float = 0.2, queue: int = 4, long: int = 600, start: int = 20
    ) -> None:
        self.tolerance = _above("tolerance", tolerance, 0)
        self.smoothing = _between("smoothing", smoothing)
        self.queue, self.long = _whole("queue", queue, 1), _whole("long", long, 1)
        self._cap = float(_whole("start", start, 1))
        self._long_s: float | None = None

    @property
    def cap(self) -> int:
        return int(self._cap)

    def update(self, seen: Interval) -> None:
        gradient = 0.5 if seen.failures else self._gradient(seen)
        if gradient is None or not (seen.pressed(self.cap) or seen.sessions >= self.cap / 2):
            return
        aim = gradient * self._cap + self.queue
        wanted = max(1.0, (1 - self.smoothing) * self._cap + self.smoothing * aim)
        if wanted <= self._cap or seen.pressed(self.cap):
            self._cap = wanted

    def _gradient(self, seen: Interval) -> float | None:
        if not len(seen.latencies_s):
            return None
        short_s = sum(seen.latencies_s) / len(seen.latencies_s)
        if self._long_s is None:
            self._long_s = short_s
        else:
            self._long_s += (short_s - self._long_s) * 2 / (self.long + 1)
        if self._long_s > 2 * short_s:
            self._long_s *= 0.95
        return max(0.5, min(1.0, self.tolerance * self._long_s / short_s)) if short_s > 0 else 1.0


class Headroom:
    """AIMD on latency, and never more sessions than the pool has room for.

    Unbounded sessions: Eq. 1 (arXiv 2607.02640) solved for N. If n sessions fill the pool at t_full, then so many may
    be open that it holds for ``horizon_s`` from now,

        N <= n (t_full - now) / horizon

    which is a guarantee to the sessions there are: that they can talk on for the horizon, whoever else is let in.
    Bounded sessions: N <= ``ceiling``, as many as the pool has plateaus for. Without a forecast (too early, or bounded
    and unbounded sessions together) the ceiling alone holds.
    """

    name = "headroom"

    def __init__(self, latency: Aimd, *, horizon_s: float, ceiling: int | None = None) -> None:
        self.latency = latency
        self.horizon_s = _above("horizon_s", horizon_s, 0)
        self.ceiling = math.inf if ceiling is None else _whole("ceiling", ceiling, 0)
        self._room = self.ceiling

    @property
    def cap(self) -> int:
        return int(min(self.latency.cap, self._room))

    def update(self, seen: Interval) -> None:
        # What memory forbids was never tried: latency's cap is pressed only where it is the lower of the two.
        if self._room >= self.latency.cap or not seen.pressed(self.cap) or seen.failures:
            self.latency.update(seen)
        self._room = self.ceiling
        if seen.t_full_s is not None:
            room = seen.sessions * max(0.0, seen.t_full_s - seen.at_s) / self.horizon_s
            self._room = min(self._room, math.floor(room))


@dataclass
class Gate:
    """Stands before a session manager: gathers what each interval shows, asks the controller, sheds at the cap.

    ``interval_s``: between two settings of the cap; one frame budget hears once of each session.
    ``trace``: one row per interval.
    """

    controller: Controller
    interval_s: float
    trace: list[dict] = field(default_factory=list)
    shed: int = 0
    _latencies_s: list[float] = field(default_factory=list)
    _failures: int = 0
    _shed_now: int = 0
    _began_at_s: float | None = None

    def __post_init__(self) -> None:
        _above("interval_s", self.interval_s, 0)

    @property
    def cap(self) -> int:
        return self.controller.cap

    def refusal(self, sessions: int) -> str | None:
        """Why a session that is offered now is shed, counted as such; None where it may come in."""
        if sessions < self.cap:
            return None
        self.turned_away()
        return f"shed: {sessions} sessions open, admission cap {self.cap} ({self.controller.name})"

    def turned_away(self) -> None:
        """Count a session that was offered and not opened."""
        self.shed += 1
        self._shed_now += 1

    def returned(self, latency_s: float, failed: bool) -> None:
        """A frame has returned; ``failed``: capped or empty."""
        if failed:
            self._failures += 1
        else:
            self._latencies_s.append(latency_s)

    def look(self, now_s: float, sessions: int, t_full_s: float | None, usage: float) -> None:
        """Time has come to ``now_s``: at the end of an interval set the cap."""
        if self._began_at_s is None:
            self._began_at_s = now_s
        if now_s - self._began_at_s < self.interval_s - 1e-9:
            return
        seen = Interval(now_s, sessions, self._latencies_s, self._failures, self._shed_now, t_full_s)
        self.controller.update(seen)
        self.trace.append(
            {
                "at_s": now_s,
                "sessions": sessions,
                "cap": self.cap,
                "p99_s": seen.latency_s(0.99),
                "returned": len(seen.latencies_s),
                "failures": seen.failures,
                "shed": seen.shed,
                "t_full_s": t_full_s,
                "usage": usage,
            }
        )
        self._latencies_s, self._failures, self._shed_now = [], 0, 0
        self._began_at_s = now_s


def _above(name: str, value: float, least: float) -> float:
    if not (value > least and math.isfinite(value)):
        raise AdmissionError(f"{name} must be above {least}, not {value}")
    return value


def _between(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise AdmissionError(f"{name} must lie between 0 and 1, not {value}")
    return value


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AdmissionError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
