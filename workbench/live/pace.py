"""How fast virtual time is played: a speed, a pause, a step; and desks on one pace stay together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

LEAST_SPEED, MOST_SPEED = 0.1, 60.0
# Of real time: how far one desk may run ahead of another, and the window over which the speed reached is measured.
AHEAD_S, MEASURED_OVER_S, MARK_EVERY_S = 0.05, 2.0, 0.1


class PaceError(ValueError):
    """A speed that cannot be played; one line that says what to do."""


class Pace:
    """Says how far whoever plays virtual time may go. Seconds played, not those of a run, so a new run changes nothing.

    ``speed``: virtual seconds per real one; infinity plays as fast as the machine can. A machine that is too slow for
    the speed falls behind and does not catch up later: ``reached`` is what it makes of it. ``clock``: real seconds.
    """

    def __init__(self, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._played: dict[object, float] = {}
        self._idle: set[object] = set()
        self._paused = False
        self._speed = _checked(speed)
        self._from_s, self._from_at = 0.0, clock()
        self._marks: list[tuple[float, float]] = []
        self._last_at = -math.inf

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        speed = _checked(speed)
        with self._lock:
            self._anchor()
            self._speed = speed

    @property
    def paused(self) -> bool:
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        with self._lock:
            self._anchor()
            self._paused = bool(paused)

    def step(self, seconds: float) -> None:
        """Pause, and let just so many more seconds be played."""
        with self._lock:
            begun = self._from_s if self._paused else self._slowest()
            self._from_s, self._from_at, self._paused = begun + seconds, self._clock(), True

    def join(self, desk: object) -> None:
        """``desk`` plays from now on, beginning where the slowest is."""
        with self._lock:
            self._played[desk] = self._slowest()
            if len(self._played) == 1:
                self._anchor()

    def leave(self, desk: object) -> None:
        """``desk`` plays no more: nobody waits for it."""
        with self._lock:
            self._played.pop(desk, None)
            self._idle.discard(desk)

    def idle(self, desk: object, idle: bool) -> None:
        """``desk`` has nothing to play. While that is so of all, time stands still, but for a step that is asked."""
        with self._lock:
            if desk not in self._played:
                return  # one that has left is not among those that all have nothing to play
            if idle:
                self._idle.add(desk)
            elif desk in self._idle:
                if len(self._idle) == len(self._played) and not self._paused:
                    self._anchor()
                self._idle.discard(desk)

    def left(self, desk: object) -> float:
        """Seconds that ``desk`` may play now; infinity where nothing but the machine limits it."""
        with self._lock:
            slowest = self._slowest()
            if not self._paused and len(self._idle) == len(self._played):
                return 0.0
            if self._paused:
                return max(0.0, self._from_s - self._played[desk])
            now = self._clock()
            if math.isinf(self._speed):
                ahead = math.inf if len(self._played) == 1 else self._played[desk] - slowest
                return math.inf if ahead in (0.0, math.inf) else 0.0
            aim = self._from_s + (now - self._from_at) * self._speed
            if aim - slowest > 2 * AHEAD_S * self._speed:
                # Too fast for the machine: what it could not play is not owed any more.
                self._from_s, self._from_at = slowest + AHEAD_S * self._speed, now
                aim = self._from_s
            return max(0.0, min(aim, slowest + AHEAD_S * self._speed) - self._played[desk])

    def played(self, desk: object, seconds: float) -> None:
        """``desk`` has played so many seconds more."""
        with self._lock:
            self._played[desk] += seconds
            now = self._last_at = self._clock()
            if not self._marks or now - self._marks[-1][0] >= MARK_EVERY_S:
                self._marks.append((now, self._slowest()))
            while len(self._marks) > 2 and now - self._marks[0][0] > MEASURED_OVER_S:
                self._marks.pop(0)

    @property
    def reached(self) -> float | None:
        """Virtual seconds per real one, of late; None where nothing was played for a while."""
        with self._lock:
            if not self._marks:
                return None
            at, then = self._marks[0]
            last_at, played = self._last_at, self._slowest()
            now = self._clock()
        if last_at == at or now - last_at > MEASURED_OVER_S:
            return None
        return (played - then) / (now - at)

    def _slowest(self) -> float:
        return min(self._played.values(), default=self._from_s)

    def _anchor(self) -> None:
        """From here on, in virtual and in real time."""
        self._from_s, self._from_at = self._slowest(), self._clock()
        self._marks.clear()


def _checked(speed: float) -> float:
    if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not speed >= LEAST_SPEED:
        raise PaceError(f"speed must be {LEAST_SPEED:g} to {MOST_SPEED:g} times real time, not {speed!r}")
    if MOST_SPEED < speed < math.inf:
        raise PaceError(f"speed must be at most {MOST_SPEED:g} times real time (or infinity), not {speed!r}")
    return float(speed)
