"""What a desk is asked: done in its turn, or refused in one line, and the desk goes on either way."""

from __future__ import annotations

import pytest

from tests.live_rig import BOUND, FEW, ONE_LINE, TINY, Ready, all_ended, ask, busy, kill, makers, soon
from workbench.admission import AdmissionError, Aimd, FixedCap, Gate
from workbench.audio import AudioError, sample_clips
from workbench.bound import BoundError, KVBound
from workbench.engine import EngineError
from workbench.live.desk import DEAD, OPEN, Desk
from workbench.live.pace import Pace
from workbench.sessions import SessionError
from workbench.telemetry import load_tables

CLIP = sample_clips()[0]


@pytest.fixture
def desk(tmp_path):
    """An open desk on an engine in real time that answers at once."""
    with all_ended(lambda: Desk(TINY, tmp_path, engine=makers(Ready())).open()) as make:
        yield make()


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """An open desk on a simulated engine whose time stands still; its tests say how they leave it."""
    pace = Pace()
    pace.paused = True
    desk = Desk(FEW, tmp_path_factory.mktemp("still"), pace=pace).open()
    yield desk
    desk.end()


@pytest.fixture
def paused(still):
    still.admit(None)
    ask(still.reset())
    return still


def open_names(desk):
    return list(desk.manager.beat.sessions)


def gate(cap):
    return lambda sessions: Gate(FixedCap(cap), 1.0)


REFUSED = {
    "no clip": (lambda d: d.add(None), SessionError),
    "no session": (lambda d: d.add(CLIP, 0), SessionError),
    "half a session": (lambda d: d.add(CLIP, 1.5), SessionError),
    "true sessions": (lambda d: d.add(CLIP, True), SessionError),
    "a window too small": (lambda d: d.set_bound(KVBound(TINY.block_size - 1)), BoundError),
    "a window too large": (lambda d: d.add(CLIP, 1, KVBound(TINY.max_model_len)), BoundError),
    "a bound for nobody": (lambda d: d.set_bound(BOUND, "nobody"), SessionError),
    "a place before the clip": (lambda d: d.add(CLIP, 1, start_s=-1.0), AudioError),
    "a gate that cannot be": (lambda d: d.admit(lambda n: Gate(Aimd(0.0), 1.0)), AdmissionError),
    "too many": (lambda d: d.add(CLIP, TINY.max_sessions + 1), SessionError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_is_one_line_in_the_notice_and_in_the_answer_and_the_desk_goes_on(desk, what):
    asked, kind = REFUSED[what]
    soon(lambda: desk.state == OPEN)
    with pytest.raises(kind, match=ONE_LINE) as refusal:
        ask(asked(desk))
    assert desk.notice == str(refusal.value)
    ask(desk.close())
    assert desk.notice == "", "what was done after it clears the notice"
    (name,) = ask(desk.add(CLIP))
    soon(lambda: any(row.session == name and row.tokens_delivered for row in desk.manager.tables.frame_rows))


def test_a_gate_that_cannot_be_made_leaves_the_one_there_is(desk):
    ask(desk.admit(gate(3)))
    with pytest.raises(AdmissionError):
        ask(desk.admit(lambda n: Gate(Aimd(0.0), 1.0)))
    assert desk.manager.beat.gate.cap == 3 and desk.new_gate(0).cap == 3


def test_a_fault_nobody_foresaw_is_one_line_too_and_the_desk_goes_on(desk):
    (name,) = ask(desk.add(CLIP))

    def fault(name):
        raise ZeroDivisionError("by nothing\nat all")

    desk.manager.close_session = fault
    with pytest.raises(ZeroDivisionError):
        ask(desk.close())
    assert desk.notice == "fault of the workbench: ZeroDivisionError: by nothing"
    del desk.manager.close_session
    assert ask(desk.close()) == 1 and desk.notice == "" and name not in open_names(desk)


def test_who_thinks_better_of_it_before_its_turn_has_not_asked(desk):
    soon(lambda: desk.state == OPEN)
    with busy(desk):
        assert desk.add(CLIP, 5).cancel()
    assert ask(desk.add(CLIP)) == ["s0"] and desk.alive


def test_each_session_on_a_clip_has_another_place_of_it_through_the_run(desk):
    soon(lambda: desk.state == OPEN)
    places, add = [], desk.manager.add
    desk.manager.add = lambda clip, bound, start_s: places.append(start_s) or add(clip, bound, start_s=start_s)
    for _ in range(2):
        ask(desk.add(CLIP, 4))
    assert len({round(place, 6) for place in places}) == 8
    assert all(0 <= place < CLIP.seconds for place in places)
    ask(desk.add(CLIP, 2, start_s=0.5))
    assert places[8:] == [0.5, 0.5]


def test_sessions_that_admission_keeps_out_are_shed_and_the_reason_is_told(paused):
    ask(paused.admit(gate(3)))
    assert ask(paused.add(None, 5)) == ["s0", "s1", "s2"]
    assert paused.notice == "2 of 5 shed: 3 sessions open, admission cap 3 (fixed)"
    shed = paused.manager.sessions().query("opened_at_s.isna()")
    assert shed["session"].tolist() == ["s3", "s4"]
    assert shed["reason"].tolist() == ["shed: 3 sessions open, admission cap 3 (fixed)"] * 2
    assert ask(paused.close(["s1"])) == 1 and ask(paused.add(None)) == ["s5"]
    ask(paused.admit(None))
    assert len(ask(paused.add(None, 2))) == 2 and paused.notice == ""


def test_a_gate_is_told_how_many_are_open_and_a_new_run_has_a_new_one(paused):
    told = []
    ask(paused.add(None, 4))
    ask(paused.admit(lambda sessions: told.append(sessions) or Gate(FixedCap(5), 1.0)))
    ask(paused.add(None, 3))
    first = paused.manager.beat.gate
    ask(paused.reset())
    assert told == [4, 0] and first.shed == 2
    assert paused.manager.beat.gate is not first and paused.manager.beat.gate.shed == 0


def test_with_admission_the_profiles_most_sessions_are_shed_and_not_refused(paused):
    ask(paused.admit(gate(FEW.max_sessions + 5)))
    assert len(ask(paused.add(None, FEW.max_sessions + 1))) == FEW.max_sessions
    assert paused.notice == f"1 of {FEW.max_sessions + 1} shed: {FEW.max_sessions} sessions open, the profile's " + (
        "max_sessions"
    )


@pytest.mark.parametrize(("sessions", "ended"), [(5, 3), (4, 2), (1, 1), (0, 0)])
def test_of_the_sessions_the_newer_half_is_ended_and_the_older_go_on(paused, sessions, ended):
    names = ask(paused.add(None, sessions)) if sessions else []
    assert ask(paused.close_half()) == ended
    assert open_names(paused) == names[: sessions - ended]


def test_sessions_are_closed_by_name_or_all_and_one_that_is_not_open_is_none(paused):
    ask(paused.add(None, 4))
    assert ask(paused.close(["s1", "s3", "s99"])) == 2 and open_names(paused) == ["s0", "s2"]
    assert ask(paused.close([])) == 0 and ask(paused.close(["s1"])) == 0
    assert ask(paused.close()) == 2 and open_names(paused) == []
    assert set(paused.manager.sessions()["reason"]) == {"closed"}


def test_a_bound_is_switched_for_one_session_or_for_all(paused):
    ask(paused.add(None, 3))
    ask(paused.add(None, 1, FEW.bound))

    def bounds():
        return [session.bound for session in paused.manager.beat.sessions.values()]

    assert bounds() == [None, None, None, FEW.bound]
    wider = KVBound(2 * FEW.window, FEW.sinks)
    ask(paused.set_bound(wider, "s1"))
    assert bounds() == [None, wider, None, FEW.bound]
    ask(paused.set_bound(FEW.bound))
    assert bounds() == [FEW.bound] * 4
    ask(paused.set_bound(None))
    assert bounds() == [None] * 4


def test_plateaus_that_exceed_the_pool_are_warned_of(paused):
    ask(paused.add(None, FEW.max_sessions, FEW.bound))
    assert paused.notice.startswith(f"the plateaus of {FEW.max_sessions} bounded sessions exceed the pool by ")
    assert "\n" not in paused.notice


def test_the_tables_so_far_are_saved_when_asked_for(paused):
    ask(paused.add(None, 2))
    folder = ask(paused.save())
    assert folder == paused.run_folder and load_tables(folder)["sessions"]["session"].tolist() == ["s0", "s1"]


def test_what_is_asked_is_done_in_its_order(paused):
    asked = [paused.add(None, 2), paused.close(["s0"]), paused.add(None), paused.close_half(), paused.close()]
    assert [ask(each) for each in asked] == [["s0", "s1"], 1, ["s2"], 1, 1]


def test_time_stands_still_while_nothing_is_to_be_played(paused):
    ask(paused.add(None))
    for _ in range(5):
        ask(paused.save())
    assert paused.manager.now() == 0.0


def test_a_command_between_an_engines_death_and_its_discovery_is_refused_too(tmp_path):
    pace = Pace()
    desk = Desk(FEW, tmp_path, pace=pace).open()
    try:
        ask(desk.add(None))
        kill(desk.manager)
        pace.step(2 * FEW.frame_budget_s)
        soon(lambda: desk.manager.beat.dead is not None)
        with pytest.raises(EngineError, match=ONE_LINE):
            ask(desk.add(None))
        soon(lambda: desk.state == DEAD)
    finally:
        desk.end()
