"""What a desk's state is called, how loud, and which buttons are said to help."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.test_beat import B, Run, snapshot
from workbench.bound import KVBound
from workbench.live.desk import DEAD, ENDED, FAILED, OPEN, STARTING
from workbench.live.status import (
    ALARM,
    BOUND_ALL,
    BUSY,
    CALM,
    CLOSE_HALF,
    RESET,
    RESTART,
    WARN_BELOW_S,
    WARNING,
    Status,
    in_time,
    status_of,
)

BOUND = KVBound(64, 4)
# After its first frame a session hears nothing more.
SILENT = {k: [] for k in range(1, 20)}


def desk(run=None, state=OPEN, notice="", progress="loading (3 s)", saved=False):
    """A desk in this state; ``run`` is the scripted run of its manager."""
    manager = None if run is None else SimpleNamespace(beat=run.beat, now=lambda: run.engine.now)
    return SimpleNamespace(state=state, notice=notice, progress=progress, manager=manager, saved=saved)


def run_of(script=None, bounds=(None, None), until=9.0, free=10, head=0):
    """Sessions a, b and so on with these bounds, up to some instant, and the pool as it is then."""
    run = Run(script)
    for name, bound in zip("abcd", bounds, strict=False):
        run.open(name, bound=bound)
    run.until(until)
    run.beat.measure(snapshot(until, free=free, head=head), until, lambda at: at)
    return run


def test_while_it_starts_it_says_how_far_it_is():
    assert status_of(desk(state=STARTING)) == Status("loading (3 s)", BUSY)


def test_an_engine_that_did_not_start_is_said_with_its_reason():
    failed = desk(state=FAILED, notice="no room")
    assert status_of(failed) == Status("the engine did not start: no room", ALARM, (RESTART,))


def test_an_ended_desk_says_what_to_do():
    assert status_of(desk(state=ENDED)) == Status("ended: run the cell again to open another engine", BUSY)


@pytest.mark.parametrize("state", [OPEN, DEAD])
def test_a_dead_engine_is_said_with_its_reason_whether_or_not_the_desk_has_seen_it(state):
    run = run_of()
    run.beat.die("it fell over", 9.0)
    assert status_of(desk(run, state)) == Status("engine died: it fell over", ALARM, (RESTART,))


def test_the_tables_of_a_dead_engine_are_said_to_be_saved_once_they_are():
    run = run_of()
    run.beat.die("it fell over", 9.0)
    saved = desk(run, DEAD, saved=True)
    assert status_of(saved) == Status("engine died: it fell over; the tables are saved", ALARM, (RESTART,))


def test_without_sessions_it_says_what_to_do():
    assert status_of(desk(run_of(bounds=()))) == Status("no sessions: add some")


def test_the_wall_is_an_alarm_and_three_things_help():
    said = status_of(desk(run_of({"a": SILENT, "b": SILENT}, until=9.4, free=1, head=2)))
    assert said == Status("wall: 2 of 2 sessions silent, 0 deadline misses", ALARM, (BOUND_ALL, CLOSE_HALF, RESET))


@pytest.mark.parametrize(
    ("bounds", "helps"),
    [
        ((None, None), (BOUND_ALL, CLOSE_HALF)),
        ((BOUND, None), (BOUND_ALL, CLOSE_HALF)),
        ((BOUND, BOUND), (CLOSE_HALF,)),
    ],
)
def test_of_stalled_sessions_a_bound_helps_those_that_have_none(bounds, helps):
    run = run_of({"a": SILENT}, bounds, until=9.4, free=50)
    assert status_of(desk(run)) == Status("1 of 2 sessions stalled", WARNING, helps)


@pytest.mark.parametrize(
    ("left_s", "level"), [(WARN_BELOW_S * 4, CALM), (WARN_BELOW_S, CALM), (WARN_BELOW_S - 1, WARNING), (-1, WARNING)]
)
def test_a_pool_that_will_soon_be_full_is_a_warning(left_s, level):
    run = run_of()
    said = status_of(desk(run), t_full_s=run.engine.now + left_s)
    assert said == Status(f"beating; pool full in {in_time(max(0, left_s))}", level)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((None, None), "unbounded: too early for a forecast"),
        ((BOUND, BOUND), "every session bounded: a plateau"),
        ((BOUND, None, None), "2 of 3 sessions unbounded"),
    ],
)
def test_without_a_forecast_it_says_what_fills_the_pool(bounds, words):
    assert status_of(desk(run_of(bounds=bounds, free=60))) == Status(f"beating; pool 40% used, {words}")


def test_before_the_first_sample_of_the_pool_nothing_is_said_of_it():
    run = Run()
    run.open("a", bound=BOUND)
    assert status_of(desk(run)) == Status("beating; every session bounded: a plateau")


def test_a_pool_that_was_full_says_since_when_and_a_forecast_is_no_more_news():
    run = run_of()
    run.beat.measure(snapshot(9.5, free=0, first_refused_at=8.25), 9.5, lambda at: at)
    words = "beating; pool 100% used, first full at 8.2 s"
    assert status_of(desk(run)) == status_of(desk(run), t_full_s=20.0) == Status(words)


def test_a_desk_that_is_restarted_meanwhile_has_one_state_in_one_answer():
    states = iter([OPEN, STARTING, STARTING, STARTING, STARTING])

    class Restarted:
        state = property(lambda self: next(states))
        progress, notice, manager = "starting", "", desk(run_of(until=4 * B)).manager

    assert status_of(Restarted()).words.startswith("beating")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59.6, "60 s"), (119, "119 s"), (120, "2 min 00 s"), (605, "10 min 05 s")]
)
def test_a_span_is_said_as_people_say_it(seconds, words):
    assert in_time(seconds) == words


@pytest.mark.parametrize("seconds", [119.6, 179.7, 3599.9])
def test_no_span_has_sixty_seconds_beside_its_minutes(seconds):
    assert " 60 s" not in in_time(seconds) and in_time(seconds) != "120 s"
