"""Figures of the loops experiment, read back as data: two loops, of which one never walled."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from workbench.experiments import Result
from workbench.plots_loops import MOST_SAMPLES, SLICES, PlotError, label_of_loops, loop_latencies, loop_pools

TOTAL, CAP = 1000, 0.8
B = {"scratchpad": 10.0, "video": 1.0}
CLIFF = {
    "t_full_predicted_s": 100.0,
    "low": 90.0,
    "high": 110.0,
    "predicted_at_s": 30.0,
    "t_full_measured_s": 98.0,
    "t_wall_s": 105.0,
}
LOOPS = {
    "scratchpad": {"unbounded": CLIFF, "bounded": {}},
    "video": {"unbounded": dict.fromkeys(CLIFF), "bounded": {}},
}
SERVED = {
    name: {
        "sessions": 8,
        "frame_budget_s": budget,
        "tokens_owed": 4,
        "tokens_in_mean": 418.4,
        "front_end": f"{name}:1-2",
        "eos_chance": 0.01,
    }
    for name, budget in B.items()
}


def arm_of_pool(run: str, samples: int = 2401) -> pd.DataFrame:
    at = np.linspace(0, 120, samples)
    used = np.minimum(at / 100, 1.0 if "unbounded" in run else 0.3)
    return pd.DataFrame({"run": run, "at_s": at, "blocks_used": used * TOTAL, "blocks_total": TOTAL})


def arm_of_frames(run: str) -> pd.DataFrame:
    due = np.arange(0.5, 120.5)
    walled = (due > 100) & ("unbounded" in run)
    cap = CAP * B[run.split(",")[0]]
    status = np.where(walled, "capped", "on_time").astype(object)
    latency = np.where(walled, cap, 0.25)
    # One frame that never returned, and one whose input was dropped before it did.
    status[0], latency[0], status[-1] = "closed", 77.0, "dropped" if "unbounded" in run else "on_time"
    return pd.DataFrame({"run": run, "due_at_s": due, "latency_s": latency, "status": status})


RUNS = [f"{name}, {arm}" for name in B for arm in ("unbounded", "bounded")]
POOL, FRAMES = (pd.concat(map(arm, RUNS), ignore_index=True) for arm in (arm_of_pool, arm_of_frames))


def result(executor: str = "simulated") -> Result:
    params = {"pool_blocks": TOTAL, "block_size": 16, "window": 4096, "sinks": 16, "costs": "made up", "loops": SERVED}
    none = pd.DataFrame()
    return Result("loops", "sim:m@h", executor, "0.32.0", 7, params, {"loops": LOOPS}, (), none, FRAMES, POOL)


LABEL = label_of_loops(result())


def figures() -> list:
    return [
        loop_pools(POOL, LOOPS, SERVED, label=LABEL),
        loop_latencies(FRAMES, LOOPS, SERVED, CAP, label=LABEL),
    ]


def traces(figure, name: str, panel: int = 0) -> list:
    axis = ("y", "y2")[panel]
    return [t for t in figure.data if t.name == name and t.yaxis == axis]


def test_every_figure_says_that_it_is_simulated_and_of_what():
    for figure in figures():
        notes = {a.name: a.text for a in figure.layout.annotations if a.name}
        assert notes["simulated"] == "simulated"
        for words in ("sim:m@h", "seed 7", "W = 4096", "scratchpad:1-2, 8 sessions, B = 10 s", "made up"):
            assert words in notes["caption"]
        assert all(len(line) <= 95 for line in notes["caption"].split("<br>"))
        titles = [a.text for a in figure.layout.annotations if "N = 8" in a.text]
        assert titles[0].startswith("scratchpad: 418 tokens in") and titles[1].startswith("video")
        json.loads(figure.to_json())
    assert not label_of_loops(result("vllm-cpu")).simulated


def test_the_pool_shows_both_arms_and_where_the_unbounded_one_ends():
    figure = figures()[0]
    unbounded, bounded = traces(figure, "unbounded")[0], traces(figure, "bounded")[0]
    assert (max(unbounded.y), max(bounded.y)) == (1.0, 0.3)
    assert len(unbounded.x) == MOST_SAMPLES and (unbounded.x[0], unbounded.x[-1]) == (0.0, 120.0)
    assert list(traces(figure, "its 95 % interval")[0].x) == [90.0, 110.0]
    assert list(traces(figure, "first refused allocation")[0].x) == [98.0]
    begins = traces(figure, "forecast that counts")[0]
    assert list(begins.x) == [30.0, 100.0] and begins.y[0] == pytest.approx(0.3, abs=0.01)
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(105.0, 120.0)]


def test_a_loop_that_never_walled_has_no_mark_of_one():
    figure = figures()[0]
    assert traces(figure, "unbounded", 1)
    for name in ("its 95 % interval", "first refused allocation", "forecast that counts"):
        assert not traces(figure, name, 1)


def test_latency_is_summed_up_in_slices_with_what_was_capped_or_dropped_in_it():
    figure = figures()[1]
    unbounded, bounded = traces(figure, "unbounded, median")[0], traces(figure, "bounded, median")[0]
    assert SLICES - 1 <= len(bounded.x) <= SLICES + 1
    assert set(bounded.y) == {0.25}
    # Among them the frame that was dropped; the one that was closed with its session is in none.
    assert unbounded.y[-1] == CAP * B["scratchpad"] and max(unbounded.y) == CAP * B["scratchpad"]
    assert [shape.y0 for shape in figure.layout.shapes] == [8.0, 0.8]
    legend = [t.name for t in figure.data if t.showlegend is not False]
    assert len(legend) == len(set(legend)) == 4


def test_what_lacks_something_is_refused():
    with pytest.raises(PlotError, match="'video, bounded'"):
        loop_pools(POOL[POOL["run"] != "video, bounded"], LOOPS, SERVED, label=LABEL)
    with pytest.raises(PlotError, match="no column 'latency_s'"):
        loop_latencies(FRAMES.drop(columns="latency_s"), LOOPS, SERVED, CAP, label=LABEL)
    with pytest.raises(PlotError, match="video has no 'sessions'"):
        loop_pools(POOL, LOOPS, {**SERVED, "video": {}}, label=LABEL)
    with pytest.raises(PlotError, match="scratchpad has no 't_wall_s'"):
        missing = {key: value for key, value in CLIFF.items() if key != "t_wall_s"}
        loop_pools(POOL, {**LOOPS, "scratchpad": {"unbounded": missing}}, SERVED, label=LABEL)
