"""A desk's life: it starts, fails, dies, begins again and ends, and always says which, whatever is asked meanwhile."""

from __future__ import annotations

import asyncio
import time

import pandas as pd
import pytest

from tests.live_rig import (
    FEW,
    ONE_LINE,
    TINY,
    Broken,
    Ready,
    all_ended,
    ask,
    kill,
    live_threads,
    makers,
    soon,
    stepped,
)
from workbench.audio import sample_clips
from workbench.engine import EngineError
from workbench.live.desk import DEAD, ENDED, FAILED, OPEN, STARTING, Desk
from workbench.live.pace import Pace
from workbench.telemetry import load_tables


class Hanging(Ready):
    """Never comes up by itself."""

    async def start(self, progress=None):
        progress("loading the weights")
        await asyncio.Event().wait()


class Gated(Ready):
    """Comes up when it is let."""

    let = False

    async def start(self, progress=None):
        while not self.let:
            await asyncio.sleep(0.005)
        await super().start(progress)


@pytest.fixture
def desk_of(tmp_path):
    """Opens desks on engines that are given, or on the profile's own."""

    def make(*engines, profile=TINY, folder=tmp_path, **how):
        return Desk(profile, folder, engine=makers(*engines) if engines else None, **how).open()

    with all_ended(make) as making:
        yield making


def test_it_starts_in_the_background_and_ends_with_its_tables(desk_of, tmp_path):
    engine = Gated()
    desk = desk_of(engine, label="bounded")
    assert desk.state == STARTING and desk.alive
    engine.let = True
    soon(lambda: desk.state == OPEN)
    assert live_threads() == ["metronome-desk-bounded", "metronome-beat"]
    assert ask(desk.add(sample_clips()[0])) == ["s0"]
    desk.end()
    desk.end()
    assert desk.state == ENDED and not desk.alive and engine.stopped == 1
    sessions = load_tables(tmp_path / "run-1")["sessions"]
    assert sessions[["run", "session", "reason"]].values.tolist() == [["bounded", "s0", "closed with the manager"]]


def test_while_it_starts_it_says_how_far_it_is_and_what_is_asked_waits(desk_of):
    engine = Gated()
    desk = desk_of(engine)
    asked = desk.add(sample_clips()[0], 2)
    assert desk.progress.startswith("starting (") and not asked.done()
    engine.let = True
    assert ask(asked) == ["s0", "s1"]


def test_a_start_that_hangs_can_be_ended_and_what_was_asked_is_answered(desk_of):
    engine = Hanging()
    desk = desk_of(engine)
    soon(lambda: desk.progress.startswith("loading the weights ("))
    assert desk.add(sample_clips()[0]).cancel()
    asked = desk.add(sample_clips()[0])
    desk.end()
    assert desk.state == ENDED and engine.stopped == 1
    with pytest.raises(EngineError, match="^the desk was ended: open another$"):
        ask(asked)


def test_an_ended_desk_answers_at_once(desk_of):
    desk = desk_of(Ready())
    desk.end()
    for asked in (desk.add(None), desk.close(), desk.reset(), desk.restart(), desk.save()):
        assert asked.done()
        with pytest.raises(EngineError, match="^the desk was ended: open another$"):
            asked.result()


def test_a_desk_that_was_never_opened_can_be_ended(tmp_path):
    desk = Desk(TINY, tmp_path, engine=makers(Ready()))
    desk.end()
    with pytest.raises(EngineError, match="the desk was ended"):
        desk.add(None).result()


@pytest.mark.parametrize("failing", [Broken(), EngineError("no room\nfor a traceback"), OSError("no room")])
def test_an_engine_that_does_not_start_says_why_in_one_line_and_may_be_started_again(desk_of, tmp_path, failing):
    desk = desk_of(failing, Ready())
    soon(lambda: desk.state == FAILED)
    assert desk.notice == "no room"
    with pytest.raises(EngineError, match="^the engine is failed: restart it$"):
        ask(desk.add(sample_clips()[0]))
    assert ask(desk.restart()) is None
    assert desk.state == OPEN and desk.run_folder == tmp_path / "run-2" and desk.notice == ""
    assert ask(desk.add(sample_clips()[0])) == ["s0"]


def test_without_an_engine_there_are_no_tables_to_save(desk_of):
    desk = desk_of(EngineError("no room"))
    with pytest.raises(EngineError, match="^no engine has been up, so there are no tables: restart it$"):
        ask(desk.save())


@pytest.mark.parametrize("failing", [Broken(), EngineError("no room")])
@pytest.mark.parametrize("again", ["restart", "reset"])
def test_a_restart_that_fails_is_answered_and_may_be_tried_again(desk_of, failing, again):
    desk = desk_of(Ready(), failing, Ready())
    soon(lambda: desk.state == OPEN)
    with pytest.raises(EngineError, match="^no room$"):
        ask(desk.restart())
    assert desk.state == FAILED and desk.notice == "no room"
    ask(getattr(desk, again)())
    assert desk.state == OPEN and desk.runs == 3


@pytest.mark.parametrize("again", ["restart", "reset"])
@pytest.mark.parametrize("executor", ["simulated", "in real time"])
def test_an_engine_that_dies_leaves_its_tables_and_a_new_one_brings_a_new_run(desk_of, tmp_path, executor, again):
    virtual = executor == "simulated"
    clip = None if virtual else sample_clips()[0]
    engine = Ready()
    desk = desk_of(profile=FEW, pace=Pace(10)) if virtual else desk_of(engine, Ready())
    ask(desk.add(clip, 3))
    first = desk.manager
    soon(lambda: sum(row.returned_at_s is not None for row in first.tables.frame_rows) > 5)
    if virtual:
        kill(first)
    else:
        engine.dead = "it fell over"
    soon(lambda: desk.state == DEAD)
    soon(lambda: (tmp_path / "run-1" / "pool.parquet").exists())
    saved = load_tables(tmp_path / "run-1")
    pd.testing.assert_frame_equal(saved["frames"], first.frames())
    assert saved["sessions"]["reason"].str.startswith("engine died: ").all() and len(saved["sessions"]) == 3
    with pytest.raises(EngineError, match="^the engine is dead: restart it$"):
        ask(desk.add(clip))
    assert desk.notice == "the engine is dead: restart it"
    assert ask(desk.save()) == tmp_path / "run-1"
    ask(getattr(desk, again)())
    assert desk.state == OPEN and desk.manager is not first and desk.run_folder == tmp_path / "run-2"
    assert ask(desk.add(clip)) == ["s0"]


def test_a_dead_engine_does_not_die_again_and_again(desk_of, tmp_path):
    engine = Ready()
    desk = desk_of(engine)
    soon(lambda: desk.state == OPEN)
    engine.dead = "it fell over"
    soon(lambda: (tmp_path / "run-1" / "pool.parquet").exists())
    written = (tmp_path / "run-1" / "pool.parquet").stat().st_mtime_ns
    for _ in range(3):
        with pytest.raises(EngineError):
            ask(desk.close())
    assert (tmp_path / "run-1" / "pool.parquet").stat().st_mtime_ns == written


def test_tables_that_cannot_be_saved_are_said_and_end_nothing(desk_of, tmp_path):
    engine = Ready()
    desk = desk_of(engine, Ready())
    soon(lambda: desk.state == OPEN)
    taken = tmp_path / "run-1"
    taken.rmdir()
    taken.write_text("")
    with pytest.raises(OSError, match=ONE_LINE):
        ask(desk.save())
    assert str(taken) in desk.notice and "\n" not in desk.notice
    engine.dead = "it fell over"
    soon(lambda: desk.state == DEAD)
    soon(lambda: desk.notice.startswith(f"the tables cannot be saved in {taken}: "))
    assert ask(desk.restart()) is None and desk.state == OPEN


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_recorded(desk_of, tmp_path):
    (tmp_path / "taken").write_text("")
    desk = desk_of(Ready(), folder=tmp_path / "taken")
    soon(lambda: desk.state == FAILED)
    assert desk.notice.endswith("give another folder") and "\n" not in desk.notice


def test_a_desk_keeps_what_another_has_left_in_its_folder(desk_of, tmp_path):
    (tmp_path / "run-1").mkdir()
    desk = desk_of(Ready())
    soon(lambda: desk.state == OPEN)
    assert desk.run_folder == tmp_path / "run-2"


def test_a_reset_begins_an_empty_run_at_second_0_and_keeps_the_tables_of_the_last(desk_of, tmp_path):
    pace = Pace()
    pace.paused = True
    desk = desk_of(profile=FEW, pace=pace, label="unbounded")
    ask(desk.add(None, 4))
    stepped(desk, 6.5 * FEW.frame_budget_s)
    old = desk.manager.tables
    assert len(old.frame_rows) > 4
    ask(desk.reset())
    manager = desk.manager
    assert desk.state == OPEN and (desk.runs, desk.run_folder) == (2, tmp_path / "run-2")
    assert manager.now() == 0.0 and manager.tables is not old and manager.tables.run == "unbounded"
    assert not manager.tables.session_rows and not manager.tables.frame_rows and not manager.tables.pool_rows
    saved = load_tables(tmp_path / "run-1")
    for name, table in saved.items():
        pd.testing.assert_frame_equal(table, getattr(old, name)())
    assert set(saved["sessions"]["reason"]) == {"closed for a new run"}
    assert ask(desk.add(None)) == ["s0"]
    stepped(desk, 2 * FEW.frame_budget_s)
    desk.end()
    assert load_tables(tmp_path / "run-2")["sessions"]["session"].tolist() == ["s0"]
    assert len(load_tables(tmp_path / "run-1")["sessions"]) == 4


def test_in_real_time_a_reset_does_the_same(desk_of, tmp_path):
    desk = desk_of(Ready())
    ask(desk.add(sample_clips()[0], 2))
    first = desk.manager.tables
    soon(lambda: len(first.frame_rows) > 8)
    asked_at = time.monotonic()
    ask(desk.reset())
    assert (desk.runs, desk.state) == (2, OPEN) and desk.manager.tables is not first
    # The fake's clock is the machine's, and the new run began after it was asked for.
    assert desk.manager.now() <= time.monotonic() - asked_at
    assert desk.manager.tables.session_rows == {}
    assert len(load_tables(tmp_path / "run-1")["frames"]) == len(first.frame_rows)


def test_a_desk_that_died_keeps_no_other_waiting(desk_of, tmp_path):
    pace = Pace(10)
    one, other = (desk_of(profile=FEW, pace=pace, label=name, folder=tmp_path / name) for name in ("one", "other"))
    for desk in (one, other):
        ask(desk.add(None))
    kill(one.manager)
    soon(lambda: one.state == DEAD)
    reached = other.manager.now()
    soon(lambda: other.manager.now() > reached + 5 * FEW.frame_budget_s)
    ask(one.restart())
    ask(one.add(None))
    soon(lambda: one.manager.now() > FEW.frame_budget_s)


def test_a_desk_whose_engine_did_not_start_keeps_no_other_waiting(desk_of, tmp_path):
    pace = Pace(10)
    failed = desk_of(EngineError("no room"), profile=FEW, pace=pace, folder=tmp_path / "failed")
    other = desk_of(profile=FEW, pace=pace, folder=tmp_path / "other")
    soon(lambda: failed.state == FAILED)
    ask(other.add(None))
    soon(lambda: other.manager.now() > 5 * FEW.frame_budget_s)


def test_two_desks_that_are_stepped_are_at_one_instant(desk_of, tmp_path):
    pace = Pace()
    pace.paused = True
    desks = [desk_of(profile=FEW, pace=pace, folder=tmp_path / name) for name in ("one", "other")]
    for desk in desks:
        ask(desk.add(None, 2))
    for _ in range(3):
        stepped(desks[0], 1.3 * FEW.frame_budget_s)
        soon(lambda: desks[1].manager.now() >= desks[0].manager.now() - 1e-9)
        assert desks[1].manager.now() == pytest.approx(desks[0].manager.now())
    one, other = (desk.manager.frames() for desk in desks)
    pd.testing.assert_frame_equal(one, other)
