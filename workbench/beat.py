"""The beat: which chunk goes to the engine when, which frame returns when, and with what. No clock, no thread, no IO.

Whoever drives it (real time in sessions.py, virtual time in tests and on the simulator) calls ``advance(now)`` no later
than ``next_at()``, and hands in what the engine says. All times are seconds since the run began.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable

from workbench.bound import KVBound
from workbench.engine.base import SessionView, Snapshot, TokenEvent
from workbench.engine.media import chunk_length
from workbench.saturation import Forecast, Grown
from workbench.session import Session, Talk
from workbench.telemetry import CAPPED, CLOSED, DEAD, DROPPED, ON_TIME, FrameRow, PoolRow, SessionRow, Tables

WALL_BUDGETS = 2  # frame budgets without a token of any frame


class Beat:
    """Keeps the beat of all sessions of one run and writes their rows into ``tables``.

    ``engine`` needs ``submit(session, tokens, owed, bound, stop_token_ids)`` and ``close(session)``, both returning at
    once. ``forecaster``, if given, has ``update`` as workbench.saturation.Forecaster does; ``gate`` is a
    workbench.admission.Gate, which is told of each frame and each sample.
    """

    def __init__(self, profile, tables: Tables, engine, forecaster=None, gate=None) -> None:
        self.profile = profile
        self.tables = tables
        self.engine = engine
        self.forecaster = forecaster
        self.gate = gate
        self.sessions: dict[str, Session] = {}
        self.latest: Snapshot | None = None
        self.dead: str | None = None
        self.wall_at_s: float | None = None
        self.first_refused_at_s: float | None = None
        self.misses = 0
        self._last_token_at_s: float | None = None
        self._opened = 0
        self._in_group = [0] * profile.phase_groups  # open sessions
        self._unanswered = 0  # sessions with a chunk in flight
        # When which session's next chunk ends, and the wait caps to come in the order in which their frames fell due.
        self._ticks: list[tuple[float, int, Session]] = []
        self._caps: deque[tuple[float, Session, FrameRow]] = deque()
        self._unmeasured: list[FrameRow] = []
        # The rows of the sessions that are open, and when one last came or went.
        self._open_rows: dict[str, SessionRow] = {}
        self._starts: list[float] = []
        self._changed_at_s = -math.inf

    # -- sessions come, change and go -------------------------------------------------------------------------------

    def open(
        self,
        name: str,
        clip: str,
        frame_tokens: Callable[[int], list[int]],
        now: float,
        bound: KVBound | None = None,
        stop_token_ids: tuple[int, ...] = (),
        frames_limit: int | None = None,
        jitter_s: float = 0.0,
        talk: Talk | None = None,
    ) -> Session:
        """Begin a session at the next instant of its phase group, ``jitter_s`` later.

        It is put into the group with the fewest sessions, which without departures is one after the other.
        ``frames_limit``: frames after which it ends.
        """
        budget, groups = self.profile.frame_budget_s, self.profile.phase_groups
        group = min(range(groups), key=lambda g: (self._in_group[g], (g - self._opened) % groups))
        phase = group * budget / groups + jitter_s
        first = max(0, math.ceil((now - phase) / budget - 1e-9))
        starts = phase + first * budget
        session = Session(
            name, frame_tokens, stop_token_ids, bound, group, phase, first, frames_limit, heard_until_s=starts
        )
        session.talk = talk
        with self.tables.lock:
            self._opened += 1
            self._in_group[group] += 1
            self.sessions[name] = session
            row = SessionRow(self.tables.run, name, clip, now, opened_at_s=starts)
            self.tables.session_rows[name] = self._open_rows[name] = row
            self._came_or_went(now)
            heapq.heappush(self._ticks, (self._due(session), self._opened, session))
        return session

    def shut(self, name: str, now: float, reason: str) -> None:
        """End a session; its frames that have not returned are closed with it. An unknown one is no error.

        No chunk of it that waits goes out any more.
        """
        with self.tables.lock:
            session = self.sessions.pop(name, None)
            if session is None:
                return
            self._unanswered -= session.in_flight is not None
            session.waiting.clear()
            self._in_group[session.group] -= 1
            row = self._open_rows.pop(name)
            row.ended_at_s, row.reason = now, reason
            self._came_or_went(now)
            for frame in list(session.unreturned):
                self._return(session, frame, now, DEAD if self.dead else CLOSED)
        if session.talk is not None:
            session.talk.close()
        self.engine.close(name)

    def shed(self, name: str, clip: str, now: float, reason: str) -> None:
        """Write down a session that was offered and not let in."""
        with self.tables.lock:
            row = SessionRow(self.tables.run, name, clip, now, ended_at_s=now, reason=reason)
            self.tables.session_rows[name] = row

    def _came_or_went(self, now: float) -> None:
        self._changed_at_s = now
        self._starts = [row.opened_at_s for row in self._open_rows.values()]

    def die(self, reason: str, now: float) -> None:
        """The engine is gone: every session ends with it and says so."""
        if self.dead is None:
            self.dead = reason
            for name in list(self.sessions):
                self.shut(name, now, f"engine died: {reason}")

    # -- time passes ------------------------------------------------------------------------------------------------

    def next_at(self) -> float:
        """When something is due next: a chunk's end or a wait cap. Infinity when nothing is."""
        ticks, caps = self._ticks, self._caps
        while ticks and self.sessions.get(ticks[0][2].name) is not ticks[0][2]:
            heapq.heappop(ticks)
        while caps and caps[0][2].returned_at_s is not None:
            caps.popleft()
        return min(ticks[0][0] if ticks else math.inf, caps[0][0] if caps else math.inf)

    def advance(self, now: float) -> None:
        """Do everything that is due by ``now``, in the order in which it fell due."""
        while (at := self.next_at()) <= now:
            with self.tables.lock:
                self._do_due(at, now)

    def _due(self, session: Session) -> float:
        return session.phase_s + (session.first_tick + session.frame + 1) * self.profile.frame_budget_s

    def _do_due(self, at: float, now: float) -> None:
        # One instant may be both the cap of a frame and the tick of a later one: the older goes first.
        while self._caps and self._caps[0][0] <= at:
            _, session, frame = self._caps.popleft()
            if frame.returned_at_s is None:
                self._return(session, frame, now, CAPPED)
        while self._ticks and self._ticks[0][0] <= at:
            due, order, session = self._ticks[0]
            if self.sessions.get(session.name) is not session:
                heapq.heappop(self._ticks)
                continue
            self._tick(session, due, now)
            # In place: what it opens or shuts meanwhile leaves the head of the heap where it is.
            heapq.heapreplace(self._ticks, (self._due(session), order, session))

    def _tick(self, session: Session, due: float, now: float) -> None:
        number = session.frame
        session.frame += 1
        if session.frames_limit is not None and number >= session.frames_limit:
            self.shut(session.name, now, "clip over")
            return
        try:
            tokens = session.frame_tokens(number)
        except Exception as error:  # noqa: BLE001, whatever its audio does to it, one session ends and no other
            self._fail(session, error, now)
            return
        profile = self.profile
        frame = FrameRow(self.tables.run, session.name, number, due)
        frame.tokens_in, frame.tokens_owed = chunk_length(tokens), profile.tokens_owed
        self.tables.frame_rows.append(frame)
        session.unreturned.append(frame)
        self._caps.append((due + profile.wait_cap * profile.frame_budget_s, session, frame))
        if session.in_flight is None and not session.waiting:
            self._submit(session, frame, tokens, now)
            return
        self._note_bound(frame, session.bound)
        session.waiting.append((frame, tokens))
        if len(session.waiting) > profile.backlog and session.in_flight is not None:
            oldest, _ = session.waiting.popleft()
            session.dropped += 1
            oldest.status = DROPPED
        self._submit_next(session, now)
        frame.backlog = len(session.waiting)

    def _fail(self, session: Session, error: Exception, now: float) -> None:
        self.shut(session.name, now, f"front end failed: {type(error).__name__}: {error}")

    def _submit_next(self, session: Session, now: float) -> None:
        while session.in_flight is None and session.waiting:
            self._submit(session, *session.waiting.popleft(), now)

    def _submit(self, session: Session, frame: FrameRow, tokens: list[int], now: float) -> None:
        if session.talk is not None:
            try:
                tokens, frame.tokens_owed = session.talk.chunk(frame.frame, self.profile.tokens_owed)
            except Exception as error:  # noqa: BLE001, as in _tick
                self._fail(session, error, now)
                return
            frame.tokens_in = chunk_length(tokens)
            if not tokens:
                if frame.returned_at_s is None:
                    self._return(session, frame, now, ON_TIME)
                return
        session.in_flight, session.served_bound = frame, session.bound
        self._unanswered += 1
        frame.submitted_at_s = now
        # It may have changed while the chunk waited.
        self._note_bound(frame, session.bound)
        if self._last_token_at_s is None:
            # The silence that makes a wall is counted from the first chunk on.
            self._last_token_at_s = now
        self.engine.submit(session.name, tokens, frame.tokens_owed, session.bound, session.stop_token_ids)

    @staticmethod
    def _note_bound(frame: FrameRow, bound: KVBound | None) -> None:
        if bound is None:
            frame.window = frame.sinks = None
        else:
            frame.window, frame.sinks = bound.window, bound.sinks

    def _return(self, session: Session, frame: FrameRow, now: float, status: str) -> None:
        session.unreturned.remove(frame)
        frame.returned_at_s = now
        frame.latency_s = now - frame.due_at_s
        frame.missed = now > frame.due_at_s + self.profile.frame_budget_s
        self.misses += frame.missed
        frame.empty = frame.tokens_delivered == 0 and frame.tokens_owed > 0
        frame.capped = status == CAPPED
        if not (frame.status == DROPPED and status == CAPPED):
            frame.status = status
        if not frame.empty and (session.talk is None or session.talk.settled):
            session.heard_until_s = max(session.heard_until_s, frame.due_at_s)
        frame.content_lag_s = now - session.heard_until_s
        session.empty_in_a_row = session.empty_in_a_row + 1 if frame.empty else 0
        if status in (ON_TIME, CAPPED):
            self._unmeasured.append(frame)
            if self.gate is not None:
                self.gate.returned(frame.latency_s, frame.capped or frame.empty)

    # -- the engine says --------------------------------------------------------------------------------------------

    def hear(self, event: TokenEvent, now: float) -> None:
        """Tokens of a session's chunk in flight, or its end. What comes for a session that has ended is dropped."""
        self.hear_all((event,), now)

    def hear_all(self, events: Iterable[TokenEvent], now: float) -> None:
        """All that one step of the engine says, at one instant."""
        # A frame whose wait cap has passed returned without these tokens, also when nobody has said so yet.
        self.advance(now)
        with self.tables.lock:
            for event in events:
                session = self.sessions.get(event.session)
                if session is None:
                    continue
                frame = session.in_flight
                try:
                    if event.codes is not None and session.talk is not None:
                        session.talk.spoke(event.codes)
                    if frame is not None and event.tokens:
                        self._deliver(session, frame, event.tokens, now)
                except Exception as error:  # noqa: BLE001, whatever its talk makes of them, as in _tick
                    self._fail(session, error, now)
                    continue
                if event.done:
                    self._chunk_is_over(session, frame, event, now)

    def _deliver(self, session: Session, frame: FrameRow, tokens: tuple[int, ...], now: float) -> None:
        self._last_token_at_s = now
        if frame.first_token_at_s is None:
            frame.first_token_at_s = now
        if frame.returned_at_s is None:
            frame.tokens_delivered += len(tokens)
        else:
            frame.tokens_late += len(tokens)
        if session.talk is not None:
            starts = session.phase_s + session.first_tick * self.profile.frame_budget_s
            session.words.extend(session.talk.said(tokens, frame.frame, now - starts))
        elif frame.returned_at_s is None:
            session.words.extend(tokens)

    def _chunk_is_over(self, session: Session, frame: FrameRow | None, event: TokenEvent, now: float) -> None:
        if frame is not None:
            frame.eos |= event.eos
            session.in_flight = None
            self._unanswered -= 1
            if frame.returned_at_s is None and event.ended is None:
                self._return(session, frame, now, ON_TIME)
        if event.ended is not None:
            self.shut(event.session, now, event.ended)
        elif session.waiting:
            self._submit_next(session, now)

    def measure(self, snapshot: Snapshot, now: float, to_run: Callable[[float], float], rss: int | None = None) -> None:
        """Take the scheduler's account: a row of the pool, the resident tokens of frames just returned, the wall.

        ``to_run`` turns a time on the engine's clock into seconds since the run began.
        """
        with self.tables.lock:
            self.latest = snapshot
            at = to_run(snapshot.at)
            if snapshot.first_refused_at is not None and self.first_refused_at_s is None:
                self.first_refused_at_s = to_run(snapshot.first_refused_at)
            self._note_resident(snapshot.sessions, at)
            # With a chunk on its way to the scheduler a session waits, though the scheduler has it parked.
            waiting = max(snapshot.waiting, self._unanswered - snapshot.running)
            forecast = self._forecast(snapshot, at, settled=snapshot.running == 0 and waiting == 0)
            if self.gate is not None:
                usage = snapshot.blocks_used / snapshot.blocks_total
                self.gate.look(at, len(self.sessions), None if forecast is None else forecast.t_full_s, usage)
            self.tables.pool_rows.append(
                PoolRow(
                    run=self.tables.run,
                    at_s=at,
                    blocks_used=snapshot.blocks_used,
                    blocks_total=snapshot.blocks_total,
                    running=snapshot.running,
                    waiting=waiting,
                    parked=snapshot.parked,
                    preemptions=snapshot.preemptions,
                    sessions=len(self.sessions),
                    resident_tokens=snapshot.resident_tokens,
                    grown_frames=snapshot.grown_frames,
                    grown_tokens=snapshot.grown_tokens,
                    grown_squares=snapshot.grown_squares,
                    admission_cap=None if self.gate is None else self.gate.cap,
                    host_rss_bytes=rss,
                    t_full_predicted_s=None if forecast is None else forecast.t_full_s,
                    t_full_low_s=None if forecast is None else forecast.low_s,
                    t_full_high_s=None if forecast is None else forecast.high_s,
                )
            )
            if self.wall_at_s is None and self.at_wall(now):
                self.wall_at_s = self._last_token_at_s

    def _note_resident(self, views: dict[str, SessionView], at: float) -> None:
        """What the sessions of the frames that had returned by ``at`` hold, into their rows."""
        later = []
        for frame in self._unmeasured:
            if frame.returned_at_s > at:
                later.append(frame)
            elif (view := views.get(frame.session)) is not None:
                _, resident, evicted, *_ = view
                frame.resident_tokens, frame.age_tokens = resident, resident + evicted
        self._unmeasured = later

    def _forecast(self, snapshot: Snapshot, at: float, settled: bool) -> Forecast | None:
        if self.forecaster is None or snapshot.evicted_tokens or [s for s in self.sessions.values() if s.bound]:
            return None
        tokens, used, total = snapshot.resident_tokens, snapshot.blocks_used, snapshot.blocks_total
        grown = Grown(snapshot.grown_frames, snapshot.grown_tokens, snapshot.grown_squares)
        return self.forecaster.update(at, tokens, used, total, grown, self._starts_at(at), settled)

    def _starts_at(self, at: float) -> list[float]:
        """When the sessions began that were open at the scheduler's instant: by the tables, as a replay reads them."""
        if self._changed_at_s <= at:
            return self._starts
        return [
            row.opened_at_s
            for row in self.tables.session_rows.values()
            if row.offered_at_s <= at < (math.inf if row.ended_at_s is None else row.ended_at_s)
        ]

    def unmeasured(self) -> list[str]:
        """Sessions of which the next sample of the pool has to tell: a frame of theirs has returned since the last."""
        return [frame.session for frame in self._unmeasured]

    # -- what state it is in ----------------------------------------------------------------------------------------

    def at_wall(self, now: float) -> bool:
        """The wall, by its definition: silence for two frame budgets while every session has a chunk unanswered and
        the pool cannot serve the head of the queue. An overloaded engine is not at the wall."""
        with self.tables.lock:
            if not self.sessions or self.latest is None or self._last_token_at_s is None:
                return False
            silent = now - self._last_token_at_s >= WALL_BUDGETS * self.profile.frame_budget_s
            return (
                silent
                and self._unanswered == len(self.sessions)
                and self.latest.free_blocks < self.latest.head_needs_blocks
            )

    def stalled_under_another_bound(self) -> list[Session]:
        """Sessions whose chunk is unanswered past its wait cap and was served under another bound than they have now.

        No further chunk is taken up before that one, so their bound has to change past the chunks.
        """
        return [
            s
            for s in self.sessions.values()
            if s.bound is not None
            and s.bound != s.served_bound
            and s.in_flight is not None
            and s.in_flight.returned_at_s is not None
        ]

    def status(self, now: float) -> str:
        """One line in words: beating, stalled sessions, the wall, or a dead engine."""
        if self.dead is not None:
            return f"engine died: {self.dead}"
        with self.tables.lock:
            stalled, sessions = sum(s.stalled for s in self.sessions.values()), len(self.sessions)
            if self.at_wall(now):
                # By its definition: no token of any session came.
                return f"wall: {sessions} of {sessions} sessions silent, {self.misses} deadline misses"
        if stalled:
            return f"{stalled} of {sessions} sessions stalled"
        return "beating" if sessions else "no sessions"
