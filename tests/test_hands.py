"""Hands: what a cell or a panel asks of the engines and waits for, on a simulated engine and on fakes."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.live_rig import BOUND, FEW, PATIENCE_S, Broken, Ready, all_ended, ask, busy, hands_of, soon
from workbench.admission import AdmissionError
from workbench.audio import AudioError
from workbench.bound import KVBound
from workbench.live.asked import Asked
from workbench.live.hands import CONTROLLERS
from workbench.telemetry import load_tables


@pytest.fixture
def hands_on(tmp_path):
    """Opens hands on engines that are given."""
    with all_ended(hands_of(tmp_path)) as make:
        yield make


@pytest.fixture
def hands(hands_on):
    return hands_on(Ready())


def bounds(hands, arm=None):
    return [session.bound for session in hands.manager(arm).beat.sessions.values()]


# -- waiting ---------------------------------------------------------------------------------------------------------


def test_a_cell_waits_for_the_engine_for_the_full_pool_and_for_the_wall(hands_on, tmp_path):
    hands = hands_on(profile=FEW, speed=math.inf)

    async def cell():
        assert await hands.until("open", PATIENCE_S)
        assert len((await hands.add(n=FEW.sessions))[0]) == FEW.sessions
        assert await hands.until("pool full", PATIENCE_S)
        assert hands.manager().beat.first_refused_at_s is not None
        assert await hands.until("wall", PATIENCE_S)
        assert hands.status() == f"wall: {FEW.sessions} of {FEW.sessions} sessions silent, 0 deadline misses"
        assert await hands.until(lambda h: h.manager().now() > 100 * FEW.frame_budget_s, PATIENCE_S)

    asyncio.run(cell())
    hands.end()
    assert hands.status().startswith("ended") and not hands.alive
    assert len(load_tables(tmp_path / "run-1")["sessions"]) == FEW.sessions


def test_what_cannot_be_waited_for_is_refused_at_once_with_what_can(hands):
    with pytest.raises(ValueError, match=r"^until 'tea': choose from open, pool full, wall, or give a function"):
        hands.until("tea")


def test_waiting_in_vain_says_so_and_ends_nothing(hands, capsys):
    assert asyncio.run(hands.until("wall", 0.1)) is False
    assert capsys.readouterr().out.startswith("not reached: ")
    assert hands.alive


def test_an_interrupted_wait_says_so_and_the_engine_goes_on(hands, capsys):
    async def cell():
        waiting = asyncio.create_task(hands.until("wall", PATIENCE_S))
        await hands.add()
        waiting.cancel()
        assert await waiting is False

    asyncio.run(cell())
    said = capsys.readouterr().out
    assert said.startswith("interrupted: ") and said.endswith("; the engine goes on\n")
    assert hands.alive and len(hands.open_sessions()) == 1


@pytest.mark.parametrize("how", ["dies", "does not start", "is ended"])
def test_nobody_waits_for_an_engine_that_is_gone(hands_on, capsys, how):
    engine = Broken() if how == "does not start" else Ready()
    hands = hands_on(engine)
    if how == "dies":
        engine.dead = "it fell over"
    if how == "is ended":
        soon(lambda: hands.live.open_now)
        hands.end()
    assert asyncio.run(hands.until(lambda h: False, PATIENCE_S)) is False
    assert not hands.alive and capsys.readouterr().out == f"not reached: {hands.status()}\n"


# -- asking ----------------------------------------------------------------------------------------------------------


def test_what_is_asked_can_be_awaited_waited_for_or_left(hands):
    asked = hands.add(n=2)
    assert isinstance(asked, Asked) and repr(asked) == "asked: add 2 sessions"
    assert ask(asked) == [["s0", "s1"]]

    async def cell():
        return await asked, await hands.close("s0")

    assert asyncio.run(cell()) == ([["s0", "s1"]], [1])
    assert [repr(each) for each in (hands.add(), hands.close(), hands.close("s1"), hands.close_half())] == [
        "asked: add 1 session",
        "asked: close all",
        "asked: close s1",
        "asked: close half",
    ]


def test_an_error_comes_to_whoever_waits(hands):
    with pytest.raises(AudioError, match="nobody"):
        ask(hands.add("nobody"))
    assert "nobody" in hands.notice and "\n" not in hands.notice

    async def cell():
        await hands.add(n=0)

    with pytest.raises(ValueError, match="^add 1 session or more, not 0$"):
        asyncio.run(cell())
    assert hands.live.arms[0].desk.notice == "add 1 session or more, not 0" and hands.notice == ""


def test_a_cell_that_is_interrupted_while_it_awaits_an_answer_takes_nothing_back(hands):
    async def wait(asked):
        return await asked

    async def cell():
        with busy(hands.live.arms[0].desk):
            waiting = asyncio.create_task(wait(hands.add(n=3)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(cell())
    assert ask(hands.add()) == [["s3"]] and hands.alive


def test_a_bound_is_for_the_sessions_there_are_and_for_those_to_come(hands):
    ask(hands.add(n=2))
    ask(hands.bound(BOUND))
    ask(hands.add())
    assert bounds(hands) == [BOUND] * 3 and hands.bound_to_come == BOUND
    wider = KVBound(2 * BOUND.window, BOUND.sinks)
    ask(hands.bound(wider, "s1"))
    ask(hands.bound(None, "s2"))
    ask(hands.add())
    assert bounds(hands) == [BOUND, wider, None, BOUND] and hands.bound_to_come == BOUND
    assert repr(hands.bound(None)) == "asked: bound off for all"
    assert repr(hands.bound(wider, "s1")) == f"asked: bound W {wider.window} S {wider.sinks} for s1"
    ask(hands.bound(None))
    ask(hands.add())
    assert bounds(hands) == [None] * 5 and hands.bound_to_come is None


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_admission_begins_with_the_sessions_there_are(hands_on, controller):
    hands = hands_on(profile=FEW)
    hands.pause()
    assert hands.admission_words() == ""
    ask(hands.add(n=5))
    ask(hands.admit(controller, 0.5))
    gate = hands.manager().beat.gate
    assert gate.controller.name == controller and gate.cap == 5 and gate.interval_s == FEW.frame_budget_s
    ask(hands.admit(None))
    assert hands.manager().beat.gate is None and hands.admission_words() == ""


def test_what_admission_does_is_told_in_words(hands_on):
    hands = hands_on(profile=FEW)
    hands.pause()
    ask(hands.admit("AIMD", 0.5))
    ask(hands.add(n=3))
    assert hands.admission_words() == "cap 1, 2 shed"


def test_a_controller_that_is_none_or_has_no_target_is_refused_in_one_line(hands):
    with pytest.raises(AdmissionError, match=r"^no controller 'tea': choose from AIMD, headroom, Gradient2$"):
        ask(hands.admit("tea", 0.5))
    assert hands.notice == "no controller 'tea': choose from AIMD, headroom, Gradient2"
    with pytest.raises(AdmissionError, match="^target_s must be above 0"):
        ask(hands.admit("AIMD"))
    assert hands.manager().beat.gate is None
    ask(hands.admit("Gradient2"))
    assert hands.manager().beat.gate.controller.name == "Gradient2", "which has no target"


def test_a_speed_that_cannot_be_played_is_said_and_the_old_one_stays(hands):
    hands.set_speed(4)
    hands.set_speed(math.nan)
    assert hands.live.pace.speed == 4.0 and hands.notice.startswith("speed must be ")


def test_time_can_be_paused_stepped_and_let_go(hands_on):
    hands = hands_on(profile=FEW)
    hands.pause()
    ask(hands.add())
    begun = hands.manager().now()
    hands.step()
    hands.step(2.5 * FEW.frame_budget_s)
    ends = begun + 3.5 * FEW.frame_budget_s
    soon(lambda: hands.manager().now() >= ends - 1e-9)
    ask(hands.bound(None))
    assert hands.manager().now() == pytest.approx(ends) and hands.live.pace.paused
    hands.pause(False)
    soon(lambda: hands.manager().now() > ends + FEW.frame_budget_s)


@pytest.mark.parametrize("again", ["reset", "restart"])
def test_after_a_reset_or_a_restart_it_is_another_run(hands_on, again):
    hands = hands_on(Ready(), Ready())
    ask(hands.add(n=2))
    soon(lambda: hands.live.arms[0].feed is not None)
    first = hands.live.arms[0].feed
    assert ask(getattr(hands, again)()) == [None]
    assert hands.open_sessions() == {} and hands.alive
    soon(lambda: hands.live.arms[0].feed is not first)
    assert ask(hands.add()) == [["s0"]]
