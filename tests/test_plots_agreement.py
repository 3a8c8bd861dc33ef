"""Figures of the agreement experiment, read back as data, on two runs that differ by half a second."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.test_plots import synthetic_result
from workbench.plots import PlotError
from workbench.plots_agreement import label_of_twins, latency_against_n, parted, twin_pools

TOTAL = 100
COSTS = "calibration of smollm2"
RESULT = synthetic_result("vllm-cpu")
LABEL = label_of_twins(replace(RESULT, params={**RESULT.params, "costs": COSTS, "step_noise": 0.125}))


def trace(run: str, at: list[float], used: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"run": run, "at_s": at, "blocks_used": used, "blocks_total": TOTAL})


# The measured run takes its blocks half a second later, and ends a second earlier.
POOL = pd.concat(
    [
        trace("simulated", [0.0, 2.0, 4.0, 6.0], [0, 10, 20, 20]),
        trace("measured", [0.0, 2.5, 4.5, 5.0], [0, 10, 20, 20]),
    ],
    ignore_index=True,
)
METRICS = {"t_full_simulated_s": 4.0, "t_full_measured_s": 4.5, "t_wall_simulated_s": 6.0, "t_wall_measured_s": None}


def point(executor: str, n: int, p50: float, p99: float, holds: bool) -> dict:
    return {"executor": executor, "n": n, "latency_p50_s": p50, "latency_p99_s": p99, "holds": holds}


POINTS = [
    point("simulated", 8, 0.8, 0.9, False),
    point("simulated", 4, 0.4, 0.5, True),
    point("vllm-cpu", 4, 0.5, 0.7, False),
    point("vllm-cpu", 3, 0.4, 0.5, True),
]
N_STAR = {"simulated": 4, "measured": 3}


def figures() -> list:
    return [twin_pools(POOL, METRICS, label=LABEL), latency_against_n(POINTS, N_STAR, 0.6, label=LABEL)]


def one(figure, start: str):
    (found,) = [t for t in figure.data if t.name.startswith(start)]
    return found


def notes(figure) -> dict[str, str]:
    return {a.name: a.text for a in figure.layout.annotations if a.name}


def test_the_caption_says_where_the_twin_s_costs_are_from_and_nothing_is_written_across_half_a_truth():
    for figure in figures():
        caption = notes(figure)["caption"]
        assert "vllm-cpu" in caption and f"simulated twin's step costs: {COSTS}, with noise of sigma 0.12" in caption
        assert "simulated" not in notes(figure)


def test_every_trace_says_whether_it_was_simulated_or_measured():
    for figure in figures():
        for each in figure.data:
            assert "simulated" in each.name or "measured" in each.name or each.name.startswith("target")


def test_both_runs_are_drawn_on_stairs_and_told_apart_by_colour_and_dash():
    lines = {t.name: t for t in twin_pools(POOL, METRICS, label=LABEL).data}
    measured, simulated = lines["usage, measured"], lines["usage, simulated"]
    assert list(measured.y) == [0, 0.1, 0.2, 0.2] and measured.line.shape == simulated.line.shape == "hv"
    assert measured.line.color != simulated.line.color and measured.line.dash != simulated.line.dash


def test_refusal_and_wall_are_marked_on_the_run_s_own_line_where_there_were_any():
    figure = twin_pools(POOL, METRICS, label=LABEL)
    simulated, measured = one(figure, "simulated:"), one(figure, "measured:")
    assert list(simulated.x) == [4.0, 6.0] and list(simulated.y) == [0.2, 0.2]
    assert simulated.name == "simulated: first refusal 4.00 s, wall 6.00 s"
    assert list(measured.x) == [4.5] and "wall" not in measured.name
    nothing = dict.fromkeys(METRICS)
    assert len(twin_pools(POOL, nothing, label=LABEL).data) == 3


def test_the_difference_is_taken_while_both_ran_and_holds_from_sample_to_sample():
    difference = one(twin_pools(POOL, METRICS, label=LABEL), "usage, simulated - measured")
    assert list(difference.x) == [0.0, 2.0, 2.5, 4.0, 4.5, 5.0]
    assert np.allclose(difference.y, [0, 0.1, 0, 0.1, 0, 0])
    assert difference.yaxis == "y2"


def test_parted_tells_how_far_when_and_for_how_long():
    most, at, seconds = parted(POOL)
    assert np.isclose(most, 0.1) and at == 2.0 and seconds == 1.0


def test_points_lie_in_the_order_of_n_and_are_hollow_where_n_does_not_hold():
    p99 = one(latency_against_n(POINTS, N_STAR, 0.6, label=LABEL), "p99, simulated")
    assert list(p99.x) == [4, 8] and list(p99.y) == [0.5, 0.9]
    assert list(p99.marker.symbol) == ["diamond", "diamond-open"]


def test_n_star_of_both_lies_on_the_target():
    figure = latency_against_n(POINTS, N_STAR, 0.6, label=LABEL)
    assert set(one(figure, "target").y) == {0.6}
    for run, n in N_STAR.items():
        ring = one(figure, f"N* {run}")
        assert (*ring.x, *ring.y) == (n, 0.6) and ring.name.endswith(f"= {n}")
    assert figure.layout.xaxis.type == "log" and list(figure.layout.xaxis.tickvals) == [3, 4, 8]
    crowd = [{**POINTS[0], "n": n} for n in (90, 366, 367, 368, 373)]
    ticks = latency_against_n(crowd, N_STAR, 0.6, label=LABEL).layout.xaxis.tickvals
    assert list(ticks) == [90, 366], "numbers that would be written over one another are left out"


def test_an_n_star_of_0_is_in_the_legend_alone():
    ring = one(latency_against_n(POINTS, {"simulated": 4, "measured": 0}, 0.6, label=LABEL), "N* measured")
    assert ring.name == "N* measured = 0" and list(ring.x) == [None]


def test_an_n_star_that_was_not_found_gets_no_mark():
    figure = latency_against_n(POINTS, {"simulated": 4, "measured": None}, 0.6, label=LABEL)
    assert [t.name for t in figure.data if t.name.startswith("N*")] == ["N* simulated = 4"]
    assert not latency_against_n([], {"simulated": None, "measured": None}, 0.6, label=LABEL).data


@pytest.mark.parametrize("column", ["run", "at_s", "blocks_total"])
def test_a_table_without_a_column_is_refused_by_name(column):
    with pytest.raises(PlotError, match=f"pool table has no column '{column}'"):
        twin_pools(POOL.drop(columns=column), METRICS, label=LABEL)


def test_a_run_a_metric_and_a_part_of_a_point_that_are_missing_are_refused_by_name():
    with pytest.raises(PlotError, match="pool table has no run 'measured'"):
        parted(POOL[POOL["run"] == "simulated"])
    with pytest.raises(PlotError, match="metrics have no 't_full_measured_s'"):
        twin_pools(POOL, {}, label=LABEL)
    with pytest.raises(PlotError, match="point has no 'holds'"):
        latency_against_n([{"executor": "x", "n": 1, "latency_p50_s": 1, "latency_p99_s": 1}], N_STAR, 0.6, label=LABEL)


def test_figures_survive_the_trip_through_json():
    for figure in figures():
        assert json.loads(figure.to_json())["data"]
