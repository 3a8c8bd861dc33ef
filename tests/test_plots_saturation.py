"""Figures of the saturation experiment, read back as data: what a reader would see of two models, one of them real."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from workbench.experiments import Result
from workbench.plots_saturation import (
    MOST_SAMPLES,
    Label,
    PlotError,
    forecast_errors,
    forecast_narrows,
    label_of_models,
    pool_fills,
)

B, ERROR, TOTAL = 2.0, 0.02, 100
T_FULL_S = {"card": 100.0, "smollm2": 40.0}
PAPER = {"card": (145, 148), "other": (99, 114)}


def model(executor: str, t_full_s: float) -> dict:
    return {
        "executor": executor,
        "sessions": 6,
        "frame_budget_s": B,
        "t_full_predicted_s": 1.01 * t_full_s,
        "low": 0.99 * t_full_s,
        "high": 1.03 * t_full_s,
        "predicted_at_s": 0.3 * t_full_s,
        "t_full_measured_s": t_full_s,
        "error": 0.01,
    }


def trace(run: str, t_full_s: float, samples: int = 21) -> pd.DataFrame:
    """A line from an empty pool at 0 to a full one at t_full; forecasts from the fifth sample on."""
    at = np.linspace(0, t_full_s, samples)
    columns = {
        "run": run,
        "at_s": at,
        "blocks_used": np.floor(at / t_full_s * TOTAL).astype(int),
        "blocks_total": TOTAL,
    }
    said = {"predicted": 1.01 * t_full_s, "low": 0.99 * t_full_s, "high": 1.03 * t_full_s}
    forecasts = {f"t_full_{part}_s": np.where(np.arange(samples) < 5, np.nan, value) for part, value in said.items()}
    return pd.DataFrame(columns | forecasts)


MODELS = {"card": model("simulated", T_FULL_S["card"]), "smollm2": model("vllm-cpu", T_FULL_S["smollm2"])}
POOL = pd.concat([trace(run, t_full_s) for run, t_full_s in T_FULL_S.items()], ignore_index=True)
VARIANCE = {"start_jitter": 0.25, "eos_chance": 0.02}


def result(models: dict) -> Result:
    params = {"hardware_of_models": "rtx-pro-6000", "variance_of_models": VARIANCE}
    none = pd.DataFrame()
    return Result("saturation", "smollm2", "vllm-cpu", "0.32.0", 7, params, {"models": models}, (), none, none, POOL)


LABEL = label_of_models(result(MODELS))


def all_figures(pool: pd.DataFrame = POOL, models: dict = MODELS, label=LABEL) -> list:
    return [
        pool_fills(pool, models, label=label),
        forecast_narrows(pool, models, ERROR, label=label),
        forecast_errors(models, PAPER, ERROR, label=label),
    ]


def traces(figure, start: str) -> list:
    return [t for t in figure.data if t.name.startswith(start)]


def notes(figure) -> dict[str, str]:
    return {a.name: a.text for a in figure.layout.annotations if a.name}


def titles(figure) -> list[str]:
    return [a.text for a in figure.layout.annotations if not a.name and "N =" in a.text]


def test_every_figure_says_what_was_simulated_on_what_and_what_was_not():
    for figure in all_figures():
        caption = notes(figure)["caption"]
        for part in ("simulated: card", "vllm-cpu: smollm2", "seed 7", "rtx-pro-6000", "start_jitter 0.25"):
            assert part in caption


def test_the_word_across_the_plot_is_there_only_where_all_of_it_is_simulated():
    assert ["simulated" in notes(figure) for figure in all_figures()] == [False] * 3
    only = {"card": MODELS["card"]}
    figures = all_figures(models=only, label=label_of_models(result(only)))
    assert [notes(figure).get("simulated") for figure in figures] == ["simulated"] * 3


def test_a_result_without_cards_names_no_hardware():
    label = label_of_models(result({"smollm2": MODELS["smollm2"]}))
    assert "rtx-pro-6000" not in label.text and not label.simulated


def test_a_caption_of_many_models_is_cut_into_lines_that_fit():
    models = {f"model-number-{i}": MODELS["card"] for i in range(12)}
    lines = label_of_models(result(models)).text.split("<br>")
    assert max(map(len, lines)) <= 95 and all(name in " ".join(lines) for name in models)


def test_a_caption_of_more_lines_makes_the_figure_longer_and_the_plot_no_smaller():
    def plot(lines: int) -> tuple[int, int]:
        layout = forecast_errors(MODELS, PAPER, ERROR, label=Label("<br>".join(["line"] * lines))).layout
        return layout.height - layout.margin.t - layout.margin.b, layout.margin.b

    assert plot(2)[0] == plot(5)[0] and plot(5)[1] > plot(3)[1] > plot(2)[1] == plot(1)[1]


def test_each_panel_and_each_trace_of_a_run_says_how_it_came_about():
    for figure in all_figures()[:2]:
        assert titles(figure) == [
            "card, N = 6, B = 2 s, simulated",
            "smollm2, N = 6, B = 2 s, measured (vllm-cpu)",
        ]
    usage = traces(pool_fills(POOL, MODELS, label=LABEL), "usage")
    assert [t.name for t in usage] == ["usage, simulated", "usage, measured (vllm-cpu)"]
    assert usage[0].line.color != usage[1].line.color


def test_a_panel_holds_its_run_the_forecast_and_the_refusal():
    figure = pool_fills(POOL, MODELS, label=LABEL)
    for axis, (run, t_full_s) in zip(("x", "x2"), T_FULL_S.items(), strict=True):
        usage, forecast, refusal = (t for t in figure.data if t.xaxis == axis)
        rows = POOL[POOL["run"] == run]
        assert list(usage.y) == list(rows["blocks_used"] / TOTAL)
        assert list(forecast.x) == [0.3 * t_full_s, 1.01 * t_full_s] and forecast.y[1] == 1.0
        assert forecast.y[0] == usage.y[6]  # at_s = 0.3 t_full is the seventh of 21 samples
        assert list(refusal.x) == [t_full_s]


def test_a_legend_names_each_kind_of_trace_once():
    for figure in all_figures()[:2]:
        named = [t.name for t in figure.data if t.showlegend is not False]
        assert len(named) == len(set(named))


def test_a_run_without_prediction_or_refusal_is_drawn_without_their_marks():
    nothing = dict.fromkeys(("t_full_predicted_s", "low", "high", "predicted_at_s", "t_full_measured_s"))
    models = {"card": MODELS["card"] | nothing}
    assert [t.name for t in pool_fills(POOL, models, label=LABEL).data] == ["usage, simulated"]
    assert not forecast_narrows(POOL, models, ERROR, label=LABEL).data
    assert not forecast_errors(models, {}, ERROR, label=LABEL).data


def test_forecasts_are_shown_as_errors_with_their_interval_until_the_pool_is_full():
    late = POOL[POOL["run"] == "smollm2"].assign(at_s=lambda rows: rows["at_s"] + 1.0)
    figure = forecast_narrows(late, {"smollm2": MODELS["smollm2"]}, ERROR, label=LABEL)
    low, high, said = figure.data
    assert np.allclose([low.y[0], high.y[0], said.y[0]], [-0.01, 0.03, 0.01])
    assert len(said.x) == 21 - 5 - 1 and max(said.x) <= 1
    assert high.fill == "tonexty" and low.showlegend is False


def test_what_is_allowed_is_an_error_or_one_frame():
    figure = forecast_narrows(POOL, MODELS, ERROR, label=LABEL)
    assert list(figure.layout.yaxis.range) == [-2 * ERROR, 2 * ERROR]
    assert list(figure.layout.yaxis2.range) == [-2 * B / 40, 2 * B / 40]
    heights = {shape.y0 for shape in figure.layout.shapes if shape.y0 == shape.y1}
    assert heights == {-ERROR, ERROR, -B / 40, B / 40}


def test_long_runs_are_thinned_to_their_first_and_last_sample():
    pool = trace("card", 100.0, samples=10 * MOST_SAMPLES)
    (usage,) = traces(pool_fills(pool, {"card": MODELS["card"]}, label=LABEL), "usage")
    assert len(usage.x) == MOST_SAMPLES and usage.x[0] == 0 and usage.x[-1] == 100.0


def test_errors_are_signed_and_the_paper_s_stand_beside_ours():
    figure = forecast_errors(MODELS, PAPER, ERROR, label=LABEL)
    simulated, measured, paper = figure.data
    assert [t.name for t in figure.data[:2]] == ["simulated", "measured (vllm-cpu)"]
    assert list(simulated.y) == ["card"] and list(measured.y) == ["smollm2"]
    assert np.isclose(simulated.x[0], 0.01) and np.isclose(simulated.error_x.array[0], 0.02)
    assert np.isclose(simulated.error_x.arrayminus[0], 0.02)
    assert list(paper.y) == ["card, the paper", "other, the paper"]
    assert np.allclose(paper.x, [145 / 148 - 1, 99 / 114 - 1])
    assert len({t.marker.symbol for t in figure.data}) == 3 and len({t.marker.color for t in figure.data}) == 3


@pytest.mark.parametrize("column", ["run", "at_s", "blocks_used"])
def test_a_table_without_a_column_is_refused_by_name(column):
    with pytest.raises(PlotError, match=f"pool table has no column '{column}'"):
        pool_fills(POOL.drop(columns=column), MODELS, label=LABEL)


def test_forecasts_need_their_interval():
    with pytest.raises(PlotError, match="no column 't_full_low_s'"):
        forecast_narrows(POOL.drop(columns="t_full_low_s"), MODELS, ERROR, label=LABEL)


def test_a_model_that_did_not_run_and_metrics_that_lack_something_are_refused():
    with pytest.raises(PlotError, match="pool table has no run 'moshi'"):
        pool_fills(POOL, {"moshi": MODELS["card"]}, label=LABEL)
    lacking = {"card": {key: value for key, value in MODELS["card"].items() if key != "high"}}
    with pytest.raises(PlotError, match="metrics of card have no 'high'"):
        forecast_errors(lacking, PAPER, ERROR, label=LABEL)


def test_figures_survive_the_trip_through_json():
    for figure in all_figures():
        assert json.loads(figure.to_json())["data"]
