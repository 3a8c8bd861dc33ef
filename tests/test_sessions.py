"""The manager's own life, on engines that misbehave: what starts, fails, hangs or dies ends in a clear state."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from workbench.audio import sample_clips
from workbench.bound import BoundError, KVBound
from workbench.engine import Engine, EngineDead, EngineError, Facts, Snapshot, TokenEvent
from workbench.profiles import load_profile
from workbench.sessions import SessionError, SessionManager
from workbench.telemetry import load_tables

PROFILE = load_profile("tiny", frame_budget_s=0.04, phase_groups=1)
PATIENCE_S = 20.0


class Fake(Engine):
    """Answers every chunk at once, unless told otherwise."""

    def __init__(self):
        self.stopped = 0
        self.bounds = []
        self.silent = False
        self.dead: str | None = None

    async def start(self, progress=None):
        self.facts = Facts("simulated", "0.32.0", 32, 48, 1024, 8192, 512)

    def now(self):
        return time.monotonic()

    def submit(self, session, tokens, owed, bound, stop_token_ids=()):
        if not self.silent:
            event = TokenEvent(session, (1,) * owed, self.now(), done=True)
            asyncio.get_running_loop().call_soon(self.on_event, event)

    def close(self, session):
        pass

    async def set_bound(self, session, bound):
        self.bounds.append((session, bound))
        return "at once" if len(self.bounds) > 1 else "next frame"

    async def snapshot(self, sessions=None):
        if self.dead:
            raise EngineDead(self.dead)
        return Snapshot(self.now(), 10, 48, 0, 0, 0, 0, 0, None, 0, 0, 0, 0, 0, 0, {})

    async def stop(self):
        self.stopped += 1


def test_an_engine_that_does_not_start_says_why_and_is_stopped():
    class Broken(Fake):
        async def start(self, progress=None):
            raise EngineError("no room")

    engine = Broken()
    with pytest.raises(EngineError, match="no room"):
        SessionManager(PROFILE, engine=engine).start()
    assert engine.stopped


def test_a_start_that_hangs_can_be_given_up():
    class Hanging(Fake):
        async def start(self, progress=None):
            await asyncio.Event().wait()

    engine = Hanging()
    manager = SessionManager(PROFILE, engine=engine)
    failures = []

    def start():
        try:
            manager.start()
        except EngineError as error:
            failures.append(str(error))

    starting = threading.Thread(target=start)
    starting.start()
    while manager._drive._stop is None:
        time.sleep(0.001)
    manager.close()
    starting.join(PATIENCE_S)
    assert failures == ["the manager was closed while its engine started"] and engine.stopped


def test_a_start_can_be_given_up_before_its_thread_is_known(monkeypatch):
    """The thread may be far ahead of the one that started it."""

    class Hanging(Fake):
        async def start(self, progress=None):
            await asyncio.Event().wait()

    engine = Hanging()
    manager = SessionManager(PROFILE, engine=engine)
    started = threading.Thread.start

    def start_then_close(thread):
        started(thread)
        if thread.name == "metronome-beat":
            while manager._drive._stop is None:
                time.sleep(0.001)
            manager.close()

    monkeypatch.setattr(threading.Thread, "start", start_then_close)
    with pytest.raises(EngineError, match="the manager was closed while its engine started"):
        manager.start()
    assert engine.stopped


def test_an_engine_that_dies_ends_every_session_and_keeps_the_tables(tmp_path):
    engine = Fake()
    with SessionManager(PROFILE, engine=engine, save_to=tmp_path) as manager:
        manager.add(sample_clips()[0])
        assert manager.wait_for(lambda m: len(m.frames()) > 5, seconds=PATIENCE_S)
        engine.dead = "it fell over"
        assert manager.wait_for(lambda m: m.beat.dead is not None, seconds=PATIENCE_S)
        assert manager.status() == "engine died: it fell over"
        with pytest.raises(EngineError, match="start a new manager"):
            manager.add(sample_clips()[0])
    tables = load_tables(tmp_path)
    assert tables["sessions"]["reason"].tolist() == ["engine died: it fell over"]
    assert len(tables["frames"]) > 5


def test_a_fault_of_the_engines_submit_ends_in_a_clear_state():
    class Faulty(Fake):
        def submit(self, *args, **kwargs):
            raise RuntimeError("wire cut")

    manager = SessionManager(PROFILE, engine=Faulty()).start()
    manager.add(sample_clips()[0])
    assert manager.wait_for(lambda m: m.beat.dead is not None, seconds=PATIENCE_S)
    assert "wire cut" in manager.status()
    assert "wire cut" in manager.sessions()["reason"].iloc[0]
    with pytest.raises(RuntimeError, match="wire cut"):
        manager.close()
    manager.close()


def test_sinks_that_cannot_move_here_are_refused_before_anything_changes():
    class Fixed(Fake):
        async def start(self, progress=None):
            await super().start()
            self.facts = replace(self.facts, sinks_stay="sinks cannot move on this attention backend")

    moving, fixed = (KVBound(PROFILE.window, PROFILE.sinks, moving=moving) for moving in (True, False))
    with SessionManager(PROFILE, engine=Fixed()) as manager:
        name = manager.add(sample_clips()[0], fixed)
        for refused in (lambda: manager.add(sample_clips()[0], moving), lambda: manager.set_bound(moving, name)):
            with pytest.raises(BoundError, match="^sinks cannot move on this attention backend: use sinks that stay$"):
                refused()
        assert list(manager.beat.sessions) == [name] and manager.beat.sessions[name].bound == fixed
    with SessionManager(PROFILE, engine=Fake()) as manager:
        name = manager.add(sample_clips()[0], moving)
        assert manager.beat.sessions[name].bound == moving


def test_a_front_end_that_fails_ends_its_own_session_only():
    with SessionManager(PROFILE, engine=Fake()) as manager:
        first, second = (manager.add(clip) for clip in sample_clips()[:2])

        def fail(samples, frame):
            raise ValueError("cannot hear")

        manager.front_ends[first].encode = fail
        assert manager.wait_for(lambda m: first not in m.beat.sessions, seconds=PATIENCE_S)
        heard = len(manager.frames())
        assert manager.wait_for(lambda m: len(m.frames()) > heard + 3, seconds=PATIENCE_S)
        reasons = dict(manager.sessions()[["session", "reason"]].astype(object).values)
        assert reasons[first] == "front end failed: ValueError: cannot hear"
        assert list(manager.beat.sessions) == [second]


def test_a_bound_for_a_stalled_session_is_sent_past_the_chunks_until_it_is_done():
    engine = Fake()
    engine.silent = True
    with SessionManager(PROFILE, engine=engine) as manager:
        name = manager.add(sample_clips()[0])
        # Switched before the stall shows: the chunk in flight carries no bound and never comes back.
        assert manager.wait_for(lambda m: m.beat.sessions[name].in_flight is not None, seconds=PATIENCE_S)
        manager.set_bound(KVBound(64, 4), name)
        assert manager.wait_for(lambda m: len(engine.bounds) >= 2, seconds=PATIENCE_S)
        manager.wait_for(seconds=0.2)
    assert engine.bounds == [(name, KVBound(64, 4))] * 2


def test_tables_that_cannot_be_saved_are_no_secret(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    manager = SessionManager(PROFILE, engine=Fake(), save_to=taken).start()
    with pytest.raises(FileExistsError):
        manager.close()
    assert manager.engine.stopped


@pytest.mark.parametrize("call", ["add", "close_session", "set_bound", "wait_for"])
def test_before_the_start_and_after_the_end_a_call_says_what_to_do(call):
    arguments = {"add": (sample_clips()[0],), "close_session": ("s0",), "set_bound": (None,), "wait_for": ()}[call]
    manager = SessionManager(PROFILE, engine=Fake())
    with pytest.raises(SessionError, match="not running"):
        getattr(manager, call)(*arguments)
    manager.start().close()
    with pytest.raises(SessionError, match="not running"):
        getattr(manager, call)(*arguments)
    with pytest.raises(SessionError, match="make a new one"):
        manager.start()


def test_a_clip_played_once_ends_and_its_words_are_labelled():
    with SessionManager(PROFILE, engine=Fake()) as manager:
        name = manager.add(sample_clips()[4], loop=False)
        assert manager.wait_for(lambda m: len(m.frames()) > 2, seconds=PATIENCE_S)
        assert "no meaning" in manager.words(name)
        assert manager.wait_for(lambda m: name not in m.beat.sessions, seconds=PATIENCE_S)
        assert manager.sessions()["reason"].tolist() == ["clip over"]
        with pytest.raises(SessionError, match="no open session"):
            manager.words(name)
