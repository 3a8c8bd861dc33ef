"""Another run on the same engine: names, clock, tables and t_full of its own, on either drive."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pandas as pd
import pytest

from tests.live_rig import FEW, ONE_LINE, PATIENCE_S, TINY, Ready, kill
from tests.scheduler_rig import BLOCK
from tests.test_scheduler import SESSIONS, Rig, fill_to_the_wall
from tests.test_sessions import Fake
from workbench import sessions as sessions_module
from workbench.admission import FixedCap, Gate
from workbench.audio import sample_clips
from workbench.engine import EngineError
from workbench.saturation import replay
from workbench.sessions import SessionError, SessionManager
from workbench.telemetry import load_tables

DRIVES = ("virtual", "in real time")


@contextmanager
def managed(drive, **how):
    """A manager on that drive, the clip its sessions take, and some frame budgets to wait for."""
    if drive == "virtual":
        profile, clip, engine = FEW, None, None
    else:
        profile, clip, engine = TINY, sample_clips()[0], Ready()
    with SessionManager(profile, "first", engine=engine, **how) as manager:
        yield manager, clip


def some_frames(manager, count=6):
    assert manager.wait_for(lambda m: len(m.frames()) >= count, seconds=PATIENCE_S)


@pytest.mark.parametrize("drive", DRIVES)
def test_names_begin_anew_and_the_tables_are_separate_ones(drive, tmp_path):
    with managed(drive, save_to=tmp_path / "1") as (manager, clip):
        assert [manager.add(clip) for _ in range(3)] == ["s0", "s1", "s2"]
        some_frames(manager)
        first, began = manager.tables, manager.engine.now() - manager.now()
        manager.new_run("second", save_to=tmp_path / "2")
        assert manager.engine.now() - manager.now() > began, "its clock began later"
        assert manager.tables is not first and manager.tables.run == "second"
        assert manager.sessions().empty and manager.frames().empty and not manager.beat.sessions
        assert first.sessions()["reason"].tolist() == ["closed for a new run"] * 3
        kept = first.frames(), first.pool()
        assert [manager.add(clip) for _ in range(2)] == ["s0", "s1"]
        some_frames(manager)
        for now, then in zip((first.frames(), first.pool()), kept, strict=True):
            pd.testing.assert_frame_equal(now, then)
        assert set(manager.frames()["run"]) == set(manager.pool()["run"]) == {"second"}
        assert manager.pool()["at_s"].is_monotonic_increasing and manager.pool()["at_s"].min() >= 0
    assert load_tables(tmp_path / "1")["sessions"]["session"].tolist() == ["s0", "s1", "s2"]
    assert load_tables(tmp_path / "2")["sessions"]["session"].tolist() == ["s0", "s1"]


@pytest.mark.parametrize("drive", DRIVES)
def test_a_gate_is_only_the_runs_own(drive):
    with managed(drive, gate=Gate(FixedCap(1), 1.0)) as (manager, clip):
        assert [manager.offer(clip) for _ in range(2)] == ["s0", None]
        manager.new_run("second")
        assert [manager.offer(clip) for _ in range(2)] == ["s0", "s1"]
        manager.new_run("third", gate=Gate(FixedCap(2), 1.0))
        assert [manager.offer(clip) for _ in range(3)] == ["s0", "s1", None]
        manager.set_gate(Gate(FixedCap(3), 1.0))
        assert [manager.offer(clip) for _ in range(2)] == ["s3", None]
        manager.set_gate(None)
        assert manager.offer(clip) == "s5" and manager.beat.gate is None


@pytest.mark.parametrize("drive", DRIVES)
def test_on_a_dead_engine_a_new_run_is_refused_in_one_line(drive):
    with managed(drive) as (manager, clip):
        manager.add(clip)
        if drive == "virtual":
            kill(manager)
        else:
            manager.engine.dead = "it fell over"
        assert manager.wait_for(lambda m: m.beat.dead is not None, seconds=PATIENCE_S)
        tables = manager.tables
        with pytest.raises(EngineError, match=r"^engine died: .*: start a new manager$"):
            manager.new_run("second")
        assert manager.tables is tables


@pytest.mark.parametrize("drive", DRIVES)
def test_a_manager_that_does_not_run_has_no_new_run(drive):
    with managed(drive) as (manager, _):
        pass
    with pytest.raises(SessionError, match=ONE_LINE):
        manager.new_run("second")


def to_the_wall(manager):
    """From the first session on: when the pool was full, when the wall was, and the frames."""
    for _ in range(FEW.sessions):
        manager.add(None)
    assert manager.wait_for(lambda m: m.beat.wall_at_s is not None, seconds=100 * FEW.frame_budget_s)
    return manager.beat.first_refused_at_s, manager.beat.wall_at_s, manager.frames()


def test_each_run_fills_the_pool_by_its_own_clock_and_forecasts_it_from_its_own_rows():
    with SessionManager(FEW) as manager:
        full_s, wall_s, frames = to_the_wall(manager)
        manager.new_run("run")
        assert manager.beat.first_refused_at_s is None and manager.beat.wall_at_s is None
        again_s, wall_again_s, frames_again = to_the_wall(manager)
        assert again_s == pytest.approx(full_s) and wall_again_s == pytest.approx(wall_s)
        pd.testing.assert_frame_equal(frames_again, frames)
        pool, sessions = manager.pool(), manager.sessions()
    early = pool[pool["at_s"] < full_s / 2].iloc[-1]
    # The schedule of the second run alone foretells it: growth is the same, and nothing is left of the first.
    assert early["t_full_predicted_s"] == pytest.approx(full_s)
    replayed = replay(pool, sessions, FEW.frame_budget_s, FEW.block_size, until_s=early["at_s"])
    assert replayed.t_full_s == early["t_full_predicted_s"]


def test_a_run_on_an_engine_that_keeps_its_blocks_is_refused(monkeypatch):
    monkeypatch.setattr(sessions_module, "EMPTY_WITHIN_S", 0.2)
    with SessionManager(TINY, engine=Fake()) as manager:
        manager.add(sample_clips()[0])
        with pytest.raises(
            EngineError, match=r"^the engine kept blocks for 0\.2 s after its last session: restart it$"
        ):
            manager.new_run("second")
        assert manager.tables.run == "run"


def test_sessions_that_come_while_a_run_ends_keep_it_from_beginning(monkeypatch):
    with SessionManager(FEW) as manager:
        manager.add(None)
        manager.wait_for(seconds=3 * FEW.frame_budget_s)
        wait_for = manager.wait_for
        monkeypatch.setattr(
            manager, "wait_for", lambda *how, **more: wait_for(*how, **more) and bool(manager.add(None))
        )
        with pytest.raises(SessionError, match=r"^sessions were opened while .*: try again$"):
            manager.new_run("second")
        assert list(manager.beat.sessions) == ["s1"] and manager.tables.run == "run"


def test_what_would_be_a_warning_goes_to_whoever_listens():
    heard = []
    with SessionManager(FEW, warn=heard.append) as manager:
        for _ in range(FEW.max_sessions):
            manager.add(None, FEW.bound)
    assert heard and all("exceed the pool by" in line for line in heard)


# -- the scheduler ---------------------------------------------------------------------------------------------------


def test_the_first_refusal_is_forgotten_with_the_last_session_and_not_before():
    rig = Rig(40)
    rig.scheduler.clock = time.monotonic
    fill_to_the_wall(rig, SESSIONS)
    first = rig.scheduler.snapshot()["first_refused_at"]
    assert first is not None and rig.scheduler.snapshot()["at"] >= first
    for name in SESSIONS[1:]:
        rig.abort(name)
        rig.step()
    assert rig.scheduler.snapshot()["first_refused_at"] == first, "one that saw it is still there"
    refused = rig.scheduler.refused_allocations
    rig.abort(SESSIONS[0])
    assert rig.scheduler.snapshot()["first_refused_at"] is None
    rig.chunk("a", BLOCK, 2, None)
    rig.step(4)
    assert rig.scheduler.snapshot()["first_refused_at"] is None
    fill_to_the_wall(rig, SESSIONS)
    assert rig.scheduler.snapshot()["first_refused_at"] > first and rig.scheduler.refused_allocations > refused
