"""The panel's controls: what is shown presses nothing, what is pressed is handed on, from whatever thread."""

from __future__ import annotations

import threading

import pytest

from workbench.bound import KVBound
from workbench.live.clips import NO_AUDIO
from workbench.live.status import BOUND_ALL, CLOSE_HALF, RESET, RESTART, Status
from workbench.panel.controls import NONE_OPEN, AddSessions, Admission, Sessions, Speed, StatusBar

OPEN = {"s0": "s0 · numbers · unbounded", "s1": "s1 · numbers · W 64 S 4"}


@pytest.fixture
def pressed():
    return []


@pytest.fixture
def sessions(pressed):
    made = Sessions(lambda name: pressed.append(("close", name)), pressed.append, KVBound(64, 4), 32, 512)
    made.show(OPEN, None)
    return made


def test_what_is_shown_is_not_pressed(sessions, pressed):
    for bound in (KVBound(96, 8), KVBound(128, 32, moving=True), None, KVBound(96, 0)):
        sessions.show(OPEN, bound)
        assert sessions.bound == bound
    assert pressed == []


def test_what_is_pressed_while_another_thread_shows_is_handed_on(sessions, pressed):
    def shown_meanwhile(_):
        # A user's press arrives on the kernel's own thread, in the midst of the showing.
        user = threading.Thread(target=lambda: setattr(sessions.sinks, "value", 16))
        user.start()
        user.join()

    sessions.bounded.observe(shown_meanwhile, names="value")
    sessions.show(OPEN, KVBound(64, 4))
    assert pressed == [None]


def test_sinks_are_let_go_with_the_window(sessions, pressed):
    sessions.bounded.value = "bound on"
    sessions.moving.value = True
    assert pressed == [None, None] and sessions.bound == KVBound(64, 4, moving=True)


def test_a_bound_is_for_all_or_for_the_selected_alone(sessions, pressed):
    sessions.window.value = 96
    sessions.whom.value = "selected"
    sessions.select.value = "s1"
    sessions.bounded.value = "bound on"
    assert pressed == [None, "s1"] and sessions.one


def test_nobody_selected_is_nobody_bound(sessions, pressed):
    sessions.show({}, None)
    sessions.whom.value = "selected"
    sessions.window.value = 128
    assert pressed == [] and sessions.select.options == (NONE_OPEN,) and sessions.selected is None


def test_what_was_selected_stays_selected_while_it_is_open(sessions):
    sessions.select.value = "s1"
    sessions.show({"s1": "s1 · numbers · unbounded", "s2": "s2 · numbers · unbounded"}, None)
    assert sessions.selected == "s1"
    sessions.show({"s2": "s2 · numbers · unbounded"}, None)
    assert sessions.selected == "s2"


def test_a_front_end_without_ears_is_given_no_clip(pressed):
    adding = AddSessions([], False, None, lambda clip, n: pressed.append((clip, n)), None)
    adding.count.value = 3
    adding.children[0].children[2].click()
    assert adding.clip.options == (NO_AUDIO,) and pressed == [(None, 3)]


def test_the_buttons_that_help_stand_out(pressed):
    actions = {label: (lambda label=label: pressed.append(label)) for label in (BOUND_ALL, CLOSE_HALF, RESET, RESTART)}
    bar = StatusBar(actions)
    bar.show(
        [("bounded", Status("beating")), ("unbounded", Status("<wall>", "alarm", (RESET,)))], ["no <b>", "", "no <b>"]
    )
    assert [label for label, each in bar.buttons.items() if each.button_style] == [RESET]
    assert "&lt;wall&gt;" in bar.lines.value and bar.notice.value.count("no &lt;b&gt;") == 1
    bar.buttons[RESTART].click()
    assert pressed == [RESTART]


def test_admission_is_told_by_whatever_changes_it(pressed):
    admission = Admission(lambda: pressed.append(admission.on.value), ["AIMD", "headroom"], 600.0)
    admission.on.value = True
    admission.target_ms.value = 300.0
    admission.controller.value = "headroom"
    assert pressed == [True, True, True]


def test_a_speed_of_its_own_can_be_chosen_too(pressed):
    speed = Speed(7.5, pressed.append, lambda paused: pressed.append(("pause", paused)), None)
    assert speed.speed.value == 7.5
    speed.speed.value = 10.0
    speed.show(9.96, True)
    assert pressed == [10.0] and speed.pause.value and speed.reached.value == "paused"
    speed.pause.value = False
    assert pressed == [10.0, ("pause", False)]
