"""The beat strip: one letter for each frame as it returned, and a line of words for all."""

from __future__ import annotations

import pytest

from workbench.live.strip import COLUMNS, ROWS, Strip
from workbench.telemetry import CAPPED, DROPPED, ON_TIME, FrameRow

WHOLE = {"status": ON_TIME}
LATE = {"status": CAPPED, "capped": True}
EMPTY = {"status": CAPPED, "capped": True, "empty": True}
SILENT = {"status": ON_TIME, "empty": True}
UNHEARD = {"status": DROPPED, "capped": True, "empty": True}


def told(*frames, session="a", strip=None, first=0):
    """A strip that has heard of these frames of a session."""
    strip = strip or Strip()
    for number, how in enumerate(frames, first):
        strip.returned(FrameRow("run", session, number, float(number), **how))
    return strip


def cells(*frames):
    (row,) = told(*frames).shown("arm", {"a": ""})["rows"]
    return row["cells"]


@pytest.mark.parametrize(
    ("frames", "letters"),
    [
        ([WHOLE, WHOLE], "oo"),
        ([WHOLE, LATE, WHOLE], "oco"),
        ([WHOLE, EMPTY, WHOLE], "oeo"),
        ([SILENT, WHOLE], "eo"),
        ([EMPTY, EMPTY], "es"),
        ([EMPTY, EMPTY, EMPTY, WHOLE, EMPTY], "essoe"),
        ([EMPTY, LATE, EMPTY], "ece"),
        ([WHOLE, UNHEARD, WHOLE], "odo"),
        ([EMPTY, UNHEARD, UNHEARD], "ess"),
        ([UNHEARD, EMPTY], "ds"),
    ],
)
def test_each_frame_is_one_letter(frames, letters):
    assert cells(*frames) == letters


def test_the_last_frames_are_kept_and_the_number_of_the_first_of_them():
    frames = [WHOLE] * COLUMNS + [LATE] * 3
    (row,) = told(*frames).shown("arm", {"a": "unbounded"})["rows"]
    assert row == {"session": "a", "note": "unbounded", "first": 3, "cells": "o" * (COLUMNS - 3) + "ccc"}


def test_a_session_that_was_first_heard_of_later_begins_with_that_frame():
    (row,) = told(WHOLE, WHOLE, first=7).shown("arm", {"a": ""})["rows"]
    assert (row["first"], row["cells"]) == (7, "oo")


def test_of_many_sessions_the_first_are_shown_and_the_rest_are_counted():
    names = {f"s{k}": "" for k in range(ROWS + 5)}
    shown = Strip().shown("arm", names)
    assert [row["session"] for row in shown["rows"]] == list(names)[:ROWS]
    assert shown["more"] == 5 and shown["label"] == "arm"
    assert Strip().shown("arm", dict.fromkeys(list(names)[:ROWS], ""))["more"] == 0


def test_a_session_that_is_closed_leaves_and_one_of_its_name_begins_anew():
    strip = told(WHOLE, session="b", strip=told(EMPTY, EMPTY))
    strip.keep({"b": None})
    assert strip.shown("arm", {"a": "", "b": ""})["rows"][0]["cells"] == ""
    told(EMPTY, strip=strip)
    assert [row["cells"] for row in strip.shown("arm", {"a": "", "b": ""})["rows"]] == ["e", "o"]


def test_a_session_without_a_frame_has_an_empty_row():
    assert Strip().shown("arm", {"a": "W 64"})["rows"] == [{"session": "a", "note": "W 64", "first": 0, "cells": ""}]


def test_the_words_say_the_state_of_each_session_by_its_last_frame():
    strip = Strip()
    assert strip.shown("arm", {})["words"] == "no sessions"
    told(WHOLE, session="a", strip=strip)
    assert strip.shown("arm", {"a": ""})["words"] == "1 session: 1 on beat"
    told(WHOLE, EMPTY, EMPTY, session="b", strip=strip)
    told(WHOLE, LATE, session="c", strip=strip)
    told(WHOLE, session="d", strip=strip)
    told(UNHEARD, session="e", strip=strip)
    names = dict.fromkeys("abcdef", "")
    words = "6 sessions: 2 on beat, 1 capped, 1 stalled, 1 audio dropped, 1 before their first frame"
    assert strip.shown("arm", names)["words"] == words


def test_the_words_count_sessions_that_are_not_shown():
    names = {f"s{k}": "" for k in range(ROWS + 3)}
    strip = Strip()
    for name in names:
        told(WHOLE, session=name, strip=strip)
    assert strip.shown("arm", names)["words"] == f"{ROWS + 3} sessions: {ROWS + 3} on beat"
