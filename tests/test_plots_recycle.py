"""Figures of recycle and window, read back as data."""

from __future__ import annotations

import pandas as pd
import pytest

from workbench._figures import Label, PlotError
from workbench.experiments import Result
from workbench.plots_recycle import (
    factor_over_slack,
    label_of_policies,
    label_of_shown,
    label_of_windows,
    latency_by_frame,
    over_windows,
)

PARAMS = {
    "sessions": 2,
    "frame_budget_s": 2.0,
    "tokens_owed": 7,
    "front_end": "load:26",
    "pool_blocks": 200,
    "block_size": 16,
    "window": 128,
    "sinks": 16,
    "slacks": [0.0, 0.5],
    "windows": [128, 256],
    "shown": {"window": 256, "slack": 64},
}
LABEL = Label("simulated · seed 0", simulated=True)


def recycle_point(window: int, slack: int, factor: float, executor: str = "simulated") -> dict:
    return {
        "executor": executor,
        "window": window,
        "slack": slack,
        "factor": factor,
        "prefill_factor": 2 * factor,
        "sessions_that_fit": 100 - slack // 2,
    }


def window_point(window: int) -> dict:
    return {
        "window": window,
        "latency_p50_s": 0.1,
        "latency_p99_s": 0.2,
        "plateau_usage": window / 1000,
        "plateau_predicted_usage": window / 1000,
        "memory_ceiling": 10000 // window,
        "n": 4,
    }


def frames() -> pd.DataFrame:
    rows = [
        {
            "run": run,
            "session": f"s{s}",
            "frame": k,
            "latency_s": 0.1 + 0.05 * (run == "recycled" and k % 2),
            "status": "on_time",
        }
        for run in ("bounded", "recycled")
        for s in range(3)
        for k in range(6)
    ]
    rows.append({"run": "recycled", "session": "s0", "frame": 6, "latency_s": 9.0, "status": "closed"})
    return pd.DataFrame(rows)


def result(executor: str) -> Result:
    none = pd.DataFrame()
    return Result("recycle", "sim:x", executor, "0.32.0", 3, PARAMS, {}, (), none, none, none)


def named(figure, name: str, count: int = 1) -> list:
    found = [trace for trace in figure.data if trace.name == name]
    assert len(found) == count, [trace.name for trace in figure.data]
    return found


def test_the_saw_tooth_is_the_median_of_the_frames_that_returned():
    figure = latency_by_frame(frames(), label=LABEL)
    (recycled,) = named(figure, "recycled, median")
    assert list(recycled.y) == pytest.approx([100, 150, 100, 150, 100, 150])
    (bounded,) = named(figure, "bounded, median")
    assert set(bounded.y) == {100.0}
    assert list(recycled.x) == list(range(6)), "what never returned is not drawn"


def test_a_line_for_each_window_and_executor_over_the_slack_in_windows():
    points = [
        recycle_point(128, 64, 3.0),
        recycle_point(128, 0, 9.0),
        recycle_point(256, 0, 5.0),
        recycle_point(128, 128, 2.0, "vllm-cpu"),
    ]
    figure = factor_over_slack(points, label=LABEL)
    factor, fit = named(figure, "W = 128, simulated", 2)
    assert list(factor.x) == [0, 0.5] and list(factor.y) == [9.0, 3.0]
    assert list(fit.y) == pytest.approx([1.0, 0.68])
    assert named(figure, "W = 128, measured (vllm-cpu)", 2)[0].y[0] == 2.0
    assert figure.layout.yaxis.type == "log"


def test_windows_are_in_order_and_on_one_axis():
    figure = over_windows([window_point(256), window_point(128)], label=LABEL)
    for trace in figure.data:
        assert list(trace.x) == [128, 256]
    assert list(named(figure, "memory ceiling")[0].y) == [78, 39]
    assert list(named(figure, "latency p50")[0].y) == [100, 100]
    assert figure.layout.xaxis3.type == "log" and list(figure.layout.xaxis3.ticktext) == ["128", "256"]


def test_every_figure_says_simulated_across_where_it_is_and_the_caption_names_what_ran():
    for figure in (
        factor_over_slack([recycle_point(128, 0, 2.0)], label=label_of_policies(result("simulated"))),
        over_windows([window_point(128)], label=label_of_windows(result("simulated"))),
    ):
        notes = {a.name: a.text for a in figure.layout.annotations if a.name}
        assert notes["simulated"] == "simulated"
        for part in ("simulated", "seed 3", "2 sessions", "128, 256"):
            assert part in notes["caption"]
    for label_of in (label_of_windows, label_of_policies, label_of_shown):
        assert "W = 128" not in label_of(result("simulated")).text and not label_of(result("vllm-cpu")).simulated
    shown = latency_by_frame(frames(), label=label_of_shown(result("simulated"))).layout.annotations
    assert any("W = 256 · recycled with a slack of 64 tokens, S = 16" in note.text for note in shown)


@pytest.mark.parametrize(
    "draw, point", [(factor_over_slack, recycle_point(1, 0, 1.0)), (over_windows, window_point(1))]
)
def test_points_that_lack_something_are_refused_by_name(draw, point):
    with pytest.raises(PlotError, match="no points to draw"):
        draw([], label=LABEL)
    for key in point:
        with pytest.raises(PlotError, match=key):
            draw([{k: v for k, v in point.items() if k != key}], label=LABEL)


def test_a_table_without_a_column_is_refused_by_name():
    with pytest.raises(PlotError, match="latency_s"):
        latency_by_frame(frames().drop(columns="latency_s"), label=LABEL)
