"""From the rows of a run's tables, as they come, to what is drawn: values over time, the beat strip, the marks."""

from __future__ import annotations

import math
from collections import deque

from workbench.live.bins import Bins
from workbench.live.strip import Strip
from workbench.sessions import SessionManager
from workbench.telemetry import OPEN, RETURNED, FrameRow

# What is drawn of one arm: the name of the line, the value it is made of, and how a bin of it becomes a point.
LINES = {
    "occupancy": ("pool", Bins.last),
    "latency, mean": ("latency", Bins.mean),
    "latency, longest": ("latency", Bins.most_of),
    "content lag, mean": ("lag", Bins.mean),
    "content lag, longest": ("lag", Bins.most_of),
    "owed": ("owed", Bins.per_second),
    "delivered": ("delivered", Bins.per_second),
    "sessions": ("sessions", Bins.last),
    "admission cap": ("cap", Bins.last),
    "engine memory": ("rss", Bins.last),
    "kernel memory": ("kernel_rss", Bins.last),
}
# Lines of a few points each, given anew each time.
MARKS = ("forecast", "forecast, 95 %", "pool full", "wall")
Points = tuple[list[float], list[float]]


class Feed:
    """Reads a manager's tables on, a bit at each ``read``, and keeps what a picture of the run needs.

    Values: occupancy as a part of the pool; latency and lag in seconds, at the time at which the frame fell due; owed
    and delivered in tokens a second; memory in bytes. All of bounded size, however long the run. One thread reads.
    """

    def __init__(self, manager: SessionManager) -> None:
        profile = manager.profile
        self.manager, self.tables = manager, manager.tables
        sample_s = min(profile.frame_budget_s / 8, 0.25)
        pool = ("pool", "sessions", "cap", "rss", "kernel_rss")
        frames = ("latency", "lag", "owed", "delivered")
        self.values = {name: Bins(sample_s) for name in pool} | {name: Bins(profile.frame_budget_s) for name in frames}
        self.strip = Strip()
        self.marks: dict[str, Points] = {name: ([], []) for name in MARKS}
        self._marks_told = dict(self.marks)
        self.frames_returned = 0
        self._pool_read = self._frames_read = 0
        self._unreturned: deque[FrameRow] = deque()

    @property
    def stale(self) -> bool:
        """Whether the manager has begun another run, which this feed knows nothing of."""
        return self.manager.tables is not self.tables

    def read(self) -> None:
        """Take in what has come since the last time."""
        with self.tables.lock:
            pool = self.tables.pool_rows[self._pool_read :]
            frames = self.tables.frame_rows[self._frames_read :]
            self._pool_read += len(pool)
            self._frames_read += len(frames)
            self._unreturned.extend(frames)
            returned, waiting = [], deque()
            for row in self._unreturned:
                (waiting if row.status == OPEN or row.returned_at_s is None else returned).append(row)
            self._unreturned = waiting
            open_sessions = dict(self.manager.beat.sessions)
        for row in pool:
            self._sample(row)
        for row in returned:
            self._frame(row)
        self.strip.keep(open_sessions)
        self._mark(pool[-1] if pool else None)

    def _sample(self, row) -> None:
        self.values["pool"].add(row.at_s, row.blocks_used / row.blocks_total)
        self.values["sessions"].add(row.at_s, row.sessions)
        if row.admission_cap is not None:
            self.values["cap"].add(row.at_s, row.admission_cap)
        if row.host_rss_bytes is not None:
            self.values["rss"].add(row.at_s, row.host_rss_bytes)

    def note_memory(self, rss_bytes: int) -> None:
        """Resident memory of this process, now."""
        self.values["kernel_rss"].add(max(0.0, self.manager.now()), rss_bytes)

    def _frame(self, row: FrameRow) -> None:
        if row.status not in RETURNED:
            # Closed with its session, or with the engine: it tells nothing of how frames fare.
            return
        self.frames_returned += 1
        self.values["latency"].add(row.due_at_s, row.latency_s)
        self.values["lag"].add(row.due_at_s, row.content_lag_s)
        self.values["owed"].add(row.due_at_s, row.tokens_owed)
        self.values["delivered"].add(row.due_at_s, row.tokens_delivered)
        self.strip.returned(row)

    def _mark(self, latest) -> None:
        beat, marks = self.manager.beat, self.marks
        if latest is not None:
            marks["forecast"], marks["forecast, 95 %"] = ([], []), ([], [])
            still_to_come = beat.first_refused_at_s is None and latest.t_full_predicted_s is not None
            if still_to_come and latest.t_full_predicted_s > latest.at_s:
                usage = latest.blocks_used / latest.blocks_total
                marks["forecast"] = ([latest.at_s, latest.t_full_predicted_s], [usage, 1.0])
                marks["forecast, 95 %"] = ([latest.t_full_low_s, latest.t_full_high_s], [1.0, 1.0])
        if beat.first_refused_at_s is not None:
            marks["pool full"] = ([beat.first_refused_at_s], [1.0])
        if beat.wall_at_s is not None:
            marks["wall"] = ([beat.wall_at_s], [0.0])

    def points(self, line: str, first: int = 0) -> Points:
        """The points of a line, from number ``first`` on; x in seconds since the run began."""
        if line in self.marks:
            return self.marks[line]
        value, how = LINES[line]
        x, y = self.values[value].times(first), how(self.values[value], first)
        # What comes in the newest bin's span is not all there yet.
        return (x[:-1], y[:-1]) if how is Bins.per_second else (x, y)

    def changed(self) -> dict[str, int]:
        """For each line that has changed since this was last asked: its first point that has."""
        firsts = {name: bins.changed() for name, bins in self.values.items()}
        lines = {
            line: max(0, firsts[value] - (how is Bins.per_second))
            for line, (value, how) in LINES.items()
            if firsts[value] < len(self.values[value])
        }
        marks = {name: 0 for name in MARKS if self.marks[name] != self._marks_told[name]}
        self._marks_told = dict(self.marks)
        return lines | marks

    def strip_shown(self, label: str) -> dict:
        """The beat strip of the open sessions, in the form that is drawn."""
        notes = {
            name: "unbounded" if session.bound is None else f"W {session.bound.window}"
            for name, session in list(self.manager.beat.sessions.items())
        }
        return self.strip.shown(label, notes)

    @property
    def t_full_predicted_s(self) -> float | None:
        """The forecast of the last sample; None without one, and where it has come to pass."""
        times, _ = self.marks["forecast"]
        return times[1] if times and math.isfinite(times[1]) else None
