"""The workbench of a notebook: one of each name in a kernel, and two arms side by side."""

from __future__ import annotations

import asyncio

import pandas as pd
import pytest

from tests.live_rig import FEW, ONE_LINE, PATIENCE_S, TINY, Ready, all_ended, ask, kill, makers, soon
from workbench.bound import KVBound
from workbench.live.desk import DEAD, OPEN, STARTING
from workbench.panel.workbench import SideBySide, Workbench
from workbench.profiles import ProfileError
from workbench.telemetry import load_tables


@pytest.fixture
def opened(tmp_path):
    """Opens workbenches that keep their tables in the test's folder."""

    def make(kind=Workbench, profile=TINY, **how):
        if profile is TINY:
            how.setdefault("engine", lambda profile: Ready())
        bench = kind(profile, folder=tmp_path, **how)
        soon(lambda: STARTING not in states(bench))
        return bench

    with all_ended(make) as making:
        yield making


def states(bench):
    return [arm.desk.state for arm in bench.live.arms]


def test_the_same_call_again_shows_the_one_that_is_open(opened):
    bench = opened()
    ask(bench.add(n=2))
    assert opened() is bench and len(bench.open_sessions()) == 2
    assert opened(frame_budget_s=TINY.frame_budget_s) is bench, "a change that changes nothing"


def test_another_profile_ends_the_old_one_first(opened):
    bench = opened()
    other = opened(max_sessions=5)
    assert other is not bench and other.profile.max_sessions == 5
    soon(lambda: not bench.alive and bench.status().startswith("ended"))
    assert bench.status().startswith("ended") and opened(max_sessions=5) is other


def test_after_its_engine_died_the_same_call_opens_another(opened):
    engine = Ready()
    bench = opened(engine=makers(engine))
    engine.dead = "it fell over"
    soon(lambda: states(bench) == [DEAD])
    assert opened() is not bench


def test_after_it_was_ended_the_same_call_opens_another(opened):
    bench = opened()
    bench.end()
    bench.end()
    assert opened() is not bench


def test_workbenches_of_other_names_stand_side_by_side(opened):
    one, other = opened(), opened(name="another")
    assert one is not other and one.alive and other.alive
    assert opened() is one and opened(name="another") is other


def test_the_end_of_one_that_was_replaced_leaves_the_one_that_took_its_place(opened):
    bench = opened()
    other = opened(max_sessions=5)
    bench.end()
    assert opened(max_sessions=5) is other and other.alive


def test_a_profile_that_is_none_is_refused_and_the_open_one_stays(opened):
    bench = opened()
    for wrong in ("nobody", "sim:nobody"):
        with pytest.raises(ProfileError, match=ONE_LINE):
            opened(profile=wrong)
    with pytest.raises(ProfileError, match="no field 'tea'"):
        opened(tea=1)
    assert bench.alive and opened() is bench


def test_it_says_what_it_is(opened):
    bench = opened(name="mine")
    assert repr(bench) == "Workbench 'mine' on tiny: no sessions: add some"


def test_of_two_arms_only_one_is_ever_bound(opened):
    both = opened(SideBySide)
    assert [arm.name for arm in both.live.arms] == ["unbounded", "bounded"] and both.bound_to_come == TINY.bound

    def bounds():
        return {arm: [s.bound for s in both.manager(arm).beat.sessions.values()] for arm in SideBySide.ARMS}

    assert ask(both.add(n=2)) == [["s0", "s1"]] * 2
    assert bounds() == {"unbounded": [None] * 2, "bounded": [TINY.bound] * 2}
    wider = KVBound(2 * TINY.window, TINY.sinks)
    assert ask(both.bound(wider)) == [None], "one arm was asked"
    ask(both.add())
    assert bounds() == {"unbounded": [None] * 3, "bounded": [wider] * 3}
    ask(both.bound(None))
    assert bounds() == {"unbounded": [None] * 3, "bounded": [None] * 3}


def test_the_same_call_of_two_arms_keeps_the_bound_that_was_chosen(opened):
    both = opened(SideBySide)
    ask(both.bound(None))
    assert opened(SideBySide) is both and both.bound_to_come is None
    assert opened() is not both, "one arm is another workbench than two"


def test_on_one_pace_both_arms_come_to_the_wall_or_its_plateau_by_the_same_clock(opened, tmp_path):
    both = opened(SideBySide, profile=FEW)
    both.pause()
    # Arms are held until both are up, and then let go; so the pause is asked for again.
    soon(lambda: states(both) == [OPEN] * 2 and not both.live._held)
    both.pause()
    ask(both.reset())
    ask(both.add(n=FEW.sessions))
    both.step(60 * FEW.frame_budget_s)
    soon(lambda: all(both.manager(arm).now() >= 60 * FEW.frame_budget_s - 1e-9 for arm in SideBySide.ARMS))
    ask(both.close())
    unbounded, bounded = (both.manager(arm) for arm in SideBySide.ARMS)
    assert unbounded.now() == pytest.approx(bounded.now())
    assert unbounded.beat.wall_at_s is not None and bounded.beat.first_refused_at_s is None
    assert bounded.frames().query("status == 'on_time'")["window"].eq(FEW.window).all()
    pd.testing.assert_series_equal(unbounded.frames()["due_at_s"], bounded.frames()["due_at_s"])
    both.end()
    assert {p.parent.parent.name for p in tmp_path.glob("*/run-2/frames.parquet")} == {"unbounded", "bounded"}
    assert len(load_tables(tmp_path / "bounded" / "run-2")["sessions"]) == FEW.sessions


def test_when_one_arm_dies_the_other_plays_on(opened):
    both = opened(SideBySide, profile=FEW, speed=20)
    ask(both.add(n=2))
    kill(both.manager("unbounded"))
    soon(lambda: states(both) == [DEAD, OPEN])
    reached = both.manager("bounded").now()
    soon(lambda: both.manager("bounded").now() > reached + 5 * FEW.frame_budget_s)
    assert both.status().startswith("unbounded: engine died: ") and " | bounded: beating; " in both.status()


def test_what_is_drawn_of_the_arms_is_the_same_whole_or_by_its_changes(opened):
    both = opened(SideBySide, profile=FEW, speed=60)
    live, copy, told = both.live, [], []

    def listen(changes):
        # As a panel does on the reading thread: a new run is drawn whole.
        told.append(None in changes)
        if None in changes:
            copy[:] = [(list(trace.x), list(trace.y)) for trace in live.figure().data]
        elif copy:
            for trace in live.traces(changes):
                x, y = copy[trace["i"]]
                copy[trace["i"]] = (x[: trace["at"]] + trace["x"], y[: trace["at"]] + trace["y"])

    live.listeners.append(listen)
    ask(both.add(n=FEW.sessions))
    assert asyncio.run(both.until("wall", PATIENCE_S))
    both.pause()
    ask(both.close())
    live.read()
    assert True in told and False in told and any(x for x, _ in copy)
    assert copy == [(list(trace.x), list(trace.y)) for trace in live.figure().data]
    assert live.faults == []
