"""Figures of the capacity experiment: what is drawn where, in which words, and what is refused."""

from __future__ import annotations

import json

import pytest

from workbench._figures import Label, PlotError
from workbench.plots_capacity import bursts, capacities, slowdowns

LABEL = Label("caption", simulated=True)
POINT = {
    "model": "card",
    "hardware": "gpu",
    "window": 1024,
    "slowdown": 1.0,
    "n_star": 200,
    "limit": "latency",
    "memory_ceiling_measured": 600,
    "paper_n_star": 209,
    "paper_memory_ceiling": 496,
    "burst_90s": 440,
    "burst_by_eq1": 446,
    "burst_limit": "memory",
    "paper_burst_low": 16,
    "paper_burst_high": 24,
    "paper_burst_words": "about",
}
NOT_THE_PAPER_S = dict.fromkeys(("paper_n_star", "paper_memory_ceiling", "paper_burst_low", "paper_burst_high"))
OTHER = POINT | NOT_THE_PAPER_S | {"model": "other", "n_star": 300, "limit": "memory", "burst_90s": 90}
POINTS = [POINT, OTHER]
WHAT_IF = [
    {"model": "card", "hardware": "gpu", "window": 1024, "burst_seconds": None, "n": 100, "slowdown": 2.5},
    {"model": "card", "hardware": "gpu", "window": 1024, "burst_seconds": None, "n": 900, "slowdown": None},
    {"model": "card", "hardware": "gpu", "window": None, "burst_seconds": 90.0, "n": 24, "slowdown": 30.0},
]


def drawn(figure):
    return {trace.name: dict(zip(trace.y, trace.x, strict=True)) for trace in figure.data}


def all_figures(points=POINTS):
    return [
        capacities(points, label=LABEL),
        bursts(points, label=LABEL),
        slowdowns(WHAT_IF, points, 209, label=LABEL),
    ]


def test_capacities_are_drawn_by_what_limits_them_with_the_paper_s_beside():
    one, other = "card on gpu, W = 1024", "other on gpu, W = 1024"
    assert drawn(capacities(POINTS, label=LABEL)) == {
        "ceiling, simulated": {one: 600, other: 600},
        "N*, simulated (memory)": {other: 300},
        "N*, simulated (latency)": {one: 200},
        "ceiling, the paper's GPU": {one: 496},
        "N*, the paper's GPU": {one: 209},
    }


def test_bursts_stand_beside_eq_1_and_the_paper_s_range():
    figure = bursts(POINTS, label=LABEL)
    assert drawn(figure) == {
        "Eq. 1": {"card on gpu": 446, "other on gpu": 446},
        "burst, simulated (memory)": {"card on gpu": 440, "other on gpu": 90},
        "the paper's GPU": {"card on gpu": 24},
    }
    paper = figure.data[-1]
    assert list(paper.error_x.arrayminus) == [8] and list(paper.text) == ["16 to 24"]


def test_what_the_paper_prints_as_at_least_is_drawn_so():
    figure = bursts([POINT | {"paper_burst_low": 160, "paper_burst_high": None}], label=LABEL)
    assert list(figure.data[-1].text) == ["≥ 160"]


def test_points_that_differ_in_their_window_share_a_burst():
    figure = bursts([POINT | NOT_THE_PAPER_S | {"window": 512}, POINT], label=LABEL)
    assert list(figure.data[0].y) == ["card on gpu"] and figure.data[-1].name == "the paper's GPU"


def test_the_slowdowns_that_were_found_stand_beside_n_star():
    curve, found, rule = slowdowns(WHAT_IF, POINTS, 209, label=LABEL).data
    assert (list(curve.x), list(curve.y)) == ([2.5], [100])
    assert (list(found.x), list(found.y)) == ([1.0], [200])  # of this model alone, and not joined with the curve
    assert "what-if" in curve.name and list(rule.y) == [209, 209]


def test_every_figure_says_simulated_across_the_plot_and_in_its_legend():
    for figure in all_figures():
        assert any(note.name == "simulated" for note in figure.layout.annotations)
        ours = [trace.name for trace in figure.data if "the paper" not in trace.name and "Eq. 1" not in trace.name]
        assert ours and all("simulated" in name for name in ours)
        assert json.loads(figure.to_json())["data"]


@pytest.mark.parametrize("key", ["n_star", "limit", "memory_ceiling_measured"])
def test_metrics_that_lack_something_are_refused_by_name(key):
    with pytest.raises(PlotError, match=f"no {key!r}"):
        capacities([{k: v for k, v in POINT.items() if k != key}], label=LABEL)


def test_a_burst_and_a_slowdown_need_theirs():
    with pytest.raises(PlotError, match="no 'burst_by_eq1'"):
        bursts([{"model": "card"}], label=LABEL)
    with pytest.raises(PlotError, match="no 'slowdown'"):
        slowdowns([{key: value for key, value in WHAT_IF[0].items() if key != "slowdown"}], POINTS, 209, label=LABEL)
