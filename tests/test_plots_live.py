"""The live picture: which trace is which line of which arm, and that extending it by deltas draws the whole."""

from __future__ import annotations

import math

import pytest

from workbench._figures import Label
from workbench.live.feed import LINES as TOLD
from workbench.live.feed import MARKS
from workbench.plots_live import LINES, TITLES, LiveArm, live_figure

B, CAP = 2.0, 0.8
LABEL = Label("simulated · profile few", simulated=True)


def arm(name="run", offset=0.0):
    """Each line has three points of its own, by which it is told from any other."""
    points = {line.line: ([0.0, 1.0, 2.0], [offset + i, offset + i + 0.5, math.nan]) for i, line in enumerate(LINES)}
    return LiveArm(name, lambda line, first=0: tuple(each[first:] for each in points[line]), B, CAP)


@pytest.fixture(scope="module")
def both():
    return live_figure([arm("unbounded"), arm("bounded", 100.0)], LABEL, "two arms")


def test_every_line_that_a_feed_tells_is_drawn_once_and_no_other():
    assert sorted(line.line for line in LINES) == sorted((*TOLD, *MARKS))


def test_trace_k_is_line_k_of_its_arm_in_its_place_and_scale(both):
    assert len(both.data) == 2 * len(LINES)
    for k, trace in enumerate(both.data):
        number, i = divmod(k, len(LINES))
        line = LINES[i]
        at = 100.0 * number + i
        assert trace.x == (0.0, 1.0, 2.0) and trace.y[:2] == (at * line.scale, (at + 0.5) * line.scale)
        place = 2 * (line.place[0] - 1) + line.place[1]
        assert trace.yaxis == ("y" if place == 1 else f"y{place}")


def test_a_mark_is_a_symbol_and_a_line_is_a_line(both):
    assert [trace.mode for trace in both.data[: len(LINES)]] == [
        "markers" if line.symbol else "lines" for line in LINES
    ]
    for line, trace in zip(LINES, both.data, strict=False):
        assert not line.symbol or trace.marker.symbol == line.symbol


def test_arms_differ_in_more_than_colour(both):
    one, other = both.data[0], both.data[len(LINES)]
    assert one.line.color != other.line.color and one.line.dash != other.line.dash


def test_the_legend_names_the_arms_and_one_arm_alone_needs_no_name(both):
    shown = [trace.name for trace in both.data if trace.showlegend]
    assert {"unbounded", "bounded", "unbounded: pool full", "bounded: wall: last token"} <= set(shown)
    assert len(shown) == len(set(shown))
    alone = live_figure([arm()], LABEL)
    marks = [line.name for line in LINES if line.symbol or line.line == "forecast"]
    assert [trace.name for trace in alone.data if trace.showlegend] == marks


def test_each_part_has_its_title_and_the_deadline_and_the_wait_cap_are_ruled(both):
    words = [note.text for note in both.layout.annotations]
    assert set(TITLES) <= set(words)
    assert [shape.y0 for shape in both.layout.shapes] == [B * 1e3, CAP * B * 1e3]
    rules = {note.text: note.y for note in both.layout.annotations if "ms" in note.text and note.text not in TITLES}
    assert rules == {
        f"deadline {B * 1e3:g} ms": pytest.approx(math.log10(B * 1e3)),
        f"wait cap {CAP * B * 1e3:g} ms": pytest.approx(math.log10(CAP * B * 1e3)),
    }


def test_a_simulated_picture_says_so_and_keeps_a_users_zoom(both):
    assert any("simulated" in note.text for note in both.layout.annotations)
    assert both.layout.uirevision == live_figure([arm()], LABEL).layout.uirevision
    assert both.layout.yaxis2.type == "log"


def test_a_picture_without_a_point_has_all_its_traces():
    empty = live_figure([LiveArm("run", lambda line, first=0: ([], []), B, CAP)], LABEL)
    assert [tuple(trace.x) for trace in empty.data] == [()] * len(LINES)
