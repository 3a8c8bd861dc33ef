"""The admission figures say what the traces hold, what was simulated, and what they lack."""

from __future__ import annotations

import pytest

from workbench._figures import Label, PlotError
from workbench.plots_admission import latency_and_failures, pool_of_arms, sessions_and_caps

LABEL = Label("a caption", simulated=True)


def arm(full_s=None, **changes):
    row = {"sessions": 10, "p99_s": 0.1, "returned": 8, "failures": 2, "shed": 0, "usage": 0.5, **changes}
    return {
        "controller": "AIMD",
        "t_full_s": full_s,
        "trace": [{**row, "at_s": 2.0 * i, "cap": cap} for i, cap in enumerate((8, 12, 900))],
    }


ARMS = {"bounded": arm(), "unbounded": arm(full_s=3.0, p99_s=None)}


def traces(figure, name):
    return [trace for trace in figure.data if trace.name == name]


def test_sessions_and_caps_are_those_of_the_trace():
    figure = sessions_and_caps(ARMS, {"bounded": {"N* of the sweep": 11}}, title="t", label=LABEL)
    sessions, caps = traces(figure, "open sessions"), traces(figure, "admission cap")
    assert len(sessions) == len(caps) == 2
    assert list(sessions[0].y) == [10, 10, 10] and list(sessions[0].x) == [0.0, 2.0, 4.0]
    # A cap far above everything is cut at the top of the plot.
    assert list(caps[0].y) == [8, 12, 1.25 * 11] and list(caps[1].y) == [8, 12, 12.5]
    words = [note.text for note in figure.layout.annotations]
    assert "N* of the sweep" in words and "pool full" in words and "simulated" in words and "a caption" in words


def test_failures_are_parts_of_all_frames_and_no_latency_is_drawn_where_none_was_heard():
    figure = latency_and_failures(ARMS, 0.6, title="t", label=LABEL)
    assert [list(trace.y) for trace in traces(figure, "part of frames capped or empty")] == [[0.2] * 3] * 2
    assert [list(trace.y) for trace in traces(figure, "p99 of whole frames (s)")] == [[0.1] * 3, []]
    assert list(traces(figure, "target 0.6 s")[0].y) == [0.6, 0.6]


def test_the_pool_is_drawn_for_each_arm():
    figure = pool_of_arms(ARMS, title="t", label=LABEL)
    assert [list(trace.y) for trace in figure.data] == [[0.5] * 3] * 2
    assert [trace.name for trace in figure.data] == ["bounded sessions", "unbounded sessions"]


@pytest.mark.parametrize("missing", ["trace", "usage"])
def test_what_lacks_is_named(missing):
    broken = arm()
    if missing == "trace":
        del broken["trace"]
    else:
        for row in broken["trace"]:
            del row[missing]
    with pytest.raises(PlotError, match=missing):
        pool_of_arms({"bounded": broken}, title="t", label=LABEL)
