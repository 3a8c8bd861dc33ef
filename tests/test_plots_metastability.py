"""Figures of the metastability experiment, read back as data."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from workbench.experiments import Result
from workbench.experiments._metastability_metrics import cells
from workbench.plots_metastability import (
    SOURCE_LOOKS,
    PlotError,
    collapse_curves,
    collapse_map,
    growth_decides,
    label_of_runs,
    walls_apart,
)
from workbench.wilson import wilson

EQ1_S = {96: 400.0, 128: 300.0}
DURATIONS = {n: [(0.9 * s, 0.9), (300.0, None), (1.1 * s, 1.1), (1.3 * s, 1.3)] for n, s in EQ1_S.items()}


def row(policy: str, variance: str, n: int, seed: int, wall: float | None, growth: float = 32.0) -> dict:
    """A run that walled at ``wall``, a part of Eq. 1's time."""
    at_s = None if wall is None else wall * EQ1_S[n]
    keys = ("policy", "variance", "n", "seed", "wall_at_s", "full_at_s", "ended_at_s", "growth")
    return dict(zip(keys, (policy, variance, n, seed, at_s, at_s, at_s or 1.31 * EQ1_S[n], growth), strict=True))


RUNS = [
    row("unbounded", "none", 96, 0, 1.01),
    row("unbounded", "none", 128, 1, 1.01),
    row("unbounded", "churn", 128, 2, 1.05),
    row("unbounded", "churn", 128, 3, None),
    row("unbounded", "replies", 128, 4, 1.0, 32.0),
    row("unbounded", "replies", 128, 5, 1.2, 26.6667),
    row("bounded", "all", 128, 6, None),
    row("bounded", "churn", 128, 7, None),
]
METRICS = {
    "cells": cells(RUNS, DURATIONS),
    "predicted": [{"n": n, "eq1_s": s, "growth": 32} for n, s in EQ1_S.items()],
    "runs": RUNS,
    "paper": {"duration_s": 300.0},
}


def result(executor: str = "simulated") -> Result:
    params = {
        "frame_budget_s": 2.0,
        "pool_blocks": 40_000,
        "block_size": 16,
        "tokens_in": 26,
        "tokens_owed": 7,
        "window": 1024,
        "sinks": 16,
        "strengths": {"start_jitter": 1.0, "silence": 0.9},
    }
    none = pd.DataFrame()
    return Result("metastability", "sim:x@y", executor, "0.32.0", 7, params, METRICS, (), none, none, none)


LABEL = label_of_runs(result())


def all_figures(metrics=METRICS, label=LABEL) -> list:
    return [
        collapse_map(metrics, label=label),
        collapse_curves(metrics, 128, label=label),
        walls_apart(metrics, label=label),
        growth_decides(metrics, label=label),
    ]


def notes(figure) -> dict[str, str]:
    return {a.name: a.text for a in figure.layout.annotations if a.name}


def test_every_figure_says_that_it_is_simulated_and_by_what():
    for figure in all_figures():
        assert notes(figure)["simulated"] == "simulated"
        for words in ("simulated", "sim:x@y", "seed 7", "B = 2 s", "40000 blocks", "W = 1024", "silence 0.9"):
            assert words in notes(figure)["caption"]
    assert max(map(len, LABEL.text.split("<br>"))) <= 95


def test_the_map_counts_walls_by_source_and_duration_and_bounded_runs_together():
    (heat,) = collapse_map(METRICS, label=LABEL).data
    assert list(heat.x) == ["0.9", "1.1", "1.3"]
    shown = dict(zip(heat.y, heat.text, strict=True))
    assert list(shown["none, N = 96"]) == ["0 of 1", "1 of 1", "1 of 1"]
    assert list(shown["churn, N = 128"]) == ["0 of 2", "1 of 2", "1 of 2"]
    assert list(shown["replies, N = 128"]) == ["0 of 2", "1 of 2", "2 of 2"]
    assert list(shown["bounded, N = 128"]) == ["0 of 2"] * 3 and len(shown) == 5
    assert list(heat.z[list(heat.y).index("churn, N = 128")]) == [0, 0.5, 0.5]


def test_the_curves_carry_wilson_s_interval_a_panel_each():
    figure = collapse_curves(METRICS, 128, label=LABEL)
    lines = {trace.name.split(",")[0]: trace for trace in figure.data}
    assert list(lines) == ["none", "churn", "replies", "bounded"]
    titles = [a.text for a in figure.layout.annotations if "run" in a.text and not a.name]
    assert titles == ["none, 1 runs", "churn, 2 runs", "replies, 2 runs", "bounded, 2 runs", "runs that walled"]
    low, high = wilson(1, 2)
    churn = lines["churn"]
    assert list(churn.x) == [0.9, 1.1, 1.3] and churn.y[1] == 0.5
    assert (churn.error_y.array[1], churn.error_y.arrayminus[1]) == pytest.approx((high - 0.5, 0.5 - low))
    assert len({trace.xaxis for trace in figure.data}) == 4
    assert [s.x0 for s in figure.layout.shapes] == [1.0] * 4  # the paper's 300 s over Eq. 1's 300 s
    assert all("simulated" in trace.name for trace in figure.data)


def test_the_paper_s_duration_is_left_out_where_it_is_off_the_axis():
    metrics = METRICS | {"paper": {"duration_s": 900.0}}
    assert not collapse_curves(metrics, 128, label=LABEL).layout.shapes


def test_walls_stand_over_eq_1_and_runs_without_one_are_hollow():
    traces = {(t.y[0], t.marker.symbol): t for t in walls_apart(METRICS, label=LABEL).data}
    assert list(traces["none", "circle"].x) == pytest.approx([1.01, 1.01])
    assert list(traces["churn", "star"].x) == pytest.approx([1.05])
    assert list(traces["churn", "star-open"].x) == pytest.approx([1.31])
    assert len(traces) == 4


def test_growth_and_eq_1_are_held_against_each_other_for_fixed_n_alone():
    traces = {t.name: t for t in growth_decides(METRICS, label=LABEL).data}
    assert set(traces) == {"Eq. 1, N = 96", "Eq. 1, N = 128", "none, simulated", "replies, simulated"}
    assert list(traces["replies, simulated"].y) == [300, 360]
    line = traces["Eq. 1, N = 128"]
    assert [x * y for x, y in zip(line.x, line.y, strict=True)] == pytest.approx([32 * 300.0] * 61)
    assert line.x[0] < 26.6667 and line.x[-1] > 32


def test_sources_differ_in_colour_and_in_symbol():
    assert len({look.colour for look in SOURCE_LOOKS.values()}) == len(SOURCE_LOOKS) == 7
    assert len({look.symbol for look in SOURCE_LOOKS.values()}) == 7


def test_metrics_of_something_else_and_an_n_that_was_not_served_are_refused():
    with pytest.raises(PlotError, match="no 'cells'"):
        collapse_map({"points": []}, label=LABEL)
    with pytest.raises(PlotError, match="n = 64"):
        collapse_curves(METRICS, 64, label=LABEL)
    with pytest.raises(PlotError, match="fixed N"):
        growth_decides(METRICS | {"runs": [r for r in RUNS if r["variance"] == "churn"]}, label=LABEL)


def test_figures_survive_the_trip_through_json():
    for figure in all_figures():
        assert json.loads(figure.to_json())["data"]
