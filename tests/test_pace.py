"""The pace of virtual time, on a clock that the test sets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.live.pace import AHEAD_S, LEAST_SPEED, MEASURED_OVER_S, MOST_SPEED, Pace, PaceError

TICK_S = AHEAD_S / 4


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def paced(clock, *desks, speed=1.0):
    pace = Pace(speed, clock)
    for desk in desks:
        pace.join(desk)
    return pace


def play(pace, desk, most=math.inf):
    """Play all that may be played; how much that was."""
    seconds = min(pace.left(desk), most)
    pace.played(desk, seconds)
    return seconds


def let_pass(pace, clock, *desks, seconds=1.0):
    """All desks play whenever they may, for so many real seconds; what each has played."""
    played = dict.fromkeys(desks, 0.0)
    for _ in range(round(seconds / TICK_S)):
        clock.now += TICK_S
        for desk in desks:
            played[desk] += play(pace, desk)
    return [played[desk] for desk in desks]


@pytest.mark.parametrize("speed", [LEAST_SPEED, 1, 7.5, MOST_SPEED])
def test_a_second_lets_as_many_seconds_pass_as_the_speed_says(clock, speed):
    pace = paced(clock, "a", speed=speed)
    assert let_pass(pace, clock, "a", seconds=10.0) == [pytest.approx(10 * speed)]


def test_nothing_is_left_before_time_has_passed(clock):
    pace = paced(clock, "a")
    assert pace.left("a") == 0.0


def test_another_speed_counts_from_now_on(clock):
    pace = paced(clock, "a")
    let_pass(pace, clock, "a")
    pace.speed = 10
    assert pace.left("a") == 0.0 and pace.speed == 10.0
    assert let_pass(pace, clock, "a") == [pytest.approx(10.0)]


def test_while_paused_nothing_passes_and_what_passed_is_not_owed(clock):
    pace = paced(clock, "a")
    pace.paused = True
    assert let_pass(pace, clock, "a") == [0.0]
    pace.paused = False
    assert pace.left("a") == 0.0
    assert let_pass(pace, clock, "a") == [pytest.approx(1.0)]


def test_a_step_lets_exactly_so_much_pass_and_pauses(clock):
    pace = paced(clock, "a", speed=3)
    let_pass(pace, clock, "a")
    pace.step(2.5)
    clock.now += 9
    assert pace.paused and pace.left("a") == pytest.approx(2.5)
    play(pace, "a", most=1.5)
    assert pace.left("a") == pytest.approx(1.0)
    play(pace, "a")
    assert let_pass(pace, clock, "a") == [pytest.approx(0.0, abs=1e-9)]


def test_steps_that_are_asked_for_at_once_add_up(clock):
    pace = paced(clock, "a")
    for _ in range(3):
        pace.step(2.0)
    assert play(pace, "a") == 6.0 and pace.left("a") == 0.0


def test_after_steps_desks_that_were_apart_are_at_one_instant(clock):
    pace = paced(clock, "a", "b")
    clock.now += AHEAD_S
    ahead = play(pace, "a")
    assert ahead == pytest.approx(AHEAD_S)
    pace.step(2.0)
    assert ahead + play(pace, "a") == pytest.approx(2.0) and play(pace, "b") == pytest.approx(2.0)


def test_after_a_step_it_goes_on_from_there(clock):
    pace = paced(clock, "a")
    pace.step(2.0)
    play(pace, "a")
    pace.paused = False
    assert let_pass(pace, clock, "a") == [pytest.approx(1.0)]


@given(
    st.sampled_from([LEAST_SPEED, 1.0, 20.0, MOST_SPEED]),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 400)), max_size=60),
)
def test_two_desks_are_never_further_apart_than_allowed(speed, turns):
    clock = Clock()
    pace = paced(clock, "a", "b", speed=speed)
    played = {"a": 0.0, "b": 0.0}
    for desk, milliseconds in turns:
        clock.now += milliseconds / 1e3
        played[desk] += play(pace, desk)
        assert abs(played["a"] - played["b"]) <= AHEAD_S * speed + 1e-9


def test_a_desk_waits_for_the_slowest(clock):
    pace = paced(clock, "a", "b", speed=10)
    assert let_pass(pace, clock, "a", seconds=5.0) == [pytest.approx(AHEAD_S * 10)]
    # The slowest catches up, and from there both go on together.
    assert let_pass(pace, clock, "b", "a") == [pytest.approx((1 + AHEAD_S) * 10), pytest.approx(10.0)]


def test_nobody_waits_for_a_desk_that_has_left(clock):
    pace = paced(clock, "a", "b")
    pace.leave("b")
    pace.leave("b")
    assert let_pass(pace, clock, "a", seconds=3.0) == [pytest.approx(3.0)]


def test_a_desk_that_joins_begins_where_the_slowest_is(clock):
    pace = paced(clock, "a")
    let_pass(pace, clock, "a", seconds=30.0)
    pace.join("b")
    assert let_pass(pace, clock, "a", "b") == [pytest.approx(1.0), pytest.approx(1.0)]


def test_the_first_desk_to_join_owes_nothing_of_the_time_before(clock):
    pace = Pace(1.0, clock)
    clock.now += 50
    pace.join("a")
    assert pace.left("a") == 0.0


@pytest.mark.parametrize("speed", [1.0, 20.0])
def test_what_a_slow_machine_could_not_play_is_not_owed(clock, speed):
    pace = paced(clock, "a", speed=speed)
    clock.now += 100.0
    assert play(pace, "a") == pytest.approx(AHEAD_S * speed)
    assert let_pass(pace, clock, "a") == [pytest.approx(speed)]


def test_with_no_limit_a_desk_plays_as_fast_as_it_can(clock):
    pace = paced(clock, "a", speed=math.inf)
    assert pace.left("a") == math.inf
    pace.played("a", 500.0)
    assert pace.left("a") == math.inf
    pace.step(2.0)
    assert pace.left("a") == pytest.approx(2.0)


def test_with_no_limit_two_desks_take_turns(clock):
    pace = paced(clock, "a", "b", speed=math.inf)
    assert pace.left("a") == pace.left("b") == math.inf
    pace.played("a", 2.0)
    assert pace.left("a") == 0.0 and pace.left("b") == math.inf
    pace.played("b", 3.0)
    assert pace.left("a") == math.inf and pace.left("b") == 0.0


@pytest.mark.parametrize("speed", [1.0, math.inf])
def test_while_no_desk_has_anything_to_play_time_stands_still_and_is_not_owed(clock, speed):
    pace = paced(clock, "a", "b", speed=speed)
    for desk in "ab":
        pace.idle(desk, True)
    clock.now += 50
    assert pace.left("a") == pace.left("b") == 0.0
    pace.idle("b", False)
    assert pace.left("a") == pace.left("b") == (0.0 if speed == 1 else math.inf)


def test_while_one_desk_has_something_to_play_time_passes_for_all(clock):
    pace = paced(clock, "a", "b")
    pace.idle("a", True)
    assert let_pass(pace, clock, "a", "b") == [pytest.approx(1.0)] * 2


def test_a_step_is_played_with_nothing_to_play(clock):
    pace = paced(clock, "a")
    pace.idle("a", True)
    pace.step(2.0)
    assert play(pace, "a") == 2.0 and pace.left("a") == 0.0


def test_a_desk_that_has_left_does_not_make_time_stand_still(clock):
    pace = paced(clock, "a", "b")
    pace.leave("b")
    for _ in range(2):
        pace.idle("b", True)
        pace.idle("a", False)
        assert let_pass(pace, clock, "a") == [pytest.approx(1.0)]
    pace.idle("a", True)
    assert let_pass(pace, clock, "a") == [0.0]


@pytest.mark.parametrize("speed", [0, -1, 0.099, 60.01, math.nan, -math.inf, True, "fast", None])
def test_a_speed_that_cannot_be_played_is_refused_in_one_line(clock, speed):
    with pytest.raises(PaceError, match=r"^speed must be .* real time.* not .*$"):
        Pace(speed, clock)
    pace = Pace(4.0, clock)
    with pytest.raises(PaceError):
        pace.speed = speed
    assert pace.speed == 4.0


def test_the_speed_reached_is_what_was_played_over_what_passed(clock):
    pace = paced(clock, "a", speed=8)
    assert pace.reached is None
    for _ in range(100):
        clock.now += 0.1
        play(pace, "a", most=0.3)
    assert pace.reached == pytest.approx(3.0, rel=0.05)


def test_the_speed_reached_is_forgotten_when_nothing_is_played(clock):
    pace = paced(clock, "a")
    let_pass(pace, clock, "a")
    assert pace.reached == pytest.approx(1.0)
    clock.now += MEASURED_OVER_S * 1.01
    assert pace.reached is None
    let_pass(pace, clock, "a")
    pace.paused = True
    assert pace.reached is None


def test_of_two_desks_the_speed_reached_is_that_of_the_slower(clock):
    pace = paced(clock, "a", "b", speed=8)
    for _ in range(200):
        clock.now += 0.02
        play(pace, "a")
        play(pace, "b", most=0.04)
    assert pace.reached == pytest.approx(2.0, rel=0.05)
