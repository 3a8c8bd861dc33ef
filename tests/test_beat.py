"""The beat on virtual time: the frame table, row for row, for an engine that does what a script says."""

from __future__ import annotations

import math

import pytest

from workbench.beat import Beat
from workbench.bound import KVBound
from workbench.engine.base import SessionView, Snapshot, TokenEvent
from workbench.profiles import Profile
from workbench.telemetry import Tables

B, CAP, OWED = 2.0, 1.6, 4
PROFILE = Profile(
    name="scripted",
    model="none",
    sessions=2,
    window=64,
    pool_blocks=100,
    max_model_len=1000,
    max_positions=8000,
    frame_budget_s=B,
    tokens_owed=OWED,
    backlog=2,
)


class Scripted:
    """An engine that answers chunk k of a session as ``script[session][k]`` says: a list of (after_s, tokens, done)."""

    def __init__(self, script=None):
        self.script = script or {}
        self.submitted, self.closed, self.coming = [], [], []

    def submit(self, session, tokens, owed, bound, stop_token_ids):
        k = sum(s == session for s, *_ in self.submitted)
        self.submitted.append((session, tuple(tokens), owed, bound))
        answers = self.script.get(session, {}).get(k, [(0.5, owed, True)])
        self.coming += [(self.now + after, session, count, done) for after, count, done in answers]

    def close(self, session):
        self.closed.append(session)


class Run:
    """A beat, a scripted engine and the virtual clock that drives both."""

    def __init__(self, script=None, profile=PROFILE):
        self.engine = Scripted(script)
        self.engine.now = 0.0
        self.beat = Beat(profile, Tables("virtual"), self.engine)

    def open(self, name, **options):
        return self.beat.open(name, "clip", lambda k: [k] * 10, self.engine.now, **options)

    def until(self, end):
        while True:
            answers = sorted(self.engine.coming)
            at = min(self.beat.next_at(), answers[0][0] if answers else math.inf)
            if at > end:
                self.engine.now = end
                return
            self.engine.now = at
            if answers and answers[0][0] == at:
                self.engine.coming.remove(answers[0])
                _, session, count, done = answers[0]
                self.beat.hear(TokenEvent(session, (7,) * count, at, done, eos=done and count == 0), at)
            else:
                self.beat.advance(at)

    def rows(self, *columns, session="a"):
        table = self.beat.tables.frames()
        table = table[table["session"] == session]
        return [
            tuple(round(v, 9) if isinstance(v, float) else v for v in row)
            for row in table[list(columns)].astype(object).where(table[list(columns)].notna(), None).values
        ]


def snapshot(at, *, free=10, head=0, first_refused_at=None, sessions=None):
    views = sessions or {}
    resident, evicted = (sum(getattr(v, name) for v in views.values()) for name in ("resident", "evicted"))
    return Snapshot(at, free, 100, 0, 0, 0, 0, 0, first_refused_at, head, resident, evicted, 0, 0, 0, views)


def test_frames_on_time():
    run = Run()
    run.open("a")
    run.until(7.0)
    assert run.rows(
        "frame", "due_at_s", "submitted_at_s", "first_token_at_s", "returned_at_s", "latency_s", "status"
    ) == [
        (0, 2.0, 2.0, 2.5, 2.5, 0.5, "on_time"),
        (1, 4.0, 4.0, 4.5, 4.5, 0.5, "on_time"),
        (2, 6.0, 6.0, 6.5, 6.5, 0.5, "on_time"),
    ]
    assert (
        run.rows("capped", "missed", "empty", "tokens_in", "tokens_owed", "tokens_delivered", "tokens_late")
        == [(False, False, False, 10, OWED, OWED, 0)] * 3
    )
    assert run.rows("content_lag_s", "backlog") == [(0.5, 0)] * 3
    assert [s for s, *_ in run.engine.submitted] == ["a"] * 3


def test_a_frame_returns_at_the_wait_cap_with_what_is_there_and_the_rest_is_late():
    run = Run({"a": {1: [(0.4, 1, False), (1.9, 3, True)]}})
    run.open("a")
    run.until(7.9)
    assert run.rows("frame", "returned_at_s", "latency_s", "status", "capped", "tokens_delivered", "tokens_late") == [
        (0, 2.5, 0.5, "on_time", False, 4, 0),
        (1, 4.0 + CAP, CAP, "capped", True, 1, 3),
        (2, 6.5, 0.5, "on_time", False, 4, 0),
    ]
    # Frame 1 delivered a token that had seen its audio, so its lag is its latency; nothing was missed.
    assert run.rows("content_lag_s", "empty", "missed")[1] == (CAP, False, False)


def test_an_empty_frame_is_on_time_for_a_dashboard_and_lags_in_content():
    run = Run({"a": {1: [(3.0, 4, True)]}})
    run.open("a")
    run.until(9.9)
    assert run.rows("frame", "returned_at_s", "status", "empty", "missed", "tokens_late", "content_lag_s") == [
        (0, 2.5, "on_time", False, False, 0, 0.5),
        (1, 5.6, "capped", True, False, 4, 3.6),
        (2, 7.5, "on_time", False, False, 0, 1.5),
        (3, 8.5, "on_time", False, False, 0, 0.5),
    ]
    # Chunk 2 waited behind the late one and went in the moment that was answered.
    assert run.rows("submitted_at_s", "backlog")[2] == (7.0, 1)


def test_at_the_wall_every_frame_is_capped_and_empty_with_no_miss_and_the_oldest_audio_is_dropped():
    run = Run({"a": {1: []}})
    run.open("a")
    run.until(13.0)
    assert run.rows("frame", "status", "capped", "empty", "missed", "backlog", "content_lag_s") == [
        (0, "on_time", False, False, False, 0, 0.5),
        (1, "capped", True, True, False, 0, 3.6),
        (2, "dropped", True, True, False, 1, 5.6),
        (3, "dropped", True, True, False, 2, 7.6),
        (4, "capped", True, True, False, 2, 9.6),
        (5, "open", False, False, False, 2, None),
    ]
    assert run.beat.sessions["a"].dropped == 2
    assert run.beat.sessions["a"].stalled
    assert run.beat.stalled_under_another_bound() == []
    run.beat.sessions["a"].bound = KVBound(64, 4)
    assert [s.name for s in run.beat.stalled_under_another_bound()] == ["a"]
    assert len(run.engine.submitted) == 2


def test_the_wall_needs_silence_unanswered_chunks_and_a_pool_too_small():
    run = Run({"a": {1: []}})
    run.open("a")
    run.until(8.4)
    run.beat.measure(snapshot(8.4, free=1, head=2), 8.4, lambda at: at)
    # The last token came at 2.5, so the silence is two budgets old from 6.5 on.
    assert not run.beat.at_wall(6.4)
    assert run.beat.at_wall(8.4)
    assert run.beat.wall_at_s == 2.5
    assert run.beat.status(8.4) == "wall: 1 of 1 sessions silent, 0 deadline misses"


def test_an_overloaded_engine_is_not_at_the_wall():
    run = Run({"a": {1: []}})
    run.open("a")
    run.until(8.4)
    run.beat.measure(snapshot(8.4, free=5, head=2), 8.4, lambda at: at)
    assert not run.beat.at_wall(8.4)
    assert run.beat.wall_at_s is None
    assert run.beat.status(8.4) == "1 of 1 sessions stalled"


def test_one_answered_session_means_no_wall():
    run = Run({"a": {1: []}})
    run.open("a")
    run.open("b")
    run.until(8.4)
    run.beat.measure(snapshot(8.4, free=1, head=2), 8.4, lambda at: at)
    assert not run.beat.at_wall(8.4)


def test_after_a_wall_owed_is_delivered_again_within_five_frames():
    run = Run({"a": {1: [(8.1, 4, True)]}})
    run.open("a")
    run.until(30.0)
    answered = [f for f, owed, got in run.rows("frame", "tokens_owed", "tokens_delivered") if owed == got]
    # The chunk was answered at 12.1, while frame 5 was open.
    assert answered == [0, *range(5, 14)]


def test_a_reply_that_ends_itself_returns_early():
    run = Run({"a": {0: [(0.2, 2, False), (0.3, 0, True)]}})
    run.open("a")
    run.until(3.0)
    assert run.rows("status", "eos", "tokens_owed", "tokens_delivered", "returned_at_s") == [
        ("on_time", True, 4, 2, 2.3)
    ]


def test_a_dead_engine_ends_every_session_and_says_so():
    run = Run({"a": {1: []}})
    run.open("a")
    run.open("b")
    run.until(4.2)
    run.beat.die("EngineCore died", 4.3)
    sessions = run.beat.tables.sessions()
    assert list(sessions["reason"]) == ["engine died: EngineCore died"] * 2
    assert list(sessions["ended_at_s"]) == [4.3] * 2
    assert run.rows("frame", "status", "returned_at_s", "empty") == [(0, "on_time", 2.5, False), (1, "dead", 4.3, True)]
    assert run.beat.status(5.0) == "engine died: EngineCore died"
    assert run.beat.next_at() == math.inf


def test_closing_closes_open_frames_and_the_engine_hears_of_it():
    run = Run()
    run.open("a")
    run.until(4.1)
    run.beat.shut("a", 4.1, "closed")
    assert run.rows("frame", "status", "capped") == [(0, "on_time", False), (1, "closed", False)]
    assert run.engine.closed == ["a"]
    run.until(9.0)
    assert len(run.rows("frame")) == 2, "tokens of a session that has ended are dropped"


def test_a_session_that_the_engine_ends_has_its_reason_in_the_tables():
    run = Run()
    run.open("a")
    run.open("b")
    run.until(2.6)
    run.beat.hear(TokenEvent("a", (), 2.6, done=True, ended="would reach max_model_len"), 2.6)
    run.until(4.6)
    reasons = dict(run.beat.tables.sessions()[["session", "reason"]].astype(object).values)
    assert reasons["a"] == "would reach max_model_len"
    assert list(run.beat.sessions) == ["b"]
    assert len(run.rows("frame", session="b")) == 2


def test_a_clip_played_once_ends_its_session():
    run = Run()
    run.open("a", frames_limit=2)
    run.until(10.0)
    assert [row[0] for row in run.rows("frame")] == [0, 1]
    assert list(run.beat.tables.sessions()["reason"]) == ["clip over"]


@pytest.mark.parametrize(("groups", "dues"), [(1, [2.0, 2.0, 2.0]), (2, [2.0, 3.0, 2.0]), (4, [2.0, 2.5, 3.0])])
def test_phase_groups_stagger_the_sessions(groups, dues):
    run = Run(profile=PROFILE.with_(phase_groups=groups))
    for name in "abc":
        run.open(name)
    run.until(4.9)
    first = [run.rows("due_at_s", session=name)[0][0] for name in "abc"]
    assert first == dues


def test_a_session_that_joins_late_falls_into_step():
    run = Run()
    run.open("a")
    run.until(5.3)
    run.open("b")
    run.until(9.0)
    assert run.beat.tables.sessions()["opened_at_s"].tolist() == [0.0, 6.0]
    assert run.rows("due_at_s", session="b") == [(8.0,)]


def test_a_late_driver_shows_its_misses():
    run = Run()
    run.open("a")
    run.engine.now = 4.5
    run.beat.advance(4.5)
    # Frame 0 was due at 2, its cap at 3.6; nobody drove the beat before 4.5.
    assert run.rows("frame", "returned_at_s", "missed")[0] == (0, 4.5, True)


def test_resident_tokens_come_from_the_scheduler():
    run = Run()
    run.open("a")
    run.until(2.6)
    view = SessionView("parked", resident=300, evicted=64, blocks=10, queued=0)
    run.beat.measure(snapshot(102.6, sessions={"a": view}), 2.6, lambda at: at - 100)
    assert run.rows("resident_tokens", "age_tokens") == [(300, 364)]
    assert run.beat.tables.pool()[["at_s", "blocks_used", "sessions"]].values.tolist() == [[pytest.approx(2.6), 90, 1]]


def test_the_first_refused_allocation_is_kept():
    run = Run()
    run.open("a")
    run.beat.measure(snapshot(1.0), 1.0, lambda at: at)
    assert run.beat.first_refused_at_s is None
    run.beat.measure(snapshot(2.0, first_refused_at=1.5), 2.0, lambda at: at)
    run.beat.measure(snapshot(3.0, first_refused_at=1.5), 3.0, lambda at: at)
    assert run.beat.first_refused_at_s == 1.5
